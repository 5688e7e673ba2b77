/** Is this gap real? The longest time without a trade of exchange A, and whether the exchange's own ids prove it. */
import { HistoricalData, ServiceError } from '../client/index.ts';

const { TIDEMARK_URL: baseUrl = 'http://127.0.0.1:8080', TIDEMARK_KEY: apiKey = '' } = process.env;
const dataset = 'exchange_a_spot_trades';
try {
  const data = new HistoricalData({ baseUrl, apiKey });
  const [{ intervals }] = await data.instruments({ dataset });
  const proved = intervals.filter(({ first_proved: first }) => first !== null);
  if (proved.length === 0) throw new Error(`nothing of ${dataset} is proved`);
  const [from, to] = [proved[0].first_proved!, proved.at(-1)!.last_proved!];
  const days = await data.conditions({ dataset, from, to, silences: 'list' });
  for (const { day, condition, reasons } of days) console.log(day, condition, ...reasons);

  const all = days.flatMap(({ silences }) => silences?.list ?? []);
  const gap = all.toSorted((one, other) => other.ms - one.ms)[0];
  if (gap === undefined) console.log('No gap is longer than a minute.');
  else {
    // The trades on both sides; several may have the same millisecond.
    const window = { start_date: gap.from_utc.slice(0, 10), end_date: gap.to_utc.slice(0, 10) };
    const trades = data.get_exchange_a_spot_trades({ ...window, fields: ['trade_id', 'datetime'] });
    let [before, after] = [0, 0];
    for await (const { trade_id: id, datetime } of trades) {
      after = id;
      if (datetime > gap.from_utc) break;
      before = id;
    }
    const between = `between the ids ${before} and ${after}`;
    console.log(`${gap.from_utc} to ${gap.to_utc}: ${gap.ms / 1000} s without a trade, ${between}`);
    console.log(gap.state === 'proved' ? 'The gap is real: the ids follow each other.' : 'Nobody can prove it.');
  }
} catch (error) {
  console.error(error instanceof ServiceError ? error.message : String(error));
  process.exitCode = 1;
}
