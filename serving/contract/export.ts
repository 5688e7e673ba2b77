/** Parses the body of POST /v1/raw/export. The parser reports every fault of the body at once. */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { INSTANT, LAST_MS } from '../../shared/dates.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import type { Json, JsonObject } from '../../shared/strict-json.ts';
import { FRAME_RULES, type FrameRequest, frameColumns, frameKeys, frameKeysAt, frameOf } from './frame.ts';
import { type FindInstrument, INSTRUMENT_POINTER, instrumentKey, instrumentOf, NO_INSTRUMENTS } from './instruments.ts';
import { conditional, has, properties, whereIs, without } from './json-schema.ts';
import type { ContractFault } from './problems.ts';
import { contractsOf, fieldsOf, filtersOf, pinnedView, rawRules, selectors, windowOf } from './query.ts';
import type { ReadRequest, Window } from './read-request.ts';
import { type DatasetPointer, faultsBetween, isObject, modeOf, needsOneOf, type Rule, schemaOfRules } from './rules.ts';
import {
  body as bodyOf,
  type Columns,
  type CsvFormulas,
  csvFormulas,
  datasetKey,
  documentedBody,
  faultsOf,
  integer,
  mode as modeKey,
  type Parsed,
  selection,
  silences,
  strict,
} from './shapes.ts';

export const EXPORT_FORMATS = ['parquet', 'csv'] as const;
export type ExportFormat = (typeof EXPORT_FORMATS)[number];

/** How the files of each format may be compressed, the default first. */
export const COMPRESSIONS = {
  parquet: ['zstd', 'snappy', 'none'],
  csv: ['none', 'gzip', 'zstd'],
} as const satisfies Record<ExportFormat, readonly string[]>;
export type Compression = (typeof COMPRESSIONS)[ExportFormat][number];
const ALL_COMPRESSIONS = [...new Set(Object.values(COMPRESSIONS).flat())];

/** What an export reads: the rows of a dataset, or a frame. */
export type ExportSubject = ReadRequest | FrameRequest;

export const isFrame = (subject: ExportSubject): subject is FrameRequest => 'columns' in subject;

/** A valid request. */
export interface ExportRequest {
  /** The datasets that it reads: one, or those of a frame's columns. */
  readonly datasets: readonly [DatasetDefinition, ...DatasetDefinition[]];
  readonly mode: Mode;
  readonly format: ExportFormat;
  readonly compression: Compression;
  readonly csvFormulas?: CsvFormulas;
  readonly strict: boolean;
  readonly window: Window;
  readonly subject: ExportSubject;
  /** The body that the export stores: with the seed that the service drew for it. */
  readonly body: JsonObject;
  /** Whether the body carries the caller's own storage credential. The service knows the key and does not support it. */
  readonly hasAuthToken: boolean;
}

const SELECTORS = ['month_year', 'time_range', 'n_rows', 'n_random'];

const POINTER: DatasetPointer = {
  datasetOf: ({ dataset }) => (typeof dataset === 'string' ? DATASETS.get(dataset) : undefined),
  isOneOf: (keys) => properties({ dataset: { enum: keys } }),
};

const COMPRESSION_OF_FORMAT: Rule = {
  faults({ format, compression }) {
    const known = EXPORT_FORMATS.find((one) => one === format);
    if (!known || !ALL_COMPRESSIONS.some((one) => one === compression)) return [];
    const allowed: readonly string[] = COMPRESSIONS[known];
    if (allowed.includes(String(compression))) return [];
    return [{ pointer: '/compression', message: `must be one of ${allowed.join(', ')} for ${known}` }];
  },
  schema: {
    allOf: EXPORT_FORMATS.map((format) =>
      whereIs('format', format, properties({ compression: { enum: COMPRESSIONS[format] } })),
    ),
  },
};

const FORMULAS_OF_CSV: Rule = {
  faults: ({ format, csv_formulas }) =>
    csv_formulas !== undefined && format === 'parquet'
      ? [
          {
            pointer: '/csv_formulas',
            message: 'is of CSV alone; Parquet has no cells that a spreadsheet takes for formulas',
          },
        ]
      : [],
  schema: whereIs('format', 'parquet', without(['csv_formulas'])),
};
const FILE_RULES: readonly Rule[] = [COMPRESSION_OF_FORMAT, FORMULAS_OF_CSV];

const RULES: readonly Rule[] = [
  ...FILE_RULES,
  needsOneOf(SELECTORS, `must have exactly one of ${SELECTORS.join(', ')}`),
  ...rawRules(
    POINTER,
    SELECTORS.map((key) => [key]),
  ),
];

const FIRST_YEAR = 1;
const LAST_YEAR = 9999;

/** The keys that say what the file is, and one that no export takes. */
const fileKeys = {
  format: z
    .enum(EXPORT_FORMATS, { error: `must be one of ${EXPORT_FORMATS.join(', ')}` })
    .meta({ description: 'What the file is.' }),
  compression: z
    .enum(ALL_COMPRESSIONS, { error: `must be one of ${ALL_COMPRESSIONS.join(', ')}` })
    .optional()
    .meta({
      description: 'Of Parquet `zstd` (default), `snappy` or `none`; of CSV `none` (default), `gzip` or `zstd`.',
    }),
  csv_formulas: csvFormulas,
  auth_token: z.string({ error: 'must be a string' }).optional().meta({
    description: 'Refused: an export cannot run with a caller’s own storage credentials.',
    deprecated: true,
  }),
};

const rowKeys = (columns: Columns | undefined) => ({
  mode: modeKey,
  ...fileKeys,
  dataset: datasetKey.meta({ description: 'The dataset; a frame has `columns` instead.' }),
  instrument: instrumentKey,
  ...pinnedView,
  month_year: z
    .tuple([integer(1, 12), integer(FIRST_YEAR, LAST_YEAR)], {
      error: 'must be a list of two integers, [month, year]',
    })
    .optional()
    .meta({ description: 'A UTC month, as `[month, year]`.' }),
  ...selectors,
  ...selection(columns),
  silences,
  strict,
});

const exportBody = (columns: Columns | undefined) => bodyOf(rowKeys(columns));

const frameBody = bodyOf({ ...fileKeys, ...frameKeys });
const ALL_FRAME_RULES = [...FILE_RULES, ...FRAME_RULES];

const { dataset, ...optionalKeys } = rowKeys(undefined);
const withoutThose = (keys: readonly string[], except: object) => without(keys.filter((key) => !(key in except)));

/** The schema of a body for any dataset or a frame, as the contract's documents show it. */
export const exportSchema = documentedBody(
  'ExportRequest',
  bodyOf({
    ...optionalKeys,
    dataset: dataset.optional(),
    ...frameKeys,
    columns: frameKeys.columns.optional(),
    grid: frameKeys.grid.optional(),
  }),
  conditional(
    has('columns'),
    {
      ...has('grid'),
      allOf: [
        withoutThose([...Object.keys(optionalKeys), 'dataset'], { ...fileKeys, ...frameKeys }),
        schemaOfRules(ALL_FRAME_RULES),
      ],
    },
    {
      ...has('dataset'),
      allOf: [
        withoutThose(Object.keys(frameKeys), optionalKeys),
        properties({ as_of: { type: 'string', pattern: INSTANT.source } }),
        schemaOfRules(RULES),
      ],
    },
  ),
);

const contractOf = contractsOf(exportBody);

export function parseExport(body: Json, find: FindInstrument = NO_INSTRUMENTS): Parsed<ExportRequest> {
  const raw = isObject(body) ? body : {};
  if ('columns' in raw) return parseFrameExport(raw, find);
  const mode = modeOf(raw);
  const named: ContractFault[] = [];
  const at = { find, pointer: INSTRUMENT_POINTER, faults: named };
  const dataset = instrumentOf(POINTER.datasetOf(raw), raw.instrument, at);
  const { columns, schema } = contractOf(dataset, mode);
  const outcome = schema.safeParse(body);
  const faults = [...named, ...(outcome.success ? [] : faultsOf(outcome.error, schema))];
  if (isObject(body)) faults.push(...faultsBetween(RULES, raw, columns));
  const filters = filtersOf(raw, columns, faults);
  if (!outcome.success || faults.length > 0) return { faults };
  const {
    fields,
    strict: isStrict,
    dataset: _,
    instrument: __,
    format,
    compression,
    auth_token,
    csv_formulas,
    silences: warned,
    month_year,
    as_of,
    ...data
  } = outcome.data;
  const window: Window = month_year ? monthWindow(month_year) : windowOf(data);
  const read = {
    dataset: dataset!,
    mode,
    fields: fieldsOf(fields, columns!),
    filters,
    window,
    strict: isStrict,
    silences: warned,
    asOfMs: as_of?.ms,
  };
  // The default's own name says nothing that its absence does not.
  const { instrument, ...others } = raw;
  const storedBody = {
    ...others,
    ...(instrument !== undefined && dataset!.instrument !== undefined && { instrument }),
    ...(window.kind === 'random' && { random_seed: window.seed }),
  };
  return {
    value: {
      datasets: [dataset!],
      mode,
      format,
      compression: compression ?? COMPRESSIONS[format][0],
      csvFormulas: csv_formulas,
      strict: isStrict,
      window,
      subject: read,
      body: storedBody,
      hasAuthToken: auth_token !== undefined,
    },
  };
}

function parseFrameExport(raw: JsonObject, find: FindInstrument): Parsed<ExportRequest> {
  const outcome = frameBody.safeParse(raw);
  const faults = outcome.success ? [] : faultsOf(outcome.error, frameBody, frameKeysAt);
  faults.push(...faultsBetween(ALL_FRAME_RULES, raw));
  const columns = frameColumns(raw, outcome.success ? outcome.data : undefined, { find, faults });
  if (!outcome.success || faults.length > 0) return { faults };
  const { format, compression, auth_token, ...data } = outcome.data;
  const frame = frameOf(data, columns, raw);
  const [first, ...others] = new Set(columns.map(({ dataset }) => dataset));
  return {
    value: {
      datasets: [first, ...others],
      mode: 'native',
      format,
      compression: compression ?? COMPRESSIONS[format][0],
      csvFormulas: frame.csvFormulas,
      strict: frame.strict,
      window: frame.window,
      subject: frame,
      body: raw,
      hasAuthToken: auth_token !== undefined,
    },
  };
}

function monthWindow([month, year]: readonly [number, number]): Window {
  // `Date.UTC` takes the years 0 to 99 for those of the twentieth century.
  const start = (index: number) => new Date(0).setUTCFullYear(year, index, 1);
  return { kind: 'range', fromMs: start(month - 1), toMs: Math.min(start(month), LAST_MS) };
}

/** The digest of a request. It does not depend on the body's layout or on the order of its keys. */
export function requestDigest(body: Json): string {
  return createHash('sha256').update(canonical(body)).digest('hex');
}

function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  if (!isObject(value)) return typeof value === 'bigint' ? value.toString() : JSON.stringify(value);
  const members = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${members.join(',')}}`;
}
