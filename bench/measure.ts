/** Times, their spread over rounds, loops of requests; CPU time and memory of processes and their children, from /proc. */
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';

/** One side of a comparison. @returns milliseconds */
export type Side = (round: number) => Promise<number>;

export interface Spread {
  readonly min: number;
  readonly median: number;
  readonly max: number;
}

export const rounded = (value: number, digits = 2): number => Number(value.toFixed(digits));

/** The value below which a share of the values lies. */
export const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))] ?? Number.NaN;

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export const spreadOf = (values: readonly number[]): Spread => ({
  min: rounded(Math.min(...values), 3),
  median: rounded(median(values), 3),
  max: rounded(Math.max(...values), 3),
});

/** Times work from its start to its end. `before` is outside the time. */
export const timed =
  (work: (round: number) => Promise<unknown>, before?: () => Promise<unknown>): Side =>
  async (round) => {
    await before?.();
    const startedAt = performance.now();
    await work(round);
    return performance.now() - startedAt;
  };

/** Times one small request again and again. A round has the median of its times. */
export const timedEach = (requests: number, ask: () => Promise<unknown>): Side => {
  const once = timed(ask);
  return async (round) => {
    const times: number[] = [];
    for (let at = 0; at < requests; at++) times.push(await once(round));
    return median(times);
  };
};

/** One request, to the last byte of its answer. */
export type Ask = () => Promise<unknown>;

/** Clients of which each sends its next request as soon as it has an answer. @returns answers a second */
export async function closedLoop(clients: number, seconds: number, ask: Ask): Promise<number> {
  const end = performance.now() + seconds * 1000;
  let answers = 0;
  const client = async () => {
    for (; performance.now() < end; answers++) await ask();
  };
  await Promise.all(Array.from({ length: clients }, client));
  return answers / seconds;
}

interface Pace {
  readonly clients: number;
  /** Requests a second of all clients. */
  readonly rate: number;
  readonly seconds: number;
}

/**
 * Clients send requests at fixed times, whether or not the one before is answered. An error ends the loop.
 * @returns milliseconds from when each request was due
 */
export async function pacedLoop({ clients, rate, seconds }: Pace, ask: Ask): Promise<number[]> {
  const latencies: number[] = [];
  const startedAt = performance.now();
  const intervalMs = (clients * 1000) / rate;
  const client = async (number: number) => {
    for (let due = startedAt + (number * intervalMs) / clients; due < startedAt + seconds * 1000; due += intervalMs) {
      const wait = due - performance.now();
      if (wait > 0) await delay(wait);
      // A timer may fire up to a millisecond early; the latency of a request that is sent early counts from its sending.
      const from = Math.min(due, performance.now());
      await ask();
      latencies.push(performance.now() - from);
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, number) => client(number)));
  return latencies;
}

const TICKS_PER_SECOND = 100;

/** The processes that a process started, by the kernel's lists of each of its threads. */
export function childrenOf(parent: number): number[] {
  try {
    return readdirSync(`/proc/${parent}/task`).flatMap((thread) =>
      readFileSync(`/proc/${parent}/task/${thread}/children`, 'latin1').split(' ').filter(Boolean).map(Number),
    );
  } catch {
    return [];
  }
}

const tree = (root: number): number[] => [root, ...childrenOf(root).flatMap(tree)];

function fileOf(pid: number, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'latin1');
  } catch {
    return '';
  }
}

/** CPU seconds of a process and everything below it, ended children included. */
export function cpuSeconds(root: number): number {
  let ticks = 0;
  for (const pid of tree(root)) {
    const stat = fileOf(pid, 'stat');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    for (const field of fields.slice(11, 15)) ticks += Number(field);
  }
  return ticks / TICKS_PER_SECOND;
}

/** Resident memory in MiB: now, or its peak so far. */
export const residentMib = (pid: number, which: 'VmRSS' | 'VmHWM' = 'VmRSS'): number =>
  Math.round(Number(new RegExp(`${which}:\\s+(\\d+)`).exec(fileOf(pid, 'status'))?.[1] ?? 0) / 1024);

/** Watches a process and everything below it until it is stopped: CPU seconds, and the peak memory in MiB by program. */
export function watch(root: number): { stop(): { readonly cpu: number; readonly peakMib: Record<string, number> } } {
  const peakMib: Record<string, number> = {};
  let cpu = 0;
  const sample = () => {
    for (const pid of tree(root)) {
      const words = fileOf(pid, 'cmdline').split('\0');
      const name = (words.find((word) => word.endsWith('.ts')) ?? words[0]).split('/').slice(-2).join('/');
      if (name) peakMib[name] = Math.max(peakMib[name] ?? 0, residentMib(pid, 'VmHWM'));
    }
    cpu = Math.max(cpu, cpuSeconds(root));
  };
  const timer = setInterval(sample, 20).unref();
  return {
    stop() {
      clearInterval(timer);
      sample();
      return { cpu, peakMib };
    },
  };
}
