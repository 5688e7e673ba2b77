/** From event bytes to storage rows, every vendor's alike: the row projector against Number() and BigInts. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ALIGNED_TRADE_COLUMNS } from '../../pipelines/rows/aligned-trades.ts';
import { CopyRanges, type FoldingProjector, REUSE_FROM_BYTES } from '../../pipelines/rows/binary-copy.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { rangedColumns } from '../../shared/proof/value-ranges.ts';
import { ALIGNED_COLUMNS } from '../../shared/registry/definition.ts';
import { exactDecimal, fixed } from '../support/decimals.ts';
import { runs } from '../support/seed.ts';
import { decimal, fileOf, LAYOUTS, OTHER_LAYOUTS, type TradeLayout, type TradeLine } from '../support/trade-layouts.ts';
import { decodeFile, runsOf } from '../support/trades.ts';

type Cell = bigint | number | string | boolean;
const WIDTHS: Record<string, number> = { int8: 8, float8: 8, timestamptz: 8, int4: 4, int2: 2, bool: 1 };

/** Binary COPY rows, read by the description of the format. */
function copyRows(copy: Buffer, types: readonly string[]): Cell[][] {
  const result: Cell[][] = [];
  for (let at = 0; at < copy.length; ) {
    expect(copy.readInt16BE(at)).toBe(types.length);
    at += 2;
    const row = types.map((type): Cell => {
      const length = copy.readInt32BE(at);
      const from = at + 4;
      at = from + length;
      if (type === 'text') return copy.toString('utf8', from, at);
      expect([type, length]).toEqual([type, WIDTHS[type]]);
      if (type === 'float8') return copy.readDoubleBE(from);
      if (type === 'bool') return copy.readUInt8(from) === 1;
      if (type === 'int4') return copy.readInt32BE(from);
      return type === 'int2' ? copy.readInt16BE(from) : copy.readBigInt64BE(from);
    });
    result.push(row);
  }
  return result;
}
const nativeTypes = ({ dataset }: TradeLayout) => dataset.native.columns.map(({ pg }) => pg);
const ALIGNED_TYPES = ALIGNED_TRADE_COLUMNS.map((name) => ALIGNED_COLUMNS[name]);

const cellOf = (type: string, text: string): Cell => {
  if (type === 'int8') return BigInt(text);
  if (type === 'float8') return Number(text);
  return type === 'bool' ? text === 'true' : text;
};

const US_TO_2000 = BigInt(Date.UTC(2000, 0, 1)) * 1000n;

/** Aligned rows by definition: exact sums, rounded once; first and last by id. */
function naiveSeconds(layout: TradeLayout, list: readonly TradeLine[], seriesId: number): Cell[][] {
  const seconds = Map.groupBy(list, ({ ms }) => Math.floor(ms / 1000));
  return [...seconds.entries()]
    .sort(([a], [b]) => a - b)
    .map(([second, members]) => {
      const byId = members.toSorted((a, b) => a.id - b.id);
      const prices = members.map(({ price }) => Number(price));
      const total = (values: bigint[], places: number) =>
        Number(fixed(String(values.reduce((sum, value) => sum + value, 0n)), places));
      return [
        BigInt(second) * 1_000_000n - US_TO_2000,
        BigInt(members.length),
        Number(byId[0].price),
        Math.max(...prices),
        Math.min(...prices),
        Number(byId.at(-1)!.price),
        total(
          members.map(({ quantity }) => exactDecimal(quantity)),
          30,
        ),
        total(
          members.map(({ quote }) => quote),
          60,
        ),
        seriesId,
        layout.dataset.number,
      ];
    });
}

const linesOf = (list: readonly TradeLine[]) => list.map(({ line }) => line);

function project(layout: TradeLayout, list: readonly TradeLine[], frame: number) {
  const projector = layout.projector();
  const stored = runsOf(decodeFile(layout, fileOf(layout, linesOf(list)), { frame })).flatMap((run) => {
    const { copy, rows } = projector.rows(run.raw, run.rows);
    expect(rows).toBe(run.rows);
    return copyRows(copy, nativeTypes(layout));
  });
  return { stored, projector };
}

const alignedOf = (layout: TradeLayout, projector: FoldingProjector) => {
  const { copy, rows } = projector.aligned({ datasetId: layout.dataset.number, seriesId: 3 });
  const found = copyRows(copy, ALIGNED_TYPES);
  expect(found).toHaveLength(rows);
  return found;
};

describe.each([...LAYOUTS, ...OTHER_LAYOUTS])('the row projector of $name', (layout) => {
  test('stores of every row what Number() makes of its text', () => {
    fc.assert(
      fc.property(layout.lines(decimal), fc.integer({ min: 1, max: 900 }), (list, frame) => {
        const types = nativeTypes(layout);
        const expected = list.map(({ texts }) => texts.map((text, index) => cellOf(types[index], text)));
        expect(project(layout, list, frame).stored).toEqual(expected);
      }),
      { numRuns: runs(300) },
    );
  });

  test('value ranges and times of a frame are the smallest and largest of its rows', () => {
    const doubles = layout.dataset.native.columns.filter(({ pg }) => pg === 'float8').map(({ name }) => name);
    expect(rangedColumns(layout.dataset)).toEqual(doubles);
    fc.assert(
      fc.property(layout.lines(decimal, { minLength: 1 }), fc.integer({ min: 1, max: 900 }), (list, frame) => {
        const types = nativeTypes(layout);
        const ranges = new CopyRanges(layout.dataset.native.columns, doubles, 'timestamp');
        const projector = layout.projector();
        for (const run of runsOf(decodeFile(layout, fileOf(layout, linesOf(list)), { frame }))) {
          const { copy } = projector.rows(run.raw, run.rows);
          const rows = copyRows(copy, types);
          const expected = doubles.map((name) => {
            const at = layout.dataset.native.columns.findIndex((column) => column.name === name);
            const values = rows.map((row) => row[at] as number);
            return [name, [Math.min(...values), Math.max(...values)]];
          });
          const times = rows.map(([ms]) => Number(ms));
          expect(ranges.of(copy, run.rows)).toMatchObject({
            ranges: Object.fromEntries(expected),
            firstMs: Math.min(...times),
            lastMs: Math.max(...times),
          });
        }
      }),
      { numRuns: runs(100) },
    );
  });

  test('makes aligned rows equal to exact arithmetic, at any framing', () => {
    // Many rows in few seconds, so that sums outgrow the fast integers.
    const huge = fc.oneof(
      decimal,
      fc.constantFrom('45035996.27370496', '90071992.54740992', '89999999999.99999999', '0.00000001', '1e-9'),
    );
    const limits = { minLength: 1, maxLength: 120 };
    fc.assert(
      fc.property(layout.lines(huge, limits), fc.integer({ min: 1, max: 2000 }), (list, frame) => {
        const { projector } = project(layout, list, frame);
        expect(alignedOf(layout, projector)).toEqual(naiveSeconds(layout, list, 3));
      }),
      { numRuns: runs(300) },
    );
  });

  test('folds partitions that are open at once apart, and takes nothing more after the end', () => {
    const [one, two] = [layout.projector(), layout.projector()];
    const row = Buffer.from(`${layout.row(1)}\n`);
    one.rows(row, 1);
    two.rows(row, 1);
    one.rows(Buffer.from(`${layout.row(2)}\n`), 1);
    const counts = [one, two].map((projector) => alignedOf(layout, projector).map(([, count]) => count));
    expect(counts).toEqual([[2n], [1n]]);
    expect(() => one.rows(row, 1)).toThrow(TidemarkError);
    expect(alignedOf(layout, layout.projector())).toEqual([]);
  });

  // The rows of a frame may wait for the database while those of the next two are made.
  test('leaves the rows of a large frame as they are while the next two are made', () => {
    const projector = layout.projector();
    const COUNT = 8000;
    const copies = [0, 1, 2].map((frame) => {
      const rows = Array.from({ length: COUNT }, (_, index) => `${layout.row(frame * COUNT + index)}\n`);
      const { copy } = projector.rows(Buffer.from(rows.join('')), COUNT);
      return { copy, asMade: Buffer.from(copy) };
    });
    expect(copies[0].copy.length).toBeGreaterThan(2 * REUSE_FROM_BYTES);
    for (const { copy, asMade } of copies) expect(copy.equals(asMade)).toBe(true);
  });

  test('takes open and close by the number of the id, not by the order of arrival', () => {
    const priceAt = layout.columns.findIndex(({ name }) => name === 'price');
    const rows = [
      [9, '5'],
      [11, '6'],
      [8, '7'],
      [10, '4'],
    ].map(([id, price]) => layout.row(id as number, { [priceAt]: price as string }, layout.fromMs + 500));
    const projector = layout.projector();
    projector.rows(Buffer.from(rows.map((row) => `${row}\n`).join('')), rows.length);
    const [[, count, open, high, low, close]] = alignedOf(layout, projector);
    expect({ count, open, high, low, close }).toEqual({ count: 4n, open: 7, high: 7, low: 4, close: 6 });
  });

  test('refuses bytes that are no rows of its partition, instead of running on', () => {
    const good = layout.row(1);
    const cells = good.split(',');
    const bad = [
      'garbage\n',
      '\n',
      `${',,,,,,,,,,'.slice(0, cells.length - 1)}\n`,
      `${good}\ngarbage\n`,
      `${good}\n1,2\n`,
      `${cells.slice(0, -1).join(',')}\n`,
      ...cells.flatMap((cell, index) =>
        // A word is a word to this side, which stores it: the proof is about it.
        /^[\d.]+$/.test(cell) ? [`${cells.with(index, 'x').join(',')}\n`] : [],
      ),
      `${layout.row(1, {}, layout.fromMs - 1)}\n`,
      `${layout.row(1, {}, layout.toMs)}\n`,
      `${good}\n${good.slice(0, 9)}`,
      '1,2,3,4\n5,6,7,8\n',
    ];
    for (const text of bad) refuses(layout, text, Math.max(1, text.split('\n').length - 1));
  });

  test('refuses bytes that hold another number of rows than their header says', () => {
    const two = `${layout.row(1)}\n${layout.row(2)}\n`;
    expect(layout.projector().rows(Buffer.from(two), 2).rows).toBe(2);
    for (const claimed of [1, 3, 0, -1, 1e9, 1e300, 1.5, Number.NaN]) refuses(layout, two, claimed);
  });
});

function refuses(layout: TradeLayout, text: string, claimed: number) {
  let code: unknown = 'accepted';
  try {
    layout.projector().rows(Buffer.from(text), claimed);
  } catch (error) {
    code = error instanceof TidemarkError ? error.code : error;
  }
  expect([text, claimed, code]).toEqual([text, claimed, 'LOG_DAMAGED']);
}
