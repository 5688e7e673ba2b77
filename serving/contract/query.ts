/** The body of POST /v1/raw/query, checked whole: every fault is reported at once. */
import { randomInt } from 'node:crypto';
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
import { type Filter, MAX_FILTERS, OPERATORS, type Operator, parseFilter } from './filters.ts';
import type { Json, JsonObject } from './json.ts';
import type { ContractFault } from './problems.ts';
import { ceilMs, INSTANT_RULE, type Instant, parseInstant } from './time.ts';

export const MODES = ['native', 'aligned_1s'] as const satisfies readonly Mode[];

/** A valid request. `read` is absent for a dataset that is part of the contract but not registered: it has no rows. */
export interface Query {
  readonly datasetKey: DatasetKey;
  readonly mode: Mode;
  readonly strict: boolean;
  readonly window: Window;
  readonly read: ReadRequest | undefined;
}

export type Parsed<T> = { readonly value: T } | { readonly faults: readonly ContractFault[] };

const SELECTORS = ['time_range', 'n_rows', 'n_random'] as const;
/** No dataset has as many. */
const MAX_FIELDS = 200;
/** Larger than any history; what is larger still is a mistake. */
const MAX_COUNT = Number.MAX_SAFE_INTEGER;

const integer = (min: number) => {
  const error = `must be an integer from ${min} to ${MAX_COUNT}`;
  return z.int({ error }).min(min, { error });
};

const instant = z.string({ error: INSTANT_RULE }).transform((text, context): Instant => {
  const parsed = parseInstant(text);
  if (parsed) return parsed;
  context.addIssue({ code: 'custom', message: INSTANT_RULE });
  return z.NEVER;
});

/** Fields and filters are checked against the field names of one dataset and mode, or only for shape. */
function bodySchema(dataset: DatasetDefinition | undefined, mode: Mode) {
  const names = dataset && shapeOf(dataset, mode).fields.map((field) => field.name);
  const nameError = names
    ? `must be a field of ${dataset?.key} in mode ${mode}: ${names.join(', ')}`
    : 'must be the name of a field';
  const name = names
    ? z.enum(names, { error: nameError })
    : z.string({ error: nameError }).min(1, { error: nameError });
  return z.strictObject(
    {
      mode: z.enum(MODES, { error: `must be one of ${MODES.join(', ')}` }).default('native'),
      sources: z.tuple([z.enum(DATASET_KEYS, { error: `must be one of ${DATASET_KEYS.join(', ')}` })], {
        error: 'must be a list of exactly one dataset key',
      }),
      view_id: z.string({ error: 'must be a string' }).optional(),
      view_version: integer(1).optional(),
      fields: z
        .array(name, { error: 'must be a list of field names' })
        .min(1, { error: 'must name at least one field; leave it out for all of them' })
        .max(MAX_FIELDS, { error: `must name at most ${MAX_FIELDS} fields` })
        .optional(),
      time_range: z.tuple([instant, instant], { error: 'must be a list of two times, [start, end)' }).optional(),
      n_rows: integer(1).optional(),
      n_random: integer(1).optional(),
      random_seed: integer(-MAX_COUNT).optional(),
      filters: z
        .array(
          z.strictObject(
            {
              field: name,
              op: z.enum(OPERATORS, { error: `must be one of ${OPERATORS.join(', ')}` }),
              value: z.unknown().optional(),
            },
            { error: objectError('must be an object of field, op and value') },
          ),
          { error: 'must be a list of clauses {field, op, value}' },
        )
        .max(MAX_FILTERS, { error: `must hold at most ${MAX_FILTERS} clauses` })
        .optional(),
      strict: z.boolean({ error: 'must be true or false' }).default(false),
    },
    { error: objectError('must be a JSON object') },
  );
}

type BodySchema = ReturnType<typeof bodySchema>;

/** An object schema reports two things: that the value is no object, and the keys it does not know. */
function objectError(notAnObject: string) {
  return (issue: { readonly code?: string }) => (issue.code === 'unrecognized_keys' ? undefined : notAnObject);
}

/** Schemas by dataset and mode, built once. */
const schemas = new Map<string, BodySchema>();

function schemaFor(dataset: DatasetDefinition | undefined, mode: Mode): BodySchema {
  const key = `${dataset?.key ?? ''} ${mode}`;
  let schema = schemas.get(key);
  if (!schema) {
    schema = bodySchema(dataset, mode);
    schemas.set(key, schema);
  }
  return schema;
}

export function parseQuery(body: Json): Parsed<Query> {
  const raw = isObject(body) ? body : {};
  const mode = MODES.find((known) => known === raw.mode) ?? 'native';
  const key = Array.isArray(raw.sources) ? raw.sources[0] : undefined;
  const dataset = typeof key === 'string' ? DATASETS.get(key) : undefined;
  const outcome = schemaFor(dataset, mode).safeParse(body);
  const faults = outcome.success ? [] : outcome.error.issues.flatMap(toFaults);
  faults.push(...crossFaults(raw, dataset, mode));
  const filters = dataset ? filtersOf(raw, dataset, mode, faults) : [];
  if (!outcome.success || faults.length > 0) return { faults };
  const data = outcome.data;
  const window = windowOf(data);
  if (!dataset) return { value: { datasetKey: data.sources[0], mode, strict: data.strict, window, read: undefined } };
  const { fields: all } = shapeOf(dataset, mode);
  const fields = data.fields?.map((wanted) => all.find((field) => field.name === wanted)!) ?? all;
  const read: ReadRequest = { dataset, mode, fields, filters, window, strict: data.strict };
  return { value: { datasetKey: data.sources[0], mode, strict: data.strict, window, read } };
}

function windowOf(data: z.output<BodySchema>): Window {
  if (data.time_range) {
    const [start, end] = data.time_range;
    return { kind: 'range', fromMs: ceilMs(start), toMs: ceilMs(end) };
  }
  if (data.n_rows !== undefined) return { kind: 'latest', rows: data.n_rows };
  if (data.n_random !== undefined) {
    return { kind: 'random', rows: data.n_random, seed: data.random_seed ?? randomInt(2 ** 47) };
  }
  return { kind: 'history' };
}

/** Rules between keys. They look at the raw body, so that they are reported beside wrong types. */
function crossFaults(raw: JsonObject, dataset: DatasetDefinition | undefined, mode: Mode): ContractFault[] {
  const faults: ContractFault[] = [];
  const given = SELECTORS.filter((selector) => selector in raw);
  if (given.length > 1) {
    for (const selector of given) {
      faults.push({ pointer: `/${selector}`, message: `only one of ${given.join(', ')} may be given` });
    }
  }
  if ('random_seed' in raw && !('n_random' in raw)) {
    faults.push({ pointer: '/random_seed', message: 'is only for n_random' });
  }
  if (Array.isArray(raw.fields)) {
    raw.fields.slice(0, MAX_FIELDS).forEach((name: Json, index) => {
      const first = (raw.fields as Json[]).indexOf(name);
      if (first < index) faults.push({ pointer: `/fields/${index}`, message: `repeats /fields/${first}` });
    });
  }
  if (Array.isArray(raw.time_range) && raw.time_range.length === 2) {
    const [start, end] = raw.time_range.map((text: Json) =>
      typeof text === 'string' ? parseInstant(text) : undefined,
    );
    // Compared as written, finer than rows are: an empty window is a mistake however small.
    if (start && end && !isBefore(raw.time_range[0] as string, start, raw.time_range[1] as string, end)) {
      faults.push({ pointer: '/time_range', message: 'must start before it ends' });
    }
  }
  faults.push(...viewFaults(raw, dataset, mode));
  return faults;
}

function isBefore(startText: string, start: Instant, endText: string, end: Instant): boolean {
  if (start.ms !== end.ms) return start.ms < end.ms;
  return fineness(startText) < fineness(endText);
}

/** Digits below the millisecond, comparable as text. */
const fineness = (text: string) => (/[.,]\d{3}(\d+)/.exec(text)?.[1] ?? '').padEnd(18, '0');

function viewFaults(raw: JsonObject, dataset: DatasetDefinition | undefined, mode: Mode): ContractFault[] {
  const hasId = 'view_id' in raw;
  const hasVersion = 'view_version' in raw;
  if (hasId !== hasVersion) {
    const [given, missing] = hasId ? ['view_id', 'view_version'] : ['view_version', 'view_id'];
    return [{ pointer: `/${given}`, message: `must be given together with ${missing}` }];
  }
  if (!hasId || !dataset) return [];
  const { view } = shapeOf(dataset, mode);
  const message = `mode ${mode} of ${dataset.key} has the view ${view.id}, version ${view.version}`;
  if (typeof raw.view_id === 'string' && raw.view_id !== view.id) return [{ pointer: '/view_id', message }];
  if (typeof raw.view_version === 'number' && raw.view_version !== view.version) {
    return [{ pointer: '/view_version', message }];
  }
  return [];
}

/** Typed filters of the clauses that are well-formed; their faults are added. */
function filtersOf(raw: JsonObject, dataset: DatasetDefinition, mode: Mode, faults: ContractFault[]): Filter[] {
  if (!Array.isArray(raw.filters)) return [];
  const { fields } = shapeOf(dataset, mode);
  const filters: Filter[] = [];
  raw.filters.slice(0, MAX_FILTERS).forEach((clause: Json, index) => {
    if (!isObject(clause)) return;
    const field = fields.find((known) => known.name === clause.field);
    const op = OPERATORS.find((known) => known === clause.op) as Operator | undefined;
    if (!('value' in clause)) faults.push({ pointer: `/filters/${index}/value`, message: 'is missing' });
    else if (field && op) {
      const parsed = parseFilter(field, op, clause.value, `/filters/${index}`);
      if ('field' in parsed) filters.push(parsed);
      else faults.push(...parsed);
    }
  });
  return filters;
}

function toFaults(issue: z.core.$ZodIssue): ContractFault[] {
  const pointer = issue.path.map((part) => `/${pointerToken(String(part))}`).join('');
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.map((key) => ({
      pointer: `${pointer}/${pointerToken(key)}`,
      message: 'is no key of the contract',
    }));
  }
  return [{ pointer, message: issue.message }];
}

const pointerToken = (text: string) => text.replaceAll('~', '~0').replaceAll('/', '~1');

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
