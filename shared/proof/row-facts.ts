/**
 * The facts of a partition's rows for the manifest: row hash, exact totals, times. `RowFacts` computes them for any dataset
 * from the values that a decoder parsed; trades, with millions of rows a day, have faster code of their own.
 */
import { assert } from '../errors.ts';
import type { NativeShape, PgType } from '../registry/definition.ts';
import { isPartitionKey, RowHasher } from './row-hash.ts';

/** A partial sum that reaches this is carried into a BigInt; below it a float64 is exact. */
const CARRY_AT = 2 ** 52;

/**
 * The exact integer total of a column: the sum of value x 10^scale. The publisher computes it from the digits of the
 * source, the database from the stored float64 (`totalSql`). Equal totals mean that no value changed on the way.
 */
export class ExactTotal {
  #partial = 0;
  #total = 0n;

  /** Adds a value whose units are an exact, non-negative integer below 2^52. */
  add(units: number): void {
    this.#partial += units;
    if (this.#partial >= CARRY_AT) this.#carry();
  }

  /** Adds the units of several values. */
  addUnits(units: bigint): void {
    this.#total += units;
  }

  /**
   * Adds a value whose units may not be exact in float64, as the database does (`totalSql`): round(value x scale), half to even,
   * and the units of its decimals where that may be off by one.
   */
  addFloat(value: number, scale: number): void {
    const product = value * scale;
    if (scale > 1 && product >= EXACT_UNITS) {
      this.#total += unitsOfDecimals(value, scale);
      return;
    }
    const units = roundHalfEven(product);
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

/** Rounds half to even, as PostgreSQL's round(float8). */
export function roundHalfEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  if (rest < 0.5) return floor;
  if (rest > 0.5) return floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

/** Least and greatest value by column. A column that is absent may hold anything. */
export type ValueRanges = Readonly<Record<string, readonly [least: number, greatest: number]>>;

/** Units from which the product of a value and its scale may be off by one. */
const EXACT_UNITS = 2 ** 51;
/** The same of values without decimals, which are their own units: from here on they do not fit an int8. */
const WIDE_UNITS = 2 ** 63;

/**
 * SQL of the total over stored rows of alias `t`. The cast to int8 rounds half to even, as round(float8) does. Coins of which a
 * million cost a cent are traded by the trillion: the units of such values are taken from their shortest decimals, which are the
 * source's. Values without decimals are summed in two halves, which float64 holds exactly.
 * @param greatest of the column, where it is known
 */
export function totalSql(column: string, scale: number, greatest = 0): string {
  const value = `t."${column}"`;
  const units = `${value} * 1e${scale}`;
  const most = greatest * 10 ** scale;
  // No decoder accepts such values, and the cast refuses them as out of range.
  const isForged = greatest >= (scale > 0 ? 2 ** 53 : 2 ** 80);
  if (scale > 0 && most >= EXACT_UNITS && !isForged) {
    return `coalesce(sum(case when ${units} < ${EXACT_UNITS} then (${units})::int8 end), 0)
      + coalesce(sum(case when ${units} >= ${EXACT_UNITS} then round(${value}::text::numeric * 1e${scale}) end), 0)`;
  }
  if (most < WIDE_UNITS || isForged) return `sum((${units})::int8)`;
  const high = `trunc(${units} / 4294967296)`;
  return `(sum((${high})::int8) * 4294967296 + sum((${units} - ${high} * 4294967296)::int8))`;
}

/** The units of a value below 2^53, from its shortest decimals; rounded half up where they are more than the scale. */
function unitsOfDecimals(value: number, scale: number): bigint {
  const places = Math.round(Math.log10(scale));
  const [whole, fraction = ''] = String(value).split('.');
  const units = BigInt(`${whole}${fraction.slice(0, places).padEnd(places, '0')}`);
  return fraction.charCodeAt(places) >= 53 ? units + 1n : units;
}

/**
 * A value of a stored column. An int8 is a number, exact up to 2^53; the time column holds epoch ms; a text may be given as
 * its UTF-8 bytes.
 */
export type StoredValue = number | string | boolean | Uint8Array | null;

type NativeColumn = NativeShape['columns'][number];

/** The text that represents null in a hash (valueHashSql). No stored value begins with it. */
const NULL_TEXT = Buffer.of(1);

export class RowFacts {
  readonly #native: NativeShape;
  readonly #hasher = new RowHasher();
  readonly #time: number;
  readonly #flags: readonly number[];
  /** The columns that are hashed one after the other, with their index in a row. */
  readonly #hashed: readonly { readonly at: number; readonly hash: (value: StoredValue) => void }[];
  readonly #totals: readonly {
    readonly at: number;
    readonly name: string;
    readonly scale: number;
    readonly total: ExactTotal;
    /** Sum of the values that are outside the range of `total`. */
    rest: bigint;
  }[];
  #rows = 0;
  #firstMs = Number.POSITIVE_INFINITY;
  #lastMs = Number.NEGATIVE_INFINITY;

  constructor(native: NativeShape) {
    this.#native = native;
    const at = (name: string) => native.columns.findIndex((column) => column.name === name);
    this.#time = at(native.time.column);
    const isFlag = (column: NativeColumn) => column.pg === 'bool' && column.nullable !== true;
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

  /** Adds a row, with its values in the order of the table's columns. @returns its time. */
  add(row: readonly StoredValue[]): number {
    const { columns } = this.#native;
    if (row.length !== columns.length) assert(false, `a row has ${row.length} values instead of ${columns.length}`);
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

  #hashOf({ name, pg, nullable }: NativeColumn): (value: StoredValue) => void {
    const hasher = this.#hasher;
    if (nullable) {
      // The database hashes a nullable column as its text, and a float has different texts here and there.
      assert(pg !== 'float8', `${name}: a nullable float cannot be hashed equally by the publisher and the database`);
      return (value) => {
        const bytes = value === null ? NULL_TEXT : value instanceof Uint8Array ? value : Buffer.from(String(value));
        hasher.text(bytes, 0, bytes.length);
      };
    }
    const hash = HASHES[pg];
    assert(hash, `${name}: there is no hash for the type ${pg}`);
    return (value) => {
      if (value === null) assert(false, `${name} is null`);
      hash(hasher, value);
    };
  }
}

/** Buffer for short texts: to allocate one for each would cost more than the hash. */
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
