/** A vendor's documents in a folder, the addresses they are looked for at, and the spool of downloads. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, readdir, readFile, rename, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, test, vi } from 'vitest';
import { cleanSpool, fetchText } from '../../pipelines/sources/documents/fetch.ts';
import { backoffMs, retryAfterMs, withAttempts } from '../../pipelines/sources/documents/http.ts';
import { documentName, isFollowed, localBytes, urlBelow } from '../../pipelines/sources/documents/locations.ts';
import { documentFor } from '../../pipelines/sources/exchange_a/source.ts';
import { faultOf } from '../support/faults.ts';
import { givenData } from '../support/given.ts';
import { CHECKSUM_PATH, DAY, type FetchTrades, LIMITS, NAME, PATH, SYMBOL, vendorDay } from '../support/vendor-day.ts';

const SHARED_DATA = new URL('../../../shared/data/exchange_a/', import.meta.url);

const vendor = vendorDay();

describe('a document in a folder', () => {
  const local = (directory: string, more: Partial<FetchTrades> = {}) =>
    vendor.fetch({ baseUrl: pathToFileURL(directory), ...more });

  test('is read in place and left there', async () => {
    const path = join(vendor.directory, PATH);
    const document = await local(vendor.directory);
    expect(document).toMatchObject({ path, sha256: vendor.sha256, bytes: vendor.zip.length, headers: {} });
    expect(await vendor.spooled()).toEqual([]);
    await document[Symbol.asyncDispose]();
    expect(existsSync(path)).toBe(true);
    expect(await fetchText({ url: pathToFileURL(join(vendor.directory, CHECKSUM_PATH)), ...LIMITS })).toContain(
      vendor.sha256,
    );
  });

  test('that nobody waits for any more ends by its reason: Ctrl-C before it was read ended the process', async () => {
    const signal = AbortSignal.abort(new Error('told to stop'));
    await expect(local(vendor.directory, { signal })).rejects.toThrow('told to stop');
  });

  test('a missing file, and a missing folder: the first one that is not there is named', async () => {
    const noFile = await faultOf(local(vendor.directory, { period: '2023-01-01' }), 'SOURCE_NOT_FOUND');
    expect(noFile.details).toMatchObject({ document: 'BTCUSDT-trades-2023-01-01.zip', missing: 'file' });
    const noSymbol = await faultOf(local(vendor.directory, { symbol: 'NONE' }), 'SOURCE_NOT_FOUND');
    const missingPath = join(vendor.directory, 'spot/daily/trades/NONE');
    expect(noSymbol.details).toMatchObject({ missing: 'directory', missingPath });
    expect(noSymbol.message).toContain(missingPath);
    const noBase = await faultOf(local(join(vendor.folder, 'nowhere')), 'SOURCE_NOT_FOUND');
    expect(noBase.details).toMatchObject({
      document: NAME,
      missing: 'directory',
      missingPath: join(vendor.folder, 'nowhere'),
    });
  });

  test('a missing checksum, a wrong one, a document too large, a folder in its place', async () => {
    const directory = join(vendor.folder, 'local');
    const path = join(directory, PATH);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, vendor.zip);
    expect((await faultOf(local(directory), 'SOURCE_DOCUMENT_INVALID')).details.document).toBe(NAME);
    await writeFile(`${path}.CHECKSUM`, `${'0'.repeat(64)}  ${NAME}\n`);
    expect((await faultOf(local(directory), 'SOURCE_CHECKSUM_MISMATCH')).details).toMatchObject({
      attempts: 1,
      actual: vendor.sha256,
    });
    await faultOf(local(directory, { maxBytes: 100 }), 'SOURCE_DOCUMENT_INVALID');
    await rm(path);
    await mkdir(path);
    expect((await faultOf(local(directory), 'SOURCE_NOT_FOUND')).message).toContain('is not a file');
  });

  // The checksum file was a link to the file of the API key, whose content stood in the error and in the catalog.
  test.each([
    ['the checksum file', CHECKSUM_PATH],
    ['the document', PATH],
    ['a folder on the way', 'spot/daily'],
    ['the first folder', 'spot'],
  ])('is not looked for behind a link that leads out of it: %s', async (_what, linked) => {
    const directory = join(vendor.folder, `linked-${linked.replaceAll('/', '-')}`);
    const outside = join(vendor.folder, `outside-${linked.replaceAll('/', '-')}`);
    for (const [path, content] of [
      [PATH, vendor.zip],
      [CHECKSUM_PATH, `${vendor.sha256}  ${NAME}\n`],
    ] as const) {
      await mkdir(dirname(join(directory, path)), { recursive: true });
      await writeFile(join(directory, path), content);
    }
    expect(await local(directory)).toMatchObject({ sha256: vendor.sha256 });
    await rename(join(directory, linked), outside);
    if (linked === CHECKSUM_PATH) await writeFile(outside, 'SVC_INTERNAL_API_KEY=secret-of-the-service\n');
    await symlink(outside, join(directory, linked));
    const fault = await faultOf(local(directory), 'SOURCE_REFUSED');
    expect(fault.message).toContain(directory);
    expect(JSON.stringify([fault.message, fault.details, String(fault.cause)])).not.toMatch(/secret-of|outside-/);
    // A link that stays within the folder is the vendor's own affair; so is what the folder itself is.
    await rm(join(directory, linked));
    await rename(outside, join(directory, 'within'));
    if (linked === CHECKSUM_PATH) await writeFile(join(directory, 'within'), `${vendor.sha256}  ${NAME}\n`);
    await symlink(join(directory, 'within'), join(directory, linked));
    expect(await local(directory)).toMatchObject({ sha256: vendor.sha256 });
    await symlink(directory, `${directory}-by-name`);
    expect(await local(`${directory}-by-name`)).toMatchObject({ sha256: vendor.sha256 });
  });

  test('of no named base stays in its own folder', async () => {
    const folder = join(vendor.folder, 'pages');
    await mkdir(folder);
    await writeFile(join(vendor.folder, 'secret'), 'secret-of-the-service');
    await symlink('../secret', join(folder, '2024-01-02.csv'));
    const limits = { maxBytes: 100, limitName: 'a limit' };
    const url = pathToFileURL(join(folder, '2024-01-02.csv'));
    await faultOf(localBytes({ url, ...limits }), 'SOURCE_REFUSED');
    await faultOf(fetchText({ url, ...LIMITS }), 'SOURCE_REFUSED');
    expect(String(await localBytes({ url, root: pathToFileURL(vendor.folder), ...limits }))).toContain('secret-of');
  });

  test('a checksum file that is none is not repeated in the error', async () => {
    const directory = join(vendor.folder, 'no-checksum');
    await mkdir(dirname(join(directory, PATH)), { recursive: true });
    await writeFile(join(directory, PATH), vendor.zip);
    for (const text of ['secret-of-the-service', `${'0'.repeat(64)} secret-of the-service.zip`]) {
      await writeFile(join(directory, CHECKSUM_PATH), text);
      const { message, details } = await local(directory).then(
        () => expect.fail('it was taken'),
        (error) => error,
      );
      expect(JSON.stringify([message, details])).not.toContain('secret-of');
      expect(message).toContain(`(${text.length} characters)`);
    }
  });

  test('replaced while it is decoded, it is not trusted', async () => {
    const directory = join(vendor.folder, 'replaced');
    const path = join(directory, PATH);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, vendor.zip);
    await writeFile(`${path}.CHECKSUM`, `${vendor.sha256}  ${NAME}\n`);
    const stamp = (file: string, seconds: number) => utimes(file, seconds, seconds);
    await stamp(path, 100);
    await using document = await local(directory);
    const changed = expect.objectContaining({ code: 'SOURCE_CHECKSUM_MISMATCH' });
    await document.assertUnchanged();
    await stamp(path, 200);
    await expect(document.assertUnchanged()).rejects.toEqual(changed);
    await stamp(path, 100);
    await document.assertUnchanged();
    await writeFile(path, vendor.zip.subarray(1));
    await stamp(path, 100);
    await expect(document.assertUnchanged()).rejects.toEqual(changed);
    // Another file of the same size and time in its place.
    await writeFile(path, vendor.zip);
    await writeFile(`${path}.new`, Buffer.alloc(vendor.zip.length));
    await stamp(`${path}.new`, 100);
    await rename(`${path}.new`, path);
    await expect(document.assertUnchanged()).rejects.toEqual(changed);
    await rm(path);
    await expect(document.assertUnchanged()).rejects.toMatchObject({ code: 'SOURCE_NOT_FOUND' });
  });

  givenData('exchange_a').test('the real archive: whole days are taken, the truncated month is refused', async () => {
    await using real = await vendor.fetch({ baseUrl: SHARED_DATA, period: '2019-04-01' });
    expect(real.bytes).toBe(3_295_968);
    const broken = 'BTCUSDT-trades-2019-04.zip';
    const target = join(vendor.folder, 'broken/spot/monthly/trades/BTCUSDT', broken);
    await mkdir(dirname(target), { recursive: true });
    for (const suffix of ['', '.CHECKSUM'])
      await copyFile(new URL(`broken/${broken}${suffix}`, SHARED_DATA), `${target}${suffix}`);
    const baseUrl = pathToFileURL(join(vendor.folder, 'broken'));
    const fault = await faultOf(vendor.fetch({ baseUrl, period: '2019-04' }), 'SOURCE_CHECKSUM_MISMATCH');
    expect(fault.details).toMatchObject({ document: broken, bytes: 3_375_104 });
  });
});

describe('addresses', () => {
  test('of days and months, below bases of any kind', () => {
    const day = documentFor(new URL('https://archive.example/data'), SYMBOL, '2024-02-29');
    expect(day.url.href).toBe('https://archive.example/data/spot/daily/trades/BTCUSDT/BTCUSDT-trades-2024-02-29.zip');
    expect(day.checksumUrl.href).toBe(`${day.url.href}.CHECKSUM`);
    expect(day).toMatchObject({ granularity: 'daily', memberName: 'BTCUSDT-trades-2024-02-29.csv' });
    expect([day.startMs, day.endMs]).toEqual([Date.UTC(2024, 1, 29), Date.UTC(2024, 2, 1)]);
    const month = documentFor(new URL('https://archive.example/data/?sig=s'), SYMBOL, '2024-12');
    expect(month.url.href).toBe(
      'https://archive.example/data/spot/monthly/trades/BTCUSDT/BTCUSDT-trades-2024-12.zip?sig=s',
    );
    expect(month.checksumUrl.pathname).toBe('/data/spot/monthly/trades/BTCUSDT/BTCUSDT-trades-2024-12.zip.CHECKSUM');
    expect([month.startMs, month.endMs]).toEqual([Date.UTC(2024, 11, 1), Date.UTC(2025, 0, 1)]);
  });

  test.each(['2024-02-30', '2023-02-29', '2024-13', '2024', '2024-1-1', '', '2024-01-01x', '../../etc'])(
    'a period that is none is refused: %j',
    (period) => {
      expect(() => documentFor(vendor.server.url, SYMBOL, period)).toThrow(expect.objectContaining({ code: 'USAGE' }));
    },
  );

  test('no symbol escapes the base', () => {
    for (const symbol of ['..', '.', '', '../../etc', 'a/b', 'a\\b', 'a\0'])
      expect(() => documentFor(vendor.server.url, symbol, DAY)).toThrow(
        expect.objectContaining({ code: 'CONFIGURATION_INVALID' }),
      );
    for (const symbol of ['%2e%2e', 'a?b', 'a#b', 'é %2f', '...', '..%2f..']) {
      const { url } = documentFor(new URL('https://archive.example/data/'), symbol, DAY);
      expect(url.pathname.startsWith('/data/spot/daily/trades/')).toBe(true);
      expect(url.pathname.split('/')).toHaveLength(7);
      expect(url.search + url.hash).toBe('');
      expect(documentName(url)).toBe(`${symbol}-trades-${DAY}.zip`);
    }
    expect(urlBelow(new URL('file:///base'), 'x y').href).toBe('file:///base/x%20y');
  });

  test('only http, https and file are read', async () => {
    await faultOf(vendor.fetch({ baseUrl: new URL('ftp://127.0.0.1/') }), 'CONFIGURATION_INVALID');
  });
});

describe('the spool', () => {
  test('loses the leftovers of dead processes and keeps downloads under way', async () => {
    await using document = await vendor.fetch();
    const [own] = await readdir(vendor.spoolDir);
    const [, host, pid, started] = own.split('~');
    expect(pid).toBe(String(process.pid));
    const file = async (name: string, ageDays = 0) => {
      await writeFile(join(vendor.spoolDir, name), 'x');
      const at = Date.now() / 1000 - ageDays * 86_400;
      await utimes(join(vendor.spoolDir, name), at, at);
      return name;
    };
    expect(host).toBe(encodeURIComponent(hostname()));
    const dead = await file(`spool~${host}~4194304~1~a.part`);
    // The same pid, given to another process since: only told apart where the system knows when a process started.
    const reused = await file(`spool~${host}~${pid}~1~b.part`);
    const foreignOld = await file('spool~elsewhere~1~1~c.part', 4);
    const foreignNew = await file('spool~elsewhere~1~1~d.part', 1);
    const notOurs = await file('notes.txt', 100);
    const removed = started === '' ? [dead, foreignOld] : [dead, reused, foreignOld];
    expect(await cleanSpool(vendor.spoolDir)).toBe(removed.length);
    const kept = await readdir(vendor.spoolDir);
    expect(kept).toEqual(expect.arrayContaining([own, foreignNew, notOurs]));
    for (const name of removed) expect(kept).not.toContain(name);
    expect(
      createHash('sha256')
        .update(await readFile(document.path))
        .digest('hex'),
    ).toBe(vendor.sha256);
    for (const name of kept) if (name !== own) await rm(join(vendor.spoolDir, name));
  });

  test('that does not exist is clean', async () => {
    expect(await cleanSpool(join(vendor.folder, 'never'))).toBe(0);
  });
});

test('nothing is tried for a caller who has gone', async () => {
  const attempt = vi.fn(async () => 'done');
  const signal = AbortSignal.abort(new Error('gone'));
  await expect(withAttempts({ maxAttempts: 3, signal }, attempt)).rejects.toThrow('gone');
  expect(attempt).not.toHaveBeenCalled();
});

test('waits grow, stay below their limit and spread', () => {
  const waits = Array.from({ length: 200 }, () => backoffMs(3, { firstMs: 100, maxMs: 1000 }));
  expect(Math.min(...waits)).toBeGreaterThanOrEqual(200);
  expect(Math.max(...waits)).toBeLessThanOrEqual(600);
  expect(new Set(waits).size).toBeGreaterThan(100);
  expect(backoffMs(50, { firstMs: 100, maxMs: 1000 })).toBeLessThanOrEqual(1500);
  expect(retryAfterMs('7')).toBe(7000);
  expect(retryAfterMs(new Date(Date.now() + 60_000).toUTCString())).toBeGreaterThan(50_000);
  expect(retryAfterMs('soon')).toBeUndefined();
});

test.each([
  ['https://a.example/', 'https://b.example/x', true],
  ['http://a.example/', 'http://b.example/x', true],
  ['http://a.example/', 'https://b.example/x', true],
  ['https://a.example/', 'http://a.example/x', false],
  ['https://a.example/', 'file:///etc/passwd', false],
  ['http://a.example/', 'ftp://a.example/x', false],
])('from %s an address %s is followed: %s', (from, to, followed) => {
  expect(isFollowed(new URL(from), new URL(to))).toBe(followed);
});
