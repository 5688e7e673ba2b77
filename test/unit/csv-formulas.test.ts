/** Texts that spreadsheets take for formulas: in CSV only, numbers never, in answers and in the files of exports. */
import { gunzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { parseExport } from '../../serving/contract/export.ts';
import { parseFrame } from '../../serving/contract/frame.ts';
import { historicalParser } from '../../serving/contract/historical.ts';
import { parseQuery } from '../../serving/contract/query.ts';
import type { FileSink } from '../../serving/exports/artifact/file-sink.ts';
import { formatOf } from '../../serving/exports/artifact/write.ts';
import { cellOf, type RowShape } from '../../serving/render/cells.ts';
import { REPRESENTATIONS, withFormulas } from '../../serving/render/representations.ts';
import { BufferPool } from '../../serving/render/response.ts';
import { DATASETS, type Dtype, type PgType } from '../../shared/registry/index.ts';
import type { Json } from '../../shared/strict-json.ts';
import { bodyOf, type GeneratedRows, HOSTILE_TEXTS, writeRow } from '../support/generated-rows.ts';
import { READERS } from '../support/read-back.ts';
import { runs } from '../support/seed.ts';

const CSV = REPRESENTATIONS.find(({ mediaType }) => mediaType === 'text/csv')!;
const ESCAPED = withFormulas({ representation: CSV, coding: undefined }, 'escape')!.representation;

const column = (name: string, dtype: Dtype, pg: PgType) => ({
  field: { name, dtype, pg, nullable: true, doc: '', sql: '', columns: [] },
  cell: cellOf({ name, dtype, pg }),
});
const SHAPE: RowShape = {
  columns: [column('text', 'string', 'text'), column('number', 'float64', 'float8'), column('json', 'json', 'text')],
  hiddenFirst: false,
};
const MINUS_ONE = Buffer.alloc(8);
MINUS_ONE.writeDoubleBE(-1);
const rowsOf = (texts: readonly string[]): GeneratedRows => ({
  shape: SHAPE,
  rows: texts.map((text) => ({
    cells: [
      { bytes: Buffer.from(text), text },
      { bytes: MINUS_ONE, text: '-1' },
      { bytes: Buffer.from('{"a":"=1"}'), text: '{"a":"=1"}' },
    ],
    fromMs: 0,
    toMs: 0,
  })),
  flushBefore: new Set(),
});
const linesOf = (texts: readonly string[], representation = ESCAPED) =>
  bodyOf(representation, rowsOf(texts)).toString().replace('text,number,json\n', '');

/** The rest of each line: a number, and a text that begins with a brace. */
const REST = ',-1,"{""a"":""=1""}"\n';

test('the apostrophe stands inside the quotes, and before nothing but the six characters', () => {
  for (const [text, cell] of [
    ['=1+1', "'=1+1"],
    ['+1', "'+1"],
    ['-1', "'-1"],
    ['@SUM(A1)', "'@SUM(A1)"],
    ['\t=1', "'\t=1"],
    ['\r=1', '"\'\r=1"'],
    ['=HYPERLINK("http://x","y")', '"\'=HYPERLINK(""http://x"",""y"")"'],
    ['=', "'="],
    ['', '""'],
    ['a=1', 'a=1'],
    ["'=1", "'=1"],
    [' =1', ' =1'],
    ['\n=1', '"\n=1"'],
    ['1-', '1-'],
  ]) {
    expect(linesOf([text])).toBe(cell + REST);
  }
  // Without the member the text is what is stored.
  expect(linesOf(['=1+1'], CSV)).toBe(`=1+1${REST}`);
});

test('a reader of CSV finds every text, with its apostrophe', () => {
  const anyText = fc.oneof(
    fc.string({ unit: 'grapheme' }),
    fc.constantFrom(...HOSTILE_TEXTS.filter((text) => text.isWellFormed() && !text.includes('\0'))),
    fc.tuple(fc.constantFrom('=', '+', '-', '@', '\t', '\r', "'"), fc.string()).map((parts) => parts.join('')),
  );
  fc.assert(
    fc.property(fc.array(anyText, { minLength: 1 }), (texts) => {
      const dtypes = new Map(SHAPE.columns.map(({ field }) => [field.name, field.dtype]));
      const { rows } = READERS['text/csv'](bodyOf(ESCAPED, rowsOf(texts)), dtypes);
      expect(rows.map(([text]) => text)).toEqual(texts.map((text) => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text)));
    }),
    { numRuns: runs(1000) },
  );
});

describe('files of exports', () => {
  test.each(['none', 'gzip'] as const)('compression %s', async (compression) => {
    const chunks: Buffer[] = [];
    const sink = { write: (bytes: Uint8Array) => void chunks.push(Buffer.from(bytes)) } as unknown as FileSink;
    const buffers = new BufferPool();
    Object.assign(sink, { buffer: () => buffers.take() });
    const flow = { pause() {}, resume() {} };
    const options = { sink, flow, shape: SHAPE, facts: {}, buffers, onFault() {} };
    const file = formatOf('csv', compression, { formulas: 'escape' }).open(options);
    const { rows } = rowsOf(['=1+1']);
    writeRow(file, SHAPE, rows[0]);
    await file.close();
    const bytes = Buffer.concat(chunks);
    const text = compression === 'gzip' ? gunzipSync(bytes) : bytes;
    expect(text.toString()).toBe(`text,number,json\n'=1+1${REST}`);
  });
});

describe('the member csv_formulas', () => {
  const trades = DATASETS.get('exchange_a_spot_trades')!;
  const query = { sources: [trades.key] };
  const frame = {
    columns: [{ name: 'price', dataset: trades.key, field: 'price', aggregate: 'last' }],
    grid: '1m',
    n_rows: 3,
  };
  const exported = { dataset: trades.key, format: 'csv', n_rows: 3 };
  const ROUTES: readonly (readonly [string, (body: Json) => object, Record<string, Json>])[] = [
    ['query', parseQuery, query],
    ['historical rows', historicalParser(trades, 'rows'), {}],
    ['historical klines', historicalParser(trades, 'klines'), {}],
    ['frame', parseFrame, frame],
    ['export', parseExport, exported],
    ['export of a frame', parseExport, { ...frame, format: 'csv' }],
  ];

  test.each(ROUTES)('of a %s', (_, parse, body) => {
    expect(parse({ ...body, csv_formulas: 'escape' })).toMatchObject({ value: { csvFormulas: 'escape' } });
    expect(parse(body)).toMatchObject({ value: { csvFormulas: undefined } });
    for (const csv_formulas of ['keep', true, null, '']) {
      const faults = [{ pointer: '/csv_formulas', message: 'must be "escape"' }];
      expect(parse({ ...body, csv_formulas })).toEqual({ faults });
    }
  });

  test('is refused where the form has no such cells', () => {
    for (const body of [exported, frame]) {
      const parquet = parseExport({ ...body, format: 'parquet', csv_formulas: 'escape' });
      expect(parquet).toMatchObject({ faults: [{ pointer: '/csv_formulas' }] });
    }
    for (const representation of REPRESENTATIONS.filter((one) => one !== CSV)) {
      expect(withFormulas({ representation, coding: undefined }, 'escape')).toBeUndefined();
    }
  });
});
