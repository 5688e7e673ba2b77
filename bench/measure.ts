/** CPU time and memory of processes and their children, from /proc; and the median of several rounds. */
import { readdirSync, readFileSync } from 'node:fs';

const TICKS_PER_SECOND = 100;

interface ProcessTimes {
  readonly pid: number;
  readonly parent: number;
  /** CPU seconds of the process itself. */
  readonly own: number;
  /** CPU seconds of its ended children. */
  readonly ended: number;
}

function processTimes(pid: number): ProcessTimes | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    const seconds = (index: number) => Number(fields[index]) / TICKS_PER_SECOND;
    return { pid, parent: Number(fields[1]), own: seconds(11) + seconds(12), ended: seconds(13) + seconds(14) };
  } catch {
    return undefined;
  }
}

const everyProcess = (): ProcessTimes[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => processTimes(Number(name)) ?? []);

export const parentOf = (pid: number): number | undefined => processTimes(pid)?.parent;

/** The processes that a process started, by the kernel's lists of each of its threads; without them, by a pass over all processes. */
export function childrenOf(parent: number): number[] {
  try {
    return readdirSync(`/proc/${parent}/task`).flatMap((thread) =>
      readFileSync(`/proc/${parent}/task/${thread}/children`, 'latin1').split(' ').filter(Boolean).map(Number),
    );
  } catch {
    return everyProcess().flatMap((times) => (times.parent === parent ? times.pid : []));
  }
}

function tree(root: number): ProcessTimes[] {
  const found: ProcessTimes[] = [];
  for (const pids = [root]; pids.length > 0; ) {
    const times = processTimes(pids.pop()!);
    if (!times) continue;
    found.push(times);
    pids.push(...childrenOf(times.pid));
  }
  return found;
}

const secondsOf = (processes: readonly ProcessTimes[]): number =>
  processes.reduce((sum, times) => sum + times.own + times.ended, 0);

/** CPU seconds of a process and everything below it, ended children included. */
export const cpuSeconds = (root: number): number => secondsOf(tree(root));

/** A figure of a process's memory, in MiB. VmHWM is the peak of its resident memory so far. */
function statusMib(pid: number, name: 'VmHWM' | 'RssAnon'): number {
  try {
    const found = new RegExp(`${name}:\\s+(\\d+)`).exec(readFileSync(`/proc/${pid}/status`, 'latin1'));
    return Number(found?.[1] ?? 0) / 1024;
  } catch {
    return 0;
  }
}

/** Processes and everything below them. */
export const pidsBelow = (roots: readonly number[]): number[] => [
  ...new Set(roots.flatMap((root) => tree(root).map(({ pid }) => pid))),
];

/**
 * The anonymous memory of processes and everything below them, in MiB, by command. Shared buffers and files are not in it: they
 * grow to their size and stay.
 */
export function anonymousMib(roots: readonly number[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const pid of pidsBelow(roots)) {
    const name = commandOf(pid);
    if (name) sums[name] = (sums[name] ?? 0) + statusMib(pid, 'RssAnon');
  }
  return sums;
}

/**
 * Watches a process and its children until it is stopped: the peak memory by command, and the CPU time. It reads those processes
 * alone: two passes over the 110 processes of a machine, fifty times a second, took a tenth of a core from what was measured.
 */
export function watch(root: number, everyMs = 20): { stop(): { peakMib: Record<string, number>; cpu: number } } {
  const peaks: Record<string, number> = {};
  let cpu = 0;
  const sample = () => {
    const processes = tree(root);
    for (const { pid } of processes) {
      const name = commandOf(pid);
      if (name) peaks[name] = Math.max(peaks[name] ?? 0, statusMib(pid, 'VmHWM'));
    }
    cpu = Math.max(cpu, secondsOf(processes));
  };
  const timer = setInterval(sample, everyMs).unref();
  return {
    stop() {
      clearInterval(timer);
      sample();
      return { peakMib: Object.fromEntries(Object.entries(peaks).map(([name, mib]) => [name, Math.round(mib)])), cpu };
    },
  };
}

export function commandOf(pid: number): string | undefined {
  try {
    const words = readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0');
    // A backend of PostgreSQL names its client and statement in its title.
    if (words[0].startsWith('postgres: ')) return 'postgres backend';
    const script = words.find((word) => word.endsWith('.ts'));
    return (script ?? words[0]).split('/').slice(-2).join('/') || undefined;
  } catch {
    return undefined;
  }
}

export const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};

export const rounded = (value: number, digits = 2): number => Number(value.toFixed(digits));

/** The median of the rounds' ratios and their spread, as members of a result: for `ratio` also `ratio_min` and `ratio_max`. */
export const ratioMembers = <Name extends string>(name: Name, ratios: readonly number[], digits = 3) =>
  ({
    [name]: rounded(median(ratios), digits),
    [`${name}_min`]: rounded(Math.min(...ratios), digits),
    [`${name}_max`]: rounded(Math.max(...ratios), digits),
  }) as Record<Name | `${Name}_min` | `${Name}_max`, number>;

/** @returns seconds. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now();
  await work();
  return (performance.now() - startedAt) / 1000;
}

/** Times two sides in turn. Both end with what they measure; warm-ups and checks are the caller's. */
export async function alternating(
  first: () => Promise<unknown>,
  second: () => Promise<unknown>,
  rounds: number,
  digits = 3,
) {
  const times: [number, number][] = [];
  for (let round = 0; round < rounds; round++) times.push([(await timed(first)) * 1000, (await timed(second)) * 1000]);
  const ratios = times.map(([one, other]) => one / other);
  return {
    first_ms: rounded(median(times.map(([ms]) => ms)), 1),
    second_ms: rounded(median(times.map(([, ms]) => ms)), 1),
    ...ratioMembers('ratio', ratios, digits),
  };
}
