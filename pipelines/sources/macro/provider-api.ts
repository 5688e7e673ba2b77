/**
 * The provider's API: a series, its vintage dates, and its observations over any number of vintages, in as many requests
 * as it takes.
 */

import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { parseDay } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import { fetchAnswer, type SourceLimits } from '../documents/fetch.ts';
import { displayUrl, readInFolder, urlBelow } from '../documents/locations.ts';
import type { MacroSeries } from './series.ts';

/* The provider's answers, checked: an error told with status 200, a missing field and another series are all refused. */

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

export interface MacroApi {
  /**
   * One question, tried as often as the source's settings say.
   * @throws TidemarkError SOURCE_UNREACHABLE with `status` in its details, or `timed_out`; SOURCE_REFUSED where the
   * provider says what is wrong.
   */
  ask(path: string, query: Readonly<Record<string, string>>): Promise<MacroAnswer>;
}

export interface MacroAnswer {
  readonly bytes: Buffer;
  /** When it was given. */
  readonly atMs: number;
}

/** Vintages that are asked for together, ascending, and the one before them: what they changed is held against it. */
export interface VintageSpan {
  readonly before: string | undefined;
  readonly vintages: readonly string[];
}

/** What was said over a span, and the answers that said it. */
export interface ProviderAnswers {
  readonly span: VintageSpan;
  readonly observations: readonly Observation[];
  readonly pages: readonly Buffer[];
}

/** The first day the provider's archive knows, and the last it can say. */
const FIRST_DAY = '1776-07-04';
const LAST_DAY = '9999-12-31';
const VINTAGES_PAGE = 10_000;
const OBSERVATIONS_PAGE = 100_000;
/** Vintages a request is begun with: 2,000 is the provider's limit, 500 were seen to take longer than 20 s. */
export const FIRST_CHUNK = 275;
/** More would be no series of the registry; a provider that never ends a list is stopped here. */
const MAX_VINTAGES = 100_000;

export async function fetchSeries(api: MacroApi, series: MacroSeries): Promise<SeriesFacts> {
  return readSeries(textOf(await api.ask('series', { series_id: series.seriesId })), series);
}

const textOf = ({ bytes }: Pick<MacroAnswer, 'bytes'>): string => bytes.toString('utf8');

export interface VintageList {
  /** Every day the series was published or revised on, ascending. */
  readonly dates: readonly string[];
  /** When it was told: there was no other vintage by then. */
  readonly atMs: number;
}

export async function fetchVintageDates(api: MacroApi, series: MacroSeries): Promise<VintageList> {
  const dates: string[] = [];
  let atMs: number | undefined;
  for (;;) {
    const answer = await api.ask('series/vintagedates', {
      series_id: series.seriesId,
      realtime_start: FIRST_DAY,
      realtime_end: LAST_DAY,
      limit: String(VINTAGES_PAGE),
      offset: String(dates.length),
    });
    atMs ??= answer.atMs;
    const page = readVintages(textOf(answer), series);
    if (dates.length > 0 && page.dates.length > 0 && page.dates[0] <= dates[dates.length - 1]) {
      throw unlisted(series, 'vintage dates are repeated from page to page');
    }
    dates.push(...page.dates);
    if (dates.length >= page.count) return { dates, atMs };
    if (page.dates.length === 0 || dates.length > MAX_VINTAGES) throw unlisted(series, 'vintage dates do not end');
  }
}

/** A request that was given up, and what it was for: the next ones may pass. */
export interface Unsaid {
  readonly span: VintageSpan;
  readonly fault: unknown;
}

/**
 * What was said on the vintages of a span, chunk by chunk in their order. A request that is refused for its length, or not
 * answered in time, is halved until it passes; one vintage that is refused is a fault of its own.
 */
export async function* fetchObservations(
  api: MacroApi,
  series: MacroSeries,
  whole: VintageSpan,
): AsyncGenerator<ProviderAnswers | Unsaid> {
  const spans = chunksOf(whole);
  for (let span = spans.shift(); span; span = spans.shift()) {
    try {
      yield await observationsOf(api, series, span);
    } catch (fault) {
      if (span.vintages.length === 1 || !isTooMuch(fault)) yield { span, fault };
      else spans.unshift(...halvesOf(span));
    }
  }
}

function chunksOf({ before, vintages }: VintageSpan): VintageSpan[] {
  const spans: VintageSpan[] = [];
  for (let at = 0; at < vintages.length; at += FIRST_CHUNK) {
    spans.push({ before: at === 0 ? before : vintages[at - 1], vintages: vintages.slice(at, at + FIRST_CHUNK) });
  }
  return spans;
}

function halvesOf({ before, vintages }: VintageSpan): VintageSpan[] {
  const half = vintages.length >> 1;
  return [
    { before, vintages: vintages.slice(0, half) },
    { before: vintages[half - 1], vintages: vintages.slice(half) },
  ];
}

async function observationsOf(api: MacroApi, series: MacroSeries, span: VintageSpan): Promise<ProviderAnswers> {
  const { before, vintages } = span;
  const [first, last] = [before ?? vintages[0], vintages[vintages.length - 1]];
  const observations: Observation[] = [];
  const pages: Buffer[] = [];
  for (;;) {
    const answer = await api.ask('series/observations', {
      series_id: series.seriesId,
      sort_order: 'asc',
      output_type: '1',
      realtime_start: first,
      realtime_end: last,
      limit: String(OBSERVATIONS_PAGE),
      offset: String(observations.length),
    });
    const page = readObservations(textOf(answer), series);
    observations.push(...page.observations);
    pages.push(answer.bytes);
    if (observations.length === 0) throw unlisted(series, `no observations were said from ${first} on`);
    if (observations.length >= page.count) return { span, observations, pages };
    if (page.observations.length === 0) throw unlisted(series, 'observations end before their count');
  }
}

/** Refused for its length (an edge before the provider says 400), or not answered in time. */
function isTooMuch(error: unknown): boolean {
  if (!(error instanceof TidemarkError) || error.code !== 'SOURCE_UNREACHABLE') return false;
  const { status, timed_out: timedOut } = error.details;
  return status === 414 || status === 400 || status === 504 || timedOut === true;
}

const unlisted = (series: MacroSeries, what: string) =>
  new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answers about ${series.seriesId}: ${what}`);

/*
 * The provider over http. The key travels in the query of each request and nowhere else: addresses are shown without
 * their query, and an answer that repeats the key is neither kept nor shown.
 */

export interface ProviderOptions extends SourceLimits {
  readonly baseUrl: URL;
  readonly key: string;
  /** Takes each answer as it came, before it is looked into; what it throws ends the request. */
  readonly keep: (bytes: Buffer, question: Question) => Promise<unknown>;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

/** What was asked, without the key. */
export interface Question {
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
}

/** 100,000 observations of a hundred bytes are a third of it. */
const MAX_ANSWER_BYTES = 32 * 1024 * 1024;
/** The provider says in the body what it refuses; an edge before it answers with a page. */
const REFUSALS = [400, 401, 403];

export function providerApi(options: ProviderOptions): MacroApi {
  const { baseUrl, key, keep, ...limits } = options;
  return {
    async ask(path, query) {
      const url = urlBelow(baseUrl, ...path.split('/'));
      url.search = new URLSearchParams({ ...query, file_type: 'json', api_key: key }).toString();
      const { status, bytes } = await fetchAnswer({ ...limits, url, answers: REFUSALS, maxBytes: MAX_ANSWER_BYTES });
      const text = bytes.toString('utf8');
      if (repeats(text, key)) {
        const what = `The answer about ${path} repeats the key it was asked with; it is not kept`;
        throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', what, { details: { url: displayUrl(url), status } });
      }
      if (status !== 200) throw refused(url, status, refusalOf(text));
      const atMs = Date.now();
      await keep(bytes, { path, query });
      return { bytes, atMs };
    },
  };
}

/** As it is, or as an address or JSON would write it; hex digits of either case. */
function repeats(text: string, key: string): boolean {
  const inQuery = new URLSearchParams({ key }).toString().slice('key='.length);
  const forms = [key, inQuery, encodeURIComponent(key), JSON.stringify(key).slice(1, -1)];
  const lower = text.toLowerCase();
  return forms.some((form) => lower.includes(form.toLowerCase()));
}

function refused(url: URL, status: number, said: string | undefined): TidemarkError {
  if (said === undefined) {
    const what = `${displayUrl(url)} answered ${status}, without saying why`;
    return new TidemarkError('SOURCE_UNREACHABLE', what, { details: { url: displayUrl(url), status } });
  }
  const what = `${displayUrl(url)} refused the request: ${JSON.stringify(said)}`;
  return new TidemarkError('SOURCE_REFUSED', what, { details: { url: displayUrl(url), status } });
}

/* The provider's answers in a folder, one file a question, each about everything there is: a sample's. */

export const answerFile = (path: string, seriesId: string): string => `${seriesId}.${path.replaceAll('/', '.')}.json`;

export function folderApi(folder: URL): MacroApi {
  return {
    async ask(path, { series_id: seriesId }) {
      const file = new URL(answerFile(path, seriesId), folder);
      const bytes = await readInFolder(fileURLToPath(folder), fileURLToPath(file));
      return { bytes, atMs: Date.now() };
    },
  };
}
