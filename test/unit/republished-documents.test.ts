/** A vendor without checksum files is asked whether it still publishes a document, by what its server or the file system states. */
import { mkdtemp, readdir, rm, utimes } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { exchangeBSource } from '../../pipelines/sources/exchange_b/source.ts';
import { exchangeCSource } from '../../pipelines/sources/exchange_c/source.ts';
import type { FileDaySource } from '../../pipelines/sources/feed-types.ts';
import type { DocumentFacts } from '../../shared/frame/manifest.ts';
import { type Stated, startVendorServer, type VendorServer } from '../support/vendor-server.ts';
import { VENDOR_B, VENDOR_C } from '../support/vendors.ts';

const DAY = '2025-01-09';

describe.each([VENDOR_B, VENDOR_C])('$dataset', (vendor) => {
  let folder: string;
  let server: VendorServer | undefined;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'republished-'));
  });
  afterEach(async () => {
    expect(await readdir(join(folder, 'spool')).catch(() => [])).toEqual([]);
    await server?.[Symbol.asyncDispose]();
    server = undefined;
    await rm(folder, { recursive: true });
  });

  const put = (rows: number) =>
    vendor.put(join(folder, 'vendor'), DAY, vendor.pack(DAY, vendor.plainDay({ day: DAY, rows, seed: 1, firstId: 1 })));
  const serve = async (stated: Stated) => {
    server = await startVendorServer(join(folder, 'vendor'), stated);
    return server;
  };
  const sourceAt = (location: URL): FileDaySource => {
    const limits = { timeoutMs: 60_000, maxAttempts: 1, maxDocumentBytes: 1e9, maxUnpackedBytes: 1e9 };
    const common = { ...limits, spoolDir: join(folder, 'spool') };
    return vendor === VENDOR_B
      ? exchangeBSource({ ...common, location, resolve: 'base', instrument: 'BTC-USDT' })
      : exchangeCSource({ ...common, baseUrl: location, archive: 'spot', symbol: 'BTCUSDT', maxSortBytes: 1e9 });
  };
  const opened = async (source: FileDaySource): Promise<DocumentFacts> => {
    await using document = await source.open(source.plan(DAY, DAY, 'daily')[0]);
    return document.facts;
  };
  /** @returns the facts of another document, or the sha256 of the known one. */
  const asked = async (source: FileDaySource, ...known: DocumentFacts[]): Promise<DocumentFacts | string> => {
    const published = await source.openUnlessKnown!(source.plan(DAY, DAY, 'daily')[0], known);
    if (published.kind === 'known') return published.sha256;
    await using document = published.document;
    return document.facts;
  };
  const statuses = () => server!.requests(vendor.path(DAY)).map(({ status }) => status);

  test('by its ETag, which the manifest keeps: after a restart, too, only another document is sent', async () => {
    await put(10);
    await serve('etag');
    const source = sourceAt(server!.url);
    const half = await opened(source);
    expect(half.etag).toMatch(/^"[0-9a-f]{16}"$/);
    expect(await asked(source, half)).toBe(half.sha256);
    expect(await asked(sourceAt(server!.url), half)).toBe(half.sha256);
    expect(statuses()).toEqual([200, 304, 304]);
    await put(20);
    const whole = (await asked(source, half)) as DocumentFacts;
    expect(whole).toMatchObject({ name: vendor.document(DAY), etag: expect.not.stringMatching(half.etag!) });
    expect(await asked(source, half, whole)).toBe(whole.sha256);
    expect(await asked(sourceAt(server!.url), half, whole)).toBe(whole.sha256);
    // It was not compared: whatever its tag says, the document is needed again.
    expect(await asked(source, half)).toEqual({ ...whole, fetched_ms: expect.any(Number) });
    expect(statuses()).toEqual([200, 304, 304, 200, 304, 304, 200]);
  });

  test('by the time of its last change, unless another change could have the same time; after a restart if it was an hour before', async () => {
    await put(10);
    await serve('time');
    const source = sourceAt(server!.url);
    const changed = (atMs: number) => utimes(join(folder, 'vendor', vendor.path(DAY)), atMs / 1000, atMs / 1000);
    await changed(Date.now() + 60_000);
    const facts = await opened(source);
    expect(facts.etag).toBeUndefined();
    expect(await asked(source, facts)).toBe(facts.sha256);
    await changed(Date.now() - 60_000);
    for (let turn = 0; turn < 3; turn++) expect(await asked(source, facts)).toBe(facts.sha256);
    expect(await asked(sourceAt(server!.url), facts)).toBe(facts.sha256);
    expect(statuses()).toEqual([200, 200, 200, 304, 304, 200]);
  });

  test('where nothing is stated, the document is sent and its sha256 decides', async () => {
    await put(10);
    await serve('nothing');
    const source = sourceAt(server!.url);
    const half = await opened(source);
    expect(await asked(source, half)).toBe(half.sha256);
    await put(20);
    expect(await asked(source, half)).toMatchObject({ name: vendor.document(DAY) });
    expect(statuses()).toEqual([200, 200, 200]);
  });

  test('a new ETag of the same bytes is a question, and the sha256 answers it; the new one is asked with next', async () => {
    await put(10);
    const { url, fail, requests } = await serve('etag');
    const source = sourceAt(url);
    const facts = await opened(source);
    fail(vendor.path(DAY), { kind: 'headers', headers: { etag: '"new"' } });
    expect(await asked(source, facts)).toBe(facts.sha256);
    // This server ignores conditions and sends the document each time. Where it states the same tag, nothing of it is read.
    await put(20);
    expect(await asked(source, facts)).toBe(facts.sha256);
    expect(requests(vendor.path(DAY)).map(({ headers }) => headers['if-none-match'])).toEqual([
      undefined,
      facts.etag,
      '"new"',
    ]);
  });

  test('of a folder by size and time of the file; one of other bytes is another document', async () => {
    await put(10);
    const location = pathToFileURL(join(folder, 'vendor/'));
    const source = sourceAt(location);
    const half = await opened(source);
    expect(await asked(source, half)).toBe(half.sha256);
    await put(10);
    expect(await asked(source, half)).toBe(half.sha256);
    await put(20);
    const whole = (await asked(source, half)) as DocumentFacts;
    expect(whole.sha256).not.toBe(half.sha256);
    expect(await asked(sourceAt(location), half, whole)).toBe(whole.sha256);
  });

  test('a document that is gone is not found, of a server and of a folder', async () => {
    await put(10);
    await serve('etag');
    for (const location of [server!.url, pathToFileURL(join(folder, 'vendor/'))]) {
      const source = sourceAt(location);
      const facts = await opened(source);
      await vendor.put(join(folder, 'vendor'), DAY, undefined);
      await expect(asked(source, facts)).rejects.toMatchObject({ code: 'SOURCE_NOT_FOUND' });
      await put(10);
    }
  });
});
