import fc from 'fast-check';
import { expect, test } from 'vitest';
import { slicesOfRanges } from '../../serving/read/plan/granules.ts';
import { groupsOf, intersected, MAX_CHUNKS, merged, slicesBackward, slicesOf } from '../../serving/read/plan/slices.ts';
import type { Part, Slice } from '../../serving/read/read-model.ts';
import { within } from '../../serving/read/snapshot/proved-runs.ts';
import { clip, type Range } from '../../shared/ranges.ts';
import { runs } from '../support/seed.ts';

const CHUNK = 10;

/** Ranges of a few runs, ascending; some adjoin, and some are long. */
const parts = fc
  .array(fc.record({ gap: fc.nat(40), length: fc.integer({ min: 1, max: 30 }), isNew: fc.nat(9) }), {
    maxLength: 40,
    size: 'max',
  })
  .map((all) => {
    let [at, until] = [0, 0];
    return all.map(({ gap, length, isNew }): Part => {
      const from = at + gap;
      at = from + length;
      if (isNew === 0) until++;
      return { from, to: at, until, provedTo: undefined, isLast: true };
    });
  });

const searchedBy = (slices: Iterable<Slice>): Range[] =>
  [...slices].flatMap(({ from, to, ranges = [{ from, to }] }) => ranges);
/** Every unit of time on its own. */
const unitsOf = (ranges: readonly Range[]) =>
  ranges.flatMap(({ from, to }) => Array.from({ length: to - from }, (_, at) => from + at));

test('what is merged is searched once, in order, and nothing else is, within any window', () => {
  let most = 0;
  fc.assert(
    fc.property(parts, fc.nat(30), fc.nat(400), fc.nat(800), (all, longest, from, length) => {
      const window = { from, to: from + length };
      const expected = unitsOf(clip(all, window.from, window.to));
      const searched = within(merged(all, longest), window);
      const ahead = [...slicesOf(searched, CHUNK)];
      expect(unitsOf(searchedBy(ahead))).toEqual(expected);
      const back = [...slicesBackward(searched, CHUNK)];
      expect(unitsOf(searchedBy(back).toReversed())).toEqual(expected);
      for (const { ranges = [], ...slice } of [...ahead, ...back]) {
        most = Math.max(most, ranges.length);
        expect(Math.ceil(slice.to / CHUNK) - Math.floor(slice.from / CHUNK)).toBeLessThanOrEqual(MAX_CHUNKS);
        for (const one of ranges) {
          expect(one.to - one.from).toBeLessThanOrEqual(longest);
          expect(clip([one], slice.from, slice.to)).toEqual([one]);
        }
      }
    }),
    { numRuns: runs(500) },
  );
  expect(most).toBeGreaterThan(5);
});

test('parts are clipped to ranges: each unit of time that both hold comes once, and nothing is empty', () => {
  fc.assert(
    fc.property(parts, parts, (all, ranges) => {
      const held = new Set(unitsOf(ranges));
      const found = intersected(all, ranges);
      expect(unitsOf(found)).toEqual(unitsOf(all).filter((at) => held.has(at)));
      for (const { from, to } of found) expect(from).toBeLessThan(to);
    }),
    { numRuns: runs(500) },
  );
});

test('what granules leave of a slice is read in its order, in several statements, too', () => {
  let most = 0;
  fc.assert(
    fc.property(parts, fc.boolean(), (all, newestFirst) => {
      fc.pre(all.length > 0);
      const ranges = all.map(({ from, to }) => ({ from, to }));
      const whole = { from: ranges[0].from, to: ranges.at(-1)!.to, part: all[0] };
      const slices = [...slicesOfRanges(whole, ranges, CHUNK, newestFirst)];
      most = Math.max(most, slices.length);
      expect(searchedBy(slices)).toEqual(newestFirst ? ranges.toReversed() : ranges);
      for (const { from, to, ranges: own = [] } of slices) {
        expect([from, to]).toEqual([Math.min(...own.map((one) => one.from)), Math.max(...own.map((one) => one.to))]);
      }
    }),
    { numRuns: runs(500) },
  );
  expect(most).toBeGreaterThan(2);
});

test('a part holds ranges of one proved run, and no more than a statement takes', () => {
  const part = (at: number, until: number): Part => ({
    from: 2 * at,
    to: 2 * at + 1,
    until,
    provedTo: 7,
    isLast: false,
  });
  const many = Array.from({ length: 10_000 }, (_, at) => part(at, at < 5000 ? 1 : 2));
  const found = merged(many, 1);
  expect(found.map(({ ranges, until }) => [ranges?.length, until])).toEqual([
    [4096, 1],
    [904, 1],
    [4096, 2],
    [904, 2],
  ]);
  expect(found[1]).toMatchObject({ from: 2 * 4096, to: 2 * 4999 + 1, provedTo: 7, isLast: false });
  expect(merged(many.slice(0, 1), 1)).toEqual([many[0]]);
});

test('ranges share a statement within a chunk, and beyond it only if they are few', () => {
  const ranges = fc
    .uniqueArray(fc.nat(5000), { minLength: 1, maxLength: 200 })
    .map((starts) =>
      starts.sort((a, b) => a - b).map((from) => ({ from: 2 * from, to: 2 * from + 1, ids: (from % 3) + 1 })),
    );
  fc.assert(
    fc.property(ranges, fc.integer({ min: 10, max: 3000 }), (all, chunkMs) => {
      const groups = groupsOf(all, chunkMs, ({ ids }) => ids);
      expect(groups.flat()).toEqual(all);
      const chunksOf = (list: readonly Range[]) => new Set(list.map(({ from }) => Math.floor(from / chunkMs))).size;
      const idsOf = (list: readonly { readonly ids: number }[]) => list.reduce((sum, { ids }) => sum + ids, 0);
      for (const [at, group] of groups.entries()) {
        expect(chunksOf(group) === 1 || idsOf(group) <= 16).toBe(true);
        // None could take the next range, too.
        const next = groups[at + 1]?.[0];
        if (next) expect(chunksOf([...group, next]) > 1 && idsOf([...group, next]) > 16).toBe(true);
      }
    }),
  );
});
