/**
 * The last months of four series with their vintages, in the provider's layout: synthetic, and for one day the same on
 * every machine. The price index revises the previous month each time; the yield has holidays without a value.
 */

import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DAY_MS, dayKey, isMarketDay } from '../../../shared/dates.ts';
import { SAMPLE_DAYS } from '../../sample/week.ts';
import type { SampleNeeds } from '../feed-types.ts';
import { answerFile } from './provider-api.ts';
import { type MacroSeries, SERIES } from './series.ts';

/** One day's publication: values by observation date. It needs only the values that changed. */
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
        realtime_start: FIRST_DAY,
        realtime_end: LAST_DAY,
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

/** The values with their first and last day of validity, cut to the requested days as the provider cuts them. */
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

const MONTHS = 13;
/** Enough for the sample's week, and for what holds when it begins. */
const DAYS = 2 * SAMPLE_DAYS;
export const SAMPLE_PARTITIONS = (SERIES.length - 1) * MONTHS + DAYS;

export async function makeSample({ directory, todayMs }: SampleNeeds) {
  for (const series of SERIES) {
    const publications = series.frequency === 'Daily' ? daily(todayMs) : monthly(series, todayMs);
    const last = publications[publications.length - 1].vintage;
    const answers = {
      series: seriesAnswer(series, publications, `${last} 08:12:35-06`),
      'series/vintagedates': vintagesAnswer(publications),
      'series/observations': observationsAnswer(publications),
    };
    for (const [path, answer] of Object.entries(answers)) {
      await writeFile(join(directory, answerFile(path, series.seriesId)), JSON.stringify(answer));
    }
  }
  return { location: pathToFileURL(`${directory}/`), selection: { options: {}, reingest: false } };
}

/** A day's value is published on the next weekday. A day on which markets are closed has an entry without a value. */
function daily(todayMs: number): Publication[] {
  const publications: Publication[] = [];
  for (let ms = todayMs - DAY_MS; publications.length < DAYS; ms -= DAY_MS) {
    const [day, weekday] = [dayKey(ms), new Date(ms).getUTCDay()];
    if (weekday === 0 || weekday === 6) continue;
    const observed = dayKey(ms - (weekday === 1 ? 3 : 1) * DAY_MS);
    const value = isMarketDay(observed) ? (4.25 + wave(Date.parse(observed) / DAY_MS, 17, 0.31)).toFixed(2) : '.';
    publications.unshift({ vintage: day, said: { [observed]: value } });
  }
  return publications;
}

/** A month's value is published during the next month. */
function monthly({ seriesId }: MacroSeries, todayMs: number): Publication[] {
  const publishedOn = { FEDFUNDS: 2, UNRATE: 6, CPIAUCSL: 12 }[seriesId] ?? 1;
  const months: { readonly ms: number; readonly vintage: string }[] = [];
  const today = new Date(todayMs);
  for (let back = 0; months.length < MONTHS; back++) {
    const at = Date.UTC(today.getUTCFullYear(), today.getUTCMonth() - back, publishedOn);
    if (at >= todayMs) continue;
    const observed = Date.UTC(today.getUTCFullYear(), today.getUTCMonth() - back - 1, 1);
    months.unshift({ ms: observed, vintage: dayKey(at) });
  }
  return months.map(({ ms, vintage }, index) => {
    const said = { [dayKey(ms)]: monthsValue(seriesId, ms, index, 'first') };
    if (seriesId !== 'CPIAUCSL' || index === 0) return { vintage, said };
    const before = months[index - 1].ms;
    return { vintage, said: { [dayKey(before)]: monthsValue(seriesId, before, index - 1, 'revised'), ...said } };
  });
}

function monthsValue(seriesId: string, ms: number, index: number, print: 'first' | 'revised'): string {
  const month = ms / (30 * DAY_MS);
  if (seriesId === 'FEDFUNDS') return (4.33 - 0.25 * Math.floor(index / 5)).toFixed(2);
  if (seriesId === 'UNRATE') return (4.2 + wave(month, 7, 0.2)).toFixed(1);
  return (310 + index * 0.612 + (print === 'revised' ? 0.137 : 0)).toFixed(3);
}

const wave = (at: number, length: number, size: number) => Math.sin((2 * Math.PI * at) / length) * size;
