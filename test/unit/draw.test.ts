/** Ranks among the rows of partitions, the generator that draws them, and the look-ups that share a statement. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { batched, draw, Prng, type SampledPartition } from '../../serving/read/sampling/draw.ts';

const part = { from: 0, to: 100, until: 100, provedTo: undefined, isLast: true };
const partitionOf = (rows: number, index: number): SampledPartition => ({
  key: String(index),
  from: index,
  to: index + 1,
  rows,
  part,
});

test('each rank lies in the partition whose rows it counts to, some of which have none', () => {
  const counts = fc.array(fc.oneof(fc.constant(0), fc.nat(5), fc.nat(40)), { maxLength: 30, size: 'max' });
  fc.assert(
    fc.property(counts, fc.infiniteStream(fc.boolean()), (list, isDrawn) => {
      const partitions = list.map(partitionOf);
      const rows = partitions.flatMap(({ key, rows: count }) => Array.from({ length: count }, (_, at) => [key, at]));
      const ranks = rows.map((_, rank) => rank).filter(() => isDrawn.next().value);
      const found = draw(partitions, ranks);
      expect(found.flatMap(({ partition, ranks: of }) => of.map((rank) => [partition.key, rank]))).toEqual(
        ranks.map((rank) => rows[rank]),
      );
      expect(new Set(found.map(({ partition }) => partition.key)).size).toBe(found.length);
      expect(found.every(({ ranks: of }) => of.length > 0)).toBe(true);
    }),
  );
});

test('look-ups of a partition stay together, in order, up to 64 a statement', () => {
  let most = 0;
  const groups = fc.array(fc.oneof(fc.constant(1), fc.nat(30), fc.nat(200)), { maxLength: 150, size: 'max' });
  fc.assert(
    fc.property(groups, (sizes) => {
      const all = sizes.map((size, group) => Array.from({ length: size }, (_, at) => ({ group, at })));
      const batches = [...batched(all)];
      expect(batches.flat()).toEqual(all.flat());
      for (const [index, batch] of batches.entries()) {
        const held = new Set(batch.map(({ group }) => group));
        if (held.size > 1) expect(batch.length).toBeLessThanOrEqual(64);
        const next = batches[index + 1]?.[0].group;
        expect(next === undefined || !held.has(next)).toBe(true);
        // The next partition finds no place.
        if (next !== undefined) expect(batch.length + all[next].length).toBeGreaterThan(64);
      }
      most = Math.max(most, batches.length);
    }),
  );
  expect(most).toBeGreaterThan(10);
});

/** xoshiro128** after splitmix32, with whole numbers of any size. */
function* numbersOf(seed: number): Generator<bigint> {
  const word = (value: bigint) => value & 0xffffffffn;
  const rotated = (value: bigint, by: bigint) => word((value << by) | (value >> (32n - by)));
  const high = BigInt(seed) >> 32n;
  let low = word(BigInt(seed));
  const s = Array.from({ length: 4 }, () => {
    low = word(low + 0x9e3779b9n + high * 0x85ebca6bn);
    const once = word((low ^ (low >> 16n)) * 0x21f0aaadn);
    const twice = word((once ^ (once >> 15n)) * 0x735a2d97n);
    return twice ^ (twice >> 15n);
  });
  for (;;) {
    yield word(rotated(word(s[1] * 5n), 7n) * 9n);
    const shifted = word(s[1] << 9n);
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotated(s[3], 11n);
  }
}

test('a seed draws the same numbers for ever: 53 bits of two words, without those that would favour some', () => {
  const bound = fc.oneof(fc.integer({ min: 1, max: 1000 }), fc.integer({ min: 1, max: 2 ** 53 - 1 }));
  fc.assert(
    fc.property(fc.maxSafeInteger().map(Math.abs), bound, (seed, below) => {
      const words = numbersOf(seed);
      const next = (): bigint => {
        const [high, low] = [words.next().value as bigint, words.next().value as bigint];
        const number = ((high >> 5n) << 26n) + (low >> 6n);
        const rest = 2n ** 53n % BigInt(below);
        return number < 2n ** 53n - rest ? number % BigInt(below) : next();
      };
      const prng = new Prng(seed);
      for (let i = 0; i < 20; i++) expect(prng.below(below)).toBe(Number(next()));
    }),
  );
  expect(new Prng(7).distinct(5, 1000)).toEqual([251, 443, 716, 753, 859]);
});

test('distinct() draws different numbers, ascending, the same for the same seed, all of them when all are asked', () => {
  fc.assert(
    fc.property(
      fc.maxSafeInteger(),
      fc.integer({ min: 1, max: 2 ** 40 }),
      fc.integer({ min: 0, max: 50 }),
      (seed, bound, n) => {
        const count = Math.min(n, bound);
        const drawn = new Prng(seed).distinct(count, bound);
        expect(drawn).toEqual([...new Set(drawn)].sort((a, b) => a - b));
        expect(drawn.length).toBe(count);
        expect(drawn.every((x) => x >= 0 && x < bound)).toBe(true);
        expect(new Prng(seed).distinct(count, bound)).toEqual(drawn);
      },
    ),
  );
  expect(new Prng(1).distinct(100, 100)).toEqual(Array.from({ length: 100 }, (_, i) => i));
});

test('every subset of five numbers is drawn as often', () => {
  const counts = new Map<string, number>();
  const prng = new Prng(1);
  for (let i = 0; i < 10_000; i++) {
    const drawn = prng.distinct(2, 5).join(' ');
    counts.set(drawn, (counts.get(drawn) ?? 0) + 1);
  }
  expect(counts.size).toBe(10);
  const chi = [...counts.values()].reduce((sum, count) => sum + (count - 1000) ** 2 / 1000, 0);
  // 9 degrees of freedom: 99.99 % lie below 34.
  expect(chi).toBeLessThan(34);
});
