/**
 * Soak: `./tidemark up` at saturation for minutes, over all kinds of routes, beside a running backfill of generated days. It counts
 * every answer that is neither 2xx nor a deliberate 503 or 429 (one by a limit, with Retry-After) as an error, and every answer that
 * breaks off, and judges memory (soak-memory.ts). With an error, or memory that is not flat, it exits with 1. The clients run in this
 * process, beside the service: times are those of a saturated machine, to be held against each other alone.
 *
 * Options: --minutes N, --seconds N (900), --rows N (100,000 a day), --clients N (192), --json.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { DAY_MS, dayKey } from '../shared/dates.ts';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { benchHarness, type Harness, ROOT } from './harness.ts';
import { optionsOf } from './options.ts';
import { DATASET, FROM_MS, ingest, WHOLE_DAY } from './query-subjects.ts';
import { API_KEY, type Asked, Clients } from './soak-clients.ts';
import { LOOKS, type MemoryOfKind, SoakMemory } from './soak-memory.ts';

const SOURCES = { sources: [DATASET] };
const HOUR = { time_range: [WHOLE_DAY.time_range[0], new Date(FROM_MS + DAY_MS / 24).toISOString()] };
const TRADES = '/v1/historical/exchange_a/spot/trades';
const KLINES = '/v1/historical/exchange_a/spot/klines';
const EXPORTS = '/v1/raw/export';
const START_DATE = WHOLE_DAY.time_range[0].slice(0, 10);
/** How long a stream of changes is read, and an export awaited. */
const STREAM_MS = 3000;
const EXPORT_MS = 120_000;
const MEMORY_EVERY_MS = 1000;
const CHECKPOINT_MS = 60_000;
const MAX_ERRORS = 20;

const post = (path: string, body: object, headers?: Record<string, string>): Asked => ({ path, body, headers });
const query = (body: object, headers?: Record<string, string>) =>
  post('/v1/raw/query', { ...SOURCES, ...body }, headers);

/** Requests that any client sends at any time. */
const KINDS: Readonly<Record<string, () => Asked>> = {
  'query, latest 100': () => query({ n_rows: 100 }),
  'query, latest seconds': () => query({ mode: 'aligned_1s', n_rows: 100 }),
  'query, an hour, JSON': () => query(HOUR),
  'query, an hour, NDJSON': () => query(HOUR, { Accept: 'application/x-ndjson' }),
  'query, an hour, CSV': () => query(HOUR, { Accept: 'text/csv' }),
  'query, an hour, Arrow': () => query(HOUR, { Accept: 'application/vnd.apache.arrow.stream' }),
  'query, random rows': () => query({ n_random: 100, random_seed: Math.floor(Math.random() * 1e6) }),
  'query, a filter': () => query({ ...HOUR, filters: [{ field: 'is_buyer_maker', op: 'eq', value: 1 }] }),
  'historical, trades': () => post(TRADES, { n_latest_rows: 1000 }),
  'historical, klines': () => post(KLINES, { start_date: START_DATE, end_date: START_DATE, kline_size: '10m' }),
  frame: () =>
    post('/v1/frame', {
      columns: [
        { name: 'close', dataset: DATASET, field: 'price' },
        { name: 'volume', dataset: DATASET, field: 'quantity', aggregate: 'sum' },
      ],
      grid: '10m',
      ...WHOLE_DAY,
    }),
  estimate: () => post('/v1/raw/estimate', { ...SOURCES, ...WHOLE_DAY }),
  coverage: () => ({ path: `/v1/coverage/${DATASET}?limit=20` }),
  datasets: () => ({ path: '/v1/datasets' }),
  lineage: () => ({ path: `/v1/lineage/${DATASET}/${1 + Math.floor(Math.random() * 1000)}` }),
  'changes, a page': () => ({ path: '/v1/changes?since=0&limit=50' }),
  'proof log': () => ({ path: '/v1/proofs/checkpoint' }),
  ops: () => ({ path: '/v1/ops/status' }),
  page: () => ({ path: '/' }),
  metrics: () => ({ path: '/metrics' }),
};

/** Whole days, in every representation: what large answers do to the others. */
const LARGE: readonly (readonly [name: string, asked: Asked])[] = [
  ['query, a day, JSON', query(WHOLE_DAY)],
  ['query, a day, CSV as zstd', query(WHOLE_DAY, { Accept: 'text/csv', 'Accept-Encoding': 'zstd' })],
  ['query, a day, Arrow', query(WHOLE_DAY, { Accept: 'application/vnd.apache.arrow.stream' })],
  ['query, a day, seconds as NDJSON', query({ ...WHOLE_DAY, mode: 'aligned_1s' }, { Accept: 'application/x-ndjson' })],
];

const STREAM: Asked = { path: '/v1/changes?since=0', headers: { Accept: 'text/event-stream' }, cutMs: STREAM_MS };

/** One export from its submission to its download. */
async function exportOnce(clients: Clients, format: string): Promise<void> {
  const submitted = await clients.ask('export, submit', post(EXPORTS, { dataset: DATASET, format, ...WHOLE_DAY }));
  if (!submitted) return;
  const { export_id: id } = JSON.parse(String(submitted.body)) as { export_id: string };
  const until = performance.now() + EXPORT_MS;
  for (;;) {
    const reply = await clients.ask('export, status', { path: `${EXPORTS}/${id}` });
    const state = reply && (JSON.parse(String(reply.body)) as { status: string }).status;
    if (state === 'succeeded') break;
    if (state === 'failed' || state === 'cancelled' || performance.now() > until) {
      clients.fault('export, status', `${id} is ${state} after ${EXPORT_MS / 1000} s: ${reply?.body}`);
      return;
    }
    await delay(500);
  }
  await clients.ask('export, manifest', { path: `${EXPORTS}/${id}/manifest` });
  await clients.ask('export, artifact', { path: `${EXPORTS}/${id}/artifact` });
}

/** Ingests one generated day after the other. @returns how many were proved. */
async function keepBackfilling({ stack, directory }: Harness, rows: number, stop: AbortSignal): Promise<number> {
  let days = 0;
  for (; !stop.aborted; days++) {
    const day = dayKey(FROM_MS + (days + 1) * DAY_MS);
    const vendor = join(directory, `vendor-${day}`);
    await ingest(stack, vendor, { day, rows, firstId: 1 + (days + 1) * rows });
    await rm(vendor, { recursive: true });
  }
  return days;
}

/** Everything of the product, as an operator starts it. */
async function startUp({ stack }: Harness, environment: Readonly<Record<string, string>>) {
  const child = spawn(join(ROOT, 'tidemark'), ['up', '--json'], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      ...process.env,
      ...environment,
      SVC_STATE_DIR: stack.stateDir,
      SVC_HTTP_PORT: '0',
      SVC_INTERNAL_API_KEY: API_KEY,
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
      SVC_SAMPLE: 'false',
      SVC_LOG_LEVEL: 'error',
    },
  });
  const ended = once(child, 'exit');
  for await (const line of createInterface({ input: child.stdout })) {
    const { url } = JSON.parse(line) as { url: string };
    return {
      url,
      pid: child.pid!,
      async [Symbol.asyncDispose]() {
        child.kill();
        await ended;
      },
    };
  }
  throw new Error('`./tidemark up` ended before it served');
}

interface SoakOptions {
  readonly seconds: number;
  readonly rows: number;
  readonly clients: number;
}

async function soak(harness: Harness, { seconds, rows, clients: count }: SoakOptions) {
  const { note, directory, stack } = harness;
  const memory = await SoakMemory.in(directory);
  await using up = await startUp(harness, memory.environment);
  note(`ingesting ${rows.toLocaleString('en-US')} generated trades`);
  await ingest(stack, join(directory, 'vendor'), { rows });
  await firstCheckpoint(up.url);
  const clients = new Clients(up.url);
  const stopping = new AbortController();
  const loops = startLoops(clients, count, stopping.signal);
  const backfill = keepBackfilling(harness, rows, stopping.signal);
  let failed: unknown;
  backfill.catch((error) => (failed = error));
  // Until then code is compiled and caches fill.
  await delay(Math.min(60, seconds / 5) * 1000);
  clients.isCounting = true;
  const roots = [up.pid, ...stack.processes.map(({ pid }) => pid)];
  const startedAt = performance.now();
  const elapsedMs = () => performance.now() - startedAt;
  for (let minute = 0, looks = 0; looks < LOOKS.length && !failed; await delay(MEMORY_EVERY_MS)) {
    memory.sample(roots);
    if (elapsedMs() >= LOOKS[looks] * seconds * 1000) {
      await memory.look(roots);
      looks++;
    }
    if (elapsedMs() < (minute + 1) * 60_000) continue;
    minute++;
    note(`minute ${minute}, ${clients.errors.length} errors`);
  }
  stopping.abort();
  await Promise.all(loops);
  const days = await backfill;
  clients.close();
  const kinds = memory.figures(seconds);
  return {
    ok: clients.errors.length === 0 && Object.values(kinds).every(({ is_flat }) => is_flat),
    seconds,
    clients: count,
    days_backfilled: days,
    answers: clients.answers(),
    routes: clients.figures(),
    memory: kinds,
    errors: clients.errors.slice(0, MAX_ERRORS),
  };
}

/** The first proof is signed within seconds. Until then the proof log has no checkpoint to answer with. */
async function firstCheckpoint(url: string): Promise<void> {
  const until = performance.now() + CHECKPOINT_MS;
  while (!(await fetch(`${url}/v1/proofs/checkpoint`)).ok) {
    if (performance.now() > until) throw new Error(`no checkpoint after ${CHECKPOINT_MS / 1000} s`);
    await delay(MEMORY_EVERY_MS);
  }
}

/** Clients of all kinds, two readers of whole days, two of streams, and one of exports. */
function startLoops(clients: Clients, count: number, signal: AbortSignal): Promise<void>[] {
  const loop = async (work: (turn: number) => Promise<unknown>) => {
    for (let turn = 0; !signal.aborted; turn++) await work(turn);
  };
  const kinds = Object.entries(KINDS);
  return [
    ...Array.from({ length: count }, (_, client) =>
      loop((turn) => {
        const [name, asked] = kinds[(turn + client * 5) % kinds.length];
        return clients.ask(name, asked());
      }),
    ),
    ...[0, 1].map((reader) => loop((turn) => clients.ask(...LARGE[(turn + 2 * reader) % LARGE.length]))),
    ...[0, 1].map(() => loop(() => clients.ask('changes, a stream', STREAM))),
    loop((turn) => exportOnce(clients, ['csv', 'parquet'][turn % 2])),
  ];
}

type Soak = Awaited<ReturnType<typeof soak>>;

const lines = ({ seconds, clients, ...found }: Soak): string[] => [
  `${clients} clients of all kinds, two readers of whole days, two of streams and one of exports, for ${seconds} s; ${found.days_backfilled} days were backfilled beside them`,
  ...found.routes.map(
    ({ route, answers, p50_ms, p99_ms, refused, errors }) =>
      `  ${route.padEnd(34)} ${String(answers).padStart(7)} answers  p50 ${p50_ms} ms  p99 ${p99_ms} ms  refused ${refused}  errors ${errors}`,
  ),
  'answers by status and code',
  ...Object.entries(found.answers).map(([answer, count]) => `  ${answer.padEnd(44)} ${count}`),
  `memory, MiB: means of the thirds; at ${LOOKS.map((share) => `${Math.round((share * seconds) / 6) / 10} min`).join(', ')}`,
  ...Object.entries(found.memory).map(([name, kind]) => memoryLine(name, kind)),
  ...found.errors.map((error) => `error: ${error}`),
];

function memoryLine(name: string, { thirds_mib, anonymous_mib, live_mib, is_flat }: MemoryOfKind) {
  const live = live_mib ? `; after a collection ${live_mib.join(', ')}` : '';
  return `  ${name.padEnd(34)} ${thirds_mib.join(', ')}; ${anonymous_mib.join(', ')}${live}${is_flat ? '' : '  NOT FLAT'}`;
}

export async function run(argv: readonly string[]): Promise<void> {
  const { minutes, seconds, rows, clients, json } = optionsOf(argv, {
    counts: { minutes: [0, 0], seconds: [900, 1], rows: [100_000, 2000], clients: [192, 1] },
  });
  await using harness = await benchHarness('soak');
  const found = await soak(harness, { seconds: minutes * 60 || seconds, rows, clients });
  process.stdout.write(json ? `${JSON.stringify({ bench: 'soak', ...found })}\n` : `${lines(found).join('\n')}\n`);
  if (!found.ok) process.exitCode = 1;
}
