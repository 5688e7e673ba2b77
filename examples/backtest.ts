/** A backtest's data: prices and volume beside a rate and a block's fees, each hour as it was known at its end. */
import { HistoricalData, ServiceError } from '../client/index.ts';

const { TIDEMARK_URL: baseUrl = 'http://127.0.0.1:8080', TIDEMARK_KEY: apiKey = '' } = process.env;
const A = 'exchange_a_spot_trades';
const FUNDS = { field: 'source_id', op: 'eq', value: 'macro_fedfunds' } as const;
try {
  const { rows } = await new HistoricalData({ baseUrl, apiKey }).frame({
    columns: [
      { name: 'close', dataset: A, field: 'price' },
      { name: 'volume', dataset: A, field: 'quantity', aggregate: 'sum' },
      { name: 'rate', dataset: 'macro_series_metrics', field: 'metric_value_float', filter: FUNDS },
      { name: 'fees', dataset: 'bitcoin_block_fee_totals', field: 'fee_total_btc' },
    ],
    grid: '1h',
    n_rows: 72,
    as_of: 'row',
  });
  console.table(rows.slice(-5));
  console.log(`${rows.length} hours`);
} catch (error) {
  console.error(error instanceof ServiceError ? error.message : String(error));
  process.exitCode = 1;
}
