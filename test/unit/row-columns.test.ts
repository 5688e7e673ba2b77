/**
 * Events that are read in WebAssembly (trades/row-columns.ts) beside the same ones read one by one: a side or flag whose first letter
 * alone is as usual is left to the projectors, which read it as the word. trade-rows.test.ts compares both with exact arithmetic.
 */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { RowColumns } from '../../pipelines/sources/trades/row-columns.ts';
import { runs } from '../support/seed.ts';
import {
  decimal,
  EXCHANGE_A,
  EXCHANGE_B,
  EXCHANGE_C,
  SCANNED_LAYOUTS,
  type TradeLayout,
  usualDecimal,
} from '../support/trade-layouts.ts';

const readOf = (layout: TradeLayout) => (layout === EXCHANGE_A ? 'readA' : layout === EXCHANGE_B ? 'readB' : 'readC');

/** The same event, which only the projector of the exchange reads. */
const leftAlone = (layout: TradeLayout, line: string): string =>
  layout === EXCHANGE_A
    ? line.replace(/,([^,]*)$/, (_, flag) => (/^[t1]/i.test(flag) ? ',Txxx' : ',Fxxxx'))
    : line.replace(/,(buy|sell),/i, (_, side) => (/^b/i.test(side) ? ',bxx,' : ',sxxx,'));

/** Everything that a projector makes of frames of these lines. */
function made(layout: TradeLayout, lines: readonly string[], perFrame: number) {
  const projector = layout.projector();
  const copies: string[] = [];
  for (let from = 0; from < lines.length; from += perFrame) {
    const frame = lines.slice(from, from + perFrame);
    const raw = Buffer.from(frame.map((line) => `${line}\n`).join(''), 'latin1');
    copies.push(projector.rows(raw, frame.length).copy.toString('hex'));
  }
  const seconds = projector.aligned({ datasetId: 1, seriesId: 2 });
  const klines = projector.klines(1);
  return { copies, seconds: seconds.copy.toString('hex'), klines: klines.sha256, price: klines.price };
}

/** Rows and bytes of each call that reads a frame. */
function callsOf(layout: TradeLayout, raw: Buffer, most = Number.MAX_SAFE_INTEGER): [rows: number, bytes: number][] {
  const columns = new RowColumns(readOf(layout), layout);
  const calls: [number, number][] = [];
  columns.begin();
  for (let at = 0; at < raw.length; ) {
    const end = columns.read(raw, at, most);
    calls.push([columns.rows, end - at]);
    if (end === at) break;
    at = end;
  }
  return calls;
}

const usualRows = (layout: TradeLayout, count: number) => Array.from({ length: count }, (_, id) => layout.row(1 + id));
const mostlyUsual = fc.oneof({ weight: 30, arbitrary: usualDecimal }, { weight: 1, arbitrary: decimal });

test.each(
  SCANNED_LAYOUTS.flatMap((layout) => [
    { key: layout.dataset.key, layout, kind: 'mostly usual', decimals: mostlyUsual, maxLength: 200 },
    { key: layout.dataset.key, layout, kind: 'often unusual', decimals: decimal, maxLength: 60 },
  ]),
)('events of $key, $kind, are the same rows, seconds and klines as one by one', (subject) => {
  const { layout, decimals, maxLength } = subject;
  const lists = layout.lines(decimals, { minLength: 1, maxLength, size: 'max' });
  fc.assert(
    fc.property(lists, fc.integer({ min: 1, max: 120 }), (list, perFrame) => {
      const lines = list.map(({ line }) => line);
      const alone = lines.map((line) => leftAlone(layout, line));
      expect(alone.every((line, at) => line !== lines[at])).toBe(true);
      expect(made(layout, lines, perFrame)).toEqual(made(layout, alone, perFrame));
    }),
    { numRuns: runs(150) },
  );
});

test.each(SCANNED_LAYOUTS)(
  'usual events of $dataset.key are all read, thousands at a time, and those left alone are not',
  (layout) => {
    const lines = usualRows(layout, 9000);
    const raw = Buffer.from(lines.map((line) => `${line}\n`).join(''));
    const calls = callsOf(layout, raw);
    expect(calls.reduce((sum, [rows]) => sum + rows, 0)).toBe(9000);
    expect(calls.length).toBeLessThan(16);
    expect(callsOf(layout, raw, 10)[0][0]).toBe(10);
    expect(callsOf(layout, Buffer.from(`${leftAlone(layout, lines[0])}\n`))).toEqual([[0, 0]]);
  },
);

test.each([
  { layout: EXCHANGE_B, places: [3, 4] },
  { layout: EXCHANGE_C, places: [4, 3] },
])(
  'sizes of $layout.dataset.key that are printed with 16 and 17 digits are read, and only in WebAssembly',
  (subject) => {
    const { layout, places } = subject;
    const sizes = Array.from({ length: 3000 }, (_, index) => (((index * 104_729) % 3e8) / 1e8 + 1e-3) * 1.1);
    expect(sizes.filter((size) => String(size).length > 17).length).toBeGreaterThan(1000);
    const lines = sizes.map((size, index) => {
      const cells = layout.row(1 + index).split(',');
      cells[places[0]] = String(42_000 + (index % 700) / 10);
      cells[places[1]] = String(size);
      return cells.join(',');
    });
    const calls = callsOf(layout, Buffer.from(lines.map((line) => `${line}\n`).join('')));
    expect(calls.reduce((sum, [rows]) => sum + rows, 0)).toBe(3000);
    const alone = lines.map((line) => leftAlone(layout, line));
    expect(made(layout, lines, 3000)).toEqual(made(layout, alone, 3000));
  },
);

test('an event that is cut off is left, even where digits lie behind the events', () => {
  for (const layout of SCANNED_LAYOUTS) {
    const [good, ...rest] = usualRows(layout, 600).map((line) => `${line}\n`);
    // The memory holds old events behind the new ones.
    callsOf(layout, Buffer.from([good, ...rest].join('')));
    for (let cut = 1; cut < good.length; cut++) {
      expect(callsOf(layout, Buffer.from(good + rest[0].slice(0, cut)))[0]).toEqual([1, good.length]);
    }
  }
});

test('events of any byte changed are read or refused as one by one', () => {
  const outcome = (layout: TradeLayout, lines: readonly string[]) => {
    try {
      return made(layout, lines, lines.length);
    } catch (error) {
      return (error as { code?: string }).code;
    }
  };
  for (const layout of SCANNED_LAYOUTS) {
    const lines = usualRows(layout, 40);
    fc.assert(
      fc.property(fc.integer({ min: 12, max: 25 }), fc.nat(), fc.integer({ min: 0, max: 255 }), (row, place, byte) => {
        const changed = Buffer.from(lines[row], 'latin1');
        if (byte === 10) return;
        changed[place % changed.length] = byte;
        const all = lines.with(row, changed.toString('latin1'));
        const alone = all.map((line) => leftAlone(layout, line));
        // The change hit the word that tells them apart.
        if (alone[row] === all[row] || /^(bxx|sxxx)/.test(all[row])) return;
        if (layout === EXCHANGE_A && !/,(true|false|[01])$/i.test(all[row])) return;
        expect(outcome(layout, all)).toEqual(outcome(layout, alone));
      }),
      { numRuns: runs(500) },
    );
  }
});

const PAST_64_BITS = ['18446744073709551621', '18446744073709551621.5', '1844674407370955162.15', `${2n ** 128n + 7n}`];
/** Multiples of 2^64, with 20 digits: 0 in 64 bits. They were read as 0. */
const ZERO_IN_64_BITS = [1n, 2n, 3n, 4n, 5n].flatMap((factor) => {
  const digits = String(factor * 2n ** 64n);
  return [`0.${digits}`, `${digits.slice(0, 6)}.${digits.slice(6)}`, `${digits.slice(0, 8)}.${digits.slice(8)}`];
});
/** Nearly halfway between two doubles: the sum of the two parts alone is the wrong one. */
const HALFWAY = ['7856.829874917359575', '6114.787816480966739'];

test.each(SCANNED_LAYOUTS)(
  'numbers of $dataset.key that need more digits than 64 bits hold are the same as one by one',
  (layout) => {
    const decimals = layout.columns.flatMap(({ bad }, column) => (bad.includes('1e309') ? [column] : []));
    expect(decimals.length).toBeGreaterThan(1);
    const values = [...PAST_64_BITS, ...ZERO_IN_64_BITS, ...HALFWAY, '12345678901234567e-05', '12345678.901234567e-05'];
    for (const cells of decimals.flatMap((column) => values.map((value) => ({ [column]: value })))) {
      const lines = usualRows(layout, 20).with(9, layout.row(10, cells));
      expect(made(layout, lines, 20)).toEqual(
        made(
          layout,
          lines.map((line) => leftAlone(layout, line)),
          20,
        ),
      );
    }
  },
);

test('a time of more than 64 bits is refused, not taken for a smaller one', () => {
  const line = EXCHANGE_A.row(1, { 4: `${2n ** 64n + BigInt(EXCHANGE_A.fromMs)}` });
  expect(() => made(EXCHANGE_A, [line], 1)).toThrow('outside its partition');
});

test('projectors that take turns do not see the events of each other', () => {
  const frames = SCANNED_LAYOUTS.map((layout) => {
    const lines = usualRows(layout, 3000);
    return { layout, lines, raw: Buffer.from(lines.map((line) => `${line}\n`).join('')) };
  });
  const alone = frames.map(({ layout, raw }) => layout.projector().rows(raw, 3000).copy.toString('hex'));
  const readers = frames.map(({ layout }) => new RowColumns(readOf(layout), layout));
  const copies: Buffer[][] = frames.map(() => []);
  const places = frames.map(() => 0);
  for (const reader of readers) reader.begin();
  while (places.some((place, index) => place < frames[index].raw.length)) {
    for (const [index, { raw }] of frames.entries()) {
      if (places[index] === raw.length) continue;
      places[index] = readers[index].read(raw, places[index], 700);
      copies[index].push(Buffer.from(readers[index].copy));
    }
  }
  expect(copies.map((list) => Buffer.concat(list).toString('hex'))).toEqual(alone);
});
