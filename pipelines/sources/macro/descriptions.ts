/**
 * How the provider describes a series as of each day. It revises descriptions as it revises values: an index gets another
 * base, a series another title. A value means nothing without the description of its own vintage.
 */
import { TidemarkError } from '../../../shared/errors.ts';

export interface Description {
  readonly title: string;
  /** With the base of an index: `Index 1982-1984=100`. */
  readonly unit: string;
  readonly frequency: string;
  readonly seasonalAdjustment: string;
}

/** A description, and the days that it holds for, both inclusive. */
export interface DescribedPeriod extends Description {
  readonly from: string;
  readonly to: string;
}

/** Nothing is the same as what is not described. */
export const isSameDescription = (a: Description | undefined, b: Description | undefined): boolean =>
  a !== undefined &&
  b !== undefined &&
  a.title === b.title &&
  a.unit === b.unit &&
  a.frequency === b.frequency &&
  a.seasonalAdjustment === b.seasonalAdjustment;

export class Descriptions {
  readonly #seriesId: string;
  /** Ascending. */
  readonly #periods: readonly DescribedPeriod[];

  /** @throws TidemarkError SOURCE_LAYOUT_UNKNOWN if a day has two descriptions */
  constructor(seriesId: string, periods: readonly DescribedPeriod[]) {
    this.#seriesId = seriesId;
    this.#periods = periods.toSorted((a, b) => (a.from < b.from ? -1 : a.from > b.from ? 1 : a.to < b.to ? -1 : 1));
    // The period that ends last among those so far: a longer one may reach over several.
    let last: DescribedPeriod | undefined;
    for (const period of this.#periods) {
      if (period.from > period.to) {
        throw this.#unknown(`describes it from ${period.from} to ${period.to}, which is before`);
      }
      if (last && period.from <= last.to && !isSameDescription(last, period)) {
        throw this.#unknown(`describes it twice as of ${period.from}: as ${shown(last)} and as ${shown(period)}`);
      }
      if (!last || period.to > last.to) last = period;
    }
  }

  /** Undefined where the provider describes the series as of other days only. */
  asOf(day: string): Description | undefined {
    return this.#periods.find(({ from, to }) => from <= day && day <= to);
  }

  /** The fault of a vintage that is not described. */
  missing(day: string): TidemarkError {
    const known = this.#periods.map(({ from, to }) => `${from} to ${to}`).join(', ');
    return this.#unknown(
      `does not describe it as of the vintage ${day}, only as of ${known}: its unit then is unknown`,
    );
  }

  #unknown(what: string): TidemarkError {
    return new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answer about series ${this.#seriesId} ${what}`);
  }
}

const shown = ({ title, unit, frequency, seasonalAdjustment }: Description): string =>
  [title, unit, frequency, seasonalAdjustment].map((text) => JSON.stringify(text)).join(', ');
