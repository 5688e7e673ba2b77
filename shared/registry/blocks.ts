/** What the Bitcoin datasets have in common: the node, blocks as partitions, and the two shapes of their aligned rows. */
import { DAY_MS } from '../dates.ts';
import { alignedField, STATE_VALIDITY_FIELDS, VALIDITY_FIELDS } from './aligned-storage.ts';
import type { AlignedShape, DatasetDefinition, Dtype, Field, NativeShape } from './definition.ts';
import { ALIGNED_VIEW, type AlignedColumn, computedBy, datetimeField, nativeView, storedField } from './definition.ts';

const YEAR_MS = 365 * DAY_MS;

/** Blocks that must follow a block before it counts as settled. Regtest needs none, because it has no other miner. */
const CONFIRMATIONS = 6;

export const confirmationDepth = (setting: number | undefined, chain: string): number =>
  setting ?? (chain === 'regtest' ? 0 : CONFIRMATIONS);

/** Every Bitcoin dataset comes from the same node; its events are bytes, not lines. */
const NODE = {
  events: { encoding: 'records' },
  sources: ['bitcoin_core'],
  locations: { bitcoin_core: ['SVC_BITCOIN_RPC_URL'] },
  cadence: { everyMs: 600_000 },
  pinned: ['SVC_BITCOIN_NETWORK'],
} as const satisfies Partial<DatasetDefinition>;

export const ofNode = <K extends string>(key: K) => ({
  ...NODE,
  key,
  historicalPath: `bitcoin/${key.replace('bitcoin_', '')}`,
});

/** Partitions of a dataset with one event a block; the offset is the height. */
export const blockPartitions = (heightColumn: string) =>
  ({
    partition: { kind: 'height' },
    offset: {
      doc: 'the height, such as 180',
      order: 'numeric',
      contiguous: true,
      unique: true,
      sql: `t.${heightColumn}::text`,
    },
  }) as const satisfies Partial<DatasetDefinition>;

export const SOURCE_CHAIN = storedField(
  'source_chain',
  'string',
  'text',
  'Chain: `main`, `test`, `testnet4`, `signet` or `regtest`.',
);

/** The sha256 of an event's bytes, from which the digests of aligned seconds are computed. It is stored and not served. */
export const PAYLOAD_SHA256 = { name: 'payload_sha256', pg: 'text', shown: 'none' } as const;

/** A field in BTC, from a stored column in satoshis: a division of two exact integers, rounded once. */
export const btcField = (name: string, satsColumn: string, doc: string): Field => ({
  name,
  dtype: 'float64',
  nullable: false,
  unit: 'BTC',
  doc,
  pg: 'float8',
  ...computedBy(`t.${satsColumn} / 100000000::float8`, [satsColumn]),
});

const BLOCK_HASH = storedField('block_hash', 'string', 'text', 'Hash of the block, in hexadecimal.');
const BLOCK_HEIGHT = storedField('block_height', 'int64', 'int8', 'Height of the block.');
const BLOCK_TIMESTAMP = storedField(
  'block_timestamp',
  'int64',
  'int8',
  "Block time; may be earlier than the previous block's.",
  { unit: 'ms' },
);

/** The fields before and after those that differ, for rows that belong to a block. */
export const IN_BLOCK = {
  before: [BLOCK_HEIGHT, BLOCK_HASH, BLOCK_TIMESTAMP],
  after: [datetimeField('block_timestamp'), SOURCE_CHAIN],
} as const;

/** A field of an aligned stream (headers, transactions, mempool): the column of the same name. */
export const streamField = (name: AlignedColumn, dtype: Dtype, doc: string, unit?: string): Field =>
  alignedField(name, dtype, doc, { unit });

const EVENTS: Field = alignedField('records_in_bucket', 'int64', 'Events of the second.');

/** The aligned rows of a stream: the events of a second merged in offset order. `own` stands between count and chain. */
export function alignedStream(own: readonly Field[]): AlignedShape {
  return {
    fields: [
      alignedField('aligned_at_utc', 'timestamp_utc', 'The UTC second.'),
      EVENTS,
      ...own,
      alignedField('latest_source_chain', 'string', 'Chain of the node.'),
      alignedField('latest_ingested_at_utc', 'timestamp_utc', 'Latest ingestion time of the second.'),
      alignedField('first_source_offset_or_equivalent', 'string', 'Lowest offset.'),
      alignedField('last_source_offset_or_equivalent', 'string', 'Highest offset.'),
      alignedField('bucket_sha256', 'string', 'sha256 over each event: offset, LF, sha256 of its bytes, LF.'),
      ...VALIDITY_FIELDS,
    ],
    order: ['aligned_at_utc'],
    windowing: 'bucket',
    seriesKey: [],
    countField: 'records_in_bucket',
    outsideDigests: ['latest_ingested_at_utc'],
    view: ALIGNED_VIEW,
  };
}

/** Length of the chunks of a table with one row per block: 52,560 rows. */
export const BLOCK_CHUNK_MS = YEAR_MS;

interface Derived {
  /** `field` is the native field of the value. */
  readonly metric: { readonly name: string; readonly field: string; readonly unit: string; readonly doc: string };
  /** The stored columns between the height and the texts. */
  readonly columns: NativeShape['columns'];
  readonly totals: NativeShape['totals'];
  /** The native fields between those of the block and the datetime. */
  readonly fields: readonly Field[];
}

/** A dataset with one value a block, forward-filled in aligned mode. */
export function derivedFromBlocks<K extends string>(key: K, { metric, columns, totals, fields }: Derived) {
  return {
    ...ofNode(key),
    kind: 'bitcoin_derived',
    ...blockPartitions('block_height'),
    contractViolationStatus: 503,
    native: {
      table: key,
      time: { column: 'block_timestamp', pg: 'int8' },
      identity: ['block_height'],
      scope: { kind: 'column', column: 'block_height', pg: 'int8' },
      columns: [
        { name: 'block_timestamp', pg: 'int8' },
        { name: 'block_height', pg: 'int8' },
        ...columns,
        { name: 'block_hash', pg: 'text' },
        { name: 'source_chain', pg: 'text' },
      ],
      totals,
      chunkMs: BLOCK_CHUNK_MS,
      fields: [...IN_BLOCK.before, ...fields, ...IN_BLOCK.after],
      order: ['datetime', 'block_height'],
      view: nativeView(key),
    },
    aligned: alignedDerived(metric),
  } as const satisfies Partial<DatasetDefinition>;
}

const alignedDerived = (metric: Derived['metric']): AlignedShape => ({
  fields: [
    alignedField('aligned_at_utc', 'timestamp_utc', "The UTC second of the block's own time."),
    alignedField('source_id', 'string', 'Always `bitcoin_core`.'),
    alignedField('metric_name', 'string', `Always \`${metric.name}\`.`),
    alignedField('metric_unit', 'string', `Always \`${metric.unit}\`.`),
    alignedField('metric_value_float', 'float64', metric.doc, { unit: metric.unit }),
    ...STATE_VALIDITY_FIELDS,
    alignedField('records_in_bucket', 'int64', 'Blocks of the second; the highest gives the value.'),
    alignedField('latest_ingested_at_utc', 'timestamp_utc', 'Latest ingestion time of the second.'),
    alignedField('provenance_json', 'json', 'The block that gives the value.'),
    alignedField('dimensions_json', 'json', 'Always `{}`.'),
    alignedField('metric_value_string', 'string', 'Always null.', { nullable: true }),
    alignedField('metric_value_int', 'int64', 'Always null.', { nullable: true }),
    alignedField('metric_value_bool', 'bool01', 'Always null.', { nullable: true }),
  ],
  order: ['aligned_at_utc'],
  windowing: 'state',
  seriesKey: [],
  countField: 'records_in_bucket',
  valueField: metric.field,
  outsideDigests: ['latest_ingested_at_utc'],
  view: ALIGNED_VIEW,
});
