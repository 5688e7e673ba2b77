/** What is fetched together, what follows from height and bits, and where two chains part. */
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { settledTip, syncNote } from '../../pipelines/sources/bitcoin/open-node.ts';
import { firstLost, planUnits, SINGLE_BLOCKS, UNIT_BLOCKS } from '../../pipelines/sources/bitcoin/proved-chain.ts';
import {
  difficultyOf,
  eraOf,
  halvingInterval,
  hashrateOf,
  observedInterval,
  subsidyOf,
  supplyAt,
} from '../../pipelines/sources/bitcoin/rows/derived.ts';
import type { Range } from '../../shared/ranges.ts';
import { confirmationDepth } from '../../shared/registry/blocks.ts';
import { givenData } from '../support/given.ts';
import { runs } from '../support/seed.ts';

describe('units of work', () => {
  test('round ranges far from the tip, single blocks near it', () => {
    expect(planUnits(0, 55, 55, [])).toEqual([
      { from: 0, to: 20 },
      { from: 20, to: 40 },
      { from: 40, to: 44 },
      ...Array.from({ length: SINGLE_BLOCKS }, (_, index) => ({ from: 44 + index, to: 45 + index })),
    ]);
    expect(planUnits(50, 64, 900_000, [])).toEqual([
      { from: 50, to: 60 },
      { from: 60, to: 65 },
    ]);
    expect(planUnits(7, 7, 7, [])).toEqual([{ from: 7, to: 8 }]);
  });

  test('what is there already is a unit as it is, and nothing reaches into it', () => {
    const known = [{ span: { from: 130, to: 155 } }, { span: { from: 155, to: 156 } }];
    expect(planUnits(120, 179, 900_000, known)).toEqual([
      { from: 120, to: 130 },
      { from: 130, to: 155 },
      { from: 155, to: 156 },
      { from: 156, to: 160 },
      { from: 160, to: 180 },
    ]);
  });

  test('for any request and whatever is known: every height once, in order, within the bounds', () => {
    const span = fc
      .tuple(fc.nat(900), fc.integer({ min: 1, max: 150 }))
      .map(([from, length]) => ({ from, to: from + length }));
    fc.assert(
      fc.property(
        fc.nat(900),
        fc.nat(300),
        fc.nat(1_300),
        fc.array(span, { maxLength: 6 }),
        (from, length, above, spans) => {
          const to = from + length;
          const known = spans.map((one) => ({ span: one }));
          const units = planUnits(from, to, to + above, known);
          expect(units[0].from).toBe(from);
          expect(units.at(-1)!.to).toBe(to + 1);
          for (const [index, unit] of units.entries()) {
            expect(unit.to).toBeGreaterThan(unit.from);
            if (index > 0) expect(unit.from).toBe(units[index - 1].to);
            const whole = spans.some((one) => one.from === unit.from && one.to === unit.to);
            if (!whole) {
              expect(unit.to - unit.from).toBeLessThanOrEqual(UNIT_BLOCKS);
              if (unit.to - 1 > to + above - SINGLE_BLOCKS) expect(unit.to - unit.from).toBe(1);
            }
            for (const end of spans.flatMap((one) => [one.from, one.to])) {
              expect(unit.from < end && end < unit.to && !whole).toBe(false);
            }
          }
        },
      ),
      { numRuns: runs(2_000) },
    );
  });
});

describe('the schedule', () => {
  test.each([
    [0, 0, 5_000_000_000, 5_000_000_000],
    [209_999, 0, 5_000_000_000, 1_050_000_000_000_000],
    [210_000, 1, 2_500_000_000, 1_050_002_500_000_000],
    [419_999, 1, 2_500_000_000, 1_575_000_000_000_000],
    [420_000, 2, 1_250_000_000, 1_575_001_250_000_000],
    [840_000, 4, 312_500_000, 1_968_750_312_500_000],
    [6_929_999, 32, 1, 2_099_999_997_690_000],
    [6_930_000, 33, 0, 2_099_999_997_690_000],
    [13_440_000, 64, 0, 2_099_999_997_690_000],
  ])('height %i: era %i, subsidy %i, supply %i', (height, era, subsidy, supply) => {
    const interval = halvingInterval('main');
    expect(eraOf(height, interval)).toBe(era);
    expect(subsidyOf(era)).toBe(subsidy);
    expect(supplyAt(height, interval)).toBe(supply);
  });

  test('regtest halves every 150 blocks', () => {
    expect([149, 150, 299, 300].map((height) => eraOf(height, halvingInterval('regtest')))).toEqual([0, 1, 1, 2]);
    expect(supplyAt(150, 150)).toBe(150 * 5_000_000_000 + 2_500_000_000);
  });

  test('supply is the sum of subsidies, block by block', () => {
    let sum = 0;
    for (let height = 0; height < 2_000; height++) {
      sum += subsidyOf(eraOf(height, 150));
      expect(supplyAt(height, 150)).toBe(sum);
    }
  });

  test('difficulty is the nearest double of the ratio of targets', () => {
    expect(difficultyOf(0x1d00ffff)).toBe(1);
    // as nodes write it
    expect(difficultyOf(0x1c2a1115)).toBe(6.085476906000794);
    // which is what nodes write, with 16 digits
    expect(difficultyOf(0x207fffff).toPrecision(16)).toBe('4.656542373906925e-10');
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 0x7fffff }), fc.integer({ min: 3, max: 32 }), (mantissa, exponent) => {
        const found = difficultyOf(exponent * 2 ** 24 + mantissa);
        const easiest = 0xffffn << BigInt(8 * (0x1d - 3));
        const target = BigInt(mantissa) << BigInt(8 * (exponent - 3));
        // found = significand x 2^-shift; |found - easiest / target| is at most half of the last place
        const shift = 52 - Math.floor(Math.log2(found));
        const significand = BigInt(found * 2 ** shift);
        const scale = 1n << BigInt(shift + 200);
        const off = significand * target * (1n << 200n) - easiest * scale;
        expect((off < 0n ? -off : off) * 2n <= target * (1n << 200n)).toBe(true);
      }),
      { numRuns: runs(5_000) },
    );
  });

  test('a rate needs at least a second', () => {
    expect([-5, 0, 1, 600].map(observedInterval)).toEqual([1, 1, 1, 600]);
    expect(hashrateOf(1, 600)).toBe(2 ** 32 / 600);
  });
});

describe('the node', () => {
  test('how deep a block must lie', () => {
    expect(confirmationDepth(undefined, 'main')).toBe(6);
    expect(confirmationDepth(undefined, 'regtest')).toBe(0);
    expect(confirmationDepth(2, 'regtest')).toBe(2);
    expect(confirmationDepth(0, 'main')).toBe(0);
    expect(settledTip({ blocks: 255 }, 6)).toBe(249);
    expect(settledTip({ blocks: 3 }, 6)).toBe(-1);
  });

  test('one that is still downloading blocks says so', () => {
    const state = { chain: 'main', blocks: 5, headers: 9, bestHash: '', pruned: false, syncing: true };
    expect(syncNote(state)).toContain('5 of 9');
    expect(syncNote({ ...state, blocks: 9 })).toContain('more than its 9');
    expect(syncNote({ ...state, blocks: 9, syncing: false })).toBeUndefined();
  });
});

describe('where chains part', () => {
  /** Units of a run of heights, as they were proved: each of another length. */
  const run = (from: number, to: number) => {
    const units: { span: Range; documentSha256: string }[] = [];
    for (let start = from; start < to; ) {
      const end = Math.min(to, start + 1 + (start % 5));
      units.push({ span: { from: start, to: end }, documentSha256: `a${start}-${end}` });
      start = end;
    }
    return units;
  };
  /** A chain that is another one from `at` on. */
  const chain = (at: number) => {
    let asked = 0;
    const digestOf = async ({ from, to }: Range) => {
      asked++;
      return `${to <= at ? 'a' : 'b'}${from}-${to}`;
    };
    return { digestOf, asked: () => asked };
  };

  test('nothing is lost, and one question told it', async () => {
    const { digestOf, asked } = chain(1_000);
    expect(await firstLost(run(0, 1_000), digestOf)).toBeUndefined();
    expect(asked()).toBe(1);
    expect(await firstLost([], digestOf)).toBeUndefined();
  });

  test('the first lost unit is found wherever it is, with few questions', async () => {
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 0, max: 999 }), fc.integer({ min: 0, max: 999 }), async (at, from) => {
        const { digestOf, asked } = chain(at);
        const units = run(from, 1_000);
        expect(await firstLost(units, digestOf)).toEqual(units.find(({ span }) => span.to > at));
        expect(asked()).toBeLessThanOrEqual(12);
      }),
    );
  });
});

const KNOWN_ANSWERS = '../shared/data/bitcoin/known-answers-heights-0-100.json';
givenData('bitcoin/known-answers-heights-0-100.json').test(
  'subsidies of the first 101 blocks add up to what is known',
  () => {
    const text = readFileSync(KNOWN_ANSWERS, 'utf8');
    expect(text).toContain('subsidy_btc_sum');
    const heights = Array.from({ length: 101 }, (_, height) => height);
    expect(heights.reduce((sum, height) => sum + subsidyOf(eraOf(height, 210_000)), 0)).toBe(5_050 * 1e8);
    expect(heights.reduce((sum, height) => sum + supplyAt(height, 210_000), 0)).toBe(257_550 * 1e8);
  },
);
