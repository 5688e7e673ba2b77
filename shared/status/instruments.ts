/** When an exchange listed an instrument, as far as anybody says. */
import { type DayInterval, isWithin, otherInstrumentsOf } from '../config/instruments.ts';
import type { Settings } from '../config/settings.ts';
import type { Range } from '../ranges.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { dayKeyOf, windowOf } from '../registry/keys.ts';

/** What the operator says of it; undefined: nothing, or the settings do not name it. */
export function statedIntervals(settings: Settings, dataset: DatasetDefinition): readonly DayInterval[] | undefined {
  const { base, instrument } = dataset;
  if (!base) return undefined;
  const intervals = otherInstrumentsOf(settings, base).find(({ symbol }) => symbol === instrument)?.intervals;
  return intervals && intervals.length > 0 ? intervals : undefined;
}

/** The same as ranges of time. */
export function listedRanges(settings: Settings, dataset: DatasetDefinition): Range[] | undefined {
  const edge = (day: string | undefined, which: 'fromMs' | 'toMs', without: number) =>
    day === undefined ? without : windowOf(dataset, dayKeyOf(dataset, day))[which];
  return statedIntervals(settings, dataset)?.map(({ from, to }) => ({
    from: edge(from, 'fromMs', Number.NEGATIVE_INFINITY),
    to: edge(to, 'toMs', Number.POSITIVE_INFINITY),
  }));
}

/**
 * When it was listed: a start is what the operator says or else the first proved day, an end what the operator says. A day that
 * the exchange does not have says nothing.
 */
export function intervalsOf(
  stated: readonly DayInterval[] | undefined,
  firstProved: string | undefined,
): { readonly from: string | null; readonly to: string | null }[] {
  if (!stated) return firstProved === undefined ? [] : [{ from: firstProved, to: null }];
  return stated.map(({ from, to }) => {
    const isOf = firstProved !== undefined && isWithin([{ from, to }], firstProved);
    return { from: from ?? (isOf ? firstProved : null), to: to ?? null };
  });
}
