/**
 * Compacted chunks beside the row store: two databases of one server hold the same days, and `./tidemark compact` has put those
 * of one into the columnstore. Reads over HTTP and the sum under a filter alternate between them, after a warm-up that checks
 * that both answer the same bytes. The server must run TimescaleDB's community edition; TIDEMARK_BENCH_DATABASE_URL names it.
 *
 * Options: --rows N (1,000,000) a day, --days N (7), --rounds N (5), --json.
 */
import { createHash } from 'node:crypto';
import { buffer } from 'node:stream/consumers';
import pg from 'pg';
import { DAY_MS } from '../shared/dates.ts';
import { hasColumnstore } from '../shared/db/connect.ts';
import { ALIGNED_TABLE } from '../shared/registry/aligned-storage.ts';
import { createDatabase } from './chunks.ts';
import { benchHarness, type Note } from './harness.ts';
import { alternating, rounded, timed } from './measure.ts';
import { BenchUsage, optionsOf } from './options.ts';
import {
  columnsServer,
  DATASET,
  ingestHistory,
  type Place,
  type QueryServer,
  STORES,
  type Store,
  startServer,
  tidemark,
} from './query-subjects.ts';

const START_MS = Date.parse('2024-03-01T00:00:00Z');
const HOUR_MS = 3_600_000;
const ARROW = { Accept: 'application/vnd.apache.arrow.stream' };
/** One side of a comparison. @returns a digest of what it found. */
type Side = () => Promise<string>;

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, days, rounds, json } = optionsOf(argv, {
    counts: { rows: [1_000_000, 1], days: [7, 1], rounds: [5, 1] },
  });
  const given = columnsServer();
  await using harness = await benchHarness('columns');
  await using resources = new AsyncDisposableStack();
  const { directory, stack, note } = harness;
  const history = { fromMs: START_MS, toMs: START_MS + days * DAY_MS, rows };
  const sides = {} as Record<Store, { readonly server: QueryServer; readonly client: pg.Client }>;
  const bytes = {} as Record<Store, Awaited<ReturnType<typeof bytesOf>>>;
  let compactSeconds = 0;
  for (const store of STORES) {
    const databaseUrl = await createDatabase(given, `tidemark_bench_${store}`);
    const place: Place = { stateDir: `${directory}/${store}`, databaseUrl };
    const settings = {
      SVC_DATABASE_URL: databaseUrl,
      SVC_NATS_URL: stack.natsOperatorUrl,
      SVC_COLUMNSTORE_AFTER_DAYS: '0',
    };
    const client = new pg.Client({ connectionString: databaseUrl });
    await client.connect();
    resources.defer(() => client.end());
    if (!(await hasColumnstore(client))) {
      throw new BenchUsage('The server of TIDEMARK_BENCH_DATABASE_URL has no columnstore: it runs the Apache edition');
    }
    // Both databases take the days from a log that begins anew.
    if (store === 'columns') await forgetLog(stack.natsOperatorUrl);
    await ingestHistory(place, directory, history, { settings, note });
    if (store === 'columns') compactSeconds = await timed(() => tidemark(place, ['compact', '--json'], settings));
    bytes[store] = await bytesOf(client, rows * days);
    sides[store] = { server: resources.use(await startServer(place)), client };
  }
  const cases = await compareAll(sides, history, rounds, note);
  const result = {
    bench: 'columns',
    rows_a_day: rows,
    days,
    rounds,
    ratio: cases['a day, Arrow'].ratio,
    cases,
    bytes_a_trade: { rows: bytes.rows.trade, columns: bytes.columns.trade },
    bytes_a_second: { rows: bytes.rows.second, columns: bytes.columns.second },
    compact_s: rounded(compactSeconds),
  };
  process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${linesOf(result).join('\n')}\n`);
}

async function forgetLog(url: string): Promise<void> {
  const { jetstreamManager } = await import('@nats-io/jetstream');
  const { connectNats } = await import('../shared/nats/connect.ts');
  await using connection = await connectNats(url, 'bench');
  await (await jetstreamManager(connection)).streams.delete(DATASET);
}

async function bytesOf(client: pg.Client, trades: number) {
  const { rows } = await client.query(
    `select hypertable_size('${DATASET}')::float8 as trades, hypertable_size('${ALIGNED_TABLE}')::float8 as seconds,
       (select count(*) from ${ALIGNED_TABLE})::float8 as n`,
  );
  const [{ trades: native, seconds, n }] = rows;
  return { trade: rounded(native / trades, 1), second: rounded(seconds / n, 1) };
}

async function compareAll(
  sides: Record<Store, { readonly server: QueryServer; readonly client: pg.Client }>,
  { toMs }: { readonly toMs: number },
  rounds: number,
  note: Note,
) {
  const iso = (ms: number) => new Date(ms).toISOString();
  const lastDayMs = toMs - DAY_MS;
  const http = (body: object, headers?: Record<string, string>) => (store: Store) => async () =>
    digestOf(await buffer(await sides[store].server.post(body, headers)));
  const window = (fromMs: number, lengthMs: number) => ({ time_range: [iso(fromMs), iso(fromMs + lengthMs)] });
  const sum = (store: Store) => async () => {
    const { rows } = await sides[store].client.query(
      `select count(*), round(sum(quantity::numeric), 8) as total from ${DATASET} where quantity > 0.5`,
    );
    return JSON.stringify(rows);
  };
  const all: Record<string, (store: Store) => Side> = {
    'latest 100': http({ n_rows: 100, fields: ['trade_id', 'price'] }),
    'an hour, Arrow': http(window(lastDayMs + 10 * HOUR_MS, HOUR_MS), ARROW),
    'a day, Arrow': http(window(lastDayMs, DAY_MS), ARROW),
    'sum under a filter over all days': sum,
  };
  const found: Record<string, Awaited<ReturnType<typeof compare>>> = {};
  for (const [name, side] of Object.entries(all)) {
    found[name] = await compare(side('rows'), side('columns'), rounds);
    note(`${name}: rows ${found[name].rows_ms} ms, columns ${found[name].columns_ms} ms`);
  }
  return found;
}

const digestOf = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

async function compare(rows: Side, columns: Side, rounds: number) {
  if ((await rows()) !== (await columns())) throw new Error('the answers differ');
  const { first_ms, second_ms, ...ratios } = await alternating(columns, rows, rounds);
  return { rows_ms: second_ms, columns_ms: first_ms, ...ratios };
}

interface Result {
  readonly rows_a_day: number;
  readonly days: number;
  readonly rounds: number;
  readonly cases: Readonly<Record<string, Awaited<ReturnType<typeof compare>>>>;
  readonly bytes_a_trade: Readonly<Record<Store, number>>;
  readonly bytes_a_second: Readonly<Record<Store, number>>;
  readonly compact_s: number;
}

const linesOf = ({ rows_a_day, days, rounds, cases, bytes_a_trade, bytes_a_second, compact_s }: Result): string[] => [
  `${days} days of ${rows_a_day.toLocaleString('en-US')} trades, medians of ${rounds} rounds`,
  ...Object.entries(cases).map(
    ([name, { rows_ms, columns_ms, ratio, ratio_min, ratio_max }]) =>
      `  ${name}: rows ${rows_ms} ms, columns ${columns_ms} ms  ratio ${ratio} (${ratio_min}..${ratio_max})`,
  ),
  `  bytes a trade: rows ${bytes_a_trade.rows}, columns ${bytes_a_trade.columns}`,
  `  bytes an aligned row: rows ${bytes_a_second.rows}, columns ${bytes_a_second.columns}`,
  `  compaction of all: ${compact_s} s`,
];
