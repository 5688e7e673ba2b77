/**
 * A generated history of years: what grows with the number of partitions and of rows, and what does not. Thin days give the
 * partitions, in a database of their own; full days give the rows. At each size the reads, the commands of operators, the
 * requests of the page, the start of the service, the memory of each process, and the disk by table are measured. Days are
 * generated, proved and their documents deleted a few at a time. The reads ask for the same amount at every size, `all` in their
 * name excepted.
 *
 * Options: --rows N (3,500,000) a full day, --days N (60) full days, --thin-rows N (5,000) a thin day, --thin-days N (3,000),
 * --rounds N (5), --only partitions|rows, --store rows|columns, --json. 60 full days take half an hour and 30 GB as rows.
 * Columns need a server with TimescaleDB's community edition, which TIDEMARK_BENCH_DATABASE_URL names: each day is compacted when
 * it is proved. `--only rows --store columns --days 300` is a billion trades; it needs 60 GB.
 */
import { readdir, realpath, stat, statfs } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { DAY_MS } from '../shared/dates.ts';
import { TidemarkError } from '../shared/errors.ts';
import { DATASETS } from '../shared/registry/index.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { benchHarness, type Harness } from './harness.ts';
import { median, parentOf, rounded, timed, watch } from './measure.ts';
import { optionsOf } from './options.ts';
import {
  DATASET,
  discard,
  ingestHistory,
  type QueryServer,
  STORES,
  type Store,
  startServer,
  storePlace,
  tidemark,
} from './query-subjects.ts';

const START_MS = Date.parse('2017-01-01T00:00:00Z');
const KLINES_PATH = '/v1/historical/exchange_a/spot/klines';
const ARROW = { Accept: 'application/vnd.apache.arrow.stream' };
const HOUR_MS = 3_600_000;
/** Sizes at which the database is measured; those beyond the days asked for are left out, and the last day is measured. */
const PARTITIONS = [10, 100, 1000, 3000];
const ROWS = [1e7, 1e8, 1e9];
/** The parts that `--only` can select. */
const PARTS = ['partitions', 'rows'] as const;

/**
 * Disk for a trade of a full day, its part of aligned rows, klines and the log included. 108 bytes as a row, 21 in columns
 * and 15 of the log were measured.
 */
const BYTES_A_ROW: Readonly<Record<Store, number>> = { rows: 130, columns: 50 };
/** For write-ahead log, documents, and days before their compaction. */
const SPARE_BYTES = 7.5e9;
/** Limit of the log, for a trade of a full or a thin day. */
const LOG_BYTES_A_ROW = 20;

interface Size {
  readonly partitions: number;
  readonly rows: number;
  /** To generate a day, prove it and, in columns, compact it; since the size before. */
  readonly seconds_a_day: number;
  /** Medians, in ms. */
  readonly ms: Readonly<Record<string, number>>;
  /** Peak of resident memory so far, by process; a backend of PostgreSQL counts what it touched of the shared buffers. */
  readonly peak_mib: Readonly<Record<string, number>>;
  readonly bytes: Readonly<Record<string, number>>;
}

export async function run(argv: readonly string[]): Promise<void> {
  const options = optionsOf(argv, {
    counts: {
      rows: [3_500_000, 1],
      days: [60, 1],
      'thin-rows': [5000, 1],
      'thin-days': [3000, 1],
      rounds: [5, 1],
    },
    choices: { only: PARTS, store: STORES },
  });
  const store = (options.store ?? 'rows') as Store;
  const wants = (part: (typeof PARTS)[number]) => options.only === undefined || options.only === part;
  const { rounds } = options;
  const found: Record<string, readonly Size[]> = {};
  if (wants('partitions')) {
    const days = options['thin-days'];
    found.partitions = await measureHistory({ rows: options['thin-rows'], days, at: PARTITIONS, rounds, store });
  }
  if (wants('rows')) {
    const at = ROWS.map((rows) => Math.ceil(rows / options.rows));
    found.rows = await measureHistory({ rows: options.rows, days: options.days, at, rounds, store });
  }
  const growth = Object.fromEntries(Object.entries(found).map(([part, sizes]) => [part, growthOf(sizes)]));
  const result = {
    bench: 'years',
    rows_a_day: options.rows,
    thin_rows_a_day: options['thin-rows'],
    rounds,
    store,
    // Of the latest 100 rows, by the first part that was measured.
    ratio: Object.values(growth)[0]['latest 100'],
    growth,
    ...found,
  };
  process.stdout.write(options.json ? `${JSON.stringify(result)}\n` : `${linesOf(found).join('\n')}\n`);
}

/** By what is timed: the largest size relative to the smallest. */
const growthOf = (sizes: readonly Size[]): Readonly<Record<string, number>> => {
  const [first, last] = [sizes[0].ms, sizes[sizes.length - 1].ms];
  return Object.fromEntries(Object.keys(first).map((name) => [name, rounded(last[name] / first[name])]));
};

interface Plan {
  readonly rows: number;
  readonly days: number;
  /** Days after which the database is measured. */
  readonly at: readonly number[];
  readonly rounds: number;
  readonly store: Store;
}

async function measureHistory({ rows, days, at, rounds, store }: Plan): Promise<Size[]> {
  const place = await storePlace(store, 'tidemark_bench_years');
  await using harness = await benchHarness('years', place.databaseUrl);
  await refuseSmallDisk(harness, rows * days * BYTES_A_ROW[store] + SPARE_BYTES);
  const settings = { ...place.settings, SVC_STREAM_MAX_BYTES: String(rows * days * LOG_BYTES_A_ROW + 1e9) };
  const peaks = await watchProcesses(harness.stack);
  const sizes: Size[] = [];
  let done = 0;
  for (const next of new Set([...at.filter((count) => count < days), days])) {
    const window = { fromMs: START_MS + done * DAY_MS, toMs: START_MS + next * DAY_MS, rows };
    const seconds = await timed(() =>
      ingestHistory(harness.stack, harness.directory, window, {
        firstId: 1 + done * rows,
        // The documents of 60 thin days, or of two full days, are on the disk at a time.
        daysAtOnce: rows > 100_000 ? 1 : 30,
        settings,
        note: harness.note,
        proved: place.proved,
      }),
    );
    const secondsADay = rounded(seconds / (next - done), 1);
    done = next;
    harness.note(`measuring ${done} days, ${(done * rows).toLocaleString('en-US')} rows`);
    const size = { days: done, rows: done * rows, rounds, settings };
    sizes.push({ ...(await measure(harness, size)), seconds_a_day: secondsADay, peak_mib: peaks() });
  }
  return sizes;
}

/** Processes of the stack and commands of the bench. @returns their peaks by name, until now. */
async function watchProcesses({ processes, databaseUrl }: Stack): Promise<() => Record<string, number>> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
  const roots = [process.pid, parentOf(rows[0].pid), processes.find(({ name }) => name === 'nats')?.pid];
  await client.end();
  const found: Record<string, number> = {};
  let watched = roots.flatMap((pid) => (pid ? [watch(pid, 1000)] : []));
  return () => {
    for (const { peakMib } of watched.map((one) => one.stop())) {
      for (const [name, mib] of Object.entries(peakMib)) found[name] = Math.max(found[name] ?? 0, mib);
    }
    watched = roots.flatMap((pid) => (pid ? [watch(pid, 1000)] : []));
    return { ...found };
  };
}

async function refuseSmallDisk({ directory }: Harness, needed: number): Promise<void> {
  const { bavail, bsize } = await statfs(directory);
  const free = bavail * bsize;
  if (free >= needed) return;
  const gb = (bytes: number) => `${(bytes / 1e9).toFixed(0)} GB`;
  throw new TidemarkError(
    'USAGE',
    `This history needs ${gb(needed)} of free disk, and ${gb(free)} are free. Ask for fewer days with --days, or for fewer rows with --rows.`,
  );
}

interface MeasuredSize {
  readonly days: number;
  readonly rows: number;
  readonly rounds: number;
  readonly settings: Readonly<Record<string, string>>;
}

async function measure(harness: Harness, size: MeasuredSize): Promise<Omit<Size, 'seconds_a_day' | 'peak_mib'>> {
  const { stack, note } = harness;
  const ms: Record<string, number> = {};
  const time = async (name: string, work: () => Promise<unknown>, rounds = size.rounds) => {
    const times: number[] = [];
    // The round before the first is the warm-up.
    for (let round = -1; round < rounds; round++) {
      const seconds = await timed(work);
      if (round >= 0) times.push(seconds * 1000);
    }
    ms[name] = rounded(median(times), 1);
    note(`  ${name} ${ms[name]} ms`);
  };
  await time('start of the service', async () => {
    await using started = await startService(stack);
    await discard(await started.post({ n_rows: 1 }));
  });
  await using server = await startService(stack);
  const endMs = START_MS + size.days * DAY_MS;
  for (const [name, ask] of Object.entries(readsOf(server, endMs))) await time(name, ask);
  await time('requests of the page', () => pageRequests(server));
  // A command takes a second to start; two rounds are enough.
  for (const command of ['status', 'doctor']) await time(command, () => operate(stack, command, size.settings), 2);
  const bytes = await bytesByTable(stack);
  return { partitions: size.days, rows: size.rows, ms, bytes };
}

const startService = (stack: Stack): Promise<QueryServer> =>
  startServer(stack, {
    SVC_NATS_URL: stack.natsUrl,
    SVC_NATS_READER_URL: stack.natsReaderUrl,
    SVC_NATS_PROJECTOR_URL: stack.natsProjectorUrl,
    SVC_NATS_OPERATOR_URL: stack.natsOperatorUrl,
    SVC_NATS_EXPORT_URL: stack.natsExportUrl,
    SVC_STATE_DIR: stack.stateDir,
    // The service warns that it has no queue of exports, which nothing here asks for.
    SVC_LOG_LEVEL: 'error',
  });

const iso = (ms: number) => new Date(ms).toISOString();

function readsOf(server: QueryServer, endMs: number): Readonly<Record<string, () => Promise<unknown>>> {
  const middleMs = START_MS + Math.floor((endMs - START_MS) / DAY_MS / 2) * DAY_MS;
  const window = (lengthMs: number) => ({ time_range: [iso(middleMs), iso(middleMs + lengthMs)] });
  const all = { time_range: [iso(START_MS), iso(endMs)] };
  const nothing = [{ field: 'quantity', op: 'gte', value: 1e9 }];
  const query = async (body: object, headers?: Record<string, string>) => discard(await server.post(body, headers));
  const klines = async (fromMs: number, toMs: number, kline_size: string) => {
    const body = { start_date: iso(fromMs).slice(0, 10), end_date: iso(toMs - 1).slice(0, 10), kline_size };
    return await discard(await server.postTo(KLINES_PATH, body));
  };
  return {
    'latest 100': () => query({ n_rows: 100 }),
    'an hour, JSON': () => query(window(HOUR_MS)),
    'a day to Arrow': () => query(window(DAY_MS), ARROW),
    'klines of 1 m of a day': () => klines(middleMs, middleMs + DAY_MS, '1m'),
    'klines of 1 d of all': () => klines(START_MS, endMs, '1d'),
    'random 1,000': () => query({ n_random: 1000 }),
    'estimate of all': async () =>
      discard(await server.postTo('/v1/raw/estimate', { sources: [DATASET], ...all, filters: nothing })),
    'filter scan of a day': () =>
      fewRows(server, { ...window(DAY_MS), filters: [{ field: 'quantity', op: 'gte', value: 19 }] }),
    'filter that a day does not hold': () => fewRows(server, { ...window(DAY_MS), filters: nothing }),
    coverage: async () => discard(await server.get(`/v1/coverage/${DATASET}`)),
    'status over HTTP': async () => discard(await server.get('/v1/ops/status')),
  };
}

/** A read that finds nothing is answered with 404. */
async function fewRows(server: QueryServer, body: object): Promise<void> {
  const response = await server.postAny('/v1/raw/query', { sources: [DATASET], ...body });
  await discard(response);
  if (response.statusCode !== 200 && response.statusCode !== 404)
    throw new Error(`the query was answered ${response.statusCode}`);
}

/** What the operator's page asks for when it opens. */
async function pageRequests(server: QueryServer): Promise<void> {
  const paths = ['/', '/v1/datasets', '/v1/ops/status', '/v1/ops/history', '/v1/raw/export?limit=20'];
  for (const dataset of DATASETS.keys()) paths.push(`/v1/coverage/${dataset}?state=quarantined&limit=1000`);
  await Promise.all(paths.map(async (path) => discard(await server.get(path))));
}

/** `doctor` ends with 1 for a finding, here that no projector runs. */
async function operate(stack: Stack, command: string, settings: Readonly<Record<string, string>>): Promise<void> {
  await tidemark(stack, [command, '--json'], settings).catch((error: Error) => {
    if (!/ended with 1$/.test(error.message)) throw error;
  });
}

/** Bytes of each table with rows, hypertables with their chunks and indexes; and of the log's stream. */
async function bytesByTable({ databaseUrl, stateDir }: Stack): Promise<Record<string, number>> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    const { rows } = await client.query<{ name: string; bytes: number }>(
      `select c.relname as name, coalesce(hypertable_size(h.hypertable), pg_total_relation_size(c.oid))::float8 as bytes
       from pg_class c
       left join lateral (select c.oid::regclass as hypertable from timescaledb_information.hypertables t
         where t.hypertable_schema = 'public' and t.hypertable_name = c.relname) h on true
       where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace`,
    );
    const large = rows.filter(({ bytes }) => bytes >= 1e6).sort((a, b) => b.bytes - a.bytes);
    const log = { 'the log': await bytesIn(await realpath(join(stateDir, 'servers', 'nats'))) };
    return { ...Object.fromEntries(large.map(({ name, bytes }) => [name, bytes])), ...log };
  } finally {
    await client.end();
  }
}

async function bytesIn(folder: string): Promise<number> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true });
  const sizes = entries.filter((entry) => entry.isFile()).map((entry) => stat(join(entry.parentPath, entry.name)));
  // nats-server replaces its files meanwhile.
  const settled = await Promise.allSettled(sizes);
  return settled.reduce((sum, one) => sum + (one.status === 'fulfilled' ? one.value.size : 0), 0);
}

function linesOf(found: Readonly<Record<string, readonly Size[]>>): string[] {
  return Object.entries(found).flatMap(([part, sizes]) => {
    const table = (label: string, cells: readonly (string | number)[]) =>
      `  ${label.padEnd(34)}${cells.map((cell) => String(cell).padStart(16)).join('')}`;
    const tables = new Set(sizes.flatMap(({ bytes }) => Object.keys(bytes)));
    const processes = new Set(sizes.flatMap(({ peak_mib }) => Object.keys(peak_mib)));
    return [
      `by ${part}, medians in ms`,
      table(
        'partitions',
        sizes.map(({ partitions }) => partitions.toLocaleString('en-US')),
      ),
      table(
        'rows',
        sizes.map(({ rows }) => rows.toLocaleString('en-US')),
      ),
      ...Object.keys(sizes[0].ms).map((name) =>
        table(
          name,
          sizes.map(({ ms }) => ms[name]),
        ),
      ),
      table(
        's to generate and prove a day',
        sizes.map((size) => size.seconds_a_day),
      ),
      ...[...processes].map((name) =>
        table(
          `peak MiB of ${name}`,
          sizes.map(({ peak_mib }) => peak_mib[name] ?? 0),
        ),
      ),
      ...[...tables].map((name) =>
        table(
          `MB of ${name}`,
          sizes.map(({ bytes }) => ((bytes[name] ?? 0) / 1e6).toFixed(1)),
        ),
      ),
    ];
  });
}
