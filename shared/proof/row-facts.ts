/** The facts of a partition's rows, from values as a decoder parsed them: any dataset's, where rows are not millions. */
import { assert } from '../errors.ts';
import type { NativeShape, PgType } from '../registry/types.ts';
import { isPartitionKey, RowHasher } from './row-hash.ts';

/**
 * Exact integer totals. A column's value x 10^scale is summed as an integer: on the publishing side from the digits of
 * the source, in the database from the stored float64 (`totalSql`). Equal totals mean no value was mangled on the way.
 */

/** Partial sums stay exact below this; then they are carried into a BigInt. */
const CARRY_AT = 2 ** 52;

export class ExactTotal {
  #partial = 0;
  #total = 0n;

  /** `units` is a non-negative integer below 2^52. */
  add(units: number): void {
    this.#partial += units;
    if (this.#partial >= CARRY_AT) this.#carry();
  }

  /** What the database will see of a value whose units are not exact in float64: round(value x scale), half to even. */
  addFloat(value: number, scale: number): void {
    const units = roundHalfEven(value * scale);
    if (units < CARRY_AT) this.add(units);
    else this.#total += BigInt(units);
  }

  toString(): string {
    this.#carry();
    return this.#total.toString();
  }

  #carry(): void {
    this.#total += BigInt(this.#partial);
    this.#partial = 0;
  }
}

/** rint(): what PostgreSQL's round(float8) does. */
export function roundHalfEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest < 0.5) return floor;
  if (rest > 0.5) return floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

/** The same total over stored rows of alias `t`. */
export const totalSql = (column: string, scale: number): string => `sum(round(t."${column}" * 1e${scale})::int8)`;

/**
 * A value of a stored column. int8 is exact as a number up to 2^53; times of the time column are epoch ms; a text may be
 * its bytes (UTF-8).
 */
export type StoredValue = number | string | boolean | Uint8Array | null;

type Column = NativeShape['columns'][number];

/** What stands for null in a hash (valueHashSql): no value of ours begins with it. */
const NULL_TEXT = Buffer.of(1);

export class RowFacts {
  readonly #native: NativeShape;
  readonly #hasher = new RowHasher();
  readonly #time: number;
  readonly #flags: readonly number[];
  /** Columns that are hashed one after the other, with their place in a row. */
  readonly #hashed: readonly { readonly at: number; readonly hash: (value: StoredValue) => void }[];
  readonly #totals: readonly {
    readonly at: number;
    readonly name: string;
    readonly scale: number;
    readonly total: ExactTotal;
    /** What is too large, or too small, for it. */
    rest: bigint;
  }[];
  #rows = 0;
  #firstMs = Number.POSITIVE_INFINITY;
  #lastMs = Number.NEGATIVE_INFINITY;

  constructor(native: NativeShape) {
    this.#native = native;
    const at = (name: string) => native.columns.findIndex((column) => column.name === name);
    this.#time = at(native.time.column);
    const isFlag = (column: Column) => column.pg === 'bool' && column.nullable !== true;
    this.#flags = native.columns.flatMap((column, index) => (isFlag(column) ? [index] : []));
    this.#hashed = native.columns.flatMap((column, index) =>
      isFlag(column) || index === this.#time || isPartitionKey(native, column.name)
        ? []
        : [{ at: index, hash: this.#hashOf(column) }],
    );
    this.#totals = native.totals.map(({ column, scale }) => ({
      at: at(column),
      name: column,
      scale,
      total: new ExactTotal(),
      rest: 0n,
    }));
  }

  /** A row, its values in the order of the table's columns. @returns its time. */
  add(row: readonly StoredValue[]): number {
    const { columns } = this.#native;
    if (row.length !== columns.length) assert(false, `a row of ${row.length} values has not ${columns.length} columns`);
    const ms = row[this.#time] as number;
    let flags = 0;
    for (let bit = 0; bit < this.#flags.length; bit++) if (row[this.#flags[bit]] === true) flags |= 1 << bit;
    this.#hasher.begin(ms, flags, this.#flags.length);
    for (const { at, hash } of this.#hashed) hash(row[at]);
    this.#hasher.end();
    for (const total of this.#totals) {
      const value = row[total.at] as number;
      if (total.scale !== 0 || !Number.isSafeInteger(value)) total.total.addFloat(value, 10 ** total.scale);
      else if (value >= 0 && value < 2 ** 52) total.total.add(value);
      else total.rest += BigInt(value);
    }
    this.#rows++;
    if (ms < this.#firstMs) this.#firstMs = ms;
    if (ms > this.#lastMs) this.#lastMs = ms;
    return ms;
  }

  get rows(): number {
    return this.#rows;
  }

  get firstMs(): number {
    return this.#firstMs;
  }

  get lastMs(): number {
    return this.#lastMs;
  }

  get hash(): string {
    return this.#hasher.total();
  }

  get totals(): Record<string, string> {
    return Object.fromEntries(
      this.#totals.map(({ name, total, rest }) => [name, String(BigInt(total.toString()) + rest)]),
    );
  }

  #hashOf({ name, pg, nullable }: Column): (value: StoredValue) => void {
    const hasher = this.#hasher;
    if (nullable) {
      // The database hashes a column that may be null as its text.
      assert(pg !== 'float8', `${name}: a float that may be null is not hashed alike on both sides`);
      return (value) => {
        const bytes = value === null ? NULL_TEXT : value instanceof Uint8Array ? value : Buffer.from(String(value));
        hasher.text(bytes, 0, bytes.length);
      };
    }
    const hash = HASHES[pg];
    assert(hash, `${name}: ${pg} is not hashed`);
    return (value) => {
      if (value === null) assert(false, `${name} is null`);
      hash(hasher, value);
    };
  }
}

/** Short texts go through here: a buffer for each costs more than its hash. */
const SHORT = Buffer.alloc(3 * 128);

const HASHES: Partial<Record<PgType, (hasher: RowHasher, value: StoredValue) => void>> = {
  int2: (hasher, value) => hasher.int4(value as number),
  int4: (hasher, value) => hasher.int4(value as number),
  int8: (hasher, value) => hasher.int8(value as number),
  float8: (hasher, value) => hasher.float8(value as number),
  text: (hasher, value) => {
    if (value instanceof Uint8Array) hasher.text(value, 0, value.length);
    else if ((value as string).length <= SHORT.length / 3) hasher.text(SHORT, 0, SHORT.write(value as string));
    else {
      const bytes = Buffer.from(value as string);
      hasher.text(bytes, 0, bytes.length);
    }
  },
};
