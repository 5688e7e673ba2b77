/** The body of POST /v1/raw/query, checked whole: every fault is reported at once. */
import { z } from 'zod';
import {
  DATASET_KEYS,
  DATASETS,
  type DatasetDefinition,
  type DatasetKey,
  type Mode,
  shapeOf,
} from '../../shared/registry/index.ts';
import type { ReadRequest, Window } from '../read/types.ts';
import type { Json, JsonObject } from './json.ts';
import type { ContractFault } from './problems.ts';
import {
  asOfFaults,
  fieldsOf,
  filtersOf,
  isObject,
  latestWindow,
  randomWindow,
  repeatFaults,
  seedFaults,
  selectorFaults,
} from './rules.ts';
import {
  asOf,
  body as bodyOf,
  type Columns,
  faultsOf,
  instant,
  integer,
  latestRows,
  MODES,
  mode as modeKey,
  type Parsed,
  randomRows,
  randomSeed,
  selection,
  strict,
} from './shapes.ts';
import { ceilMs, type Instant, parseInstant } from './time.ts';

/** A valid request. */
export interface Query {
  readonly datasetKey: DatasetKey;
  readonly mode: Mode;
  readonly strict: boolean;
  readonly window: Window;
  readonly read: ReadRequest;
}

const SELECTORS = [['time_range'], ['n_rows'], ['n_random']];

export const viewId = z
  .string({ error: 'must be a string' })
  .optional()
  .meta({ description: 'Pins a view, with `view_version`.' });
export const viewVersion = integer(1).optional().meta({ description: 'The version of the view that `view_id` pins.' });
export const timeRange = z
  .tuple([instant, instant], { error: 'must be a list of two times, [start, end)' })
  .optional()
  .meta({ description: 'Start inclusive, end exclusive: ISO-8601 times with `Z` or an offset.' });

/** Fields and filters are checked against the columns of one dataset and mode, or only for shape. */
const bodySchema = (columns: Columns | undefined) =>
  bodyOf({
    mode: modeKey,
    sources: z
      .tuple([z.enum(DATASET_KEYS, { error: `must be one of ${DATASET_KEYS.join(', ')}` })], {
        error: 'must be a list of exactly one dataset key',
      })
      .meta({ description: 'The dataset.' }),
    view_id: viewId,
    view_version: viewVersion,
    time_range: timeRange,
    n_rows: latestRows,
    n_random: randomRows,
    random_seed: randomSeed,
    as_of: asOf,
    ...selection(columns),
    strict,
  });

type BodySchema = ReturnType<typeof bodySchema>;

/** Of any dataset: what the contract's documents show. */
export const querySchema = bodySchema(undefined);

interface Contract {
  readonly columns: Columns | undefined;
  readonly schema: BodySchema;
}

/** By dataset and mode, built once. */
const contracts = new Map<string, Contract>();

function contractOf(dataset: DatasetDefinition | undefined, mode: Mode): Contract {
  const key = `${dataset?.key ?? ''} ${mode}`;
  let contract = contracts.get(key);
  if (!contract) {
    const columns = dataset && columnsOf(dataset, mode);
    contract = { columns, schema: bodySchema(columns) };
    contracts.set(key, contract);
  }
  return contract;
}

export function columnsOf(dataset: DatasetDefinition, mode: Mode): Columns {
  const { fields } = shapeOf(dataset, mode);
  return { of: `${dataset.key} in mode ${mode}`, all: fields, default: fields };
}

export function parseQuery(body: Json): Parsed<Query> {
  const raw = isObject(body) ? body : {};
  const mode = MODES.find((known) => known === raw.mode) ?? 'native';
  const key = Array.isArray(raw.sources) ? raw.sources[0] : undefined;
  const dataset = typeof key === 'string' ? DATASETS.get(key) : undefined;
  const { columns, schema } = contractOf(dataset, mode);
  const outcome = schema.safeParse(body);
  const faults = outcome.success ? [] : faultsOf(outcome.error, schema);
  faults.push(
    ...selectorFaults(raw, SELECTORS),
    ...seedFaults(raw, 'n_random'),
    ...asOfFaults(raw, dataset),
    ...repeatFaults(raw),
    ...rangeFaults(raw),
    ...viewFaults(raw, dataset, mode),
  );
  const filters = filtersOf(raw, columns, faults);
  if (!outcome.success || faults.length > 0) return { faults };
  const { fields, strict, sources, as_of: asOfTime, ...data } = outcome.data;
  const window = windowOf(data);
  const asOfMs = asOfTime?.ms;
  const read = { dataset: dataset!, mode, fields: fieldsOf(fields, columns!), filters, window, strict, asOfMs };
  return { value: { datasetKey: sources[0], mode, strict, window, read } };
}

export function windowOf(
  data: Pick<z.output<BodySchema>, 'time_range' | 'n_rows' | 'n_random' | 'random_seed'>,
): Window {
  if (data.time_range) {
    const [start, end] = data.time_range;
    return { kind: 'range', fromMs: ceilMs(start), toMs: ceilMs(end) };
  }
  if (data.n_rows !== undefined) return latestWindow(data.n_rows, 'n_rows');
  if (data.n_random !== undefined) return randomWindow(data.n_random, data.random_seed, 'n_random');
  return { kind: 'history' };
}

export function rangeFaults({ time_range: range }: JsonObject): ContractFault[] {
  if (!Array.isArray(range) || range.length !== 2) return [];
  const [start, end] = range.map((text: Json) => (typeof text === 'string' ? parseInstant(text) : undefined));
  // Compared as written, finer than rows are: an empty window is a mistake however small.
  if (!start || !end || isBefore(range[0], start, range[1], end)) return [];
  return [{ pointer: '/time_range', message: 'must start before it ends' }];
}

function isBefore(startText: string, start: Instant, endText: string, end: Instant): boolean {
  if (start.ms !== end.ms) return start.ms < end.ms;
  return fineness(startText) < fineness(endText);
}

/** Digits below the millisecond, comparable as text. */
const fineness = (text: string) => (/[.,]\d{3}(\d+)/.exec(text)?.[1] ?? '').padEnd(18, '0');

export function viewFaults(raw: JsonObject, dataset: DatasetDefinition | undefined, mode: Mode): ContractFault[] {
  const hasId = 'view_id' in raw;
  const hasVersion = 'view_version' in raw;
  if (hasId !== hasVersion) {
    const [given, missing] = hasId ? ['view_id', 'view_version'] : ['view_version', 'view_id'];
    return [{ pointer: `/${given}`, message: `must be given together with ${missing}` }];
  }
  if (!hasId || !dataset) return [];
  const { view } = shapeOf(dataset, mode);
  const message = `must be that of mode ${mode} of ${dataset.key}: ${view.id}, version ${view.version}`;
  if (typeof raw.view_id === 'string' && raw.view_id !== view.id) return [{ pointer: '/view_id', message }];
  if (typeof raw.view_version === 'number' && raw.view_version !== view.version) {
    return [{ pointer: '/view_version', message }];
  }
  return [];
}
