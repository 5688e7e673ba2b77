/** Where klines come from: a bucket is kept only if all of its proved and requested time is. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  countedKlineSlices,
  type KlineSlice,
  klineSlices,
  klineSlicesBackward,
} from '../../serving/read/klines/slices.ts';
import { type KlineSource, KlineSources, keptSizeFor } from '../../serving/read/klines/sources.ts';
import type { Part } from '../../serving/read/read-model.ts';
import { joined, type Range } from '../../shared/ranges.ts';
import { datasetOf } from '../../shared/registry/index.ts';

const KEPT_MS = 10;
const CHUNK_MS = 100;

const part = (from: number, to: number) => ({ from, to, until: to, provedTo: to, isLast: false }) as Part;

/** Ranges that ascend and may touch, in steps of `step`. */
const ranges = (step: number, maxLength: number): fc.Arbitrary<Range[]> =>
  fc
    .array(fc.tuple(fc.integer({ min: 0, max: 120 / step }), fc.integer({ min: 1, max: 400 / step })), { maxLength })
    .map((lengths) => {
      let at = 0;
      return lengths.map(([gap, length]) => {
        const from = at + gap * step;
        at = from + length * step;
        return { from, to: at };
      });
    });

/** Edges of parts mostly lie where kept klines begin. */
const parts = fc
  .oneof(ranges(KEPT_MS, 8), ranges(5, 8), ranges(1, 8))
  .map((all) => all.map(({ from, to }) => part(from, to)));

const worlds = fc
  .record({
    parts,
    stretches: ranges(KEPT_MS, 8).map(joined),
    buckets: fc.integer({ min: 1, max: 7 }),
    shared: fc.uniqueArray(fc.integer({ min: 0, max: 40 })),
    needsQuartiles: fc.boolean(),
  })
  .map(({ parts: all, stretches, buckets, shared, needsQuartiles }) => {
    const sizeMs = buckets * KEPT_MS;
    const sharedStarts = shared.toSorted((a, b) => a - b).map((start) => start * sizeMs);
    const sources = new KlineSources(
      all,
      { ranges: stretches, sharedStarts },
      { sizeMs, keptMs: KEPT_MS, needsQuartiles },
    );
    return { parts: all, stretches, sharedStarts, sizeMs, sources };
  });

const isIn = (all: readonly Range[], ms: number) => all.some(({ from, to }) => from <= ms && ms < to);

interface World {
  readonly parts: readonly Part[];
  readonly stretches: readonly Range[];
  readonly sharedStarts: readonly number[];
  readonly sizeMs: number;
  readonly sources: KlineSources;
}

/** The source of a bucket, by looking at each of its milliseconds. */
function expectedAt(world: World, start: number): KlineSource {
  const { sizeMs } = world;
  const within = Array.from({ length: sizeMs }, (_, ms) => isIn(world.parts, start + ms));
  if (world.sharedStarts.includes(start) && !within.includes(false)) return 'shared';
  const isKept = within.every((isWithin, ms) => {
    if (!isWithin) return true;
    const cell = start + ms - ((start + ms) % KEPT_MS);
    const isWhole = Array.from({ length: KEPT_MS }, (_, at) => isIn(world.parts, cell + at)).every(Boolean);
    return isWhole && isIn(world.stretches, start + ms);
  });
  return isKept ? (sizeMs === KEPT_MS ? 'stored' : 'added') : 'rows';
}

const bucketsOf = (all: readonly Range[], sizeMs: number) => {
  const starts = new Set<number>();
  for (const { from, to } of all) {
    for (let at = Math.floor(from / sizeMs) * sizeMs; at < to; at += sizeMs) starts.add(at);
  }
  return [...starts].sort((a, b) => a - b);
};

function checkSlices({ parts: all, sizeMs, sources }: World, slices: readonly KlineSlice[]): void {
  expect(joined(slices.flatMap((slice) => slice.parts)).map(({ from, to }) => ({ from, to }))).toEqual(
    joined(all).map(({ from, to }) => ({ from, to })),
  );
  const seen = slices.flatMap((slice) => bucketsOf(slice.parts, sizeMs));
  expect(seen).toEqual(bucketsOf(all, sizeMs));
  for (const slice of slices) {
    for (const start of bucketsOf(slice.parts, sizeMs)) expect(slice.source).toBe(sources.at(start));
  }
}

describe('sources', () => {
  test('each bucket has the source that its milliseconds allow', () => {
    fc.assert(
      fc.property(worlds, (world) => {
        for (const start of bucketsOf(world.parts, world.sizeMs)) {
          expect([start, world.sources.at(start)]).toEqual([start, expectedAt(world, start)]);
        }
      }),
      { numRuns: 300 },
    );
  });

  test('slices hold each bucket once, with its source, in both directions and cut for counts', () => {
    fc.assert(
      fc.property(worlds, fc.integer({ min: 1, max: 50 }), (world, buckets) => {
        const grid = { sizeMs: world.sizeMs, chunkMs: CHUNK_MS, sources: world.sources };
        checkSlices(world, [...klineSlices(world.parts, grid)]);
        checkSlices(world, [...klineSlicesBackward(world.parts, grid, buckets)].toReversed());
        const days = world.parts.flatMap(({ from, to }) =>
          to - from >= 50 ? [{ key: String(from), from, to: from + 50, rows: 1 }] : [],
        );
        checkSlices(world, [...countedKlineSlices(world.parts, days, grid)]);
      }),
      { numRuns: 300 },
    );
  });

  test('a gap does not end a slice of kept klines', () => {
    const years = Array.from({ length: 900 }, (_, n) => part(n * 2000, n * 2000 + 1000));
    const kept = { ranges: years, sharedStarts: [] };
    const sources = new KlineSources(years, kept, { sizeMs: KEPT_MS, keptMs: KEPT_MS, needsQuartiles: true });
    const slices = [...klineSlices(years, { sizeMs: KEPT_MS, chunkMs: CHUNK_MS, sources })];
    expect(slices.length).toBeLessThanOrEqual(2);
  });
});

test('the kept size for a size is the longest that divides it and lies in one file day', () => {
  const MINUTE_MS = 60_000;
  const minutes = (key: string, size: number) => {
    const kept = keptSizeFor(datasetOf(key), size);
    return kept === undefined ? undefined : kept / MINUTE_MS;
  };
  const [a, b] = ['exchange_a_spot_trades', 'exchange_b_spot_trades'];
  expect([90_000, 60_000, 420_000, 1_800_000, 7_200_000].map((size) => minutes(a, size))).toEqual([
    undefined,
    1,
    1,
    15,
    60,
  ]);
  const [day, week] = [86_400_000, 604_800_000];
  expect([minutes(a, day), minutes(a, week), minutes(b, day), minutes(b, week)]).toEqual([1440, 1440, 240, 240]);
});
