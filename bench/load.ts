/**
 * Small reads under load. Clients request the latest 100 rows at half of the service's highest rate, and beside two readers that fetch a
 * day again and again; in alternating turns the same load goes to a bare server and to the database alone, through `pg`. Generator, service
 * and database share the machine, so that slow times of the bare sides are due to the machine and to Node. At last more clients come than
 * the default limits allow.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import pg from 'pg';
import { createDatabase, ingestHistory, iso, makeDays } from './days.ts';
import type { Lab } from './lab.ts';
import { type Ask, closedLoop, pacedLoop, percentile, rounded } from './measure.ts';
import { DATASET, latest100, psqlJson, sameFields } from './others.ts';
import { API_KEY, QUERY, type Service, startBareServer, startService } from './service.ts';
import { subject } from './subject.ts';

const DAY = { fromMs: Date.parse('2024-03-01'), toMs: Date.parse('2024-03-02') };
const SOURCES = { sources: [DATASET] };
const LATEST = { ...SOURCES, n_rows: 100 };
const WHOLE_DAY = { ...SOURCES, time_range: [iso(DAY.fromMs), iso(DAY.toMs)] };
const MADE_DAYS = 10;
const CONNECTIONS = 8;
/** Readers of a whole day, and the clients and the rate of the small reads beside them. */
const READERS = 2;
const BESIDE = { clients: 8, rate: 50 };
/** How many times more clients a service above its limits has, and how soon a refused client retries. */
const OVERLOAD = 4;
const RETRY_MS = 100;

/**
 * Limits that refuse no request. The number of reads at once keeps its default: more than the machine has processors would only
 * wait in the database instead of in the queue, and compete for its caches of one connection.
 */
const RAISED = {
  SVC_QUERY_MAX_QUEUE: '10000',
  SVC_ALIGNED_QUERY_MAX_QUEUE: '10000',
} as const;

/** Else collections of the load generator, of up to 10 ms, count as latency of whatever it measures. */
const ONE_THREAD = [
  'parallel-scavenge',
  'concurrent-marking',
  'concurrent-sweeping',
  'concurrent-array-buffer-sweeping',
];

export const load = subject({
  name: 'load',
  compares: 'small reads of many clients and beside huge reads, beside a bare server and the bare SQL',
  options: { clients: 64, seconds: 1, rows: 1_000_000 },
  rounds: 16,
  smallest: '--clients 2 --rows 5000',
  async run(lab, { clients, seconds, rows }) {
    for (const name of ONE_THREAD) setFlagsFromString(`--no-${name}`);
    const url = await createDatabase(lab.stack.databaseUrl, 'bench_load');
    await makeDays(url, DAY.toMs, MADE_DAYS);
    await compareHalf(lab, url, clients, seconds);
    await overload(lab, url, clients * OVERLOAD, seconds * 4);
    await ingestHistory(lab, { ...DAY, rows });
    await compareBesideHuge(lab, seconds * 4);
  },
});

interface Sides extends AsyncDisposable {
  readonly service: Service;
  readonly asks: Readonly<Record<string, Ask>>;
}

/** The latest 100 rows from the service, from a bare server and from the database. */
async function openSides(databaseUrl: string): Promise<Sides> {
  await using resources = new AsyncDisposableStack();
  const service = resources.use(await startService(databaseUrl, RAISED));
  const bare = resources.use(await startBareServer(databaseUrl, latest100(DAY), CONNECTIONS));
  const pool = new pg.Pool({ connectionString: databaseUrl, max: CONNECTIONS });
  resources.defer(() => pool.end());
  const statement = { name: 'latest', text: latest100(DAY), rowMode: 'array' } as const;
  const asks = {
    tidemark: () => service.drain(QUERY, LATEST),
    'bare server': () => bare.drain('/', LATEST),
    pg: () => pool.query({ ...statement }),
  };
  const owned = resources.move();
  return { service, asks, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}

type Turn = (ask: Ask, side: string) => Promise<number[]>;

/** Turns of each side. A round has the p50 and the p99 of its turn. */
async function comparePercentiles({ note, report, rounds }: Lab, what: string, { asks }: Sides, turn: Turn) {
  const sides = Object.keys(asks);
  const found = [0.5, 0.99].map((share) => ({
    share,
    ms: Object.fromEntries(sides.map((side) => [side, [] as number[]])),
  }));
  for (let round = 0; round <= rounds; round++) {
    note(`${what}, ${round === 0 ? 'warm-up' : `round ${round}`}`);
    for (const [side, ask] of Object.entries(asks)) {
      const latencies = await turn(ask, side);
      if (round === 0) continue;
      for (const { share, ms } of found) ms[side].push(percentile(latencies, share));
    }
  }
  for (const { share, ms } of found) report(`${what}, p${share * 100}`, ms);
}

async function compareHalf(lab: Lab, url: string, clients: number, seconds: number): Promise<void> {
  await using sides = await openSides(url);
  await comparePercentiles(lab, 'latest 100 rows, one client', sides, (ask) => oneClient(ask, seconds));
  for (const ask of Object.values(sides.asks)) await closedLoop(clients, seconds * 4, ask);
  const most = await closedLoop(clients, seconds * 8, sides.asks.tidemark);
  lab.fact(`answers a second to ${clients} clients, at most`, rounded(most, 0));
  const pace = { clients, rate: most / 2, seconds };
  await comparePercentiles(lab, `latest 100 rows, ${clients} clients at half of that`, sides, (ask) =>
    pacedLoop(pace, ask),
  );
}

async function oneClient(ask: Ask, seconds: number): Promise<number[]> {
  const latencies: number[] = [];
  await closedLoop(1, seconds, async () => {
    const startedAt = performance.now();
    await ask();
    latencies.push(performance.now() - startedAt);
  });
  return latencies;
}

/** Default limits, and more clients than slots and queue positions: the service refuses the others with a Retry-After. */
async function overload(lab: Lab, url: string, clients: number, seconds: number): Promise<void> {
  await using service = await startService(url);
  const answers = { served: 0, refused: 0, other: 0 };
  await closedLoop(clients, seconds, async () => {
    const response = await service.post(QUERY, LATEST);
    response.resume();
    await once(response, 'end');
    if (response.statusCode === 200) answers.served++;
    else if (response.statusCode === 503 && response.headers['retry-after']) {
      answers.refused++;
      await delay(RETRY_MS);
    } else answers.other++;
  });
  lab.fact(`${clients} clients, default limits`, JSON.stringify(answers));
}

async function compareBesideHuge(lab: Lab, seconds: number): Promise<void> {
  const { stack } = lab;
  await using sides = await openSides(stack.databaseUrl);
  const psql = () => psqlJson(stack, sameFields(DAY));
  const reader = () => startReader(sides.service);
  const what = `latest 100 rows, ${BESIDE.rate} a second beside ${READERS} readers of a day`;
  await comparePercentiles(lab, what, sides, async (ask, side) => {
    const readers = Array.from({ length: READERS }, () => readAgain(side === 'tidemark' ? reader : psql));
    try {
      return await pacedLoop({ ...BESIDE, seconds }, ask);
    } finally {
      await Promise.all(readers.map((stop) => stop()));
    }
  });
}

/** Starts a process, and another whenever it ends. @returns what stops it */
function readAgain(start: () => ChildProcess): () => Promise<void> {
  let isStopped = false;
  let child = start();
  const running = (async () => {
    for (;;) {
      const [code] = await once(child, 'exit');
      if (isStopped) return;
      if (code !== 0) throw new Error(`${child.spawnfile} ended with ${code}`);
      child = start();
    }
  })();
  running.catch(() => {});
  return async () => {
    isStopped = true;
    child.kill();
    await running;
  };
}

/**
 * Reads the day again and again. It is a process of its own, as psql is: a reader in the process of the small reads would delay their
 * answers, and the service would be blamed.
 */
const READER = `
const [url, key, body] = process.argv.slice(1);
const agent = new (require('node:http').Agent)({ keepAlive: true });
const read = () => {
  const headers = { 'X-API-Key': key, 'Content-Length': Buffer.byteLength(body) };
  require('node:http').request(url, { agent, method: 'POST', headers }, (response) => {
    if (response.statusCode !== 200) throw new Error('status ' + response.statusCode);
    response.resume().on('end', read);
  }).end(body);
};
read();`;

const startReader = ({ url }: Service): ChildProcess =>
  spawn(process.execPath, ['-e', READER, `${url}${QUERY}`, API_KEY, JSON.stringify(WHOLE_DAY)], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
