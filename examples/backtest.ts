/** A backtest's data: hourly prices and volume beside fund holdings, a rate and the hashrate, each row as it was known at its end. */
import { HistoricalData } from '../client/index.ts';

const { TIDEMARK_URL: baseUrl = 'http://127.0.0.1:8080', SVC_INTERNAL_API_KEY: apiKey = '' } = process.env;
const data = new HistoricalData({ baseUrl, apiKey });
const series = (source: string, metric: string) =>
  [
    { field: 'source_id', op: 'eq', value: source },
    { field: 'metric_name', op: 'eq', value: metric },
  ] as const;

const { rows, warnings, rows_sha256 } = await data.frame({
  columns: [
    { name: 'close', dataset: 'exchange_a_spot_trades', field: 'price' },
    { name: 'volume', dataset: 'exchange_a_spot_trades', field: 'quantity', aggregate: 'sum' },
    {
      name: 'held',
      dataset: 'etf_daily_metrics',
      field: 'metric_value_float',
      filter: series('etf_ishares_ibit_daily', 'btc_units'),
    },
    {
      name: 'rate',
      dataset: 'macro_series_metrics',
      field: 'metric_value_float',
      filter: series('macro_fedfunds', 'effective_federal_funds_rate'),
    },
    { name: 'hashrate', dataset: 'bitcoin_network_hashrate_estimate', field: 'hashrate_hs' },
  ],
  grid: '1h',
  n_rows: 72,
  as_of: 'row',
});
console.table(rows.slice(-5));
console.log(`${rows.length} hours, sha256 ${rows_sha256}; ${warnings.map(({ code }) => code).join(', ')}`);
