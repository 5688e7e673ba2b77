/** Which range of a partition holds the row of a rank, against the rows themselves. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { rangeOf } from '../../serving/read/plan/ranked-start.ts';
import { runs } from '../support/seed.ts';

test('the row of a rank lies in the range, and as many rows follow it as it says', () => {
  // Times in the order of offsets: they rise, but for ties and steps back.
  const steps = fc.array(fc.integer({ min: -2, max: 4 }), { minLength: 1, maxLength: 60 });
  fc.assert(
    fc.property(steps, fc.integer({ min: 1, max: 9 }), fc.nat(), (list, frameRows, drawn) => {
      let time = 1000;
      const times = list.map((step) => (time += step));
      const frames = [];
      for (let base = 0; base < times.length; base += frameRows) {
        const own = times.slice(base, base + frameRows);
        frames.push({ firstMs: Math.min(...own), lastMs: Math.max(...own), base, rows: own.length });
      }
      const rank = drawn % times.length;
      const found = rangeOf(frames, times.length, rank)!;
      const { from = Number.NEGATIVE_INFINITY, to = Number.POSITIVE_INFINITY } = found;
      const ofRank = times.toSorted((a, b) => a - b)[rank];
      expect(ofRank >= from && ofRank < to).toBe(true);
      expect(found.rowsAfter).toBe(times.filter((one) => one >= to).length);
    }),
    { numRuns: runs(500) },
  );
});

test('a range is a frame where no time crosses the borders of frames', () => {
  const frames = [0, 1, 2, 3].map((at) => ({ firstMs: at * 10, lastMs: at * 10 + 9, base: at * 5, rows: 5 }));
  expect(rangeOf(frames, 20, 7)).toEqual({ from: 10, to: 20, rowsAfter: 10 });
  expect(rangeOf(frames, 20, 0)).toEqual({ from: undefined, to: 10, rowsAfter: 15 });
  expect(rangeOf(frames, 20, 19)).toEqual({ from: 30, rowsAfter: 0 });
});

test('frames that do not add up to the rows of the partition lead nowhere', () => {
  const frames = [{ firstMs: 0, lastMs: 9, base: 0, rows: 5 }];
  expect([rangeOf(frames, 6, 2), rangeOf([], 6, 2), rangeOf(frames, 5, 5)]).toEqual([undefined, undefined, undefined]);
});
