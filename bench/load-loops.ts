/** Loops of requests from many clients, as fast as they are answered or at a fixed rate, and percentiles of their times. */
import { setTimeout as delay } from 'node:timers/promises';
import { rounded } from './measure.ts';

/** One request, to the last byte of its answer. */
export type Ask = () => Promise<void>;

export interface Measured {
  readonly latencies: number[];
  readonly errors: number;
  /** Answers a second. */
  readonly rate: number;
}

/** Each client sends its next request as soon as it has an answer. */
export async function closedLoop(ask: Ask, clients: number, seconds: number): Promise<Measured> {
  const latencies: number[] = [];
  await loop(clients, seconds, async () => {
    latencies.push(await timedMs(ask));
  });
  return { latencies, errors: 0, rate: latencies.length / seconds };
}

/** Clients send requests at fixed times, whether or not the one before is answered; latencies count from the due times. */
export async function pacedLoop(ask: Ask, clients: number, rate: number, seconds: number): Promise<Measured> {
  const latencies: number[] = [];
  let errors = 0;
  const startedAt = performance.now();
  const intervalMs = (clients * 1000) / rate;
  const client = async (number: number) => {
    for (let due = startedAt + (number * intervalMs) / clients; due < startedAt + seconds * 1000; due += intervalMs) {
      const wait = due - performance.now();
      if (wait > 0) await delay(wait);
      // A timer may fire up to a millisecond early; the latency of a request that is sent early counts from its sending.
      const from = Math.min(due, performance.now());
      await ask().then(
        () => latencies.push(performance.now() - from),
        () => errors++,
      );
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, number) => client(number)));
  return { latencies, errors, rate: (latencies.length * 1000) / (performance.now() - startedAt) };
}

export async function loop(clients: number, seconds: number, work: () => Promise<void>): Promise<void> {
  const end = performance.now() + seconds * 1000;
  const client = async () => {
    while (performance.now() < end) await work();
  };
  await Promise.all(Array.from({ length: clients }, client));
}

export async function timedMs(work: Ask): Promise<number> {
  const startedAt = performance.now();
  await work();
  return performance.now() - startedAt;
}

/** The value below which a share of the values lies; 0.5 gives the median. */
export const percentile = (values: readonly number[], share: number): number =>
  rounded(
    values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))] ?? Number.NaN,
    3,
  );
