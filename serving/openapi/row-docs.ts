/** The documentation of routes that answer with rows. */
import { z } from 'zod';
import { DATASET_KEYS, DATASETS, type DatasetDefinition, DTYPES } from '../../shared/registry/index.ts';
import { type HistoricalKind, historicalColumns, historicalSchema } from '../contract/historical.ts';
import { querySchema } from '../contract/query.ts';
import { columnsOf } from '../contract/raw.ts';
import { MODES } from '../contract/shapes.ts';
import { count, datasetKey, grantedRights, text, utc, warning } from '../discovery/schemas.ts';
import { headerName } from '../rendering/envelope.ts';
import { REPRESENTATIONS } from '../rendering/representations.ts';
import {
  type AnswerDoc,
  type AnswerHeaders,
  HISTORICAL_PROBLEMS,
  type JsonSchema,
  READ_PROBLEMS,
  type RouteDoc,
  SYNTHETIC_HEADER,
} from './route-doc.ts';
import { refTo, schemaOf } from './schemas.ts';

const SAMPLE = 'exchange_a_spot_trades';

const common = {
  mode: z.enum(MODES),
  source: datasetKey,
  sources: z.array(datasetKey).length(1),
  warnings: z.array(warning),
  schema: z
    .array(z.strictObject({ name: z.string(), dtype: z.enum(DTYPES) }))
    .describe('Names and dtypes of the fields of rows; the same for the same request whatever the rows.'),
  ...grantedRights,
  rows: z.array(z.unknown()),
  row_count: count('After the rows, because large answers stream.'),
};

const queryAnswer = z.strictObject({
  ...common,
  freshness: z
    .strictObject({ as_of_utc: utc('End of what is proved.'), lag_seconds: count('How long ago that is.') })
    .nullable()
    .describe('Of aligned rows; null in native mode.'),
  view_id: text('The view that was read.'),
  view_version: count('Its version.'),
});

const historicalAnswer = z.strictObject(common);

const TRAILERS =
  'Only rows: the other members are in headers `X-Svc-*`, the number of rows and the sha256 of the uncompressed body in the trailers `X-Svc-Row-Count` and `X-Svc-Sha256`.';

const TRAILER = 'A trailer; a small answer has it among its headers as well.';

/** Of answers that hold rows alone: the members of the JSON answer beside its rows, each in a header. */
const envelopeHeaderDocs = (members: readonly string[]): AnswerHeaders =>
  Object.fromEntries(
    members
      .filter((name) => !['rows', 'row_count'].includes(name))
      .map((name) => [
        headerName(name),
        `Of rows alone: \`${name}\` of the JSON answer; as JSON where it is not a string.`,
      ]),
  );

/** The same rows in every representation there is. */
function rowAnswer(envelope: z.ZodType, rows: readonly string[]): AnswerDoc {
  const row = { anyOf: rows.map(refTo) };
  const { properties, ...whole } = schemaOf(envelope, 'output') as { readonly properties: JsonSchema };
  const json = { ...whole, properties: { ...properties, rows: { type: 'array', items: row } } };
  const lines = { ...row, description: `One line. ${TRAILERS}` };
  const content = REPRESENTATIONS.map(({ mediaType, rowsOnly }) => [
    mediaType,
    !rowsOnly ? json : mediaType.endsWith('ndjson') ? lines : { description: TRAILERS },
  ]);
  return {
    doc: 'The rows, in the representation that `Accept` asks for; compressed where `Accept-Encoding` takes it.',
    content: Object.fromEntries(content),
    headers: {
      ...SYNTHETIC_HEADER,
      ...envelopeHeaderDocs(Object.keys(properties)),
      'Content-Encoding': 'The coding that `Accept-Encoding` chose; absent where there is none.',
      'X-Svc-Row-Count': `Of rows alone: how many there are. ${TRAILER}`,
      'X-Svc-Sha256': `Of rows alone: the sha256 of the uncompressed body. ${TRAILER}`,
    },
  };
}

export function queryDoc(): RouteDoc {
  return {
    tag: 'rows',
    summary: 'Rows of any dataset',
    doc: 'At most one of `time_range`, `n_rows`, `n_random`; with none the window is all that is proved. Large answers stream. A failure after the first byte breaks the connection: an answer that ends is whole.',
    headers: ['Accept-Encoding'],
    body: querySchema,
    answers: [
      rowAnswer(
        queryAnswer,
        DATASET_KEYS.flatMap((key) => MODES.map((mode) => columnsOf(DATASETS.get(key)!, mode).name)),
      ),
    ],
    problems: READ_PROBLEMS,
    examples: queryExamples(),
  };
}

/** They work on the sample, and on any history there is. */
export const queryExamples = (): RouteDoc['examples'] => [
  { title: 'The latest trades', body: { sources: [SAMPLE], n_rows: 3 } },
  {
    title: 'Some fields of trades that pass filters, in a window',
    body: {
      sources: [SAMPLE],
      time_range: ['2020-01-01T00:00:00Z', '2040-01-01T00:00:00Z'],
      fields: ['trade_id', 'datetime', 'price'],
      filters: [{ field: 'trade_id', op: 'lte', value: 5 }],
    },
  },
  {
    title: 'The latest seconds, each with the interval it is valid for',
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
    doc: `${klines ? 'Candles of trades, on a grid of UTC time; buckets without a trade are absent.' : doc} Windows are of whole UTC days, both included; at most one of days, \`n_latest_rows\`, \`n_random_rows\`.`,
    headers: ['Accept-Encoding'],
    body: historicalSchema(dataset, kind),
    answers: [rowAnswer(historicalAnswer, rows)],
    problems: HISTORICAL_PROBLEMS,
    examples: klines ? KLINE_EXAMPLES : rowExamples(dataset),
  };
}

const KLINE_EXAMPLES: RouteDoc['examples'] = [
  { title: 'Hours, since a day', body: { start_date: '2020-01-01', kline_size: '1h' } },
  {
    title: 'The latest minutes, out of one-second rows',
    body: { mode: 'aligned_1s', n_latest_rows: 3, kline_size: 60, fields: ['datetime', 'open', 'close', 'volume'] },
  },
];

function rowExamples({ trades }: DatasetDefinition): RouteDoc['examples'] {
  return [
    { title: 'The latest rows', body: { n_latest_rows: 3, ...(trades && { include_datetime_col: false }) } },
    { title: 'The latest one-second rows', body: { mode: 'aligned_1s', n_latest_rows: 3 } },
  ];
}
