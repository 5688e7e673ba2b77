/**
 * Parses the bodies of the historical routes. Each route and mode has its own contract. Windows are whole UTC days, and
 * `n_*` counts rows.
 */

import type { z } from 'zod';
import { DAY, DAY_MS, type Instant, LAST_MS, parseDay } from '../../shared/dates.ts';
import { assert } from '../../shared/errors.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import type { DatasetDefinition, DatasetKey, Field } from '../../shared/registry/index.ts';
import { KLINE_FIELDS } from '../../shared/registry/trades.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import { type FindInstrument, INSTRUMENT_POINTER, instrumentKey, instrumentOf, NO_INSTRUMENTS } from './instruments.ts';
import { pascal, properties, whereIs } from './json-schema.ts';
import type { ContractFault } from './problems.ts';
import { columnsOf, fieldsOf, filtersOf, latestWindow, type Query, randomWindow } from './query.ts';
import type { Window } from './read-request.ts';
import {
  FIELDS_ONCE,
  faultsBetween,
  hasVintages,
  isObject,
  modeOf,
  ofColumns,
  oneWindow,
  onlyWith,
  type Rule,
  schemaOfRules,
} from './rules.ts';
import {
  asOf,
  body as bodyOf,
  boolean,
  type Columns,
  csvFormulas,
  documentedBody,
  duration,
  faultsOf,
  latestRows,
  MAX_BUCKET_SECONDS,
  MODE_NAMES,
  MODES,
  mode as modeKey,
  type Parsed,
  parsedText,
  randomRows,
  randomSeed,
  selection,
  silences,
  strict,
} from './shapes.ts';

const SELECTORS = [['start_date', 'end_date'], ['n_latest_rows'], ['n_random_rows']];

/** The length of a kline in seconds. */
const klineSize = duration(MAX_BUCKET_SECONDS)
  .default(60)
  .meta({ description: 'Seconds, or a count and a unit of s, m, h, d, w; at most 31 days.' });

const DAY_RULE = 'must be a UTC day, YYYY-MM-DD, such as 2024-01-31';
const DATETIME = 'datetime';

const day = (doc: string) => parsedText(parseDay, DAY_RULE, DAY).optional().meta({ description: doc });

const common = {
  mode: modeKey,
  start_date: day('First UTC day. Without it the window starts at the first proved row.'),
  end_date: day('Last UTC day, inclusive, not before `start_date`. Without it the window ends at the last proved row.'),
  n_latest_rows: latestRows,
  n_random_rows: randomRows,
  random_seed: randomSeed,
  csv_formulas: csvFormulas,
  silences,
  strict,
};

/** What distinguishes one route from another: its columns and keys beside the common ones. */
interface Style {
  readonly columns: (mode: Mode) => Columns;
  /** The keys that only this route has. */
  readonly keys: Readonly<Record<string, z.ZodType>>;
  /** The rules for those keys. */
  readonly rules?: readonly Rule[];
}

/** The values of a route's own keys, as the schema returns them. */
interface OwnKeys {
  readonly include_datetime_col?: boolean;
  readonly kline_size?: number;
  readonly as_of?: Instant;
}

export type HistoricalKind = 'rows' | 'klines';

/** The body of a route in either mode, as the contract's documents show it. */
export function historicalSchema(dataset: DatasetDefinition, kind: HistoricalKind): z.ZodType {
  const style = styleOf(dataset, kind);
  const [native, aligned] = MODES.map((mode) => style.columns(mode));
  const others = aligned.all.filter(({ name }) => !native.all.some((field) => field.name === name));
  const schema = bodyOf({ ...common, ...selection({ ...native, all: [...native.all, ...others] }), ...style.keys });
  const name = kind === 'klines' ? 'Klines' : `${pascal(dataset.key)}History`;
  return documentedBody(`${name}Request`, schema, schemaOfRules([...rulesOf(style), ofMode(native, aligned)]));
}

const rulesOf = ({ rules = [] }: Style): readonly Rule[] => [
  oneWindow(SELECTORS),
  onlyWith('random_seed', 'n_random_rows'),
  FIELDS_ONCE,
  { faults: dayFaults },
  ...rules,
];

/** Ties the columns to the mode. It has no faults of its own: the schema of each mode already checks the columns. */
const ofMode = (native: Columns, aligned: Columns): Rule => ({
  faults: () => [],
  schema: whereIs('mode', 'aligned_1s', properties(ofColumns(aligned)), properties(ofColumns(native))),
});

/** Returns the parser of one route's bodies. */
export function historicalParser(
  byDefault: DatasetDefinition,
  kind: HistoricalKind,
): (body: Json, find?: FindInstrument) => Parsed<Query> {
  const style = styleOf(byDefault, kind);
  const rules = rulesOf(style);
  const contracts = new Map<string, { readonly columns: Columns; readonly schema: ReturnType<typeof schemaOf> }>();
  const schemaOf = (columns: Columns) => bodyOf({ ...common, ...selection(columns), ...style.keys });
  const contractOf = (dataset: DatasetDefinition, mode: Mode) => {
    const key = `${dataset.number} ${mode}`;
    let contract = contracts.get(key);
    if (!contract) {
      const columns = historicalColumns(dataset, kind, mode);
      contract = { columns, schema: schemaOf(columns) };
      contracts.set(key, contract);
    }
    return contract;
  };
  return (body, find = NO_INSTRUMENTS) => {
    const raw = isObject(body) ? body : {};
    const mode = modeOf(raw);
    const named: ContractFault[] = [];
    const dataset = byDefault.trades
      ? instrumentOf(byDefault, raw.instrument, { find, pointer: INSTRUMENT_POINTER, faults: named })
      : byDefault;
    const { columns, schema } = contractOf(dataset, mode);
    const outcome = schema.safeParse(body);
    const faults = [...named, ...(outcome.success ? [] : faultsOf(outcome.error, schema))];
    faults.push(...faultsBetween(rules, raw, columns));
    const filters = filtersOf(raw, columns, faults);
    if (!outcome.success || faults.length > 0) return { faults };
    const { fields: names, strict, silences: warned, csv_formulas, ...data } = outcome.data;
    const { include_datetime_col: withDatetime, kline_size: seconds, as_of: asOfTime } = outcome.data as OwnKeys;
    const window = windowOf(data);
    const shown = withDatetime === false ? { ...columns, default: withoutDatetime(columns.default) } : columns;
    const fields = fieldsOf(names, shown);
    const klineMs = seconds === undefined ? undefined : seconds * 1000;
    const read = { dataset, mode, fields, filters, window, strict, silences: warned, klineMs, asOfMs: asOfTime?.ms };
    return {
      value: { datasetKey: dataset.key as DatasetKey, mode, strict, window, read, csvFormulas: csv_formulas },
    };
  };
}

/** The columns that a route's fields and filters may name. */
export const historicalColumns = (dataset: DatasetDefinition, kind: HistoricalKind, mode: Mode): Columns =>
  styleOf(dataset, kind).columns(mode);

function styleOf(dataset: DatasetDefinition, kind: HistoricalKind): Style {
  const { trades } = dataset;
  if (kind === 'klines') {
    const columns = (mode: Mode) => klineColumns(mode, dataset.key);
    return { columns, keys: { instrument: instrumentKey, kline_size: klineSize } };
  }
  if (!trades) {
    return { columns: (mode) => columnsOf(dataset, mode), keys: hasVintages(dataset) ? { as_of: asOf } : {} };
  }
  return {
    columns: (mode) => (mode === 'native' ? tradeColumns(dataset) : columnsOf(dataset, mode)),
    keys: {
      instrument: instrumentKey,
      include_datetime_col: boolean
        .optional()
        .meta({ description: 'When false, the default fields leave out `datetime`. Only for mode native.' }),
    },
    rules: [DATETIME_IS_NATIVE],
  };
}

/** The columns that all exchanges share, followed by the dataset's own columns under their own names. */
export function tradeColumns(dataset: DatasetDefinition): Columns {
  assert(dataset.trades !== undefined, `${dataset.key} has no trades`);
  const { unified } = dataset.trades;
  const own = columnsOf(dataset, 'native');
  const others = own.all.filter(({ name }) => !unified.some((field) => field.name === name));
  return { name: `${pascal(dataset.key)}Unified`, of: own.of, all: [...unified, ...others], default: unified };
}

/** The columns of klines. All datasets that have klines share them. */
export function klineColumns(mode: Mode, of = 'any exchange'): Columns {
  const fields = KLINE_FIELDS[mode];
  return { name: `Klines${MODE_NAMES[mode]}`, of: `the klines of ${of} in mode ${mode}`, all: fields, default: fields };
}

const withoutDatetime = (fields: readonly Field[]) => fields.filter(({ name }) => name !== DATETIME);

const DATETIME_IS_NATIVE: Rule = {
  faults: datetimeFaults,
  schema: {
    dependentSchemas: { include_datetime_col: properties({ mode: { const: 'native' } }) },
    ...whereIs(
      'include_datetime_col',
      false,
      properties({ fields: { not: { type: 'array', contains: { const: DATETIME } } } }),
    ),
  },
};

function datetimeFaults(raw: JsonObject): ContractFault[] {
  const mode = modeOf(raw);
  if (!('include_datetime_col' in raw)) return [];
  if (mode !== 'native') {
    return [
      {
        pointer: '/include_datetime_col',
        message: `applies only to mode native; rows of mode ${mode} have no datetime`,
      },
    ];
  }
  const at = Array.isArray(raw.fields) ? raw.fields.indexOf(DATETIME) : -1;
  if (raw.include_datetime_col !== false || at < 0) return [];
  return [{ pointer: `/fields/${at}`, message: 'cannot be listed while include_datetime_col is false' }];
}

function dayFaults({ start_date: start, end_date: end }: JsonObject): ContractFault[] {
  const days = [start, end].map((text) => (typeof text === 'string' ? parseDay(text) : undefined));
  const [from, to] = days;
  if (from === undefined || to === undefined || from <= to) return [];
  return [{ pointer: '/start_date', message: 'must not be after end_date' }];
}

interface WindowKeys {
  readonly start_date?: number;
  readonly end_date?: number;
  readonly n_latest_rows?: number;
  readonly n_random_rows?: number;
  readonly random_seed?: number;
}

function windowOf(data: WindowKeys): Window {
  const { start_date: fromMs, end_date: lastDayMs } = data;
  if (fromMs !== undefined || lastDayMs !== undefined) {
    // Both days are inclusive.
    const toMs = lastDayMs === undefined ? undefined : Math.min(lastDayMs + DAY_MS, LAST_MS);
    return { kind: 'range', fromMs, toMs };
  }
  if (data.n_latest_rows !== undefined) return latestWindow(data.n_latest_rows, 'n_latest_rows');
  if (data.n_random_rows !== undefined) return randomWindow(data.n_random_rows, data.random_seed, 'n_random_rows');
  return { kind: 'history' };
}
