/** Pieces of request bodies that all access styles have in common, as schemas. What a fault says is said here once. */

import { z } from 'zod';
import type { Field } from '../../shared/registry/index.ts';
import type { Mode } from '../../shared/registry/types.ts';
import { MAX_FILTERS, OPERATORS } from './filters.ts';
import { type ContractFault, MAX_FAULTS } from './problems.ts';
import { INSTANT, INSTANT_RULE, parseInstant } from './time.ts';

/** What somebody who mistyped a name probably meant. */

/** Longer texts are no slips of the pen. */
const MAX_LENGTH = 200;

/** How many letters are to be added, left out, changed or swapped with their neighbour to make one text of the other. */
export function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let last = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row++) {
    const line = [row];
    for (let column = 1; column <= b.length; column++) {
      const changed = last[column - 1] + (a[row - 1] === b[column - 1] ? 0 : 1);
      line[column] = Math.min(last[column] + 1, line[column - 1] + 1, changed);
      const isSwapped = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1];
      if (isSwapped) line[column] = Math.min(line[column], before[column - 2] + 1);
    }
    before = last;
    last = line;
  }
  return last[b.length];
}

/** The name that is most like it, if one is: a letter in three may differ. */
export function closestName(text: string, names: readonly string[]): string | undefined {
  if (text.length > MAX_LENGTH) return undefined;
  const lower = text.toLowerCase();
  let best: string | undefined;
  let least = Math.floor(text.length / 3) + 0.5;
  for (const name of names) {
    const far = editDistance(lower, name.toLowerCase());
    if (far < least) {
      best = name;
      least = far;
    }
  }
  return best;
}

export const MODES = ['native', 'aligned_1s'] as const satisfies readonly Mode[];

/** Where a body says none. */
export const DEFAULT_MODE = 'native' satisfies Mode;

/** A checked request, or everything that is wrong with it. */
export type Parsed<T> = { readonly value: T } | { readonly faults: readonly ContractFault[] };

/** No dataset has as many. */
export const MAX_FIELDS = 200;
/** Larger than any history; what is larger still is a mistake. */
const MAX_COUNT = Number.MAX_SAFE_INTEGER;

export const mode = z
  .enum(MODES, { error: `must be one of ${MODES.join(', ')}` })
  .default(DEFAULT_MODE)
  .meta({ description: 'Rows as the source has them, or one row a UTC second and series.' });

export const boolean = z.boolean({ error: 'must be true or false' });

export const strict = boolean
  .default(false)
  .meta({ description: 'An answer that would carry a warning is 409 instead.' });

export function integer(min: number, max = MAX_COUNT) {
  const bounds = `${min === -MAX_COUNT ? '' : ` from ${min}`}${max === MAX_COUNT ? '' : ` to ${max}`}`;
  const error = bounds ? `must be an integer${bounds}` : `must be an integer of at most 53 bits`;
  return z.int({ error }).min(min, { error }).max(max, { error });
}

/** `n` of a window, and the seed of a random one. */
export const latestRows = integer(1).optional().meta({ description: 'The last n rows of the order, ascending.' });
export const randomRows = integer(1)
  .optional()
  .meta({ description: 'A uniform sample of n rows without replacement, in the order of rows.' });
export const randomSeed = integer(-MAX_COUNT)
  .optional()
  .meta({ description: 'Draws the same sample again, while the same rows are proved.' });

/**
 * A text that a parser understands; `rule` says what the parser takes.
 * @param pattern what every such text matches, for the contract's documents
 */
export function parsedText<T>(parse: (text: string) => T | undefined, rule: string, pattern?: RegExp) {
  const written = z.string({ error: rule });
  return (pattern ? written.regex(pattern, { error: rule }) : written).transform((text, context): T => {
    const parsed = parse(text);
    if (parsed !== undefined) return parsed;
    context.addIssue({ code: 'custom', message: rule });
    return z.NEVER;
  });
}

/** A time of the contract. */
export const instant = parsedText(parseInstant, INSTANT_RULE, INSTANT).meta({ format: 'date-time' });

/** Of datasets whose values are revised (see `asOfFaults`). */
export const asOf = instant
  .optional()
  .meta({ description: 'Rows as they were known at this time, without what was published later; macro series only.' });

/** Columns that a request may name: those of one dataset and mode, say. */
export interface Columns {
  /** Of the components of the contract's documents that are about them. */
  readonly name: string;
  /** Whose they are, for people. */
  readonly of: string;
  readonly all: readonly Field[];
  /** Where a request names none. */
  readonly default: readonly Field[];
}

/** `fields` and `filters`, checked against the columns, or only for shape where those are not known. */
export function selection(columns: Columns | undefined) {
  const names = columns?.all.map((field) => field.name);
  const error = names ? `must be a field of ${columns?.of}: ${names.join(', ')}` : 'must be the name of a field';
  const name = names ? z.enum(names, { error }) : z.string({ error }).min(1, { error });
  const clause = z.strictObject(
    {
      field: name,
      op: z.enum(OPERATORS, { error: `must be one of ${OPERATORS.join(', ')}` }),
      // What it may be is asked by `filtersOf`, which knows the field.
      value: z.unknown().nonoptional({ error: 'is missing' }),
    },
    { error: objectError('must be an object of field, op and value') },
  );
  return {
    fields: z
      .array(name, { error: 'must be a list of field names' })
      .min(1, { error: 'must name at least one field; leave it out for all of them' })
      .max(MAX_FIELDS, { error: `must name at most ${MAX_FIELDS} fields` })
      .optional()
      .meta({ description: 'Exactly these fields, in this order; left out: all, in documented order.' }),
    filters: z
      .array(clause, { error: 'must be a list of clauses {field, op, value}' })
      .max(MAX_FILTERS, { error: `must hold at most ${MAX_FILTERS} clauses` })
      .optional()
      .meta({ description: 'All of them must hold; applied before rows are counted off or drawn.' }),
  };
}

/** A whole body: keys that are not in `shape` are faults. */
export function body<Shape extends z.core.$ZodLooseShape>(shape: Shape) {
  return z.strictObject(shape, { error: objectError('must be a JSON object') });
}

/** The same with what the rules between its keys say, for the contract's documents. */
export const documentedBody = <S extends z.ZodType>(schema: S, keywords: Readonly<Record<string, unknown>>): S =>
  schema.meta(keywords);

/** An object schema reports two things: that the value is no object, and the keys it does not know. */
function objectError(notAnObject: string) {
  return (issue: { readonly code?: string }) => (issue.code === 'unrecognized_keys' ? undefined : notAnObject);
}

/** What is wrong with a body, and where; `schema` is what it was held against. */
export function faultsOf(error: z.ZodError, schema: z.ZodObject): ContractFault[] {
  return error.issues.flatMap((issue) => {
    const pointer = issue.path.map((part) => `/${pointerToken(String(part))}`).join('');
    if (issue.code !== 'unrecognized_keys') return [{ pointer, message: issue.message }];
    const known = issue.path.length === 0 ? Object.keys(schema.shape) : CLAUSE_KEYS;
    return issue.keys.slice(0, MAX_FAULTS + 1).map((key, index) => ({
      pointer: `${pointer}/${pointerToken(key)}`,
      message: `is no key of the contract${index < HINTED_KEYS ? hint(key, known, index) : ''}`,
    }));
  });
}

const CLAUSE_KEYS = ['field', 'op', 'value'];
/** Hints are for mistakes; a body of nothing but unknown keys is none. */
const HINTED_KEYS = 20;

/** The key that was probably meant; where none is like it all there are, once. */
function hint(key: string, known: readonly string[], index: number): string {
  const meant = closestName(key, known);
  if (meant !== undefined) return ` (did you mean ${meant}?)`;
  return index === 0 ? `; its keys are ${known.join(', ')}` : '';
}

const pointerToken = (text: string) => text.replaceAll('~', '~0').replaceAll('/', '~1');
