import {
  alignedStream,
  BLOCK_CHUNK_MS,
  blockPartitions,
  ofNode,
  PAYLOAD_SHA256,
  SOURCE_CHAIN,
  streamField,
} from '../blocks.ts';
import type { DatasetDefinition } from '../definition.ts';
import { datetimeField, storedField as field, nativeView } from '../definition.ts';

const KEY = 'bitcoin_block_headers';

export const bitcoinBlockHeaders = {
  number: 6,
  ...ofNode(KEY),
  kind: 'bitcoin_stream',
  title: 'Bitcoin block headers',
  doc: "Every block's header, one row per block.",
  ...blockPartitions('height'),
  contractViolationStatus: 409,
  native: {
    table: KEY,
    time: { column: 'timestamp', pg: 'int8' },
    identity: ['height'],
    scope: { kind: 'column', column: 'height', pg: 'int8' },
    columns: [
      { name: 'timestamp', pg: 'int8' },
      { name: 'height', pg: 'int8' },
      { name: 'version', pg: 'int8' },
      { name: 'nonce', pg: 'int8' },
      { name: 'difficulty', pg: 'float8' },
      { name: 'block_hash', pg: 'text' },
      { name: 'prev_hash', pg: 'text' },
      { name: 'merkle_root', pg: 'text' },
      { name: 'source_chain', pg: 'text' },
      PAYLOAD_SHA256,
    ],
    totals: [{ column: 'nonce', scale: 0 }],
    chunkMs: BLOCK_CHUNK_MS,
    fields: [
      field('height', 'int64', 'int8', 'Height of the block.'),
      field('block_hash', 'string', 'text', 'Hash of the block, in hexadecimal.'),
      field('prev_hash', 'string', 'text', 'Hash of the previous block; empty at genesis.'),
      field('merkle_root', 'string', 'text', "Root of the block's transactions."),
      field('version', 'int64', 'int8', 'Version field, signed 32 bits.'),
      field('nonce', 'int64', 'int8', 'Nonce, unsigned 32 bits.'),
      field('difficulty', 'float64', 'float8', "Difficulty, from the header's compact target."),
      field('timestamp', 'int64', 'int8', "Block time; may be earlier than the previous block's.", {
        unit: 'ms',
      }),
      datetimeField('timestamp'),
      SOURCE_CHAIN,
    ],
    order: ['datetime', 'height'],
    view: nativeView(KEY),
  },
  aligned: alignedStream([
    streamField('latest_height', 'int64', "The second's highest block, which the `latest_` fields describe."),
    streamField('latest_block_hash', 'string', 'Its hash.'),
    streamField('latest_prev_hash', 'string', 'Hash of the previous block; empty at genesis.'),
    streamField('latest_merkle_root', 'string', 'Root of its transactions.'),
    streamField('latest_version', 'int64', 'Its version field, signed 32 bits.'),
    streamField('latest_nonce', 'int64', 'Its nonce, unsigned 32 bits.'),
    streamField('latest_difficulty', 'float64', 'Its difficulty.'),
    streamField('latest_timestamp_ms', 'int64', 'Its time.', 'ms'),
  ]),
} as const satisfies DatasetDefinition;
