/**
 * The row hash. PostgreSQL's own extended hash functions (Jenkins lookup3, 64-bit) are chained over the columns of a row,
 * each seeded with the previous result, and the hashes are summed over rows. The first seed is the time of the row with its
 * booleans as low bits, so that booleans need no hash of their own (a hash takes 25 ns, a day has 3.5 M rows). The publisher
 * computes the sum here from what it parsed, the database in SQL from what it stored. The sum does not depend on order,
 * framing or batching.
 * Source of the algorithm: PostgreSQL, src/common/hashfn.c (hash_bytes_extended, hash_bytes_uint32_extended).
 */
import { assert } from '../errors.ts';
import type { NativeShape, PgType } from '../registry/definition.ts';

/** lookup3 works in blocks of three words. */
const BLOCK_BYTES = 12;
const textInit = (length: number): number => (0x9e3779b9 + length + 3923095) | 0;
const INIT_4 = textInit(4);
const INIT_8 = textInit(8);
/** For this many rows both partial sums stay below 2^53 (2^32 x 2^20). */
const ROWS_BEFORE_CARRY = 1 << 20;

const float = new Float64Array(1);
const words = new Uint32Array(float.buffer);

export class RowHasher {
  /** The high and the low half of the current row's hash. */
  #high = 0;
  #low = 0;
  #sumHigh = 0;
  #sumLow = 0;
  #rows = 0;
  #total = 0n;
  /** The state of the hash between two blocks of a text. */
  #a = 0;
  #b = 0;
  #c = 0;

  /**
   * Begins a row.
   * @param time in the unit of the time column.
   * @param flags the row's booleans, the first column in bit 0.
   * @param width the number of booleans.
   */
  begin(time: number, flags: number, width: number): void {
    const seed = time * 2 ** width + flags;
    this.#high = Math.floor(seed / 4294967296) | 0;
    this.#low = seed | 0;
  }

  /** As hashint8extended; exact for |value| <= 2^53. */
  int8(value: number): void {
    const high = Math.floor(value / 4294967296) | 0;
    const low = value | 0;
    this.#word(low ^ (value >= 0 ? high : ~high));
  }

  /** As hashint4extended. */
  int4(value: number): void {
    this.#word(value | 0);
  }

  /** As hashfloat8extended. The value must not be NaN. */
  float8(value: number): void {
    if (value === 0) return; // -0 and 0 hash to the seed
    float[0] = value;
    this.#twoWords(words[0], words[1]);
  }

  /** As hashtextextended under a deterministic collation: hash_any_extended of the bytes [start, end). */
  text(bytes: Uint8Array, start: number, end: number): void {
    const length = end - start;
    if (length < BLOCK_BYTES) {
      const k0 = length >= 4 ? word(bytes, start) : part(bytes, start, length);
      const k1 = length >= 8 ? word(bytes, start + 4) : part(bytes, start + 4, length - 4);
      this.#mixAndFinish(textInit(length), k0, k1, part(bytes, start + 8, length - 8) << 8);
    } else {
      this.#longText(bytes, start, end);
    }
  }

  /** Hashes a text that many rows have and whose words were read once, by `knownText`. */
  known(text: KnownText): void {
    const { bytes } = text;
    if (bytes.length < BLOCK_BYTES) this.#mixAndFinish(text.init, text.k0, text.k1, text.k2);
    else this.#longText(bytes, 0, bytes.length);
  }

  /** mix() of lookup3 is written out here, so that the state stays in registers over a text of kilobytes. */
  #longText(bytes: Uint8Array, start: number, end: number): void {
    const init = textInit(end - start);
    let a = init;
    let b = init;
    let c = init;
    let at = start;
    if (this.#high !== 0 || this.#low !== 0) {
      this.#mix((a + this.#high) | 0, (b + this.#low) | 0, c);
      a = this.#a;
      b = this.#b;
      c = this.#c;
    }
    for (; end - at >= BLOCK_BYTES; at += BLOCK_BYTES) {
      a = (a + (bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24))) | 0;
      b = (b + (bytes[at + 4] | (bytes[at + 5] << 8) | (bytes[at + 6] << 16) | (bytes[at + 7] << 24))) | 0;
      c = (c + (bytes[at + 8] | (bytes[at + 9] << 8) | (bytes[at + 10] << 16) | (bytes[at + 11] << 24))) | 0;
      a = ((a - c) | 0) ^ ((c << 4) | (c >>> 28));
      c = (c + b) | 0;
      b = ((b - a) | 0) ^ ((a << 6) | (a >>> 26));
      a = (a + c) | 0;
      c = ((c - b) | 0) ^ ((b << 8) | (b >>> 24));
      b = (b + a) | 0;
      a = ((a - c) | 0) ^ ((c << 16) | (c >>> 16));
      c = (c + b) | 0;
      b = ((b - a) | 0) ^ ((a << 19) | (a >>> 13));
      a = (a + c) | 0;
      c = ((c - b) | 0) ^ ((b << 4) | (b >>> 28));
      b = (b + a) | 0;
    }
    const left = end - at;
    a += left >= 4 ? word(bytes, at) : part(bytes, at, left);
    if (left > 4) b += left >= 8 ? word(bytes, at + 4) : part(bytes, at + 4, left - 4);
    if (left > 8) c += part(bytes, at + 8, left - 8) << 8;
    this.#finish(a | 0, b | 0, c | 0);
  }

  end(): void {
    this.#sumHigh += this.#high | 0;
    this.#sumLow += this.#low >>> 0;
    if (++this.#rows % ROWS_BEFORE_CARRY === 0) this.#carry();
  }

  /** Adds the hashes of other rows: the sums of their signed high and their unsigned low halves. */
  addSums(high: bigint, low: bigint): void {
    this.#total += high * 4294967296n + low;
  }

  /** The sum of the signed 64-bit hashes of all rows, as text. */
  total(): string {
    this.#carry();
    return this.#total.toString();
  }

  #carry(): void {
    this.#total += BigInt(this.#sumHigh) * 4294967296n + BigInt(this.#sumLow);
    this.#sumHigh = 0;
    this.#sumLow = 0;
  }

  #word(k: number): void {
    this.#mixAndFinish(INIT_4, k, 0, 0);
  }

  #twoWords(k0: number, k1: number): void {
    this.#mixAndFinish(INIT_8, k0, k1, 0);
  }

  /** lookup3 reserves the lowest byte of c for the length, so `addC` starts at the second byte. */
  #mixAndFinish(init: number, addA: number, addB: number, addC: number): void {
    let a = init;
    let b = init;
    let c = init;
    if (this.#high !== 0 || this.#low !== 0) {
      a = (a + this.#high) | 0;
      b = (b + this.#low) | 0;
      a = ((a - c) | 0) ^ ((c << 4) | (c >>> 28));
      c = (c + b) | 0;
      b = ((b - a) | 0) ^ ((a << 6) | (a >>> 26));
      a = (a + c) | 0;
      c = ((c - b) | 0) ^ ((b << 8) | (b >>> 24));
      b = (b + a) | 0;
      a = ((a - c) | 0) ^ ((c << 16) | (c >>> 16));
      c = (c + b) | 0;
      b = ((b - a) | 0) ^ ((a << 19) | (a >>> 13));
      a = (a + c) | 0;
      c = ((c - b) | 0) ^ ((b << 4) | (b >>> 28));
      b = (b + a) | 0;
    }
    this.#finish((a + addA) | 0, (b + addB) | 0, (c + addC) | 0);
  }

  /** mix() of lookup3, into #a, #b and #c. Only texts need it without the final step. */
  #mix(a: number, b: number, c: number): void {
    a = ((a - c) | 0) ^ ((c << 4) | (c >>> 28));
    c = (c + b) | 0;
    b = ((b - a) | 0) ^ ((a << 6) | (a >>> 26));
    a = (a + c) | 0;
    c = ((c - b) | 0) ^ ((b << 8) | (b >>> 24));
    b = (b + a) | 0;
    a = ((a - c) | 0) ^ ((c << 16) | (c >>> 16));
    c = (c + b) | 0;
    b = ((b - a) | 0) ^ ((a << 19) | (a >>> 13));
    a = (a + c) | 0;
    c = ((c - b) | 0) ^ ((b << 4) | (b >>> 28));
    b = (b + a) | 0;
    this.#a = a;
    this.#b = b;
    this.#c = c;
  }

  #finish(a: number, b: number, c: number): void {
    c = ((c ^ b) - ((b << 14) | (b >>> 18))) | 0;
    a = ((a ^ c) - ((c << 11) | (c >>> 21))) | 0;
    b = ((b ^ a) - ((a << 25) | (a >>> 7))) | 0;
    c = ((c ^ b) - ((b << 16) | (b >>> 16))) | 0;
    a = ((a ^ c) - ((c << 4) | (c >>> 28))) | 0;
    b = ((b ^ a) - ((a << 14) | (a >>> 18))) | 0;
    c = ((c ^ b) - ((b << 24) | (b >>> 8))) | 0;
    this.#high = b | 0;
    this.#low = c | 0;
  }
}

export interface KnownText {
  readonly bytes: Uint8Array;
  /** For a short text: the initial state of its hash, and its words. */
  readonly init: number;
  readonly k0: number;
  readonly k1: number;
  readonly k2: number;
}

/** Prepares a text for `RowHasher.known`. */
export function knownText(text: string): KnownText {
  const bytes = Buffer.from(text);
  const padded = Buffer.alloc(BLOCK_BYTES);
  bytes.copy(padded);
  return { bytes, init: textInit(bytes.length), k0: word(padded, 0), k1: word(padded, 4), k2: word(padded, 8) << 8 };
}

/** Reads four bytes, little-endian. */
const word = (bytes: Uint8Array, at: number): number =>
  bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24);

/** Reads up to three bytes, little-endian. */
const part = (bytes: Uint8Array, at: number, length: number): number =>
  (length > 0 ? bytes[at] : 0) | (length > 1 ? bytes[at + 1] << 8 : 0) | (length > 2 ? bytes[at + 2] << 16 : 0);

/**
 * Whether a column holds the key of the partition. The key selects the rows and is not part of their content, so that two
 * captures of a day can have the same content.
 */
export const isPartitionKey = ({ scope }: NativeShape, column: string): boolean =>
  scope.kind === 'column' && scope.pg === 'text' && scope.column === column;

/** SQL of the hash of one row of alias `t`; it equals that of a RowHasher that gets the columns in table order. */
export function rowHashSql(native: NativeShape): string {
  assert(native.time.pg === 'int8', 'the row hash is seeded with an int8 time');
  const isFlag = (column: NativeShape['columns'][number]) => column.pg === 'bool' && column.nullable !== true;
  const bools = native.columns.filter(isFlag);
  const flags = bools.map(({ name }, bit) => ` + (t."${name}"::int4${bit > 0 ? ` << ${bit}` : ''})`).join('');
  return native.columns
    .filter((column) => !isFlag(column) && column.name !== native.time.column && !isPartitionKey(native, column.name))
    .reduce(
      (seed, column) => valueHashSql(column.name, column.pg, seed, column.nullable),
      `((t."${native.time.column}" << ${bools.length})${flags})`,
    );
}

/** SQL of the hash of one column of alias `t`, seeded with `seed`. The SQL uses `seed` once: twice would grow exponentially. */
export function valueHashSql(column: string, type: PgType, seed: string, nullable = false): string {
  // A null must differ from every text: no stored value begins with chr(1).
  if (nullable) return `hashtextextended(coalesce(t."${column}"::text, chr(1)), ${seed})`;
  if (type === 'timestamptz') return `timestamp_hash_extended(t."${column}" at time zone 'UTC', ${seed})`;
  if (type === 'bool') return `hashint4extended(t."${column}"::int4, ${seed})`;
  const hash = HASH_FUNCTIONS[type];
  assert(hash, `no hash function is declared for ${type}`);
  return `${hash}(t."${column}", ${seed})`;
}

const HASH_FUNCTIONS: Partial<Record<PgType, string>> = {
  int2: 'hashint2extended',
  int4: 'hashint4extended',
  int8: 'hashint8extended',
  float8: 'hashfloat8extended',
  text: 'hashtextextended',
};
