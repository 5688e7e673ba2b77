import { DAY_MS } from '../../dates.ts';
import { alignedStream, IN_BLOCK, ofNode, PAYLOAD_SHA256, streamField } from '../blocks.ts';
import type { DatasetDefinition } from '../definition.ts';
import { storedField as field, nativeView } from '../definition.ts';

const KEY = 'bitcoin_block_transactions';

export const bitcoinBlockTransactions = {
  number: 7,
  ...ofNode(KEY),
  kind: 'bitcoin_stream',
  title: 'Bitcoin block transactions',
  doc: "Every block's transactions with inputs, outputs, scripts and witnesses, one row per transaction.",
  partition: { kind: 'height' },
  offset: {
    doc: '<block_height>:<transaction_index>:<txid>, such as 170:1:f4184fc5… with the txid in full',
    order: 'composite',
    contiguous: false,
    unique: true,
    sql: `t.block_height || ':' || t.transaction_index || ':' || t.txid`,
  },
  contractViolationStatus: 409,
  native: {
    table: KEY,
    time: { column: 'block_timestamp', pg: 'int8' },
    // Two txids occur in two blocks each, so a transaction is identified by block and index.
    identity: ['block_height', 'transaction_index'],
    scope: { kind: 'column', column: 'block_height', pg: 'int8' },
    columns: [
      { name: 'block_timestamp', pg: 'int8' },
      { name: 'block_height', pg: 'int8' },
      { name: 'transaction_index', pg: 'int8' },
      // The exact sums behind those in `values`: proved as totals, summed in aligned rows, and not served.
      { name: 'input_value_sats', pg: 'int8', shown: 'none' },
      { name: 'output_value_sats', pg: 'int8', shown: 'none' },
      { name: 'coinbase', pg: 'bool' },
      { name: 'block_hash', pg: 'text' },
      { name: 'txid', pg: 'text' },
      { name: 'inputs', pg: 'text' },
      { name: 'outputs', pg: 'text' },
      { name: 'values', pg: 'text' },
      { name: 'scripts', pg: 'text' },
      { name: 'witness_data', pg: 'text' },
      { name: 'source_chain', pg: 'text' },
      PAYLOAD_SHA256,
    ],
    totals: [
      { column: 'input_value_sats', scale: 0 },
      { column: 'output_value_sats', scale: 0 },
    ],
    chunkMs: DAY_MS,
    fields: [
      ...IN_BLOCK.before,
      field('transaction_index', 'int64', 'int8', 'Index in the block, from 0; 0 is the coinbase.'),
      field('txid', 'string', 'text', 'Id of the transaction, in hexadecimal.'),
      field(
        'inputs',
        'json',
        'text',
        'List of `{input_index, sequence, prev_txid, prev_vout, prevout_value_btc}`, of a coinbase `{input_index, sequence, coinbase_hex}`.',
      ),
      field('outputs', 'json', 'text', 'List of `{output_index, value_btc, script_type, addresses}`.'),
      field(
        'values',
        'json',
        'text',
        '`{input_values_btc, output_values_btc, input_value_btc_sum, output_value_btc_sum}`; a coinbase has no inputs.',
      ),
      field(
        'scripts',
        'json',
        'text',
        '`{input_script_sig, output_script_pub_key}`: scripts as `asm` and `hex`, outputs with type and addresses.',
      ),
      field('witness_data', 'json', 'text', 'List of `{input_index, stack}` for inputs with a witness.'),
      field('coinbase', 'bool01', 'bool', '1 for the transaction that pays the miner.'),
      ...IN_BLOCK.after,
    ],
    order: ['datetime', 'block_height', 'transaction_index'],
    view: nativeView(KEY),
  },
  aligned: alignedStream([
    streamField('tx_count', 'int64', 'Transactions of the second.'),
    streamField('coinbase_tx_count', 'int64', 'Coinbases, one a block.'),
    streamField('total_input_value_btc', 'float64', 'Exact sum of inputs.', 'BTC'),
    streamField('total_output_value_btc', 'float64', 'Exact sum of outputs.', 'BTC'),
    streamField('first_block_height', 'int64', 'Lowest block of the second.'),
    streamField('last_block_height', 'int64', 'Highest block of the second.'),
    streamField('latest_block_timestamp_ms', 'int64', 'Time of that block.', 'ms'),
    streamField('latest_txid', 'string', 'Last transaction of that block.'),
  ]),
} as const satisfies DatasetDefinition;
