/** The last hour in samples, for plots: bounded, in memory, begun again with the process. */
import type { Overview } from '../../shared/status/overview.ts';
import type { SystemStatus } from './monitor.ts';

const KEPT_MS = 3_600_000;
/** Looks at the page add samples of their own; no more than this many are kept apart. */
const MIN_DISTANCE_MS = 10_000;

/** One number of one dataset over time; null where it was not known. */
export type Series = readonly (number | null)[];

/** What of a dataset is kept. */
const KEPT = {
  lag_frames: ({ log }) => log?.lag.frames ?? null,
  lag_events: ({ log }) => log?.lag.events ?? null,
  lag_event_time_seconds: ({ log }) => log?.lag.event_time_seconds ?? null,
  lag_oldest_seconds: ({ log }) => log?.lag.oldest_seconds ?? null,
  freshness_seconds: ({ proved_through_utc: through }, atMs) =>
    through === null ? null : Math.max(0, (atMs - Date.parse(through)) / 1000),
  rows: ({ rows }) => rows,
} as const satisfies Record<string, (overview: Overview, atMs: number) => number | null>;

export type KeptName = keyof typeof KEPT;

interface Sample {
  readonly atMs: number;
  /** By dataset. */
  readonly values: ReadonlyMap<string, Readonly<Record<KeptName, number | null>>>;
}

export class History {
  #samples: Sample[] = [];

  add({ atMs, standings }: Pick<SystemStatus, 'atMs' | 'standings'>): void {
    const last = this.#samples.at(-1);
    if (last && atMs - last.atMs < MIN_DISTANCE_MS) return;
    const values = new Map(standings.map(({ overview }) => [overview.dataset, valuesOf(overview, atMs)]));
    this.#samples = [...this.#samples.filter((sample) => atMs - sample.atMs <= KEPT_MS), { atMs, values }];
  }

  get atMs(): readonly number[] {
    return this.#samples.map((sample) => sample.atMs);
  }

  of(dataset: string): Readonly<Record<KeptName, Series>> {
    return eachKept((name) => this.#samples.map(({ values }) => values.get(dataset)?.[name] ?? null));
  }
}

export function eachKept<T>(of: (name: KeptName) => T): Record<KeptName, T> {
  const names = Object.keys(KEPT) as KeptName[];
  return Object.fromEntries(names.map((name): [string, T] => [name, of(name)])) as Record<KeptName, T>;
}

const valuesOf = (overview: Overview, atMs: number) => eachKept((name) => KEPT[name](overview, atMs));
