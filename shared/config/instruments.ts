/** The instruments that the settings name. */
import { TidemarkError } from '../errors.ts';
import { closestName } from '../nearest.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import type { Instrument } from '../registry/instruments.ts';
import type { DayInterval, OtherInstrument } from './settings/setting.ts';
import { type Settings, settingValue } from './settings.ts';

export type { DayInterval, OtherInstrument } from './settings/setting.ts';

/** The symbol of a dataset's default instrument; undefined for a dataset without instruments. */
export const defaultInstrument = (
  settings: Settings,
  { trades }: Partial<Pick<DatasetDefinition, 'trades'>>,
): string | undefined => trades && String(settingValue(settings, trades.instruments.symbol));

/**
 * The others of a dataset.
 * @throws TidemarkError CONFIGURATION_INVALID if the default is among them, which may be a pinned one
 */
export function otherInstrumentsOf(settings: Settings, { trades }: DatasetDefinition): readonly OtherInstrument[] {
  if (!trades) return [];
  const { symbol, also } = trades.instruments;
  const others = (settingValue(settings, also) ?? []) as readonly OtherInstrument[];
  if (others.some((one) => one.symbol === settingValue(settings, symbol))) {
    const named = settingValue(settings, symbol);
    throw new TidemarkError('CONFIGURATION_INVALID', `${also} names ${named}, the default of ${symbol}: leave it out`);
  }
  return others;
}

/** Whether a day lies in an interval; without intervals every day does. */
export const isWithin = (intervals: readonly DayInterval[], day: string): boolean =>
  intervals.length === 0 || intervals.some(({ from = day, to = day }) => from <= day && day <= to);

/** Whether the dataset has an instrument of that name. @param known others than those configured, which were proved before */
export const isInstrument = (
  settings: Settings,
  dataset: DatasetDefinition,
  name: string,
  known: readonly Instrument[] = [],
): boolean =>
  name === defaultInstrument(settings, dataset) ||
  known.includes(name as Instrument) ||
  otherInstrumentsOf(settings, dataset).some(({ symbol }) => symbol === name);

/**
 * What a caller or operator named: the symbol of another instrument, or undefined for the default.
 * @param known others than those configured, which were proved before
 * @throws TidemarkError USAGE with the nearest name
 */
export function otherNamed(
  settings: Settings,
  dataset: DatasetDefinition,
  name: string | undefined,
  known: readonly Instrument[] = [],
): Instrument | undefined {
  const byDefault = defaultInstrument(settings, dataset);
  if (name === undefined || name === byDefault) return undefined;
  if (byDefault === undefined) {
    throw new TidemarkError('USAGE', `${dataset.key} has no instruments, and ${JSON.stringify(name)} was named`);
  }
  const others = [...otherInstrumentsOf(settings, dataset).map(({ symbol }) => symbol), ...known];
  const found = others.find((symbol) => symbol === name);
  if (found !== undefined) return found;
  const nearest = closestName(name, [byDefault, ...others]);
  throw new TidemarkError(
    'USAGE',
    `${dataset.key} has no instrument ${JSON.stringify(name)}${nearest === undefined ? '' : `; did you mean ${nearest}?`}`,
    { remedy: `To have ${JSON.stringify(name)} read, add it to ${dataset.trades?.instruments.also}.` },
  );
}
