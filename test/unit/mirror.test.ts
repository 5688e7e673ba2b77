/** Mirrors of a lake's folder over HTTP: whatever changes, breaks or lies, they hold whole files of the source and nothing else. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { cpSync, existsSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import { mirror as ofClient } from '../../client/mirror/index.ts';
import { commitName, readSnapshot } from '../../shared/mirror/delta-log.ts';
import { MirrorFolder } from '../../shared/mirror/folder.ts';
import { generateSigner } from '../../shared/proof-log/note.ts';
import {
  digestsIn,
  type FileServer,
  fileManifest,
  filesIn,
  manifestPathOf,
  partialsIn,
  placeOf,
  type SeenRequest,
  sha256Of,
} from '../support/lake-folder.ts';
import {
  asked,
  change,
  contents,
  copy,
  dir,
  ETF,
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
import { runs, SEED } from '../support/seed.ts';

useLake();

test('the first run copies all, and one request says that nothing changed', async () => {
  expect(await run()).toMatchObject({
    files: 3,
    new: 3,
    replaced: 0,
    removed: 0,
    unchanged: 0,
    requests: 9,
    change: 1,
  });
  isSame();
  expect(existsSync(join(copy, '_partial'))).toBe(false);
  server.seen.length = 0;
  expect(await run()).toMatchObject({ files: 3, new: 0, unchanged: 3, requests: 1, change: 1, bytes: 0 });
  expect(server.seen).toHaveLength(1);
});

test('new, replaced and removed files are told apart, and only they are downloaded', async () => {
  await run();
  contents.set(placeOf(TRADES, '2024-01-03', 'aligned_1s'), randomBytes(10));
  contents.set(SECOND, randomBytes(1000));
  contents.delete(THIRD);
  await write();
  server.seen.length = 0;
  expect(await run()).toMatchObject({
    files: 3,
    new: 1,
    replaced: 1,
    removed: 1,
    unchanged: 1,
    requests: 8,
    change: 2,
  });
  isSame();
  expect(asked(rowsOf(FIRST))).toEqual([]);
  expect(filesIn(copy).filter((path) => path.startsWith(`${ETF}/native/year=`))).toEqual([]);
});

test('a server without tags and ranges can be mirrored, too', async () => {
  server.tags = 'none';
  server.hasRanges = false;
  server.faultOf = (request) => (asked(request.path).length === 1 ? { cutAfter: 3 } : undefined);
  await run();
  isSame();
  server.faultOf = () => undefined;
  expect(await run()).toMatchObject({ unchanged: 3, requests: 1 });
});

test.each(['digest', 'opaque', 'weak', 'none'] as const)(
  'a download goes on where it broke off: tags %s',
  async (tags) => {
    server.tags = tags;
    const path = rowsOf(FIRST);
    server.faultOf = (request) => (request.path === path && asked(path).length <= 3 ? { cutAfter: 70_000 } : undefined);
    let received = 0;
    // Notes come with the root manifest.
    const others = filesIn(lake).filter((name) => name !== path && !/^_proofs.*\/\d{20}\.json$/.test(name));
    const size = others.reduce((sum, name) => sum + readFileSync(join(lake, name)).length, 0);
    server.beforeCut = () => expect.poll(() => received).toBe(size + 70_000 * asked(path).length);
    const { bytes } = await run({ onProgress: (progress) => (received = progress.bytes) });
    isSame();
    // What had arrived before each cut, not all of what was sent.
    expect(asked(path)).toHaveLength(4);
    expect(bytes).toBe(size + 300_000);
    for (const { headers } of asked(path).slice(1)) {
      expect(Number(/^bytes=(\d+)-$/.exec(headers.range!)![1])).toBeGreaterThan(0);
      expect(headers['if-range'] !== undefined).toBe(tags === 'digest' || tags === 'opaque');
    }
  },
);

test('a later run goes on with what a stopped one kept', async () => {
  const path = rowsOf(FIRST);
  server.faultOf = (request) => (request.path === path ? { stallAfter: 200_000 } : undefined);
  const stopping = new AbortController();
  let received = 0;
  const running = run({ signal: stopping.signal, onProgress: ({ bytes }) => (received = bytes) });
  // Stopped before, it would keep the others in part, too.
  const isRows = (name: string) => name.endsWith('.parquet') && name !== path;
  const others = filesIn(lake).filter(isRows);
  await expect.poll(() => existsSync(copy) && filesIn(copy).filter(isRows)).toEqual(others);
  // Notes come with the root manifest.
  const whole = filesIn(lake).filter((name) => name !== path && !/^_proofs.*\/\d{20}\.json$/.test(name));
  const size = whole.reduce((sum, name) => sum + readFileSync(join(lake, name)).length, 0);
  await expect.poll(() => received).toBe(size + 200_000);
  stopping.abort('stop');
  await expect(running).rejects.toBe('stop');
  expect(await partialsIn(copy)).not.toEqual([]);
  expect(filesIn(copy)).not.toContain(path);
  server.faultOf = () => undefined;
  server.seen.length = 0;
  expect(await run()).toMatchObject({ new: 1, unchanged: 2 });
  isSame();
  expect(asked(path)[0].headers).toMatchObject({
    range: 'bytes=200000-',
    'if-range': `"${sha256Of(contents.get(FIRST)!)}"`,
  });
});

test('a run that was stopped while it hashed a kept file ended with an error of the reader of files', async () => {
  await run();
  await using folder = await MirrorFolder.open(copy, 'lake', server.url);
  const bytes = contents.get(FIRST)!;
  const stopping = new AbortController();
  const held = folder.holds({ path: rowsOf(FIRST), bytes: bytes.length, sha256: sha256Of(bytes) }, stopping.signal);
  stopping.abort('stop');
  await expect(held).rejects.toBe('stop');
});

test('what was kept of another file is discarded, and the file downloaded whole', async () => {
  const path = rowsOf(FIRST);
  server.tags = 'none';
  await keep(path, contents.get(FIRST)!, 1000, randomBytes(1000));
  await run();
  isSame();
  expect(asked(path).map(({ headers }) => headers.range)).toEqual(['bytes=1000-', undefined]);
});

test('a server without ranges that is asked for the rest sends the whole, which is taken from its beginning', async () => {
  const path = rowsOf(FIRST);
  server.hasRanges = false;
  await keep(path, contents.get(FIRST)!, 1000);
  await run();
  isSame();
  expect(asked(path)).toHaveLength(1);
});

test('a file that a stopped run brought is not taken for the one of an older version', async () => {
  const [old, later] = [contents.get(SECOND)!, randomBytes(1000)];
  await run();
  contents.set(SECOND, later).set(FIRST, randomBytes(10));
  await write();
  const first = rowsOf(FIRST);
  server.faultOf = (request) => (request.path === first ? { lie: randomBytes(10) } : undefined);
  expect((await faultOf())?.[0]).toBe('altered');
  expect(sha256Of(readFileSync(join(copy, rowsOf(SECOND))))).toBe(sha256Of(later));
  server.faultOf = () => undefined;
  contents.set(SECOND, old);
  await write();
  await run();
  isSame();
});

test('killed before any file gets its name, the copy is of one version or the other', async () => {
  await run();
  const { place } = MirrorFolder.prototype;
  for (let kept = 0, isKilled = true; isKilled; kept++) {
    const before = readTable(copy);
    contents.set(FIRST, randomBytes(1000)).set(SECOND, randomBytes(1000));
    await write();
    isKilled = false;
    let placed = 0;
    const placing = vi.spyOn(MirrorFolder.prototype, 'place').mockImplementation(async function (
      this: MirrorFolder,
      ...args
    ) {
      isKilled = placed === kept;
      if (isKilled) throw 'killed';
      placed++;
      await place.apply(this, args);
    });
    await run().catch((error) => expect(error).toBe('killed'));
    placing.mockRestore();
    expect([await before, await readTable(lake)], `after ${kept} files`).toContainEqual(await readTable(copy));
    await run();
    isSame();
  }
});

/** What an engine reads of the table: the files of its log's newest version, all of which are there. */
async function readTable(folder: string): Promise<string[]> {
  const log = join(folder, TRADES, 'native/_delta_log');
  const { files } = await readSnapshot(async (name) => readFileSync(join(log, name)), filesIn(log).length - 1, null);
  return [...files.keys()].map((name) => sha256Of(readFileSync(join(folder, TRADES, 'native', name))));
}

describe('folders', () => {
  test.each([
    [
      'with files of others',
      (folder: string) => writeFileSync(join(folder, 'notes.txt'), 'x'),
      'is neither empty nor a mirror',
    ],
    [
      'of a lake that this machine keeps',
      (folder: string) => cpSync(lake, folder, { recursive: true }),
      'is a lake that another program keeps',
    ],
    ['with a damaged state', (folder: string) => writeFileSync(join(folder, '_mirror.json'), '{'), 'cannot be read'],
  ])('one %s is refused and stays as it is', async (_, fill, why) => {
    await mkdir(copy);
    fill(copy);
    const before = digestsIn(copy);
    expect(await faultOf()).toEqual(['folder', expect.stringContaining(why)]);
    expect(digestsIn(copy)).toEqual(before);
    expect(existsSync(join(copy, '_partial'))).toBe(false);
    expect(server.seen).toEqual([]);
  });

  test('a source without a lake is refused and leaves the folder to another one', async () => {
    rmSync(join(lake, '_manifest.json'));
    expect((await faultOf())![0]).toBe('refused');
    await write();
    await run({ from: pathToFileURL(lake).href });
    isSame();
    rmSync(join(lake, '_manifest.json'));
    // Of a lake that was mirrored it may only be gone for a while.
    expect((await faultOf({ from: pathToFileURL(lake).href }))![0]).toBe('missing');
  });

  test('a mirror of another source is refused', async () => {
    await run();
    expect(await faultOf({ from: pathToFileURL(lake).href })).toEqual([
      'folder',
      expect.stringContaining(`mirrors the lake of ${server.url}`),
    ]);
  });

  test('two runs at once are refused; a lock of a process that was killed is not kept', async () => {
    let second: unknown;
    server.onRequest = async () => {
      second ??= await faultOf();
    };
    await run();
    expect(second).toEqual(['held', expect.stringContaining(`Process ${process.pid}`)]);
    await mkdir(join(copy, '_partial'));
    writeFileSync(join(copy, '_partial/lock'), '1');
    expect((await faultOf())?.[0]).toBe('held');
    writeFileSync(join(copy, '_partial/lock'), String(2 ** 22 + 1));
    expect(await run()).toMatchObject({ unchanged: 3 });
  });

  // It was there before its pid was in it: a second run that looked then took the lock of a living one.
  test('a lock is never seen without the pid of its run', async () => {
    const seen = new Int32Array(new SharedArrayBuffer(12));
    const watcher = new Worker(
      `const { workerData: { path, seen } } = require('node:worker_threads');
       while (!seen[2]) {
         try { seen[require('node:fs').readFileSync(path, 'utf8') === '' ? 0 : 1]++; } catch {}
       }`,
      { eval: true, workerData: { path: join(copy, '_partial/lock'), seen } },
    );
    try {
      await once(watcher, 'online');
      for (let round = 0; round < 200 || seen[1] === 0; round++) {
        await using _folder = await MirrorFolder.open(copy, 'lake', 'http://x/');
      }
    } finally {
      seen[2] = 1;
      await once(watcher, 'exit');
    }
    expect(seen[0]).toBe(0);
  });

  test('a mirror is a lake: it is mirrored from its folder', async () => {
    await run();
    const again = { from: pathToFileURL(copy).href, to: join(dir, 'again') };
    expect(await run(again)).toMatchObject({ new: 3 });
    expect(digestsIn(again.to)).toEqual(digestsIn(lake));
    expect(await run(again)).toMatchObject({ unchanged: 3, requests: 1 });
  });

  test('links in a source folder are not followed', async () => {
    rmSync(join(lake, rowsOf(SECOND)));
    symlinkSync('/etc/passwd', join(lake, rowsOf(SECOND)));
    expect((await faultOf({ from: pathToFileURL(lake).href }))?.[0]).toBe('unreachable');
  });

  test('a local file that is missing or of another size is had again, one that was changed with `verify`', async () => {
    await run();
    rmSync(join(copy, rowsOf(FIRST)));
    rmSync(join(copy, manifestPathOf(THIRD, contents.get(THIRD)!)));
    expect(await run()).toMatchObject({ new: 1, unchanged: 2 });
    isSame();
    writeFileSync(join(copy, rowsOf(SECOND)), randomBytes(1000));
    expect(await run()).toMatchObject({ unchanged: 3 });
    server.seen.length = 0;
    writeFileSync(join(copy, manifestPathOf(THIRD, contents.get(THIRD)!)), '{}');
    expect(await run({ verify: true })).toMatchObject({ new: 1, unchanged: 2, requests: 3 });
    isSame();
  });

  test('a damaged root manifest is replaced, and files that it does not name are removed', async () => {
    await run();
    contents.delete(THIRD);
    await write();
    writeFileSync(join(copy, '_manifest.json'), '{}');
    writeFileSync(join(copy, TRADES, 'native/_delta_log', commitName(0)), '{');
    expect(await run()).toMatchObject({ files: 2, removed: 1 });
    isSame();
  });

  test('chosen datasets make a lake of their own', async () => {
    expect(await run({ datasets: [TRADES] })).toMatchObject({ files: 2, new: 2 });
    expect(filesIn(copy).filter((path) => path.includes(ETF))).toEqual([]);
    const { tables } = JSON.parse(readFileSync(join(copy, '_manifest.json'), 'utf8'));
    expect(tables.map(({ table }: { table: string }) => table)).toEqual([`${TRADES}/native`]);
    expect(await run({ datasets: [TRADES] })).toMatchObject({ requests: 1, unchanged: 2 });
    expect((await faultOf({ datasets: ['nothing'] }))?.[0]).toBe('usage');
    expect((await faultOf({ datasets: ['../x'] }))?.[0]).toBe('usage');
    expect(await run()).toMatchObject({ files: 3, new: 1, unchanged: 2 });
    isSame();
    expect(await run({ datasets: [ETF] })).toMatchObject({ files: 1, removed: 2 });
  });
});

describe('signatures', () => {
  const [signer, stranger] = [generateSigner('log'), generateSigner('stranger')];
  const signed = (by = signer) => ({ from: server.url, to: copy, signingKey: by.verifier.line, pauseMs: 1 });

  test('the note of every version must be signed by the key that is named', async () => {
    await write({ signer });
    expect(await ofClient(signed())).toMatchObject({ new: 3 });
    expect(await ofClient(signed())).toMatchObject({ unchanged: 3, requests: 1, bytes: 0 });
    await expect(ofClient(signed(stranger))).rejects.toMatchObject({
      kind: 'manifest',
      message: expect.stringMatching(/stranger/),
    });
    await write({ signer: stranger });
    await expect(ofClient(signed())).rejects.toMatchObject({
      kind: 'manifest',
      message: expect.stringMatching(/^_manifest/),
    });
  });

  test('manifests of files, too, and those that an earlier run without a key took', async () => {
    await write({ signer });
    writeFileSync(
      join(lake, manifestPathOf(SECOND, contents.get(SECOND)!)),
      fileManifest(SECOND, contents.get(SECOND)!),
    );
    await run();
    await expect(ofClient(signed())).rejects.toMatchObject({
      message: expect.stringMatching(/^_proofs.*not signed/),
    });
    expect(await run()).toMatchObject({ unchanged: 3 });
  });

  test('a listing whose note is not signed is refused, and one that an earlier run took without a key', async () => {
    await run();
    expect(await faultOf({ signers: [signer.verifier] })).toEqual([
      'manifest',
      expect.stringMatching(/^_manifest.*not signed/),
    ]);
  });
});

describe('exports', () => {
  const ID = '00000000-0000-4000-8000-000000000001';
  const rows = Buffer.from('a,b\n1,2\n');
  const file = { name: 'rows.csv', bytes: rows.length, checksum_sha256: sha256Of(rows) };
  const listOf = (files: object[], more: object = {}) =>
    JSON.stringify({ exports: [{ export_id: ID, artifact: { files, ...more } }], next_cursor: null });
  const manifestOf = (files: object[]) => JSON.stringify({ files, signed: null });
  const listed = { name: file.name, bytes: file.bytes, sha256: file.checksum_sha256 };
  /** Answers by the end of the path. */
  const serve = (list: string, manifest = manifestOf([listed])) => {
    server.faultOf = ({ path }) => {
      const body = path.endsWith('/manifest') ? manifest : path.includes('/artifact/') ? rows.toString() : list;
      return { status: 200, body };
    };
  };
  const runExports = () => faultOf({ from: `${server.url}v1/raw/export` });

  test('one that is as its status says is had', async () => {
    serve(listOf([file]));
    expect(await runExports()).toBeUndefined();
    expect(filesIn(copy)).toEqual([`exports/${ID}/manifest.json`, `exports/${ID}/rows.csv`]);
  });

  test.each([
    ['a name that climbs', listOf([{ ...file, name: '../x' }]), 'invalid name'],
    ['a name twice', listOf([file, file]), 'invalid name'],
    ['the name of the manifest', listOf([{ ...file, name: 'manifest.json' }]), 'invalid name'],
    ['an id that climbs', listOf([file]).replace(ID, '../../x'), 'has no id'],
    ['no digest', listOf([{ ...file, checksum_sha256: 'x' }]), 'no size or digest'],
    ['a cursor that is more than one', listOf([file]).replace('null}', '"x&y=/../"}'), 'cursor'],
    ['no list', '{}', 'has no exports'],
  ])('%s is refused', async (_, list, message) => {
    serve(list);
    expect(await runExports()).toEqual(['manifest', expect.stringContaining(message)]);
    expect(filesIn(copy)).toEqual([]);
  });

  test('a manifest of other files is refused before any is downloaded', async () => {
    serve(listOf([file]), manifestOf([{ ...listed, sha256: 'a'.repeat(64) }]));
    expect(await runExports()).toEqual(['manifest', expect.stringContaining('lists other files than its status')]);
    expect(server.seen.filter(({ path }) => path.includes('artifact'))).toEqual([]);
  });

  test('one that expired is left out', async () => {
    serve(listOf([file], { expired: true }));
    expect(await runExports()).toBeUndefined();
    expect(filesIn(copy)).toEqual([]);
  });
});

/** What happens between two runs and during one. */
const step = fc.record({
  changes: fc.array(
    fc.record({ file: fc.nat(4), size: fc.option(fc.integer({ min: 0, max: 3 }), { nil: undefined }) }),
    { maxLength: 3 },
  ),
  /** The lake changes again when so many requests were sent. */
  changeAt: fc.option(fc.integer({ min: 2, max: 12 }), { nil: undefined }),
  faults: fc.array(
    fc.oneof(
      fc.constant(undefined),
      fc.constant('reset' as const),
      fc.constant({ status: 503 }),
      fc.integer({ min: 0, max: 90_000 }).map((cutAfter) => ({ cutAfter })),
    ),
    { maxLength: 8 },
  ),
  /** The run is stopped with this request. */
  stopAt: fc.option(fc.integer({ min: 1, max: 16 }), { nil: undefined }),
  verify: fc.boolean(),
});

test('after any changes, cuts and stops the mirror equals the source, and never shows part of a file', async () => {
  const places = [FIRST, SECOND, THIRD, placeOf(TRADES, '2024-01-02', 'aligned_1s'), placeOf(ETF, '2023')];
  const sizes = [5, 5, 1000, 100_000];
  await fc.assert(
    fc.asyncProperty(
      fc.array(step, { minLength: 1, maxLength: 5 }),
      fc.constantFrom('digest', 'opaque', 'none'),
      async (steps, tags) => {
        rmSync(copy, { recursive: true, force: true });
        server.tags = tags as FileServer['tags'];
        /** Path -> digests of all that the source ever had there. */
        const published = new Map<string, Set<string>>();
        const publish = async () => {
          await write();
          for (const [path, digest] of Object.entries(digestsIn(lake)))
            published.set(path, (published.get(path) ?? new Set()).add(digest));
        };
        const applyNow = async (changes: (typeof steps)[number]['changes']) => {
          for (const { file, size } of changes) {
            if (size === undefined) contents.delete(places[file]);
            // Few contents, so that files come back as they were.
            else contents.set(places[file], Buffer.alloc(sizes[size], `${size}${change % 3}`));
          }
          await publish();
        };
        // One after the other: a request of a run that was stopped may still change the lake.
        let applied = Promise.resolve();
        const apply = (changes: Parameters<typeof applyNow>[0]) => (applied = applied.then(() => applyNow(changes)));
        const expectWhole = () => {
          for (const [path, digest] of Object.entries(digestsIn(copy)))
            expect(published.get(path), path).toContain(digest);
        };
        contents.clear();
        for (const { changes, changeAt, faults, stopAt, verify } of steps) {
          await apply(changes);
          const stopping = new AbortController();
          server.seen.length = 0;
          server.onRequest = async () => {
            const nth = server.seen.length;
            expectWhole();
            if (nth === changeAt) await apply([...changes, { file: 0, size: 1 }, { file: 1, size: undefined }]);
            if (nth === stopAt) stopping.abort('stop');
          };
          server.faultOf = (request: SeenRequest) => faults[server.seen.indexOf(request)];
          await run({ verify, signal: stopping.signal, attempts: 9 }).catch((error) => {
            if (error !== 'stop' && !['altered', 'missing'].includes(error.kind)) throw error;
          });
          expectWhole();
        }
        server.onRequest = () => {};
        server.faultOf = () => undefined;
        await applied;
        const { requests } = await run();
        isSame();
        expect(requests).toBeGreaterThan(0);
        expect(await run()).toMatchObject({ requests: 1, new: 0, replaced: 0, removed: 0 });
        // Nothing is left of what was begun, and no empty folder.
        expect(await partialsIn(copy)).toEqual([]);
        expect(filesIn(copy).map((path) => dirname(path))).toEqual(filesIn(lake).map((path) => dirname(path)));
      },
    ),
    { seed: SEED, numRuns: runs(160) },
  );
});
