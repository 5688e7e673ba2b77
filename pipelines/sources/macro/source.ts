/** What was said of a series over some vintages, as partitions: one a vintage, with what it changed. */
import { createHash } from 'node:crypto';
import type { Catalog } from '../../../shared/db/catalog.ts';
import { macroSeriesMetrics } from '../../../shared/registry/datasets/macro_series_metrics.ts';
import { vintageKey } from '../../../shared/registry/keys.ts';
import { DAY_MS, parseDay } from '../../../shared/time/days.ts';
import { RecordFrames } from '../records/record-frames.ts';
import type { DocumentRequest, OpenedDocument, Source } from '../types.ts';
import type { Said } from './api.ts';
import { eventsOf } from './events.ts';
import type { MacroSeries } from './series.ts';
import { sameValue, type VintageRow, vintagesIn } from './vintages.ts';

export interface VintagesRequest extends DocumentRequest {
  readonly series: MacroSeries;
  readonly content: SaidContent | { readonly fault: unknown };
}

/** Answers that came. */
export interface SaidContent {
  readonly said: Said;
  /** Those of its vintages that are wanted, ascending. */
  readonly vintages: readonly string[];
  /** When the source last changed the series, as the fetch was told. */
  readonly lastUpdatedMs: number;
  /** What is proved is to be replaced by what the source says now, down to the text. */
  readonly replaces?: boolean;
  /** The last of its vintages was the last there was at that time. */
  readonly throughMs?: number;
}

export function macroSource(catalog: Catalog): Source<VintagesRequest> {
  return {
    datasets: [macroSeriesMetrics],
    publishedSha256: async () => undefined,
    async open({ series, content, partitions }): Promise<OpenedDocument> {
      if ('fault' in content) throw content.fault;
      const { said, vintages, lastUpdatedMs, throughMs, replaces } = content;
      const changed = vintagesIn(said.span, said.observations);
      const keys = partitions.map(({ key }) => key);
      const stored = replaces ? new Map() : await catalog.valueTexts(macroSeriesMetrics, keys);
      return {
        facts: { ...documentOf(series, said), granularity: 'vintages' },
        checks: throughMs === undefined ? [] : [{ sourceId: series.sourceId, throughMs }],
        async *decode({ frameRawBytes }) {
          for (const vintage of vintages) {
            const frames = new RecordFrames(macroSeriesMetrics, vintageKey(series.sourceId, vintage), frameRawBytes);
            for (const event of eventsOf(series, vintage, changed.get(vintage) ?? [], writtenBefore(stored))) {
              yield* frames.add(event);
            }
            const fromMs = parseDay(vintage)!;
            yield* frames.end({ last_updated_ms: lastUpdatedMs }, { fromMs, toMs: fromMs + DAY_MS });
          }
        },
        async [Symbol.asyncDispose]() {},
      };
    },
  };
}

/** The source may write a number that it said before in another way: it stays as it was taken down. */
const writtenBefore =
  (stored: ReadonlyMap<string, string | null>) =>
  (metricId: string, { value }: VintageRow): string => {
    const text = stored.get(metricId);
    return typeof text === 'string' && sameValue(text, value) ? text : value;
  };

/** One answer, or the pages of one. */
function documentOf({ seriesId }: MacroSeries, { span: { before, vintages }, pages }: Said) {
  const hash = createHash('sha256');
  for (const page of pages) hash.update(page);
  return {
    name: `${seriesId} ${before ?? vintages[0]}..${vintages[vintages.length - 1]}`,
    sha256: hash.digest('hex'),
    bytes: pages.reduce((sum, page) => sum + page.length, 0),
  };
}
