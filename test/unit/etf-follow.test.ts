/** Which documents of an operator's folder `follow` requests at each of its looks. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { openDocumentArchive } from '../../pipelines/sources/documents/document-archive.ts';
import { readCapture } from '../../pipelines/sources/etf/captures.ts';
import type { FetchNeeds } from '../../pipelines/sources/etf/fetch.ts';
import { archivedRequests, FolderDocuments, Unpublished } from '../../pipelines/sources/etf/open.ts';
import type { FeedNeeds } from '../../pipelines/sources/feed-types.ts';
import { DAY_MS } from '../../shared/dates.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { captureKey } from '../../shared/registry/keys.ts';
import { dayOf, documentOf, fundOf, idOf } from '../support/etf.ts';
import { temporaryDir } from '../support/stack.ts';

const [FIRST, SECOND, THIRD] = ['2026-03-04', '2026-03-05', '2026-03-06'];
const issuer = fundOf('IBIT');

async function following() {
  const folder = await temporaryDir();
  const rows: unknown[] = [];
  const captures = async (_dataset: unknown, groups: readonly string[]) =>
    (rows as PartitionRow[]).filter(({ partitionKey }) =>
      groups.includes(partitionKey.split(':').slice(0, 2).join(':')),
    );
  const documents = new FolderDocuments(
    { signal: new AbortController().signal } as FetchNeeds,
    { captures } as unknown as Catalog,
  );
  const look = async () => {
    const requests = await documents.requests({ issuer, base: pathToFileURL(`${folder}/`) });
    return requests.map(({ period }) => period.replace(/^IBIT |\.csv$/g, ''));
  };
  const write = (name: string, text: string) => writeFile(join(folder, `${name}.csv`), text);
  /** The catalog knows the document as the n-th capture of its day. */
  const known = (state: PartitionRow['state'], day: string, text: string, number = 1) => {
    const { recordSha256 } = readCapture(issuer, Buffer.from(text), { name: day, atMs: Date.now(), filedDay: day });
    const partitionKey = captureKey(idOf('IBIT'), day, number);
    const manifest = state === 'published' ? null : { record_sha256: recordSha256 };
    rows.push({ partitionKey, state, synthetic: false, manifest });
  };
  return { look, write, known, rows };
}

test('a document of a folder that failed in an outage was not requested again before the next start', async () => {
  const { look, write, known, rows } = await following();
  const text = (day: string, more = {}) => documentOf('IBIT', dayOf('IBIT', day, more));
  for (const day of [FIRST, SECOND]) await write(day, text(day));
  expect(await look()).toEqual([FIRST, SECOND]);
  expect(await look()).toEqual([FIRST, SECOND]);
  known('proved', FIRST, text(FIRST));
  known('published', SECOND, text(SECOND));
  expect(await look()).toEqual([]);
  rows.pop();
  expect(await look()).toEqual([SECOND]);
  known('quarantined', SECOND, text(SECOND));
  await write(THIRD, text(THIRD));
  expect(await look()).toEqual([THIRD]);
});

test('of a day that is proved, a document with other facts was not requested again', async () => {
  const { look, write, known } = await following();
  const said = (outstanding: string) => documentOf('IBIT', dayOf('IBIT', FIRST, { sharesOutstanding: outstanding }));
  await write(FIRST, said('30000000'));
  await write(`${FIRST} evening`, said('31000000'));
  expect(await look()).toEqual([FIRST, `${FIRST} evening`]);
  known('proved', FIRST, said('30000000'));
  expect(await look()).toEqual([`${FIRST} evening`]);
  known('proved', FIRST, said('31000000'), 2);
  expect(await look()).toEqual([]);
});

test('a document that cannot be parsed is requested once, and when it changes', async () => {
  const { look, write } = await following();
  await write(FIRST, 'no holdings');
  expect(await look()).toEqual([FIRST]);
  expect(await look()).toEqual([]);
  await write(FIRST, 'other holdings');
  expect(await look()).toEqual([FIRST]);
});

test('of documents with the same bytes, which say that several days have no data, each is requested', async () => {
  const now = Date.now();
  // All in one millisecond, as a fast disk has them.
  const archive = await openDocumentArchive(await temporaryDir(), () => now);
  const none = Buffer.from('iShares Bitcoin Trust ETF\nFund Holdings as of,"-"\n\nTicker,Name\n');
  // The first is not a week past: it may still get its data.
  const days = [new Date().toISOString().slice(0, 10), '2024-01-15', '2024-02-19', '2024-03-29'];
  for (const day of days) await archive.put(none, { source_id: idOf('IBIT'), name: 'holdings', asked: { day } });
  const rows: unknown[] = [];
  const unpublished = new Unpublished({ archive } as FetchNeeds, { partitions: async () => rows as PartitionRow[] });
  const look = async () =>
    (await Array.fromAsync(unpublished.requests([issuer], 0))).map(({ partitions: [{ key }] }) => key.split(':')[1]);
  expect(await look()).toEqual(days.slice(1));
  rows.push({ partitionKey: captureKey(idOf('IBIT'), days[1]), synthetic: false });
  expect(await look()).toEqual(days.slice(2));
});

test('a day without data is final when it is a week past, and no moment earlier: an issuer may be days late', () => {
  const none = Buffer.from('iShares Bitcoin Trust ETF\nFund Holdings as of,"-"\n\nTicker,Name\n');
  const weekPast = Date.parse(`${FIRST}T00:00:00Z`) + 7 * DAY_MS;
  const at = (atMs: number) => readCapture(issuer, none, { name: 'holdings', atMs, askedDay: FIRST });
  expect(() => at(weekPast - 1)).toThrow(expect.objectContaining({ code: 'SOURCE_DOCUMENT_INVALID' }));
  expect(at(weekPast)).toEqual({ asOf: FIRST, events: [] });
});

test('a document of tomorrow is refused, one of today is not', () => {
  const bytes = Buffer.from(documentOf('IBIT', dayOf('IBIT', SECOND)));
  const midnight = Date.parse(`${SECOND}T00:00:00Z`);
  const at = (atMs: number) => readCapture(issuer, bytes, { name: 'holdings', atMs });
  expect(() => at(midnight - 1)).toThrow(/the as-of date 2026-03-05 is in the future/);
  expect(at(midnight).asOf).toBe(SECOND);
});

// A reingest of what is kept ended with 1, and named a proved day as failed.
test('a day that had no data yet was a fault of the proved day whose document has the same bytes', async () => {
  const archive = await openDocumentArchive(await temporaryDir());
  const none = Buffer.from('iShares Bitcoin Trust ETF\nFund Holdings as of,"-"\n\nTicker,Name\n');
  const today = new Date().toISOString().slice(0, 10);
  const keep = (asked: Record<string, string>) =>
    archive.put(none, { source_id: idOf('IBIT'), name: 'holdings', asked });
  const { sha256 } = await keep({ day: '2024-01-15' });
  await keep({ day: today });
  for (const filed_day of ['2024-02-19', today]) await keep({ filed_day });
  const manifest = { rows: 0, document: { sha256 } };
  const keys = ['2024-01-15', '2024-02-19'].map((day) => captureKey(idOf('IBIT'), day));
  const rows = keys.map((partitionKey) => ({ partitionKey, state: 'proved', manifest }));
  const needs = { catalog: { partitions: async () => rows }, log: { warn: () => {} } } as unknown as FeedNeeds;
  const requests = archivedRequests([issuer], { options: {}, reingest: false }, needs, { archive } as FetchNeeds);
  expect((await Array.fromAsync(requests)).map(({ partitions: [{ key }] }) => key)).toEqual(keys);
});

test('an archived document that failed at two looks was not requested again before the next start', async () => {
  const archive = await openDocumentArchive(await temporaryDir());
  const rows: unknown[] = [];
  const catalog = { partitions: async () => rows as PartitionRow[] };
  const unpublished = new Unpublished({ archive } as FetchNeeds, catalog);
  const keep = (day: string) =>
    archive.put(Buffer.from(documentOf('IBIT', dayOf('IBIT', day))), { source_id: idOf('IBIT'), name: day, asked: {} });
  const look = async (sinceMs = 0) =>
    (await Array.fromAsync(unpublished.requests([issuer], sinceMs))).map(({ period }) => period);
  // Each look of an outage fetches the issuer's document once more.
  for (let looks = 0; looks < 3; looks++) {
    await keep(FIRST);
    expect(await look()).toEqual([`IBIT ${FIRST}`]);
  }
  await keep(SECOND);
  expect(await look()).toEqual([`IBIT ${FIRST}`, `IBIT ${SECOND}`]);
  rows.push({ partitionKey: captureKey(idOf('IBIT'), FIRST), synthetic: false });
  expect(await look()).toEqual([`IBIT ${SECOND}`]);
  // A week later it takes a command.
  expect(await look(Date.now() + 1)).toEqual([]);
});
