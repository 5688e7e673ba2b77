/** Cutting proved parts for klines: no bucket in two statements, nothing lost, no statement over more than it has to be. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  bucketSlice,
  countedKlineSlices,
  type KlineSlice,
  klineSlices,
  klineSlicesBackward,
} from '../../serving/read/klines/slices.ts';
import { MAX_CHUNKS } from '../../serving/read/plan/slices.ts';
import type { Part } from '../../serving/read/read-model.ts';

const CHUNK_MS = 1000;

const gridOf = (sizeMs: number) => ({ sizeMs, chunkMs: CHUNK_MS });

const part = (from: number, to: number) => ({ from, to, until: to, provedTo: to, isLast: false }) as Part;

/** Parts ascending and apart, some of them close, some chunks away. */
const parts = fc
  .array(fc.tuple(fc.integer({ min: 1, max: 90_000 }), fc.integer({ min: 1, max: 60_000 })), { maxLength: 12 })
  .map((lengths) => {
    let at = 0;
    return lengths.map(([gap, length]) => {
      const from = at + gap;
      at = from + length;
      return part(from, at);
    });
  });
const sizes = fc.oneof(fc.constantFrom(1, 7, 1000, 32_000, 100_000), fc.integer({ min: 1, max: 70_000 }));

const rangesOf = (slices: readonly KlineSlice[]) =>
  slices.flatMap((slice) => slice.parts.map(({ from, to }) => ({ from, to })));

/** Ranges that touch, as one. */
function joined(ranges: readonly { from: number; to: number }[]) {
  const all: { from: number; to: number }[] = [];
  for (const { from, to } of ranges) {
    const last = all.at(-1);
    if (last && last.to === from) last.to = to;
    else all.push({ from, to });
  }
  return all;
}

function checkSlices(slices: readonly KlineSlice[], all: readonly Part[], sizeMs: number): void {
  expect(joined(rangesOf(slices))).toEqual(joined(all.map(({ from, to }) => ({ from, to }))));
  slices.forEach((slice, index) => {
    expect([slice.from, slice.to]).toEqual([slice.parts[0].from, slice.parts.at(-1)!.to]);
    const [first, last] = [Math.floor(slice.from / sizeMs), Math.floor((slice.to - 1) / sizeMs)];
    if (index > 0) expect(first).toBeGreaterThan(Math.floor((slices[index - 1].to - 1) / sizeMs));
    const chunks = Math.floor((slice.to - 1) / CHUNK_MS) - Math.floor(slice.from / CHUNK_MS) + 1;
    if (last > first) expect(chunks).toBeLessThanOrEqual(MAX_CHUNKS + 1);
  });
}

describe('slices for klines', () => {
  test('forward', () => {
    fc.assert(
      fc.property(parts, sizes, (all, sizeMs) => {
        checkSlices([...klineSlices(all, gridOf(sizeMs))], all, sizeMs);
      }),
    );
  });

  test('backward: the same, from the newest, at first no longer than asked for', () => {
    fc.assert(
      fc.property(parts, sizes, fc.integer({ min: 1, max: 2 ** 53 - 1 }), (all, sizeMs, buckets) => {
        const slices = [...klineSlicesBackward(all, gridOf(sizeMs), buckets)];
        checkSlices(slices.toReversed(), all, sizeMs);
        if (slices.length > 0) expect(slices[0].to - slices[0].from).toBeLessThanOrEqual(buckets * sizeMs);
      }),
    );
  });

  test('one bucket', () => {
    const all = [part(5, 10), part(12, 18), part(40, 50)];
    expect(rangesOf([bucketSlice(all, gridOf(10), 0)])).toEqual([{ from: 5, to: 10 }]);
    expect(rangesOf([bucketSlice(all, gridOf(10), 10)])).toEqual([{ from: 12, to: 18 }]);
    expect(rangesOf([bucketSlice(all, gridOf(20), 0)])).toEqual([
      { from: 5, to: 10 },
      { from: 12, to: 18 },
    ]);
  });
});

test('whole file days are read apart from what the window cuts of others, unless a bucket is of both', () => {
  const day = 1000;
  const days = [1, 2, 5].map((n) => ({ key: String(n), from: n * day, to: (n + 1) * day, rows: 10 ** n }));
  const shown = (sizeMs: number, all: readonly Part[]) =>
    [...countedKlineSlices(all, days, gridOf(sizeMs))].map(({ from, to, parts: of, count }) => [
      of.length === 1 ? [from, to] : of.map((one) => [one.from, one.to]),
      count && [count.rows, count.isMinimum],
    ]);
  const window = [part(500, 3200), part(5000, 5900)];
  expect(shown(500, window)).toEqual([
    [[500, 1000], undefined],
    [
      [1000, 3000],
      [110, false],
    ],
    [
      [
        [3000, 3200],
        [5000, 5900],
      ],
      undefined,
    ],
  ]);
  expect(shown(3000, [part(500, 3200)])).toEqual([
    [
      [500, 3000],
      [110, true],
    ],
    [[3000, 3200], undefined],
  ]);
});

test('cutting for counts leaves every bucket whole', () => {
  fc.assert(
    fc.property(parts, sizes, fc.integer({ min: 500, max: 20_000 }), (all, sizeMs, day) => {
      const days = all.flatMap(({ from, to }) =>
        Array.from({ length: Math.max(0, Math.floor(to / day) - Math.ceil(from / day)) }, (_, n) => {
          const at = (Math.ceil(from / day) + n) * day;
          return { key: String(at), from: at, to: at + day, rows: 1 };
        }),
      );
      checkSlices([...countedKlineSlices(all, days, gridOf(sizeMs))], all, sizeMs);
    }),
  );
});
