/** Stretches of a slice as slices of their own: how many chunks a statement searches. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { slicesOfStretches } from '../../serving/read/plan/granules.ts';

const part = { from: 0, to: 10_000, until: 10_000, provedTo: undefined, isLast: true };

test('every stretch comes once, in the order asked for; several chunks share a slice only with few stretches', () => {
  const stretches = fc
    .uniqueArray(fc.nat(5000), { minLength: 1, maxLength: 200 })
    .map((starts) => starts.sort((a, b) => a - b).map((from) => ({ from: 2 * from, to: 2 * from + 1 })));
  fc.assert(
    fc.property(stretches, fc.integer({ min: 10, max: 3000 }), fc.boolean(), (all, chunkMs, newestFirst) => {
      const slices = [...slicesOfStretches({ from: 0, to: 10_001, part }, all, { chunkMs, newestFirst })];
      const found = slices.flatMap((slice) => slice.stretches!);
      expect(found).toEqual(newestFirst ? all.toReversed() : all);
      for (const { from, to, stretches } of slices) {
        expect([from, to]).toEqual([
          Math.min(...stretches!.map((one) => one.from)),
          Math.max(...stretches!.map((one) => one.to)),
        ]);
        const chunks = new Set(stretches!.map((one) => Math.floor(one.from / chunkMs)));
        if (chunks.size > 1)
          expect(
            stretches!.length -
              stretches!.filter((one) => Math.floor(one.from / chunkMs) === Math.max(...chunks)).length,
          ).toBeLessThanOrEqual(16);
      }
    }),
  );
});
