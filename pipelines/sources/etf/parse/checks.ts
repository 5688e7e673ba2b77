/**
 * What a document states twice must agree with itself: a document that is cut, altered or mixed from two funds mostly does
 * not. Statements are compared by the ranges that their printed digits leave (printed.ts); one that the document lacks is
 * not compared. Callers pass statements of one as-of day only.
 */
import Big from 'big.js';
import { unreadable } from './fields.ts';
import { Printed } from './printed.ts';

/** A printed number; null or undefined if the document does not state it. */
type Stated = Printed | null | undefined;

/** A row of the list of holdings. */
export interface HoldingStatement {
  /** For messages: `line 12`, `holdings[0]`. */
  readonly at: string;
  readonly value?: Stated;
  /** The same value in another column. */
  readonly valueAgain?: Stated;
  /** Per cent of the net assets. */
  readonly weight?: Stated;
  readonly units?: Stated;
  readonly price?: Stated;
}

export interface Statements {
  /** Every row of the list, unless the document has none. */
  readonly holdings?: readonly HoldingStatement[];
  readonly count?: Stated;
  readonly netAssets?: Stated;
  readonly navPerShare?: Stated;
  readonly shares?: Stated;
  readonly units?: Stated;
  readonly unitsPerShare?: Stated;
}

const HUNDRED = new Printed(new Big(100));
const NOTHING = new Printed(new Big(0));

/** @throws TidemarkError SOURCE_LAYOUT_UNKNOWN; its message names both statements, their values and ranges. */
export function compareStated({ holdings, ...fund }: Statements): void {
  if (holdings) compareList(holdings, fund);
  agree('net asset value x shares outstanding', product(fund.navPerShare, fund.shares), 'net assets', fund.netAssets);
  agree('units of Bitcoin', fund.units, 'Bitcoin per share x shares', product(fund.unitsPerShare, fund.shares));
}

/** @throws TidemarkError if the ranges of two statements have no value in common. */
export function agree(one: string, is: Stated, other: string, are: Stated): void {
  if (is && are && !is.overlaps(are)) throw contradiction(one, is, other, are);
}

/** @throws TidemarkError if two statements are not printings of one number. */
export function same(one: string, is: Stated, other: string, are: Stated): void {
  if (is && are && !is.coincides(are)) throw contradiction(one, is, other, are);
}

const contradiction = (one: string, is: Printed, other: string, are: Printed) =>
  unreadable(
    `the document contradicts itself: ${one}: ${is}, but ${other}: ${are}. ` +
      'It is incomplete, altered or mixed from two documents; fetch it again',
  );

function compareList(
  rows: readonly HoldingStatement[],
  { count, netAssets }: Pick<Statements, 'count' | 'netAssets'>,
): void {
  if (count && !count.value.eq(rows.length))
    throw unreadable(`the list is partial: the document states ${count.value} holdings and lists ${rows.length}`);
  const weights = total(rows.map(({ weight }) => weight));
  if (weights && !weights.overlaps(HUNDRED))
    throw unreadable(
      `the list is partial: the weights of its ${rows.length} holdings add up to ${weights} %, not to 100`,
    );
  for (const { at, value, valueAgain, units, price } of rows) {
    same(`the market value, ${at}`, value, 'its other column', valueAgain);
    agree(`the market value, ${at}`, value, 'units x price', product(units, price));
  }
  if (rows.length === 1 && !weights && !count && !netAssets)
    throw unreadable(
      'nothing in the document says that its list of one holding is whole: it states no weight, no count and no net assets',
    );
  const values = rows.map(({ value, units, price }) => value ?? product(units, price));
  const listed = total(values);
  agree('net assets', netAssets, `the sum of the ${rows.length} listed holdings`, listed);
  for (const [index, { at, weight }] of rows.entries()) {
    const worth = product(weight, netAssets ?? listed)?.over(100);
    agree(`the weight x net assets, ${at}`, worth, 'its market value', values[index]);
  }
}

const product = (one: Stated, other: Stated): Printed | undefined => (one && other ? one.times(other) : undefined);

/** Undefined if a row lacks its value: a smaller sum says nothing. */
const total = (values: readonly Stated[]): Printed | undefined =>
  values.length > 0 && values.every((value) => value)
    ? values.reduce<Printed>((sum, value) => sum.plus(value!), NOTHING)
    : undefined;
