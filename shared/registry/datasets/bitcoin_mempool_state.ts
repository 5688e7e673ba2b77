import { DAY_MS } from '../../dates.ts';
import { alignedStream, ofNode, PAYLOAD_SHA256, SOURCE_CHAIN, streamField } from '../blocks.ts';
import { computedBy, type DatasetDefinition, storedField as field, nativeView, timeField } from '../definition.ts';

const KEY = 'bitcoin_mempool_state';

export const bitcoinMempoolState = {
  number: 8,
  ...ofNode(KEY),
  kind: 'bitcoin_stream',
  title: 'Bitcoin mempool state',
  doc: "Snapshots of the node's mempool, one row per waiting transaction.",
  partition: { kind: 'snapshot' },
  cadence: { everySecondsOf: 'SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS' },
  offset: {
    doc: '<snapshot_at_unix_ms>:<txid>, such as 1735689600000:f4184fc5… with the txid in full',
    order: 'text',
    contiguous: false,
    unique: true,
    sql: `t.snapshot_at_unix_ms || ':' || t.txid`,
  },
  contractViolationStatus: 409,
  native: {
    table: KEY,
    time: { column: 'snapshot_at_unix_ms', pg: 'int8' },
    identity: ['txid'],
    scope: { kind: 'column', column: 'snapshot_at_unix_ms', pg: 'int8' },
    columns: [
      { name: 'snapshot_at_unix_ms', pg: 'int8' },
      // The exact fee behind the rate: proved as a total, and not served.
      { name: 'fee_sats', pg: 'int8', shown: 'fee' },
      { name: 'vsize', pg: 'int8' },
      { name: 'first_seen_timestamp', pg: 'int8' },
      { name: 'rbf_flag', pg: 'bool' },
      { name: 'txid', pg: 'text' },
      { name: 'source_chain', pg: 'text' },
      PAYLOAD_SHA256,
    ],
    totals: [
      { column: 'fee_sats', scale: 0 },
      { column: 'vsize', scale: 0 },
    ],
    chunkMs: DAY_MS,
    fields: [
      timeField('snapshot_at', 'snapshot_at_unix_ms', "Time of the snapshot, by the service's clock."),
      field('snapshot_at_unix_ms', 'int64', 'int8', 'The same instant.', { unit: 'ms' }),
      field('txid', 'string', 'text', 'Id of the transaction, in hexadecimal.'),
      {
        name: 'fee_rate_sat_vb',
        dtype: 'float64',
        nullable: false,
        unit: 'sat/vB',
        doc: 'Base fee divided by virtual size.',
        pg: 'float8',
        ...computedBy('t.fee_sats::float8 / t.vsize', ['fee_sats', 'vsize']),
      },
      field('vsize', 'int64', 'int8', 'Virtual size.', { unit: 'vB' }),
      field('first_seen_timestamp', 'int64', 'int8', 'When the node first saw it.', { unit: 's' }),
      field('rbf_flag', 'bool01', 'bool', '1 when the node marks it replaceable (BIP 125).'),
      SOURCE_CHAIN,
    ],
    order: ['snapshot_at', 'txid'],
    view: nativeView(KEY),
  },
  aligned: alignedStream([
    streamField('tx_count', 'int64', 'Transactions of the snapshot.'),
    streamField('fee_rate_sat_vb_min', 'float64', 'Lowest fee rate.', 'sat/vB'),
    streamField('fee_rate_sat_vb_max', 'float64', 'Highest fee rate.', 'sat/vB'),
    streamField('fee_rate_sat_vb_avg', 'float64', 'Mean fee rate of the transactions.', 'sat/vB'),
    streamField('total_vsize', 'int64', 'Sum of virtual sizes.', 'vB'),
    streamField('first_seen_timestamp_min', 'int64', 'Earliest first-seen time.', 's'),
    streamField('first_seen_timestamp_max', 'int64', 'Latest first-seen time.', 's'),
    streamField('rbf_true_count', 'int64', 'Transactions that may be replaced.'),
    streamField('latest_snapshot_at_unix_ms', 'int64', 'Time of the last snapshot of the second.', 'ms'),
    streamField('latest_txid', 'string', 'Highest txid of that snapshot.'),
  ]),
} as const satisfies DatasetDefinition;
