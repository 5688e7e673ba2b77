/** The price of ETH in BTC: two instruments of exchange A, joined by the hour. */
import { HistoricalData, ServiceError } from '../client/index.ts';

const { TIDEMARK_URL: baseUrl = 'http://127.0.0.1:8080', TIDEMARK_KEY: apiKey = '' } = process.env;
const dataset = 'exchange_a_spot_trades';
try {
  const data = new HistoricalData({ baseUrl, apiKey });
  for (const { instrument, rows } of await data.instruments({ dataset })) console.log(`${instrument}: ${rows} trades`);
  const { rows } = await data.frame({
    columns: [
      { name: 'btc', dataset, field: 'price' },
      { name: 'eth', dataset, instrument: 'ETHUSDT', field: 'price' },
    ],
    grid: '1h',
    n_rows: 24,
  });
  for (const { datetime, btc, eth } of rows) {
    // An hour without trades has no price.
    const ratio = btc === null || eth === null ? '-' : (Number(eth) / Number(btc)).toFixed(6);
    console.log(datetime, btc, eth, ratio);
  }
} catch (error) {
  console.error(error instanceof ServiceError ? error.message : String(error));
  process.exitCode = 1;
}
