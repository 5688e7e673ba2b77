/** What the query benchmarks use: generated trades, the service as a process, and psql. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { Agent, request as httpRequest, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { buffer, text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';
import pg from 'pg';
import { consecutiveDays, type ExchangeADay, writeDay } from '../pipelines/sources/exchange_a/sample.ts';
import { DAY_MS } from '../shared/dates.ts';
import { KLINE_TABLES } from '../shared/registry/kept-klines.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { createDatabase } from './chunks.ts';
import { ROOT } from './harness.ts';
import { watch } from './measure.ts';
import { BenchUsage } from './options.ts';
import { NODE_OPTIONS } from './service.ts';

export const DATASET = 'exchange_a_spot_trades';
const SYMBOL = 'BTCUSDT';
const DAY = '2024-03-01';
export const FROM_MS = Date.parse(`${DAY}T00:00:00Z`);
export const TO_MS = FROM_MS + DAY_MS;
/** The window that holds all rows. */
export const WHOLE_DAY = { time_range: [new Date(FROM_MS).toISOString(), new Date(TO_MS).toISOString()] };
const API_KEY = 'bench';

/** SQL of the eight fields of an answer to a window, in the form of the contract. */
export const sameFieldsOf = (fromMs: number, toMs: number) => `select t.trade_id, t.timestamp, t.price, t.quantity,
  t.quote_quantity, t.is_buyer_maker::int as is_buyer_maker, t.is_best_match::int as is_best_match,
  to_char(to_timestamp(t.timestamp / 1000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as datetime
  from ${DATASET} t where t.timestamp >= ${fromMs} and t.timestamp < ${toMs} order by t.timestamp, t.trade_id`;
export const SAME_FIELDS = sameFieldsOf(FROM_MS, TO_MS);

/** Generates one day of trades and ingests it until it is proved. */
export async function ingest(
  stack: Stack,
  vendor: string,
  { day = DAY, ...options }: { readonly day?: string; readonly rows: number; readonly firstId?: number },
): Promise<void> {
  const only: ExchangeADay = { day, ...options, seed: 7, timeUnit: 'ms' };
  await writeDay({ directory: vendor, symbol: SYMBOL, ...only });
  await ingestDays(stack, vendor, [only]);
  await vacuum(stack);
}

export const STORES = ['rows', 'columns'] as const;
export type Store = (typeof STORES)[number];

/**
 * Where a bench stores trades: by default in rows, in the database of its harness. Columns need a server with TimescaleDB's
 * community edition, which TIDEMARK_BENCH_DATABASE_URL names.
 */
export interface StorePlace {
  /** An empty database. */
  readonly databaseUrl?: string;
  /** Of the commands that work on it. */
  readonly settings: Readonly<Record<string, string>>;
  /** Compacts what is proved. */
  readonly proved?: (place: Place) => Promise<unknown>;
}

/** @throws BenchUsage */
export async function storePlace(store: Store, name: string): Promise<StorePlace> {
  if (store === 'rows') return { settings: {} };
  const databaseUrl = await createDatabase(columnsServer(), name);
  const settings = { SVC_DATABASE_URL: databaseUrl, SVC_COLUMNSTORE_AFTER_DAYS: '0' };
  return { databaseUrl, settings, proved: (place) => tidemark(place, ['compact', '--json'], settings) };
}

/** @throws BenchUsage */
export function columnsServer(): string {
  const given = process.env.TIDEMARK_BENCH_DATABASE_URL;
  if (given) return given;
  throw new BenchUsage('Set TIDEMARK_BENCH_DATABASE_URL to a server with the community edition of TimescaleDB');
}

export interface History {
  readonly fromMs: number;
  readonly toMs: number;
  /** Rows of each day in it. */
  readonly rows: number;
}

/** A state folder and its database. */
export type Place = Pick<Stack, 'stateDir' | 'databaseUrl'>;

interface IngestOptions {
  readonly firstId?: number;
  readonly daysAtOnce?: number;
  /** Of the command, where it does not use the servers of the state folder. */
  readonly settings?: Readonly<Record<string, string>>;
  readonly note: (line: string) => void;
  /** Called each time that days were proved and their documents deleted. */
  readonly proved?: (place: Place) => Promise<unknown>;
}

/** Generates a history of trades and ingests it; the documents of twice `daysAtOnce` are on the disk at a time. */
export async function ingestHistory(
  stack: Place,
  directory: string,
  { fromMs, toMs, rows }: History,
  { firstId = 1, daysAtOnce = 30, settings, note, proved }: IngestOptions,
): Promise<void> {
  const dayOf = (ms: number) => new Date(ms).toISOString().slice(0, 10);
  const daysFrom = (at: number): ExchangeADay[] => {
    const window = { from: dayOf(at), to: dayOf(Math.min(toMs, at + daysAtOnce * DAY_MS) - 1) };
    const first = firstId + ((at - fromMs) / DAY_MS) * rows;
    return consecutiveDays({ ...window, rowsPerDay: rows, seed: 7, firstId: first, timeUnit: 'ms' });
  };
  const write = async (at: number) => {
    const vendor = join(directory, `vendor-${dayOf(at)}`);
    const days = at < toMs ? daysFrom(at) : [];
    for (const day of days) await writeDay({ directory: vendor, symbol: SYMBOL, ...day });
    return { vendor, days };
  };
  let documents = write(fromMs);
  for (let at = fromMs; at < toMs; at += daysAtOnce * DAY_MS) {
    const { vendor, days } = await documents;
    note(`ingesting ${days[0].day} to ${days[days.length - 1].day}, ${rows.toLocaleString('en-US')} trades a day`);
    // The next documents are written meanwhile.
    documents = write(at + daysAtOnce * DAY_MS);
    await ingestDays(stack, vendor, days, settings);
    await rm(vendor, { recursive: true });
    await proved?.(stack);
  }
  await vacuum(stack);
}

/** Runs a command of the product against the stack. @returns its standard output. */
export async function tidemark(
  stack: Place,
  argv: readonly string[],
  settings: Readonly<Record<string, string>> = {},
): Promise<string> {
  const child = spawn(join(ROOT, 'tidemark'), [...argv], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, SVC_STATE_DIR: stack.stateDir, SVC_LOG_LEVEL: 'warn', ...settings },
  });
  const [output] = await Promise.all([text(child.stdout), drained(child)]);
  return output;
}

/** Ingests the documents of consecutive days of trades until they are proved. */
async function ingestDays(
  stack: Place,
  vendor: string,
  days: readonly ExchangeADay[],
  settings: Readonly<Record<string, string>> = {},
): Promise<void> {
  const range = ['--from', days[0].day, '--to', days[days.length - 1].day];
  await tidemark(stack, ['backfill', DATASET, ...range, '--json'], {
    SVC_EXCHANGE_A_BASE_URL: pathToFileURL(join(vendor, '/')).href,
    ...settings,
  });
}

/** Autovacuum would do this within a minute. */
async function vacuum({ databaseUrl }: Place): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  for (const table of [DATASET, ...Object.values(KLINE_TABLES)]) await client.query(`vacuum analyze ${table}`);
  await client.end();
}

export function psqlJson(stack: Stack, select: string, stdout: 'ignore' | 'pipe'): ChildProcess {
  const psql = join(stack.runtime?.postgresBin ?? '/usr/bin', 'psql');
  return spawn(psql, [stack.databaseUrl, '-c', `copy (select row_to_json(x) from (${select}) x) to stdout`], {
    stdio: ['ignore', stdout, 'inherit'],
  });
}

export async function drained(child: ChildProcess): Promise<void> {
  const [code] = await once(child, 'exit');
  if (code !== 0) throw new Error(`${child.spawnfile} ended with ${code}`);
}

/** What a client outside this process sends. */
export interface RequestParts {
  readonly url: string;
  readonly key: string;
  readonly body: string;
}

export interface QueryServer extends AsyncDisposable {
  /** The same request as `post` sends, for another process. */
  requestOf(body: object): RequestParts;
  /** Sends a request for the dataset to the query route. */
  post(body: object, headers?: Record<string, string>): Promise<IncomingMessage>;
  postTo(path: string, body: object, headers?: Record<string, string>): Promise<IncomingMessage>;
  /** The answer, whatever its status. */
  postAny(path: string, body: object): Promise<IncomingMessage>;
  get(path: string): Promise<IncomingMessage>;
  peakMib(): number;
}

export async function startServer(
  stack: Pick<Stack, 'databaseUrl'>,
  more: Readonly<Record<string, string>> = {},
): Promise<QueryServer> {
  const child = spawn(process.execPath, [...NODE_OPTIONS, join(ROOT, 'serving/main.ts'), '--stdin'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const watched = watch(child.pid!);
  const settings = {
    SVC_DATABASE_URL: stack.databaseUrl,
    SVC_INTERNAL_API_KEY: API_KEY,
    SVC_HTTP_PORT: '0',
    SVC_LOG_LEVEL: 'warn',
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    ...more,
  };
  child.stdin!.end(JSON.stringify({ settings }));
  const [line] = await once(child.stdout!, 'data');
  const { url } = JSON.parse(String(line)) as { url: string };
  const agent = new Agent({ keepAlive: true });
  const send = (
    method: string,
    path: string,
    body = '',
    more: Record<string, string> = {},
    mayFail = false,
  ): Promise<IncomingMessage> =>
    new Promise((resolve, reject) => {
      const headers = { 'X-API-Key': API_KEY, 'Content-Length': String(Buffer.byteLength(body)), ...more };
      const outgoing = httpRequest(`${url}${path}`, { agent, method, headers }, (response) => {
        if (mayFail || response.statusCode === 200) resolve(response);
        else buffer(response).then((answer) => reject(new Error(String(answer))), reject);
      });
      outgoing.on('error', reject);
      outgoing.end(body);
    });
  const postTo: QueryServer['postTo'] = (path, body, headers) => send('POST', path, JSON.stringify(body), headers);
  return {
    requestOf: (body) => ({
      url: `${url}/v1/raw/query`,
      key: API_KEY,
      body: JSON.stringify({ sources: [DATASET], ...body }),
    }),
    postTo,
    postAny: (path, body) => send('POST', path, JSON.stringify(body), {}, true),
    get: (path) => send('GET', path),
    post: (body, headers) => postTo('/v1/raw/query', { sources: [DATASET], ...body }, headers),
    peakMib: () => Math.max(...Object.values(watched.stop().peakMib)),
    async [Symbol.asyncDispose]() {
      agent.destroy();
      watched.stop();
      child.kill();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}

export async function discard(response: IncomingMessage): Promise<number> {
  let bytes = 0;
  for await (const chunk of response) bytes += (chunk as Buffer).length;
  return bytes;
}
