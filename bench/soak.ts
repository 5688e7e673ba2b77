/**
 * Soak: `./tidemark up` at saturation for minutes, over all kinds of routes, beside a running backfill of generated days. It counts
 * every answer that is neither 2xx nor a deliberate 503 or 429 (one with Retry-After) as an error, every answer that breaks off,
 * and every process whose memory in the last third is well above that in the first. With any of these it exits with 1. The clients
 * run in this process, beside the service: times are those of a saturated machine, to be held against each other alone.
 *
 * Options: --minutes N, --seconds N (900), --rows N (100,000 a day), --clients N (32), --json.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { Agent, request as httpRequest, type IncomingHttpHeaders } from 'node:http';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { DAY_MS, dayKey } from '../shared/dates.ts';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { benchHarness, type Harness, ROOT } from './harness.ts';
import { percentile } from './load-loops.ts';
import { anonymousMib, rounded } from './measure.ts';
import { optionsOf } from './options.ts';
import { DATASET, FROM_MS, ingest, WHOLE_DAY } from './query-subjects.ts';

const API_KEY = 'bench';
const SOURCES = { sources: [DATASET] };
const HOUR = { time_range: [WHOLE_DAY.time_range[0], new Date(FROM_MS + DAY_MS / 24).toISOString()] };
const TRADES = '/v1/historical/exchange_a/spot/trades';
const KLINES = '/v1/historical/exchange_a/spot/klines';
const EXPORTS = '/v1/raw/export';
const START_DATE = WHOLE_DAY.time_range[0].slice(0, 10);
/** A client that was refused tries again after this time. */
const RETRY_MS = 100;
/** How long a stream of changes is read, and an export awaited. */
const STREAM_MS = 3000;
const EXPORT_MS = 120_000;
const MEMORY_EVERY_MS = 1000;
/** Memory is flat where the last third's mean is at most this much above that of the first third. */
const GROWTH_SHARE = 1.3;
const GROWTH_MIB = 48;
/** In a shorter run the processes still grow to the size that they keep. */
const JUDGED_S = 180;
const MAX_ERRORS = 20;

interface Reply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
}

interface Asked {
  readonly method?: string;
  readonly path: string;
  readonly body?: object;
  readonly headers?: Record<string, string>;
  /** Ends the answer from this side after so long. */
  readonly cutMs?: number;
}

/** Sends requests, and counts what becomes of them. */
class Clients {
  readonly routes = new Map<string, Route>();
  readonly errors: string[] = [];
  readonly #url: string;
  readonly #agent = new Agent({ keepAlive: true });
  isCounting = false;

  constructor(url: string) {
    this.#url = url;
  }

  /** @returns the answer; undefined when there is none to go on with. */
  async ask(name: string, asked: Asked): Promise<Reply | undefined> {
    const startedAt = performance.now();
    try {
      const reply = await this.#send(asked);
      const isRefusal = [429, 503].includes(reply.status) && reply.headers['retry-after'] !== undefined;
      const isFine = reply.status >= 200 && reply.status < 300;
      if (!isFine && !isRefusal) this.#fault(name, `${reply.status} ${reply.body.toString('utf8', 0, 300)}`);
      this.#count(name, isFine ? performance.now() - startedAt : undefined, isRefusal);
      if (isRefusal) await delay(RETRY_MS);
      return isFine ? reply : undefined;
    } catch (error) {
      this.#fault(name, String(error));
      await delay(RETRY_MS);
      return undefined;
    }
  }

  #count(name: string, ms: number | undefined, isRefusal: boolean): void {
    if (!this.isCounting) return;
    const route = this.#route(name);
    if (ms !== undefined) route.latencies.push(ms);
    if (isRefusal) route.refused++;
  }

  #route(name: string): Route {
    const route = this.routes.get(name) ?? { latencies: [], refused: 0, errors: 0 };
    this.routes.set(name, route);
    return route;
  }

  #fault(name: string, what: string): void {
    this.errors.push(`${name}: ${what}`);
    this.#route(name).errors++;
  }

  #send({ method, path, body, headers, cutMs }: Asked): Promise<Reply> {
    const text = body === undefined ? undefined : JSON.stringify(body);
    return new Promise((resolve, reject) => {
      const outgoing = httpRequest(
        `${this.#url}${path}`,
        {
          agent: cutMs === undefined ? this.#agent : undefined,
          method: method ?? (text === undefined ? 'GET' : 'POST'),
          headers: { 'X-API-Key': API_KEY, ...(text && { 'Content-Length': Buffer.byteLength(text) }), ...headers },
        },
        (response) => {
          const chunks: Buffer[] = [];
          let bytes = 0;
          let isCut = false;
          const end = () =>
            resolve({ status: response.statusCode!, headers: response.headers, body: Buffer.concat(chunks) });
          response.on('data', (chunk: Buffer) => {
            // Of a large answer only its beginning is kept.
            if (bytes < 64 * 1024) chunks.push(chunk);
            bytes += chunk.length;
          });
          response.on('end', () => (response.complete ? end() : reject(new Error('the answer broke off'))));
          response.on('error', (error) => (isCut ? end() : reject(error)));
          if (cutMs !== undefined) {
            setTimeout(() => {
              isCut = true;
              response.destroy();
              end();
            }, cutMs);
          }
        },
      );
      outgoing.on('error', reject);
      outgoing.end(text);
    });
  }

  figures() {
    return [...this.routes].map(([route, { latencies, refused, errors }]) => ({
      route,
      answers: latencies.length,
      p50_ms: percentile(latencies, 0.5),
      p99_ms: percentile(latencies, 0.99),
      refused,
      errors,
    }));
  }

  close(): void {
    this.#agent.destroy();
  }
}

interface Route {
  readonly latencies: number[];
  refused: number;
  errors: number;
}

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
      clients.errors.push(`export ${id} is ${state} after ${EXPORT_MS / 1000} s: ${reply?.body}`);
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

/** MiB of each kind of process over time. */
type MemorySamples = Map<string, number[]>;

interface Growth {
  readonly first_third_mib: number;
  readonly last_third_mib: number;
  readonly is_flat: boolean;
}

function growthOf(samples: MemorySamples): Record<string, Growth> {
  const mean = (values: readonly number[]) =>
    values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
  const found: Record<string, Growth> = {};
  for (const [name, values] of samples) {
    const third = Math.ceil(values.length / 3);
    const [first, last] = [mean(values.slice(0, third)), mean(values.slice(-third))];
    const is_flat = last <= first * GROWTH_SHARE + GROWTH_MIB;
    found[name] = { first_third_mib: rounded(first, 1), last_third_mib: rounded(last, 1), is_flat };
  }
  return found;
}

/** Everything of the product, as an operator starts it. */
async function startUp({ stack }: Harness) {
  const child = spawn(join(ROOT, 'tidemark'), ['up', '--json'], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: {
      ...process.env,
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
  await using up = await startUp(harness);
  note(`ingesting ${rows.toLocaleString('en-US')} generated trades`);
  await ingest(stack, join(directory, 'vendor'), { rows });
  const clients = new Clients(up.url);
  const stopping = new AbortController();
  const loops = startLoops(clients, count, stopping.signal);
  const backfill = keepBackfilling(harness, rows, stopping.signal);
  let failed: unknown;
  backfill.catch((error) => (failed = error));
  // Until then code is compiled and caches fill.
  await delay(Math.min(60, seconds / 5) * 1000);
  clients.isCounting = true;
  const memory: MemorySamples = new Map();
  const roots = [up.pid, ...stack.processes.map(({ pid }) => pid)];
  const startedAt = performance.now();
  for (let minute = 0; performance.now() < startedAt + seconds * 1000 && !failed; ) {
    for (const [name, mib] of Object.entries(anonymousMib(roots))) {
      memory.set(name, [...(memory.get(name) ?? []), mib]);
    }
    await delay(MEMORY_EVERY_MS);
    if (performance.now() < startedAt + (minute + 1) * 60_000) continue;
    minute++;
    note(`minute ${minute}, ${clients.errors.length} errors`);
  }
  stopping.abort();
  await Promise.all(loops);
  const days = await backfill;
  clients.close();
  const growth = growthOf(memory);
  const is_memory_judged = seconds >= JUDGED_S;
  return {
    ok: clients.errors.length === 0 && (!is_memory_judged || Object.values(growth).every(({ is_flat }) => is_flat)),
    seconds,
    is_memory_judged,
    clients: count,
    days_backfilled: days,
    routes: clients.figures(),
    memory: growth,
    errors: clients.errors.slice(0, MAX_ERRORS),
  };
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

const lines = ({ seconds, is_memory_judged, clients, days_backfilled, routes, memory, errors }: Soak): string[] => [
  `${clients} clients of all kinds, two readers of whole days, two of streams and one of exports, for ${seconds} s; ${days_backfilled} days were backfilled beside them`,
  ...routes
    .toSorted((one, other) => one.route.localeCompare(other.route))
    .map(
      ({ route, answers, p50_ms, p99_ms, refused, errors: faults }) =>
        `  ${route.padEnd(34)} ${String(answers).padStart(7)} answers  p50 ${p50_ms} ms  p99 ${p99_ms} ms  refused ${refused}  errors ${faults}`,
    ),
  `memory of the first third and of the last, MiB${is_memory_judged ? '' : ` (not judged below ${JUDGED_S} s)`}`,
  ...Object.entries(memory).map(
    ([name, { first_third_mib, last_third_mib, is_flat }]) =>
      `  ${name.padEnd(34)} ${first_third_mib}  ${last_third_mib}${is_flat ? '' : is_memory_judged ? '  NOT FLAT' : '  grew'}`,
  ),
  ...errors.map((error) => `error: ${error}`),
];

export async function run(argv: readonly string[]): Promise<void> {
  const { minutes, seconds, rows, clients, json } = optionsOf(argv, {
    counts: { minutes: [0, 0], seconds: [900, 1], rows: [100_000, 2000], clients: [32, 1] },
  });
  await using harness = await benchHarness('soak');
  const found = await soak(harness, { seconds: minutes * 60 || seconds, rows, clients });
  process.stdout.write(json ? `${JSON.stringify({ bench: 'soak', ...found })}\n` : `${lines(found).join('\n')}\n`);
  if (!found.ok) process.exitCode = 1;
}
