/** Ranges of values: of binary COPY rows that no document gives, and of several frames together. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { CopyRanges } from '../../pipelines/rows/binary-copy.ts';
import { unitedRanges } from '../../shared/proof/value-ranges.ts';

const COLUMNS = [
  { name: 'a', pg: 'float8', nullable: true },
  { name: 'note', pg: 'text' },
  { name: 'b', pg: 'float8', nullable: true },
  { name: 'ms', pg: 'int8' },
] as const;

/** A row of a double, a text and a double; null leaves a cell out. */
function row(a: number | null, note: string, b: number | null, ms = 0): Buffer {
  const cell = (bytes: Buffer | null) => {
    const length = Buffer.alloc(4);
    length.writeInt32BE(bytes?.length ?? -1);
    return Buffer.concat([length, bytes ?? Buffer.alloc(0)]);
  };
  const double = (value: number | null) => {
    if (value === null) return cell(null);
    const bytes = Buffer.alloc(8);
    bytes.writeDoubleBE(value);
    return cell(bytes);
  };
  const time = Buffer.alloc(8);
  time.writeBigInt64BE(BigInt(ms));
  return Buffer.concat([Buffer.from([0, 4]), double(a), cell(Buffer.from(note)), double(b), cell(time)]);
}

const factsOf = (...rows: Buffer[]) => new CopyRanges(COLUMNS, ['a', 'b'], 'ms').of(Buffer.concat(rows), rows.length)!;
const rangesOf = (...rows: Buffer[]) => factsOf(...rows).ranges;

test('texts of any length and nulls lie between the values', () => {
  expect(rangesOf(row(2, '', null), row(-1, 'some text', 7), row(3, 'x', 5))).toEqual({ a: [-1, 3], b: [5, 7] });
  expect(rangesOf(row(-0, 'x', 0), row(5e-324, '', 1e308))).toEqual({ a: [-0, 5e-324], b: [0, 1e308] });
});

// A comparison with NaN is never true, so its rows would have been left out; SQL puts NaN above all other values.
test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])('a column with %s has no range', (odd) => {
  expect(rangesOf(row(1, 'x', odd), row(2, 'y', 3))).toEqual({ a: [1, 2] });
});

test('a column of nulls alone, and no rows at all, have no range', () => {
  expect(rangesOf(row(null, 'x', 1))).toEqual({ b: [1, 1] });
  expect(rangesOf()).toEqual({});
});

/** What the projector keeps of rows, computed in the plainest way. */
function granulesOf(rows: readonly (readonly [number | null, number | null, number, number])[]) {
  const firstMs = Math.min(...rows.map(([, , ms]) => ms));
  const granules = Array.from({ length: Math.ceil(rows.length / 256) }, (_, at) =>
    rows.slice(at * 256, at * 256 + 256),
  );
  const range = (cells: readonly (number | null)[]) => {
    const values = cells.filter((cell) => cell !== null);
    const isKnown = values.length > 0 && values.every(Number.isFinite);
    return isKnown ? [Math.min(...values), Math.max(...values)] : [Number.NaN, Number.NaN];
  };
  const ends = [0, 1].flatMap((column) => {
    const ranges = granules.map((of) => range(of.map((row) => row[column])));
    return [ranges.map(([least]) => least), ranges.map(([, greatest]) => greatest)];
  });
  return {
    offsets: granules.map(([[, , , id]]) => id),
    firstMs: granules.map((of) => Math.min(...of.map(([, , ms]) => ms)) - firstMs),
    lastMs: granules.map((of) => Math.max(...of.map(([, , ms]) => ms)) - firstMs),
    ranges: ends.flat(),
  };
}

// Rows of a fixed width, of a fixed width before a text, and cell by cell.
test('granules of 256 rows: their first ids, times that go back and forth, and ranges that one odd value makes unknown', () => {
  const double = (value: number | null) => {
    const bytes = Buffer.alloc(value === null ? 4 : 12);
    bytes.writeInt32BE(value === null ? -1 : 8);
    if (value !== null) bytes.writeDoubleBE(value, 4);
    return bytes;
  };
  const int8 = (value: number) => {
    const bytes = Buffer.alloc(12);
    bytes.writeInt32BE(8);
    bytes.writeBigInt64BE(BigInt(value), 4);
    return bytes;
  };
  const numbers = [
    { name: 'ms', pg: 'int8' },
    { name: 'id', pg: 'int8' },
    { name: 'a', pg: 'float8' },
    { name: 'b', pg: 'float8' },
  ] as const;
  const layouts = {
    fixed: { columns: numbers, rest: Buffer.alloc(0), isNullable: false },
    leading: {
      columns: [...numbers, { name: 'note', pg: 'text' }],
      rest: Buffer.from([0, 0, 0, 1, 65]),
      isNullable: false,
    },
    any: { columns: numbers.map((column) => ({ ...column, nullable: true })), rest: Buffer.alloc(0), isNullable: true },
  } as const;
  const odd = fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY);
  const cell = fc.oneof(
    { weight: 500, arbitrary: fc.double({ noNaN: true, noDefaultInfinity: true }) },
    { weight: 1, arbitrary: odd },
  );
  // Near the ends of granules, and rows beyond several.
  const counts = fc.constantFrom(1, 2, 255, 256, 257, 511, 512, 513, 700);
  const rowsOf = counts.chain((length) =>
    fc.array(fc.tuple(cell, cell, fc.integer({ min: -5000, max: 5000 }), fc.maxSafeInteger()), {
      minLength: length,
      maxLength: length,
    }),
  );
  fc.assert(
    fc.property(
      rowsOf,
      fc.constantFrom(...(Object.keys(layouts) as (keyof typeof layouts)[])),
      fc.nat(),
      (rows, name, hole) => {
        const { columns, rest, isNullable } = layouts[name];
        const cells = rows.map(
          ([a, b, ms, id], at) => [isNullable && at % 256 === hole % 256 ? null : a, b, ms, id] as const,
        );
        const copy = Buffer.concat(
          cells.flatMap(([a, b, ms, id]) => [
            Buffer.from([0, columns.length]),
            int8(ms),
            int8(id),
            double(a),
            double(b),
            rest,
          ]),
        );
        const { granules } = new CopyRanges(columns, ['a', 'b'], 'ms', 'id').of(copy, rows.length)!;
        const plain = Object.entries(granules).map(([fact, values]) => [fact, [...values]]);
        expect(Object.fromEntries(plain)).toEqual(granulesOf(cells));
      },
    ),
    { numRuns: 60 },
  );
});

test('several frames together: the widest range; a column that one does not know is not known', () => {
  expect(unitedRanges([{ a: [1, 2], b: [5, 6] }, { a: [0, 1] }, { a: [3, 4], b: [1, 9] }])).toEqual({ a: [0, 4] });
  expect(unitedRanges([{ a: [1, 2] }, undefined])).toBeUndefined();
  expect(unitedRanges([])).toBeUndefined();
});

test('times are those of all rows, before 1970 and beyond 32 bits, too', () => {
  const rows = [-1, 1_709_251_200_123, -4_294_967_297, 4_294_967_296].map((ms) => row(1, 'x', 2, ms));
  expect(factsOf(...rows)).toMatchObject({ firstMs: -4_294_967_297, lastMs: 1_709_251_200_123 });
});

// Rows of one width are read column by column, others cell by cell.
test('rows of one width have the same ranges and times as the same rows with a text, nulls among them or not', () => {
  const FIXED = COLUMNS.filter(({ pg }) => pg !== 'text');
  const fixedRow = (...[a, b, ms]: readonly [number | null, number | null, number]) => {
    const bytes = row(a, '', b, ms);
    const text = bytes.length - 12 - (b === null ? 4 : 12) - 4;
    return Buffer.concat([Buffer.from([0, 3]), bytes.subarray(2, text), bytes.subarray(text + 4)]);
  };
  const odd = fc.constantFrom(null, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY);
  const cells = fc.oneof({ weight: 19, arbitrary: fc.double({ noNaN: true }) }, { weight: 1, arbitrary: odd });
  const rowsOf = fc.array(fc.tuple(cells, cells, fc.maxSafeInteger()), { maxLength: 20 });
  fc.assert(
    fc.property(rowsOf, (rows) => {
      const ranges = new CopyRanges(FIXED, ['a', 'b'], 'ms');
      const found = ranges.of(Buffer.concat(rows.map((values) => fixedRow(...values))), rows.length);
      expect(found).toEqual(factsOf(...rows.map(([a, b, ms]) => row(a, '', b, ms))));
    }),
  );
});

// Trades of exchanges B and C: columns of a fixed width first, then texts. Those are read column by column, too.
test('leading columns have the same ranges and times as if they could be null, whatever follows them', () => {
  const columns = [
    { name: 'ms', pg: 'int8' },
    { name: 'a', pg: 'float8' },
    { name: 'b', pg: 'float8' },
    { name: 'note', pg: 'text' },
    { name: 'c', pg: 'float8', nullable: true },
  ] as const;
  const rowOf = (...[ms, a, b, note, c]: readonly [number, number, number, string | null, number | null]) => {
    const bytes = Buffer.alloc(2 + 12 + 12 + 12 + 4);
    bytes.writeInt16BE(columns.length);
    for (const at of [2, 14, 26]) bytes.writeInt32BE(8, at);
    bytes.writeBigInt64BE(BigInt(ms), 6);
    bytes.writeDoubleBE(a, 18);
    bytes.writeDoubleBE(b, 30);
    const text = Buffer.from(note ?? '');
    bytes.writeInt32BE(note === null ? -1 : text.length, 38);
    const last = Buffer.alloc(c === null ? 4 : 12);
    last.writeInt32BE(c === null ? -1 : 8);
    if (c !== null) last.writeDoubleBE(c, 4);
    return Buffer.concat([bytes, text, last]);
  };
  const any = fc.double();
  const texts = fc.oneof(fc.string({ maxLength: 9 }), fc.constantFrom('', null));
  const rowsOf = fc.array(fc.tuple(fc.maxSafeInteger(), any, any, texts, fc.option(any)), { maxLength: 20 });
  const fast = new CopyRanges(columns, ['a', 'b'], 'ms');
  const slow = new CopyRanges(
    columns.map((column) => ({ ...column, nullable: true })),
    ['a', 'b'],
    'ms',
  );
  fc.assert(
    fc.property(rowsOf, (rows) => {
      const copy = Buffer.concat(rows.map((values) => rowOf(...values)));
      expect(fast.of(copy, rows.length)).toEqual(slow.of(copy, rows.length));
    }),
  );
  const [one] = [rowOf(1, 2, 3, 'x', 4)];
  expect(() => fast.of(Buffer.concat([one, one]), 1)).toThrow(`1 rows end at byte ${one.length} of ${2 * one.length}`);
});
