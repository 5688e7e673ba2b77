/**
 * Parses the body of POST /v1/frame: columns of several datasets on one grid of time. The parser reports every fault of the
 * body at once.
 */
import { z } from 'zod';
import { INSTANT, parseInstant } from '../../shared/dates.ts';
import { closestName } from '../../shared/nearest.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition, type Field } from '../../shared/registry/index.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import { type Filter, type FilterClause, MAX_FILTERS, OPERATORS, parseFilter } from './filters.ts';
import {
  type FindInstrument,
  INSTRUMENT_DATASETS,
  instrumentKey,
  instrumentOf,
  NO_INSTRUMENTS,
} from './instruments.ts';
import { properties, ruledBy, whereIs } from './json-schema.ts';
import { type ContractFault, MAX_FAULTS } from './problems.ts';
import { columnsOf, rangeFaults, selectors, windowOf } from './query.ts';
import type { Window } from './read-request.ts';
import { faultsBetween, isObject, needsOneOf, oneWindow, type Rule, schemaOfRules } from './rules.ts';
import {
  anyClause,
  body as bodyOf,
  CLAUSE_KEYS,
  type CsvFormulas,
  csvFormulas,
  datasetKey,
  documentedBody,
  duration,
  faultsOf,
  fieldName,
  MAX_BUCKET_SECONDS,
  objectError,
  oneOf,
  type Parsed,
  parsedText,
  silences,
  strict,
} from './shapes.ts';

export const AGGREGATES = ['first', 'last', 'min', 'max', 'sum', 'count', 'vwap'] as const;
export type Aggregate = (typeof AGGREGATES)[number];

/** The column of a frame. */
export interface FrameColumn {
  readonly name: string;
  readonly dataset: DatasetDefinition;
  /** The rows that have the field: native ones, or aligned rows where native ones have none. */
  readonly mode: Mode;
  readonly field: Field;
  readonly filters: readonly Filter[];
  /** How the trades of a bucket become one value; undefined for a state, of which a bucket has the last. */
  readonly aggregate: Aggregate | undefined;
  /** A value that is older than this at a bucket's end is left out. */
  readonly maxAgeMs: number | undefined;
}

export interface FrameRequest {
  readonly columns: readonly FrameColumn[];
  /** Length of a bucket. Buckets begin at multiples of it since 1970. */
  readonly gridMs: number;
  /** A range, or the latest buckets. */
  readonly window: Window;
  /** Values as they were known at this time, or each row as it was known at its bucket's end; undefined: as they are known now. */
  readonly asOf: number | 'row' | undefined;
  readonly fill: 'null' | 'previous';
  readonly strict: boolean;
  /** Whether silences of the columns' datasets are warned of. */
  readonly silences?: 'warn';
  /** For answers in CSV alone. */
  readonly csvFormulas?: CsvFormulas;
  /** As it was sent. */
  readonly body: JsonObject;
}

export const MAX_FRAME_COLUMNS = 64;
/** Names that the rows have anyway. */
export const FRAME_DATETIME = 'datetime';
export const FRAME_KNOWN_AT = 'known_at_utc';

const NAME = /^[A-Za-z_][A-Za-z0-9_.-]{0,63}$/;
const NAME_RULE = 'must be 1 to 64 letters, digits, `_`, `.` or `-`, and not begin with a digit';
const MAX_AGE_SECONDS = 3660 * 86_400;

const column = z.strictObject(
  {
    name: z
      .string({ error: NAME_RULE })
      .regex(NAME, { error: NAME_RULE })
      .meta({ description: 'Its name in the rows.', not: { enum: [FRAME_DATETIME, FRAME_KNOWN_AT] } }),
    dataset: datasetKey,
    instrument: instrumentKey,
    field: fieldName.meta({
      description:
        'A number, flag or time of the dataset’s native rows, or of its aligned rows if native ones lack it.',
    }),
    filter: z
      .union([anyClause, z.array(anyClause).max(MAX_FILTERS)], {
        error: 'must be a clause {field, op, value}, or a list of clauses',
      })
      .optional()
      .meta({ description: 'Clauses that a row must pass. For ETF and macro they name one series.' }),
    aggregate: z
      .enum(AGGREGATES, oneOf(AGGREGATES))
      .optional()
      .meta({ description: 'How the trades of a bucket become one value; default `last`. Only for trades.' }),
    max_age: duration(MAX_AGE_SECONDS).optional().meta({
      description:
        'A value older than this at the bucket’s end is null: seconds, or a text such as `7d`. Without it, the warning `STATE_STALE` names states that are older than twice their cadence.',
    }),
  },
  { error: objectError('must be an object of name, dataset and field') },
);

/** The column with the fields of each dataset, for the contract's documents. */
const documentedColumn = () =>
  column.meta({
    id: 'FrameColumn',
    ...ruledBy({
      dependentSchemas: { instrument: properties({ dataset: { enum: INSTRUMENT_DATASETS } }) },
      allOf: [...DATASETS.values()].map((dataset) =>
        whereIs(
          'dataset',
          dataset.key,
          properties({ field: { enum: frameFields(dataset).map(({ field }) => field.name) } }),
        ),
      ),
    }),
  });

const AS_OF = new RegExp(`^row$|${INSTANT.source}`);
const AS_OF_RULE = 'must be "row", or an ISO-8601 time with Z or an offset, such as 2024-01-01T00:00:00Z';

/** The keys of a frame; an export has them, too. */
export const frameKeys = {
  columns: z
    .array(documentedColumn(), { error: 'must be a list of columns {name, dataset, field}' })
    .min(1, { error: 'must have at least one column' })
    .max(MAX_FRAME_COLUMNS, { error: `must have at most ${MAX_FRAME_COLUMNS} columns` })
    .meta({ description: 'The columns, in the order of the answer.' }),
  grid: duration(MAX_BUCKET_SECONDS).meta({
    description: 'Length of a bucket: seconds, or a count and a unit of s, m, h, d, w; at most 31 days.',
  }),
  time_range: selectors.time_range,
  n_rows: selectors.n_rows.meta({ description: 'The last n buckets.' }),
  as_of: parsedText((text) => (text === 'row' ? text : parseInstant(text)), AS_OF_RULE, AS_OF)
    .optional()
    .meta({
      description:
        'A time: values as they were known then. `row`: each row as it was known at the end of its bucket. Without it: as known now.',
    }),
  fill: z
    .enum(['null', 'previous'], { error: 'must be null or "previous"' })
    .nullish()
    .meta({ description: 'What a bucket without trades has: null, or the value before it (within `max_age`).' }),
  csv_formulas: csvFormulas,
  silences,
  strict,
};

const SELECTORS = ['time_range', 'n_rows'];

export const FRAME_RULES: readonly Rule[] = [
  needsOneOf(SELECTORS, `must have one of ${SELECTORS.join(', ')}`),
  oneWindow(SELECTORS.map((key) => [key])),
  { faults: rangeFaults },
  { faults: nameFaults },
];

const schema = bodyOf(frameKeys);
type FrameData = z.output<typeof schema>;

/** The schema of the body, as the contract's documents show it. */
export const frameSchema = documentedBody('FrameRequest', schema, schemaOfRules(FRAME_RULES));

const COLUMN_KEYS = Object.keys(column.shape);

/** The keys of the objects inside a frame's body, for hints. */
export const frameKeysAt = (path: readonly PropertyKey[]): readonly string[] =>
  path[0] === 'columns' && path.length === 2 ? COLUMN_KEYS : CLAUSE_KEYS;

export function parseFrame(body: Json, find: FindInstrument = NO_INSTRUMENTS): Parsed<FrameRequest> {
  const raw = isObject(body) ? body : {};
  const outcome = schema.safeParse(body);
  const faults = outcome.success ? [] : faultsOf(outcome.error, schema, frameKeysAt);
  if (isObject(body)) faults.push(...faultsBetween(FRAME_RULES, raw));
  const columns = frameColumns(raw, outcome.success ? outcome.data : undefined, { find, faults });
  if (!outcome.success || faults.length > 0) return { faults };
  return { value: frameOf(outcome.data, columns, raw) };
}

/** A frame of checked keys. */
export function frameOf(data: FrameData, columns: readonly FrameColumn[], body: JsonObject): FrameRequest {
  const { grid, as_of, fill, strict: isStrict, time_range, n_rows } = data;
  return {
    columns,
    gridMs: grid * 1000,
    window: windowOf({ time_range, n_rows }),
    asOf: typeof as_of === 'object' ? as_of.ms : as_of,
    fill: fill ?? 'null',
    strict: isStrict,
    silences: data.silences,
    csvFormulas: data.csv_formulas,
    body,
  };
}

/** The columns whose fields exist. Adds what is wrong with the others to `faults`; `data` has what the schema could read. */
export function frameColumns(
  raw: JsonObject,
  data: FrameData | undefined,
  { find, faults }: { readonly find: FindInstrument; readonly faults: ContractFault[] },
): FrameColumn[] {
  if (!Array.isArray(raw.columns)) return [];
  return raw.columns.slice(0, MAX_FRAME_COLUMNS).flatMap((one: Json, index): FrameColumn[] => {
    if (!isObject(one) || faults.length > MAX_FAULTS) return [];
    const at = `/columns/${index}`;
    const pointer = `${at}/instrument`;
    const byDefault = typeof one.dataset === 'string' ? DATASETS.get(one.dataset) : undefined;
    const dataset = instrumentOf(byDefault, one.instrument, { find, pointer, faults });
    if (!dataset || typeof one.field !== 'string') return [];
    const found = fieldOf(dataset, one.field);
    if (!found) {
      faults.push({ pointer: `${at}/field`, message: unknownField(dataset, one.field) });
      return [];
    }
    const filters = filtersOf(dataset, found.mode, one.filter, `${at}/filter`, faults);
    const aggregate = aggregateOf(dataset, found, one.aggregate, `${at}/aggregate`, faults);
    const maxAge = data?.columns[index]?.max_age;
    const maxAgeMs = maxAge === undefined ? undefined : maxAge * 1000;
    // Any other type is a fault of the schema; an object of the parser has no prototype, so `String` would throw.
    const name = typeof one.name === 'string' ? one.name : '';
    return [{ name, dataset, ...found, filters, aggregate, maxAgeMs }];
  });
}

/** The fields of a dataset that a frame can have, with the rows that have them. */
export function frameFields(dataset: DatasetDefinition): { readonly field: Field; readonly mode: Mode }[] {
  const found = new Map<string, { readonly field: Field; readonly mode: Mode }>();
  const add = (fields: readonly Field[], mode: Mode) => {
    for (const field of fields) {
      if (isPlottable(field) && !found.has(field.name)) found.set(field.name, { field, mode });
    }
  };
  const { native, aligned, trades, partition } = dataset;
  // The mempool and transactions have many native rows a second, so that no single row is the state.
  const isOneRow = trades || (partition.kind !== 'snapshot' && dataset.offset.order !== 'composite');
  if (isOneRow) add([...native.fields, ...(trades?.unified ?? [])], 'native');
  if (trades || !isOneRow) add(aligned.fields, 'aligned_1s');
  const value = native.fields.find(({ name }) => name === aligned.valueField);
  if (value) add([{ ...value, name: 'metric_value_float' }], 'native');
  return [...found.values()];
}

/** A frame takes numbers, flags and times. It takes no end of validity, because that depends on the window. */
function isPlottable({ dtype, validity }: Field): boolean {
  if (validity !== undefined) return false;
  return dtype === 'int64' || dtype === 'float64' || dtype === 'bool01' || dtype === 'timestamp_utc';
}

const fieldOf = (dataset: DatasetDefinition, name: string) =>
  frameFields(dataset).find(({ field }) => field.name === name);

function unknownField(dataset: DatasetDefinition, name: string): string {
  const names = frameFields(dataset).map(({ field }) => field.name);
  const meant = closestName(name, names);
  const hint = meant === undefined ? '' : `; did you mean ${meant}?`;
  return `must be a number, flag or time of ${dataset.key} that frames have: ${names.join(', ')}${hint}`;
}

/** What each aggregate takes. */
function aggregateFault({ field, mode }: { field: Field; mode: Mode }, aggregate: Aggregate): string | undefined {
  if (aggregate === 'vwap') {
    return field.name === 'price' && mode === 'native' ? undefined : 'vwap is only for the field price';
  }
  if (aggregate === 'sum') {
    const isSum = field.dtype === 'float64' || field.name === 'trade_count';
    return isSum ? undefined : `a sum of ${field.name} means nothing; sums are for quantities`;
  }
  if (field.dtype !== 'bool01' || aggregate === 'count' || aggregate === 'first' || aggregate === 'last')
    return undefined;
  return `${aggregate} is not for flags`;
}

/** The aggregates that a frame can make of a field; of a state a bucket has the last value. */
export const aggregatesOf = (
  { trades }: DatasetDefinition,
  found: { readonly field: Field; readonly mode: Mode },
): Aggregate[] => (trades ? AGGREGATES.filter((one) => aggregateFault(found, one) === undefined) : ['last']);

function aggregateOf(
  dataset: DatasetDefinition,
  found: { readonly field: Field; readonly mode: Mode },
  given: Json | undefined,
  pointer: string,
  faults: ContractFault[],
): Aggregate | undefined {
  const aggregate = AGGREGATES.find((one) => one === given);
  if (!dataset.trades) {
    if (aggregate !== undefined && aggregate !== 'last') {
      faults.push({ pointer, message: 'is only for trades; of any other dataset a bucket has the last value' });
    }
    return undefined;
  }
  const fault = aggregate && aggregateFault(found, aggregate);
  if (fault !== undefined) faults.push({ pointer, message: fault });
  return aggregate ?? 'last';
}

function filtersOf(
  dataset: DatasetDefinition,
  mode: Mode,
  given: Json | undefined,
  pointer: string,
  faults: ContractFault[],
): Filter[] {
  const isList = Array.isArray(given);
  const clauses: readonly Json[] = isList ? given : isObject(given) ? [given] : [];
  const { all } = columnsOf(dataset, mode);
  const known = mode === 'native' && dataset.trades ? [...all, ...dataset.trades.unified] : all;
  const filters: Filter[] = [];
  for (const [index, clause] of clauses.slice(0, MAX_FILTERS).entries()) {
    if (!isObject(clause) || clause.value === undefined || faults.length > MAX_FAULTS) continue;
    const at = isList ? `${pointer}/${index}` : pointer;
    const op = OPERATORS.find((one) => one === clause.op);
    const field = known.find(({ name }) => name === clause.field);
    if (!field && typeof clause.field === 'string') {
      const names = known.map(({ name }) => name);
      const meant = closestName(clause.field, names);
      const hint = meant === undefined ? `: ${names.join(', ')}` : `; did you mean ${meant}?`;
      faults.push({ pointer: `${at}/field`, message: `must be a field of ${dataset.key} in mode ${mode}${hint}` });
    }
    if (!field || !op) continue;
    const parsed = parseFilter(field, op, clause.value, at);
    if (!('field' in parsed)) faults.push(...parsed);
    else filters.push({ ...parsed, clause: { field: field.name, op, value: clause.value } satisfies FilterClause });
  }
  return filters;
}

/** Columns need names of their own. */
function nameFaults({ columns }: JsonObject): ContractFault[] {
  if (!Array.isArray(columns)) return [];
  const names = columns.slice(0, MAX_FRAME_COLUMNS).map((one: Json) => (isObject(one) ? one.name : undefined));
  return names.flatMap((name, index) => {
    if (typeof name !== 'string') return [];
    const pointer = `/columns/${index}/name`;
    if (name === FRAME_DATETIME || name === FRAME_KNOWN_AT) {
      return [{ pointer, message: `is a name that the rows have already` }];
    }
    const first = names.indexOf(name);
    return first < index ? [{ pointer, message: `repeats /columns/${first}/name` }] : [];
  });
}
