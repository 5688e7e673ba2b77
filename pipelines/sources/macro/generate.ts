/** Answers in the provider's layout, made up from publications: what a sample is made of. */
import type { MacroSeries } from './series.ts';

/** One day's publication: what it said, by observation date. Only what differs from before need be there. */
export interface Publication {
  readonly vintage: string;
  readonly said: Readonly<Record<string, string>>;
}

const FIRST_DAY = '1776-07-04';
const LAST_DAY = '9999-12-31';

export function seriesAnswer(series: MacroSeries, publications: readonly Publication[], lastUpdated: string): object {
  const dates = publications.flatMap(({ said }) => Object.keys(said)).sort();
  return {
    seriess: [
      {
        id: series.seriesId,
        title: series.metricName.replaceAll('_', ' '),
        observation_start: dates[0],
        observation_end: dates[dates.length - 1],
        frequency: series.frequency,
        units: series.unit,
        seasonal_adjustment: series.seasonalAdjustment,
        last_updated: lastUpdated,
      },
    ],
  };
}

export const vintagesAnswer = (publications: readonly Publication[]): object => ({
  count: publications.length,
  offset: 0,
  vintage_dates: publications.map(({ vintage }) => vintage),
});

/** Each value with the days it was said from and to, cut to the days asked for, as the provider cuts it. */
export function observationsAnswer(
  publications: readonly Publication[],
  { from, to }: { readonly from: string; readonly to: string } = { from: FIRST_DAY, to: LAST_DAY },
): object {
  const byDate = new Map<string, { readonly vintage: string; readonly value: string }[]>();
  for (const { vintage, said } of publications) {
    for (const [date, value] of Object.entries(said)) {
      const saying = byDate.get(date);
      if (saying) saying.push({ vintage, value });
      else byDate.set(date, [{ vintage, value }]);
    }
  }
  const observations = [...byDate.keys()].sort().flatMap((date) => {
    const saying = byDate.get(date)!;
    return saying.flatMap(({ vintage, value }, index) => {
      const last = index + 1 < saying.length ? dayBefore(saying[index + 1].vintage) : LAST_DAY;
      if (last < from || vintage > to) return [];
      const realtime_start = vintage < from ? from : vintage;
      return [{ realtime_start, realtime_end: last > to ? to : last, date, value }];
    });
  });
  return { output_type: 1, count: observations.length, offset: 0, observations };
}

const dayBefore = (day: string) => new Date(Date.parse(day) - 86_400_000).toISOString().slice(0, 10);
