/** Documents the routes that answer with rows: schemas of bodies, rows and envelopes, and examples. */
import { z } from 'zod';
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
import { type JsonSchema, refTo } from '../contract/json-schema.ts';
import { columnsOf, querySchema } from '../contract/query.ts';
import { clausesOf, fieldNamesOf } from '../contract/rules.ts';
import { MODES } from '../contract/shapes.ts';
import { count, datasetKey, grantedRights, textField, utc, warning } from '../discovery/schemas.ts';
import {
  type AnswerDoc,
  type AnswerHeaders,
  CHECKPOINT_HEADERS,
  HISTORICAL_PROBLEMS,
  READ_PROBLEMS,
  type RouteDoc,
  SEARCHED_HEADERS,
  SYNTHETIC_HEADER,
} from '../http/routes.ts';
import { headerName } from '../render/json-rows.ts';
import { REPRESENTATIONS } from '../render/representations.ts';

/** The JSON Schema of what a caller sends or receives. */
export function schemaOf(schema: z.ZodType | JsonSchema, io: 'input' | 'output'): JsonSchema {
  if (!(schema instanceof z.ZodType)) return schema;
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io, unrepresentable: 'any' });
  return rest;
}

export { refTo };

const TYPES: Readonly<Record<Dtype, JsonSchema>> = {
  int64: { type: 'integer', format: 'int64' },
  float64: { type: 'number', format: 'double' },
  string: { type: 'string' },
  bool01: { type: 'integer', enum: [0, 1] },
  timestamp_utc: { type: 'string', format: 'date-time' },
  uuid: { type: 'string', format: 'uuid' },
  json: { type: 'string', contentMediaType: 'application/json' },
};

/** No field is required: an answer holds the requested fields. */
function rowSchema(description: string, fields: readonly Field[]): JsonSchema {
  const properties = fields.map(({ name, dtype, nullable, unit, doc }) => {
    const { enum: values, ...type } = TYPES[dtype];
    return [
      name,
      {
        ...type,
        ...(nullable && { type: [type.type, 'null'] }),
        ...(values !== undefined && { enum: [...(values as readonly unknown[]), ...(nullable ? [null] : [])] }),
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
      .describe('Every fault of the request. The pointer is a JSON pointer into the body, or `?name` for a parameter.'),
    warnings: z.array(warning).optional().describe('The warnings that made a strict request fail.'),
  })
  .describe('A problem (RFC 9457). Every answer other than 2xx is one.');

export function componentSchemas(): Record<string, JsonSchema> {
  const rows = [...DATASETS.values()].flatMap((dataset) => [
    ...MODES.map((mode) => ({
      columns: columnsOf(dataset, mode),
      doc: `A row of ${dataset.key} in mode ${mode}.`,
    })),
    ...(dataset.trades ? [{ columns: tradeColumns(dataset), doc: `A trade of ${dataset.key}.` }] : []),
  ]);
  const klines = MODES.map((mode) => ({ columns: klineColumns(mode), doc: `A kline in mode ${mode}.` }));
  const shapes = [...rows, ...klines].flatMap(({ columns, doc }) => [
    [columns.name, rowSchema(doc, columns.all)],
    [fieldNamesOf(columns), { type: 'string', enum: columns.all.map(({ name }) => name) }],
    [clausesOf(columns), clauseSchema(columns.all)],
  ]);
  const filtered = DTYPES.filter((dtype) => OPERATORS_OF[dtype].length > 0);
  const comparisons = filtered.map((dtype) => [comparisonOf(dtype), comparisonSchema(dtype)]);
  return { Problem: schemaOf(problem, 'output'), ...Object.fromEntries([...shapes, ...comparisons]) };
}

const SAMPLE = 'exchange_a_spot_trades';

const common = {
  mode: z.enum(MODES),
  source: datasetKey,
  sources: z.array(datasetKey).length(1),
  warnings: z.array(warning),
  schema: z
    .array(z.strictObject({ name: z.string(), dtype: z.enum(DTYPES) }))
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

const historicalAnswer = z.strictObject(common);

const TRAILERS =
  'The body holds only rows. The other members are in the headers `X-Svc-*`; the number of rows and the sha256 of the uncompressed body are in the trailers `X-Svc-Row-Count` and `X-Svc-Sha256`.';

const TRAILER = 'It is a trailer; a small answer also has it as a header.';

/** Headers of bodies that hold only rows: one per member of the JSON answer beside the rows. */
const envelopeHeaderDocs = (members: readonly string[]): AnswerHeaders =>
  Object.fromEntries(
    members
      .filter((name) => !['rows', 'row_count', 'rows_sha256'].includes(name))
      .map((name) => [
        headerName(name),
        `For bodies of rows alone: \`${name}\` of the JSON answer, as JSON unless it is a string.`,
      ]),
  );

const anyOf = (names: readonly string[]): JsonSchema => ({ anyOf: names.map(refTo) });

/** Documents the same rows in every representation. */
function rowAnswer(envelope: z.ZodType, row: JsonSchema): AnswerDoc {
  const { properties, ...whole } = schemaOf(envelope, 'output') as { readonly properties: JsonSchema };
  const json = { ...whole, properties: { ...properties, rows: { type: 'array', items: row } } };
  const lines = { ...row, description: `One line. ${TRAILERS}` };
  const content = REPRESENTATIONS.map(({ mediaType, rowsOnly }) => [
    mediaType,
    !rowsOnly ? json : mediaType.endsWith('ndjson') ? lines : { description: TRAILERS },
  ]);
  return {
    doc: 'The rows, in the representation that `Accept` selects, compressed if `Accept-Encoding` allows it.',
    content: Object.fromEntries(content),
    headers: {
      ...SYNTHETIC_HEADER,
      ...CHECKPOINT_HEADERS,
      ...SEARCHED_HEADERS,
      ...envelopeHeaderDocs(Object.keys(properties)),
      'Content-Encoding': 'The coding that `Accept-Encoding` selected; absent without one.',
      'X-Svc-Row-Count': `For bodies of rows alone: the number of rows. ${TRAILER}`,
      'X-Svc-Sha256': `For bodies of rows alone: the sha256 of the uncompressed body. ${TRAILER}`,
    },
  };
}

export function queryDoc(): RouteDoc {
  return {
    tag: 'rows',
    summary: 'Rows of any dataset',
    doc: 'The body has at most one of `time_range`, `n_rows`, `n_random`; without any of them the window is the whole proved history. Large answers stream. A failure after the first byte breaks the connection, so an answer that ends is complete.',
    headers: ['Accept-Encoding'],
    body: querySchema,
    answers: [
      rowAnswer(
        queryAnswer,
        anyOf(DATASET_KEYS.flatMap((key) => MODES.map((mode) => columnsOf(DATASETS.get(key)!, mode).name))),
      ),
    ],
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
  rows: z.array(z.unknown()),
  row_count: common.row_count,
  rows_sha256: textField('Digest of the rows, the same in every representation.'),
});

const frameRow: JsonSchema = {
  type: 'object',
  description: 'The start of a bucket, its end where the frame is as of each row, and the columns by name.',
  required: ['datetime'],
  properties: {
    datetime: { type: 'string', format: 'date-time' },
    known_at_utc: { type: 'string', format: 'date-time' },
  },
  additionalProperties: { type: ['number', 'string', 'null'] },
};

export function frameDoc(): RouteDoc {
  const { headers, ...answer } = rowAnswer(frameAnswer, frameRow);
  return {
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
  const rows = MODES.map((mode) => historicalColumns(dataset, kind, mode).name);
  return {
    tag: 'rows',
    summary: klines ? `${title}: klines` : title,
    doc: `${klines ? 'Candles of trades, on a grid of UTC time; buckets without a trade are absent.' : doc} A window consists of whole UTC days, both inclusive. The body has at most one of days, \`n_latest_rows\`, \`n_random_rows\`.`,
    headers: ['Accept-Encoding'],
    body: historicalSchema(dataset, kind),
    answers: [rowAnswer(historicalAnswer, anyOf(rows))],
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
