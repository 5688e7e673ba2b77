/** The macro feed's documents: what a vintage becomes beside what is stored of it, and answers that earlier releases kept. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openDocumentArchive } from '../../pipelines/sources/documents/document-archive.ts';
import { Descriptions } from '../../pipelines/sources/macro/descriptions.ts';
import { archivedRequests } from '../../pipelines/sources/macro/open.ts';
import { SERIES } from '../../pipelines/sources/macro/series.ts';
import { macroSource, type VintagesRequest } from '../../pipelines/sources/macro/vintages.ts';
import type { Logger } from '../../shared/logger.ts';
import { vintageKey } from '../../shared/registry/keys.ts';
import { metadataOf } from '../support/macro-world.ts';

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
async function eventsOf(request: VintagesRequest, untitled: readonly string[] = []): Promise<string> {
  const source = macroSource({ valueTexts: async () => new Map(), partitionsWithout: async () => [...untitled] });
  await using document = await source.open(request);
  const texts: string[] = [];
  for await (const item of document.decode({ frameRawBytes: 1 << 20 })) {
    if (item.kind === 'events') texts.push(`${item.partition.key} ${item.raw.toString('utf8')}`);
  }
  return texts.join('\n');
}

test('a partition that was proved without its title stays as it was proved; the others have it', async () => {
  const observation = { realtimeStart: VINTAGES[0], realtimeEnd: '9999-12-31', date: '1987-12-01', value: '346.7' };
  const keys = VINTAGES.map((vintage) => vintageKey(CPI.sourceId, vintage));
  const request: VintagesRequest = {
    period: 'two vintages',
    partitions: keys.map((key) => ({ key })),
    series: CPI,
    content: {
      answers: { span: { before: undefined, vintages: VINTAGES }, observations: [observation], pages: [] },
      descriptions: new Descriptions('CPIAUCSL', [
        { ...OLD, from: '1972-07-21', to: '1988-02-25' },
        { ...NEW, from: '1988-02-26', to: '9999-12-31' },
      ]),
      vintages: VINTAGES,
      lastUpdatedMs: 0,
    },
  };
  const [first, second] = (await eventsOf(request, [keys[0]])).split('\n');
  expect(first).toContain('"units":"Index 1967=100"');
  expect(first).not.toContain('"title"');
  expect(second).toContain('"title":"An index","units":"Index 1982-1984=100"');
  const replacing = { ...request, content: { ...request.content, replaces: true } } as VintagesRequest;
  expect((await eventsOf(replacing, [keys[0]])).split('"title"')).toHaveLength(3);
});

describe('answers that earlier releases kept', () => {
  let directory: string;
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'macro-archive-'));
  });
  afterAll(() => rm(directory, { recursive: true }));

  test('describe no vintage before their day; once the provider was asked for every day, they are read by that', async () => {
    let now = 0;
    const archive = await openDocumentArchive(directory, () => ++now);
    const keep = (path: string, answer: object, asked: Record<string, string> = {}) =>
      archive.put(Buffer.from(JSON.stringify(answer)), {
        source_id: CPI.sourceId,
        name: `CPIAUCSL ${path}`,
        asked: { path, series_id: 'CPIAUCSL', ...asked },
      });
    const series = metadataOf('CPIAUCSL', '2026-03-06 08:12:35-06');
    const [from, to] = VINTAGES;
    const today = { realtime_start: '2026-03-06', realtime_end: '2026-03-06' };
    await keep('series', { seriess: [{ ...series, ...today }] });
    await keep('series/vintagedates', { count: 2, offset: 0, vintage_dates: VINTAGES }, { offset: '0' });
    const observations = [{ realtime_start: from, realtime_end: to, date: '1987-12-01', value: '346.7' }];
    const window = { realtime_start: from, realtime_end: to, offset: '0' };
    await keep('series/observations', { output_type: 1, count: 1, offset: 0, observations }, window);
    const warned: unknown[] = [];
    const log = { warn: (...said: unknown[]) => warned.push(said) } as unknown as Logger;
    const requests = () => Array.fromAsync(archivedRequests([CPI], { options: {}, reingest: false }, archive, log));
    const [early] = await requests();
    await expect(eventsOf(early)).rejects.toThrow(/does not describe it as of the vintage 1988-01-20/);
    const periods = [
      { ...series, units: OLD.unit, realtime_start: '1972-07-21', realtime_end: '1988-02-25' },
      { ...series, realtime_start: '1988-02-26', realtime_end: '9999-12-31' },
    ];
    await keep('series', { seriess: periods }, { realtime_start: '1776-07-04', realtime_end: '9999-12-31' });
    const events = (await eventsOf((await requests())[0])).split('\n');
    expect(events.map((text) => /"units":"([^"]*)"/.exec(text)?.[1])).toEqual([OLD.unit, NEW.unit]);
    expect(warned).toEqual([]);
  });
});
