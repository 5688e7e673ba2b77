/** Documents the routes that answer with rows: schemas of bodies, rows and envelopes, and examples. */
import { z } from 'zod';
import type { Mode } from '../../shared/registry/definition.ts';
import {
  DATASET_KEYS,
  DATASETS,
  type DatasetDefinition,
  DTYPES,
  type Dtype,
  type Field,
} from '../../shared/registry/index.ts';
import { clauseSchema, comparisonOf, comparisonSchema, OPERATORS_OF } from '../contract/filters.ts';
import { AGGREGATES, frameSchema } from '../contract/frame.ts';
import {
  type HistoricalKind,
  historicalColumns,
  historicalSchema,
  klineColumns,
  tradeColumns,
} from '../contract/historical.ts';
import { INSTRUMENT_HEADERS } from '../contract/instruments.ts';
import { conditional, type JsonSchema, pascal, refTo } from '../contract/json-schema.ts';
import { columnsOf, querySchema } from '../contract/query.ts';
import { clausesOf, fieldNamesOf, rowOf } from '../contract/rules.ts';
import { type Columns, MODE_NAMES, MODES } from '../contract/shapes.ts';
import { count, datasetKey, grantedRights, instrumentName, textField, utc, warning } from '../discovery/schemas.ts';
import {
  type AnswerDoc,
  type AnswerHeaders,
  CHECKPOINT_HEADERS,
  FILE_BYTES,
  HISTORICAL_PROBLEMS,
  READ_PROBLEMS,
  type RouteDoc,
  SEARCHED_HEADERS,
  SYNTHETIC_HEADER,
} from '../http/routes.ts';
import { headerName } from '../render/json-rows.ts';
import { REPRESENTATIONS } from '../render/representations.ts';

type Schemas = Record<string, JsonSchema>;
type Io = 'input' | 'output';

const DEFINITIONS = '#/$defs/';
const COMPONENTS = '#/components/schemas/';

const toComponents = <T>(schema: T): T =>
  JSON.parse(JSON.stringify(schema).replaceAll(`"${DEFINITIONS}`, `"${COMPONENTS}`));

/** The JSON Schema of what a caller sends or receives. Its parts that have a name are references, and added to `components`. */
export function partOf(schema: z.ZodType | JsonSchema, io: Io, components: Schemas): JsonSchema {
  if (!(schema instanceof z.ZodType)) return schema;
  const {
    $schema: _,
    $defs,
    ...rest
  } = z.toJSONSchema(schema, { io, unrepresentable: 'any', override: forGenerators });
  Object.assign(components, $defs && toComponents($defs));
  return rest.$ref === undefined ? toComponents(rest) : components[rest.$ref.slice(DEFINITIONS.length)];
}

/** A reference to the schema among the components: under the name that it has, or else this one. */
export function componentOf(schema: z.ZodType | JsonSchema, io: Io, name: string, components: Schemas): JsonSchema {
  if (!(schema instanceof z.ZodType)) return schema;
  const id = z.globalRegistry.get(schema)?.id ?? name;
  // Reading a schema adds it under the name that it has itself.
  const read = partOf(schema, io, components);
  components[id] ??= read;
  return refTo(id);
}

let shared: Schemas | undefined;

/** The same without references, for people: of several answers the first stands for all. */
export function schemaOf(schema: z.ZodType | JsonSchema, io: Io): JsonSchema {
  shared ??= componentSchemas();
  const components = { ...shared };
  return inlined(partOf(schema, io, components), components) as JsonSchema;
}

function inlined(schema: unknown, components: Schemas): unknown {
  if (Array.isArray(schema)) return schema.map((one) => inlined(one, components));
  if (typeof schema !== 'object' || schema === null) return schema;
  const { $ref, oneOf, discriminator, ...rest } = schema as JsonSchema;
  if (typeof $ref === 'string') return inlined({ ...components[$ref.slice(COMPONENTS.length)], ...rest }, components);
  if (discriminator !== undefined) return inlined((oneOf as readonly unknown[])[0], components);
  return Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, inlined(value, components)]));
}

const MAX_INT32 = 2 ** 31 - 1;

/** What generators of clients need. */
function forGenerators({ jsonSchema }: { readonly jsonSchema: Record<string, unknown> }): void {
  const { type, maximum, prefixItems, anyOf, default: absent, description } = jsonSchema;
  if (type === 'integer' && Number(maximum) > MAX_INT32) jsonSchema.format = 'int64';
  // Instead of `false` for what follows the end of a tuple.
  if (Array.isArray(prefixItems)) jsonSchema.items = prefixItems.at(-1);
  if (Array.isArray(anyOf) && anyOf.some((one: JsonSchema) => one.type === 'array')) {
    // The Java of a choice between a list and something else does not compile.
    delete jsonSchema.anyOf;
    Object.assign(jsonSchema, conditional({}, { anyOf }));
  }
  if (absent !== undefined) {
    // The TypeScript of a member with a default requires it.
    delete jsonSchema.default;
    jsonSchema.description = [description, `Default \`${absent}\`.`].filter(Boolean).join(' ');
  }
  delete jsonSchema.id;
}

const TYPES: Readonly<Record<Dtype, JsonSchema>> = {
  int64: { type: 'integer', format: 'int64' },
  float64: { type: 'number', format: 'double' },
  string: { type: 'string' },
  bool01: { type: 'integer', minimum: 0, maximum: 1 },
  timestamp_utc: { type: 'string', format: 'date-time' },
  uuid: { type: 'string', format: 'uuid' },
  // Without its media type, of which Go would make a file.
  json: { type: 'string' },
};

/** No field is required: an answer holds the requested fields. */
function rowSchema(description: string, fields: readonly Field[]): JsonSchema {
  const properties = fields.map(({ name, dtype, nullable, unit, doc }) => {
    const type = TYPES[dtype];
    return [
      name,
      {
        ...type,
        ...(nullable && { type: [type.type, 'null'] }),
        description: unit === undefined ? doc : `${doc} Unit: ${unit}.`,
      },
    ];
  });
  return { type: 'object', description, properties: Object.fromEntries(properties), additionalProperties: false };
}

const problem = z
  .looseObject({
    type: z.string().describe('URN of the code.'),
    title: z.string().describe('The meaning of the code.'),
    status: z.int().describe('The HTTP status.'),
    detail: z.string().describe('What happened with this request and what to do, for people.'),
    code: z.string().describe('Code for programs; it does not change.'),
    request_id: z.string().describe('Also in `X-Request-Id`. Give it to the operator when you report a problem.'),
    errors: z
      .array(z.strictObject({ pointer: z.string(), message: z.string() }))
      .optional()
      .describe(
        'Every fault of the request. The pointer is a JSON pointer into the body, or `?name` for a parameter; an instrument is `/instrument` in either.',
      ),
    warnings: z.array(warning).optional().describe('The warnings that made a strict request fail.'),
  })
  .describe('A problem (RFC 9457). Every answer other than 2xx is one.');

/** The components that no route has for itself: rows and what is made of them, filters, problems. */
export function componentSchemas(): Schemas {
  const components: Schemas = {};
  componentOf(problem, 'output', 'Problem', components);
  componentOf(datasetKey, 'output', 'DatasetKey', components);
  const rows = [...DATASETS.values()].flatMap((dataset) => [
    ...MODES.map((mode) => ({
      columns: columnsOf(dataset, mode),
      doc: `A row of ${dataset.key} in mode ${mode}.`,
    })),
    ...(dataset.trades ? [{ columns: tradeColumns(dataset), doc: `A trade of ${dataset.key}.` }] : []),
  ]);
  const klines = MODES.map((mode) => ({ columns: klineColumns(mode), doc: `A kline in mode ${mode}.` }));
  const shapes = [...rows, ...klines].flatMap(({ columns, doc }) => [
    [rowOf(columns), rowSchema(doc, columns.all)],
    [fieldNamesOf(columns), { type: 'string', enum: columns.all.map(({ name }) => name) }],
    [clausesOf(columns), clauseSchema(columns.all)],
  ]);
  const filtered = DTYPES.filter((dtype) => OPERATORS_OF[dtype].length > 0);
  const comparisons = filtered.map((dtype) => [comparisonOf(dtype), comparisonSchema(dtype)]);
  return Object.assign(
    components,
    Object.fromEntries([...shapes, ...comparisons]),
    { Frame: partOf(frameAnswer, 'output', components) },
    { FrameRow: frameRow, FrameCell: frameCell },
    rowsAnswers(components),
  );
}

const SAMPLE = 'exchange_a_spot_trades';

const common = {
  mode: z.enum(MODES),
  source: datasetKey,
  sources: z.array(datasetKey).length(1),
  instrument: instrumentName,
  warnings: z.array(warning),
  schema: z
    .array(z.strictObject({ name: z.string(), dtype: z.enum(DTYPES) }).meta({ id: 'RowField' }))
    .describe('Names and dtypes of the rows’ fields. They depend on the request alone, not on the rows.'),
  ...grantedRights,
  rows: z.array(z.unknown()),
  row_count: count('Number of rows. It follows the rows, because large answers stream.'),
};

const queryAnswer = z.strictObject({
  ...common,
  freshness: z
    .strictObject({ as_of_utc: utc('End of coverage.'), lag_seconds: count('Seconds since that time.') })
    .nullable()
    .describe('Freshness of aligned rows; null in native mode.'),
  view_id: textField('The view that the service read.'),
  view_version: count('Version of the view.'),
});

const { instrument: _, ...withoutInstrument } = common;
const historicalAnswer = z.strictObject(withoutInstrument);
const tradesAnswer = z.strictObject(common);
const historicalAnswerOf = ({ trades }: DatasetDefinition) => (trades ? tradesAnswer : historicalAnswer);

const TRAILERS =
  'The body holds only rows. The other members are in the headers `X-Svc-*`; the number of rows and the sha256 of the uncompressed body are in the trailers `X-Svc-Row-Count` and `X-Svc-Sha256`.';

const TRAILER = 'It is a trailer; a small answer also has it as a header.';

/** Headers of bodies that hold only rows: one per member of the JSON answer beside the rows. */
const envelopeHeaderDocs = (members: readonly string[]): AnswerHeaders =>
  Object.fromEntries(
    members
      .filter((name) => !['rows', 'row_count', 'rows_sha256', 'instrument'].includes(name))
      .map((name) => [
        headerName(name),
        `For bodies of rows alone: \`${name}\` of the JSON answer, as JSON unless it is a string.`,
      ]),
  );

/** An answer of these rows, which says by constants what they are. */
const rowsAnswer = (envelope: z.ZodType, columns: Columns, mode: Mode, source: JsonSchema, components: Schemas) => {
  const { properties, ...whole } = partOf(envelope, 'output', components) as { readonly properties: JsonSchema };
  const rows = { type: 'array', items: refTo(rowOf(columns)) };
  return { ...whole, properties: { ...properties, mode: { type: 'string', const: mode }, source, rows } };
};

/**
 * One of several answers, each with its own constant in this member. A client that took the first that fits would lose the rows.
 * The type is for generators, which look for the member in objects only: an answer may be one of several in turn.
 */
const oneAnswerOf = (propertyName: string, names: Readonly<Record<string, string>>): JsonSchema => ({
  type: 'object',
  oneOf: Object.values(names).map(refTo),
  discriminator: {
    propertyName,
    mapping: Object.fromEntries(Object.entries(names).map(([value, name]) => [value, refTo(name).$ref])),
  },
});

/** The answers with rows of a dataset: of the query, of the historical routes, and klines; each native or aligned. */
function rowsAnswers(components: Schemas): Schemas {
  const answers: Schemas = {};
  const add = (name: string, envelope: z.ZodType, source: JsonSchema, columns: (mode: Mode) => Columns) => {
    const nameOf = (mode: Mode) => name.replace(/Rows$|History$|$/, `${MODE_NAMES[mode]}$&`);
    for (const mode of MODES) answers[nameOf(mode)] = rowsAnswer(envelope, columns(mode), mode, source, components);
    answers[name] = oneAnswerOf('mode', Object.fromEntries(MODES.map((mode) => [mode, nameOf(mode)])));
  };
  for (const [key, dataset] of DATASETS) {
    const source = { type: 'string', const: key };
    add(`${pascal(key)}Rows`, queryAnswer, source, (mode) => columnsOf(dataset, mode));
    add(historyOf(dataset), historicalAnswerOf(dataset), source, (mode) => historicalColumns(dataset, 'rows', mode));
  }
  const exchanges = [...DATASETS.values()].filter(({ trades }) => trades).map(({ key }) => key);
  add('Klines', tradesAnswer, { type: 'string', enum: exchanges }, (mode) => klineColumns(mode));
  answers.QueryRows = oneAnswerOf('source', Object.fromEntries(DATASET_KEYS.map((key) => [key, `${pascal(key)}Rows`])));
  return answers;
}

const historyOf = ({ key }: DatasetDefinition): string => `${pascal(key)}History`;

/** Documents the same rows in every representation. */
function rowAnswer(members: readonly string[], json: JsonSchema): AnswerDoc {
  const content = REPRESENTATIONS.map(({ mediaType, rowsOnly }) => [
    mediaType,
    !rowsOnly
      ? json
      : mediaType.endsWith('ndjson')
        ? { type: 'string', description: `A row of \`rows\` a line. ${TRAILERS}` }
        : { ...(mediaType === 'text/csv' ? { type: 'string' } : FILE_BYTES), description: TRAILERS },
  ]);
  return {
    doc: 'The rows, in the representation that `Accept` selects, compressed if `Accept-Encoding` allows it.',
    content: Object.fromEntries(content),
    headers: {
      ...SYNTHETIC_HEADER,
      ...CHECKPOINT_HEADERS,
      ...SEARCHED_HEADERS,
      ...(members.includes('instrument') && INSTRUMENT_HEADERS),
      ...envelopeHeaderDocs(members),
      'Content-Encoding': 'The coding that `Accept-Encoding` selected; absent without one.',
      'X-Svc-Row-Count': `For bodies of rows alone: the number of rows. ${TRAILER}`,
      'X-Svc-Sha256': `For bodies of rows alone: the sha256 of the uncompressed body. ${TRAILER}`,
    },
  };
}

export function queryDoc(): RouteDoc {
  return {
    operation: 'queryRows',
    tag: 'rows',
    summary: 'Rows of any dataset',
    doc: 'The body has at most one of `time_range`, `n_rows`, `n_random`; without any of them the window is the whole proved history. Large answers stream. A failure after the first byte breaks the connection, so an answer that ends is complete.',
    headers: ['Accept-Encoding'],
    body: querySchema,
    answers: [rowAnswer(Object.keys(queryAnswer.shape), refTo('QueryRows'))],
    problems: READ_PROBLEMS,
    examples: queryExamples(),
  };
}

const frameAnswer = z.strictObject({
  grid_seconds: count('Length of a bucket.'),
  as_of: z.string().nullable().describe('As requested: a time, `row`, or null.'),
  fill: z.enum(['null', 'previous']),
  sources: z.array(datasetKey).describe('The datasets of the columns.'),
  columns: z
    .array(
      z.strictObject({
        name: textField('Name of the column in the rows.'),
        dataset: datasetKey,
        instrument: instrumentName,
        field: textField('Field of the dataset.'),
        aggregate: z.enum(AGGREGATES).nullable().describe('How a bucket’s trades become one value; null for a state.'),
        unit: z.string().nullable(),
        proved_from_utc: utc('Start of what is proved.').nullable(),
        proved_through_utc: utc('Exclusive end of what is proved.').nullable(),
        warnings: z.array(z.string()).describe('Codes of the warnings that concern it.'),
      }),
    )
    .describe('The columns as requested, and what is proved of each.'),
  warnings: common.warnings,
  schema: common.schema,
  ...grantedRights,
  rows: z.array(z.looseObject({}).meta({ id: 'FrameRow' })),
  row_count: common.row_count,
  rows_sha256: textField('Digest of the rows, the same in every representation.'),
});

const frameCell: JsonSchema = {
  description: 'Null where the frame has no value.',
  anyOf: [{ type: ['number', 'null'] }, { type: ['string', 'null'] }],
};

const frameRow: JsonSchema = {
  type: 'object',
  description: 'The start of a bucket, its end where the frame is as of each row, and the columns by name.',
  required: ['datetime'],
  properties: {
    datetime: { type: 'string', format: 'date-time' },
    known_at_utc: { type: 'string', format: 'date-time' },
  },
  additionalProperties: refTo('FrameCell'),
};

export function frameDoc(): RouteDoc {
  const { headers, ...answer } = rowAnswer(Object.keys(frameAnswer.shape), refTo('Frame'));
  return {
    operation: 'queryFrame',
    tag: 'rows',
    summary: 'A frame: columns of several datasets on one grid',
    doc: 'Trades of a bucket become one value. Of everything else a bucket has the last value before its end. The body has exactly one of `time_range` and `n_rows`. `"as_of": "row"` leaves out of each row what was not known at the end of its bucket.',
    headers: ['Accept-Encoding'],
    body: frameSchema,
    answers: [
      {
        ...answer,
        headers: {
          ...headers,
          'X-Svc-Rows-Sha256': `For bodies of rows alone: \`rows_sha256\` of the JSON answer. ${TRAILER}`,
        },
      },
    ],
    problems: READ_PROBLEMS,
    examples: [
      {
        title: 'Prices, a difficulty and a rate side by side, each row as it was known',
        body: {
          columns: [
            { name: 'close', dataset: SAMPLE, field: 'price' },
            { name: 'volume', dataset: SAMPLE, field: 'quantity', aggregate: 'sum' },
            { name: 'difficulty', dataset: 'bitcoin_block_headers', field: 'difficulty' },
          ],
          grid: '1h',
          n_rows: 5,
          as_of: 'row',
        },
      },
    ],
  };
}

/** The examples work on the sample and on any history. */
export const queryExamples = (): RouteDoc['examples'] => [
  { title: 'The latest trades', body: { sources: [SAMPLE], n_rows: 3 } },
  {
    title: 'Some fields of the trades in a window that pass filters',
    body: {
      sources: [SAMPLE],
      time_range: ['2020-01-01T00:00:00Z', '2040-01-01T00:00:00Z'],
      fields: ['trade_id', 'datetime', 'price'],
      filters: [{ field: 'trade_id', op: 'lte', value: 5 }],
    },
  },
  {
    title: 'The latest seconds, each with its interval of validity',
    body: {
      sources: [SAMPLE],
      mode: 'aligned_1s',
      n_rows: 2,
      fields: ['aligned_at_utc', 'close_price', 'trade_count', 'valid_to_utc_exclusive'],
    },
  },
  {
    title: 'A random sample that can be drawn again, as CSV',
    headers: { Accept: 'text/csv' },
    body: { sources: [SAMPLE], n_random: 5, random_seed: 7 },
  },
];

export function historicalDoc(dataset: DatasetDefinition, kind: HistoricalKind): RouteDoc {
  const { title, doc } = dataset;
  const klines = kind === 'klines';
  const rows = klines ? 'Klines' : historyOf(dataset);
  return {
    operation: `get${pascal(klines ? dataset.trades!.klinesPath : dataset.historicalPath)}`,
    tag: 'rows',
    summary: klines ? `${title}: klines` : title,
    doc: `${klines ? 'Candles of trades, on a grid of UTC time; buckets without a trade are absent.' : doc} A window consists of whole UTC days, both inclusive. The body has at most one of days, \`n_latest_rows\`, \`n_random_rows\`.`,
    headers: ['Accept-Encoding'],
    body: historicalSchema(dataset, kind),
    answers: [rowAnswer(Object.keys(historicalAnswerOf(dataset).shape), refTo(rows))],
    problems: HISTORICAL_PROBLEMS,
    examples: klines ? KLINE_EXAMPLES : rowExamples(dataset),
  };
}

const KLINE_EXAMPLES: RouteDoc['examples'] = [
  { title: 'Hourly klines since a day', body: { start_date: '2020-01-01', kline_size: '1h' } },
  {
    title: 'The latest minutes, from aligned rows',
    body: { mode: 'aligned_1s', n_latest_rows: 3, kline_size: 60, fields: ['datetime', 'open', 'close', 'volume'] },
  },
];

function rowExamples({ trades }: DatasetDefinition): RouteDoc['examples'] {
  return [
    { title: 'The latest rows', body: { n_latest_rows: 3, ...(trades && { include_datetime_col: false }) } },
    { title: 'The latest aligned rows', body: { mode: 'aligned_1s', n_latest_rows: 3 } },
  ];
}
