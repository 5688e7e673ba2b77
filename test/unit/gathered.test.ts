import fc from 'fast-check';
import { expect, test } from 'vitest';
import { MAX_CHUNKS, slicesBackward, slicesOf } from '../../serving/read/plan/boundary-rows.ts';
import { gathered } from '../../serving/read/plan/gathered.ts';
import type { Part, Slice } from '../../serving/read/read-model.ts';
import { within } from '../../serving/read/snapshot/proved-runs.ts';
import { clip, type Range } from '../../shared/ranges.ts';
import { runs } from '../support/seed.ts';

const CHUNK = 10;

/** Stretches of a few runs, ascending; some adjoin, and some are long. */
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
  [...slices].flatMap(({ from, to, stretches = [{ from, to }] }) => stretches);
/** Every unit of time on its own. */
const unitsOf = (ranges: readonly Range[]) =>
  ranges.flatMap(({ from, to }) => Array.from({ length: to - from }, (_, at) => from + at));

test('what is gathered is searched once, in order, and nothing else is, within any window', () => {
  let most = 0;
  fc.assert(
    fc.property(parts, fc.nat(30), fc.nat(400), fc.nat(800), (all, longest, from, length) => {
      const window = { from, to: from + length };
      const expected = unitsOf(clip(all, window.from, window.to));
      const searched = within(gathered(all, longest), window);
      const ahead = [...slicesOf(searched, CHUNK)];
      expect(unitsOf(searchedBy(ahead))).toEqual(expected);
      const back = [...slicesBackward(searched, CHUNK)];
      expect(unitsOf(searchedBy(back).toReversed())).toEqual(expected);
      for (const { stretches = [], ...slice } of [...ahead, ...back]) {
        most = Math.max(most, stretches.length);
        expect(Math.ceil(slice.to / CHUNK) - Math.floor(slice.from / CHUNK)).toBeLessThanOrEqual(MAX_CHUNKS);
        for (const one of stretches) {
          expect(one.to - one.from).toBeLessThanOrEqual(longest);
          expect(clip([one], slice.from, slice.to)).toEqual([one]);
        }
      }
    }),
    { numRuns: runs(500) },
  );
  expect(most).toBeGreaterThan(5);
});

test('a part holds stretches of one proved run, and no more than a statement takes', () => {
  const part = (at: number, until: number): Part => ({
    from: 2 * at,
    to: 2 * at + 1,
    until,
    provedTo: 7,
    isLast: false,
  });
  const many = Array.from({ length: 10_000 }, (_, at) => part(at, at < 5000 ? 1 : 2));
  const found = gathered(many, 1);
  expect(found.map(({ stretches, until }) => [stretches?.length, until])).toEqual([
    [4096, 1],
    [904, 1],
    [4096, 2],
    [904, 2],
  ]);
  expect(found[1]).toMatchObject({ from: 2 * 4096, to: 2 * 4999 + 1, provedTo: 7, isLast: false });
  expect(gathered(many.slice(0, 1), 1)).toEqual([many[0]]);
});
