/** Reading trade files, every vendor's alike: facts, frames and bytes against plain text handling and BigInts. */
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { DecodedItem } from '../../pipelines/sources/feed-types.ts';
import { MAX_ROW_BYTES } from '../../pipelines/sources/trades/row-reader.ts';
import { unitsOf } from '../support/decimals.ts';
import { runs } from '../support/seed.ts';
import {
  decimal,
  fileOf,
  LAYOUTS,
  OTHER_LAYOUTS,
  pieceSizes,
  shapes,
  type TradeLayout,
  type TradeLine,
  withLast,
} from '../support/trade-layouts.ts';
import { decodeFile, endsOf, rawOf, runsOf } from '../support/trades.ts';

/** What a manifest must say of these rows, by definition. */
function expectedFacts(layout: TradeLayout, list: readonly TradeLine[], written: readonly string[]) {
  const { native } = layout.dataset;
  const times = list.map(({ ms }) => ms);
  const totals = native.totals.map(({ column, scale }) => {
    const index = native.columns.findIndex(({ name }) => name === column);
    const sum = list.reduce((total, { texts }) => total + unitsOf(Number(texts[index]), scale), 0n);
    return [column, sum.toString()];
  });
  return {
    rows: list.length,
    first_offset: String(list[0].id),
    last_offset: String(list.at(-1)!.id),
    first_ms: Math.min(...times),
    last_ms: Math.max(...times),
    ...layout.idFacts(list),
    totals: Object.fromEntries(totals),
    events_sha256: createHash('sha256')
      .update(written.map((line) => `${line}\n`).join(''))
      .digest('hex'),
  };
}
const linesOf = (list: readonly TradeLine[]) => list.map(({ line }) => line);
const comparable = (items: readonly DecodedItem[]) => items.map((item) => ({ ...item, release: undefined }));

describe.each([...LAYOUTS, ...OTHER_LAYOUTS])('a file of $name', (layout) => {
  test('yields the facts that plain text handling finds, whatever its line ends, header and mark', () => {
    fc.assert(
      fc.property(layout.lines(decimal), shapes(layout), pieceSizes, (list, shape, pieces) => {
        const items = decodeFile(layout, fileOf(layout, linesOf(list), shape), { pieces });
        const [end, ...others] = endsOf(items);
        expect(others).toEqual([]);
        const { rows_hash, ...facts } = end.facts;
        const written = withLast(layout, linesOf(list), shape.header);
        expect(facts).toEqual(expectedFacts(layout, list, written));
        expect(rows_hash).toMatch(/^-?\d+$/);
        expect(end.partition).toEqual({
          key: layout.day,
          fromMs: layout.fromMs,
          toMs: layout.toMs,
        });
        // The events are the rows' own bytes, line ends apart.
        expect(rawOf(items)).toBe(written.map((line) => `${line}\n`).join(''));
      }),
      { numRuns: runs(300) },
    );
  });

  test('yields the same facts and the same frames however it is cut into pieces', () => {
    const sizes = fc.integer({ min: 1, max: 700 });
    fc.assert(
      fc.property(layout.lines(decimal), shapes(layout), pieceSizes, sizes, (list, shape, pieces, frame) => {
        const file = fileOf(layout, linesOf(list), shape);
        const whole = comparable(decodeFile(layout, file, { frame }));
        expect(comparable(decodeFile(layout, file, { frame, pieces }))).toEqual(whole);
        expect(comparable(decodeFile(layout, file, { frame, pieces: [1] }))).toEqual(whole);
      }),
      { numRuns: runs(150) },
    );
  });

  test('yields the same facts and bytes at any frame size, in frames that say what they hold', () => {
    fc.assert(
      fc.property(layout.lines(decimal), shapes(layout), fc.integer({ min: 1, max: 3000 }), (list, shape, frame) => {
        const file = fileOf(layout, linesOf(list), shape);
        const items = decodeFile(layout, file, { frame });
        expect(endsOf(items)).toEqual(endsOf(decodeFile(layout, file)));
        const written = withLast(layout, linesOf(list), shape.header);
        let next = 0;
        for (const run of runsOf(items)) {
          const held = list.slice(next, next + run.rows);
          expect(run.raw.toString()).toBe(
            written
              .slice(next, next + run.rows)
              .map((line) => `${line}\n`)
              .join(''),
          );
          next += run.rows;
          const times = held.map(({ ms }) => ms);
          expect(run).toMatchObject({
            first_offset: String(held[0].id),
            last_offset: String(held.at(-1)!.id),
            first_ms: Math.min(...times),
            last_ms: Math.max(...times),
          });
          // Closed as soon as it is full.
          expect(run.raw.length).toBeLessThan(frame + MAX_ROW_BYTES + 1);
          if (next < list.length) expect(run.raw.length).toBeGreaterThanOrEqual(frame);
        }
        expect(next).toBe(list.length);
      }),
      { numRuns: runs(150) },
    );
  });

  test('with a row of the largest size is read, with one byte more refused, at any cutting', () => {
    const priceAt = layout.columns.findIndex(({ name }) => name === 'price');
    // Zeros in front are no digits.
    const row = (length: number, id: number) => {
      const rest = layout.row(id, { [priceAt]: '7' }).length - 1;
      return layout.row(id, { [priceAt]: `${'0'.repeat(length - rest - 1)}7` });
    };
    const [first, largest, larger] = [row(MAX_ROW_BYTES, 17), row(MAX_ROW_BYTES, 18), row(MAX_ROW_BYTES + 1, 18)];
    expect([first, largest, larger].map(({ length }) => length - MAX_ROW_BYTES)).toEqual([0, 0, 1]);
    for (const crlf of [false, true]) {
      for (const lastEnd of [false, true]) {
        const shape = { bom: false, header: layout.headers[0], crlf: [crlf], lastEnd };
        for (const pieces of [[], [1], [7], [MAX_ROW_BYTES], [MAX_ROW_BYTES + 1], [MAX_ROW_BYTES + 2]]) {
          for (const frame of [1, 100, 4096]) {
            const items = decodeFile(layout, fileOf(layout, [first, largest], shape), { pieces, frame });
            expect(rawOf(items)).toBe(`${first}\n${largest}\n`);
            const line = layout.headers[0] === undefined ? 2 : 3;
            expect(() => decodeFile(layout, fileOf(layout, [first, larger], shape), { pieces, frame })).toThrow(
              expect.objectContaining({
                code: 'SOURCE_DOCUMENT_INVALID',
                details: expect.objectContaining({ line, document: layout.document }),
              }),
            );
          }
        }
      }
    }
  });
});
