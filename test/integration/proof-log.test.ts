/** The proof log of a running system: its leaves, its files over HTTP, what answers say of it, and what `check` finds. */
import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { type IncomingMessage, get as request } from 'node:http';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';
import { gunzipSync, zstdDecompressSync } from 'node:zlib';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeDay } from '../../pipelines/sources/exchange_b/sample.ts';
import { commitmentOf } from '../../shared/proof-log/commitment.ts';
import { decodeLeaf, WRONG_SALT } from '../../shared/proof-log/leaf.ts';
import { leafHash, verifyInclusion } from '../../shared/proof-log/merkle.ts';
import { openCheckpoint } from '../../shared/proof-log/note.ts';
import { signManifest } from '../../shared/proof-log/signed-manifest.ts';
import { readSigners } from '../../shared/proof-log/signers.ts';
import type { Json } from '../support/command.ts';
import { type Exports, startExports } from '../support/exports.ts';
import { DATASET, documentPath, System } from '../support/pipeline.ts';
import { checkpointOf, createLogged, type LoggedSystem, logFolderOf, sequence } from '../support/proof-log.ts';
import { DAYS, SMALL_DAYS } from '../support/three-days.ts';

let logged: LoggedSystem;
let system: System;
let exports: Exports;
let key: string;

beforeAll(async () => {
  logged = await createLogged();
  ({ system, exports, key } = logged);
});
afterAll(() => logged[Symbol.asyncDispose]());

const get = (path: string) => exports.serving.send({ method: 'GET', path, key: null });
const check = async (...args: string[]) => await system.run(['check', ...args]);

test('each proved partition has a leaf in the order of its proof, and the files are served without a key', async () => {
  const leaves = await system.rows('select leaf_index, kind, partition_key from proof_leaves order by leaf_index');
  expect(leaves).toEqual(
    SMALL_DAYS.map(({ day }, index) => ({ leaf_index: String(index), kind: 'proved', partition_key: day })),
  );
  const answer = await get('/v1/proofs/checkpoint');
  expect([answer.status, answer.headers['cache-control']]).toEqual([200, 'public, max-age=1']);
  const { verifier } = await checkpointOf(system.env);
  expect(openCheckpoint(answer.text, [verifier]).size).toBe(3);
  expect((await get('/v1/proofs/key')).text).toBe(`${key}\n`);
  expect(key).toMatch(/^tidemark-[0-9a-f]{12}\+[0-9a-f]{8}\+[A-Za-z0-9+/]{44}$/);
  expect((await get('/v1/proofs/tile/0/000.p/3')).status).toBe(200);
  expect((await get('/v1/proofs/tile/entries/000.p/2')).status).toBe(200);
  for (const path of ['tile/0/001', 'tile/0/000.p/4', 'tile/0/0', 'tile/../000', 'rotations']) {
    const { status, json } = await get(`/v1/proofs/${path}`);
    expect([path, status, json.code]).toEqual([
      path,
      404,
      path.includes('..') ? 'ROUTE_NOT_FOUND' : 'PROOF_LOG_NOT_FOUND',
    ]);
  }
});

test('lineage, coverage and queries carry leaf, inclusion and checkpoint', async () => {
  const { verifier } = await checkpointOf(system.env);
  const lineage = (await exports.get(`/v1/lineage/${DATASET}/1`)).json;
  const head = openCheckpoint(lineage.checkpoint, [verifier]);
  const { leaf, leaf_index, inclusion, salt, state } = lineage.proof_log;
  expect([state, leaf_index]).toEqual(['logged', 0]);
  const proof = inclusion.map((hash: string) => Buffer.from(hash, 'base64'));
  expect(verifyInclusion(leafHash(Buffer.from(leaf)), leaf_index, head.size, proof, head.root)).toBe(true);
  expect(decodeLeaf(Buffer.from(leaf))).toMatchObject({
    dataset: DATASET,
    partition: DAYS[0].day,
    rows: SMALL_DAYS[0].rows,
    document_commitment: commitmentOf(Buffer.from(salt, 'hex'), 'document_sha256', lineage.document.sha256),
  });

  const coverage = (await exports.get(`/v1/coverage/${DATASET}`)).json;
  expect(coverage.checkpoint).toBe(lineage.checkpoint);
  expect(coverage.partitions.map((one: { proof_log: { leaf_index: number } }) => one.proof_log.leaf_index)).toEqual([
    0, 1, 2,
  ]);

  const query = await exports.serving.query({ sources: [DATASET], n_rows: 1 });
  expect(Buffer.from(String(query.headers['x-svc-checkpoint']), 'base64').toString()).toBe(lineage.checkpoint);
});

test('every answer with rows names the checkpoint that it was read under, in every representation', async () => {
  const { note } = await checkpointOf(system.env);
  const frame = { grid: '1h', n_rows: 3, columns: [{ name: 'close', dataset: DATASET, field: 'price' }] };
  for (const [path, body] of [
    ['/v1/raw/query', { sources: [DATASET], mode: 'aligned_1s', n_rows: 2 }],
    ['/v1/historical/exchange_a/spot/trades', { n_latest_rows: 2 }],
    ['/v1/historical/exchange_a/spot/klines', { n_latest_rows: 2, kline_size: '1h' }],
    ['/v1/frame', frame],
  ] as const) {
    for (const accept of ['application/json', 'text/csv', 'application/vnd.apache.arrow.stream']) {
      const { status, headers } = await exports.serving.send({
        path,
        body: JSON.stringify(body),
        headers: { Accept: accept },
      });
      const told = Buffer.from(String(headers['x-svc-checkpoint']), 'base64').toString();
      expect([path, accept, status, told]).toEqual([path, accept, 200, note]);
    }
  }
});

test('a file that has not changed is not sent again', async () => {
  const path = '/v1/proofs/tile/0/000.p/3';
  const { headers } = await get(path);
  const again = await exports.serving.send({
    method: 'GET',
    path,
    key: null,
    headers: { 'If-None-Match': String(headers.etag) },
  });
  const forEver = 'public, max-age=31536000, immutable';
  expect([headers['cache-control'], again.status, again.text]).toEqual([forEver, 304, '']);
});

test('a page of any origin may read the log: its files, what is missing, and whatever it sends', async () => {
  const send = (method: string, path: string, headers: Record<string, string>) =>
    exports.serving.send({ method, path: `/v1/proofs/${path}`, key: null, headers });
  const Origin = 'https://reader.example';
  for (const path of ['checkpoint', 'key', 'rotations', 'tile/0/000.p/3', 'tile/entries/000.p/3', 'tile/0/nothing']) {
    // The second answer may be cached, and then be a page's.
    for (const headers of [{ Origin }, {}] as Record<string, string>[]) {
      const answer = await send('GET', path, headers);
      expect([path, answer.headers['access-control-allow-origin'], answer.headers.vary?.includes('Origin')]).toEqual([
        path,
        '*',
        path.includes('entries') ? false : undefined,
      ]);
    }
  }
  const asked = { 'Access-Control-Request-Method': 'GET', 'Access-Control-Request-Headers': 'if-none-match' };
  const preflight = await send('OPTIONS', 'checkpoint', { Origin, ...asked });
  expect([preflight.status, preflight.headers['access-control-allow-origin']]).toEqual([204, '*']);
  expect(preflight.headers['access-control-allow-headers']!.toLowerCase()).toContain('if-none-match');
  const elsewhere = await exports.serving.send({ method: 'GET', path: '/v1/datasets', headers: { Origin } });
  expect(elsewhere.headers['access-control-allow-origin']).toBeUndefined();
});

test('the leaves of a tile are compressed for whoever reads that, and hashes never', async () => {
  const read = async (path: string, encoding?: string) => {
    const headers = encoding === undefined ? {} : { 'Accept-Encoding': encoding };
    // `fetch` would send a header of its own, and unpack.
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    request(`${exports.serving.url}/v1/proofs/tile/${path}`, { headers }, resolve).on('error', reject);
    const answer = await promise;
    return { status: answer.statusCode, headers: answer.headers, bytes: await buffer(answer) };
  };
  const [plain, gzip, zstd, identity] = await Promise.all(
    [undefined, 'gzip, identity', 'gzip, zstd', 'identity'].map((encoding) => read('entries/000.p/3', encoding)),
  );
  const codings = [plain, gzip, zstd, identity].map(({ headers }) => headers['content-encoding']);
  expect(codings).toEqual([undefined, 'gzip', 'zstd', undefined]);
  expect([gunzipSync(gzip.bytes), zstdDecompressSync(zstd.bytes), identity.bytes]).toEqual(Array(3).fill(plain.bytes));
  expect(gzip.bytes.length).toBeLessThan(plain.bytes.length / 2);
  // Each has a tag of its own, and caches keep them apart.
  expect(new Set([plain, gzip, zstd].map(({ headers }) => headers.etag)).size).toBe(3);
  expect(gzip.headers.vary).toBe('Accept-Encoding');
  expect((await read('0/000.p/3', 'gzip')).headers['content-encoding']).toBeUndefined();
  expect((await read('entries/000.p/3', 'br;q=1, *;q=0')).status).toBe(406);
});

test('a watcher over HTTP keeps a mirror that is whole, and goes on where it was', async () => {
  const [state, mirror] = [join(system.env.dir, 'watch.json'), join(system.env.dir, 'mirror')];
  const watch = async (url: string) =>
    await system.run(['watch-log', url, '--once', '--state', state, '--mirror', mirror]);
  const { exit, json } = await watch(exports.serving.url);
  expect([exit, json.size, json.faults]).toEqual([0, 3, []]);
  const mirrored = await check(mirror, '--key', key, '--log', exports.serving.url);
  expect(mirrored.json).toMatchObject({ ok: true, subject: 'mirror' });
  expect(mirrored.json.not_checked).toEqual(['incomplete tiles of earlier sizes, which a log may keep beside']);
  expect(mirrored.json.checked.at(-1)).toBe('both checkpoints are of the same 3 leaves');
  const { note } = await checkpointOf(system.env);
  expect(JSON.parse(await readFile(state, 'utf8'))).toEqual({
    ...{ key, firstKey: key, checkpoint: note },
    tail: expect.stringMatching(/^[A-Za-z0-9+/]{128}$/),
  });
  const [old, head] = [join(mirror, 'checkpoint'), join(logFolderOf(system.env), 'checkpoint')];
  expect((await check(old, head, '--log', exports.serving.url, '--key', key)).json.ok).toBe(true);
  // A service that is away is no fork: the watcher says so, and another exit code.
  const apart = await check(mirror, '--key', key, '--log', 'http://127.0.0.1:9');
  expect([apart.exit, apart.json.error.message]).toEqual([2, expect.stringContaining('does not answer')]);
  const away = await watch('http://127.0.0.1:9');
  expect([away.exit, away.json.unreachable]).toEqual([2, expect.stringContaining('does not answer')]);
});

test('days that begin at 16:00 and files of UTC days: rows of a partition from two files give its digest', {
  tags: ['nightly'],
}, async () => {
  await using other = await System.create();
  const env = { SVC_EXCHANGE_B_BASE_URL: pathToFileURL(`${other.vendor}/`).href };
  for (const at of [1, 2, 3]) {
    await writeDay({
      directory: other.vendor,
      day: `2024-03-0${at}`,
      rows: 2000,
      seed: at,
      firstId: at * 1_000_000,
      gaps: 0.05,
    });
  }
  const B = 'exchange_b_spot_trades';
  expect((await other.run(['backfill', B, '--from', '2024-03-01', '--to', '2024-03-03'], env)).exit).toBe(0);
  await sequence(other.env);
  await using service = await startExports(other.env, { limits: { exportSplitRows: 10 } });
  const { verifier } = await checkpointOf(other.env);
  for (const [format, time_range, whole] of [
    ['csv', ['2024-02-01T00:00:00Z', '2024-04-01T00:00:00Z'], '3 whole partitions'],
    ['parquet', ['2024-03-01T00:00:00Z', '2024-03-03T00:00:00Z'], '1 whole partition'],
  ] as const) {
    const { json: run } = await service.run({ dataset: B, format, time_range });
    // The export's folder as the worker leaves it: a subfolder for its run.
    const folder = join(service.root, run.export_id);
    expect(JSON.parse(await readFile(join(folder, '1', 'manifest.json'), 'utf8')).files.length).toBeGreaterThan(1);
    const { exit, json } = await system.run(['check', folder, '--key', verifier.line]);
    expect([exit, json.faults]).toEqual([0, []]);
    expect(json.checked.join()).toContain(`every row of ${whole} hashed again`);
    expect(json.not_checked.join().includes('of which the files hold a part')).toBe(format === 'parquet');
  }
});

/** Without the log nobody can tell, and a key that was rotated away may have signed anything. */
const notAsked = 'whether the key was rotated away before that was signed: its log says so, which you name with --log';

describe('check', () => {
  test('of a lineage answer goes down to the line of the vendor’s file', async () => {
    const path = join(system.env.dir, 'lineage.json');
    await writeFile(path, (await exports.get(`/v1/lineage/${DATASET}/77`)).text);
    const document = join(system.vendor, documentPath(SMALL_DAYS[0].day));
    const { exit, json } = await check(path, '--key', key, '--document', document);
    const unsaid = 'that the event is the one of offset 77: the leaf covers all events of the partition';
    expect(json).toMatchObject({ ok: true, subject: 'lineage', not_checked: [unsaid, notAsked], faults: [] });
    expect([exit, json.checked.length]).toEqual([0, 4]);
    const other = join(system.vendor, documentPath(SMALL_DAYS[1].day));
    expect((await check(path, '--key', key, '--document', other)).exit).toBe(1);
    const damaged = join(system.env.dir, 'damaged.zip');
    await writeFile(damaged, (await readFile(document)).subarray(0, 500));
    const found = await check(path, '--key', key, '--document', damaged);
    expect([found.exit, found.json.faults]).toEqual([
      1,
      [expect.stringMatching(/^the file has the sha256 [0-9a-f]+, the document/)],
    ]);
  });

  test('of a lineage answer finds every member that is not that of the leaf, and a part of a line is not the event', async () => {
    const { json: answer } = await exports.get(`/v1/lineage/${DATASET}/77`);
    const path = join(system.env.dir, 'altered.json');
    const document = join(system.vendor, documentPath(SMALL_DAYS[0].day));
    const event = (text: string) => ({
      payload_raw: { bytes: text.length, base64: Buffer.from(text).toString('base64'), utf8: text },
      payload_sha256_raw: createHash('sha256').update(text).digest('hex'),
    });
    const { proof, payload_raw: raw } = answer;
    const said = (facts: object) => ({ proof: { ...proof, expected: { ...proof.expected, ...facts } } });
    for (const [other, fault] of [
      [{ synthetic: true }, 'synthetic is true, and false in the leaf'],
      [{ document: { ...answer.document, name: 'other.csv' } }, 'the document is other.csv, and'],
      [said({ first_offset: '0' }), 'expected: offsets 0 8000 is not what the leaf commits to'],
      [said({ rows_hash: undefined }), 'expected: rows_hash undefined is not'],
      [said({ events_sha256: null }), 'expected: events_sha256 null is not'],
      [{ proof: { ...proof, recount: { ...proof.recount, rows: 1 } } }, 'recount: rows is 1, and 8000 in the leaf'],
      [{ proof: { ...proof, facts: proof.facts.replace('proved', 'unknown') } }, 'facts {"first_ms":'],
      [{ payload_raw: { ...raw, utf8: 'another' } }, 'the text of the event is not its bytes'],
      [event(''), 'no line of the document is the event'],
      [event(raw.utf8.slice(2)), 'no line of the document is the event'],
      [event(raw.utf8.slice(0, -2)), 'no line of the document is the event'],
      [{ proof_log: { ...answer.proof_log, leaf_index: -5 } }, 'leaf: leaf -5 is not in the tree'],
      [{ proof_log: { ...answer.proof_log, salt: null } }, 'leaf: the answer has no salt'],
      [{ proof_log: { ...answer.proof_log, salt: 'ab' } }, 'leaf: the salt is not 64 hexadecimal digits'],
      [{ proof_log: { ...answer.proof_log, salt: 'ab'.repeat(32) } }, WRONG_SALT],
    ] as const) {
      await writeFile(path, JSON.stringify({ ...answer, ...other }));
      const { exit, json } = await check(path, '--key', key, '--document', document);
      expect(exit).toBe(1);
      expect(json.faults).toContainEqual(expect.stringContaining(fault));
    }
    await writeFile(path, JSON.stringify({ ...answer, proof_log: { ...answer.proof_log, state: 'pending\nchecked' } }));
    expect((await check(path, '--key', key)).exit).toBe(2);
  });

  test.each([
    ['csv', 'none'],
    ['csv', 'gzip'],
    ['csv', 'zstd'],
    ['parquet', 'zstd'],
    ['parquet', 'snappy'],
  ])('of whole partitions as %s %s hashes every row again', async (format, compression) => {
    const folder = await logged.download({ format, compression, month_year: [3, 2024] });
    const { exit, json, stderr } = await check(folder, '--key', key);
    expect(exit, JSON.stringify(json) + stderr).toBe(0);
    expect(json.checked).toContain(
      'every row of 3 whole partitions hashed again from the files and equal to its leaf: 25,000 rows',
    );
    expect(json.faults).toEqual([]);
  });

  test('of texts that were escaped for spreadsheets leaves the rows out, and says so', async () => {
    const folder = await logged.download({ format: 'csv', csv_formulas: 'escape', month_year: [3, 2024] });
    const { exit, json } = await check(folder, '--key', key);
    expect([exit, json.faults]).toEqual([0, []]);
    expect(json.not_checked.join()).toContain('its texts were escaped for spreadsheets');
    expect(json.checked.join()).not.toContain('hashed again');
  });

  test('of what a service wrote that could not read the files of the log says that their leaves are not checked', async () => {
    const settings = {
      SVC_NATS_READER_URL: system.env.natsReaderUrl,
      SVC_PROOF_LOG_DIR: join(system.env.dir, 'elsewhere'),
    };
    await using apart = await startExports(system.env, { settings });
    const path = join(system.env.dir, 'apart.json');
    await writeFile(path, (await apart.get(`/v1/lineage/${DATASET}/77`)).text);
    const lineage = await check(path, '--key', key);
    expect([lineage.exit, lineage.json.not_checked[0]]).toEqual([
      0,
      'the proof log: the service could not read the files that a proof is made of',
    ]);
    const folder = await logged.download();
    const manifest = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8'));
    const { signed: _, ...unsigned } = manifest;
    for (const leaf of unsigned.proof_log.leaves) leaf.inclusion = null;
    const signer = (await readSigners({ folder: logFolderOf(system.env) }))!.current;
    await writeFile(join(folder, 'manifest.json'), JSON.stringify(signManifest(unsigned, signer)));
    const { exit, json } = await check(folder, '--key', key);
    expect([exit, json.faults]).toEqual([0, []]);
    expect(json.not_checked).toContain('3 partitions: no leaf with a proof in the manifest');
  });

  test('of another export says that the signed manifest holds it', async () => {
    const folder = await logged.download({ format: 'csv', mode: 'aligned_1s', n_rows: 100 });
    const { exit, json } = await check(folder, '--key', key);
    expect([exit, json.not_checked]).toEqual([
      0,
      ['rows against leaves (aligned rows have no leaves): vouched for only by the signed manifest', notAsked],
    ]);
    expect(json.checked[0]).toMatch(/^the manifest is the one that tidemark-[0-9a-f]+ signed$/);
  });

  test('of a mirror makes the tree again; without a key it says where the key came from', async () => {
    const { exit, json } = await check(logFolderOf(system.env));
    expect([exit, json.subject, json.not_checked.length]).toEqual([0, 'mirror', 2]);
    expect(json.checked.at(-1)).toBe('all 3 leaves give the root that was signed');
  });

  test('of a tlog-proof holds its leaf against the checkpoint, or says that it has none', async () => {
    const { json } = await exports.get(`/v1/lineage/${DATASET}/1`);
    const { leaf, leaf_index: index, inclusion } = json.proof_log;
    const proof = (at: number, extra = '') =>
      `c2sp.org/tlog-proof@v1\n${extra}index ${at}\n${inclusion.join('\n')}\n\n${json.checkpoint}`;
    const path = join(system.env.dir, 'one.tlog-proof');
    const leafPath = join(system.env.dir, 'leaf');
    await writeFile(leafPath, leaf);
    const run = async (text: string, ...args: string[]) => {
      await writeFile(path, text);
      const { exit, json: found } = await check(path, ...args);
      return [exit, found.subject, [...(found.faults ?? []), ...(found.not_checked ?? [])].join('\n')];
    };
    const key_ = ['--key', key];
    expect(await run(proof(index), leafPath, ...key_)).toEqual([0, 'tlog_proof', notAsked]);
    expect(await run(proof(index, 'extra AAAA\n'), ...key_, '--log', logFolderOf(system.env))).toEqual([
      0,
      'tlog_proof',
      '',
    ]);
    expect(await run(proof(index), ...key_)).toEqual([0, 'tlog_proof', expect.stringContaining('name its file')]);
    const wrong = [1, 'tlog_proof', expect.stringMatching(/^the leaf is not leaf \d of the tree of \d leaves/)];
    expect(await run(proof((index + 1) % 3), leafPath, ...key_)).toEqual(wrong);
    expect(await run(proof(9), leafPath, ...key_)).toEqual([1, 'tlog_proof', expect.stringContaining('is of leaf 9')]);
    await writeFile(leafPath, `${leaf} `);
    expect(await run(proof(index), leafPath, ...key_)).toEqual(wrong);
    for (const text of [proof(index).replace('index', 'place'), proof(index).replace(`${inclusion[0]}\n`, 'AAAA\n')])
      expect(await run(text, leafPath, ...key_)).toEqual([
        1,
        'tlog_proof',
        expect.stringContaining('a tlog-proof has the lines'),
      ]);
  });

  test('refuses what it cannot read with exit code 2, and says what it needs', async () => {
    const folder = await logged.download();
    for (const [args, what] of [
      [[folder], 'The key of the log is missing: name it with --key'],
      [[folder, '--key', 'nonsense'], 'There is no file nonsense, and it is not a key either: a key is one line'],
      [[join(folder, 'nowhere')], 'cannot be read'],
      [[system.vendor, '--key', key], 'has neither a manifest.json, a checkpoint nor a _manifest.json'],
    ] as const) {
      const { exit, json } = await check(...args);
      expect([exit, json.error.code]).toEqual([2, 'USAGE']);
      expect(json.error.message).toContain(what);
    }
  });

  test('a manifest or an answer with any member lost or replaced is refused or wrong, and never a defect of the check', async () => {
    const folder = await logged.download({ format: 'csv', n_rows: 20 });
    const path = join(folder, 'manifest.json');
    const answer = join(folder, 'lineage.json');
    const texts = [await readFile(path, 'utf8'), (await exports.get(`/v1/lineage/${DATASET}/77`)).text];
    const junk = fc.constantFrom(undefined, null, 0, -1, 1e21, '', 'x', '\0', [], {}, true, '../../etc/passwd');
    /** Goes down to some member and puts something else there. */
    const alter = (value: Json, way: readonly number[], other: unknown): void => {
      const keys = Object.keys(value);
      const key = keys[way[0] % keys.length];
      const below = value[key];
      if (way.length > 1 && typeof below === 'object' && below !== null && Object.keys(below).length > 0)
        alter(below, way.slice(1), other);
      else if (other === undefined) delete value[key];
      else value[key] = other;
    };
    const property = fc.asyncProperty(
      fc.nat(1),
      fc.array(fc.nat(50), { minLength: 1, maxLength: 5 }),
      junk,
      async (which, way, other) => {
        const value = JSON.parse(texts[which]);
        alter(value, way, other);
        const changed = JSON.stringify(value);
        await writeFile(which === 0 ? path : answer, changed);
        const { exit, json } = await check(which === 0 ? path : answer, '--key', key);
        if (exit === 2) expect(json.error.code).toBe('USAGE');
        // Nothing of a lineage answer but its proof is signed.
        else if (which === 0)
          expect([changed === JSON.stringify(JSON.parse(texts[0])), exit]).toEqual([exit === 0, exit]);
        else expect(json.subject).toBe('lineage');
      },
    );
    await fc.assert(property, { numRuns: 200 });
  });
});
