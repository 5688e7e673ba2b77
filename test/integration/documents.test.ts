import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test, vi } from 'vitest';
import { fetchDocument, fetchText } from '../../pipelines/sources/documents/fetch.ts';
import type { Logger } from '../../shared/logger.ts';
import { faultOf } from '../support/faults.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { CHECKSUM_PATH, LIMITS, NAME, PATH, vendorDay } from '../support/vendor-day.ts';
import { startVendorServer } from '../support/vendor-server.ts';

const vendor = vendorDay();
const fetchPath = (path: string, more: Partial<Parameters<typeof fetchDocument>[0]> = {}) =>
  fetchDocument({ url: new URL(path, vendor.server.url), spoolDir: vendor.spoolDir, ...LIMITS, ...more });

describe('a document over http', () => {
  test('arrives whole, with digest, headers and progress, and is gone after dispose', async () => {
    const progress: [number, number | undefined][] = [];
    const document = await vendor.fetch({ onProgress: (bytes, total) => progress.push([bytes, total]) });
    expect(document).toMatchObject({
      name: NAME,
      bytes: vendor.zip.length,
      sha256: vendor.sha256,
      checksum: vendor.sha256,
      attempts: 1,
    });
    expect(document.headers['content-length']).toBe(String(vendor.zip.length));
    expect(document.url).toBe(new URL(PATH, vendor.server.url).href);
    expect(await readFile(document.path)).toEqual(vendor.zip);
    expect(progress.at(-1)).toEqual([vendor.zip.length, vendor.zip.length]);
    await document.assertUnchanged();
    await document[Symbol.asyncDispose]();
    expect(existsSync(document.path)).toBe(false);
    expect(vendor.server.requests().map((each) => each.path)).toEqual([PATH, CHECKSUM_PATH]);
  });

  test('arrives without a Content-Length too', async () => {
    vendor.server.fail(PATH, { kind: 'chunked', pieceBytes: 1000 });
    await using document = await vendor.fetch();
    expect(document.sha256).toBe(vendor.sha256);
  });

  test('404 is not retried and names the document', async () => {
    const fault = await faultOf(vendor.fetch({ period: '2023-01-01' }), 'SOURCE_NOT_FOUND');
    expect(fault.details).toMatchObject({ document: 'BTCUSDT-trades-2023-01-01.zip', status: 404 });
    expect(vendor.server.requests()).toHaveLength(1);
  });

  test('500 twice, then the document: retried with growing waits', async () => {
    vendor.server.fail(PATH, { kind: 'status', status: 500, times: 2 });
    await using document = await vendor.fetch({ backoff: { firstMs: 60, maxMs: 1000 } });
    expect(document).toMatchObject({ sha256: vendor.sha256, attempts: 3 });
    // At least 30 and 60 ms; a timer may fire some milliseconds early.
    const [first, second, third] = vendor.server.requests(PATH).map((each) => each.atMs);
    expect(second - first).toBeGreaterThanOrEqual(20);
    expect(third - second).toBeGreaterThanOrEqual(45);
  });

  test('500 for ever: the attempts are bounded, the fault names status and address', async () => {
    vendor.server.fail(PATH, { kind: 'status', status: 503 });
    const fault = await faultOf(vendor.fetch(), 'SOURCE_UNREACHABLE');
    expect(fault.details).toMatchObject({
      document: NAME,
      status: 503,
      attempts: 3,
      url: new URL(PATH, vendor.server.url).href,
    });
    expect(fault.message).toContain('503');
    expect(fault.message).toContain(PATH);
    expect(vendor.server.requests()).toHaveLength(3);
  });

  test('429 waits for as long as the server asks', async () => {
    vendor.server.fail(PATH, { kind: 'status', status: 429, headers: { 'retry-after': '1' }, times: 1 });
    await using document = await vendor.fetch();
    expect(document.attempts).toBe(2);
    const [first, second] = vendor.server.requests(PATH).map((each) => each.atMs);
    expect(second - first).toBeGreaterThanOrEqual(900);
  });

  test('a Retry-After of a day is not waited for', async () => {
    vendor.server.fail(PATH, { kind: 'status', status: 429, headers: { 'retry-after': '86400' } });
    const fault = await faultOf(vendor.fetch(), 'SOURCE_UNREACHABLE');
    expect(fault.message).toContain('86400 s');
    expect(vendor.server.requests()).toHaveLength(1);
  });

  test('403 is not retried', async () => {
    vendor.server.fail(PATH, { kind: 'status', status: 403 });
    expect((await faultOf(vendor.fetch(), 'SOURCE_UNREACHABLE')).details.status).toBe(403);
    expect(vendor.server.requests()).toHaveLength(1);
  });

  test.each([{ chunked: false }, { chunked: true }])(
    'cut mid-download ($chunked), then a clean retry',
    async ({ chunked }) => {
      vendor.server.fail(PATH, { kind: 'cut', afterBytes: 5000, chunked, times: 1 });
      await using document = await vendor.fetch();
      expect(document).toMatchObject({ sha256: vendor.sha256, bytes: vendor.zip.length, attempts: 2 });
      expect(await vendor.spooled()).toHaveLength(1);
    },
  );

  test('cut every time is SOURCE_UNREACHABLE', async () => {
    vendor.server.fail(PATH, { kind: 'cut', afterBytes: 5000 });
    const fault = await faultOf(vendor.fetch(), 'SOURCE_UNREACHABLE');
    expect(fault.details).toMatchObject({ document: NAME, declaredBytes: vendor.zip.length, attempts: 3 });
    expect(fault.details.bytesRead).toBeLessThanOrEqual(5000);
    expect(vendor.server.requests(PATH)).toHaveLength(3);
  });

  test.each([{ afterBytes: undefined }, { afterBytes: 1000 }])(
    'a server that falls silent ($afterBytes) is left and asked again',
    async (stall) => {
      vendor.server.fail(PATH, { kind: 'stall', ...stall, times: 1 });
      const started = Date.now();
      // On a busy machine a good answer may come too late, too, and is then asked for again.
      await using document = await vendor.fetch({ timeoutMs: 200, maxAttempts: 50 });
      expect(document.attempts).toBeGreaterThanOrEqual(2);
      expect(document.sha256).toBe(vendor.sha256);
      expect(Date.now() - started).toBeGreaterThanOrEqual(150);
    },
  );

  test('a slow server is waited for as long as bytes come', async () => {
    // Twice as long as it may be silent.
    vendor.server.fail(PATH, { kind: 'drip', pieceBytes: Math.ceil(vendor.zip.length / 8), everyMs: 125 });
    await using document = await vendor.fetch({ timeoutMs: 500, maxAttempts: 50 });
    expect(document.sha256).toBe(vendor.sha256);
  });

  test('a drip that would take for ever is given up though it is never silent', async () => {
    vendor.server.fail(PATH, { kind: 'drip', pieceBytes: 1, everyMs: 20 });
    // Long beside the pauses: a busy machine is not to look like a silent server.
    const fault = await faultOf(vendor.fetch({ timeoutMs: 1000, maxAttempts: 1 }), 'SOURCE_UNREACHABLE');
    expect(fault.message).toMatch(/sent only \d+ bytes/);
  });

  test('larger than the limit is refused, announced or not, without a retry', async () => {
    const announced = await faultOf(vendor.fetch({ maxBytes: 1000 }), 'SOURCE_DOCUMENT_INVALID');
    expect(announced.details).toMatchObject({ document: NAME, maxBytes: 1000, limit: 'the limit of a document' });
    vendor.server.fail(PATH, { kind: 'stall', afterBytes: 1, times: 1 });
    await faultOf(vendor.fetch({ maxBytes: 1000 }), 'SOURCE_DOCUMENT_INVALID');
    vendor.server.fail(PATH, { kind: 'chunked', pieceBytes: 700 });
    await faultOf(vendor.fetch({ maxBytes: 1000 }), 'SOURCE_DOCUMENT_INVALID');
    expect(vendor.server.requests()).toHaveLength(3);
  });

  test('a download that is given up does not hold its connection', async () => {
    await using other = await startVendorServer(vendor.directory);
    other.fail(PATH, { kind: 'stall', afterBytes: 1 });
    const work = vendor.fetch({ baseUrl: other.url, timeoutMs: 10_000, maxBytes: 1000 });
    await faultOf(work, 'SOURCE_DOCUMENT_INVALID');
    expect(other.requests()).toHaveLength(1);
    await vi.waitFor(async () => expect(await other.openConnections()).toBe(0), PATIENCE_MS);
  });

  test('redirects are followed, a loop and another scheme are not', async () => {
    vendor.server.fail('moved.zip', { kind: 'redirect', location: `/${PATH}` });
    await using document = await fetchPath('moved.zip');
    expect(document).toMatchObject({ sha256: vendor.sha256, name: 'moved.zip' });
    vendor.server.fail('loop.zip', { kind: 'redirect', location: '/loop.zip', status: 308 });
    expect((await faultOf(fetchPath('loop.zip'), 'SOURCE_UNREACHABLE')).message).toContain('more than 5 times');
    expect(vendor.server.requests('loop.zip')).toHaveLength(6);
    vendor.server.fail('local.zip', { kind: 'redirect', location: 'file:///etc/hostname' });
    expect((await faultOf(fetchPath('local.zip'), 'SOURCE_UNREACHABLE')).message).toContain('file://');
    expect(vendor.server.requests('local.zip')).toHaveLength(1);
  });

  test('a redirect to another host does not carry credentials', async () => {
    await using other = await startVendorServer(vendor.directory);
    vendor.server.fail('moved.zip', { kind: 'redirect', location: new URL(PATH, other.url).href });
    const headers = { authorization: 'Bearer secret', 'x-trace': 'kept' };
    await using document = await fetchPath('moved.zip', { headers });
    expect(document.sha256).toBe(vendor.sha256);
    expect(vendor.server.requests()[0].headers.authorization).toBe('Bearer secret');
    expect(other.requests()[0].headers).toMatchObject({ 'x-trace': 'kept' });
    expect(other.requests()[0].headers.authorization).toBeUndefined();
  });

  test('a server that is not there is SOURCE_UNREACHABLE, credentials in the address are never shown', async () => {
    const baseUrl = new URL('http://user:secret@127.0.0.1:1/base?token=hidden');
    const fault = await faultOf(vendor.fetch({ baseUrl, maxAttempts: 2 }), 'SOURCE_UNREACHABLE');
    expect(fault.details).toMatchObject({ document: NAME, attempts: 2 });
    expect(`${fault.message} ${JSON.stringify(fault.details)} ${fault.stack}`).not.toMatch(/secret|hidden|user:/);
  });

  test('user and password of the address are sent, not kept', async () => {
    const baseUrl = new URL(vendor.server.url);
    baseUrl.username = 'someone';
    baseUrl.password = 'p%40ss';
    await using document = await vendor.fetch({ baseUrl });
    const sent = `Basic ${Buffer.from('someone:p@ss').toString('base64')}`;
    expect(vendor.server.requests().map((each) => each.headers.authorization)).toEqual([sent, sent]);
    expect(document.url).toBe(new URL(PATH, vendor.server.url).href);
  });

  test('aborting ends the download and throws the reason', async () => {
    vendor.server.fail(PATH, { kind: 'stall', afterBytes: 1000 });
    const abort = new AbortController();
    const stalls = Promise.withResolvers<void>();
    const onProgress = (bytes: number) => void (bytes === 1000 && stalls.resolve());
    const work = vendor.fetch({ signal: abort.signal, timeoutMs: 60_000, maxAttempts: 1, onProgress });
    await stalls.promise;
    abort.abort(new Error('operator'));
    await expect(work).rejects.toThrow('operator');
    vendor.server.reset();
    vendor.server.fail(PATH, { kind: 'status', status: 500 });
    const waiting = new AbortController();
    const waits = Promise.withResolvers<void>();
    const log = { warn: () => waits.resolve() } as unknown as Logger;
    const second = vendor.fetch({ signal: waiting.signal, backoff: { firstMs: 60_000, maxMs: 60_000 }, log });
    await waits.promise;
    waiting.abort(new Error('while waiting'));
    await expect(second).rejects.toThrow('while waiting');
  });

  test("a spool folder that cannot be written is our fault, not the source's", async () => {
    await writeFile(join(vendor.folder, 'a-file'), '');
    await faultOf(vendor.fetch({ spoolDir: join(vendor.folder, 'a-file', 'spool') }), 'DISK_UNUSABLE');
    expect(vendor.server.requests()).toHaveLength(1);
  });
});

describe('a checksum beside the document', () => {
  test('missing', async () => {
    vendor.server.fail(CHECKSUM_PATH, { kind: 'status', status: 404 });
    const fault = await faultOf(vendor.fetch(), 'SOURCE_DOCUMENT_INVALID');
    expect(fault.details).toMatchObject({
      document: NAME,
      checksumUrl: new URL(CHECKSUM_PATH, vendor.server.url).href,
    });
  });

  test.each(['', '<html>maintenance</html>', 'abc123  x.zip', `${'0'.repeat(63)}g  ${NAME}`])(
    'that is no checksum (%j)',
    async (body) => {
      vendor.server.fail(CHECKSUM_PATH, { kind: 'body', body });
      expect((await faultOf(vendor.fetch(), 'SOURCE_DOCUMENT_INVALID')).details.document).toBe(NAME);
    },
  );

  test('wrong: fetched afresh past caches, then refused with both digests', async () => {
    vendor.server.fail(CHECKSUM_PATH, { kind: 'body', body: `${'0'.repeat(64)}  ${NAME}\n` });
    const fault = await faultOf(vendor.fetch({ maxAttempts: 10 }), 'SOURCE_CHECKSUM_MISMATCH');
    expect(fault.details).toMatchObject({
      document: NAME,
      expected: '0'.repeat(64),
      actual: vendor.sha256,
      attempts: 3,
    });
    expect(vendor.server.requests(PATH)).toHaveLength(3);
    expect(vendor.server.requests(PATH)[1].headers['cache-control']).toBe('no-cache');
    await faultOf(vendor.fetch({ maxAttempts: 2 }), 'SOURCE_CHECKSUM_MISMATCH');
    expect(vendor.server.requests(PATH)).toHaveLength(3 + 2);
  });

  test('wrong once, because the vendor is republishing: the second download is taken', async () => {
    vendor.server.fail(PATH, { kind: 'body', body: Buffer.concat([vendor.zip, Buffer.from('x')]), times: 1 });
    await using document = await vendor.fetch();
    expect(document).toMatchObject({ sha256: vendor.sha256, attempts: 2 });
    expect(await vendor.spooled()).toHaveLength(1);
  });

  test('mismatches and failures share one budget of attempts', async () => {
    vendor.server.fail(PATH, { kind: 'status', status: 500, times: 1 });
    vendor.server.fail(PATH, { kind: 'body', body: 'other', times: 1 });
    vendor.server.fail(PATH, { kind: 'status', status: 500 });
    await faultOf(vendor.fetch({ maxAttempts: 3 }), 'SOURCE_UNREACHABLE');
    expect(vendor.server.requests(PATH)).toHaveLength(3);
  });

  test('for another file', async () => {
    vendor.server.fail(CHECKSUM_PATH, { kind: 'body', body: `${vendor.sha256}  BTCUSDT-trades-2024-01-02.zip\n` });
    expect((await faultOf(vendor.fetch(), 'SOURCE_CHECKSUM_MISMATCH')).message).toContain('2024-01-02');
  });

  test.each([
    ['bare', (sum: string) => sum],
    ['upper case, CRLF', (sum: string) => `${sum.toUpperCase()}  ${NAME}\r\n`],
    ['binary mark', (sum: string) => `${sum} *${NAME}\n`],
    ['BOM', (sum: string) => `\uFEFF${sum}  ${NAME}`],
  ])('in another dress is read: %s', async (_name, dress) => {
    vendor.server.fail(CHECKSUM_PATH, { kind: 'body', body: dress(vendor.sha256) });
    await using document = await vendor.fetch();
    expect(document.checksum).toBe(vendor.sha256);
  });

  test('is retried as the document is, and bounded in size', async () => {
    vendor.server.fail(CHECKSUM_PATH, { kind: 'status', status: 502, times: 1 });
    vendor.server.fail(CHECKSUM_PATH, { kind: 'cut', afterBytes: 10, times: 1 });
    await using document = await vendor.fetch();
    expect(document.checksum).toBe(vendor.sha256);
    vendor.server.fail(CHECKSUM_PATH, { kind: 'body', body: 'x'.repeat(100_000) });
    expect((await faultOf(vendor.fetch(), 'SOURCE_DOCUMENT_INVALID')).details.document).toBe(NAME);
    await faultOf(
      fetchText({ url: new URL(PATH, vendor.server.url), ...LIMITS, maxBytes: 100 }),
      'SOURCE_DOCUMENT_INVALID',
    );
  });
});
