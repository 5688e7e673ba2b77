/**
 * Klines benchmark. It compares klines over HTTP, which come from kept klines where they can, with hand-written SQL for the same
 * columns over the rows through `pg`: a day and a month of 1 minute, a year of 1 hour, a size that is added up, and one that is
 * computed from rows. Both sides end with rows as JavaScript objects. Five years of 1 hour are timed to the last byte alone.
 * The days are written as documents and ingested by the product's own command. The hand-written SQL adds doubles and rounds
 * the sum; the contract requires the exact sum, which is more work.
 *
 * Options: --month-rows N (3,500,000) rows a day of the month, --days N (30) of it, --thin-rows N (50,000) rows a day of the
 * years, --thin-days N (1,826), --rounds N (5), --json.
 */
import { buffer } from 'node:stream/consumers';
import pg from 'pg';
import { DAY_MS } from '../shared/dates.ts';
import { KLINE_TABLES } from '../shared/registry/kept-klines.ts';
import { benchHarness } from './harness.ts';
import { median, rounded, timed } from './measure.ts';
import { optionsOf } from './options.ts';
import { DATASET, discard, type History, ingestHistory, type QueryServer, startServer } from './query-subjects.ts';

const ALIGNED = 'canonical_aligned_1s_aggregates';
const PATH = '/v1/historical/exchange_a/spot/klines';
const MINUTE_MS = 60_000;
/** The years begin here, and the month after them. */
const START = '2019-01-01';

const nativeSql = (
  { fromMs, toMs }: History,
  sizeMs: number,
) => `select time_bucket(${sizeMs}::int8, "timestamp") as datetime,
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

const alignedSql = ({ fromMs, toMs }: History, sizeMs: number) => `select
  time_bucket(interval '${sizeMs / 1000} s', aligned_at_utc, timestamptz '1970-01-01Z') as datetime,
  first(open_price, aligned_at_utc) as open, max(high_price) as high, min(low_price) as low,
  last(close_price, aligned_at_utc) as close, round(sum(quantity_sum)::numeric, 9)::float8 as volume,
  sum(trade_count)::int8 as no_of_trades, round(sum(quote_volume_sum)::numeric, 1)::float8 as liquidity_sum
  from ${ALIGNED} where dataset_id = 1 and series_id = (select series_id from series where dataset_id = 1 and key = '')
    and aligned_at_utc >= '${iso(fromMs)}' and aligned_at_utc < '${iso(toMs)}' group by 1 order by 1`;

const iso = (ms: number) => new Date(ms).toISOString();
const dayOf = (ms: number) => iso(ms).slice(0, 10);

interface Case {
  readonly window: History;
  readonly sizeMs: number;
  readonly mode?: 'native' | 'aligned_1s';
  readonly rounds: number;
}

export async function run(argv: readonly string[]): Promise<void> {
  const options = optionsOf(argv, {
    counts: {
      'month-rows': [3_500_000, 1],
      days: [30, 1],
      'thin-rows': [50_000, 1],
      'thin-days': [1826, 1],
      rounds: [5, 1],
    },
  });
  const { days, rounds } = options;
  await using harness = await benchHarness('klines');
  const { directory, stack, note } = harness;
  const startMs = Date.parse(START);
  const years = { fromMs: startMs, toMs: startMs + options['thin-days'] * DAY_MS, rows: options['thin-rows'] };
  const month = { fromMs: years.toMs, toMs: years.toMs + days * DAY_MS, rows: options['month-rows'] };
  const yearsRows = options['thin-days'] * years.rows;
  await ingestHistory(stack, directory, years, { note });
  const thinBytes = await keptBytes(stack.databaseUrl);
  await ingestHistory(stack, directory, month, { firstId: 1 + yearsRows, note });
  const monthBytes = (await keptBytes(stack.databaseUrl)) - thinBytes;
  await using server = await startServer(stack);
  await using client = await connected(stack.databaseUrl);
  const compare = (one: Omit<Case, 'rounds'>, of = rounds) => {
    note(`comparing ${dayOf(one.window.fromMs)} to ${dayOf(one.window.toMs - 1)}, ${one.sizeMs / 1000} s`);
    return sideBySide(server, client.pg, { ...one, rounds: of });
  };
  const day = { ...month, toMs: month.fromMs + DAY_MS };
  const year = { ...years, fromMs: Math.max(years.fromMs, years.toMs - 365 * DAY_MS) };
  const few = Math.max(1, Math.floor(rounds / 3));
  const monthly = await compare({ window: month, sizeMs: MINUTE_MS }, few);
  const found = {
    bench: 'klines',
    ...{ month_rows: options['month-rows'], days, thin_rows: options['thin-rows'], thin_days: options['thin-days'] },
    ratio: monthly.ratio,
    month_1m: monthly,
    day_1m: await compare({ window: day, sizeMs: MINUTE_MS }),
    day_1m_aligned: await compare({ window: day, sizeMs: MINUTE_MS, mode: 'aligned_1s' }),
    day_90s_from_rows: await compare({ window: day, sizeMs: 90_000 }),
    year_1h: await compare({ window: year, sizeMs: 60 * MINUTE_MS }, few),
    year_2h_added: await compare({ window: year, sizeMs: 120 * MINUTE_MS }, few),
    five_years_1h: await lastByte(server, years, {}, rounds),
    five_years_1h_ohlcv: await lastByte(
      server,
      years,
      { fields: ['datetime', 'open', 'high', 'low', 'close', 'volume'] },
      rounds,
    ),
    five_years_1h_aligned: await lastByte(server, years, { mode: 'aligned_1s' }, rounds),
    kept_bytes_a_day: { month: Math.round(monthBytes / days), thin: Math.round(thinBytes / options['thin-days']) },
  };
  process.stdout.write(options.json ? `${JSON.stringify(found)}\n` : `${linesOf(found).join('\n')}\n`);
}

async function connected(url: string): Promise<{ readonly pg: pg.Client } & AsyncDisposable> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  return { pg: client, [Symbol.asyncDispose]: () => client.end() };
}

/** Bytes of the kept klines with their indexes. */
async function keptBytes(url: string): Promise<number> {
  await using client = await connected(url);
  const sizes = Object.values(KLINE_TABLES).map((table) => `pg_total_relation_size('${table}')`);
  const { rows } = await client.pg.query(`select (${sizes.join(' + ')})::float8 as bytes`);
  return rows[0].bytes;
}

const bodyOf = ({ fromMs, toMs }: History, more: object) => ({
  start_date: dayOf(fromMs),
  end_date: dayOf(toMs - 1),
  ...more,
});

async function sideBySide(server: QueryServer, client: pg.Client, { window, sizeMs, mode, rounds }: Case) {
  const sql = (mode === 'aligned_1s' ? alignedSql : nativeSql)(window, sizeMs);
  const body = bodyOf(window, { kline_size: sizeMs / 1000, mode: mode ?? 'native' });
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
      served = JSON.parse(String(await buffer(await server.postTo(PATH, body)))).rows;
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
    rows_a_day: window.rows,
    klines,
    rounds,
    tidemark_ms: rounded(median(ours), 1),
    pg_ms: rounded(median(theirs), 1),
    ratio: rounded(median(ratios), 4),
    ratio_min: rounded(Math.min(...ratios), 4),
    ratio_max: rounded(Math.max(...ratios), 4),
  };
}

/** Klines of 1 hour over all years, to the last byte of the JSON. */
async function lastByte(server: QueryServer, window: History, more: object, rounds: number) {
  const body = bodyOf(window, { kline_size: '1h', ...more });
  const times: number[] = [];
  let bytes = 0;
  for (let round = -1; round < 2 * rounds; round++) {
    const seconds = await timed(async () => {
      bytes = await discard(await server.postTo(PATH, body));
    });
    if (round >= 0) times.push(seconds * 1000);
  }
  return {
    rows_a_day: window.rows,
    bytes,
    rounds: times.length,
    tidemark_ms: rounded(median(times), 1),
    min_ms: rounded(Math.min(...times), 1),
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

type Compared = Awaited<ReturnType<typeof sideBySide>>;
type Timed = Awaited<ReturnType<typeof lastByte>>;

const rowsADay = (rows: number) => `${rows.toLocaleString('en-US')} rows a day`;

function linesOf(found: Readonly<Record<string, unknown>> & { readonly kept_bytes_a_day: object }): string[] {
  const lines = Object.entries(found).flatMap(([name, value]) => {
    const what = name.replaceAll('_', ' ');
    if (typeof value === 'object' && value !== null && 'pg_ms' in value) {
      const { rows_a_day, klines, rounds, tidemark_ms, pg_ms, ratio, ratio_min, ratio_max } = value as Compared;
      return [
        `${what}: ${klines.toLocaleString('en-US')} klines of ${rowsADay(rows_a_day)}, medians of ${rounds} rounds`,
        `  tidemark over HTTP           ${tidemark_ms} ms`,
        `  hand-written SQL through pg  ${pg_ms} ms  ratio ${ratio} (${ratio_min}..${ratio_max})`,
      ];
    }
    if (typeof value === 'object' && value !== null && 'bytes' in value) {
      const { rows_a_day, bytes, rounds, tidemark_ms, min_ms } = value as Timed;
      return [
        `${what}: ${(bytes / 1e6).toFixed(1)} MB of ${rowsADay(rows_a_day)}, ${tidemark_ms} ms to the last byte (least ${min_ms}, of ${rounds})`,
      ];
    }
    return [];
  });
  return [...lines, `bytes of kept klines a day: ${JSON.stringify(found.kept_bytes_a_day)}`];
}
