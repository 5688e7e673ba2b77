/** Mirrors of a lake behind a server that lies, changes under the run, stalls or fails: the copy never holds what it sent. */
import { randomBytes } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, test } from 'vitest';
import { Downloads } from '../../shared/mirror/downloads.ts';
import { BrokenAnswer, type Source } from '../../shared/mirror/source.ts';
import { manifestBytes } from '../../shared/proof-log/signed-manifest.ts';
import { fileManifest, filesIn, manifestPathOf, notePathOf, sha256Of } from '../support/lake-folder.ts';
import {
  asked,
  contents,
  copy,
  dir,
  FIRST,
  faultOf,
  isSame,
  keep,
  lake,
  rowsOf,
  run,
  SECOND,
  server,
  THIRD,
  TRADES,
  useLake,
  write,
} from '../support/mirrored-lake.ts';

useLake();

describe('what a server sends is not trusted', () => {
  test('other bytes are asked for twice, named, and never get the name of the file', async () => {
    const path = rowsOf(SECOND);
    const lie = randomBytes(1000);
    server.faultOf = (request) => (request.path === path ? { lie } : undefined);
    const [kind, message] = (await faultOf())!;
    expect(kind).toBe('altered');
    for (const part of [path, sha256Of(lie), sha256Of(contents.get(SECOND)!)]) expect(message).toContain(part);
    expect(asked(path)).toHaveLength(2);
    expect(filesIn(copy)).not.toContain(path);
    // The other files are there, the root manifest is not.
    expect(filesIn(copy)).toContain(rowsOf(FIRST));
    expect(filesIn(copy)).not.toContain('_manifest.json');
  });

  test.each([
    ['a file without end', { lie: Buffer.alloc(65_536), isEndless: true }, /more than 1000 bytes/],
    ['a larger file', { lie: Buffer.alloc(1001) }, /1001 bytes/],
    ['a smaller file', { lie: Buffer.alloc(999) }, /999 bytes/],
    ['packed bytes', { headers: { 'Content-Encoding': 'gzip' } }, /is sent as gzip/],
  ])('%s', async (_, fault, message) => {
    server.faultOf = (request) => (request.path === rowsOf(SECOND) ? fault : undefined);
    expect((await faultOf())?.[1]).toMatch(message);
    expect(filesIn(copy)).not.toContain(rowsOf(SECOND));
  });

  test('another range than the one that was asked for', async () => {
    const path = rowsOf(FIRST);
    await keep(path, contents.get(FIRST)!, 1000);
    const headers = { 'Content-Range': 'bytes 1-299999/300000' };
    server.faultOf = (request) => (request.path === path ? { headers } : undefined);
    expect(await faultOf()).toEqual(['refused', expect.stringContaining('another range')]);
  });

  test('a root manifest without end', async () => {
    server.faultOf = () => ({ lie: Buffer.alloc(1 << 20, 32), isEndless: true });
    expect(await faultOf()).toEqual(['manifest', expect.stringContaining('_manifest.json has more than')]);
  });

  test.each<[string, (root: ReturnType<typeof JSON.parse>) => void, RegExp]>([
    ['a table outside the folder', ({ tables }) => (tables[0].table = '../native'), /tables\[0\] has an invalid table/],
    ['a mode of its own', ({ tables }) => (tables[0].table = 'x/y'), /tables\[0\] has an invalid table/],
    ['a table twice', ({ tables }) => tables.splice(1, 0, tables[0]), /tables\[1\]\.table is not sorted/],
    ['tables that are not sorted', ({ tables }) => tables.reverse(), /tables\[1\]\.table is not sorted/],
    ['a size below zero', ({ tables }) => (tables[0].bytes = -1), /tables\[0\] has an invalid bytes/],
    ['a version that is none', ({ tables }) => (tables[0].version = '0'), /tables\[0\] has an invalid version/],
    ['a digest that is a path', ({ tables }) => (tables[0].files_sha256 = '../x'), /invalid files_sha256/],
    ['a log of gigabytes', ({ tables }) => (tables[0].log_bytes = 2 ** 40), /a log of more than/],
    ['a million commits', ({ tables }) => (tables[0].version = 1e6), /more than 1000 commits/],
    ['a checkpoint of later', ({ tables }) => (tables[0].log_checkpoint = 9), /invalid log_checkpoint/],
    ['another release', (root) => (root.lake_version = 1), /lake_version is 1, and must be 2/],
    ['a change that is none', (root) => (root.change = 'x'), /change must be/],
    ['no list of tables', (root) => (root.tables = {}), /tables must be a list/],
  ])('%s', async (_, spoil, message) => {
    const root = JSON.parse(readFileSync(join(lake, '_manifest.json'), 'utf8'));
    spoil(root);
    writeFileSync(join(lake, '_manifest.json'), JSON.stringify(root));
    expect(await faultOf()).toEqual(['manifest', expect.stringMatching(message)]);
    expect(filesIn(dir).filter((path) => !path.startsWith('lake/'))).toEqual(['copy/_mirror.json']);
  });

  const LOG = join(TRADES, 'native/_delta_log/00000000000000000000.json');
  const other = `date=2024-01-02/2-${'a'.repeat(64)}.parquet`;

  test.each<[string, (log: string) => string, RegExp]>([
    ['without a file of its note', (log) => log.replace(/\n{"add".*/, ''), /has not the \d+ bytes of its note/],
    [
      'with another file',
      (log) => log.replace(/date=2024-01-02[^"]*/, other),
      /have the sha256 \w+, and \w+ in its note/,
    ],
    [
      'with a path that climbs',
      (log) => log.replace(/date=2024-01-02/, '../../../../x.y'),
      /which no writer of a lake adds/,
    ],
    ['with another size', (log) => log.replace('"size":1000', '"size":9000'), /bytes, and \d+ in its note/],
    ['without a size', (log) => log.replace('"size":1000', '"size":-100'), /has no size of/],
    ['of another change', (log) => log.replace('"version":1', '"version":9'), /is of change 9, and its note of 1/],
    ['that is no JSON', (log) => log.replace('{"add"', '?"add"'), /line 2 is not a JSON object/],
  ])('a log %s is refused', async (_, spoil, message) => {
    const log = readFileSync(join(lake, LOG), 'utf8');
    writeFileSync(join(lake, LOG), spoil(log));
    expect(await faultOf()).toEqual(['manifest', expect.stringMatching(message)]);
    expect(filesIn(copy).filter((path) => path.startsWith(TRADES))).toEqual([]);
  });

  test('a log that is longer than its note says is not read to its end', async () => {
    server.faultOf = ({ path }) => (path === LOG ? { lie: Buffer.alloc(1 << 16, 32), isEndless: true } : undefined);
    expect(await faultOf()).toEqual(['manifest', expect.stringMatching(/has more than \d+ bytes/)]);
  });

  test.each([
    ['bytes', { bytes: 1 }],
    ['sha256', { sha256: 'a'.repeat(64) }],
    ['dataset', { dataset: 'x' }],
    ['files[0].name', { files: [{ name: 'x' }] }],
  ])('a manifest whose %s is not that of the file', async (member, wrong) => {
    const rows = contents.get(SECOND)!;
    const manifest = manifestBytes({ ...JSON.parse(fileManifest(SECOND, rows).toString()), ...wrong });
    writeFileSync(join(lake, manifestPathOf(SECOND, rows)), manifest);
    expect(await faultOf()).toEqual([
      'manifest',
      expect.stringContaining(`${manifestPathOf(SECOND, rows)}: ${member} is`),
    ]);
    expect(filesIn(copy)).not.toContain(rowsOf(SECOND));
    expect(asked(rowsOf(SECOND))).toEqual([]);
  });

  test('a version that is older than the one of the mirror', async () => {
    const root = readFileSync(join(lake, '_manifest.json'));
    contents.delete(SECOND);
    await write();
    await run();
    writeFileSync(join(lake, '_manifest.json'), root);
    expect(await faultOf()).toEqual([
      'manifest',
      expect.stringContaining("version 0 of exchange_a_spot_trades/native, which is older than the mirror's version 1"),
    ]);
  });

  test('notes lie beside the tables', async () => {
    await run();
    expect(filesIn(copy)).toContain(notePathOf(`${TRADES}/native`, 0));
  });

  test('a file URL with # or ? before the rest of its folder was taken for the folder before it', async () => {
    for (const rest of ['#1', '?1']) {
      const fault = await faultOf({ from: `${pathToFileURL(lake).href}${rest}` });
      expect(fault).toEqual(['usage', expect.stringContaining('without user, query or fragment')]);
    }
    // As it is written.
    await run({ from: pathToFileURL(lake).href });
    isSame();
  });

  test('the key goes to no other host, and no redirect leads to another kind of URL', async () => {
    const keys: unknown[] = [];
    const other = createServer((request, response) => {
      keys.push(request.headers['x-api-key']);
      response.end(readFileSync(join(lake, decodeURIComponent(request.url!))));
    });
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    const elsewhere = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
    const to = (Location: string) => ({ status: 307, headers: { Location } });
    server.faultOf = ({ path }) => (path.endsWith('.parquet') ? to(`${elsewhere}/${path}`) : undefined);
    await run({ key: 'secret' });
    isSame();
    expect(keys).toEqual([undefined, undefined, undefined]);
    expect(new Set(server.seen.map(({ headers }) => headers['x-api-key']))).toEqual(new Set(['secret']));
    for (const location of [pathToFileURL(lake).href, '/again']) {
      server.faultOf = () => to(location);
      expect((await faultOf())?.[0]).toBe('refused');
    }
    other.closeAllConnections();
    other.close();
  });
});

describe('a server that fails', () => {
  test('one that drips, and is never silent, is left after a stated time', async () => {
    const dripping = createServer((_, response) => {
      const timer = setInterval(() => response.write('{'), 2);
      response.on('close', () => clearInterval(timer));
    });
    await new Promise<void>((resolve) => dripping.listen(0, '127.0.0.1', resolve));
    try {
      const from = `http://127.0.0.1:${(dripping.address() as AddressInfo).port}/`;
      const stopped = AbortSignal.timeout(2000);
      expect(await faultOf({ from, graceMs: 50, signal: stopped })).toEqual([
        'unreachable',
        expect.stringMatching(/sent only \d+ bytes in \d+ ms$/),
      ]);
    } finally {
      dripping.closeAllConnections();
      dripping.close();
    }
  });

  test('one that stalls is left after a while, with a clear error', async () => {
    server.faultOf = (request) => (request.path === rowsOf(FIRST) ? { stallAfter: 10 } : undefined);
    // Long enough for the answers of a busy machine that do not stall.
    const fault = await faultOf({ stallMs: 500, attempts: 2 });
    expect(fault).toEqual(['unreachable', expect.stringMatching(/\.parquet broke off: no bytes came for 500 ms/)]);
  });

  test('one that never answers', async () => {
    server.onRequest = () => new Promise(() => {});
    expect((await faultOf({ stallMs: 50, attempts: 2 }))?.[1]).toContain('does not answer');
    expect(server.seen).toHaveLength(2);
  });

  test('one that is overloaded is asked again after the pause that it names', async () => {
    server.faultOf = () => (server.seen.length === 1 ? { status: 429, headers: { 'Retry-After': '1' } } : undefined);
    const startedAt = performance.now();
    await run();
    expect(performance.now() - startedAt).toBeGreaterThanOrEqual(990);
    server.faultOf = () => ({ status: 503, headers: { 'Retry-After': '3600' } });
    server.seen.length = 0;
    expect((await faultOf())?.[0]).toBe('unreachable');
    expect(server.seen).toHaveLength(1);
  });

  test('one that refuses is quoted', async () => {
    const body = JSON.stringify({ code: 'QUERY_RIGHTS_INGEST_ONLY', detail: 'may not be served' });
    server.faultOf = (request) => (request.path === rowsOf(THIRD) ? { status: 409, body } : undefined);
    expect(await faultOf()).toEqual([
      'refused',
      expect.stringContaining('answered 409: QUERY_RIGHTS_INGEST_ONLY: may not be served'),
    ]);
    expect(asked(rowsOf(THIRD))).toHaveLength(1);
  });

  test('a version that was replaced while it was downloaded is had once the root manifest says so', async () => {
    let isReplaced = false;
    const first = rowsOf(FIRST);
    server.onRequest = async ({ path }) => {
      if (path !== first || isReplaced) return;
      isReplaced = true;
      contents.set(FIRST, randomBytes(400));
      contents.delete(SECOND);
      await write();
    };
    expect(await run()).toMatchObject({ files: 2, change: 2 });
    isSame();
  });
});

test('a large file may break off more often than attempts may fail, as long as each brings some of it', async () => {
  const piece = 64 * 1024;
  const bytes = randomBytes(6 * piece);
  let opened = 0;
  const open = async (_path: string, { from = 0 } = {}) => {
    opened++;
    const body = async function* () {
      yield bytes.subarray(from, from + piece);
      throw new BrokenAnswer('the connection ended');
    };
    return { start: from, total: bytes.length, etag: undefined, body: body() };
  };
  const source = { requests: 0, open } as unknown as Source;
  const downloads = new Downloads({ source, partial: dir, attempts: 2, pauseMs: 1, onBytes: () => {} });
  const partial = await downloads.file({ path: 'rows', bytes: bytes.length, sha256: sha256Of(bytes) });
  expect(readFileSync(partial).equals(bytes)).toBe(true);
  expect(opened).toBe(6);
});
