/**
 * Ten thousand event streams of /v1/changes: what they cost a small read beside them, how long a change takes to all of them, what a
 * listener costs in memory, and what they have after the service was killed while changes came.
 */
import { once } from 'node:events';
import { Agent, type IncomingMessage, request } from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Sequencer } from '../pipelines/proof-log/sequencer.ts';
import { connect } from '../shared/db/connect.ts';
import { ingestHistory } from './days.ts';
import { pacedLoop, percentile, residentMib, rounded } from './measure.ts';
import { DATASET } from './others.ts';
import { API_KEY, QUERY, type Service, startService } from './service.ts';
import { subject } from './subject.ts';

const DAY = { fromMs: Date.parse('2024-03-01'), toMs: Date.parse('2024-03-02'), rows: 5000 };
const LATEST = { sources: [DATASET], n_rows: 100 };
/** Connections that are opened at once. */
const OPENING = 200;
const SMALL_READS = { clients: 4, rate: 100 };
const RETRY_MS = 1000;

export const changes = subject({
  name: 'changes',
  compares: 'a small read beside 10,000 event streams, beside one alone; a change to all of them; a killed service',
  options: { listeners: 10_000, changes: 100, seconds: 5 },
  rounds: 3,
  smallest: '--listeners 20 --changes 2 --seconds 1',
  async run(lab, { listeners: count, changes, seconds }) {
    const { databaseUrl, stateDir } = lab.stack;
    await ingestHistory(lab, DAY);
    await using client = await connect({ url: databaseUrl, name: 'bench' });
    const sequencer = await Sequencer.open({ client, folder: join(stateDir, 'proof-log'), secret: undefined });
    let size = 0;
    /** Repeats a leaf and has the copies sequenced, as the projector does. */
    const grow = async (leaves: number) => {
      await client.query(
        `insert into proof_leaves (dataset_id, partition_key, kind, body, salt)
         select l.dataset_id, l.partition_key, l.kind, l.body, l.salt
         from (select * from proof_leaves order by 1 limit 1) l, generate_series(1, $1)`,
        [leaves],
      );
      while ((await sequencer.round()) > 0);
      const { rows } = await client.query('select size::int4 from proof_head');
      size = rows[0].size;
    };
    await grow(10);
    let listeners: Listener[] = [];
    const untilAllHave = () => until(() => listeners.every(({ last }) => last === size));

    const settings = { SVC_HTTP_PORT: String(await freePort()), SVC_CHANGES_MAX_LISTENERS: String(count) };
    await using first = await startService(databaseUrl, settings);
    const smallReads = (of: Service) => pacedLoop({ ...SMALL_READS, seconds }, () => of.drain(QUERY, LATEST));
    await smallReads(first);
    const before = residentMib(first.pid);
    const shares = [0.5, 0.99];
    const read = shares.map(() => ({ beside: [] as number[], alone: [] as number[] }));
    for (let round = 1; round <= lab.rounds; round++) {
      for (const listener of listeners) listener.end();
      await delay(1000);
      const alone = await smallReads(first);
      listeners = await openAll(first.url, count);
      await untilAllHave();
      const beside = await smallReads(first);
      shares.forEach((share, at) => {
        read[at].beside.push(percentile(beside, share));
        read[at].alone.push(percentile(alone, share));
      });
      lab.note(`round ${round}: small reads without and with ${count} listeners`);
    }
    shares.forEach(
      (share, at) => void lab.report(`a small read beside ${count} listeners, p${share * 100}`, { ...read[at] }),
    );
    lab.fact('memory of a listener, KiB', rounded(((residentMib(first.pid) - before) * 1024) / count, 1));

    const latencies: number[] = [];
    for (let at = 0; at < changes; at++) {
      await grow(1);
      const committedAt = performance.now();
      await untilAllHave();
      for (const listener of listeners) latencies.push(Math.max(0, listener.at - committedAt));
      await delay(Math.random() * 200);
    }
    const [p50, p99, most] = [0.5, 0.99, 1].map((share) => Math.round(percentile(latencies, share)));
    lab.fact('a change to every listener, ms', `p50 ${p50}, p99 ${p99}, at most ${most}`);

    lab.note('the service is killed, and changes come meanwhile');
    await grow(changes);
    await first.kill();
    await grow(changes);
    await using _second = await startService(databaseUrl, settings);
    const startedAt = performance.now();
    await untilAllHave();
    lab.fact('all have everything after the service starts again, ms', Math.round(performance.now() - startedAt));
    lab.fact(
      'changes lost or repeated',
      listeners.reduce((sum, { faults }) => sum + faults, 0),
    );
    for (const listener of listeners) listener.end();
  },
});

/** A client that follows the changes and checks that none is lost or repeated. */
class Listener {
  last = 0;
  faults = 0;
  /** When the last change came, by `performance.now()`. */
  at = 0;
  #response: IncomingMessage | undefined;
  #isOver = false;

  /** Connects, and again whenever the connection ends. Resolves when the stream has begun. */
  async follow(url: string): Promise<void> {
    const response = await this.#open(url);
    this.#response = response;
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

async function openAll(url: string, count: number): Promise<Listener[]> {
  const listeners = Array.from({ length: count }, () => new Listener());
  for (let from = 0; from < count; from += OPENING) {
    await Promise.all(listeners.slice(from, from + OPENING).map((listener) => listener.follow(url)));
  }
  return listeners;
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await delay(5);
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
