/**
 * The scanner of rows (trades/row-scanner.ts) beside the decoders that it is a part of: what ends with CR LF is read by the decoder
 * alone, so each file is read once with either line end, and must give the same.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempDisposableSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { DecodedItem } from '../../pipelines/sources/feed-types.ts';
import { RowScanner } from '../../pipelines/sources/trades/row-scanner.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { ExactTotal } from '../../shared/proof/row-facts.ts';
import { RowHasher } from '../../shared/proof/row-hash.ts';
import { ROOT } from '../support/command.ts';
import { runs } from '../support/seed.ts';
import {
  decimal,
  EXCHANGE_A,
  EXCHANGE_B,
  EXCHANGE_C,
  fileOf,
  OTHER_LAYOUTS,
  plain,
  SCANNED_LAYOUTS,
  type TradeLayout,
  usualDecimal,
} from '../support/trade-layouts.ts';
import { type DecodeOptions, decodeFile, factsOf, rawOf } from '../support/trades.ts';

/** Their scanner compares each row's symbol with the instrument's. */
const OTHERS = OTHER_LAYOUTS.filter(({ columns }) =>
  columns.some(({ name }) => /^(instrument_name|symbol)$/.test(name)),
);

const ending = (layout: TradeLayout, lines: readonly string[], crlf: boolean) =>
  fileOf(layout, lines, { ...plain(layout), crlf: [crlf] });
const comparable = (items: readonly DecodedItem[]) => items.map((item) => ({ ...item, release: undefined }));
/** What reading the lines gives with the scanner and without it: items, or the fault. */
const bothWays = (layout: TradeLayout, lines: readonly string[], options: DecodeOptions = {}) =>
  [false, true].map((crlf) => {
    try {
      return comparable(decodeFile(layout, ending(layout, lines, crlf), options));
    } catch (error) {
      return error;
    }
  });
const mostlyUsual = fc.oneof({ weight: 60, arbitrary: usualDecimal }, { weight: 1, arbitrary: decimal });
/** Rows of a layout that the scanner takes. */
const usualRows = (layout: TradeLayout, count: number) => Array.from({ length: count }, (_, id) => layout.row(1 + id));

test('what is compiled is that of its source: `npm run wasm` makes it', () => {
  using folder = mkdtempDisposableSync(join(tmpdir(), 'wasm-'));
  const made = join(folder.path, 'made.wasm');
  const asc = join(ROOT, 'node_modules/assemblyscript/bin/asc.js');
  const trades = join(ROOT, 'pipelines/sources/trades');
  const options = ['--config', join(trades, 'scanner/asconfig.json'), '--outFile', made];
  const { status, stderr } = spawnSync(process.execPath, [asc, ...options], { encoding: 'utf8' });
  expect([status, stderr]).toEqual([0, '']);
  expect(readFileSync(made).equals(readFileSync(join(trades, 'row-scanner.wasm')))).toBe(true);
});

describe.each([...SCANNED_LAYOUTS, ...OTHERS])('rows of $name', (layout) => {
  test.each([
    ['mostly as usual', mostlyUsual, 300],
    ['often unusual', decimal, 60],
  ])('give the same facts, frames and bytes as without the scanner, %s', (_, decimals, maxLength) => {
    const lines = layout.lines(decimals, { minLength: 1, maxLength, size: 'max' });
    const sizes = fc.oneof(fc.integer({ min: 1, max: 5000 }), fc.constant(1 << 16));
    // Exchange A's ids are without repeats, so that a repeat is refused.
    const places = fc.array(fc.nat(maxLength), { maxLength: layout.dataset === EXCHANGE_A.dataset ? 0 : 3 });
    fc.assert(
      fc.property(lines, sizes, places, (list, frame, repeated) => {
        const written = list.flatMap(({ line }, at) => (repeated.includes(at) ? [line, line] : [line]));
        const [scanned, parsed] = bothWays(layout, written, { frame });
        expect(scanned).toEqual(parsed);
      }),
      { numRuns: runs(150) },
    );
  });

  test('are refused for the same fault at the same line, whatever was scanned before', () => {
    const bad = layout.columns.flatMap(({ bad }, column) => bad.map((value) => [column, value] as const));
    const place = fc.integer({ min: 0, max: 120 });
    fc.assert(
      fc.property(fc.constantFrom(...bad), place, fc.integer({ min: 0, max: 60 }), ([column, value], at, behind) => {
        const lines = usualRows(layout, at + 1 + behind).with(at, layout.row(1 + at, { [column]: value }));
        const [scanned, parsed] = bothWays(layout, lines);
        expect(scanned).toEqual(parsed);
        expect(scanned).toBeInstanceOf(TidemarkError);
      }),
      { numRuns: runs(300) },
    );
  });

  test('with any byte changed are read or refused as without the scanner', () => {
    const lines = usualRows(layout, 40);
    fc.assert(
      fc.property(fc.integer({ min: 12, max: 25 }), fc.nat(), fc.integer({ min: 0, max: 255 }), (row, place, byte) => {
        const changed = Buffer.from(lines[row], 'latin1');
        if ([10, 13].includes(byte)) return;
        changed[place % changed.length] = byte;
        const [scanned, parsed] = bothWays(layout, lines.with(row, changed.toString('latin1')));
        expect(scanned).toEqual(parsed);
      }),
      { numRuns: runs(500) },
    );
  });

  test('of more than the memory holds at once are all taken, and the same', () => {
    const lines = usualRows(layout, 9000);
    const [scanned, parsed] = bothWays(layout, lines, { frame: 1 << 18 });
    expect(scanned).toEqual(parsed);
  });

  test('with more digits than 64 bits hold are not taken for smaller numbers', () => {
    const decimals = layout.columns.flatMap(({ bad }, column) => (bad.includes('1e309') ? [column] : []));
    for (const column of decimals) {
      for (const value of [
        '18446744073709551621',
        '18446744073709551621.5',
        '1844674407370955162.15',
        `${2n ** 128n + 7n}`,
      ]) {
        const lines = usualRows(layout, 20).with(9, layout.row(10, { [column]: value }));
        const [scanned, parsed] = bothWays(layout, lines);
        expect(scanned).toEqual(parsed);
      }
    }
    expect(decimals.length).toBeGreaterThan(1);
  });
});

test('texts of any length are hashed as without the scanner', () => {
  for (let length = 1; length <= 32; length++) {
    const cells = { 5: 'TickDirection'.repeat(3).slice(0, length) };
    const lines = Array.from({ length: 20 }, (_, row) => EXCHANGE_C.row(10 ** (row % 14) + row, cells));
    const [scanned, parsed] = bothWays(EXCHANGE_C, lines);
    expect(scanned).toEqual(parsed);
    expect(scanned).not.toBeInstanceOf(TidemarkError);
  }
});

/** Scans a buffer as the decoder of a layout does. @returns rows and bytes of each scan */
function scansOf(layout: TradeLayout, buffer: Buffer): [rows: number, bytes: number][] {
  const scanner = new RowScanner(layout === EXCHANGE_A ? '' : layout === EXCHANGE_B ? 'BTC-USDT' : 'BTCUSDT');
  const { fromMs, toMs } = layout;
  const room = buffer.length;
  const scans: [number, number][] = [];
  for (let at = 0; at < buffer.length; ) {
    let end = at;
    if (layout === EXCHANGE_A) end = scanner.scanA(buffer, at, buffer.length, room, -1, fromMs, toMs);
    else if (layout === EXCHANGE_B) end = scanner.scanB(buffer, at, buffer.length, room, -1, fromMs, toMs, false);
    else end = scanner.scanC(buffer, at, buffer.length, fromMs, toMs, false);
    scans.push([scanner.rows, end - at]);
    if (end === at) break;
    at = end;
  }
  return scans;
}

test.each(SCANNED_LAYOUTS)('all usual rows of $dataset.key are scanned, some thousands at a time', (layout) => {
  const lines = usualRows(layout, 9000);
  const buffer = Buffer.from(lines.map((line) => `${line}\n`).join(''));
  const scans = scansOf(layout, buffer);
  expect(scans.reduce((sum, [rows]) => sum + rows, 0)).toBe(9000);
  expect(scans.length).toBeLessThan(12);
  // Numbers of 17 digits, with an exponent and without, and zeros where they are legal.
  const cells: Record<number, string> =
    layout === EXCHANGE_A
      ? { 1: '4074.0193999999997', 2: '0.00044782999999999997' }
      : layout === EXCHANGE_B
        ? { 3: '7854.16e+0', 4: '0.00044782999999999997' }
        : { 3: '0', 4: '78.54169999999999', 7: '7.854169999999999e+09', 8: '0.0' };
  const row = `${layout.row(1, cells)}\n`;
  expect(scansOf(layout, Buffer.from(row))).toEqual([[1, row.length]]);
});

test('a row that is cut off, or at fault in its last cell, is left even where digits lie behind the rows', () => {
  for (const layout of SCANNED_LAYOUTS) {
    const [good, ...rest] = usualRows(layout, 600).map((line) => `${line}\n`);
    // The memory holds old rows behind the new ones.
    scansOf(layout, Buffer.from([good, ...rest].join('')));
    for (let cut = 1; cut < good.length; cut++) {
      expect(scansOf(layout, Buffer.from(good + rest[0].slice(0, cut)))[0]).toEqual([1, good.length]);
    }
  }
});

test('decoders that take turns do not see the rows or symbols of each other', () => {
  const files = SCANNED_LAYOUTS.map((layout) => ending(layout, usualRows(layout, 2000), false));
  const alone = SCANNED_LAYOUTS.map((layout, index) => decodeFile(layout, files[index]));
  const decoders = SCANNED_LAYOUTS.map((layout) => layout.decoder());
  const items: DecodedItem[][] = SCANNED_LAYOUTS.map(() => []);
  for (let at = 0; at < Math.max(...files.map(({ length }) => length)); at += 5000) {
    for (const [index, decoder] of decoders.entries()) {
      items[index].push(...decoder.push(Buffer.from(files[index].subarray(at, at + 5000))));
    }
  }
  for (const [index, decoder] of decoders.entries()) {
    items[index].push(...decoder.finish());
    expect(factsOf(items[index])).toEqual(factsOf(alone[index]));
    expect(rawOf(items[index])).toBe(rawOf(alone[index]));
    decoder[Symbol.dispose]?.();
  }
});

test('sums of values beyond 2^53 are exact', () => {
  const lines = Array.from({ length: 4096 }, (_, id) => EXCHANGE_A.row(id + 1, { 1: '22517998.13685247' }));
  const buffer = Buffer.from(lines.map((line) => `${line}\n`).join(''));
  const scanner = new RowScanner();
  const [hasher, total] = [new RowHasher(), new ExactTotal()];
  for (let at = 0, end = -1; at < buffer.length; at = end) {
    end = scanner.scanA(buffer, at, buffer.length, buffer.length, -1, EXCHANGE_A.fromMs, EXCHANGE_A.toMs);
    expect(end).toBeGreaterThan(at);
    scanner.addTo(hasher, [total]);
  }
  expect(total.toString()).toBe(String(4096n * 2251799813685247n));
});

test.each([
  [64, 3],
  [65, 0],
])('of a symbol of %i bytes %i rows are scanned: a longer one leaves them to the decoder', (length, rows) => {
  const symbol = 'X'.repeat(length);
  const lines = usualRows(EXCHANGE_B, 3).map((line) => `${line.replace('BTC-USDT', symbol)}\n`);
  const buffer = Buffer.from(lines.join(''));
  const { fromMs, toMs } = EXCHANGE_B;
  const end = new RowScanner(symbol).scanB(buffer, 0, buffer.length, buffer.length, -1, fromMs, toMs, false);
  expect(end).toBe((buffer.length * rows) / 3);
});
