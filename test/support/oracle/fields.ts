/**
 * The fields of the contract, written down from its documents and from nothing in the code: dataset, mode, name, dtype,
 * in documented order. What a test expects is to come from here, so that a slip in the registry cannot hide itself.
 */

export type Dtype = 'int64' | 'float64' | 'string' | 'bool01' | 'timestamp_utc' | 'uuid' | 'json';
export type Mode = 'native' | 'aligned_1s';
/** Name -> dtype, in order. */
export type Columns = ReadonlyMap<string, Dtype>;

/** `a, b int64; c string`: names before their dtype. */
function columns(text: string): Columns {
  const found = new Map<string, Dtype>();
  for (const group of text.split(';')) {
    const words = group.trim().split(/[\s,]+/);
    const dtype = words.pop() as Dtype;
    for (const name of words) found.set(name, dtype);
  }
  return found;
}

const METRIC = `metric_id, source_id, metric_name, metric_unit, metric_value_string string; metric_value_int int64;
  metric_value_float float64; metric_value_bool bool01`;
const BLOCK = 'block_height int64; block_hash string; block_timestamp int64';
const STREAM_END = `latest_source_chain string; latest_ingested_at_utc timestamp_utc;
  first_source_offset_or_equivalent, last_source_offset_or_equivalent, bucket_sha256 string;
  valid_from_utc, valid_to_utc_exclusive timestamp_utc`;

const NATIVE = {
  exchange_a_spot_trades: `trade_id, timestamp int64; price, quantity, quote_quantity float64;
    is_buyer_maker, is_best_match bool01; datetime timestamp_utc`,
  exchange_b_spot_trades: `instrument_name string; trade_id int64; side string; price, size, quote_quantity float64;
    timestamp int64; datetime timestamp_utc; event_id uuid; source_offset_or_equivalent string;
    source_event_time_utc, ingested_at_utc timestamp_utc`,
  exchange_c_spot_trades: `symbol string; trade_id int64; trd_match_id, side string;
    price, size, quote_quantity float64; timestamp int64; datetime timestamp_utc; tick_direction string;
    gross_value, home_notional, foreign_notional float64`,
  etf_daily_metrics: `${METRIC}; observed_at_utc timestamp_utc; dimensions_json, provenance_json json;
    ingested_at_utc timestamp_utc`,
  macro_series_metrics: `${METRIC}; observed_at_utc timestamp_utc; dimensions_json, provenance_json json;
    ingested_at_utc timestamp_utc`,
  bitcoin_block_headers: `height int64; block_hash, prev_hash, merkle_root string; version, nonce int64;
    difficulty float64; timestamp int64; datetime timestamp_utc; source_chain string`,
  bitcoin_block_transactions: `${BLOCK}; transaction_index int64; txid string;
    inputs, outputs, values, scripts, witness_data json; coinbase bool01; datetime timestamp_utc; source_chain string`,
  bitcoin_mempool_state: `snapshot_at timestamp_utc; snapshot_at_unix_ms int64; txid string; fee_rate_sat_vb float64;
    vsize, first_seen_timestamp int64; rbf_flag bool01; source_chain string`,
  bitcoin_block_fee_totals: `${BLOCK}; fee_total_btc float64; datetime timestamp_utc; source_chain string`,
  bitcoin_block_subsidy_schedule: `${BLOCK}; halving_interval, subsidy_sats int64; subsidy_btc float64;
    datetime timestamp_utc; source_chain string`,
  bitcoin_network_hashrate_estimate: `${BLOCK}; difficulty float64; observed_interval_seconds int64;
    hashrate_hs float64; datetime timestamp_utc; source_chain string`,
  bitcoin_circulating_supply: `${BLOCK}; circulating_supply_sats int64; circulating_supply_btc float64;
    datetime timestamp_utc; source_chain string`,
};

export type Dataset = keyof typeof NATIVE;

const TRADES = `aligned_at_utc timestamp_utc; open_price, high_price, low_price, close_price, quantity_sum,
  quote_volume_sum float64; trade_count int64; valid_from_utc, valid_to_utc_exclusive timestamp_utc`;
const METRICS = `aligned_at_utc timestamp_utc; ${METRIC}; dimensions_json, provenance_json json; records_in_bucket int64;
  latest_ingested_at_utc, valid_from_utc, valid_to_utc_exclusive timestamp_utc`;
const DERIVED = `aligned_at_utc timestamp_utc; source_id, metric_name, metric_unit string; metric_value_float float64;
  valid_from_utc, valid_to_utc_exclusive timestamp_utc; records_in_bucket int64; latest_ingested_at_utc timestamp_utc;
  provenance_json, dimensions_json json; metric_value_string string; metric_value_int int64; metric_value_bool bool01`;

const ALIGNED: Record<Dataset, string> = {
  exchange_a_spot_trades: TRADES,
  exchange_b_spot_trades: TRADES,
  exchange_c_spot_trades: TRADES,
  etf_daily_metrics: METRICS,
  macro_series_metrics: METRICS,
  bitcoin_block_headers: `aligned_at_utc timestamp_utc; records_in_bucket, latest_height int64;
    latest_block_hash, latest_prev_hash, latest_merkle_root string; latest_version, latest_nonce int64;
    latest_difficulty float64; latest_timestamp_ms int64; ${STREAM_END}`,
  bitcoin_block_transactions: `aligned_at_utc timestamp_utc; records_in_bucket, tx_count, coinbase_tx_count int64;
    total_input_value_btc, total_output_value_btc float64;
    first_block_height, last_block_height, latest_block_timestamp_ms int64; latest_txid string; ${STREAM_END}`,
  bitcoin_mempool_state: `aligned_at_utc timestamp_utc; records_in_bucket, tx_count int64;
    fee_rate_sat_vb_min, fee_rate_sat_vb_max, fee_rate_sat_vb_avg float64; total_vsize, first_seen_timestamp_min,
    first_seen_timestamp_max, rbf_true_count, latest_snapshot_at_unix_ms int64; latest_txid string; ${STREAM_END}`,
  bitcoin_block_fee_totals: DERIVED,
  bitcoin_block_subsidy_schedule: DERIVED,
  bitcoin_network_hashrate_estimate: DERIVED,
  bitcoin_circulating_supply: DERIVED,
};

export const DATASETS = Object.keys(NATIVE) as Dataset[];
export const EXCHANGES = DATASETS.filter((key) => key.startsWith('exchange_'));

const known = (table: Record<Dataset, string>) => new Map(DATASETS.map((key) => [key, columns(table[key])]));
const BY_MODE: Record<Mode, ReadonlyMap<Dataset, Columns>> = { native: known(NATIVE), aligned_1s: known(ALIGNED) };

export const columnsOf = (dataset: Dataset, mode: Mode): Columns => BY_MODE[mode].get(dataset)!;

/** What the historical trade routes show where no fields are named, the same for the three exchanges. */
export const UNIFIED_TRADES = columns(
  'trade_id, timestamp int64; price, quantity float64; is_buyer_maker bool01; datetime timestamp_utc',
);

export const KLINES: Record<Mode, Columns> = {
  native: columns(`datetime timestamp_utc; open, high, low, close, mean, std, median, iqr, volume, maker_ratio float64;
    no_of_trades int64; open_liquidity, high_liquidity, low_liquidity, close_liquidity, liquidity_sum, maker_volume,
    maker_liquidity float64`),
  aligned_1s: columns(
    'datetime timestamp_utc; open, high, low, close, volume float64; no_of_trades int64; liquidity_sum float64',
  ),
};
