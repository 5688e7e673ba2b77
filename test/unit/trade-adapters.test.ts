/** Every exchange's adapter by its own sample, without a server: an adapter that is listed is covered by this. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { FoldingProjection } from '../../pipelines/rows/binary-copy.ts';
import type { EventRun, Feed, PartitionEnd } from '../../pipelines/sources/feed-types.ts';
import { feeds, projectionOf } from '../../pipelines/sources/index.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import { codeOf } from '../../shared/errors.ts';
import { createLogger } from '../../shared/logger.ts';

const TRADES = feeds().filter(({ datasets }) => datasets[0].trades);
const DAY = '2024-01-02';
const ROWS = 300;

let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), 'adapters-'));
});
afterAll(() => rm(root, { recursive: true }));

interface Decoded {
  readonly runs: readonly EventRun[];
  readonly end: PartitionEnd;
}

/** The items of the sample's day; frames are copied, as decoders use their memory again. */
async function decoded(feed: Feed, frameRawBytes: number): Promise<Decoded> {
  const directory = join(root, feed.name);
  const settings = loadSettings({ env: { SVC_STATE_DIR: join(root, 'state') }, cwd: root });
  const { signal } = new AbortController();
  await feed.sample!.write!({ directory, from: DAY, to: DAY, rows: ROWS, settings, signal });
  const log = createLogger('silent', 'test');
  const location = pathToFileURL(`${directory}/`);
  await using opened = await feed.open({ settings, location, log, signal, catalog: {} as Catalog });
  const runs: EventRun[] = [];
  const ends: PartitionEnd[] = [];
  for await (const event of opened.select({ options: { from: DAY, to: DAY }, reingest: false })) {
    if (event.kind !== 'document') throw new Error('a file day is never retracted');
    await using document = await opened.source.open(event.request);
    for await (const item of document.decode({ frameRawBytes })) {
      if (item.kind === 'end') ends.push(item);
      else runs.push({ ...item, raw: Buffer.from(item.raw) });
    }
  }
  expect(ends).toHaveLength(1);
  return { runs, end: ends[0] };
}

const rowsOf = (feed: Feed, { partition }: PartitionEnd) =>
  (projectionOf(feed.datasets[0]) as FoldingProjection).createRows(partition);

describe.for(TRADES)('$name', (feed) => {
  test('the facts and rows are the same in small frames and in one', async () => {
    const [small, whole] = [await decoded(feed, 2000), await decoded(feed, 1 << 20)];
    expect(small.runs.length).toBeGreaterThan(5);
    expect(whole.runs).toHaveLength(1);
    expect(small.end).toEqual(whole.end);
    expect(whole.end.facts).toMatchObject({ rows: ROWS, rows_hash: expect.stringMatching(/^-?\d+$/) });
    const totals = feed.datasets[0].native.totals.map(({ column }) => column);
    expect(Object.keys(whole.end.facts.totals)).toEqual(totals);
    const [first, second] = [small, whole].map(({ runs, end }) => {
      const rows = rowsOf(feed, end);
      const copies = runs.map(({ raw, rows: count, written }) => Buffer.from(rows.rows(raw, count, written).copy));
      const aligned = rows.aligned({ datasetId: 1, seriesId: 1 });
      return [Buffer.concat(copies), Buffer.from(aligned.copy), aligned.rows];
    });
    expect(first).toEqual(second);
  });

  test('a damaged frame is refused as damaged, or read as other values', async () => {
    const { runs, end } = await decoded(feed, 2000);
    const { raw, rows, written } = runs[0];
    const projector = rowsOf(feed, end);
    let refused = 0;
    for (let at = raw.length - 1; at >= 0; at -= 3) {
      const damaged = Buffer.from(raw);
      damaged[at] ^= 0x10;
      try {
        projector.rows(damaged, rows, written);
      } catch (error) {
        expect([at, codeOf(error)], String(error)).toEqual([at, 'LOG_DAMAGED']);
        refused++;
      }
    }
    expect(refused).toBeGreaterThan(raw.length / 30);
    for (const [bytes, count] of [
      [raw.subarray(0, -1), rows] as const,
      [raw, rows + 1] as const,
      [raw, rows - 1] as const,
    ]) {
      expect(() => projector.rows(bytes, count, written)).toThrow(expect.objectContaining({ code: 'LOG_DAMAGED' }));
    }
  });
});
