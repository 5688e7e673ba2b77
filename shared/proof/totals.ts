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
