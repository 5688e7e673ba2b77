/** States of a frame that are older than twice what lies between two of their kind. Nothing here reads a store. */
import { DAY_MS, dayKey, isoOf, marketDaysSince, nextMarketDay } from '../../../shared/dates.ts';
import type { Cadence, DatasetDefinition } from '../../../shared/registry/definition.ts';
import type { Warning } from '../../contract/problems.ts';

/** How often the next state of a series comes. */
export type StateCadence = { readonly every: 'market_day' } | { readonly everyMs: number };

/** @param sourceId of the series, where the dataset has several. @returns undefined where the next comes at no certain time */
export function cadenceOf(
  { cadence }: DatasetDefinition,
  sourceId: string | undefined,
  intervalSeconds: (setting: string) => number | undefined,
): StateCadence | undefined {
  const own: Cadence | undefined =
    cadence && 'bySource' in cadence ? cadence.bySource[sourceId ?? ''] : (cadence as Cadence | undefined);
  if (own === undefined || !('everySecondsOf' in own)) return own;
  const everyMs = 1000 * (intervalSeconds(own.everySecondsOf) ?? 0);
  return everyMs > 0 ? { everyMs } : undefined;
}

/** A state, and the buckets that show it: those that end after `shownFrom` and not after `shownTo`. */
export interface ShownState {
  readonly ms: number;
  /** When it became known: a state that is published late is followed by one that is. */
  readonly knownMs: number;
  readonly shownFrom: number;
  readonly shownTo: number;
}

/** The frame's buckets: they end at multiples of the grid, and the last of them at `lastEnd`. */
export interface Buckets {
  readonly gridMs: number;
  readonly firstEnd: number;
  readonly lastEnd: number;
}

/**
 * When the state is older than twice its cadence. What it took to become known counts for one cadence at most: what was filled in
 * years later would never be stale. A bucket that is longer than the cadence is judged by its start, for it should hold a newer one.
 */
export function staleAfter({ ms, knownMs }: ShownState, cadence: StateCadence, gridMs: number): number {
  if ('everyMs' in cadence) {
    const { everyMs } = cadence;
    const late = Math.min(everyMs, Math.max(0, knownMs - ms));
    return ms + 2 * everyMs + late + (gridMs > everyMs ? gridMs : 0);
  }
  const day = dayKey(ms);
  const days = 2 + Math.min(1, marketDaysSince(day, dayKey(Math.max(ms, knownMs))));
  let after = nextMarketDay(day);
  for (let count = 0; count < days; count++) after = nextMarketDay(after);
  return Date.parse(after) + (gridMs > DAY_MS ? gridMs : 0);
}

/** The buckets that show a stale state, and the oldest state with the end of the last of its buckets. */
export class StaleStates {
  count = 0;
  #oldest: { readonly ms: number; readonly endMs: number } | undefined;
  readonly #cadence: StateCadence;
  readonly #buckets: Buckets;

  constructor(cadence: StateCadence, buckets: Buckets) {
    this.#cadence = cadence;
    this.#buckets = buckets;
  }

  add(state: ShownState): void {
    const { gridMs, firstEnd, lastEnd } = this.#buckets;
    const from = Math.max(state.shownFrom, staleAfter(state, this.#cadence, gridMs), firstEnd - 1);
    const to = Math.min(state.shownTo, lastEnd);
    if (to <= from) return;
    // Ends at multiples of the grid in (from, to], and the frame's last one if it is cut.
    const multiples = Math.floor(to / gridMs) - Math.floor(from / gridMs);
    const isCut = lastEnd % gridMs !== 0 && to === lastEnd;
    const count = multiples + (isCut ? 1 : 0);
    if (count === 0) return;
    this.count += count;
    const endMs = isCut ? lastEnd : Math.floor(to / gridMs) * gridMs;
    const oldest = this.#oldest;
    if (!oldest || endMs - state.ms > oldest.endMs - oldest.ms) this.#oldest = { ms: state.ms, endMs };
  }

  warning(): Warning | undefined {
    if (!this.#oldest) return undefined;
    const { ms, endMs } = this.#oldest;
    const every = 'everyMs' in this.#cadence ? durationText(this.#cadence.everyMs) : 'market day';
    return {
      code: 'STATE_STALE',
      message: `${this.count} ${this.count === 1 ? 'bucket holds a state' : 'buckets hold states'} older than twice the ${every} after which the next is expected; the oldest is of ${isoOf(ms)}, ${durationText(endMs - ms)} before its bucket's end. A max_age of the column leaves older ones out.`,
      details: {
        buckets: this.count,
        cadence: 'everyMs' in this.#cadence ? `${this.#cadence.everyMs / 1000} s` : 'market day',
        oldest_state_utc: isoOf(ms),
        oldest_bucket_end_utc: isoOf(endMs),
        oldest_age_seconds: Math.floor((endMs - ms) / 1000),
      },
    };
  }
}

const UNITS = [
  ['days', DAY_MS],
  ['hours', 3_600_000],
  ['minutes', 60_000],
] as const;

/** `13.1 days`, in the largest unit of which there are two. */
function durationText(ms: number): string {
  const [name, size] = UNITS.find((unit) => ms >= 2 * unit[1]) ?? ['seconds', 1000];
  return `${Number((ms / size).toFixed(1))} ${name}`;
}
