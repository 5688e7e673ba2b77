/**
 * Sums over the rows of a bucket, of the decimals that doubles stand for, at the cost of sums of doubles. SQL: aggregates
 * over rows (alias `t`), and a value over what they come to (alias `k`).
 */

export interface Formula {
  /** By name; formulas share aggregates of the same name. */
  readonly aggregates: Readonly<Record<string, string>>;
  readonly value: string;
}

export interface Bucket {
  /** An aggregate over the rows of the bucket `k` once more, as a scalar. */
  again(aggregate: string): string;
  /** Buckets may hold so many rows that the error of a plain sum of doubles would often be too large. */
  readonly large: boolean;
}

/** What is summed. */
export interface Terms {
  /** Of the aggregates. */
  readonly name: string;
  /** Not negative; a double that is `exact` but for at most three roundings. */
  readonly value: string;
  /** The same as a decimal; the one that `value` is shown as where it is not said otherwise. */
  readonly exact?: string;
  /** `filter (where ...)`: only these rows. */
  readonly filter?: string;
}

/** The decimal that a double is shown as: the shortest that is nearest to it. */
export const decimal = (value: string): string => `(${value})::text::numeric`;

const exactSum = ({ value, exact = decimal(value), filter = '' }: Terms) => `sum(${exact}) ${filter}`;

/** 2^53 / 1e8, rounded down: below it a value of eight decimals is an exact integer of 1e-8, and no other has its double. */
const SHORT_BELOW = '9e7';

/** The exact sum, as a numeric: of integers of 1e-8 where every value has at most eight decimals and is not too large. */
export function decimalSum(terms: Terms, { again }: Bucket): Formula {
  const { name, value, filter = '' } = terms;
  return {
    aggregates: {
      [`${name}_units`]: `sum((least(${value}, ${SHORT_BELOW}) * 1e8)::int8) ${filter}`,
      [`${name}_is_short`]: `bool_and(${value} < ${SHORT_BELOW} and round(${value} * 1e8) / 1e8 = ${value}) ${filter}`,
    },
    // Neither is there where the filter leaves no row: the sum is 0.
    value: `coalesce(case when coalesce(k.${name}_is_short, true) then k.${name}_units * 0.00000001
      else ${again(exactSum(terms))} end, 0)`,
  };
}

/** Not less than 2^-53, half the distance of doubles from 1 up. */
const HALF_ULP = '1.2e-16::float8';

/**
 * A sum to some decimals, halves going up. n terms added as doubles are wrong by at most (n + 2) half ulps of the sum s;
 * of terms cut in two, the whole parts add up without error (below 2^53) and the parts below one, less than n together,
 * are wrong by n half ulps of n. The rest allows for the arithmetic of the comparison itself.
 */
export function roundedSum(terms: Terms, decimals: number, { again, large }: Bucket): Formula {
  const { name, value, filter = '' } = terms;
  const sums = large
    ? {
        [`${name}_whole`]: `sum(floor(${value})) ${filter}`,
        [`${name}_part`]: `sum(${value} - floor(${value})) ${filter}`,
      }
    : { [`${name}_sum`]: `sum(${value}) ${filter}` };
  const columns = Object.keys(sums).map((column) => `k.${column}`);
  const s = `coalesce(${columns.join(' + ')}, 0)`;
  const n = 'k.terms::float8';
  const error = large ? `(8 * ${s} + ${n} * ${n}) * ${HALF_ULP}` : `(${n} + 8) * ${s} * ${HALF_ULP}`;
  return {
    aggregates: { terms: 'count(*)', ...sums },
    value: rounded(s, error, decimals, `round(${again(exactSum(terms))}, ${decimals})::float8`),
  };
}

/** The mean of all rows to some decimals, halves going up. Costs nothing beside a deviation of the same values. */
export function roundedMean(terms: Terms, decimals: number, bucket: Bucket): Formula {
  // On the exact quotient: one cut to some digits could make a half of what is none.
  const of = (sum: string) => `div(2e${decimals} * ${sum} + k.terms, 2 * k.terms)::float8 / 1e${decimals}`;
  if (bucket.large) {
    const { aggregates, value } = decimalSum(terms, bucket);
    return { aggregates: { terms: 'count(*)', ...aggregates }, value: of(value) };
  }
  const mean = `k.${terms.name}_mean`;
  return {
    aggregates: { terms: 'count(*)', [`${terms.name}_mean`]: `avg(${terms.value})` },
    value: rounded(mean, `(k.terms + 8) * ${mean} * ${HALF_ULP}`, decimals, of(bucket.again(exactSum(terms)))),
  };
}

/** A double that is wrong by at most `error`, rounded where that settles it. */
function rounded(value: string, error: string, decimals: number, otherwise: string): string {
  const units = (of: string) => `floor((${of}) * 1e${decimals} + 0.5)`;
  return `case when ${units(`${value} + ${error}`)} = ${units(`${value} - ${error}`)}
    then ${units(value)} / 1e${decimals} else ${otherwise} end`;
}
