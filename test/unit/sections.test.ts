/** Where a long statement is cut: anywhere would be right; sections with about as many rows each are fast. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { cutsOf, LEAST_LONG_ROWS } from '../../serving/read/plan/sections.ts';

/** Frames of a window that begins anywhere, with or without gaps between them. */
const frames = fc
  .tuple(
    fc.nat(1e6),
    fc.array(
      fc.record({
        gap: fc.oneof(fc.constant(0), fc.nat(100_000)),
        ms: fc.oneof(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 1, max: 3_600_000 })),
        rows: fc.integer({ min: 1, max: 40_000 }),
      }),
      { minLength: 1, maxLength: 50, size: 'max' },
    ),
  )
  .map(([start, list]) => {
    let to = start;
    return list.map(({ gap, ms, rows }) => {
      const from = to + gap;
      to = from + ms;
      return { from, to, rows };
    });
  });

test('sections ascend from the start of the window to its end, with about as many rows each', () => {
  let most = 0;
  fc.assert(
    fc.property(frames, fc.nat(1000), (list, around) => {
      const window = { from: list[0].from - around, to: list[list.length - 1].to + around };
      const cuts = cutsOf(list, window);
      expect([cuts[0], cuts[cuts.length - 1]]).toEqual([window.from, window.to]);
      expect(cuts.every((cut, index) => index === 0 || cut > cuts[index - 1])).toBe(true);
      const rowsBefore = (ms: number) =>
        list.reduce((sum, { from, to, rows }) => sum + rows * Math.min(1, Math.max(0, (ms - from) / (to - from))), 0);
      const total = rowsBefore(window.to);
      const sections = total < LEAST_LONG_ROWS ? 1 : 2 * Math.ceil(total / 49_152);
      const wanted = Array.from({ length: sections + 1 }, (_, index) => (total * index) / sections);
      // A cut lies at a whole millisecond, which may have more rows than a section.
      const widest = Math.max(...list.map(({ from, to, rows }) => rows / (to - from)));
      const isNear = (a: number, b: number) => Math.abs(a - b) <= widest + 1e-6 * total;
      const found = cuts.map(rowsBefore);
      for (const rows of wanted) expect(found.some((one) => isNear(one, rows))).toBe(true);
      for (const rows of found) expect(wanted.some((one) => isNear(one, rows))).toBe(true);
      expect(cuts.length).toBeLessThanOrEqual(sections + 1);
      most = Math.max(most, cuts.length);
    }),
  );
  expect(most).toBeGreaterThan(10);
});

test('frames whose times overlap: the sections still ascend', () => {
  const overlapping = frames.map((list) => list.map((one) => ({ ...one, to: one.to + 1_000_000 })));
  fc.assert(
    fc.property(overlapping, (list) => {
      const window = { from: list[0].from, to: Math.max(...list.map(({ to }) => to)) };
      const cuts = cutsOf(list, window);
      expect([cuts[0], cuts[cuts.length - 1]]).toEqual([window.from, window.to]);
      expect(cuts.every((cut, index) => index === 0 || cut > cuts[index - 1])).toBe(true);
    }),
  );
});

test('even sections: a cut where the rows of each end, an even number, and none below the least', () => {
  const day = (rows: number) => cutsOf([{ from: 0, to: 1000, rows }], { from: 0, to: 1000 });
  expect(day(LEAST_LONG_ROWS - 1)).toEqual([0, 1000]);
  expect(day(LEAST_LONG_ROWS)).toEqual([0, 500, 1000]);
  expect(day(60_000)).toEqual([0, 250, 500, 750, 1000]);
});

test('rows that all have one time are not cut', () => {
  expect(cutsOf([{ from: 5, to: 6, rows: 1_000_000 }], { from: 5, to: 6 })).toEqual([5, 6]);
  expect(cutsOf([], { from: 5, to: 6 })).toEqual([5, 6]);
});
