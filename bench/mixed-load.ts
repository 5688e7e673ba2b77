/**
 * Mixed load: small reads during large ones. Clients request the latest 100 rows at a fixed rate while two readers fetch
 * the whole day as JSON again and again. In alternating turns the same load goes to the database alone: two psql with
 * row_to_json, and the same small SQL through `pg`. In a third turn a bare server (bare-server.ts) answers the small reads beside the
 * two psql.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import pg from 'pg';
import type { Stack } from '../shared/stack/stack.ts';
import { startBareServer } from './bare-server.ts';
import type { Note } from './harness.ts';
import { type Ask, pacedLoop, percentile } from './load-loops.ts';
import { rounded } from './measure.ts';
import { discard, psqlJson, type RequestParts, SAME_FIELDS, startServer, WHOLE_DAY } from './query-subjects.ts';

const STREAMS = 2;
/** Clients of the small reads, and their requests a second. */
const CLIENTS = 8;
const RATE = 50;
const TURNS = 3;
const TURN_S = 4;

interface Side {
  readonly latencies: number[];
  readonly small: Ask;
  /** Large reads, one after the other, until they are stopped. @returns how many ended. */
  readonly large: (stop: AbortSignal) => Promise<number>;
  streamed: number;
}

interface Given {
  /** SQL of the small read. */
  readonly latest: string;
  /** Serving processes on the port. */
  readonly processes: number;
}

export type MixedLoad = Awaited<ReturnType<typeof measureMixedLoad>>;

export async function measureMixedLoad(stack: Stack, { latest, processes }: Given, note: Note) {
  await using server = await startServer(stack, { SVC_HTTP_PROCESSES: String(processes) });
  const pool = new pg.Pool({ connectionString: stack.databaseUrl });
  const ours: Side = {
    latencies: [],
    small: async () => {
      await discard(await server.post({ n_rows: 100 }));
    },
    large: (stop) => httpReads(server.requestOf(WHOLE_DAY), stop),
    streamed: 0,
  };
  const bare: Side = {
    latencies: [],
    small: async () => {
      await pool.query({ name: 'latest', text: latest, rowMode: 'array' });
    },
    large: (stop) => psqlReads(stack, stop),
    streamed: 0,
  };
  await using bareServer = await startBareServer({ databaseUrl: stack.databaseUrl, sql: latest, connections: CLIENTS });
  const http: Side = {
    latencies: [],
    small: async () => {
      const { status } = await bareServer.ask('/', {});
      if (status !== 200) throw new Error(`the bare server answered with ${status}`);
    },
    large: bare.large,
    streamed: 0,
  };
  try {
    for (let turn = -1; turn < TURNS; turn++) {
      for (const side of [ours, http, bare]) {
        await measureTurn(side);
        // The first turn is the warm-up.
        if (turn >= 0) continue;
        side.latencies.length = 0;
        side.streamed = 0;
      }
      note(`turn ${turn + 1} of ${TURNS}: small reads beside ${STREAMS} large ones`);
    }
  } finally {
    await pool.end();
  }
  const figures = ({ latencies, streamed }: Side) => ({
    requests: latencies.length,
    p50_ms: percentile(latencies, 0.5),
    p99_ms: percentile(latencies, 0.99),
    large_reads: streamed,
  });
  return {
    streams: STREAMS,
    processes,
    tidemark: figures(ours),
    bare_http: figures(http),
    bare: figures(bare),
    ratio_p50: rounded(percentile(ours.latencies, 0.5) / percentile(bare.latencies, 0.5)),
    ratio_p99: rounded(percentile(ours.latencies, 0.99) / percentile(bare.latencies, 0.99)),
  };
}

async function measureTurn(side: Side): Promise<void> {
  const stopping = new AbortController();
  const streams = Array.from({ length: STREAMS }, () => side.large(stopping.signal));
  const { latencies, errors } = await pacedLoop(side.small, CLIENTS, RATE, TURN_S);
  if (errors > 0) throw new Error(`${errors} small reads failed`);
  side.latencies.push(...latencies);
  stopping.abort();
  for (const ended of await Promise.all(streams)) side.streamed += ended;
}

/**
 * Reads the answer again and again, and writes a line for each that is complete. It is a process of its own, as psql is: a reader
 * in the process of the small reads would delay their answers, and the service would be blamed.
 */
const READER = `
const [url, key, body] = process.argv.slice(1);
const agent = new (require('node:http').Agent)({ keepAlive: true });
const read = () => {
  const headers = { 'X-API-Key': key, 'Content-Length': Buffer.byteLength(body) };
  require('node:http').request(url, { agent, method: 'POST', headers }, (response) => {
    if (response.statusCode !== 200) throw new Error('status ' + response.statusCode);
    response.resume().on('end', () => { console.log('ended'); read(); });
  }).end(body);
};
read();`;

async function httpReads({ url, key, body }: RequestParts, stop: AbortSignal): Promise<number> {
  const child = spawn(process.execPath, ['-e', READER, url, key, body], { stdio: ['ignore', 'pipe', 'inherit'] });
  let ended = 0;
  createInterface({ input: child.stdout }).on('line', () => ended++);
  await exited(child, stop);
  return ended;
}

async function psqlReads(stack: Stack, stop: AbortSignal): Promise<number> {
  for (let ended = 0; ; ended++) {
    await exited(psqlJson(stack, SAME_FIELDS, 'ignore'), stop);
    if (stop.aborted) return ended;
  }
}

async function exited(child: ChildProcess, stop: AbortSignal): Promise<void> {
  const kill = () => child.kill();
  stop.addEventListener('abort', kill);
  const [code] = await once(child, 'exit');
  stop.removeEventListener('abort', kill);
  if (code !== 0 && !stop.aborted) throw new Error(`${child.spawnfile} ended with ${code}`);
}

export const mixedLoadLines = ({
  streams,
  processes,
  tidemark,
  bare_http: http,
  bare,
  ratio_p50,
  ratio_p99,
}: MixedLoad): string[] => [
  `latest 100 rows, ${RATE} a second, beside ${streams} readers of all rows; serving processes: ${processes}`,
  `  tidemark over HTTP           p50 ${tidemark.p50_ms} ms  p99 ${tidemark.p99_ms} ms  large reads ended ${tidemark.large_reads}`,
  `  a bare server beside psql    p50 ${http.p50_ms} ms  p99 ${http.p99_ms} ms  large reads ended ${http.large_reads}`,
  `  pg beside psql row_to_json   p50 ${bare.p50_ms} ms  p99 ${bare.p99_ms} ms  large reads ended ${bare.large_reads}  ratio of p50 ${ratio_p50}, of p99 ${ratio_p99}`,
];
