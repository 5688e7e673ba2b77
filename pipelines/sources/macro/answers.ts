/** The provider's answers, checked: an error told with status 200, a missing field and another series are all refused. */
import { z } from 'zod';
import { TidemarkError } from '../../../shared/errors.ts';
import { parseDay } from '../../../shared/time/days.ts';
import type { MacroSeries } from './series.ts';

const day = z.string().refine((text) => parseDay(text) !== undefined, 'is no day, YYYY-MM-DD');
const text = z.string().min(1, 'is empty');

const errorAnswer = z.union([
  z.object({ error_message: z.string() }),
  z.object({ error_code: z.union([z.number(), z.string()]) }),
]);

const seriesAnswer = z.object({
  seriess: z
    .array(
      z.object({
        id: text,
        title: text,
        units: text,
        frequency: text,
        seasonal_adjustment: text,
        observation_start: day,
        observation_end: day,
        last_updated: text,
      }),
    )
    .length(1, 'must describe exactly one series'),
});

const vintagesAnswer = z.object({ count: z.int().min(0), offset: z.int().min(0), vintage_dates: z.array(day) });

const observationsAnswer = z.object({
  output_type: z.union([z.literal(1), z.literal('1')], 'must be 1'),
  count: z.int().min(0),
  offset: z.int().min(0),
  observations: z.array(z.object({ realtime_start: day, realtime_end: day, date: day, value: text })),
});

export interface SeriesFacts {
  readonly title: string;
  readonly observationStart: string;
  readonly observationEnd: string;
  readonly lastUpdatedMs: number;
}

export interface VintagesPage {
  /** Of all pages. */
  readonly count: number;
  readonly dates: readonly string[];
}

/** What the provider said of a date from one day to another, both included. */
export interface Observation {
  readonly realtimeStart: string;
  readonly realtimeEnd: string;
  readonly date: string;
  /** As written; `.` where there is no value. */
  readonly value: string;
}

export interface ObservationsPage {
  readonly count: number;
  readonly observations: readonly Observation[];
}

/** @throws TidemarkError SOURCE_LAYOUT_UNKNOWN when it is not the series the registry means. */
export function readSeries(body: string, series: MacroSeries): SeriesFacts {
  const [found] = read(body, seriesAnswer, `series ${series.seriesId}`).seriess;
  const expected = {
    id: series.seriesId,
    units: series.unit,
    frequency: series.frequency,
    seasonal_adjustment: series.seasonalAdjustment,
  };
  for (const [name, value] of Object.entries(expected)) {
    const said = found[name as keyof typeof expected];
    // `Daily, Close` is daily: the provider says more after a comma.
    if (said !== value && !(name === 'frequency' && said.startsWith(`${value},`))) {
      throw invalid(`series ${series.seriesId}: ${name} is ${JSON.stringify(said)}, not ${JSON.stringify(value)}`);
    }
  }
  return {
    title: found.title,
    observationStart: found.observation_start,
    observationEnd: found.observation_end,
    lastUpdatedMs: instantOf(found.last_updated, series),
  };
}

export function readVintages(body: string, series: MacroSeries): VintagesPage {
  const { count, vintage_dates: dates } = read(body, vintagesAnswer, `vintage dates of ${series.seriesId}`);
  const repeated = dates.find((date, index) => index > 0 && date <= dates[index - 1]);
  if (repeated !== undefined)
    throw invalid(`vintage dates of ${series.seriesId}: ${repeated} is repeated or out of order`);
  return { count, dates };
}

export function readObservations(body: string, series: MacroSeries): ObservationsPage {
  const { count, observations } = read(body, observationsAnswer, `observations of ${series.seriesId}`);
  return {
    count,
    observations: observations.map(({ realtime_start, realtime_end, date, value }) => {
      if (value !== '.' && !NUMBER.test(value)) {
        throw invalid(`observations of ${series.seriesId}: ${date} is ${JSON.stringify(value)}, no number`);
      }
      if (realtime_start > realtime_end) {
        throw invalid(`observations of ${series.seriesId}: ${date} is said from ${realtime_start} to ${realtime_end}`);
      }
      return { realtimeStart: realtime_start, realtimeEnd: realtime_end, date, value };
    }),
  };
}

const NUMBER = /^-?\d{1,15}(?:\.\d{1,15})?$/;

/** What the provider says is wrong with a request; undefined where the answer is not its own, or no refusal. */
export function refusalOf(body: string): string | undefined {
  try {
    return sayingOf(JSON.parse(body));
  } catch {
    return undefined;
  }
}

const LONGEST_SAYING = 300;

function sayingOf(value: unknown): string | undefined {
  const { success, data } = errorAnswer.safeParse(value);
  if (!success) return undefined;
  return ('error_message' in data ? data.error_message : `error ${data.error_code}`).slice(0, LONGEST_SAYING);
}

function read<T>(body: string, schema: z.ZodType<T>, what: string): T {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch (cause) {
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answer about ${what} is no JSON, or not all of it`, {
      cause,
    });
  }
  const refusal = sayingOf(value);
  if (refusal !== undefined) throw invalid(`${what}: the provider says ${JSON.stringify(refusal)}`);
  const outcome = schema.safeParse(value);
  if (outcome.success) return outcome.data;
  const [{ path, message }] = outcome.error.issues;
  throw invalid(`${what}: ${path.join('.') || 'the answer'} ${message}`);
}

const LAST_UPDATED = /^(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})([+-]\d{2})(?::?(\d{2}))?$/;

/** `2024-10-30 07:54:01-05`. The offset is part of it: without one the instant is unknown. */
function instantOf(said: string, series: MacroSeries): number {
  const [, date, time, hours, minutes = '00'] = LAST_UPDATED.exec(said) ?? [];
  const ms = date === undefined ? Number.NaN : Date.parse(`${date}T${time}${hours}:${minutes}`);
  if (Number.isNaN(ms)) throw invalid(`series ${series.seriesId}: last_updated is ${JSON.stringify(said)}, no instant`);
  return ms;
}

const invalid = (what: string) => new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answer about ${what}`);
