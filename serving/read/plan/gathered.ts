/**
 * Gathers the stretches of time that filters leave, so that one statement searches many of them. A rare filter leaves thousands, and to
 * parse and plan a statement for each takes longer than to search them.
 */
import type { Part } from '../read-model.ts';
import type { PlanContext } from './context.ts';

/** Rows of a stretch that pass are sorted before the next one is read. Longer ones, by the mean number of rows, are read alone. */
const LONG_ROWS = 50_000;
/** Stretches of one statement. */
const MAX_STRETCHES = 4096;

/** The parts with runs of short ones gathered. */
export function gatheredOf({ relation }: PlanContext, parts: readonly Part[], rowsPerMs: number): readonly Part[] {
  // The end of a row's validity is found from its part.
  if (relation.validity !== 'none' || parts.length < 2) return parts;
  return gathered(parts, LONG_ROWS / rowsPerMs);
}

/** The parts, ascending; runs of such that are no longer than this, and of one proved stretch, as one part each. Exported for its test. */
export function gathered(parts: readonly Part[], longestMs: number): Part[] {
  const found: Part[] = [];
  let run: Part[] = [];
  const close = () => {
    const last = run.at(-1);
    if (!last) return;
    const stretches = run.map(({ from, to }) => ({ from, to }));
    found.push(run.length === 1 ? last : { ...last, from: run[0].from, stretches });
    run = [];
  };
  for (const part of parts) {
    const isShort = part.to - part.from <= longestMs;
    if (!isShort || part.until !== run.at(-1)?.until || run.length === MAX_STRETCHES) close();
    if (isShort) run.push(part);
    else found.push(part);
  }
  close();
  return found;
}
