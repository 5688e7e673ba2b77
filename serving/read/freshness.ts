/** How old the newest proved row may be, and warnings that need no look at the rows. */
import type { Warning } from '../contract/problems.ts';
import { isoOf } from '../contract/time.ts';
import type { Window } from './types.ts';

export interface Freshness {
  readonly as_of_utc: string;
  readonly lag_seconds: number;
}

export function freshnessOf(asOfMs: number, nowMs: number): Freshness {
  return { as_of_utc: isoOf(asOfMs), lag_seconds: Math.max(0, Math.floor((nowMs - asOfMs) / 1000)) };
}

/** Only windows that reach past what is proved can be stale: a fixed window in the past is complete. */
export function staleWarning(freshness: Freshness, asOfMs: number, window: Window, maxAgeSeconds: number): Warning[] {
  const end = window.kind === 'range' ? window.toMs : undefined;
  if (end !== undefined && end <= asOfMs) return [];
  if (freshness.lag_seconds <= maxAgeSeconds) return [];
  return [
    {
      code: 'ALIGNED_FRESHNESS_STALE',
      message: `Aligned rows are proved through ${freshness.as_of_utc}, ${freshness.lag_seconds} s ago; at most ${maxAgeSeconds} s is fresh.`,
      details: { ...freshness, max_age_seconds: maxAgeSeconds },
    },
  ];
}

/** Windows that another moment, or another seed, would answer differently. Known before anything is read. */
export function mutableWindowWarning(window: Window): Warning[] {
  if (window.kind === 'latest') {
    return [
      {
        code: 'WINDOW_LATEST_ROWS_MUTABLE',
        message: 'The latest rows change as partitions are proved.',
        details: { [window.selector]: window.rows },
      },
    ];
  }
  if (window.kind === 'random') {
    return [
      {
        code: 'WINDOW_RANDOM_SAMPLE',
        message: 'The rows are a random sample; the same random_seed over the same proved rows gives it again.',
        details: { [window.selector]: window.rows, random_seed: window.seed },
      },
    ];
  }
  return [];
}
