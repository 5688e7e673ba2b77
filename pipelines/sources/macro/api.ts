/**
 * The provider's API: a series, its vintage dates, and its observations over any number of vintages, in as many requests
 * as it takes.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { type Observation, readObservations, readSeries, readVintages, type SeriesFacts } from './answers.ts';
import type { MacroSeries } from './series.ts';

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
export interface Said {
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
): AsyncGenerator<Said | Unsaid> {
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

async function observationsOf(api: MacroApi, series: MacroSeries, span: VintageSpan): Promise<Said> {
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
