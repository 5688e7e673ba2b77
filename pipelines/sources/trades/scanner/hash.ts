/** The row hash of shared/proof/row-hash.ts: the hash of each value, seeded with that of the value before. */

/** The initial state for a value of so many bytes. */
function initOf(length: u32): u32 {
  return 0x9e3779b9 + length + 3923095;
}

/** @param k0 the words of a value of less than twelve bytes; lookup3 reserves the lowest byte of the last for the length */
function hashWords(seed: u64, length: u32, k0: u32, k1: u32, k2: u32): u64 {
  let a = initOf(length);
  let b = a;
  let c = a;
  if (seed !== 0) {
    a += <u32>(seed >> 32);
    b += <u32>seed;
    a = (a - c) ^ rotl<u32>(c, 4);
    c += b;
    b = (b - a) ^ rotl<u32>(a, 6);
    a += c;
    c = (c - b) ^ rotl<u32>(b, 8);
    b += a;
    a = (a - c) ^ rotl<u32>(c, 16);
    c += b;
    b = (b - a) ^ rotl<u32>(a, 19);
    a += c;
    c = (c - b) ^ rotl<u32>(b, 4);
    b += a;
  }
  return finished(a + k0, b + k1, c + k2);
}

function finished(a0: u32, b0: u32, c0: u32): u64 {
  let c = (c0 ^ b0) - rotl<u32>(b0, 14);
  const a1 = (a0 ^ c) - rotl<u32>(c, 11);
  let b = (b0 ^ a1) - rotl<u32>(a1, 25);
  c = (c ^ b) - rotl<u32>(b, 16);
  const a = (a1 ^ c) - rotl<u32>(c, 4);
  b = (b ^ a) - rotl<u32>(a, 14);
  c = (c ^ b) - rotl<u32>(b, 24);
  return ((<u64>b) << 32) | <u64>c;
}

/** A whole number of at least 0. */
export function hashInt8(seed: u64, value: u64): u64 {
  return hashWords(seed, 4, <u32>value ^ <u32>(value >> 32), 0, 0);
}

export function hashFloat8(seed: u64, value: f64): u64 {
  if (value === 0) return seed;
  const bits = reinterpret<u64>(value);
  return hashWords(seed, 8, <u32>bits, <u32>(bits >> 32), 0);
}

export function hashText(seed: u64, text: usize, length: u32): u64 {
  if (length < 12) {
    const k1 = length > 4 ? part(text + 4, length - 4) : 0;
    const k2 = length > 8 ? part(text + 8, length - 8) << 8 : 0;
    return hashWords(seed, length, part(text, length), k1, k2);
  }
  let a = initOf(length);
  let b = a;
  let c = a;
  let p = text;
  let left = length;
  let isSeed = seed !== 0;
  a += <u32>(seed >> 32);
  b += <u32>seed;
  while (isSeed || left >= 12) {
    if (!isSeed) {
      a += load<u32>(p);
      b += load<u32>(p, 4);
      c += load<u32>(p, 8);
      p += 12;
      left -= 12;
    }
    isSeed = false;
    a = (a - c) ^ rotl<u32>(c, 4);
    c += b;
    b = (b - a) ^ rotl<u32>(a, 6);
    a += c;
    c = (c - b) ^ rotl<u32>(b, 8);
    b += a;
    a = (a - c) ^ rotl<u32>(c, 16);
    c += b;
    b = (b - a) ^ rotl<u32>(a, 19);
    a += c;
    c = (c - b) ^ rotl<u32>(b, 4);
    b += a;
  }
  if (left > 0) a += part(p, left);
  if (left > 4) b += part(p + 4, left - 4);
  if (left > 8) c += part(p + 8, left - 8) << 8;
  return finished(a, b, c);
}

/** Up to four bytes, little-endian. */
function part(p: usize, length: u32): u32 {
  const word = load<u32>(p);
  return length >= 4 ? word : word & ((1 << (8 * length)) - 1);
}

/** @param which 0: buy, 1: sell */
export function hashSide(seed: u64, which: u32): u64 {
  return hashWords(seed, 3 + which, which === 0 ? 0x797562 : 0x6c6c6573, 0, 0);
}
