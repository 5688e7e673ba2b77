/** The body of POST /v1/raw/query, checked whole: every fault is reported at once. */
import { z } from 'zod';
import { DATASET_KEYS, DATASETS, type DatasetKey, type Mode } from '../../shared/registry/index.ts';
import type { Json } from '../../shared/strict-json.ts';
import type { ReadRequest, Window } from '../read/types.ts';
import { properties } from './json-schema.ts';
import { contractsOf, pinnedView, rawRules, selectors, windowOf } from './raw.ts';
import { type DatasetPlace, faultsBetween, isObject, modeOf, schemaOfRules } from './rules.ts';
import { fieldsOf, filtersOf } from './selected.ts';
import {
  body as bodyOf,
  type Columns,
  documentedBody,
  faultsOf,
  mode as modeKey,
  type Parsed,
  selection,
  strict,
} from './shapes.ts';

/** A valid request. */
export interface Query {
  readonly datasetKey: DatasetKey;
  readonly mode: Mode;
  readonly strict: boolean;
  readonly window: Window;
  readonly read: ReadRequest;
}

const PLACE: DatasetPlace = {
  datasetOf({ sources }) {
    const key = Array.isArray(sources) ? sources[0] : undefined;
    return typeof key === 'string' ? DATASETS.get(key) : undefined;
  },
  isOneOf: (keys) => properties({ sources: { items: { enum: keys } } }),
};

const RULES = rawRules(PLACE, [['time_range'], ['n_rows'], ['n_random']]);

/** Fields and filters are checked against the columns of one dataset and mode, or only for shape. */
const bodySchema = (columns: Columns | undefined) =>
  bodyOf({
    mode: modeKey,
    sources: z
      .tuple([z.enum(DATASET_KEYS, { error: `must be one of ${DATASET_KEYS.join(', ')}` })], {
        error: 'must be a list of exactly one dataset key',
      })
      .meta({ description: 'The dataset.' }),
    ...pinnedView,
    ...selectors,
    ...selection(columns),
    strict,
  });

/** Of any dataset: what the contract's documents show. */
export const querySchema = documentedBody(bodySchema(undefined), schemaOfRules(RULES));

const contractOf = contractsOf(bodySchema);

export function parseQuery(body: Json): Parsed<Query> {
  const raw = isObject(body) ? body : {};
  const mode = modeOf(raw);
  const dataset = PLACE.datasetOf(raw);
  const { columns, schema } = contractOf(dataset, mode);
  const outcome = schema.safeParse(body);
  const faults = outcome.success ? [] : faultsOf(outcome.error, schema);
  faults.push(...faultsBetween(RULES, raw));
  const filters = filtersOf(raw, columns, faults);
  if (!outcome.success || faults.length > 0) return { faults };
  const { fields, strict, sources, as_of: asOfTime, ...data } = outcome.data;
  const window = windowOf(data);
  const asOfMs = asOfTime?.ms;
  const read = { dataset: dataset!, mode, fields: fieldsOf(fields, columns!), filters, window, strict, asOfMs };
  return { value: { datasetKey: sources[0], mode, strict, window, read } };
}
