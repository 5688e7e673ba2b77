/**
 * Mixed load: small reads during large ones. Clients request the latest 100 rows at a fixed rate while two readers fetch
 * the whole day as JSON again and again. In alternating turns the same load goes to the database alone: two psql with
 * row_to_json, and the same small SQL through `pg`.
 */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import pg from 'pg';
import type { Stack } from '../shared/stack/stack.ts';
import type { Note } from './harness.ts';
import { type Ask, pacedLoop, percentile } from './load-loops.ts';
import { rounded } from './measure.ts';
import { discard, psqlJson, SAME_FIELDS, startServer, WHOLE_DAY } from './query-subjects.ts';

const STREAMS = 2;
/** Clients of the small reads, and their requests a second. */
const CLIENTS = 8;
const RATE = 50;
const TURNS = 3;
const TURN_S = 4;

interface Side {
  readonly latencies: number[];
  readonly small: Ask;
  /** One large read, to its end or until it is stopped. */
  readonly large: (stop: AbortSignal) => Promise<void>;
  streamed: number;
}

export type MixedLoad = Awaited<ReturnType<typeof measureMixedLoad>>;

export async function measureMixedLoad(stack: Stack, latest: string, note: Note) {
  await using server = await startServer(stack);
  const pool = new pg.Pool({ connectionString: stack.databaseUrl });
  const ours: Side = {
    latencies: [],
    small: async () => {
      await discard(await server.post({ n_rows: 100 }));
    },
    large: async (stop) => await taken(await server.post(WHOLE_DAY), stop),
    streamed: 0,
  };
  const bare: Side = {
    latencies: [],
    small: async () => {
      await pool.query({ name: 'latest', text: latest, rowMode: 'array' });
    },
    large: async (stop) => await exited(psqlJson(stack, SAME_FIELDS, 'ignore'), stop),
    streamed: 0,
  };
  try {
    for (let turn = -1; turn < TURNS; turn++) {
      for (const side of [ours, bare]) {
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
    tidemark: figures(ours),
    bare: figures(bare),
    ratio_p50: rounded(percentile(ours.latencies, 0.5) / percentile(bare.latencies, 0.5)),
    ratio_p99: rounded(percentile(ours.latencies, 0.99) / percentile(bare.latencies, 0.99)),
  };
}

async function measureTurn(side: Side): Promise<void> {
  const stopping = new AbortController();
  const streams = Array.from({ length: STREAMS }, async () => {
    while (!stopping.signal.aborted) {
      await side.large(stopping.signal);
      if (!stopping.signal.aborted) side.streamed++;
    }
  });
  const { latencies, errors } = await pacedLoop(side.small, CLIENTS, RATE, TURN_S);
  if (errors > 0) throw new Error(`${errors} small reads failed`);
  side.latencies.push(...latencies);
  stopping.abort();
  await Promise.all(streams);
}

async function taken(response: IncomingMessage, stop: AbortSignal): Promise<void> {
  if (stop.aborted) response.destroy();
  stop.addEventListener('abort', () => response.destroy());
  await discard(response).catch((error: unknown) => {
    if (!stop.aborted) throw error;
  });
}

async function exited(child: ChildProcess, stop: AbortSignal): Promise<void> {
  stop.addEventListener('abort', () => child.kill());
  const [code] = await once(child, 'exit');
  if (code !== 0 && !stop.aborted) throw new Error(`${child.spawnfile} ended with ${code}`);
}

export const mixedLoadLines = ({ streams, tidemark, bare, ratio_p50, ratio_p99 }: MixedLoad): string[] => [
  `latest 100 rows, ${RATE} a second, beside ${streams} readers of all rows`,
  `  tidemark over HTTP           p50 ${tidemark.p50_ms} ms  p99 ${tidemark.p99_ms} ms  large reads ended ${tidemark.large_reads}`,
  `  pg beside psql row_to_json   p50 ${bare.p50_ms} ms  p99 ${bare.p99_ms} ms  large reads ended ${bare.large_reads}  ratio of p50 ${ratio_p50}, of p99 ${ratio_p99}`,
];
