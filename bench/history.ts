/** The history of benchmarks: one JSON line a run, and what changed since the last run of the same sizes on the same machine. */
import { appendFile, mkdir, readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { rounded } from './measure.ts';
import type { NoiseOfRun } from './noise.ts';
import { BenchUsage } from './options.ts';

/** Without names: what the figures depend on. */
export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly memory_gib: number;
  readonly system: string;
}

export interface Entry {
  readonly bench: string;
  readonly arguments: string;
  readonly date: string;
  readonly commit: string;
  readonly seconds: number;
  readonly machine: Machine;
  readonly versions: Readonly<Record<string, string>>;
  readonly noise: NoiseOfRun;
  readonly result: unknown;
}

interface Ratio {
  /** The path of the figure in the result. */
  readonly name: string;
  readonly ratio: number;
  readonly least?: number;
  readonly most?: number;
}

export interface Comparison {
  readonly name: string;
  readonly now: number;
  readonly before: number;
  /** Of the ratio: -0.1 is a tenth less. */
  readonly change: number;
  /** Whether the rounds of both runs overlap; null where one of them states no spread. */
  readonly within_spread: boolean | null;
}

const IS_RATIO = /^(?:\w+_)?ratio(?:_\w+)?$|_over_/;
/** The bounds of a ratio, and a field of klines. */
const NO_RATIO = /_(?:min|max)$|^maker_ratio$/;

/** Every ratio of a result, with the spread of its rounds where the result has it. */
export function ratiosOf(result: unknown, path: readonly string[] = []): Ratio[] {
  if (typeof result !== 'object' || result === null) return [];
  return Object.entries(result).flatMap(([key, value]) => {
    const own = Array.isArray(result) && typeof value?.name === 'string' ? value.name : key;
    if (typeof value !== 'number') return ratiosOf(value, [...path, own]);
    if (!IS_RATIO.test(key) || NO_RATIO.test(key)) return [];
    const name = [...path, own].join('.');
    return [{ name, ratio: value, ...spreadOf(key, result as Readonly<Record<string, unknown>>) }];
  });
}

function spreadOf(key: string, result: Readonly<Record<string, unknown>>) {
  const [from, to] = [result[`${key}_min`], result[`${key}_max`]];
  if (typeof from === 'number' && typeof to === 'number') return { least: from, most: to };
  const spread = key === 'ratio' ? result.spread : undefined;
  const [least, most] = typeof spread === 'string' ? spread.split('..').map(Number) : [];
  return Number.isFinite(least) && Number.isFinite(most) ? { least, most } : {};
}

/** @throws BenchUsage when a line cannot be read as an entry. */
export async function readHistory(path: string): Promise<Entry[]> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
  return text.split('\n').flatMap((line, index) => {
    if (line.trim() === '') return [];
    try {
      return [JSON.parse(line) as Entry];
    } catch {
      throw new BenchUsage(
        `${path}:${index + 1} is not a line of a bench history: remove it, or choose another --history`,
      );
    }
  });
}

export async function appendEntry(path: string, entry: Entry): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  await appendFile(path, `${JSON.stringify(entry)}\n`);
}

/** The last run of the same benchmark with the same arguments on the same machine. */
export const lastLike = (history: readonly Entry[], { bench, arguments: sizes, machine }: Entry): Entry | undefined =>
  history.findLast(
    (other) =>
      other.bench === bench && other.arguments === sizes && JSON.stringify(other.machine) === JSON.stringify(machine),
  );

export function compare(now: Entry, before: Entry): Comparison[] {
  const earlier = new Map(ratiosOf(before.result).map((one) => [one.name, one]));
  return ratiosOf(now.result).flatMap(({ name, ratio, least, most }) => {
    const other = earlier.get(name);
    if (!other) return [];
    const isKnown = least !== undefined && most !== undefined && other.least !== undefined && other.most !== undefined;
    return {
      name,
      now: ratio,
      before: other.ratio,
      change: rounded(ratio / other.ratio - 1, 3),
      within_spread: isKnown ? least <= other.most! && other.least! <= most : null,
    };
  });
}

const VERDICTS = new Map([
  [true, 'within the spread'],
  [false, 'OUTSIDE the spread'],
  [null, 'without a spread'],
]);

export function linesOf(now: Entry, before: Entry | undefined): string[] {
  const title = `${now.bench} ${now.arguments}`.trim();
  const took = `${title}  (${now.seconds} s)`;
  if (!before) {
    const found = ratiosOf(now.result).map(({ name, ratio, least, most }) =>
      [`  ${name.padEnd(44)} ${ratio}`, least === undefined ? '' : `  (${least}..${most})`].join(''),
    );
    return [`${took}, nothing to compare with`, ...found];
  }
  const rows = compare(now, before).map(({ name, now: ratio, before: other, change, within_spread }) => {
    const changed = `${change > 0 ? '+' : ''}${(change * 100).toFixed(1)} %`;
    return `  ${name.padEnd(44)} now ${ratio}  before ${other}  ${changed}  ${VERDICTS.get(within_spread)}`;
  });
  return [`${took}, beside ${before.commit.slice(0, 9)} of ${before.date}`, ...rows];
}
