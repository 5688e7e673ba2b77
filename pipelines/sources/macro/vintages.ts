/**
 * Vintages: what each publication changed. The provider says each value with the days from and to which it was said;
 * a row is kept where the number first differs from the one before it. The text of an equal number may differ.
 */
import Big from 'big.js';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Observation } from './answers.ts';
import type { VintageSpan } from './api.ts';

/** A value as one publication first said it. */
export interface VintageRow {
  /** Observation date. */
  readonly date: string;
  readonly value: string;
}

export const MISSING = '.';

/**
 * Rows by vintage, ascending; observation dates ascend within one. Windows of vintages may be given one after another:
 * a value that a window repeats from the one before it is no change.
 * @param before what was said last before the observations given, by date; it is brought up to date.
 * @throws TidemarkError SOURCE_ROW_CONFLICT when two different values are said of one date on one day.
 */
export function vintagesOf(
  observations: readonly Observation[],
  before: Map<string, string>,
): Map<string, VintageRow[]> {
  const sorted = [...observations].sort((a, b) => compare(a.realtimeStart, b.realtimeStart) || compare(a.date, b.date));
  const vintages = new Map<string, VintageRow[]>();
  let last: Observation | undefined;
  for (const observation of sorted) {
    const { realtimeStart, date, value } = observation;
    if (last?.date === date && last.realtimeStart === realtimeStart && !sameValue(last.value, value)) {
      const said = `${last.value} and ${value}`;
      throw new TidemarkError(
        'SOURCE_ROW_CONFLICT',
        `Two values of ${date} are said from ${realtimeStart} on: ${said}`,
      );
    }
    last = observation;
    const previous = before.get(date);
    if (previous !== undefined && sameValue(previous, value)) continue;
    before.set(date, value);
    const rows = vintages.get(realtimeStart);
    if (rows) rows.push({ date, value });
    else vintages.set(realtimeStart, [{ date, value }]);
  }
  return vintages;
}

/**
 * What each vintage of a span changed, by itself: held against what was said on the vintage before the span, which the
 * answers about it begin with. One that changed no number has no rows.
 * @throws TidemarkError SOURCE_LAYOUT_UNKNOWN when a value is said from a day on that is none of them.
 */
export function vintagesIn(
  { before, vintages }: VintageSpan,
  observations: readonly Observation[],
): Map<string, readonly VintageRow[]> {
  const known = new Map<string, string>();
  const isBefore = ({ realtimeStart }: Observation) => before !== undefined && realtimeStart <= before;
  vintagesOf(observations.filter(isBefore), known);
  const said = observations.filter((observation) => !isBefore(observation));
  const dates = new Set(vintages);
  const stray = said.find(({ realtimeStart }) => !dates.has(realtimeStart));
  if (stray) {
    const what = `${stray.date} is said from ${stray.realtimeStart} on, which is no vintage that was asked for`;
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answers about observations: ${what}`);
  }
  const changed = vintagesOf(said, known);
  return new Map(vintages.map((vintage) => [vintage, changed.get(vintage) ?? []]));
}

/** As numbers: `4.69` and `4.6900000000` are one. No value is equal to no value only. */
export function sameValue(a: string, b: string): boolean {
  if (a === b) return true;
  if (a === MISSING || b === MISSING) return false;
  return new Big(a).eq(new Big(b));
}

const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);
