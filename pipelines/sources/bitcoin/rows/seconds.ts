/**
 * Aligned rows of the seven datasets, as SQL over native rows. Blocks of one second are merged in offset order, over
 * all proved heights. Sums are in satoshis and are rounded once, when they become bitcoins.
 */
import type { AlignedColumn } from '../../../../shared/registry/definition.ts';
import type { SharedSeconds } from '../../../rows/binary-copy.ts';
import type { DerivedDataset } from './derived.ts';

/** SQL expressions by column, over `t`, the rows of one second. */
type Expressions = Partial<Record<AlignedColumn, string>>;

function seconds(expressions: Expressions): SharedSeconds {
  const entries = Object.entries(expressions) as [AlignedColumn, string][];
  const list = entries.map(([column, sql]) => `${sql} as ${column}`).join(',\n      ');
  return {
    columns: entries.map(([column]) => column),
    select: (rows) => `select t.second,\n      ${list}\n    from ${rows} t group by t.second`,
  };
}

/** The columns of every stream; `order` is the offset order as SQL columns. */
const ofStream = (order: string): Expressions => ({
  records_in_bucket: 'count(*)',
  latest_source_chain: last('t.source_chain', order),
  latest_ingested_at_utc: 'max(t.ingested_at)',
  first_source_offset_or_equivalent: first('t.source_offset', order),
  last_source_offset_or_equivalent: last('t.source_offset', order),
  bucket_sha256: `encode(sha256(string_agg(convert_to(t.source_offset || E'\\n' || t.payload_sha256 || E'\\n', 'UTF8'),
        ''::bytea order by ${order})), 'hex')`,
});

/** All use the same order, so PostgreSQL sorts a second's rows once for all columns. */
const first = (value: string, order: string): string => `(array_agg(${value} order by ${order}))[1]`;
const last = (value: string, order: string): string => `(array_agg(${value} order by ${order}))[count(*)]`;

const BY_HEIGHT = 't.height';

export const HEADER_SECONDS = seconds({
  ...ofStream(BY_HEIGHT),
  latest_height: 'max(t.height)',
  latest_block_hash: last('t.block_hash', BY_HEIGHT),
  latest_prev_hash: last('t.prev_hash', BY_HEIGHT),
  latest_merkle_root: last('t.merkle_root', BY_HEIGHT),
  latest_version: last('t.version', BY_HEIGHT),
  latest_nonce: last('t.nonce', BY_HEIGHT),
  latest_difficulty: last('t.difficulty', BY_HEIGHT),
  latest_timestamp_ms: last('t."timestamp"', BY_HEIGHT),
});

const BY_PLACE = 't.block_height, t.transaction_index';
/** Multiplies because a product of numerics is exact and a quotient is rounded. */
const btc = (sats: string): string => `(sum(${sats}) * 0.00000001)::float8`;

export const TRANSACTION_SECONDS = seconds({
  ...ofStream(BY_PLACE),
  tx_count: 'count(*)',
  coinbase_tx_count: 'count(*) filter (where t.coinbase)',
  total_input_value_btc: btc('t.input_value_sats'),
  total_output_value_btc: btc('t.output_value_sats'),
  first_block_height: 'min(t.block_height)',
  last_block_height: 'max(t.block_height)',
  latest_block_timestamp_ms: last('t.block_timestamp', BY_PLACE),
  latest_txid: last('t.txid', BY_PLACE),
});

const BY_SNAPSHOT = 't.snapshot_at_unix_ms, t.txid collate "C"';
const FEE_RATE = 't.fee_sats::float8 / t.vsize';

export const MEMPOOL_SECONDS = seconds({
  ...ofStream(BY_SNAPSHOT),
  tx_count: 'count(*)',
  fee_rate_sat_vb_min: `min(${FEE_RATE})`,
  fee_rate_sat_vb_max: `max(${FEE_RATE})`,
  // Thirty decimals per quotient, so the mean is effectively rounded once, to a double.
  fee_rate_sat_vb_avg: 'avg(t.fee_sats::numeric(60, 30) / t.vsize)::float8',
  total_vsize: 'sum(t.vsize)::int8',
  first_seen_timestamp_min: 'min(t.first_seen_timestamp)',
  first_seen_timestamp_max: 'max(t.first_seen_timestamp)',
  rbf_true_count: 'count(*) filter (where t.rbf_flag)',
  latest_snapshot_at_unix_ms: 'max(t.snapshot_at_unix_ms)',
  latest_txid: last('t.txid', BY_SNAPSHOT),
});

const BY_BLOCK_HEIGHT = 't.block_height';

interface DerivedMetric {
  readonly name: string;
  readonly unit: string;
  readonly value: string;
  /** More members of the provenance JSON, in SQL, each followed by a comma. */
  readonly provenance?: string;
}

const inBtc = (sats: string): string => `${sats} / 100000000::float8`;

const METRICS: Readonly<Record<DerivedDataset, DerivedMetric>> = {
  bitcoin_block_fee_totals: { name: 'block_fee_total_btc', unit: 'BTC', value: inBtc('t.fee_total_sats') },
  bitcoin_block_subsidy_schedule: { name: 'block_subsidy_btc', unit: 'BTC', value: inBtc('t.subsidy_sats') },
  bitcoin_network_hashrate_estimate: {
    name: 'network_hashrate_hs',
    unit: 'H/s',
    value: 't.hashrate_hs',
    provenance: `'"raw_interval_seconds":' || t.raw_interval_seconds || ',' || `,
  },
  bitcoin_circulating_supply: {
    name: 'btc_circulating_supply_btc',
    unit: 'BTC',
    value: inBtc('t.circulating_supply_sats'),
  },
};

/** If several blocks share a second, the highest gives the value. */
export function derivedSeconds(dataset: DerivedDataset): SharedSeconds {
  const { name, unit, value, provenance = '' } = METRICS[dataset];
  return seconds({
    source_id: `'bitcoin_core'`,
    metric_name: `'${name}'`,
    metric_unit: `'${unit}'`,
    metric_value_float: last(value, BY_BLOCK_HEIGHT),
    records_in_bucket: 'count(*)',
    latest_ingested_at_utc: 'max(t.ingested_at)',
    provenance_json: last(
      `'{"block_hash":"' || t.block_hash || '",' || ${provenance}'"source_id":"bitcoin_core","source_offset_or_equivalent":"' || t.source_offset || '","stream_id":"bitcoin_block_headers"}'`,
      BY_BLOCK_HEIGHT,
    ),
    dimensions_json: `'{}'`,
  });
}
