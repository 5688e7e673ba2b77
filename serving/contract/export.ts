/** Parses the body of POST /v1/raw/export. The parser reports every fault of the body at once. */
import { createHash } from 'node:crypto';
import { z } from 'zod';
import { LAST_MS } from '../../shared/dates.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASET_KEYS, DATASETS, type DatasetKey } from '../../shared/registry/index.ts';
import type { Json } from '../../shared/strict-json.ts';
import { properties } from './json-schema.ts';
import { contractsOf, fieldsOf, filtersOf, pinnedView, rawRules, selectors, windowOf } from './query.ts';
import type { ReadRequest, Window } from './read-request.ts';
import { type DatasetPointer, faultsBetween, isObject, modeOf, needsOneOf, type Rule, schemaOfRules } from './rules.ts';
import {
  body as bodyOf,
  type Columns,
  documentedBody,
  faultsOf,
  integer,
  mode as modeKey,
  type Parsed,
  selection,
  strict,
} from './shapes.ts';

export const EXPORT_FORMATS = ['parquet', 'csv'] as const;
export type ExportFormat = (typeof EXPORT_FORMATS)[number];

/** A valid request. */
export interface ExportRequest {
  readonly datasetKey: DatasetKey;
  readonly mode: Mode;
  readonly format: ExportFormat;
  readonly strict: boolean;
  readonly window: Window;
  readonly read: ReadRequest;
  /** The body that the export stores: with the seed that the service drew for it. */
  readonly body: Readonly<Record<string, unknown>>;
  /** Whether the body carries the caller's own storage credential. The service knows the key and does not support it. */
  readonly hasAuthToken: boolean;
}

const SELECTORS = ['month_year', 'time_range', 'n_rows', 'n_random'];

const POINTER: DatasetPointer = {
  datasetOf: ({ dataset }) => (typeof dataset === 'string' ? DATASETS.get(dataset) : undefined),
  isOneOf: (keys) => properties({ dataset: { enum: keys } }),
};

const RULES: readonly Rule[] = [
  needsOneOf(SELECTORS, `must have exactly one of ${SELECTORS.join(', ')}`),
  ...rawRules(
    POINTER,
    SELECTORS.map((key) => [key]),
  ),
];

const FIRST_YEAR = 1970;
const LAST_YEAR = 9999;

const exportBody = (columns: Columns | undefined) =>
  bodyOf({
    mode: modeKey,
    format: z
      .enum(EXPORT_FORMATS, { error: `must be one of ${EXPORT_FORMATS.join(', ')}` })
      .meta({ description: 'What the file is.' }),
    dataset: z
      .enum(DATASET_KEYS, { error: `must be one of ${DATASET_KEYS.join(', ')}` })
      .meta({ description: 'The dataset.' }),
    ...pinnedView,
    month_year: z
      .tuple([integer(1, 12), integer(FIRST_YEAR, LAST_YEAR)], {
        error: 'must be a list of two integers, [month, year]',
      })
      .optional()
      .meta({ description: 'A UTC month, as `[month, year]`.' }),
    ...selectors,
    ...selection(columns),
    strict,
    auth_token: z.string({ error: 'must be a string' }).optional().meta({
      description: 'Refused: an export cannot run with a caller’s own storage credentials.',
      deprecated: true,
    }),
  });

/** The schema of a body for any dataset, as the contract's documents show it. */
export const exportSchema = documentedBody(exportBody(undefined), schemaOfRules(RULES));

const contractOf = contractsOf(exportBody);

export function parseExport(body: Json): Parsed<ExportRequest> {
  const raw = isObject(body) ? body : {};
  const mode = modeOf(raw);
  const dataset = POINTER.datasetOf(raw);
  const { columns, schema } = contractOf(dataset, mode);
  const outcome = schema.safeParse(body);
  const faults = outcome.success ? [] : faultsOf(outcome.error, schema);
  if (isObject(body)) faults.push(...faultsBetween(RULES, raw));
  const filters = filtersOf(raw, columns, faults);
  if (!outcome.success || faults.length > 0) return { faults };
  const {
    fields,
    strict: isStrict,
    dataset: datasetKey,
    format,
    auth_token,
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
    asOfMs: as_of?.ms,
  };
  const storedBody = { ...raw, ...(window.kind === 'random' && { random_seed: window.seed }) };
  return {
    value: {
      datasetKey,
      mode,
      format,
      strict: isStrict,
      window,
      read,
      body: storedBody,
      hasAuthToken: auth_token !== undefined,
    },
  };
}

function monthWindow([month, year]: readonly [number, number]): Window {
  const start = (index: number) => Date.UTC(year, index, 1);
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
