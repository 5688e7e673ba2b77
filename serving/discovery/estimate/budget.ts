/** Whether a read is likely to find its next row within the time it is given. */

import type { TimeBudget } from '../../read/guard.ts';
import type { Window } from '../../read/types.ts';

/**
 * Rows a read goes through in a second where they are in memory: one backend in the order of the index, 4.6 M trades and
 * 3.8 M one-second rows measured. From a disk it is fewer.
 */
const ROWS_PER_SECOND = 4_000_000;

export interface BudgetVerdict {
  readonly budgetMs: number;
  /** To go through all rows the filters are held against. */
  readonly scanMs: number;
  /** Until a row is found, as far as is known. */
  readonly firstRowMs: number;
  readonly exceeds: boolean;
}

/** @param passing rows that pass the filters, of `searched` that are gone through. */
export function judgeBudget(
  window: Window,
  {
    searched,
    passing,
    isFiltered,
  }: { readonly searched: number; readonly passing: number; readonly isFiltered: boolean },
  { firstRowMs: first, nextRowMs: next }: TimeBudget,
): BudgetVerdict {
  const budgetMs = window.kind === 'history' || window.kind === 'range' ? Math.min(first, next) : first;
  const ms = (rows: number) => Math.round((rows / ROWS_PER_SECOND) * 1000);
  const firstRowMs = isFiltered ? ms(rowsBeforeFirst(window, searched, passing)) : 0;
  return { budgetMs, scanMs: isFiltered ? ms(searched) : 0, firstRowMs, exceeds: firstRowMs > budgetMs };
}

/** Rows gone through before one is shown. */
function rowsBeforeFirst(window: Window, searched: number, passing: number): number {
  switch (window.kind) {
    // All n are found, from the newest back, before the first of them is shown.
    case 'latest':
      return passing < window.rows ? searched : (searched * window.rows) / passing;
    // Counted by classes of their hash, looked at in one class, then read: three times over.
    case 'random':
      return 2 * searched + searched / (Math.min(window.rows, passing) + 1);
    default:
      return searched / (passing + 1);
  }
}
