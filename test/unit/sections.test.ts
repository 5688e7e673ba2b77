/** Where a long statement is cut: anywhere would be right; sections with about as many rows each are fast. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { cutsOf, LEAST_LONG_ROWS } from '../../serving/read/plan/sections.ts';

const frames = fc
  .array(fc.record({ ms: fc.integer({ min: 1, max: 3_600_000 }), rows: fc.integer({ min: 1, max: 40_000 }) }), {
    minLength: 1,
    maxLength: 50,
  })
  .map((list) => {
    let to = 0;
    return list.map(({ ms, rows }) => {
      const from = to;
      to += ms;
      return { from, to, rows };
    });
  });

test('sections ascend from the start of the window to its end, with about as many rows each', () => {
  fc.assert(
    fc.property(frames, (list) => {
      const window = { from: 0, to: list[list.length - 1].to };
      const cuts = cutsOf(list, window);
      expect([cuts[0], cuts[cuts.length - 1]]).toEqual([0, window.to]);
      expect(cuts.every((cut, index) => index === 0 || cut > cuts[index - 1])).toBe(true);
      const rowsBefore = (ms: number) =>
        list.reduce((sum, { from, to, rows }) => sum + rows * Math.min(1, Math.max(0, (ms - from) / (to - from))), 0);
      const total = rowsBefore(window.to);
      // A cut lies at a whole millisecond, which may have many rows.
      const widest = Math.max(...list.map(({ from, to, rows }) => rows / (to - from)));
      const sections = 2 * Math.ceil(total / 49_152);
      if (total >= LEAST_LONG_ROWS && cuts.length === sections + 1) {
        for (const [index, cut] of cuts.entries()) {
          expect(Math.abs(rowsBefore(cut) - (total * index) / sections)).toBeLessThanOrEqual(widest + 1e-6 * total);
        }
      } else if (total < LEAST_LONG_ROWS) expect(cuts).toHaveLength(2);
    }),
  );
});

test('rows that all have one time are not cut', () => {
  expect(cutsOf([{ from: 5, to: 6, rows: 1_000_000 }], { from: 5, to: 6 })).toEqual([5, 6]);
  expect(cutsOf([], { from: 5, to: 6 })).toEqual([5, 6]);
});
