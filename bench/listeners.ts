/**
 * Event streams: ten thousand listeners of /v1/changes. How long a change takes to all of them, what a listener costs in memory,
 * what they cost a small read beside them, and what they have after the service was killed while changes came.
 *
 * Options: --listeners N (10,000), --changes N (100, one by one), --seconds N (5, of each turn of small reads), --json.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Agent, type IncomingMessage, request } from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Sequencer } from '../pipelines/proof-log/sequencer.ts';
import { type Client, connect } from '../shared/db/connect.ts';
import { encodeLeaf } from '../shared/proof-log/leaf.ts';
import { datasetOf } from '../shared/registry/index.ts';
import { createDatabase, loadDays } from './chunks.ts';
import { benchHarness, type Note } from './harness.ts';
import { pacedLoop, percentile } from './load-loops.ts';
import { rounded } from './measure.ts';
import { optionsOf } from './options.ts';
import { API_KEY, type Service, startService } from './service.ts';

const DATASET = 'exchange_a_spot_trades';
const QUERY = { sources: [DATASET], n_rows: 100 };
/** Connections that are opened at once. */
const OPENING = 200;
/** Small reads beside the listeners: clients, and their requests a second. */
const CLIENTS = 4;
const RATE = 100;
const TURNS = 3;
const RETRY_MS = 1000;

/** A client that follows the changes and checks that none is lost or repeated. */
class Listener {
  last = 0;
  faults = 0;
  connections = 0;
  /** When the last change came, by `performance.now()`. */
  at = 0;
  #response: IncomingMessage | undefined;
  #isOver = false;

  /** Connects, and again whenever the connection ends. Resolves when the stream has begun. */
  async follow(url: string): Promise<void> {
    const response = await this.#open(url);
    this.#response = response;
    this.connections++;
    response.setEncoding('utf8');
    let text = '';
    response.on('data', (chunk: string) => {
      text += chunk;
      const end = text.lastIndexOf('\n\n');
      if (end < 0) return;
      for (const [, id] of text.slice(0, end + 2).matchAll(/^id: (\d+)\ndata: /gm)) this.#take(Number(id));
      text = text.slice(end + 2);
    });
    response.on('error', () => {});
    response.once('close', () => {
      if (!this.#isOver) void this.follow(url);
    });
  }

  #take(number: number): void {
    if (number !== this.last + 1) this.faults++;
    this.last = number;
    this.at = performance.now();
  }

  async #open(url: string): Promise<IncomingMessage> {
    for (;;) {
      const headers = { 'X-API-Key': API_KEY, Accept: 'text/event-stream', 'Last-Event-ID': String(this.last) };
      const outgoing = request(`${url}/v1/changes`, { agent: ONE_EACH, headers }).end();
      const response = await new Promise<IncomingMessage | undefined>((resolve) => {
        outgoing.once('response', resolve);
        outgoing.once('error', () => resolve(undefined));
      });
      if (response?.statusCode === 200) return response;
      response?.resume();
      await delay(RETRY_MS * (0.5 + Math.random()));
    }
  }

  end(): void {
    this.#isOver = true;
    this.#response?.destroy();
  }
}

const ONE_EACH = new Agent({ keepAlive: false, maxSockets: Number.POSITIVE_INFINITY });

/** Writes leaves and has them sequenced, as the projector does. */
class Log {
  readonly #client: Client;
  readonly #sequencer: Sequencer;
  size = 0;

  private constructor(client: Client, sequencer: Sequencer) {
    this.#client = client;
    this.#sequencer = sequencer;
  }

  static async open(client: Client, folder: string): Promise<Log> {
    return new Log(client, await Sequencer.open({ client, folder, secret: undefined }));
  }

  async grow(count: number): Promise<void> {
    const body = encodeLeaf({
      ...{ v: 1, kind: 'proved', dataset: DATASET, partition: '2024-03-01', revision: 1, attempt: 1, synthetic: false },
      ...{ document: { name: 'trades-2024-03-01.zip', sha256: 'a'.repeat(64) }, rows: 3_500_000 },
      ...{ first_offset: '1', last_offset: '3500000', rows_hash: '1'.repeat(19), events_sha256: 'b'.repeat(64) },
      ...{ rows_sha256: 'c'.repeat(64) },
      ...{ at: '2026-01-01T00:00:00.000Z', reason: null },
    });
    await this.#client.query(
      `insert into proof_leaves (dataset_id, partition_key, kind, body)
       select $1, '2024-03-01', 'proved', $2 from generate_series(1, $3)`,
      [datasetOf(DATASET).number, body, count],
    );
    while ((await this.#sequencer.round()) > 0);
    this.size += count;
  }
}

interface Everyone {
  readonly listeners: readonly Listener[];
  readonly log: Log;
}

const until = async (condition: () => boolean): Promise<number> => {
  const startedAt = performance.now();
  while (!condition()) await delay(5);
  return performance.now() - startedAt;
};

const haveAll = ({ listeners, log }: Everyone) => listeners.every(({ last }) => last === log.size);

/** Milliseconds from the commit of an index to each listener, for changes that come one by one. */
async function latencies(everyone: Everyone, changes: number): Promise<number[]> {
  const found: number[] = [];
  for (let at = 0; at < changes; at++) {
    await everyone.log.grow(1);
    const committedAt = performance.now();
    await until(() => haveAll(everyone));
    for (const listener of everyone.listeners) found.push(Math.max(0, listener.at - committedAt));
    await delay(Math.random() * 200);
  }
  return found;
}

async function smallReads(service: Service, seconds: number): Promise<number[]> {
  const ask = async () => {
    const { status } = await service.ask('/v1/raw/query', QUERY);
    if (status !== 200) throw new Error(`a small read was answered with ${status}`);
  };
  const { latencies: found, errors } = await pacedLoop(ask, CLIENTS, RATE, seconds);
  if (errors > 0) throw new Error(`${errors} small reads failed`);
  return found;
}

const residentMib = (pid: number) =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'latin1'))![1]) / 1024;

async function openAll(url: string, count: number): Promise<Listener[]> {
  const listeners = Array.from({ length: count }, () => new Listener());
  for (let from = 0; from < count; from += OPENING) {
    await Promise.all(listeners.slice(from, from + OPENING).map((listener) => listener.follow(url)));
  }
  return listeners;
}

export async function measureListeners(
  databaseUrl: string,
  folder: string,
  { listeners: count, changes, seconds, note }: { listeners: number; changes: number; seconds: number; note: Note },
) {
  await using client = await connect({ url: databaseUrl, name: 'bench' });
  const log = await Log.open(client, folder);
  await log.grow(10);
  const settings = { SVC_HTTP_PORT: String(await freePort()), SVC_CHANGES_MAX_LISTENERS: String(count) };
  let service = await startService(databaseUrl, settings);
  try {
    const alone: number[] = [];
    const beside: number[] = [];
    await smallReads(service, 1);
    const before = residentMib(service.pid);
    let listeners: Listener[] = [];
    let openedMs = 0;
    for (let turn = 0; turn < TURNS; turn++) {
      for (const listener of listeners) listener.end();
      await delay(1000);
      alone.push(...(await smallReads(service, seconds)));
      const startedAt = performance.now();
      listeners = await openAll(service.url, count);
      await until(() => haveAll({ listeners, log }));
      openedMs = performance.now() - startedAt;
      beside.push(...(await smallReads(service, seconds)));
      note(`turn ${turn + 1} of ${TURNS}: small reads without and with ${count} listeners`);
    }
    const everyone = { listeners, log };
    const memory = residentMib(service.pid) - before;
    const change = await latencies(everyone, changes);
    note('the service is killed, and changes come meanwhile');
    await log.grow(changes);
    await service.kill();
    const killedAt = performance.now();
    await log.grow(changes);
    service = await startService(databaseUrl, settings);
    const startedAt = performance.now();
    await until(() => haveAll(everyone));
    const back = { after_kill_ms: performance.now() - killedAt, after_start_ms: performance.now() - startedAt };
    await log.grow(changes);
    await until(() => haveAll(everyone));
    const result = {
      bench: 'listeners',
      listeners: count,
      changes: log.size,
      opened_ms: rounded(openedMs, 0),
      change_p50_ms: rounded(percentile(change, 0.5), 0),
      change_p99_ms: rounded(percentile(change, 0.99), 0),
      change_max_ms: rounded(
        change.reduce((most, one) => Math.max(most, one), 0),
        0,
      ),
      memory_kib_each: rounded((memory * 1024) / count, 1),
      read_p50_ms: { alone: percentile(alone, 0.5), beside: percentile(beside, 0.5) },
      read_p99_ms: { alone: percentile(alone, 0.99), beside: percentile(beside, 0.99) },
      ratio_p50: rounded(percentile(beside, 0.5) / percentile(alone, 0.5)),
      ratio_p99: rounded(percentile(beside, 0.99) / percentile(alone, 0.99)),
      back_after_kill_ms: rounded(back.after_kill_ms, 0),
      back_after_start_ms: rounded(back.after_start_ms, 0),
      reconnections: listeners.reduce((sum, { connections }) => sum + connections - 1, 0),
      lost_or_repeated: listeners.reduce((sum, { faults }) => sum + faults, 0),
    };
    for (const listener of listeners) listener.end();
    return result;
  } finally {
    await service[Symbol.asyncDispose]();
  }
}

/** A port that the service has again after its restart. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

export async function run(argv: readonly string[]): Promise<void> {
  const { json, ...options } = optionsOf(argv, {
    counts: { listeners: [10_000, 1], changes: [100, 1], seconds: [5, 1] },
  });
  await using harness = await benchHarness('listeners');
  const databaseUrl = await createDatabase(harness.stack.databaseUrl, 'listeners');
  await loadDays(databaseUrl, '2024-03-02', 2);
  const result = await measureListeners(databaseUrl, join(harness.directory, 'proof-log'), {
    ...options,
    note: harness.note,
  });
  process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${linesOf(result).join('\n')}\n`);
}

const linesOf = (found: Awaited<ReturnType<typeof measureListeners>>): string[] => [
  `${found.listeners} event streams, opened in ${found.opened_ms} ms, ${found.memory_kib_each} KiB of the service's memory each`,
  `a change to every listener: p50 ${found.change_p50_ms} ms  p99 ${found.change_p99_ms} ms  slowest ${found.change_max_ms} ms after the commit`,
  `a small read beside them: p50 ${found.read_p50_ms.beside} ms, alone ${found.read_p50_ms.alone} ms, ratio ${found.ratio_p50}; p99 ${found.read_p99_ms.beside} ms, alone ${found.read_p99_ms.alone} ms, ratio ${found.ratio_p99}`,
  `service killed: all listeners have everything ${found.back_after_start_ms} ms after it answers again (${found.back_after_kill_ms} ms after the kill), ${found.reconnections} reconnections`,
  `changes lost or repeated by any listener, of ${found.changes}: ${found.lost_or_repeated}`,
];
