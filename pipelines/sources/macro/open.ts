/** The feed `macro`: the vintages of four series, from the provider's API or from archived answers. */
import type { Settings } from '../../../shared/config/settings.ts';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import { macroSeriesMetrics } from '../../../shared/registry/datasets/macro_series_metrics.ts';
import { vintageKey } from '../../../shared/registry/keys.ts';
import { type ArchivedFetch, type DocumentArchive, documentArchiveOf } from '../documents/document-archive.ts';
import type { LoadedFeed } from '../feed-helpers.ts';
import { documentEvents, turns } from '../feed-helpers.ts';
import type { FeedNeeds, OpenedFeed, Selection } from '../feed-types.ts';
import type { Descriptions } from './descriptions.ts';
import {
  fetchObservations,
  fetchSeries,
  fetchVintageDates,
  folderApi,
  type MacroApi,
  type Observation,
  type ProviderAnswers,
  providerApi,
  readObservations,
  readSeries,
  readVintages,
  type VintageSpan,
} from './provider-api.ts';
import { makeSample, SAMPLE_PARTITIONS } from './sample.ts';
import { type MacroSeries, SERIES } from './series.ts';
import { macroSource, type ProviderContent, type VintagesRequest } from './vintages.ts';

/** The archived answers so far, as needed to parse the next one. */
interface ArchiveState {
  descriptions: Descriptions | undefined;
  lastUpdatedMs: number | undefined;
  /** Vintage dates, ascending. */
  dates: readonly string[];
  /** The pages of the current answer so far. */
  observations: Observation[];
  pages: Buffer[];
  /** Answers that were already yielded; a repeated fetch adds nothing. */
  readonly seen: Set<string>;
}

export async function* archivedRequests(
  named: readonly MacroSeries[],
  { options: { from = '', to = '9999-12-31' }, reingest: replaces }: Selection,
  archive: DocumentArchive,
  log: Logger,
): AsyncGenerator<VintagesRequest> {
  for (const series of named) {
    const state: ArchiveState = {
      descriptions: undefined,
      lastUpdatedMs: undefined,
      dates: [],
      observations: [],
      pages: [],
      seen: new Set(),
    };
    for await (const fetch of archive.fetches(series.sourceId)) {
      try {
        const answers = take(series, fetch, await archive.read(fetch.sha256), state);
        const { descriptions, lastUpdatedMs } = state;
        if (!answers || descriptions === undefined || lastUpdatedMs === undefined) continue;
        const vintages = answers.span.vintages.filter((vintage) => vintage >= from && vintage <= to);
        if (vintages.length === 0) continue;
        yield* requestsOf(series, { answers, descriptions, vintages, lastUpdatedMs, replaces }, ', kept');
      } catch (error) {
        // The feed refused it when it was fetched, too: an error sent with status 200, or a page instead of an answer.
        const { sha256, name } = fetch;
        log.warn({ document: name, sha256, fault: explain(error) }, 'an archived answer is skipped');
      }
    }
  }
}

function take(
  series: MacroSeries,
  { asked, sha256 }: ArchivedFetch,
  bytes: Buffer,
  state: ArchiveState,
): ProviderAnswers | undefined {
  const text = bytes.toString('utf8');
  switch (asked.path) {
    case 'series': {
      const { descriptions, lastUpdatedMs } = readSeries(text, series);
      state.descriptions = descriptions;
      state.lastUpdatedMs = lastUpdatedMs;
      return undefined;
    }
    case 'series/vintagedates': {
      const { dates } = readVintages(text, series);
      state.dates = asked.offset === '0' ? dates : [...new Set([...state.dates, ...dates])].sort();
      return undefined;
    }
    case 'series/observations': {
      const answerKey = `${sha256} ${asked.realtime_start} ${asked.realtime_end} ${asked.offset}`;
      if (asked.offset === '0') [state.observations, state.pages] = [[], []];
      // A later page whose earlier pages were not archived, or belong to another answer.
      if (asked.offset !== String(state.observations.length)) return undefined;
      const { count, observations } = readObservations(text, series);
      state.observations.push(...observations);
      state.pages.push(bytes);
      if (state.observations.length < count || state.seen.has(answerKey)) return undefined;
      state.seen.add(answerKey);
      return { span: spanOf(asked, state.dates), observations: state.observations, pages: state.pages };
    }
    default:
      return undefined;
  }
}

/** The vintages of the requested span. Its first day is the vintage before them, unless there was none before. */
function spanOf({ realtime_start: start, realtime_end: end }: ArchivedFetch['asked'], dates: readonly string[]) {
  const isFirst = dates[0] === start;
  const vintages = dates.filter((date) => (isFirst ? date >= start : date > start) && date <= end);
  return { before: isFirst ? undefined : start, vintages };
}

export const macroFeed: LoadedFeed = {
  sample: { partitions: () => SAMPLE_PARTITIONS, make: makeSample },
  async open(needs) {
    const api = await apiOf(needs);
    return {
      source: macroSource(needs.catalog),
      isPlanned: false,
      select: (selection) => documentEvents(askedFor(api, selection)),
      follow: () => documentEvents(followed(api, needs)),
      async [Symbol.asyncDispose]() {},
    } satisfies OpenedFeed;
  },
  archived: {
    async open({ catalog, settings, log }) {
      const archive = await documentArchiveOf(settings);
      return {
        source: macroSource(catalog),
        isPlanned: false,
        select: (selection) =>
          documentEvents(archivedRequests(seriesNamed(selection.options.series), selection, archive, log)),
        async [Symbol.asyncDispose]() {},
      } satisfies OpenedFeed;
    },
  },
};

/** Archives every answer under its series before it is parsed. A sample's answers are not archived. */
async function apiOf({ settings, location, log, signal }: FeedNeeds): Promise<MacroApi> {
  if (location) return folderApi(location);
  const { baseUrl, key } = providerOf(settings);
  const archive = await documentArchiveOf(settings);
  const sourceIds = new Map(SERIES.map(({ seriesId, sourceId }) => [seriesId, sourceId]));
  return providerApi({
    baseUrl,
    key,
    timeoutMs: settings.limits.sourceTimeoutMs,
    maxAttempts: settings.limits.sourceAttempts,
    archive: (bytes, { path, query }) => {
      const { series_id: seriesId } = query;
      return archive.put(bytes, {
        source_id: sourceIds.get(seriesId)!,
        name: `${seriesId} ${path}`,
        asked: { path, ...query },
      });
    },
    log,
    signal,
  });
}

/** @throws TidemarkError CONFIGURATION_INVALID; its message names the settings that are missing. */
function providerOf({ SVC_MACRO_BASE_URL: baseUrl, SVC_MACRO_API_KEY: key }: Settings): { baseUrl: URL; key: string } {
  if (baseUrl && key) return { baseUrl, key };
  const missing = [...(baseUrl ? [] : ['SVC_MACRO_BASE_URL']), ...(key ? [] : ['SVC_MACRO_API_KEY'])];
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    `${missing.join(' and ')} ${missing.length === 1 ? 'is' : 'are'} not set: the macro feed needs the provider's address and an API key`,
  );
}

/** @throws TidemarkError USAGE; its message names the known series. */
function seriesNamed(named: string | undefined): readonly MacroSeries[] {
  if (named === undefined) return SERIES;
  const names = named.split(',').map((name) => name.trim());
  const found = names.map((name) =>
    SERIES.find(({ seriesId, sourceId }) => seriesId === name.toUpperCase() || sourceId === name),
  );
  const at = found.indexOf(undefined);
  if (at < 0) return SERIES.filter((series) => found.includes(series));
  const known = SERIES.map(({ seriesId, sourceId }) => `${seriesId} (${sourceId})`).join(', ');
  throw new TidemarkError('USAGE', `There is no series ${JSON.stringify(names[at])}; known: ${known}`);
}

/** Requests all vintages of the given days; the publisher compares those that are proved. */
function askedFor(api: MacroApi, { options, reingest: replaces }: Selection): AsyncGenerator<VintagesRequest> {
  const { from = '', to = '9999-12-31' } = options;
  const choose: Choose = async (_, dates) => dates.filter((date) => date >= from && date <= to);
  return requestsFor(api, seriesNamed(options.series), { choose, replaces });
}

/**
 * Requests the vintages that are not proved yet, again and again; if there are none, the last one, which confirms that
 * it is still the last.
 */
async function* followed(
  api: MacroApi,
  { settings, catalog, signal, log }: FeedNeeds,
): AsyncGenerator<VintagesRequest> {
  const times = {
    everyMs: settings.limits.metricsEveryMs,
    jitterMs: settings.SVC_FOLLOW_JITTER_SECONDS * 1000,
    signal,
  };
  for await (const _turn of turns(times)) {
    try {
      const choose: Choose = async (series, dates) => {
        const rows = await catalog.partitionsOf(
          macroSeriesMetrics,
          dates.map((date) => vintageKey(series.sourceId, date)),
        );
        // A quarantined vintage waits for an operator.
        const ended = rows.filter(
          ({ state, synthetic }) => !synthetic && (state === 'proved' || state === 'quarantined'),
        );
        const keys = new Set(ended.map(({ partitionKey }) => partitionKey));
        const open = dates.filter((date) => !keys.has(vintageKey(series.sourceId, date)));
        return open.length > 0 ? open : dates.slice(-1);
      };
      yield* requestsFor(api, SERIES, { choose });
    } catch (error) {
      if (signal.aborted) return;
      log.warn({ fault: explain(error) }, 'some requests to the macro provider failed; retrying later');
    }
  }
}

function requestOf(
  series: MacroSeries,
  vintages: readonly string[],
  content: VintagesRequest['content'],
  suffix = '',
): VintagesRequest {
  const period = `${series.seriesId} ${vintages[0]}..${vintages[vintages.length - 1]}${suffix}`;
  const partitions = vintages.map((vintage) => ({ key: vintageKey(series.sourceId, vintage) }));
  return { period, partitions, series, content };
}

/** The described vintages of the answers; those that are not described fail by themselves. */
function* requestsOf(series: MacroSeries, content: ProviderContent, suffix?: string): Generator<VintagesRequest> {
  const { descriptions, vintages, throughMs } = content;
  const undescribed = vintages.filter((vintage) => !descriptions.asOf(vintage));
  if (undescribed.length > 0) {
    yield requestOf(series, undescribed, { fault: descriptions.missing(undescribed[0]) }, suffix);
  }
  const described = vintages.filter((vintage) => descriptions.asOf(vintage));
  if (described.length === 0) return;
  const isWhole = undescribed.length === 0;
  yield requestOf(
    series,
    described,
    { ...content, vintages: described, throughMs: isWhole ? throughMs : undefined },
    suffix,
  );
}

/** Chooses among the vintage dates of a series, ascending. */
type Choose = (series: MacroSeries, dates: readonly string[]) => Promise<readonly string[]>;

interface SeriesSelection {
  readonly choose: Choose;
  readonly replaces?: boolean;
}

/** A series that cannot be fetched is a failed unit; the others continue. */
async function* requestsFor(
  api: MacroApi,
  named: readonly MacroSeries[],
  wanted: SeriesSelection,
): AsyncGenerator<VintagesRequest> {
  for (const series of named) {
    try {
      yield* ofSeries(api, series, wanted);
    } catch (fault) {
      yield { period: series.seriesId, partitions: [], series, content: { fault } };
    }
  }
}

async function* ofSeries(
  api: MacroApi,
  series: MacroSeries,
  { choose, replaces }: SeriesSelection,
): AsyncGenerator<VintagesRequest> {
  const { descriptions, lastUpdatedMs } = await fetchSeries(api, series);
  const { dates, atMs } = await fetchVintageDates(api, series);
  const chosen = new Set(await choose(series, dates));
  const last = dates[dates.length - 1];
  for (const whole of spansOf(dates, chosen)) {
    for await (const one of fetchObservations(api, series, whole)) {
      const { vintages } = one.span;
      if ('fault' in one) {
        yield requestOf(series, vintages, { fault: one.fault });
        continue;
      }
      const throughMs = vintages.includes(last) ? atMs : undefined;
      yield* requestsOf(series, { answers: one, descriptions, vintages, lastUpdatedMs, throughMs, replaces });
    }
  }
}

/** Groups the chosen dates into spans of consecutive dates of the list. */
function spansOf(dates: readonly string[], chosen: ReadonlySet<string>): VintageSpan[] {
  const spans: { before: string | undefined; vintages: string[] }[] = [];
  for (const [index, date] of dates.entries()) {
    if (!chosen.has(date)) continue;
    const before = index === 0 ? undefined : dates[index - 1];
    const open = spans[spans.length - 1];
    if (open && open.vintages[open.vintages.length - 1] === before) open.vintages.push(date);
    else spans.push({ before, vintages: [date] });
  }
  return spans;
}
