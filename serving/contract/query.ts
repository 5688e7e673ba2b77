/**
 * Parses the body of POST /v1/raw/query, and holds what it shares with the other bodies: filters, fields, windows, and
 * the rules between keys. The parser reports every fault of the body at once.
 */
import { randomInt } from 'node:crypto';
import { z } from 'zod';
import { ceilMs, type Instant, LAST_MS, parseInstant } from '../../shared/dates.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition, type DatasetKey, type Field, shapeOf } from '../../shared/registry/index.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import { type Filter, MAX_FILTERS, OPERATORS, parseFilter } from './filters.ts';
import {
  type FindInstrument,
  INSTRUMENT_DATASETS,
  INSTRUMENT_POINTER,
  instrumentKey,
  instrumentOf,
  NO_INSTRUMENTS,
} from './instruments.ts';
import { conditional, pascal, properties } from './json-schema.ts';
import { type ContractFault, MAX_FAULTS } from './problems.ts';
import type { ReadRequest, Window } from './read-request.ts';
import {
  asOfOnlyWhereVintagesAre,
  type DatasetPointer,
  FIELDS_ONCE,
  faultsBetween,
  isObject,
  modeOf,
  ofColumns,
  oneWindow,
  onlyWith,
  type Rule,
  schemaOfRules,
  together,
} from './rules.ts';
import {
  asOf,
  body as bodyOf,
  type Columns,
  type CsvFormulas,
  csvFormulas,
  DEFAULT_MODE,
  datasetKey,
  documentedBody,
  faultsOf,
  instant,
  integer,
  latestRows,
  MODE_NAMES,
  MODES,
  mode as modeKey,
  type Parsed,
  randomRows,
  randomSeed,
  selection,
  silences,
  strict,
} from './shapes.ts';
/** A valid request. */
export interface Query {
  readonly datasetKey: DatasetKey;
  readonly mode: Mode;
  readonly strict: boolean;
  readonly window: Window;
  readonly read: ReadRequest;
  /** For answers in CSV alone. */
  readonly csvFormulas?: CsvFormulas;
}

export function parseQuery(body: Json, find: FindInstrument = NO_INSTRUMENTS): Parsed<Query> {
  const raw = isObject(body) ? body : {};
  const mode = modeOf(raw);
  const named: ContractFault[] = [];
  const at = { find, pointer: INSTRUMENT_POINTER, faults: named };
  const dataset = instrumentOf(POINTER.datasetOf(raw), raw.instrument, at);
  const { columns, schema } = contractOf(dataset, mode);
  const outcome = schema.safeParse(body);
  const faults = [...named, ...(outcome.success ? [] : faultsOf(outcome.error, schema))];
  faults.push(...faultsBetween(RULES, raw, columns));
  const filters = filtersOf(raw, columns, faults);
  if (!outcome.success || faults.length > 0) return { faults };
  const {
    fields,
    strict,
    sources,
    as_of: asOfTime,
    csv_formulas,
    silences: warned,
    instrument: _,
    ...data
  } = outcome.data;
  const window = windowOf(data);
  const asOfMs = asOfTime?.ms;
  const shown = fieldsOf(fields, columns!);
  const read = { dataset: dataset!, mode, fields: shown, filters, window, strict, silences: warned, asOfMs };
  return { value: { datasetKey: sources[0], mode, strict, window, read, csvFormulas: csv_formulas } };
}

/** Returns the filters of the well-formed clauses, and adds the faults of their values to `faults`. */
export function filtersOf(raw: JsonObject, columns: Columns | undefined, faults: ContractFault[]): Filter[] {
  if (!Array.isArray(raw.filters) || !columns) return [];
  const filters: Filter[] = [];
  raw.filters.slice(0, MAX_FILTERS).forEach((clause: Json, index) => {
    if (!isObject(clause) || clause.value === undefined || faults.length > MAX_FAULTS) return;
    const field = columns.all.find((known) => known.name === clause.field);
    const op = OPERATORS.find((known) => known === clause.op);
    if (!field || !op) return;
    const parsed = parseFilter(field, op, clause.value, `/filters/${index}`);
    if ('field' in parsed) filters.push({ ...parsed, clause: { field: field.name, op, value: clause.value } });
    else faults.push(...parsed);
  });
  return filters;
}

/** The columns asked for, in the order they were named. */
export function fieldsOf(names: readonly string[] | undefined, columns: Columns): readonly Field[] {
  return names?.map((name) => columns.all.find((field) => field.name === name)!) ?? columns.default;
}

/** The window of a selector that counts rows; `selector` is the request's key. */
export const latestWindow = (rows: number, selector: string): Window => ({ kind: 'latest', rows, selector });

/** Draws a seed when the request has none; the answer carries the seed. */
export const randomWindow = (rows: number, seed: number | undefined, selector: string): Window => ({
  kind: 'random',
  rows,
  seed: seed ?? randomInt(2 ** 47),
  selector,
});

/** Keys that the bodies of the raw routes, query and export, have in common. */
export const pinnedView = {
  view_id: z
    .string({ error: 'must be a string' })
    .optional()
    .meta({ description: 'Pins a view, with `view_version`.' }),
  view_version: integer(1).optional().meta({ description: 'The version of the view that `view_id` pins.' }),
};

/** The keys that select rows, and the time as of which. */
export const selectors = {
  time_range: z.tuple([instant, instant], { error: 'must be a list of two times, [start, end)' }).optional().meta({
    description: 'Start inclusive, end exclusive and later than the start: ISO-8601 times with `Z` or an offset.',
  }),
  n_rows: latestRows,
  n_random: randomRows,
  random_seed: randomSeed,
  as_of: asOf,
};

/** Builds a body's schema once per dataset and mode. Without a dataset the schema checks only the body's shape. */
export function contractsOf<S>(schemaOf: (columns: Columns | undefined) => S) {
  const contracts = new Map<string, { readonly columns: Columns | undefined; readonly schema: S }>();
  return (dataset: DatasetDefinition | undefined, mode: Mode) => {
    const key = `${dataset?.number ?? ''} ${mode}`;
    let contract = contracts.get(key);
    if (!contract) {
      const columns = dataset && columnsOf(dataset, mode);
      contract = { columns, schema: schemaOf(columns) };
      contracts.set(key, contract);
    }
    return contract;
  };
}

export function columnsOf(dataset: DatasetDefinition, mode: Mode): Columns {
  const { fields } = shapeOf(dataset, mode);
  return {
    name: `${pascal(dataset.key)}${MODE_NAMES[mode]}`,
    of: `${dataset.key} in mode ${mode}`,
    all: fields,
    default: fields,
  };
}

/** The rules of the raw routes. @param selectors groups of keys; a body may use one group. */
export const rawRules = (pointer: DatasetPointer, selectors: readonly (readonly string[])[]): readonly Rule[] => [
  oneWindow(selectors),
  onlyWith('random_seed', 'n_random'),
  asOfOnlyWhereVintagesAre(pointer),
  { faults: () => [], schema: { dependentSchemas: { instrument: pointer.isOneOf(INSTRUMENT_DATASETS) } } },
  FIELDS_ONCE,
  { faults: rangeFaults },
  together('view_id', 'view_version'),
  ofShape(pointer),
];

/** Ties fields, clauses and the view that can be pinned to the dataset and mode of the body. */
const ofShape = (pointer: DatasetPointer): Rule => ({
  faults: (raw) => viewFaults(raw, pointer.datasetOf(raw), modeOf(raw)),
  schema: {
    allOf: [...DATASETS.values()].flatMap((dataset) =>
      MODES.map((mode) => {
        const { view } = shapeOf(dataset, mode);
        const isDataset = pointer.isOneOf([dataset.key]);
        const isMode = {
          ...properties({ mode: { const: mode } }),
          ...(mode !== DEFAULT_MODE && { required: ['mode'] }),
        };
        return conditional(
          { allOf: [isDataset, isMode] },
          properties({
            ...ofColumns(columnsOf(dataset, mode)),
            view_id: { const: view.id },
            view_version: { const: view.version },
          }),
        );
      }),
    ),
  },
});

interface Selected {
  readonly time_range?: readonly [Instant, Instant];
  readonly n_rows?: number;
  readonly n_random?: number;
  readonly random_seed?: number;
}

export function windowOf(data: Selected): Window {
  if (data.time_range) {
    const [start, end] = data.time_range;
    // An end finer than a millisecond may round up to the year 10000, which the contract's times cannot express.
    return { kind: 'range', fromMs: Math.min(ceilMs(start), LAST_MS), toMs: Math.min(ceilMs(end), LAST_MS) };
  }
  if (data.n_rows !== undefined) return latestWindow(data.n_rows, 'n_rows');
  if (data.n_random !== undefined) return randomWindow(data.n_random, data.random_seed, 'n_random');
  return { kind: 'history' };
}

export function rangeFaults({ time_range: range }: JsonObject): ContractFault[] {
  if (!Array.isArray(range) || range.length !== 2) return [];
  const [start, end] = range.map((text: Json) => (typeof text === 'string' ? parseInstant(text) : undefined));
  // The texts are compared as written, finer than rows are: an empty window is a mistake however small it is.
  if (!start || !end || isBefore(range[0], start, range[1], end)) return [];
  return [{ pointer: '/time_range', message: 'must start before it ends' }];
}

function isBefore(startText: string, start: Instant, endText: string, end: Instant): boolean {
  if (start.ms !== end.ms) return start.ms < end.ms;
  return fineness(startText) < fineness(endText);
}

/** The digits below the millisecond, comparable as text. */
const fineness = (text: string) => (/[.,]\d{3}(\d+)/.exec(text)?.[1] ?? '').padEnd(18, '0');

function viewFaults(raw: JsonObject, dataset: DatasetDefinition | undefined, mode: Mode): ContractFault[] {
  if (!dataset || !('view_id' in raw && 'view_version' in raw)) return [];
  const { view } = shapeOf(dataset, mode);
  const message = `must be that of mode ${mode} of ${dataset.key}: ${view.id}, version ${view.version}`;
  if (typeof raw.view_id === 'string' && raw.view_id !== view.id) return [{ pointer: '/view_id', message }];
  if (typeof raw.view_version === 'number' && raw.view_version !== view.version) {
    return [{ pointer: '/view_version', message }];
  }
  return [];
}

const POINTER: DatasetPointer = {
  datasetOf({ sources }) {
    const key = Array.isArray(sources) ? sources[0] : undefined;
    return typeof key === 'string' ? DATASETS.get(key) : undefined;
  },
  isOneOf: (keys) => properties({ sources: { items: { enum: keys } } }),
};

const RULES = rawRules(POINTER, [['time_range'], ['n_rows'], ['n_random']]);

/** Checks fields and filters against the columns of one dataset and mode, or only for shape. */
const bodySchema = (columns: Columns | undefined) =>
  bodyOf({
    mode: modeKey,
    sources: z
      .tuple([datasetKey], {
        error: 'must be a list of exactly one dataset key',
      })
      .meta({ description: 'The dataset.' }),
    instrument: instrumentKey,
    ...pinnedView,
    ...selectors,
    ...selection(columns),
    csv_formulas: csvFormulas,
    silences,
    strict,
  });

/** The schema of a body for any dataset, as the contract's documents show it. */
export const querySchema = documentedBody('QueryRequest', bodySchema(undefined), schemaOfRules(RULES));

const contractOf = contractsOf(bodySchema);
