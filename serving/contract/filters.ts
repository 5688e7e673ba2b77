/**
 * Filters: the operators that a field takes, the values it takes, and the SQL condition that is pushed down. Values become
 * bound parameters; the SQL text holds only what the registry declares.
 */

import { INSTANT, INSTANT_RULE, type Instant, parseInstant, unlessInCalendar } from '../../shared/dates.ts';
import type { Range } from '../../shared/ranges.ts';
import type { Dtype, Field } from '../../shared/registry/index.ts';
import type { Json } from '../../shared/strict-json.ts';
import type { Param } from '../db/pg-messages.ts';
import { array, bool, float8, int8, type Params, text, timestamptz, uuid } from '../db/pg-messages.ts';
import { anyOf, type JsonSchema, pascal, properties, refTo, ruledBy } from './json-schema.ts';
import { type ContractFault, MAX_FAULTS } from './problems.ts';

export const OPERATORS = ['eq', 'ne', 'gt', 'gte', 'lt', 'lte', 'in', 'not_in'] as const;
export type Operator = (typeof OPERATORS)[number];

const UUID = /^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$/;

/** PostgreSQL's text holds neither NUL nor lone surrogates, so no row can have such a value. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the expression excludes NUL on purpose
const STORABLE_TEXT = /^[^\u0000\ud800-\udfff]*$/u;

/** What of `STORABLE_TEXT` all dialects of patterns can say. A URL has no lone surrogates. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: the expression excludes NUL on purpose
export const WITHOUT_NUL = /^[^\x00]*$/;

const EQUALITY: readonly Operator[] = ['eq', 'ne', 'in', 'not_in'];

/** The operators of each type of field. */
export const OPERATORS_OF: Readonly<Record<Dtype, readonly Operator[]>> = {
  int64: OPERATORS,
  float64: OPERATORS,
  timestamp_utc: OPERATORS,
  string: EQUALITY,
  uuid: EQUALITY,
  bool01: ['eq', 'ne'],
  json: [],
};

export const MAX_FILTERS = 64;
/** The most values that one in/not_in list may hold. */
const MAX_LIST_VALUES = 10_000;

export interface FilterClause {
  readonly field: string;
  readonly op: Operator;
  readonly value: Json;
}

/** What a clause asks of a row. */
interface Condition {
  readonly field: Field;
  /** The SQL condition over the table alias `t`; it adds its values to the statement's parameters. */
  test(params: Params): string;
  /** The interval [from, to) that the field's value must lie in, for integers and for times in epoch ms. */
  readonly bounds?: Range;
  /** The integers, or times in epoch ms, that the field's value must be one of. */
  readonly among?: readonly number[];
  /** The texts that the field's value must be one of. */
  readonly equals?: readonly string[];
  /**
   * Conditions on one bound of the value. When every row fails one of them, the value lies beyond all stored values. Present only for
   * types that the database keeps a histogram of.
   */
  readonly boundTests?: readonly ((params: Params) => string)[];
  /**
   * For doubles: SQL over the smallest and the largest value of some rows, whether one of them may pass. Absent where the ends say
   * nothing, as for `ne`.
   */
  readonly rangeTest?: (least: string, greatest: string, params: Params) => string;
}

export interface Filter extends Condition {
  /** As the request has it. */
  readonly clause: FilterClause;
}

/**
 * The schema of a filter value by dtype, for the contract's documents; `parseValue` enforces the same rules. The bounds of
 * 64 bits are those of the format: as numbers of JSON many readers round them. Few dialects of patterns know surrogates, so
 * that texts with half a pair are refused by the service alone.
 */
const VALUE_SCHEMAS: Readonly<Record<Dtype, JsonSchema>> = {
  int64: { type: 'integer', format: 'int64' },
  float64: { type: 'number', format: 'double' },
  timestamp_utc: { type: 'string', pattern: INSTANT.source },
  string: { type: 'string', pattern: WITHOUT_NUL.source },
  uuid: { type: 'string', pattern: UUID.source },
  bool01: { type: 'integer', minimum: 0, maximum: 1 },
  json: {},
};

/** The schema of a dtype's operators, each with the value it takes. */
export function comparisonSchema(dtype: Dtype): JsonSchema {
  const value = VALUE_SCHEMAS[dtype];
  const list = { type: 'array', minItems: 1, maxItems: MAX_LIST_VALUES, items: value };
  const forms: readonly (readonly [readonly Operator[], JsonSchema])[] = [
    [['eq', 'ne'], { anyOf: [value, { type: 'null' }] }],
    [['gt', 'gte', 'lt', 'lte'], value],
    [['in', 'not_in'], list],
  ];
  const taken = forms
    .map(([ops, schema]) => [ops.filter((op) => OPERATORS_OF[dtype].includes(op)), schema] as const)
    .filter(([ops]) => ops.length > 0)
    .map(([ops, schema]) => properties({ op: { enum: ops }, value: schema }));
  return {
    description: `The operators and values of a filter on a field of ${dtype}.`,
    type: 'object',
    ...properties({ op: { type: 'string', enum: OPERATORS_OF[dtype] }, value: {} }),
    ...ruledBy(anyOf(taken)),
  };
}

/** The name of the OpenAPI component that holds `comparisonSchema(dtype)`. */
export const comparisonOf = (dtype: Dtype): string => `${pascal(dtype)}Comparison`;

/** The schema of a filter clause over these fields: it ties operators and values to each field. */
export function clauseSchema(fields: readonly Field[]): JsonSchema {
  const usable = fields.filter(({ dtype }) => OPERATORS_OF[dtype].length > 0);
  const kinds = [...Map.groupBy(usable, ({ dtype }) => dtype)].map(([dtype, same]) => ({
    allOf: [properties({ field: { enum: same.map(({ name }) => name) } }), refTo(comparisonOf(dtype))],
  }));
  return {
    type: 'object',
    ...properties({
      field: { type: 'string', enum: usable.map(({ name }) => name) },
      op: { type: 'string', enum: OPERATORS },
      value: {},
    }),
    required: ['field', 'op', 'value'],
    ...ruledBy(anyOf(kinds)),
  };
}

/** Checks a clause's value against its field. Returns the filter, or every fault. `pointer` locates the clause in the body. */
export function parseFilter(
  field: Field,
  op: Operator,
  value: Json | undefined,
  pointer: string,
): Condition | readonly ContractFault[] {
  const allowed = OPERATORS_OF[field.dtype];
  if (!allowed.includes(op)) {
    const message =
      allowed.length === 0
        ? `cannot be used on ${field.name}: ${field.dtype} takes no filter`
        : `must be one of ${allowed.join(', ')} for ${field.name} (${field.dtype})`;
    return [{ pointer: `${pointer}/op`, message }];
  }
  if (value === null && (op === 'eq' || op === 'ne')) {
    const test = `(${field.sql}) is ${op === 'eq' ? '' : 'not '}null`;
    return { field, test: () => test };
  }
  if (op === 'in' || op === 'not_in') return parseList(field, op, value, `${pointer}/value`);
  const parsed = parseValue(field, value);
  if (typeof parsed === 'string') return [{ pointer: `${pointer}/value`, message: parsed }];
  return comparison(field, op, parsed);
}

type Comparison = Exclude<Operator, 'in' | 'not_in'>;

const SQL_OPERATOR: Readonly<Record<Comparison, string>> = {
  eq: '=',
  ne: '<>',
  gt: '>',
  gte: '>=',
  lt: '<',
  lte: '<=',
};

const HISTOGRAMS: readonly Dtype[] = ['int64', 'float64', 'timestamp_utc'];

const BOUND_OPERATORS: Readonly<Partial<Record<Comparison, readonly string[]>>> = {
  eq: ['>=', '<='],
  gt: ['>'],
  gte: ['>='],
  lt: ['<'],
  lte: ['<='],
};

/** By operator: which end of a range is compared with the value, and how. */
const RANGE_OPERATORS: Readonly<Partial<Record<Comparison, readonly (readonly ['least' | 'greatest', string])[]>>> = {
  eq: [
    ['least', '<='],
    ['greatest', '>='],
  ],
  gt: [['greatest', '>']],
  gte: [['greatest', '>=']],
  lt: [['least', '<']],
  lte: [['least', '<=']],
};

function rangeTestOf(field: Field, op: Comparison, { param }: Value): Condition['rangeTest'] {
  const tests = field.dtype === 'float64' ? RANGE_OPERATORS[op] : undefined;
  if (!tests) return undefined;
  return (least, greatest, params) =>
    `(${tests.map(([end, sql]) => `${end === 'least' ? least : greatest} ${sql} ${params.add(param)}`).join(' and ')})`;
}

function comparison(field: Field, op: Comparison, value: Value): Condition {
  const bounds = value.instant && instantBounds(op, value.instant);
  if (isFiner(value)) {
    // Rows hold whole milliseconds, so none equals a finer instant, and its floor decides which rows are before or after it.
    if (op === 'eq') return { field, test: () => 'false', bounds };
    if (op === 'ne') return { field, test: () => `(${field.sql}) is not null` };
    const sql = op === 'gt' || op === 'gte' ? '>' : '<=';
    return { field, bounds, test: (params) => `(${field.sql}) ${sql} ${params.add(value.param)}` };
  }
  const equals = op === 'eq' && value.text !== undefined ? [value.text] : undefined;
  const testBy = (sql: string) => (params: Params) => `(${field.sql}) ${sql} ${params.add(value.param)}`;
  const boundTests =
    BOUND_OPERATORS[op] && HISTOGRAMS.includes(field.dtype) ? BOUND_OPERATORS[op].map(testBy) : undefined;
  return {
    field,
    bounds,
    among: op === 'eq' && value.instant ? [value.instant.ms] : undefined,
    equals,
    boundTests,
    rangeTest: rangeTestOf(field, op, value),
    test: testBy(SQL_OPERATOR[op]),
  };
}

function parseList(
  field: Field,
  op: 'in' | 'not_in',
  value: Json | undefined,
  pointer: string,
): Condition | readonly ContractFault[] {
  if (!Array.isArray(value) || value.length === 0) {
    return [{ pointer, message: `must be a list of at least one value for ${op}` }];
  }
  if (value.length > MAX_LIST_VALUES) return [{ pointer, message: `must hold at most ${MAX_LIST_VALUES} values` }];
  const faults: ContractFault[] = [];
  const values: Value[] = [];
  for (const [index, element] of value.entries()) {
    if (faults.length > MAX_FAULTS) break;
    const parsed = parseValue(field, element);
    if (typeof parsed === 'string') faults.push({ pointer: `${pointer}/${index}`, message: parsed });
    // A time finer than a millisecond equals no row, so it has no effect on the list.
    else if (!isFiner(parsed)) values.push(parsed);
  }
  if (faults.length > 0) return faults;
  if (values.length === 0) return { field, test: () => (op === 'in' ? 'false' : `(${field.sql}) is not null`) };
  const list = array(values.map((element) => element.param));
  const sql = op === 'in' ? '= any' : '<> all';
  const times = values.map((element) => element.instant?.ms ?? Number.NaN);
  const from = Math.min(...times);
  const areTimes = op === 'in' && !Number.isNaN(from);
  const bounds = areTimes ? { from, to: Math.max(...times) + 1 } : undefined;
  const among = areTimes ? times : undefined;
  const texts = values.flatMap((element) => element.text ?? []);
  const equals = op === 'in' && texts.length > 0 ? texts : undefined;
  const numbers = values.flatMap((element) => element.number ?? []);
  const rangeTest: Condition['rangeTest'] =
    op === 'in' && numbers.length > 0
      ? (least, greatest, params) =>
          `(${least} <= ${params.add(float8(numbers.reduce((a, b) => Math.max(a, b))))}
            and ${greatest} >= ${params.add(float8(numbers.reduce((a, b) => Math.min(a, b))))})`
      : undefined;
  return { field, bounds, among, equals, rangeTest, test: (params) => `(${field.sql}) ${sql} (${params.add(list)})` };
}

/** A value ready to be bound. */
interface Value {
  readonly param: Param;
  /** The value as a time in ms, for times and for integers that may be times in ms. */
  readonly instant?: Instant;
  readonly text?: string;
  /** Of a double. */
  readonly number?: number;
}

const isFiner = (value: Value) => value.instant?.exact === false;

const INT64_MIN = -(2n ** 63n);
const INT64_MAX = 2n ** 63n - 1n;

/** @returns the value, or the rule that it breaks. */
function parseValue(field: Field, value: Json | undefined): Value | string {
  switch (field.dtype) {
    case 'int64': {
      const isWhole = typeof value === 'bigint' || (typeof value === 'number' && Number.isInteger(value));
      if (!isWhole || BigInt(value) < INT64_MIN || BigInt(value) > INT64_MAX) {
        return 'must be a 64-bit integer';
      }
      return {
        param: int8(value),
        instant: Number.isSafeInteger(value) ? { ms: Number(value), exact: true } : undefined,
      };
    }
    case 'float64': {
      const number = typeof value === 'bigint' ? Number(value) : value;
      if (typeof number !== 'number' || !Number.isFinite(number)) return 'must be a finite number';
      return { param: float8(number), number };
    }
    case 'bool01':
      return value === 0 || value === 1 ? { param: bool(value === 1) } : 'must be 0 or 1';
    case 'timestamp_utc': {
      const instant = typeof value === 'string' ? parseInstant(value) : undefined;
      if (!instant) return `${INSTANT_RULE}${unlessInCalendar(value)}`;
      return { param: field.pg === 'int8' ? int8(instant.ms) : timestamptz(instant.ms), instant };
    }
    case 'uuid':
      return typeof value === 'string' && UUID.test(value) ? { param: uuid(value) } : 'must be a UUID';
    case 'string':
      if (typeof value !== 'string') return 'must be a string';
      return STORABLE_TEXT.test(value) ? { param: text(value), text: value } : TEXT_RULE;
    case 'json':
      return 'cannot be filtered';
  }
}

export const TEXT_RULE = 'must be Unicode text without NUL';

/** The interval [from, to) in ms that satisfies the comparison. */
function instantBounds(op: Comparison, { ms, exact }: Instant): Condition['bounds'] {
  const ceil = exact ? ms : ms + 1;
  switch (op) {
    case 'eq':
      return { from: ms, to: ms + 1 };
    case 'gt':
      return { from: ms + 1, to: Number.POSITIVE_INFINITY };
    case 'gte':
      return { from: ceil, to: Number.POSITIVE_INFINITY };
    case 'lt':
      return { from: Number.NEGATIVE_INFINITY, to: ceil };
    case 'lte':
      return { from: Number.NEGATIVE_INFINITY, to: ms + 1 };
    case 'ne':
      return undefined;
  }
}
