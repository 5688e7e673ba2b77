/** The instruments of a database beside the defaults: who has which number. A number is claimed once and kept for ever. */
import type { ClientBase, Pool } from 'pg';
import { TidemarkError } from '../errors.ts';
import { DATASETS, type DatasetDefinition } from '../registry/index.ts';
import {
  baseNumber,
  hasInstruments,
  type Instrument,
  instrumentDataset,
  instrumentTag,
  SLOTS,
  slotNumber,
} from '../registry/instruments.ts';

type Queryable = ClientBase | Pool;

const BASES = [...DATASETS.values()].filter(hasInstruments);
const BASE_BY_NUMBER = new Map(BASES.map((base) => [base.number, base]));

/** Their numbers and symbols; `instrumentsOf` reads the rows. */
export const INSTRUMENTS_SQL = `select dataset_id, key from series where dataset_id > ${SLOTS} order by dataset_id`;

export const instrumentsOf = (
  rows: readonly { readonly dataset_id: number; readonly key: string }[],
): DatasetDefinition[] =>
  rows.map(({ dataset_id: number, key }) =>
    instrumentDataset(BASE_BY_NUMBER.get(baseNumber(number))!, key as Instrument, number),
  );

/** Every instrument that was ever claimed, whether it is configured or not, in the order of the numbers. */
export async function registeredInstruments(client: Queryable): Promise<DatasetDefinition[]> {
  const { rows } = await (client as Pool).query<{ dataset_id: number; key: string }>(INSTRUMENTS_SQL);
  return instrumentsOf(rows);
}

/** @returns undefined for a symbol that nothing was claimed for. */
export async function registeredInstrument(
  client: Queryable,
  base: DatasetDefinition,
  symbol: string,
): Promise<DatasetDefinition | undefined> {
  const known = await registeredInstruments(client);
  return known.find((one) => one.base === base && one.instrument === symbol);
}

/** The definition of the instrument; it gets a number when it is asked for first. Not within a transaction: two may ask at once. */
export async function claimInstrument(
  client: Queryable,
  base: DatasetDefinition,
  symbol: Instrument,
): Promise<DatasetDefinition> {
  for (;;) {
    const known = (await registeredInstruments(client)).filter((one) => one.base === base);
    const found = known.find(({ instrument }) => instrument === symbol);
    if (found) return found;
    const alike = known.find(({ instrument }) => instrumentTag(instrument!) === instrumentTag(symbol));
    if (alike) throw alikeSymbols(symbol, alike.instrument!);
    const taken = new Set(known.map(({ number }) => number));
    const free = Array.from({ length: SLOTS }, (_, index) => slotNumber(base, index + 1)).find(
      (one) => !taken.has(one),
    );
    if (free === undefined) {
      throw new TidemarkError(
        'CONFIGURATION_INVALID',
        `${base.key} has had ${SLOTS} other instruments in this database, and there is no room for ${symbol}`,
        { remedy: 'Read it into a database and log of its own.' },
      );
    }
    await (client as Pool).query('insert into series (dataset_id, key) values ($1, $2) on conflict do nothing', [
      free,
      symbol,
    ]);
  }
}

export const alikeSymbols = (one: string, other: string): TidemarkError =>
  new TidemarkError(
    'CONFIGURATION_INVALID',
    `Events of ${one} and ${other} would have the same ids: the 28 bits that ids hold of a symbol are equal`,
    { remedy: 'Read one of them into a database and log of its own.' },
  );
