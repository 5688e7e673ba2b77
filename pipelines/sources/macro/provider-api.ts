/**
 * The provider's API: the descriptions of a series, its vintage dates, and its observations over any number of vintages, in
 * as many requests as needed. Every answer is validated: an error sent with status 200, a missing field and another series
 * are refused.
 */

import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { parseDay, parseInstant } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import { fetchAnswer, type SourceLimits } from '../documents/fetch.ts';
import { Retryable, withAttempts } from '../documents/http.ts';
import { displayUrl, readInFolder, urlBelow } from '../documents/locations.ts';
import { Descriptions } from './descriptions.ts';
import type { MacroSeries } from './series.ts';

const day = z.string().refine((text) => parseDay(text) !== undefined, 'is not a day (YYYY-MM-DD)');
const text = z.string().min(1, 'is empty');
/** A text that rows hold: the database stores no NUL and no half of a surrogate pair. */
const rowText = text.refine((one) => one.isWellFormed() && !/\p{Cc}/u.test(one), 'holds control characters');

const errorAnswer = z.union([
  z.object({ error_message: z.string() }),
  z.object({ error_code: z.union([z.number(), z.string()]) }),
]);

const seriesAnswer = z.object({
  seriess: z
    .array(
      z.object({
        id: text,
        title: rowText,
        units: rowText,
        frequency: rowText,
        seasonal_adjustment: rowText,
        observation_start: day,
        observation_end: day,
        last_updated: text,
        // The days that the description holds for; one without them holds for all.
        realtime_start: day.optional(),
        realtime_end: day.optional(),
      }),
    )
    .min(1, 'must describe exactly one series'),
});

const vintagesAnswer = z.object({ count: z.int().min(0), offset: z.int().min(0), vintage_dates: z.array(day) });

const observationsAnswer = z.object({
  output_type: z.union([z.literal(1), z.literal('1')], 'must be 1'),
  count: z.int().min(0),
  offset: z.int().min(0),
  observations: z.array(z.object({ realtime_start: day, realtime_end: day, date: day, value: text })),
});

export interface SeriesFacts {
  readonly descriptions: Descriptions;
  /** As the latest description has it. */
  readonly title: string;
  readonly observationStart: string;
  readonly observationEnd: string;
  readonly lastUpdatedMs: number;
}

export interface VintagesPage {
  /** Items of all pages. */
  readonly count: number;
  readonly dates: readonly string[];
}

/** A value that the provider published for a date, valid from one day to another, both inclusive. */
export interface Observation {
  readonly realtimeStart: string;
  readonly realtimeEnd: string;
  readonly date: string;
  /** As written; `.` means no value. */
  readonly value: string;
}

export interface ObservationsPage {
  readonly count: number;
  readonly observations: readonly Observation[];
}

/** @throws TidemarkError SOURCE_LAYOUT_UNKNOWN if it is about another series, or describes one day in two ways. */
export function readSeries(body: string, series: MacroSeries): SeriesFacts {
  const described = read(body, seriesAnswer, `series ${series.seriesId}`).seriess.map((one) => {
    if (one.id === series.seriesId)
      return { ...one, from: one.realtime_start ?? FIRST_DAY, to: one.realtime_end ?? LAST_DAY };
    throw invalid(`series ${series.seriesId}: id is ${JSON.stringify(one.id)}, not ${JSON.stringify(series.seriesId)}`);
  });
  const latest = described.reduce((last, one) => (one.to > last.to ? one : last));
  return {
    descriptions: new Descriptions(
      series.seriesId,
      described.map(({ from, to, title, units, frequency, seasonal_adjustment }) => {
        return { from, to, title, unit: units, frequency, seasonalAdjustment: seasonal_adjustment };
      }),
    ),
    title: latest.title,
    observationStart: latest.observation_start,
    observationEnd: latest.observation_end,
    lastUpdatedMs: instantOf(latest.last_updated, series),
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
        throw invalid(`observations of ${series.seriesId}: ${date} is ${JSON.stringify(value)}, not a number`);
      }
      if (realtime_start > realtime_end) {
        throw invalid(`observations of ${series.seriesId}: ${date} is valid from ${realtime_start} to ${realtime_end}`);
      }
      return { realtimeStart: realtime_start, realtimeEnd: realtime_end, date, value };
    }),
  };
}

const NUMBER = /^-?\d{1,15}(?:\.\d{1,15})?$/;

/** The provider's own error message; undefined if the body is not one of its error answers. */
export function refusalOf(body: string): string | undefined {
  try {
    return errorMessageOf(JSON.parse(body));
  } catch {
    return undefined;
  }
}

const MAX_MESSAGE_CHARACTERS = 300;

function errorMessageOf(value: unknown): string | undefined {
  const { success, data } = errorAnswer.safeParse(value);
  if (!success) return undefined;
  return ('error_message' in data ? data.error_message : `error ${data.error_code}`).slice(0, MAX_MESSAGE_CHARACTERS);
}

function read<T>(body: string, schema: z.ZodType<T>, what: string): T {
  let value: unknown;
  try {
    value = JSON.parse(body);
  } catch (cause) {
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answer about ${what} is not complete JSON`, {
      cause,
    });
  }
  const refusal = errorMessageOf(value);
  if (refusal !== undefined) throw invalid(`${what}: the provider reports ${JSON.stringify(refusal)}`);
  const outcome = schema.safeParse(value);
  if (outcome.success) return outcome.data;
  const [{ path, message }] = outcome.error.issues;
  throw invalid(`${what}: ${path.join('.') || 'the answer'} ${message}`);
}

const LAST_UPDATED = /^(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})([+-]\d{2})(?::?(\d{2}))?$/;

/** `2024-10-30 07:54:01-05`. The offset is required: without it the instant is unknown. */
function instantOf(text: string, series: MacroSeries): number {
  const [, date, time, hours, minutes = '00'] = LAST_UPDATED.exec(text) ?? [];
  const instant = date === undefined ? undefined : parseInstant(`${date}T${time}${hours}:${minutes}`);
  if (!instant) throw invalid(`series ${series.seriesId}: last_updated is ${JSON.stringify(text)}, not an instant`);
  return instant.ms;
}

const invalid = (what: string) => new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answer about ${what}`);

export interface MacroApi {
  /**
   * Sends one request, with as many attempts as the source's settings allow.
   * @throws TidemarkError SOURCE_UNREACHABLE with `status` or `timed_out` in its details; SOURCE_REFUSED if the
   * provider explains the refusal.
   */
  ask(path: string, query: Readonly<Record<string, string>>): Promise<MacroAnswer>;
}

export interface MacroAnswer {
  readonly bytes: Buffer;
  /** When the answer arrived. */
  readonly atMs: number;
}

/** Vintages that are requested together, ascending, and the one before them, which their changes are relative to. */
export interface VintageSpan {
  readonly before: string | undefined;
  readonly vintages: readonly string[];
}

/** The observations of a span, and the answers that contained them. */
export interface ProviderAnswers {
  readonly span: VintageSpan;
  readonly observations: readonly Observation[];
  readonly pages: readonly Buffer[];
}

/** The first day of the provider's archive, and the last day that its API accepts. */
const FIRST_DAY = '1776-07-04';
const LAST_DAY = '9999-12-31';
const VINTAGES_PAGE = 10_000;
const OBSERVATIONS_PAGE = 100_000;
/**
 * Vintages of a first request. The provider's limit is 2,000; requests of 500 were observed to take longer than 20 s.
 */
export const FIRST_CHUNK = 275;
/** No series of the registry has more. The limit stops a provider whose list never ends. */
const MAX_VINTAGES = 100_000;

/** Asks for the descriptions as of every day at once, of which a series has a few. */
export async function fetchSeries(api: MacroApi, series: MacroSeries): Promise<SeriesFacts> {
  const query = { series_id: series.seriesId, realtime_start: FIRST_DAY, realtime_end: LAST_DAY };
  return readSeries(textOf(await api.ask('series', query)), series);
}

const textOf = ({ bytes }: Pick<MacroAnswer, 'bytes'>): string => bytes.toString('utf8');

export interface VintageList {
  /** Every day on which the series was published or revised, ascending. */
  readonly dates: readonly string[];
  /** When the list was fetched: there was no further vintage at that time. */
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
    if (page.dates.length === 0 || dates.length > MAX_VINTAGES)
      throw unlisted(series, 'the list of vintage dates does not end');
  }
}

/** A request that failed, and its span; the next requests may succeed. */
export interface FailedSpan {
  readonly span: VintageSpan;
  readonly fault: unknown;
}

/**
 * Fetches the observations of a span's vintages, chunk by chunk in their order. A request that is refused for its
 * length or times out is halved until it succeeds. A single vintage that fails is reported as a fault.
 */
export async function* fetchObservations(
  api: MacroApi,
  series: MacroSeries,
  whole: VintageSpan,
): AsyncGenerator<ProviderAnswers | FailedSpan> {
  const { before, vintages } = whole;
  // What was refused once is refused again, so later chunks have no more. A timeout may have been of its moment.
  let most = FIRST_CHUNK;
  const halves: VintageSpan[] = [];
  for (let at = 0; at < vintages.length || halves.length > 0; ) {
    let span = halves.shift();
    if (!span) {
      span = { before: at === 0 ? before : vintages[at - 1], vintages: vintages.slice(at, at + most) };
      at += most;
    }
    const { length } = span.vintages;
    if (length > most) {
      halves.unshift(...halvesOf(span));
      continue;
    }
    try {
      yield await observationsOf(api, series, span);
    } catch (fault) {
      const reason = length === 1 ? undefined : tooMuch(fault);
      if (reason === 'length') most = Math.ceil(length / 2);
      if (reason === undefined) yield { span, fault };
      else halves.unshift(...halvesOf(span));
    }
  }
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
    if (observations.length === 0) throw unlisted(series, `there are no observations from ${first} on`);
    if (observations.length >= page.count) return { span, observations, pages };
    if (page.observations.length === 0) throw unlisted(series, 'there are fewer observations than their count');
  }
}

/** Why a request of fewer vintages may succeed: it was refused for its length, or it timed out. */
function tooMuch(error: unknown): 'length' | 'time' | undefined {
  if (!(error instanceof TidemarkError)) return undefined;
  const { status, timed_out: timedOut, refused: kind } = error.details;
  if (error.code === 'SOURCE_REFUSED') return kind === 'vintages' ? 'length' : undefined;
  if (error.code !== 'SOURCE_UNREACHABLE' || kind !== undefined) return undefined;
  // The provider's proxy answers 400 with a page where an address is too long for it.
  if (status === 414 || status === 400) return 'length';
  return status === 504 || timedOut === true ? 'time' : undefined;
}

const unlisted = (series: MacroSeries, what: string) =>
  new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `The answers about ${series.seriesId}: ${what}`);

export interface ProviderOptions extends SourceLimits {
  readonly baseUrl: URL;
  readonly key: string;
  /** Archives each answer before it is parsed. An error ends the request. */
  readonly archive: (bytes: Buffer, question: Question) => Promise<unknown>;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

/** A request without its key. */
export interface Question {
  readonly path: string;
  readonly query: Readonly<Record<string, string>>;
}

/** 100,000 observations of a hundred bytes take a third of this. */
const MAX_ANSWER_BYTES = 32 * 1024 * 1024;
/** The provider explains a refusal in the body; its proxy answers with a page. */
const REFUSALS = [400, 401, 403];
/** No answer that the provider sends instead of data is longer. */
const MAX_REFUSAL_BYTES = 4096;

export function providerApi(options: ProviderOptions): MacroApi {
  const { baseUrl, key, archive, ...limits } = options;
  // A key that was refused in every attempt is not waited for again, so that a wrong one is reported once and soon.
  let isKeyRefused = false;
  const attempt = async (url: URL, path: string) => {
    const { status, bytes } = await fetchAnswer({ ...limits, url, answers: REFUSALS, maxBytes: MAX_ANSWER_BYTES });
    const text = bytes.toString('utf8');
    if (repeats(text, key)) {
      const what = `The answer about ${path} repeats the API key of the request, so it is not archived`;
      throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', what, { details: { url: displayUrl(url), status } });
    }
    const reason = bytes.length > MAX_REFUSAL_BYTES ? undefined : refusalOf(text);
    const kind = reason === undefined ? undefined : kindOf(reason);
    if (kind === 'rate') throw new Retryable(unreachable(url, status, `answers ${JSON.stringify(reason)}`, kind));
    if (kind === 'key' && !isKeyRefused) throw new Retryable(refused(url, status, reason!, kind));
    if (reason !== undefined && (status !== 200 || kind !== 'request')) throw refused(url, status, reason, kind!);
    if (status !== 200) throw unreachable(url, status, `answered ${status} without a reason`);
    return bytes;
  };
  return {
    async ask(path, query) {
      const url = urlBelow(baseUrl, ...path.split('/'));
      url.search = new URLSearchParams({ ...query, file_type: 'json', api_key: key }).toString();
      const { maxAttempts, backoff, signal, log } = limits;
      const onRetry = (fault: TidemarkError, n: number, waitMs: number) =>
        log?.warn({ code: fault.code, document: path, attempt: n, waitMs: Math.round(waitMs) }, fault.message);
      try {
        const bytes = await withAttempts({ maxAttempts, backoff, signal, onRetry }, () => attempt(url, path));
        isKeyRefused = false;
        const atMs = Date.now();
        await archive(bytes, { path, query });
        return { bytes, atMs };
      } catch (error) {
        if (error instanceof TidemarkError && error.details.refused === 'key') isKeyRefused = true;
        throw error;
      }
    },
  };
}

/** What the provider refuses: the number of vintages, how often it is asked, the key, or something else of the request. */
type Refusal = 'vintages' | 'rate' | 'key' | 'malformed key' | 'request';

/** Words of a limit, however it is said. */
const SAYS_HOW_MANY =
  /exceed|maxim|too (?:many|long|large)|at most|(?:more|less|fewer|greater) than|or (?:less|fewer)|up to|between|allowed|limit|\bcap\b/i;

/** The provider has one status for all its refusals, so that only the words tell which may pass and which may not. */
function kindOf(reason: string): Refusal {
  if (/rate limit|too many requests|(?:limit|quota|number) of requests/i.test(reason)) return 'rate';
  if (/api[ _-]?key/i.test(reason))
    return /\d+[ -]character|alpha-?numeric|lower-?case/i.test(reason) ? 'malformed key' : 'key';
  const isOfVintages = /vintage|real-?time period/i.test(reason);
  return isOfVintages && SAYS_HOW_MANY.test(reason) ? 'vintages' : 'request';
}

/**
 * Whether the text contains the key, plain or as an address or JSON would encode it, with hex digits of either case.
 */
function repeats(text: string, key: string): boolean {
  const inQuery = new URLSearchParams({ key }).toString().slice('key='.length);
  const forms = [key, inQuery, encodeURIComponent(key), JSON.stringify(key).slice(1, -1)];
  const lower = text.toLowerCase();
  return forms.some((form) => lower.includes(form.toLowerCase()));
}

const ADVICE: Partial<Record<Refusal, string>> = {
  key: ' (check SVC_MACRO_API_KEY; the provider sometimes refuses a registered key for a while)',
  'malformed key': ' (check that SVC_MACRO_API_KEY is the whole key, without spaces around it)',
};

function refused(url: URL, status: number, reason: string, kind: Refusal): TidemarkError {
  const what = `${displayUrl(url)} refused the request: ${JSON.stringify(reason)}${ADVICE[kind] ?? ''}`;
  return new TidemarkError('SOURCE_REFUSED', what, { details: { url: displayUrl(url), status, refused: kind } });
}

const unreachable = (url: URL, status: number, what: string, kind?: Refusal): TidemarkError =>
  new TidemarkError('SOURCE_UNREACHABLE', `${displayUrl(url)} ${what}`, {
    details: { url: displayUrl(url), status, refused: kind },
  });

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
