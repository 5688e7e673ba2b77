/** Schemas that the request bodies of all access styles share, and the messages of their faults. */
import { z } from 'zod';
import { INSTANT, INSTANT_RULE, parseInstant, unlessInCalendar } from '../../shared/dates.ts';
import { closestName } from '../../shared/nearest.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASET_KEYS, type Field } from '../../shared/registry/index.ts';
import { MAX_FILTERS, OPERATORS } from './filters.ts';
import { type JsonSchema, ruledBy } from './json-schema.ts';
import { type ContractFault, MAX_FAULTS } from './problems.ts';

/** The error of a name that is none of a list: the list, and the name that is meant if one is similar. */
export const oneOf = (names: readonly string[], rule = 'must be one of ') => ({
  error: ({ input }: { readonly input?: unknown }) => {
    const meant = typeof input === 'string' ? closestName(input, names) : undefined;
    return `${rule}${names.join(', ')}${meant === undefined ? '' : `; did you mean ${meant}?`}`;
  },
});

export const MODES = ['native', 'aligned_1s'] as const satisfies readonly Mode[];

/** In the names of components of the OpenAPI document. */
export const MODE_NAMES: Readonly<Record<Mode, string>> = { native: 'Native', aligned_1s: 'Aligned' };

/** The key of a dataset. */
export const datasetKey = z.enum(DATASET_KEYS, oneOf(DATASET_KEYS)).meta({ id: 'DatasetKey' });

/** The mode of a body that names none. */
export const DEFAULT_MODE = 'native' satisfies Mode;

/** A checked request, or everything that is wrong with it. */
export type Parsed<T> = { readonly value: T } | { readonly faults: readonly ContractFault[] };

/** No dataset has as many fields. */
export const MAX_FIELDS = 200;
/** Larger than any history; a larger number is a mistake. */
const MAX_COUNT = Number.MAX_SAFE_INTEGER;

export const mode = z
  .enum(MODES, { error: `must be one of ${MODES.join(', ')}` })
  .meta({ id: 'Mode' })
  .default(DEFAULT_MODE)
  .meta({ description: 'Rows as the source has them, or one row per UTC second and series.' });

export const boolean = z.boolean({ error: 'must be true or false' });

export const strict = boolean
  .default(false)
  .meta({ description: 'When true, the service answers 409 instead of answering with a warning.' });

export const silences = z.literal('warn', { error: 'must be "warn"' }).optional().meta({
  description: 'The warning `SILENCE_WITHIN_WINDOW` names times above a minute without a trade. Only trades have them.',
});

/** What becomes of CSV cells that a spreadsheet would take for formulas. */
export type CsvFormulas = 'escape';

export const csvFormulas = z.literal('escape', { error: 'must be "escape"' }).optional().meta({
  description:
    'Of CSV only: `escape` puts an apostrophe before texts that begin with `=`, `+`, `-`, `@`, a tab or a carriage return, so that no spreadsheet takes them for formulas. Numbers stay as they are.',
});

export function integer(min: number, max = MAX_COUNT) {
  const bounds = `${min === -MAX_COUNT ? '' : ` from ${min}`}${max === MAX_COUNT ? '' : ` to ${max}`}`;
  const text = bounds ? `must be an integer${bounds}` : 'must be an integer of at most 53 bits';
  // JSON has larger integers than a double holds exactly; the parser gives them as a bigint.
  const error = ({ input }: { readonly input?: unknown }) =>
    (typeof input === 'number' || typeof input === 'bigint') && input > MAX_COUNT ? `must be at most ${max}` : text;
  return z.int({ error, abort: true }).min(min, { error }).max(max, { error });
}

/** The keys of a window that counts rows. */
export const latestRows = integer(1)
  .optional()
  .meta({ description: 'The last n rows in the dataset’s order, ascending.' });
export const randomRows = integer(1)
  .optional()
  .meta({ description: 'A uniform sample of n rows without replacement, in the dataset’s order.' });
export const randomSeed = integer(-MAX_COUNT)
  .optional()
  .meta({ description: 'The same seed draws the same sample as long as the same rows are proved.' });

/**
 * A text that a parser understands; `rule` is the message for any other text.
 * @param pattern an expression that every such text matches, for the contract's documents
 */
export function parsedText<T>(parse: (text: string) => T | undefined, rule: string, pattern?: RegExp) {
  const written = z.string({ error: rule });
  const error = ({ input }: { readonly input?: unknown }) => `${rule}${unlessInCalendar(input)}`;
  return (pattern ? written.regex(pattern, { error }) : written).transform((text, context): T => {
    const parsed = parse(text);
    if (parsed !== undefined) return parsed;
    context.addIssue({ code: 'custom', message: rule });
    return z.NEVER;
  });
}

const UNIT_SECONDS: Readonly<Record<string, number>> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

/** A regular expression for the integers from 1 to `max`, written without leading zeros. */
function upTo(max: number): string {
  const digits = String(max);
  const shorter = digits.length === 1 ? [] : [`[1-9]\\d{0,${digits.length - 2}}`];
  const sameLength = [...digits].flatMap((digit, at) => {
    const below = Number(digit) - 1;
    const least = at === 0 ? 1 : 0;
    const rest = digits.length - at - 1;
    return below < least ? [] : [`${digits.slice(0, at)}[${least}-${below}]${rest === 0 ? '' : `\\d{${rest}}`}`];
  });
  return `(?:${[...shorter, ...sameLength, digits].join('|')})`;
}

/** A length of time as people write it elsewhere: `5min`, `1 hour`, `1H`, `PT5M`, `60`. */
const WRITTEN_LENGTH =
  /^(pt?)?0*([1-9]\d*)[\s_-]{0,3}(s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:(?:ee)?ks?)?|)$/i;

/** The length that is meant, as a body writes it. A capital M is a month to some, and means nothing here. */
function meantLength(input: unknown, maxSeconds: number): string | undefined {
  const [, period = '', count, word] = (typeof input === 'string' && input.trim().match(WRITTEN_LENGTH)) || [];
  if (count === undefined || (word === 'M' && period.length < 2)) return undefined;
  const unit = word.charAt(0).toLowerCase() || 's';
  return Number(count) * UNIT_SECONDS[unit] <= maxSeconds ? `${count}${unit}` : undefined;
}

/** A length of time in seconds. A body gives whole seconds as a number, or a count and a unit as text. */
export function duration(maxSeconds: number) {
  const rule = `must be an integer of seconds from 1 to ${maxSeconds}, or a text of the same length such as "90s", "1m", "4h", "1d" or "1w"`;
  const error = ({ input }: { readonly input?: unknown }) => {
    const meant = meantLength(input, maxSeconds);
    return `${rule}${meant === undefined ? '' : `; did you mean "${meant}"?`}`;
  };
  const counts = Object.entries(UNIT_SECONDS).map(
    ([unit, seconds]) => `${upTo(Math.floor(maxSeconds / seconds))}${unit}`,
  );
  const text = z.string({ error }).regex(new RegExp(`^(?:${counts.join('|')})$`), { error });
  return z
    .union([z.int({ error }).min(1, { error }).max(maxSeconds, { error }), text], { error })
    .transform((length): number =>
      typeof length === 'number' ? length : Number(length.slice(0, -1)) * UNIT_SECONDS[length.slice(-1)],
    );
}

/** The longest bucket of klines and frames: 31 days. */
export const MAX_BUCKET_SECONDS = 2_678_400;

/** A time of the contract. */
export const instant = parsedText(parseInstant, INSTANT_RULE, INSTANT);

/** For datasets whose values are revised (see `asOfOnlyWhereVintagesAre`). */
export const asOf = instant.optional().meta({
  description: 'Rows as they were known at this time, without later publications. Only for ETF and macro series.',
});

/** Columns that a request may name, such as those of one dataset and mode. */
export interface Columns {
  /** Prefix of the names of the OpenAPI components that describe these columns. */
  readonly name: string;
  /** The owner of the columns, for messages. */
  readonly of: string;
  readonly all: readonly Field[];
  /** The columns of a request that names none. */
  readonly default: readonly Field[];
}

const FIELD_NAME_RULE = 'must be the name of a field';
/** The name of a field that is not known yet. */
export const fieldName = z.string({ error: FIELD_NAME_RULE }).min(1, { error: FIELD_NAME_RULE });

/** A filter on a field. */
export const clauseOn = (name: z.ZodType<string>) =>
  z.strictObject(
    {
      field: name,
      op: z.enum(OPERATORS, { error: `must be one of ${OPERATORS.join(', ')}` }),
      // `filtersOf` checks the value, because it knows the field.
      value: z.unknown().nonoptional({ error: 'is missing' }),
    },
    { error: objectError('must be an object of field, op and value') },
  );

/** A filter on a field that is not known yet. */
export const anyClause = clauseOn(fieldName).meta({ id: 'FilterClause' });

/** The names that `fields` may hold, in words. */
export const fieldsTo = ({ of, all }: Columns): string =>
  `the fields of ${of} are ${all.map(({ name }) => name).join(', ')}`;

/** `fields` and `filters`, checked against the columns, or only for shape where the columns are unknown. */
export function selection(columns: Columns | undefined) {
  const names = columns?.all.map((field) => field.name);
  const name = names ? z.enum(names, oneOf(names, `must be a field of ${columns?.of}: `)) : fieldName;
  const clause = names ? clauseOn(name) : anyClause;
  return {
    fields: z
      .array(name, { error: 'must be a list of field names' })
      .min(1, {
        error: `must name at least one field${columns ? `; ${fieldsTo(columns)}` : ''}; leave it out for all of them`,
      })
      .max(MAX_FIELDS, { error: `must name at most ${MAX_FIELDS} fields` })
      .optional()
      .meta({
        description:
          'The answer holds exactly these fields, in this order. Without it: all fields, in the documented order.',
      }),
    filters: z
      .array(clause, { error: 'must be a list of clauses {field, op, value}' })
      .max(MAX_FILTERS, { error: `must hold at most ${MAX_FILTERS} clauses` })
      .optional()
      .meta({ description: 'A row must pass all of them. The service applies them before it counts or draws rows.' }),
  };
}

/** The schema of a whole body: a key that is not in `shape` is a fault. */
export function body<Shape extends z.core.$ZodLooseShape>(shape: Shape) {
  return z.strictObject(shape, { error: objectError('must be a JSON object') });
}

/** The same schema with its name and the rules between its keys, for the contract's documents. */
export const documentedBody = <S extends z.ZodType>(id: string, schema: S, rules: JsonSchema): S =>
  schema.meta({ id, ...ruledBy(rules) });

/** An object schema reports two things: that the value is not an object, and unknown keys. */
export function objectError(notAnObject: string) {
  return (issue: { readonly code?: string }) => (issue.code === 'unrecognized_keys' ? undefined : notAnObject);
}

/**
 * The faults of a body and where they are; `schema` is the schema that rejected it.
 * @param keysAt the keys of an object inside the body; by default those of a clause
 */
export function faultsOf(
  error: z.ZodError,
  schema: z.ZodObject,
  keysAt: (path: readonly PropertyKey[]) => readonly string[] = () => CLAUSE_KEYS,
): ContractFault[] {
  return error.issues.flatMap((issue) => {
    const pointer = issue.path.map((part) => `/${pointerToken(String(part))}`).join('');
    if (issue.code !== 'unrecognized_keys') return [{ pointer, message: issue.message }];
    const known = issue.path.length === 0 ? Object.keys(schema.shape) : keysAt(issue.path);
    return issue.keys.slice(0, MAX_FAULTS + 1).map((key, index) => ({
      pointer: `${pointer}/${pointerToken(key)}`,
      message: `is not a member of the request${index < HINTED_KEYS ? hintFor(key, known, index) : ''}`,
    }));
  });
}

export const CLAUSE_KEYS = ['field', 'op', 'value'];
/** Hints are for misspellings; a body that consists of unknown keys gets hints for the first ones only. */
const HINTED_KEYS = 20;

/** Names the most similar key. Where none is similar, the first fault lists all of them. */
function hintFor(key: string, known: readonly string[], index: number): string {
  // Only an export has a format; a caller who asks for one elsewhere learns how to get it.
  if (key === 'format') return '; the Accept header chooses the form of an answer, such as text/csv';
  const meant = closestName(key, known);
  if (meant !== undefined) return ` (did you mean ${meant}?)`;
  return index === 0 ? `; the members are ${known.join(', ')}` : '';
}

const pointerToken = (text: string) => text.replaceAll('~', '~0').replaceAll('/', '~1');
