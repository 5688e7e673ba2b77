/** The macro feed's documents: answers that were kept, and what the vintages of them become. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { openDocumentArchive } from '../../pipelines/sources/documents/document-archive.ts';
import { archivedRequests } from '../../pipelines/sources/macro/open.ts';
import { SERIES } from '../../pipelines/sources/macro/series.ts';
import { macroSource, type VintagesRequest } from '../../pipelines/sources/macro/vintages.ts';
import type { Logger } from '../../shared/logger.ts';
import { vintageKey } from '../../shared/registry/keys.ts';
import { metadataOf } from '../support/macro-provider.ts';

const CPI = SERIES.find(({ seriesId }) => seriesId === 'CPIAUCSL')!;
const VINTAGES = ['1988-01-20', '1988-02-26'];
const OLD = {
  title: 'An index',
  unit: 'Index 1967=100',
  frequency: 'Monthly',
  seasonalAdjustment: 'Seasonally Adjusted',
};
const NEW = { ...OLD, unit: 'Index 1982-1984=100' };

/** The events of a request as the publisher reads them, as text. */
async function eventsOf(request: VintagesRequest): Promise<string> {
  const source = macroSource({ valueTexts: async () => new Map() });
  await using document = await source.open(request);
  const texts: string[] = [];
  for await (const item of document.decode({ frameRawBytes: 1 << 20 })) {
    if (item.kind === 'events') texts.push(`${item.partition.key} ${item.raw.toString('utf8')}`);
  }
  return texts.join('\n');
}

describe('answers that were kept', () => {
  const series = metadataOf('CPIAUCSL', '2026-03-06 08:12:35-06');
  const [from, to] = VINTAGES;
  const EVERY_DAY = { realtime_start: '1776-07-04', realtime_end: '9999-12-31' };

  async function requestsWith(described: readonly object[]): Promise<VintagesRequest[]> {
    const directory = await mkdtemp(join(tmpdir(), 'macro-archive-'));
    let now = 0;
    const archive = await openDocumentArchive(directory, () => ++now);
    const keep = (path: string, answer: object, asked: Record<string, string> = {}) =>
      archive.put(Buffer.from(JSON.stringify(answer)), {
        source_id: CPI.sourceId,
        name: `CPIAUCSL ${path}`,
        asked: { path, series_id: 'CPIAUCSL', ...asked },
      });
    await keep('series', { seriess: described }, EVERY_DAY);
    await keep('series/vintagedates', { count: 2, offset: 0, vintage_dates: VINTAGES }, { offset: '0' });
    const observations = [{ realtime_start: from, realtime_end: to, date: '1987-12-01', value: '346.7' }];
    const window = { realtime_start: from, realtime_end: to, offset: '0' };
    await keep('series/observations', { output_type: 1, count: 1, offset: 0, observations }, window);
    const log = { warn: (...said: unknown[]) => expect(said).toEqual([]) } as unknown as Logger;
    const selection = { options: {}, reingest: false };
    const requests = await Array.fromAsync(archivedRequests([CPI], selection, archive, log));
    await rm(directory, { recursive: true });
    return requests;
  }

  test('are described as of each vintage', async () => {
    const [request, ...more] = await requestsWith([
      { ...series, units: OLD.unit, realtime_start: '1972-07-21', realtime_end: '1988-02-25' },
      { ...series, realtime_start: to, realtime_end: '9999-12-31' },
    ]);
    expect(more).toEqual([]);
    const events = (await eventsOf(request)).split('\n');
    expect(events.map((text) => /"units":"([^"]*)"/.exec(text)?.[1])).toEqual([OLD.unit, NEW.unit]);
  });

  test('where a vintage is not described it fails alone, and the next has all its values', async () => {
    const [none, other] = await requestsWith([{ ...series, realtime_start: to, realtime_end: '9999-12-31' }]);
    expect([none, other].map(({ partitions }) => partitions)).toEqual(
      [from, to].map((vintage) => [{ key: vintageKey(CPI.sourceId, vintage) }]),
    );
    await expect(eventsOf(none)).rejects.toThrow(/as of the vintage 1988-01-20, only as of 1988-02-26 to 9999-12-31/);
    expect(await eventsOf(other)).toContain('"observation_date":"1987-12-01"');
  });
});
