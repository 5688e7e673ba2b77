/** Seeded randomness: the same seed over the same proved rows draws the same sample, on any machine. */

/** xoshiro128**, seeded by splitmix32; public domain, D. Blackman and S. Vigna. */
export class Prng {
  readonly #state = new Uint32Array(4);

  constructor(seed: number) {
    let low = seed >>> 0;
    const high = Math.floor(seed / 4294967296) >>> 0;
    for (let i = 0; i < 4; i++) {
      low = (low + 0x9e3779b9 + Math.imul(high, 0x85ebca6b)) >>> 0;
      let z = low;
      z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
      z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
      this.#state[i] = (z ^ (z >>> 15)) >>> 0;
    }
  }

  #next(): number {
    const s = this.#state;
    const product = Math.imul(s[1], 5);
    const result = Math.imul((product << 7) | (product >>> 25), 9) >>> 0;
    const t = s[1] << 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 11) | (s[3] >>> 21);
    return result;
  }

  /** A whole number 0 <= x < bound, every one as likely; bound at most 2^53. */
  below(bound: number): number {
    const range = 2 ** 53;
    const limit = range - (range % bound);
    for (;;) {
      const x = (this.#next() >>> 5) * 67108864 + (this.#next() >>> 6);
      if (x < limit) return x % bound;
    }
  }

  /** `count` different whole numbers below `bound`, ascending; every subset as likely. (R. Floyd) */
  distinct(count: number, bound: number): number[] {
    const chosen = new Set<number>();
    for (let j = bound - count; j < bound; j++) {
      const x = this.below(j + 1);
      chosen.add(chosen.has(x) ? j : x);
    }
    return [...chosen].sort((a, b) => a - b);
  }
}
