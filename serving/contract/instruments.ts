/** How bodies and parameters name an instrument of a trade dataset. */
import { z } from 'zod';
import { DATASETS, type DatasetDefinition, type DatasetKey } from '../../shared/registry/index.ts';
import { hasInstruments, SYMBOL_RULE } from '../../shared/registry/instruments.ts';
import type { Json } from '../../shared/strict-json.ts';
import type { ContractFault } from './problems.ts';

/** The datasets whose requests may name an instrument. */
export const INSTRUMENT_DATASETS = [...DATASETS.values()].filter(hasInstruments).map(({ key }) => key as DatasetKey);

/** The definition of the instrument that a request names, or what is wrong with the name. */
export type FindInstrument = (dataset: DatasetDefinition, name: string) => DatasetDefinition | string;

/** Of a reader who knows no settings and no database. */
export const NO_INSTRUMENTS: FindInstrument = ({ key }) => `must be an instrument of ${key}, and none is known here`;

/** Where a request's fault says that it names an instrument, be it in a body or as a parameter. */
export const INSTRUMENT_POINTER = '/instrument';

const RULE = `must be the symbol of an instrument: ${SYMBOL_RULE}`;

export const instrumentKey = z.string({ error: RULE }).optional().meta({
  pattern: '^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$',
  description:
    'An instrument of a trade dataset, by the exchange’s symbol (`GET /v1/instruments`). Without it: the default.',
});

/** The dataset, or its instrument where the request names one. Adds what is wrong with the name to `faults`. */
export function instrumentOf<D extends DatasetDefinition | undefined>(
  dataset: D,
  name: Json | undefined,
  { find, pointer, faults }: { find: FindInstrument; pointer: string; faults: ContractFault[] },
): D | DatasetDefinition {
  // The schema reports what is no text.
  if (!dataset || typeof name !== 'string') return dataset;
  const found = hasInstruments(dataset) ? find(dataset, name) : `is only for trades: ${INSTRUMENT_DATASETS.join(', ')}`;
  if (typeof found !== 'string') return found;
  faults.push({ pointer, message: found });
  return dataset;
}

/** The member of an answer; absent for the default. */
export const instrumentMember = ({ instrument }: Pick<DatasetDefinition, 'instrument'>): { instrument?: string } =>
  instrument === undefined ? {} : { instrument };

/** The header of an answer for another instrument than the default. */
export const INSTRUMENT_HEADER = 'X-Svc-Instrument';
export const INSTRUMENT_HEADERS = {
  [INSTRUMENT_HEADER]: 'The instrument, where it is not the default.',
} as const;
export const instrumentHeader = ({ instrument }: Pick<DatasetDefinition, 'instrument'>): Record<string, string> =>
  instrument === undefined ? {} : { [INSTRUMENT_HEADER]: instrument };
