/**
 * Klines, a part of the query benchmark: it compares a day of 1-minute klines over HTTP with hand-written SQL for the same
 * columns through `pg`, in both modes, and a month of aligned klines. Both sides end with rows as JavaScript objects.
 *
 * The hand-written SQL adds doubles and rounds the sum. The contract requires the exact sum, which is more work.
 */
import { buffer } from 'node:stream/consumers';
import pg from 'pg';
import type { Stack } from '../shared/stack/stack.ts';
import type { Note } from './harness.ts';
import { median, rounded } from './measure.ts';
import { type QueryServer, startServer, timed } from './query-subjects.ts';

const TABLE = 'exchange_a_spot_trades';
const ALIGNED = 'canonical_aligned_1s_aggregates';
const KLINES_PATH = '/v1/historical/exchange_a/spot/klines';
const DAY_MS = 86_400_000;
/** A month of another dataset, for which the database generates a one-second row for every second. */
const MONTH = { path: '/v1/historical/exchange_b/spot/klines', dataset: 2, from: '2024-01-01', days: 30 };

/** Rounds of a day, which take milliseconds each; a month has a third as many. */
const ROUNDS = 30;

interface KlineDay {
  /** A proved day of exchange A. */
  readonly day: string;
  readonly note: Note;
}

const nativeSql = (fromMs: number) => `select time_bucket(60000::int8, "timestamp") as datetime,
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
  from ${TABLE} where "timestamp" >= ${fromMs} and "timestamp" < ${fromMs + DAY_MS} group by 1 order by 1`;

const alignedSql = (dataset: number, fromMs: number, days: number) => `select
  time_bucket(interval '60 s', aligned_at_utc, timestamptz '1970-01-01Z') as datetime,
  first(open_price, aligned_at_utc) as open, max(high_price) as high, min(low_price) as low,
  last(close_price, aligned_at_utc) as close, round(sum(quantity_sum)::numeric, 9)::float8 as volume,
  sum(trade_count)::int8 as no_of_trades, round(sum(quote_volume_sum)::numeric, 1)::float8 as liquidity_sum
  from ${ALIGNED} where dataset_id = ${dataset}
    and series_id = (select series_id from series where dataset_id = ${dataset} and key = '')
    and aligned_at_utc >= '${iso(fromMs)}' and aligned_at_utc < '${iso(fromMs + days * DAY_MS)}' group by 1 order by 1`;

const iso = (ms: number) => new Date(ms).toISOString();

export type Klines = Awaited<ReturnType<typeof measureKlines>>;

export async function measureKlines(stack: Stack, { day, note }: KlineDay) {
  await using server = await startServer(stack);
  const client = new pg.Client({ connectionString: stack.databaseUrl });
  await client.connect();
  try {
    const fromMs = Date.parse(`${day}T00:00:00Z`);
    const window = { start_date: day, end_date: day };
    const compare = (one: Case) => sideBySide(server, client, one);
    const native = await compare({ path: KLINES_PATH, body: window, sql: nativeSql(fromMs), rounds: ROUNDS });
    const aligned = await compare({
      path: KLINES_PATH,
      body: { ...window, mode: 'aligned_1s' },
      sql: alignedSql(1, fromMs, 1),
      rounds: ROUNDS,
    });
    note('making a month of one-second rows');
    const monthMs = await makeMonth(client);
    const lastDay = iso(monthMs + (MONTH.days - 1) * DAY_MS).slice(0, 10);
    const month = await compare({
      path: MONTH.path,
      body: { start_date: MONTH.from, end_date: lastDay, mode: 'aligned_1s' },
      sql: alignedSql(MONTH.dataset, monthMs, MONTH.days),
      rounds: ROUNDS / 3,
    });
    return { native_day: native, aligned_day: aligned, aligned_month: month };
  } finally {
    await client.end();
  }
}

interface Case {
  readonly path: string;
  readonly body: object;
  readonly sql: string;
  readonly rounds: number;
}

async function sideBySide(server: QueryServer, client: pg.Client, { path, body, sql, rounds }: Case) {
  const ours: number[] = [];
  const theirs: number[] = [];
  let klines = 0;
  // The round before the first is the warm-up and checks that both sides return the same.
  for (let round = -1; round < rounds; round++) {
    let rows: Record<string, unknown>[] = [];
    const direct = await timed(async () => {
      rows = (await client.query(sql)).rows;
    });
    let served: Record<string, unknown>[] = [];
    const http = await timed(async () => {
      served = JSON.parse(String(await buffer(await server.postTo(path, body)))).rows;
    });
    if (round < 0) checkSame(served, rows);
    else {
      ours.push(http * 1000);
      theirs.push(direct * 1000);
    }
    klines = served.length;
  }
  const ratios = ours.map((ms, round) => ms / theirs[round]);
  return {
    klines,
    rounds,
    tidemark_ms: rounded(median(ours), 1),
    pg_ms: rounded(median(theirs), 1),
    ratio: rounded(median(ratios), 2),
    ratio_min: rounded(Math.min(...ratios), 2),
    ratio_max: rounded(Math.max(...ratios), 2),
  };
}

/** Compares the klines; rounded sums of doubles may differ in the last decimal from our exact ones. */
function checkSame(served: readonly Record<string, unknown>[], rows: readonly Record<string, unknown>[]): void {
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

/** Creates a proved month in which every second has trades. @returns its start. */
async function makeMonth(client: pg.Client): Promise<number> {
  const fromMs = Date.parse(`${MONTH.from}T00:00:00Z`);
  await client.query(
    `insert into ${ALIGNED} (aligned_at_utc, trade_count, open_price, high_price, low_price, close_price, quantity_sum,
       quote_volume_sum, series_id, dataset_id)
     select to_timestamp($1::int8 / 1000 + g), 1 + g % 5, p, p + 0.5, p - 0.5, p + 0.1, q, round((p * q)::numeric, 6)::float8,
       (select series_id from series where dataset_id = ${MONTH.dataset} and key = ''), ${MONTH.dataset}
     from (select g, round((42000 + 500 * sin(g / 30000.0))::numeric, 2)::float8 as p,
         (1 + g * 7919 % 30000) / 100000.0::float8 as q from generate_series(0::int8, $2::int8) g) s`,
    [fromMs, MONTH.days * 86_400 - 1],
  );
  // Exchange B's file days begin at 16:00 UTC of the day before, so one more day on either side covers the window.
  await client.query(
    'update coverage set proved = int8multirange(int8range($2, $3)), version = version + 1 where dataset_id = $1',
    [MONTH.dataset, fromMs - DAY_MS, fromMs + (MONTH.days + 1) * DAY_MS],
  );
  await client.query(`vacuum analyze ${ALIGNED}`);
  return fromMs;
}

export function klineLines({ native_day, aligned_day, aligned_month }: Klines): string[] {
  return (
    [
      ['a day of 1-minute klines, native', native_day],
      ['a day of 1-minute klines, aligned', aligned_day],
      ['a month of 1-minute klines, aligned', aligned_month],
    ] as const
  ).flatMap(([what, found]) => [
    `${what}: ${found.klines.toLocaleString('en-US')} klines, medians of ${found.rounds} rounds`,
    `  tidemark over HTTP           ${found.tidemark_ms} ms`,
    `  hand-written SQL through pg  ${found.pg_ms} ms  ratio ${found.ratio} (${found.ratio_min}..${found.ratio_max})`,
  ]);
}
