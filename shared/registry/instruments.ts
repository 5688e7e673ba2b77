/**
 * Instruments: an exchange's archive holds many symbols. One of them is the default, of which the dataset's own definition
 * speaks. Each other one is a definition derived from it, with a number, storage and partitions of its own; everything that
 * selects by the number of a dataset is then of that instrument alone.
 */
import { DAY_MS } from '../dates.ts';
import { assert } from '../errors.ts';
import type { Instrument } from '../instrument-names.ts';
import type { DatasetDefinition } from './definition.ts';

export { type Instrument, instrumentTag, parseInstrument, SYMBOL_RULE } from '../instrument-names.ts';

/** Other instruments of a dataset over the life of a database: a slot that was claimed is never given to another one. */
export const SLOTS = 255;
const SLOT_BITS = 8;

/** The number of the n-th other instrument; 0 stands for the default alone, in the terms of keys. */
export const slotNumber = (base: Pick<DatasetDefinition, 'number'>, slot: number): number =>
  (base.number << SLOT_BITS) | slot;

/** The number of the dataset that a number belongs to: its own, or that of the exchange of an instrument. */
export const baseNumber = (number: number): number => (number > SLOTS ? number >> SLOT_BITS : number);

/** The exchange's own definition. */
export const baseOf = (dataset: DatasetDefinition): DatasetDefinition => dataset.base ?? dataset;

/** The key of the dataset's one series in the table `series`. */
export const seriesKeyFor = (dataset: DatasetDefinition): string => dataset.instrument ?? '';

/** Whether other instruments of the dataset can be read. */
export const hasInstruments = ({ trades, base }: DatasetDefinition): boolean => trades !== undefined && !base;

/** Their table, one for all of a dataset. */
export const othersTable = ({ native }: Pick<DatasetDefinition, 'native'>): string => `${native.table}_others`;
export const INSTRUMENT_COLUMN = 'instrument_id';
/** Chunks of the others hold the days of all of them, and days are small more often than not. */
export const OTHERS_CHUNK_MS = 7 * DAY_MS;

const derived = new Map<number, DatasetDefinition>();

/** The definition of another instrument: the same object each time it is asked for. */
export function instrumentDataset(base: DatasetDefinition, instrument: Instrument, number: number): DatasetDefinition {
  const { native, trades } = base;
  assert(trades && !base.base && baseNumber(number) === base.number, `${number} is a number of ${base.key}`);
  const known = derived.get(number);
  if (known?.instrument === instrument) return known;
  const owner = { column: INSTRUMENT_COLUMN, value: number };
  const made: DatasetDefinition = {
    ...base,
    number,
    instrument,
    base,
    native: {
      ...native,
      table: othersTable(base),
      owner,
      chunkMs: OTHERS_CHUNK_MS,
      fields: trades.fieldsOf?.({ number, instrument }) ?? native.fields,
    },
  };
  derived.set(number, made);
  return made;
}

/** SQL of the rows of a dataset, for a `from` that gives them an alias. */
export const nativeRows = ({ native: { table, owner } }: Pick<DatasetDefinition, 'native'>): string =>
  owner ? `(select * from "${table}" where ${owner.column} = ${owner.value})` : `"${table}"`;

/** SQL over the alias `t`, to follow other tests: the row is of the dataset's instrument. Empty for a default. */
export const ownerTest = ({ native: { owner } }: Pick<DatasetDefinition, 'native'>): string =>
  owner ? ` and t.${owner.column} = ${owner.value}` : '';
