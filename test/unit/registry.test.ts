/**
 * The declarations against the contract's own list of fields, written down here a second time, in the contract's words.
 * Datasets that the contract does not list are checked by the rules that hold for all.
 */
import { describe, expect, test } from 'vitest';
import { SETTINGS } from '../../shared/config/settings.ts';
import { ALIGNED_COLUMNS, type Mode } from '../../shared/registry/definition.ts';
import { DATASET_KEYS, DATASETS, type DatasetKey, shapeOf } from '../../shared/registry/index.ts';

/** Name and dtype of each field in order, `?` behind what may be null; a dtype holds for all names since the last. */
const METRIC_NATIVE = (q: '' | '?') => `metric_id string, source_id string, metric_name string, metric_unit string${q},
  metric_value_string string?, metric_value_int int64?, metric_value_float float64?, metric_value_bool bool01?,
  observed_at_utc timestamp_utc, dimensions_json json, provenance_json json${q}, ingested_at_utc timestamp_utc`;
const METRIC_ALIGNED = `aligned_at_utc timestamp_utc, metric_id string, source_id string, metric_name string,
  metric_unit string?, metric_value_string string?, metric_value_int int64?, metric_value_float float64?,
  metric_value_bool bool01?, dimensions_json json, provenance_json json?, records_in_bucket int64,
  latest_ingested_at_utc timestamp_utc, valid_from_utc timestamp_utc, valid_to_utc_exclusive timestamp_utc`;
const TRADES_ALIGNED = `aligned_at_utc timestamp_utc, open_price float64, high_price float64, low_price float64,
  close_price float64, quantity_sum float64, quote_volume_sum float64, trade_count int64,
  valid_from_utc timestamp_utc, valid_to_utc_exclusive timestamp_utc`;
const STREAM_END = `latest_ingested_at_utc timestamp_utc, first_source_offset_or_equivalent string,
  last_source_offset_or_equivalent string, bucket_sha256 string,
  valid_from_utc timestamp_utc, valid_to_utc_exclusive timestamp_utc`;
const DERIVED_ALIGNED = `aligned_at_utc timestamp_utc, source_id string, metric_name string, metric_unit string,
  metric_value_float float64, valid_from_utc timestamp_utc, valid_to_utc_exclusive timestamp_utc,
  records_in_bucket int64, latest_ingested_at_utc timestamp_utc, provenance_json json, dimensions_json json,
  metric_value_string string?, metric_value_int int64?, metric_value_bool bool01?`;
const derived = (own: string) => `block_height int64, block_hash string, block_timestamp int64, ${own},
  datetime timestamp_utc, source_chain string`;

interface Contract {
  readonly native: string;
  readonly order: string;
  readonly aligned: string;
  readonly series?: string;
}

const CONTRACT: Readonly<Record<string, Contract>> = {
  exchange_a_spot_trades: {
    native: `trade_id int64, timestamp int64, price float64, quantity float64, quote_quantity float64,
      is_buyer_maker bool01, is_best_match bool01, datetime timestamp_utc`,
    order: 'datetime, trade_id',
    aligned: TRADES_ALIGNED,
  },
  exchange_b_spot_trades: {
    native: `instrument_name string, trade_id int64, side string, price float64, size float64, quote_quantity float64,
      timestamp int64, datetime timestamp_utc, event_id uuid, source_offset_or_equivalent string,
      source_event_time_utc timestamp_utc?, ingested_at_utc timestamp_utc`,
    order: 'datetime, trade_id',
    aligned: TRADES_ALIGNED,
  },
  exchange_c_spot_trades: {
    native: `symbol string, trade_id int64, trd_match_id string, side string, price float64, size float64,
      quote_quantity float64, timestamp int64, datetime timestamp_utc, tick_direction string, gross_value float64,
      home_notional float64, foreign_notional float64`,
    order: 'datetime, trade_id',
    aligned: TRADES_ALIGNED,
  },
  etf_daily_metrics: {
    native: METRIC_NATIVE('?'),
    order: 'observed_at_utc, source_id, metric_name, metric_id',
    aligned: METRIC_ALIGNED,
    series: 'source_id, metric_name, dimensions_json',
  },
  macro_series_metrics: {
    native: METRIC_NATIVE(''),
    order: 'observed_at_utc, source_id, metric_name, vintage, metric_id',
    aligned: METRIC_ALIGNED,
    series: 'source_id, metric_name',
  },
  bitcoin_block_headers: {
    native: `height int64, block_hash string, prev_hash string, merkle_root string, version int64, nonce int64,
      difficulty float64, timestamp int64, datetime timestamp_utc, source_chain string`,
    order: 'datetime, height',
    aligned: `aligned_at_utc timestamp_utc, records_in_bucket int64, latest_height int64, latest_block_hash string,
      latest_prev_hash string, latest_merkle_root string, latest_version int64, latest_nonce int64,
      latest_difficulty float64, latest_timestamp_ms int64, latest_source_chain string, ${STREAM_END}`,
  },
  bitcoin_block_transactions: {
    native: `block_height int64, block_hash string, block_timestamp int64, transaction_index int64, txid string,
      inputs json, outputs json, values json, scripts json, witness_data json, coinbase bool01,
      datetime timestamp_utc, source_chain string`,
    order: 'datetime, block_height, transaction_index',
    aligned: `aligned_at_utc timestamp_utc, records_in_bucket int64, tx_count int64, coinbase_tx_count int64,
      total_input_value_btc float64, total_output_value_btc float64, first_block_height int64,
      last_block_height int64, latest_block_timestamp_ms int64, latest_txid string, latest_source_chain string,
      ${STREAM_END}`,
  },
  bitcoin_mempool_state: {
    native: `snapshot_at timestamp_utc, snapshot_at_unix_ms int64, txid string, fee_rate_sat_vb float64, vsize int64,
      first_seen_timestamp int64, rbf_flag bool01, source_chain string`,
    order: 'snapshot_at, txid',
    aligned: `aligned_at_utc timestamp_utc, records_in_bucket int64, tx_count int64, fee_rate_sat_vb_min float64,
      fee_rate_sat_vb_max float64, fee_rate_sat_vb_avg float64, total_vsize int64, first_seen_timestamp_min int64,
      first_seen_timestamp_max int64, rbf_true_count int64, latest_snapshot_at_unix_ms int64, latest_txid string,
      latest_source_chain string, ${STREAM_END}`,
  },
  bitcoin_block_fee_totals: {
    native: derived('fee_total_btc float64'),
    order: 'datetime, block_height',
    aligned: DERIVED_ALIGNED,
  },
  bitcoin_block_subsidy_schedule: {
    native: derived('halving_interval int64, subsidy_sats int64, subsidy_btc float64'),
    order: 'datetime, block_height',
    aligned: DERIVED_ALIGNED,
  },
  bitcoin_network_hashrate_estimate: {
    native: derived('difficulty float64, observed_interval_seconds int64, hashrate_hs float64'),
    order: 'datetime, block_height',
    aligned: DERIVED_ALIGNED,
  },
  bitcoin_circulating_supply: {
    native: derived('circulating_supply_sats int64, circulating_supply_btc float64'),
    order: 'datetime, block_height',
    aligned: DERIVED_ALIGNED,
  },
};

test('the datasets of the contract are all there, before any other', () => {
  const keys = Object.keys(CONTRACT);
  expect(DATASET_KEYS.slice(0, keys.length)).toEqual(keys);
});

const listOf = (text: string) => text.split(',').map((one) => one.trim().replace(/\s+/g, ' '));

describe.each([...DATASETS.values()].map((dataset) => [dataset.key as DatasetKey, dataset] as const))(
  '%s',
  (key, dataset) => {
    const contract = CONTRACT[key];

    test.each(['native', 'aligned_1s'] as const satisfies Mode[])('%s: fields and order of the contract', (mode) => {
      const { fields, order } = shapeOf(dataset, mode);
      for (const { name, doc } of fields) expect([name, doc]).toEqual([name, expect.stringMatching(/^\S.*\.$/)]);
      if (!contract) return;
      expect(fields.map(({ name, dtype, nullable }) => `${name} ${dtype}${nullable ? '?' : ''}`)).toEqual(
        listOf(mode === 'native' ? contract.native : contract.aligned),
      );
      const series = contract.series === undefined ? [] : listOf(contract.series);
      expect(order).toEqual(mode === 'native' ? listOf(contract.order) : ['aligned_at_utc', ...series]);
      if (mode === 'aligned_1s') expect(dataset.aligned.seriesKey).toEqual(series);
    });

    test.each(['native', 'aligned_1s'] as const)('%s: a field names the columns that its SQL reads', (mode) => {
      for (const { name, sql, columns, column, validity } of shapeOf(dataset, mode).fields) {
        const isPlain = sql === `t.${columns[0]}` && columns.length === 1;
        expect([name, column]).toEqual([name, isPlain ? columns[0] : undefined]);
        const read = [...sql.matchAll(/\bt\."?(\w+)"?/g)].map(([, one]) => one);
        // The read computes the ends of validity that no column holds.
        if (validity === undefined || column !== undefined)
          expect([name, ...columns]).toEqual(expect.arrayContaining(read));
        const end = { valid_from_utc: 'from', valid_to_utc_exclusive: 'to' }[name];
        expect([name, validity]).toEqual([name, end]);
      }
    });

    test('number, view, path and status', () => {
      expect(dataset.number).toBe(DATASET_KEYS.indexOf(key) + 1);
      expect(dataset.native.view).toEqual({ id: `${key}_native`, version: 1 });
      expect(dataset.aligned.view).toEqual({ id: 'aligned_1s_raw', version: 1 });
      const [family, ...rest] = key.split('_');
      const path = family === 'exchange' ? `exchange_${rest[0]}/spot/trades` : `${family}/${rest.join('_')}`;
      expect(dataset.historicalPath).toBe(path);
      const isStream = /block_headers|block_transactions|mempool_state/.test(key);
      expect(dataset.contractViolationStatus).toBe(isStream ? 409 : 503);
      const isState = family === 'etf' || family === 'macro' || (family === 'bitcoin' && !isStream);
      expect(dataset.aligned.windowing).toBe(isState ? 'state' : 'bucket');
    });

    test('what it refers to is there', () => {
      const { native, aligned } = dataset;
      const columns = native.columns.map((column) => column.name as string);
      if (native.scope.kind === 'column') expect(columns).toContain(native.scope.column);
      for (const { column } of native.totals) expect(columns).toContain(column);
      for (const column of aligned.outsideDigests) expect(Object.keys(ALIGNED_COLUMNS)).toContain(column);
      expect(Object.keys(dataset.locations)).toEqual(dataset.sources);
      const named = [...Object.values(dataset.locations).flat(), dataset.servingState, dataset.quality?.maxAgeDays];
      expect(Object.keys(SETTINGS)).toEqual(expect.arrayContaining(named.filter((name) => name !== undefined)));
    });
  },
);
