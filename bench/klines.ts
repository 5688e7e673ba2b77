/**
 * Klines over HTTP, kept where they can be, beside hand-written SQL for the same columns over the rows, through `pg`: a day of 1 minute,
 * of aligned seconds, of a size that comes from seconds, and of one that is computed from rows; and 1 hour over many thin days. Both sides end with rows as JavaScript
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
    const compare = async (
      what: string,
      window: Window,
      seconds: number,
      { mode = 'native', fields }: { mode?: 'native' | 'aligned_1s'; fields?: readonly string[] } = {},
    ) => {
      const sql = mode === 'native' ? nativeSql(window, seconds, fields) : alignedSql(window, seconds);
      const dates = { start_date: dayOf(window.fromMs), end_date: dayOf(window.toMs - 1) };
      const body = { ...dates, kline_size: seconds, mode, fields };
      const served = async (): Promise<Row[]> => (await service.json(KLINES, body)).rows;
      const found = async (): Promise<Row[]> => (await client.pg.query(sql)).rows;
      checkSame(await served(), await found());
      await lab.compare(what, { tidemark: timed(served), 'SQL over rows': timed(found) });
    };
    await compare('1 m klines of a day', day, 60);
    await compare('1 m klines of a day of aligned seconds', day, 60, { mode: 'aligned_1s' });
    await compare('90 s klines of a day, of seconds', day, 90, { fields: OF_SECONDS });
    await compare('7 s klines of a day, of seconds', day, 7, { fields: OF_SECONDS });
    await compare('90 s klines of a day, from rows', day, 90);
    await compare(`1 h klines of ${thinDays} days of ${thin['thin-rows'].toLocaleString('en-US')}`, years, 3600);
  },
});

type Row = Readonly<Record<string, unknown>>;

/** The columns that seconds determine. */
const OF_SECONDS = ['datetime', 'open', 'high', 'low', 'close', 'volume', 'no_of_trades'];

const NATIVE: Readonly<Record<string, string>> = {
  open: 'first(price, trade_id)',
  high: 'max(price)',
  low: 'min(price)',
  close: 'last(price, trade_id)',
  mean: 'round(avg(price)::numeric, 5)::float8',
  std: 'round(stddev_pop(price)::numeric, 6)::float8',
  median: 'percentile_disc(0.5) within group (order by price)',
  iqr: 'percentile_disc(0.75) within group (order by price) - percentile_disc(0.25) within group (order by price)',
  volume: 'round(sum(quantity)::numeric, 9)::float8',
  maker_ratio: 'avg(is_buyer_maker::int)::float8',
  no_of_trades: 'count(*)',
  open_liquidity: 'first(price * quantity, trade_id)',
  high_liquidity: 'max(price * quantity)',
  low_liquidity: 'min(price * quantity)',
  close_liquidity: 'last(price * quantity, trade_id)',
  liquidity_sum: 'round(sum(price * quantity)::numeric, 1)::float8',
  maker_volume: 'sum(quantity) filter (where is_buyer_maker)',
  maker_liquidity: 'round((sum(price * quantity) filter (where is_buyer_maker))::numeric, 1)::float8',
};

function nativeSql({ fromMs, toMs }: Window, seconds: number, fields: readonly string[] = Object.keys(NATIVE)): string {
  const columns = fields.flatMap((name) => (name in NATIVE ? [`${NATIVE[name]} as ${name}`] : []));
  return `select time_bucket(${seconds * 1000}::int8, "timestamp") as datetime, ${columns.join(', ')}
    from ${DATASET} where "timestamp" >= ${fromMs} and "timestamp" < ${toMs} group by 1 order by 1`;
}

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
