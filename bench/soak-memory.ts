/**
 * Memory of the soak: the anonymous memory of every kind of process each second, and what the product's processes still use after a
 * collection, at a fifth, at half and at the end of the run.
 */
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { ROOT } from './harness.ts';
import { anonymousMib, commandOf, pidsBelow, rounded } from './measure.ts';

/** When memory is looked at, as shares of the run: of 15 minutes at 3, 8 and 15. */
export const LOOKS = [0.2, 8 / 15, 1] as const;
/** A look takes the least of so many collections, because requests that are under way use memory too. */
const COLLECTIONS = 3;
const COLLECTIONS_APART_MS = 1000;
const COLLECTION_MS = 5000;

/**
 * What is used after a collection may grow by so much from the first look to the last, in runs from three minutes on: before that
 * code is still compiled. A leak of 1 KiB a request is 60 MiB in the twelve minutes between them.
 */
const LIVE_GROWTH_MIB = 12;
const LIVE_JUDGED_S = 180;
/**
 * Anonymous memory is flat where the last third's mean is at most this much above that of the second third, in runs from ten minutes
 * on: V8 doubles its young generation to 128 MiB in steps, the last of which came after five minutes.
 */
const GROWTH_SHARE = 1.1;
const GROWTH_MIB = 24;
const ANONYMOUS_JUDGED_S = 600;

export interface MemoryOfKind {
  /** Mean anonymous memory of each third of the run. */
  readonly thirds_mib: readonly number[];
  /** At the looks. */
  readonly anonymous_mib: readonly number[];
  /** After a collection, at the looks; of the processes that are Tidemark's own. */
  readonly live_mib?: readonly number[];
  readonly is_flat: boolean;
}

/** Whether a process neither keeps more and more, nor grows beyond what its work needs, as far as a run of `seconds` can show it. */
export function isFlat(
  { thirds_mib, live_mib = [] }: Pick<MemoryOfKind, 'thirds_mib' | 'live_mib'>,
  seconds: number,
): boolean {
  const [, second, third] = thirds_mib;
  const keepsMore = live_mib.length > 1 && live_mib.at(-1)! > live_mib[0] + LIVE_GROWTH_MIB;
  const grows = third > second * GROWTH_SHARE + GROWTH_MIB;
  return !(keepsMore && seconds >= LIVE_JUDGED_S) && !(grows && seconds >= ANONYMOUS_JUDGED_S);
}

export class SoakMemory {
  readonly #folder: string;
  readonly #samples = new Map<string, number[]>();
  readonly #looks = new Map<string, { readonly anonymous: number[]; readonly live: number[] }>();

  private constructor(folder: string) {
    this.#folder = folder;
  }

  static async in(directory: string): Promise<SoakMemory> {
    const folder = join(directory, 'live-memory');
    await mkdir(folder, { recursive: true });
    return new SoakMemory(folder);
  }

  /** Environment of the processes whose live memory is wanted. */
  get environment(): Record<string, string> {
    const preload = pathToFileURL(join(ROOT, 'bench/live-memory.ts')).href;
    return {
      TIDEMARK_LIVE_MEMORY: this.#folder,
      NODE_OPTIONS: `${process.env.NODE_OPTIONS ?? ''} --import ${preload}`,
    };
  }

  /** Takes the anonymous memory of processes and everything below them. */
  sample(roots: readonly number[]): void {
    for (const [name, mib] of Object.entries(anonymousMib(roots))) {
      this.#samples.set(name, [...(this.#samples.get(name) ?? []), mib]);
    }
  }

  async look(roots: readonly number[]): Promise<void> {
    const anonymous = anonymousMib(roots);
    const live = await this.#leastLive(roots);
    for (const [name, mib] of Object.entries(anonymous)) {
      const looks = this.#looks.get(name) ?? { anonymous: [], live: [] };
      this.#looks.set(name, looks);
      looks.anonymous.push(rounded(mib, 1));
      if (live[name] !== undefined) looks.live.push(rounded(live[name], 1));
    }
  }

  async #leastLive(roots: readonly number[]): Promise<Record<string, number>> {
    const least: Record<string, number> = {};
    for (let collection = 0; collection < COLLECTIONS; collection++) {
      if (collection > 0) await delay(COLLECTIONS_APART_MS);
      for (const [name, mib] of Object.entries(await this.#live(roots))) {
        least[name] = Math.min(least[name] ?? mib, mib);
      }
    }
    return least;
  }

  /** MiB that each kind of process uses after a collection. */
  async #live(roots: readonly number[]): Promise<Record<string, number>> {
    const sums: Record<string, number> = {};
    const willing = new Set(await readdir(this.#folder));
    for (const pid of pidsBelow(roots)) {
      const name = commandOf(pid);
      if (!willing.has(String(pid)) || !name?.endsWith('.ts')) continue;
      const bytes = await this.#collected(pid);
      if (bytes > 0) sums[name] = (sums[name] ?? 0) + bytes / 1024 / 1024;
    }
    return sums;
  }

  /** Lets a process collect. @returns the bytes that it uses; 0 where it ended or did not answer in time */
  async #collected(pid: number): Promise<number> {
    const file = join(this.#folder, String(pid));
    await writeFile(file, '');
    try {
      process.kill(pid, 'SIGUSR2');
    } catch {
      return 0;
    }
    for (const until = performance.now() + COLLECTION_MS; performance.now() < until; await delay(20)) {
      const written = await readFile(file, 'utf8');
      if (written !== '') return Number(written);
    }
    return 0;
  }

  figures(seconds: number): Record<string, MemoryOfKind> {
    const mean = (values: readonly number[]) =>
      rounded(values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length), 1);
    const found: Record<string, MemoryOfKind> = {};
    for (const [name, values] of this.#samples) {
      const third = Math.ceil(values.length / 3);
      const thirds_mib = [0, 1, 2].map((at) => mean(values.slice(at * third, (at + 1) * third)));
      const { anonymous: anonymous_mib, live } = this.#looks.get(name) ?? { anonymous: [], live: [] };
      const live_mib = live.length > 0 ? live : undefined;
      found[name] = { thirds_mib, anonymous_mib, live_mib, is_flat: isFlat({ thirds_mib, live_mib }, seconds) };
    }
    return found;
  }
}
