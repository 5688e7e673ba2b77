/** The instruments that a command's `--instrument` names. */
import { isInstrument, otherInstrumentsOf, otherNamed } from '../../shared/config/instruments.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { hasInstruments } from '../../shared/registry/instruments.ts';
import { dayKeyOf, instrumentOfKey } from '../../shared/registry/keys.ts';
import { ALL_INSTRUMENTS } from '../sources/trades/instruments.ts';
import type { Context } from './context.ts';
import { settingsFor } from './pinned.ts';

/**
 * The definitions that a command is about: of each dataset the default, or the instruments that were named. The key of a
 * partition names its instrument by itself.
 * @param options.wherever Only those that have the instrument, of which there must be one: the caller named no dataset.
 * @throws TidemarkError USAGE for an instrument that is neither configured nor known
 */
export async function namedInstruments(
  context: Pick<Context, 'pool' | 'settings' | 'given' | 'catalog'>,
  datasets: readonly DatasetDefinition[],
  {
    instrument,
    partition,
    wherever = false,
  }: { readonly instrument?: string; readonly partition?: string; readonly wherever?: boolean },
): Promise<DatasetDefinition[]> {
  const withThem = datasets.filter(hasInstruments);
  const ofKey = partition !== undefined && withThem.length > 0 ? instrumentOfKey(partition) : undefined;
  const text = instrument ?? ofKey;
  if (text === undefined) return [...datasets];
  if (instrument !== undefined && ofKey !== undefined && instrument !== ofKey) {
    throw new TidemarkError('USAGE', `${partition} is not of ${instrument}: leave one of them out`);
  }
  const known = await context.catalog.instruments(withThem);
  const ofDataset = (dataset: DatasetDefinition) => known.filter(({ base }) => base === dataset);
  if (text === ALL_INSTRUMENTS) return datasets.flatMap((dataset) => [dataset, ...ofDataset(dataset)]);
  const without = datasets.find((dataset) => !hasInstruments(dataset));
  if (without && !wherever)
    throw new TidemarkError('USAGE', `${without.key} has no instruments: leave --instrument out`);
  const settings = await settingsFor(context, [{ datasets }]);
  const symbolsOf = (dataset: DatasetDefinition) => ofDataset(dataset).flatMap((one) => one.instrument ?? []);
  const found: DatasetDefinition[] = [];
  for (const name of new Set(text.split(','))) {
    const having = withThem.filter((dataset) => isInstrument(settings, dataset, name, symbolsOf(dataset)));
    for (const dataset of wherever && having.length > 0 ? having : withThem) {
      const symbol = otherNamed(settings, dataset, name, symbolsOf(dataset));
      const other = symbol && ofDataset(dataset).find((one) => one.instrument === symbol);
      // One that is configured and was never read has no number, and nothing is stored of it.
      if (symbol === undefined) found.push(dataset);
      else if (other) found.push(other);
    }
  }
  return found;
}

/** Every instrument of the datasets that has a number, and the defaults. */
export const allInstruments = async (
  { catalog }: Pick<Context, 'catalog'>,
  datasets: readonly DatasetDefinition[],
): Promise<DatasetDefinition[]> => [...datasets, ...(await catalog.instruments(datasets))];

/** The key of a partition as it was typed: of an instrument that was named, the day suffices. */
export const typedKey = (dataset: DatasetDefinition, key: string): string =>
  dataset.instrument !== undefined && instrumentOfKey(key) === undefined ? dayKeyOf(dataset, key) : key;

/** How a line for people names the dataset. */
export const nameOf = ({ key, instrument }: DatasetDefinition): string =>
  instrument === undefined ? key : `${key} ${instrument}`;

/** Whether the settings name it. */
export const isConfigured = (context: Pick<Context, 'settings'>, dataset: DatasetDefinition): boolean =>
  dataset.base === undefined ||
  otherInstrumentsOf(context.settings, dataset.base).some(({ symbol }) => symbol === dataset.instrument);
