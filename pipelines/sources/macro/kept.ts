/**
 * Answers that were kept, as the vintages they told of: the same partitions as when they came. An answer about vintages
 * begins with what was said on the one before them, so each stands by itself, whatever was asked before.
 */
import { explain } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log/logger.ts';
import { vintageKey } from '../../../shared/registry/keys.ts';
import type { Keep, KeptFetch } from '../documents/keep.ts';
import type { Selection } from '../types.ts';
import { type Observation, readObservations, readSeries, readVintages } from './answers.ts';
import type { Said } from './api.ts';
import type { MacroSeries } from './series.ts';
import type { VintagesRequest } from './source.ts';

/** What the answers before have told, as far as it is needed to read the next. */
interface Told {
  lastUpdatedMs: number | undefined;
  /** Ascending. */
  dates: readonly string[];
  /** Pages of one answer, so far. */
  observations: Observation[];
  pages: Buffer[];
  /** Answers met already: fetched again they say nothing new. */
  readonly seen: Set<string>;
}

export async function* keptRequests(
  named: readonly MacroSeries[],
  { options: { from = '', to = '9999-12-31' }, reingest: replaces }: Selection,
  keep: Keep,
  log: Logger,
): AsyncGenerator<VintagesRequest> {
  for (const series of named) {
    const told: Told = { lastUpdatedMs: undefined, dates: [], observations: [], pages: [], seen: new Set() };
    for await (const fetch of keep.fetches(series.sourceId)) {
      try {
        const said = take(series, fetch, await keep.read(fetch.sha256), told);
        if (!said || told.lastUpdatedMs === undefined) continue;
        const vintages = said.span.vintages.filter((vintage) => vintage >= from && vintage <= to);
        if (vintages.length === 0) continue;
        yield {
          period: `${series.seriesId} ${vintages[0]}..${vintages[vintages.length - 1]}, kept`,
          partitions: vintages.map((vintage) => ({ key: vintageKey(series.sourceId, vintage) })),
          series,
          content: { said, vintages, lastUpdatedMs: told.lastUpdatedMs, replaces },
        };
      } catch (error) {
        // Refused when it came, and refused now: an error told with 200, a page in its place.
        const { sha256, name } = fetch;
        log.warn({ document: name, sha256, fault: explain(error) }, 'a kept answer is passed over');
      }
    }
  }
}

function take(series: MacroSeries, { asked, sha256 }: KeptFetch, bytes: Buffer, told: Told): Said | undefined {
  const text = bytes.toString('utf8');
  switch (asked.path) {
    case 'series':
      told.lastUpdatedMs = readSeries(text, series).lastUpdatedMs;
      return undefined;
    case 'series/vintagedates': {
      const { dates } = readVintages(text, series);
      told.dates = asked.offset === '0' ? dates : [...new Set([...told.dates, ...dates])].sort();
      return undefined;
    }
    case 'series/observations': {
      const place = `${sha256} ${asked.realtime_start} ${asked.realtime_end} ${asked.offset}`;
      if (asked.offset === '0') [told.observations, told.pages] = [[], []];
      // The rest of an answer whose begin was not kept, or was another's.
      if (asked.offset !== String(told.observations.length)) return undefined;
      const { count, observations } = readObservations(text, series);
      told.observations.push(...observations);
      told.pages.push(bytes);
      if (told.observations.length < count || told.seen.has(place)) return undefined;
      told.seen.add(place);
      return { span: spanOf(asked, told.dates), observations: told.observations, pages: told.pages };
    }
    default:
      return undefined;
  }
}

/** The vintages between the two days it was asked for; the first day is the one before them, unless nothing was before it. */
function spanOf({ realtime_start: start, realtime_end: end }: KeptFetch['asked'], dates: readonly string[]) {
  const isFirst = dates[0] === start;
  const vintages = dates.filter((date) => (isFirst ? date >= start : date > start) && date <= end);
  return { before: isFirst ? undefined : start, vintages };
}
