/** Publications of four series out of real values, and what was said when, by a model that shares nothing with the code. */
import { readFileSync } from 'node:fs';
import { SERIES } from '../../pipelines/sources/macro/series.ts';
import type { ProviderSpec, Publication } from './macro-provider.ts';

export const CSV_DIR = new URL('../../../shared/data/macro/fredgraph/', import.meta.url);

type Values = readonly (readonly [date: string, value: string])[];

/** As downloaded: the last so many. */
function realValues(seriesId: string, count: number): Values {
  const [, ...lines] = readFileSync(new URL(`${seriesId}.csv`, CSV_DIR), 'utf8')
    .trim()
    .split('\n');
  return lines.slice(-count).map((line) => line.trim().split(',') as [string, string]);
}

const after = (day: string, days: number) => new Date(Date.parse(day) + days * 86_400_000).toISOString().slice(0, 10);

/** The first vintage says all but the last `single` values, each of which then has a vintage of its own. */
function publicationsOf(values: Values, single: number, lagDays: number): Publication[] {
  const first = values.slice(0, -single);
  return [
    { vintage: after(first[first.length - 1][0], lagDays), said: Object.fromEntries(first) },
    ...values.slice(-single).map(([date, value]) => ({ vintage: after(date, lagDays), said: { [date]: value } })),
  ];
}

export const metadataOf = (seriesId: string, lastUpdated: string) => {
  const series = SERIES.find((one) => one.seriesId === seriesId)!;
  return {
    id: seriesId,
    title: series.metricName,
    units: series.unit,
    frequency: series.frequency,
    seasonal_adjustment: series.seasonalAdjustment,
    observation_start: '1947-01-01',
    observation_end: '2026-01-01',
    last_updated: lastUpdated,
  };
};

/** The real values of all four series, the newest of each published one by one; the price index revises a month. */
export function realProvider(lastUpdated: string): { all: NonNullable<ProviderSpec['all']>; revised: Revision } {
  const cpi = publicationsOf(realValues('CPIAUCSL', 60), 6, 42);
  const revised = {
    date: Object.keys(cpi[2].said)[0],
    first: '',
    second: '999.125',
    vintage: cpi[3].vintage,
    firstVintage: cpi[2].vintage,
  };
  revised.first = cpi[2].said[revised.date];
  const all = {
    CPIAUCSL: cpi.map((one) =>
      one.vintage === revised.vintage ? { ...one, said: { ...one.said, [revised.date]: revised.second } } : one,
    ),
    UNRATE: publicationsOf(realValues('UNRATE', 60), 5, 35),
    FEDFUNDS: publicationsOf(realValues('FEDFUNDS', 60), 5, 32),
    DGS10: publicationsOf(realValues('DGS10', 400), 12, 1),
  };
  return {
    all: Object.fromEntries(
      Object.entries(all).map(([id, publications]) => [id, { series: metadataOf(id, lastUpdated), publications }]),
    ),
    revised,
  };
}

export interface Revision {
  readonly date: string;
  readonly first: string;
  readonly second: string;
  readonly firstVintage: string;
  readonly vintage: string;
}
