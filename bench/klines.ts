/**
 * Klines over HTTP, kept where they can be, beside hand-written SQL for the same columns over the rows, through `pg`: a day of 1 minute,
 * of aligned seconds, and of a size that is computed from rows; and 1 hour over many thin days. Both sides end with rows as JavaScript
 * objects and are compared first. The hand-written SQL adds doubles and rounds the sum; the contract requires the exact sum.
 */
import { DAY_MS } from '../shared/dates.ts';
import { dayOf, ingestHistory, iso } from './days.ts';
import { timed } from './measure.ts';
import { connected, DATASET, type Window } from './others.ts';
import { startService } from './service.ts';
import { subject } from './subject.ts';

const ALIGNED = 'canonical_aligned_1s_aggregates';
const KLINES = '/v1/historical/exchange_a/spot/klines';
const START_MS = Date.parse('2019-01-01');

export const klines = subject({
  name: 'klines',
  compares: 'klines of a day and of many days, beside SQL over the rows',
  options: { rows: 3_500_000, 'thin-rows': 50_000, 'thin-days': 90 },
  rounds: 5,
  smallest: '--rows 500 --thin-rows 500 --thin-days 3',
  async run(lab, { rows, ...thin }) {
    const { stack } = lab;
    const thinDays = thin['thin-days'];
    const years = { fromMs: START_MS, toMs: START_MS + thinDays * DAY_MS };
    const day = { fromMs: years.toMs, toMs: years.toMs + DAY_MS };
    await ingestHistory(lab, { ...years, rows: thin['thin-rows'] });
    await ingestHistory(lab, { ...day, rows, firstId: 1 + thinDays * thin['thin-rows'] });
    await using service = await startService(stack.databaseUrl);
    await using client = await connected(stack.databaseUrl);
    const compare = async (what: string, window: Window, seconds: number, mode: 'native' | 'aligned_1s' = 'native') => {
      const sql = (mode === 'native' ? nativeSql : alignedSql)(window, seconds);
      const body = { start_date: dayOf(window.fromMs), end_date: dayOf(window.toMs - 1), kline_size: seconds, mode };
      const served = async (): Promise<Row[]> => (await service.json(KLINES, body)).rows;
      const found = async (): Promise<Row[]> => (await client.pg.query(sql)).rows;
      checkSame(await served(), await found());
      await lab.compare(what, { tidemark: timed(served), 'SQL over rows': timed(found) });
    };
    await compare('1 m klines of a day', day, 60);
    await compare('1 m klines of a day of aligned seconds', day, 60, 'aligned_1s');
    await compare('90 s klines of a day, from rows', day, 90);
    await compare(`1 h klines of ${thinDays} days of ${thin['thin-rows'].toLocaleString('en-US')}`, years, 3600);
  },
});

type Row = Readonly<Record<string, unknown>>;

const nativeSql = (
  { fromMs, toMs }: Window,
  seconds: number,
) => `select time_bucket(${seconds * 1000}::int8, "timestamp") as datetime,
  first(price, trade_id) as open, max(price) as high, min(price) as low, last(price, trade_id) as close,
  round(avg(price)::numeric, 5)::float8 as mean, round(stddev_pop(price)::numeric, 6)::float8 as std,
  percentile_disc(0.5) within group (order by price) as median,
  percentile_disc(0.75) within group (order by price) - percentile_disc(0.25) within group (order by price) as iqr,
  round(sum(quantity)::numeric, 9)::float8 as volume, avg(is_buyer_maker::int)::float8 as maker_ratio,
  count(*) as no_of_trades, first(price * quantity, trade_id) as open_liquidity, max(price * quantity) as high_liquidity,
  min(price * quantity) as low_liquidity, last(price * quantity, trade_id) as close_liquidity,
  round(sum(price * quantity)::numeric, 1)::float8 as liquidity_sum,
  sum(quantity) filter (where is_buyer_maker) as maker_volume,
  round((sum(price * quantity) filter (where is_buyer_maker))::numeric, 1)::float8 as maker_liquidity
  from ${DATASET} where "timestamp" >= ${fromMs} and "timestamp" < ${toMs} group by 1 order by 1`;

const alignedSql = ({ fromMs, toMs }: Window, seconds: number) => `select
  time_bucket(interval '${seconds} s', aligned_at_utc, timestamptz '1970-01-01Z') as datetime,
  first(open_price, aligned_at_utc) as open, max(high_price) as high, min(low_price) as low,
  last(close_price, aligned_at_utc) as close, round(sum(quantity_sum)::numeric, 9)::float8 as volume,
  sum(trade_count)::int8 as no_of_trades, round(sum(quote_volume_sum)::numeric, 1)::float8 as liquidity_sum
  from ${ALIGNED} where dataset_id = 1 and series_id = (select series_id from series where dataset_id = 1 and key = '')
    and aligned_at_utc >= '${iso(fromMs)}' and aligned_at_utc < '${iso(toMs)}' group by 1 order by 1`;

/** Compares the klines; rounded sums of doubles may differ in the last decimal from our exact ones. */
function checkSame(served: readonly Row[], rows: readonly Row[]): void {
  if (served.length !== rows.length || rows.length === 0) {
    throw new Error(`${served.length} klines were served, ${rows.length} found`);
  }
  served.forEach((kline, index) => {
    for (const [name, value] of Object.entries(rows[index])) {
      if (name === 'datetime') continue;
      const [ours, theirs] = [Number(kline[name]), Number(value)];
      const step = name.startsWith('liquidity') || name === 'maker_liquidity' ? 0.1 : 1e-5;
      if (!(Math.abs(ours - theirs) <= step * 1.001)) {
        throw new Error(`kline ${index}: ${name} is ${ours}, found ${theirs}`);
      }
    }
  });
}
