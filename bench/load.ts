/**
 * Load benchmark: 64 clients request the latest 100 rows at half of the service's highest rate, and above its limits; and
 * requests of the latest 100 rows and of one hour run against 10 and against 3,000 chunks. Load generator, service and
 * database share the machine. Therefore the same rows are also requested from the database alone, through `pg`, and from a
 * bare server (bare-server.ts), at the same rate and in alternating turns: their slowest times are due to the machine and to Node, not
 * to the service.
 *
 * Options: --seconds N (8, of each measurement), --chunks N (3,000), --clients N (64), --json.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import pg from 'pg';
import { DAY_MS } from '../shared/dates.ts';
import { startBareServer } from './bare-server.ts';
import { createDatabase, loadDays, ROWS_PER_DAY } from './chunks.ts';
import { benchHarness, type Note } from './harness.ts';
import { type Ask, closedLoop, loop, pacedLoop, percentile, timedMs } from './load-loops.ts';
import { cpuSeconds, rounded } from './measure.ts';
import { optionsOf } from './options.ts';
import { type Reply, type Service, startService } from './service.ts';

const QUERY = '/v1/raw/query';
const SOURCES = { sources: ['exchange_a_spot_trades'] };
const LATEST = { ...SOURCES, n_rows: 100 };
const FEW_CHUNKS = 10;
const END_DAY = '2024-03-01';
const END_MS = Date.parse(`${END_DAY}T00:00:00Z`);
const HOUR_MS = 3_600_000;
/** How many times more clients a service above its limits has, and how soon a refused client retries. */
const OVERLOAD = 4;
const RETRY_MS = 100;

/**
 * Limits that refuse no request. The number of reads at once keeps its default: more than the machine has processors would
 * only wait in the database instead of in the queue, and compete for its caches of one connection.
 */
const RAISED = {
  SVC_QUERY_MAX_QUEUE: '10000',
  SVC_ALIGNED_QUERY_MAX_QUEUE: '10000',
  SVC_QUERY_QUEUE_TIMEOUT_MS: '60000',
} as const;
const CONNECTIONS = 8;
/** What `--single-threaded-gc` is made of, for a process that runs already. */
const ONE_THREAD = [
  'parallel-scavenge',
  'concurrent-marking',
  'concurrent-sweeping',
  'concurrent-array-buffer-sweeping',
];
/** Alternating turns of the service and of the database alone, so that other work of the machine affects both. */
const TURNS = 4;
/** More and shorter ones where slow times are the result: a slow second of the machine would else fall on one side. */
const HALF_TURNS = 16;
const BARE = {
  name: 'latest',
  text: `select t.trade_id, t.timestamp, t.price, t.quantity, t.quote_quantity, t.is_buyer_maker, t.is_best_match
    from exchange_a_spot_trades t where t.timestamp >= ${END_MS - DAY_MS} and t.timestamp < ${END_MS}
    order by t.timestamp desc, t.trade_id desc limit 100`,
  rowMode: 'array',
} as const;

interface LoadBenchOptions {
  /** A server on which the benchmark may create databases. */
  readonly databaseUrl: string;
  readonly seconds: number;
  readonly clients: number;
  readonly chunks: number;
  readonly note: Note;
}

export const LOAD_DEFAULTS = { seconds: 8, clients: 64, chunks: 3000 };

export type Load = Awaited<ReturnType<typeof measureLoad>>;

export async function measureLoad(options: LoadBenchOptions) {
  const { seconds, clients, chunks, note } = options;
  // Else collections of the load generator, of up to 10 ms, count as latency of whatever it measures.
  for (const name of ONE_THREAD) setFlagsFromString(`--no-${name}`);
  const few = await createDatabase(options.databaseUrl, 'bench_few');
  note(`making ${FEW_CHUNKS} chunks of ${ROWS_PER_DAY} rows`);
  await loadDays(few, END_DAY, FEW_CHUNKS);
  const raised = await measureRaised(few, options);
  note('above the default limits');
  const past_limits = await measurePast(few, clients * OVERLOAD, seconds);
  const many = await createDatabase(options.databaseUrl, 'bench_many');
  note(`making ${chunks} chunks of ${ROWS_PER_DAY} rows`);
  await loadDays(many, END_DAY, chunks);
  note('alternating requests to the two services');
  const byChunks = await measureFlat({ few, many }, chunks, seconds);
  return { clients, latest_100: { ...raised, past_limits }, chunks: byChunks };
}

async function measureRaised(url: string, { seconds, clients, note }: LoadBenchOptions) {
  await using service = await startService(url, RAISED);
  await using server = await startBareServer({ databaseUrl: url, sql: BARE.text, connections: CONNECTIONS });
  const pool = new pg.Pool({ connectionString: url, max: CONNECTIONS });
  try {
    const http: Ask = () => askFor(server, LATEST, 100);
    const ours: Ask = () => askFor(service, LATEST, 100);
    const bare: Ask = async () => {
      const { rows } = await pool.query<unknown[]>({ ...BARE });
      if (rows.length !== 100) throw new Error('pg did not find 100 rows');
    };
    note('one client, then as many as saturate it');
    await closedLoop(ours, clients, seconds / 2);
    await closedLoop(http, clients, seconds / 2);
    await closedLoop(bare, clients, seconds / 2);
    const single = sides();
    for (let turn = 0; turn < TURNS; turn++) {
      single.tidemark.push(...(await closedLoop(ours, 1, seconds / TURNS)).latencies);
      single.http.push(...(await closedLoop(http, 1, seconds / TURNS)).latencies);
      single.bare.push(...(await closedLoop(bare, 1, seconds / TURNS)).latencies);
    }
    const all = await closedLoop(ours, clients, seconds);
    note(`${clients} clients at half of ${Math.round(all.rate)} requests a second`);
    const half = sides();
    const halfSeconds = (2 * seconds) / HALF_TURNS;
    let errors = 0;
    let cpu = 0;
    for (let turn = 0; turn < HALF_TURNS; turn++) {
      const cpuBefore = cpuSeconds(service.pid);
      const paced = await pacedLoop(ours, clients, all.rate / 2, halfSeconds);
      cpu += cpuSeconds(service.pid) - cpuBefore;
      errors += paced.errors;
      half.tidemark.push(...paced.latencies);
      half.http.push(...(await pacedLoop(http, clients, all.rate / 2, halfSeconds)).latencies);
      half.bare.push(...(await pacedLoop(bare, clients, all.rate / 2, halfSeconds)).latencies);
    }
    const singleP50 = percentile(single.tidemark, 0.5);
    return {
      single: spread(single.tidemark),
      saturation: { requests_per_second: Math.round(all.rate), ...spread(all.latencies) },
      half: {
        requests_per_second: Math.round(all.rate / 2),
        requests: half.tidemark.length,
        errors,
        ...spread(half.tidemark),
        p99_over_single_p50: rounded(percentile(half.tidemark, 0.99) / singleP50),
        cpu_ms_per_request: rounded((cpu * 1000) / half.tidemark.length, 3),
      },
      bare: {
        single: spread(single.bare),
        half: {
          ...spread(half.bare),
          p99_over_single_p50: rounded(percentile(half.bare, 0.99) / percentile(single.bare, 0.5)),
        },
      },
      bare_http: { single: spread(single.http), half: spread(half.http) },
      p99_over_bare_http: rounded(percentile(half.tidemark, 0.99) / percentile(half.http, 0.99)),
      p99_over_bare: rounded(percentile(half.tidemark, 0.99) / percentile(half.bare, 0.99)),
    };
  } finally {
    await pool.end();
  }
}

const sides = () => ({ tidemark: [] as number[], http: [] as number[], bare: [] as number[] });

const spread = (latencies: readonly number[]) => ({
  p50_ms: percentile(latencies, 0.5),
  p99_ms: percentile(latencies, 0.99),
});

/** Default limits, and more clients than slots and queue positions: the service refuses the others with a Retry-After. */
async function measurePast(url: string, clients: number, seconds: number) {
  await using service = await startService(url);
  const answers = { served: 0, refused: 0, refused_without_retry_after: 0, other: 0 };
  await loop(clients, seconds, async () => {
    const { status, headers } = await service
      .ask(QUERY, LATEST)
      .catch(() => ({ status: 0, headers: {} as Reply['headers'] }));
    if (status === 200) answers.served++;
    else if (status === 503) {
      answers.refused++;
      if (headers['retry-after'] === undefined) answers.refused_without_retry_after++;
      await delay(RETRY_MS);
    } else answers.other++;
  });
  return { clients, ...answers, served_per_second: Math.round(answers.served / seconds) };
}

/** Medians of single requests that alternate between the two services; the windows lie anywhere in the history. */
async function measureFlat(urls: { few: string; many: string }, chunks: number, seconds: number) {
  await using few = await startService(urls.few, RAISED);
  await using many = await startService(urls.many, RAISED);
  const sides = [
    { service: few, days: FEW_CHUNKS, times: [] as number[] },
    { service: many, days: chunks, times: [] as number[] },
  ];
  const found: Record<string, { readonly few_ms: number; readonly many_ms: number; readonly ratio: number }> = {};
  for (const [name, bodyOf] of Object.entries(KINDS)) {
    const rows = name.startsWith('latest') ? 100 : ROWS_PER_DAY / 24;
    const turn = async (side: (typeof sides)[number]) => {
      const ms = await timedMs(() => askFor(side.service, bodyOf(side.days), rows));
      side.times.push(ms);
    };
    const turns = async () => {
      for (const side of sides) await turn(side);
    };
    await loop(1, seconds / 4, turns);
    for (const side of sides) side.times.length = 0;
    await loop(1, seconds / 2, turns);
    const [few_ms, many_ms] = sides.map(({ times }) => percentile(times, 0.5));
    found[name] = { few_ms, many_ms, ratio: rounded(many_ms / few_ms) };
  }
  return { few: FEW_CHUNKS, many: chunks, p50: found };
}

const KINDS: Readonly<Record<string, (days: number) => object>> = {
  latest_100_native: () => LATEST,
  latest_100_aligned: () => ({ ...LATEST, mode: 'aligned_1s' }),
  hour_native: (days) => ({ ...SOURCES, ...hourWithin(days) }),
  hour_aligned: (days) => ({ ...SOURCES, mode: 'aligned_1s', ...hourWithin(days) }),
};

function hourWithin(days: number) {
  const fromMs = Date.parse(`${END_DAY}T00:00:00Z`) - (1 + Math.floor(Math.random() * (days * 24 - 1))) * HOUR_MS;
  return { time_range: [new Date(fromMs).toISOString(), new Date(fromMs + HOUR_MS).toISOString()] };
}

async function askFor(service: Service, body: object, rows: number): Promise<void> {
  const reply = await service.ask(QUERY, body);
  if (reply.status !== 200 || !reply.tail.includes(`"row_count":${rows}}`)) {
    throw new Error(`answered with ${reply.status}: ${reply.tail}`);
  }
}

export function loadLines({ clients, latest_100, chunks }: Load): string[] {
  const { single, saturation, half, bare, bare_http: http, past_limits: past, p99_over_bare } = latest_100;
  const row = (what: string, { p50_ms, p99_ms }: { readonly p50_ms: number; readonly p99_ms: number }, more = '') =>
    `  ${what.padEnd(38)} p50 ${p50_ms} ms  p99 ${p99_ms} ms${more}`;
  return [
    'latest 100 rows over HTTP, under load; in turn the same rows from the database alone',
    row('one client', single),
    row('one client, bare server', http.single),
    row('one client, pg', bare.single),
    row(`${clients} clients, as fast as it goes`, saturation, `  ${saturation.requests_per_second} a second`),
    row(
      `${clients} clients, half of that rate`,
      half,
      `  errors ${half.errors}  p99 over one client's p50 ${half.p99_over_single_p50}  serving ${half.cpu_ms_per_request} ms of processor a request`,
    ),
    row(`${clients} clients, that rate, bare server`, http.half),
    row(
      `${clients} clients, that rate, pg`,
      bare.half,
      `  p99 over one client's p50 ${bare.half.p99_over_single_p50}; ours over pg's p99 ${p99_over_bare}`,
    ),
    `  ${past.clients} clients, default limits  served ${past.served}  503 ${past.refused}  of these without Retry-After ${past.refused_without_retry_after}  anything else ${past.other}`,
    `p50 with ${chunks.few} and with ${chunks.many} chunks of native rows`,
    ...Object.entries(chunks.p50).map(
      ([name, { few_ms, many_ms, ratio }]) => `  ${name.padEnd(28)} ${few_ms} ms  ${many_ms} ms  ratio ${ratio}`,
    ),
  ];
}

export async function run(argv: readonly string[]): Promise<void> {
  const { seconds, clients, chunks, json } = optionsOf(argv, {
    counts: {
      seconds: [LOAD_DEFAULTS.seconds, 1],
      chunks: [LOAD_DEFAULTS.chunks, 1],
      clients: [LOAD_DEFAULTS.clients, 1],
    },
  });
  await using harness = await benchHarness('load');
  const { stack, note } = harness;
  const load = await measureLoad({
    databaseUrl: stack.databaseUrl,
    seconds,
    clients,
    chunks,
    note,
  });
  process.stdout.write(json ? `${JSON.stringify({ bench: 'load', ...load })}\n` : `${loadLines(load).join('\n')}\n`);
}
