/** `client/datasets.ts` and `client/check/layouts.ts`: rows and methods of the client, and canonical rows, derived from the registry. */
import { hasVintages } from '../serving/contract/rules.ts';
import { DATASETS, type DatasetDefinition, type Field } from '../shared/registry/index.ts';
import { rowLayoutOf } from '../shared/registry/proof-rows.ts';
import { KLINE_FIELDS } from '../shared/registry/trades.ts';

const TYPE_OF: Readonly<Record<Field['dtype'], string>> = {
  int64: 'number',
  float64: 'number',
  string: 'string',
  bool01: '0 | 1',
  timestamp_utc: 'string',
  uuid: 'string',
  json: 'string',
};

export function clientDatasets(): string {
  const datasets = [...DATASETS.values()];
  const shapes = datasets.map((dataset) => shape(typeOf(dataset), dataset.doc, rowsOf(dataset)));
  const methods = datasets.flatMap((dataset) => [
    method({
      name: `get_${dataset.key}`,
      doc: dataset.doc,
      type: typeOf(dataset),
      path: dataset.historicalPath,
      extra: dataset.trades ? 'TradesOnly' : hasVintages(dataset) ? 'VintagesOnly' : undefined,
    }),
    ...klineMethods(dataset),
  ]);
  return [
    '/** Written by `npm run docs` from shared/registry: the rows of each route, and the method that asks for them. */',
    "import type { Common, KlinesOnly, Mode, Options, Row, Shape, TradesOnly, VintagesOnly } from './requests.ts';",
    "import type { Rows } from './rows.ts';",
    '',
    '/** Keys of the datasets, which exports are asked for by. */',
    `export type DatasetKey =\n${datasets.map(({ key }) => `  | '${key}'`).join('\n')};\n`,
    ...shapes,
    shape('Klines', 'Candles of an exchange, computed by the database.', {
      native: KLINE_FIELDS.native,
      aligned_1s: KLINE_FIELDS.aligned_1s,
      defaults: KLINE_FIELDS.native,
    }),
    'export abstract class DatasetRoutes {',
    '  /** Path below `/v1/historical/`, body, options. */',
    '  protected abstract rows<R>(path: string, body: object, options: Options | undefined): Rows<R>;',
    '',
    methods.join('\n\n'),
    '}',
    '',
  ].join('\n');
}

interface RowShapes {
  readonly native: readonly Field[];
  readonly aligned_1s: readonly Field[];
  /** Native columns where a request names none. */
  readonly defaults: readonly Field[];
}

function rowsOf({ native, aligned, trades }: DatasetDefinition): RowShapes {
  const unified = trades?.unified ?? [];
  const own = native.fields.filter(({ name }) => !unified.some((field) => field.name === name));
  return { native: [...unified, ...own], aligned_1s: aligned.fields, defaults: trades ? unified : native.fields };
}

function shape(type: string, doc: string, { native, aligned_1s, defaults }: RowShapes): string {
  const all = defaults.length === native.length;
  const names = all ? `keyof ${type}['native']` : defaults.map(({ name }) => `'${name}'`).join(' | ');
  return [
    `/** ${doc} */`,
    `export interface ${type} extends Shape {`,
    '  readonly native: {',
    ...native.flatMap(property),
    '  };',
    '  readonly aligned_1s: {',
    ...aligned_1s.flatMap(property),
    '  };',
    `  readonly defaults: ${names};`,
    '}',
    '',
  ].join('\n');
}

function property({ name, dtype, nullable, unit, doc }: Field): string[] {
  const type = `${TYPE_OF[dtype]}${nullable ? ' | null' : ''}`;
  return [`    /** ${doc}${unit ? ` Unit: ${unit}.` : ''} */`, `    readonly ${name}: ${type};`];
}

function klineMethods(dataset: DatasetDefinition): string[] {
  const { trades } = dataset;
  if (!trades) return [];
  const name = `get_${trades.klinesPath.replaceAll('/', '_')}`;
  return [
    method({ name, doc: `Candles of ${dataset.key}.`, type: 'Klines', path: trades.klinesPath, extra: 'KlinesOnly' }),
  ];
}

interface Method {
  readonly name: string;
  readonly doc: string;
  readonly type: string;
  readonly path: string;
  readonly extra?: string;
}

function method({ name, doc, type, path, extra }: Method): string {
  const request = `Common<${type}, M, F>${extra ? ` & ${extra}` : ''}`;
  return [
    `  /** ${doc} POST /v1/historical/${path} */`,
    `  ${name}<M extends Mode = 'native', F extends keyof ${type}[M] & string = never>(`,
    `    request: ${request} = {},`,
    '    options?: Options,',
    `  ): Rows<Row<${type}, M, F>> {`,
    `    return this.rows('${path}', request, options);`,
    '  }',
  ].join('\n');
}

/** `exchange_a_spot_trades` -> `ExchangeASpotTrades` */
const typeOf = ({ key }: DatasetDefinition) =>
  key.replaceAll(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase());

const quoted = (names: readonly string[]): string => `[${names.map((name) => `'${name}'`).join(', ')}]`;

/** Elements on one line, or one a line where there are several. */
const listOf = (texts: readonly string[]): string =>
  texts.length < 2 ? `[${texts.join('')}]` : `[\n${texts.map((text) => `      ${text},\n`).join('')}    ]`;

/** The canonical rows of the proof log, for checks without the registry. */
export function clientLayouts(): string {
  const layouts = [...DATASETS.values()].map(rowLayoutOf).map(
    ({ dataset, partition, startOffsetMs, partitionFields, columns, order, copies }) => `  ${dataset}: {
    dataset: '${dataset}',
    partition: '${partition}',
    startOffsetMs: ${startOffsetMs},
    partitionFields: ${quoted(partitionFields)},
    columns: [
${columns
  .map(
    ({ name, type, rule, fields }) => `      {
        name: '${name}',
        type: '${type}',
        rule: '${rule}',
        fields: ${quoted(fields)},
      },
`,
  )
  .join('')}    ],
    order: [${order.join(', ')}],
    copies: ${listOf(copies.map(({ field, column, isTime }) => `{ field: '${field}', column: ${column}, isTime: ${isTime} }`))},
  },
`,
  );
  return `/** Written by \`npm run docs\` from shared/registry: the canonical rows of each dataset (docs/proof-log.md). */
import type { RowLayout } from '../../shared/proof-log/cells.ts';

export const LAYOUTS: Readonly<Record<string, RowLayout>> = {
${layouts.join('')}};
`;
}
