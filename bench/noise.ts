/**
 * The noise of the machine, measured before and after a benchmark: the load of the last minute, how busy the cores are while this
 * process waits, and how much a fixed loop of the CPU and a write that waits for the disk vary. A figure of a noisy machine says
 * little.
 */
import { mkdir, open, rm } from 'node:fs/promises';
import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { median, rounded } from './measure.ts';

interface Spread {
  readonly median_ms: number;
  readonly min_ms: number;
  readonly max_ms: number;
}

export interface Noise {
  /** The load average of the last minute. After another benchmark it is that one's, so it does not tell whether others work. */
  readonly load: number;
  /** The share of all cores that others used in a second: 0 to 1. */
  readonly busy: number;
  readonly cpu: Spread;
  readonly fsync: Spread;
}

export interface NoiseOfRun {
  readonly before: Noise;
  readonly after: Noise;
}

const ROUNDS = 12;
/** About 15 ms of one core. */
const STEPS = 10_000_000;
/** Above these the machine is called noisy. */
const MAX_BUSY = 0.1;
const MAX_CPU_SPREAD = 0.1;

function fixedLoop(): number {
  let value = 1;
  for (let step = 0; step < STEPS; step++) value = (Math.imul(value, 1_103_515_245) + 12_345) | 0;
  return value;
}

async function busyShare(): Promise<number> {
  const ticks = () =>
    cpus().reduce(
      ({ idle, all }, { times }) => ({
        idle: idle + times.idle,
        all: all + times.user + times.nice + times.sys + times.irq + times.idle,
      }),
      { idle: 0, all: 0 },
    );
  const before = ticks();
  await delay(1000);
  const after = ticks();
  return rounded(1 - (after.idle - before.idle) / (after.all - before.all), 2);
}

async function spreadOf(work: () => unknown): Promise<Spread> {
  // The first rounds run before the loop is compiled.
  for (let round = 0; round < 3; round++) await work();
  const times: number[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const startedAt = performance.now();
    await work();
    times.push(performance.now() - startedAt);
  }
  const of = (value: number) => rounded(value, 2);
  return { median_ms: of(median(times)), min_ms: of(Math.min(...times)), max_ms: of(Math.max(...times)) };
}

export async function measureNoise(): Promise<Noise> {
  const load = rounded(loadavg()[0], 2);
  const busy = await busyShare();
  const cpu = await spreadOf(fixedLoop);
  const folder = fileURLToPath(new URL('../.tidemark', import.meta.url));
  await mkdir(folder, { recursive: true });
  const path = join(folder, `bench-noise-${process.pid}`);
  try {
    await using file = await open(path, 'w');
    const block = Buffer.alloc(4096, 1);
    const fsync = await spreadOf(async () => {
      await file.write(block, 0, block.length, 0);
      await file.datasync();
    });
    return { load, busy, cpu, fsync };
  } finally {
    await rm(path, { force: true });
  }
}

/** Why the machine was not quiet; undefined if it was. */
export function noiseFault({ before, after }: NoiseOfRun): string | undefined {
  if (before.busy > MAX_BUSY) return `others used ${Math.round(before.busy * 100)} % of the cores before`;
  const most = Math.max(before.cpu.max_ms, after.cpu.max_ms);
  const least = Math.min(before.cpu.min_ms, after.cpu.min_ms);
  const spread = (most - least) / least;
  return spread > MAX_CPU_SPREAD ? `a fixed loop varied by ${Math.round(spread * 100)} %` : undefined;
}

export function describeNoise(before: Noise, after: Noise): string {
  const fault = noiseFault({ before, after });
  const both = (of: (noise: Noise) => Spread) =>
    [before, after].map((noise) => `${of(noise).min_ms}..${of(noise).max_ms}`).join(' and ');
  return (
    `noise before and after: load ${before.load} and ${after.load}, busy ${before.busy} and ${after.busy}, fixed loop ${both(({ cpu }) => cpu)} ms, ` +
    `fsync ${both(({ fsync }) => fsync)} ms${fault ? `\nThe machine was not quiet: ${fault}. Do not quote these figures.` : ''}`
  );
}
