/** The routes of a lake over real sockets, and mirrors of them: by the function, by the command, and after a kill. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { open, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { mirror } from '../../client/mirror/index.ts';
import { connect } from '../../shared/db/connect.ts';
import { generateSigner } from '../../shared/proof-log/note.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { type Answer as CommandAnswer, runCommand } from '../support/command.ts';
import {
  digestsIn,
  type LakeOptions,
  manifestPathOf,
  notePathOf,
  pathOf,
  placeOf,
  sha256Of,
  writeLake,
} from '../support/lake-folder.ts';
import { type Answer, API_KEY, eventually, SAMPLE_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, natsSettings, type TestEnv } from '../support/stack.ts';

const [TRADES, OTHER] = ['exchange_a_spot_trades', 'exchange_b_spot_trades'];
const DAY = `${placeOf(TRADES, '2024-01-01')}/instrument=BTCUSDT`;
const OTHER_DAY = placeOf(OTHER, '2024-01-01');
/** The file of a place, as its rows are now. */
const rowsOf = (place = DAY) => pathOf(place, contents.get(place)!);
const manifestOf = (place = DAY) => manifestPathOf(place, contents.get(place)!);
const [KEYED, LAKE] = [{ SVC_INTERNAL_API_KEY: API_KEY }, '/v1/lake'];

let env: TestEnv;
let serving: Serving;
let lake: string;
let matrixPath: string;
let contents: Map<string, Buffer>;
let change = 0;

beforeAll(async () => {
  env = await createMigratedEnv();
  lake = join(env.dir, 'lake');
  matrixPath = join(env.dir, 'matrix.json');
  await writeFile(join(env.dir, 'signed.md'), 'A licence.');
  await writeMatrix({});
  serving = await startServing({
    databaseUrl: env.databaseUrl,
    rightsMatrixPath: matrixPath,
    settings: { SVC_LAKE_FOLDER: lake, SVC_BYOK_DATABASE_ROLE: 'callers' },
    limits: { stallMs: 1000 },
  });
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});
beforeEach(async () => {
  await rm(lake, { recursive: true, force: true });
  contents = new Map([
    [DAY, randomBytes(300_000)],
    [OTHER_DAY, randomBytes(10)],
  ]);
  await write();
  await writeMatrix({});
});

const write = (options: LakeOptions = {}) => writeLake(lake, contents, { change: ++change, ...options });
const HOSTED = { rights_state: 'Hosted Allowed', rights_provisional: false, legal_signoff_artifact: 'signed.md' };

/** What the matrix says of exchange A; exchange B and a dataset of blocks are served. */
async function writeMatrix(exchangeA: object | null): Promise<void> {
  const [a, b] = [TRADES, OTHER].map((key) => DATASETS.get(key)!.sources[0]);
  const sources = {
    ...(exchangeA && { [a]: { ...HOSTED, datasets: [TRADES], ...exchangeA } }),
    [b]: { ...HOSTED, datasets: [OTHER] },
    bitcoin_core: { ...HOSTED, datasets: ['bitcoin_circulating_supply'] },
  };
  await writeFile(`${matrixPath}.part`, JSON.stringify({ version: '1', sources }));
  await rename(`${matrixPath}.part`, matrixPath);
}

const urlOf = (path: string) => `${LAKE}/${path}`;
const get = (path: string, headers: Record<string, string> = {}, method = 'GET') =>
  serving.send({ method, path: urlOf(path), headers });
const outcome = ({ status, json }: Answer) => [status, json?.code];
const bytesOf = async (path: string, headers: Record<string, string> = {}) => {
  const response = await serving.open({ method: 'GET', path: urlOf(path), headers });
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk);
  return { status: response.statusCode, headers: response.headers, bytes: Buffer.concat(chunks) };
};

describe('files', () => {
  test('the root manifest, logs, notes, rows and their manifests come as they lie in the folder', async () => {
    for (const [path, digest] of Object.entries(digestsIn(lake))) {
      const { status, headers, bytes } = await bytesOf(path);
      expect([status, sha256Of(bytes), headers.etag], path).toEqual([200, digest, `"${digest}"`]);
      expect(headers['content-type']).toBe(
        path.endsWith('json') ? 'application/json' : 'application/vnd.apache.parquet',
      );
      expect(headers['x-svc-synthetic']).toBeUndefined();
      expect((await get(path, { 'If-None-Match': headers.etag! })).status).toBe(304);
      const head = await get(path, {}, 'HEAD');
      expect([head.status, head.headers['content-length'], head.text]).toEqual([200, String(bytes.length), '']);
    }
  });

  test('a range continues the same file, and another file comes whole', async () => {
    const rows = contents.get(DAY)!;
    const { headers } = await get(rowsOf(), {}, 'HEAD');
    const rest = { Range: 'bytes=299990-', 'If-Range': headers.etag! };
    const part = await bytesOf(rowsOf(), rest);
    expect([part.status, part.headers['content-range']]).toEqual([206, 'bytes 299990-299999/300000']);
    expect(part.bytes.equals(rows.subarray(299_990))).toBe(true);
    expect(outcome(await get(rowsOf(), { Range: 'bytes=300000-' }))).toEqual([416, 'EXPORT_RANGE_NOT_SATISFIABLE']);
    contents.set(DAY, randomBytes(300_000));
    await write();
    const whole = await bytesOf(rowsOf(), rest);
    expect([whole.status, whole.bytes.equals(contents.get(DAY)!)]).toEqual([200, true]);
    expect(outcome(await get(rowsOf(), { 'If-Match': headers.etag! }))).toEqual([412, 'EXPORT_PRECONDITION_FAILED']);
  });

  test.each([
    ['other bytes', () => randomBytes(300_000)],
    ['a file of another size', () => randomBytes(10)],
  ])('%s is not served as the file that the log names', async (_, rows) => {
    await get(rowsOf());
    await writeFile(join(lake, `${rowsOf()}.part`), rows());
    await rename(join(lake, `${rowsOf()}.part`), join(lake, rowsOf()));
    const answer = await get(rowsOf());
    expect([...outcome(answer), answer.headers['retry-after']]).toEqual([503, 'LAKE_FILE_ALTERED', '1']);
    // The same bytes again, only later, are the file.
    await writeFile(join(lake, rowsOf()), contents.get(DAY)!);
    expect((await get(rowsOf())).status).toBe(200);
  });

  test('a file that was altered in place is not served', async () => {
    expect((await get(rowsOf())).status).toBe(200);
    const file = await open(join(lake, rowsOf()), 'r+');
    await file.write('altered', 1000);
    await file.close();
    expect(outcome(await get(rowsOf()))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await writeFile(join(lake, rowsOf()), contents.get(DAY)!);
    expect((await get(rowsOf())).status).toBe(200);
  });

  test('only the version of the root manifest is served: neither a commit without a note, nor its files', async () => {
    const before = await readFile(join(lake, '_manifest.json'));
    const old = rowsOf();
    contents.set(DAY, randomBytes(1000));
    await write();
    await writeFile(join(lake, '_manifest.json'), before);
    const commit = `${TRADES}/native/_delta_log/00000000000000000001.json`;
    for (const path of [commit, rowsOf(), notePathOf(`${TRADES}/native`, 1)]) {
      expect(outcome(await get(path)), path).toEqual([404, 'LAKE_NOT_FOUND']);
    }
    // It is gone, and the root manifest does not say so yet.
    expect(outcome(await get(old))).toEqual([503, 'LAKE_FILE_ALTERED']);
    const log = join(lake, OTHER, 'native/_delta_log/00000000000000000000.json');
    await writeFile(log, `${await readFile(log, 'utf8')}\n`);
    await write();
    await writeFile(log, '{}');
    contents.set(placeOf(OTHER, '2024-01-02'), randomBytes(10));
    expect(outcome(await get(rowsOf(OTHER_DAY)))).toEqual([503, 'LAKE_FILE_ALTERED']);
  });

  test('a root manifest that is damaged or missing', async () => {
    await writeFile(join(lake, '_manifest.json'), '{"lake_version":2}');
    for (const path of ['_manifest.json', rowsOf()])
      expect(outcome(await get(path))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await rm(join(lake, '_manifest.json'));
    for (const path of ['_manifest.json', rowsOf()]) expect(outcome(await get(path))).toEqual([404, 'LAKE_NOT_FOUND']);
  });

  test('a service without a lake says what to set', async () => {
    await using plain = await startServing({ databaseUrl: env.databaseUrl });
    for (const path of ['_manifest.json', rowsOf()]) {
      const { status, json } = await plain.send({ method: 'GET', path: urlOf(path) });
      expect([status, json.code, json.detail]).toEqual([
        404,
        'LAKE_NOT_FOUND',
        expect.stringContaining('SVC_LAKE_FOLDER'),
      ]);
    }
  });

  test.each([
    `${DAY}/other.parquet`,
    `${OTHER_DAY}/_mirror.json`,
    `${placeOf(TRADES, '2024-01-02')}/1-${'a'.repeat(64)}.parquet`,
    `${TRADES}/native/_delta_log/_last_checkpoint`,
    `${TRADES}/native/_delta_log/00000000000000000001.json`,
    `_proofs/${TRADES}/native/00000000000000000001.json`,
    `_proofs/${TRADES}/native/..%2F..%2F..%2F_manifest.json`,
    'exchange_a_spot_trades/native/date=2024-01-01/..%2Frows.parquet',
    '..%2F..%2Fx/native/date=2024-01-01/rows.parquet',
    '%2E%2E/%2E%2E/%2E%2E/matrix.json',
    'a/b/c/..%2F..%2F..%2F..%2Fmatrix.json',
    '_partial/x/y/rows.parquet',
    'x%00/native/year=2024/rows.parquet',
    `_manifest.json/`,
    'matrix.json',
  ])('%s is not there', async (path) => {
    await writeFile(join(lake, DAY, 'other.parquet'), 'x');
    const { status, json } = await get(path);
    expect([status, json.code]).toEqual([404, expect.stringMatching(/^(LAKE|ROUTE)_NOT_FOUND$/)]);
  });

  test('links are not followed, neither of a file nor of a folder', async () => {
    await rename(join(lake, rowsOf()), join(env.dir, 'elsewhere'));
    await symlink(join(env.dir, 'elsewhere'), join(lake, rowsOf()));
    expect(outcome(await get(rowsOf()))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await rm(join(lake, rowsOf()));
    await rename(join(env.dir, 'elsewhere'), join(lake, rowsOf()));
    expect((await get(rowsOf())).status).toBe(200);
    await rename(join(lake, DAY), join(env.dir, 'day'));
    await symlink(join(env.dir, 'day'), join(lake, DAY));
    expect(outcome(await get(rowsOf()))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await rm(join(env.dir, 'day'), { recursive: true });
  });

  test('a reader that reads nothing is cut off', { tags: ['nightly'] }, async () => {
    contents.set(DAY, Buffer.alloc(64 * 1024 * 1024));
    await write();
    const response = await serving.open({ method: 'GET', path: urlOf(rowsOf()), unix: true });
    response.pause();
    const isCut = async () => {
      const { text } = await serving.send({ method: 'GET', path: '/metrics' });
      return /route="\/v1\/lake\/:dataset[^}]*status="0"/.test(text);
    };
    await eventually(isCut, 'the end of the connection');
    const broken = once(response, 'error');
    response.resume();
    expect(((await broken)[0] as NodeJS.ErrnoException).code).toBe('ECONNRESET');
  });
});

describe('who may read', () => {
  test('the key is needed', async () => {
    for (const path of ['_manifest.json', rowsOf()]) {
      const answer = await serving.send({ method: 'GET', path: urlOf(path), key: 'wrong' });
      expect(outcome(answer)).toEqual([409, 'AUTH_INVALID_API_KEY']);
    }
    expect(outcome(await get(`${rowsOf()}?x=1`))).toEqual([409, 'QUERY_CONTRACT_ERROR']);
  });

  test.each([
    ['QUERY_RIGHTS_INGEST_ONLY', { rights_state: 'Ingest Only', legal_signoff_artifact: undefined }],
    ['QUERY_RIGHTS_BYOK_REQUIRED', { rights_state: 'BYOK Required', legal_signoff_artifact: undefined }],
    ['QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING', { legal_signoff_artifact: 'gone.md' }],
    ['QUERY_RIGHTS_MISSING_STATE', null],
  ])('%s: the matrix decides at the time of reading, with and without credentials', async (code, exchangeA) => {
    expect((await get(rowsOf())).status).toBe(200);
    await writeMatrix(exchangeA);
    const log = `${TRADES}/native/_delta_log/00000000000000000000.json`;
    for (const path of [rowsOf(), manifestOf(), log]) {
      for (const headers of [undefined, { 'X-Backend-Token': 'token' }]) {
        expect(outcome(await get(path, headers))).toEqual([409, code]);
      }
    }
    // The other dataset stays.
    expect((await get(rowsOf(OTHER_DAY))).status).toBe(200);
    const { tables } = (await get('_manifest.json')).json;
    expect(tables.map(({ table }: { table: string }) => table)).toEqual([`${OTHER}/native`]);
  });

  test('a named key reads the files of its datasets, and mirrors them', async () => {
    const keyOf = async (name: string, ...terms: string[]): Promise<string> => {
      const settings = {
        SVC_DATABASE_URL: env.databaseUrl,
        ...natsSettings(env),
        SVC_STATE_DIR: join(env.dir, 'state'),
      };
      const { exit, stdout, json } = await runCommand(['keys', 'add', name, ...terms], settings);
      expect(exit, stdout).toBe(0);
      return json.secret;
    };
    const key = await keyOf('one', '--scopes', 'export', '--datasets', TRADES);
    const ask = (path: string, by = key, headers = {}) =>
      serving.send({ method: 'GET', path: urlOf(path), key: by, headers });
    expect((await ask(rowsOf())).status).toBe(200);
    for (const date of ['2024-01-01', '1999-01-01']) {
      const path = `${placeOf(OTHER, date)}/1-${'a'.repeat(64)}.parquet`;
      expect(outcome(await ask(path))).toEqual([409, 'AUTH_DATASET_NOT_COVERED']);
    }
    const { json, headers, text } = await ask('_manifest.json');
    expect([json.tables.map(({ table }: { table: string }) => table), json.change]).toEqual([
      [`${TRADES}/native`],
      change,
    ]);
    expect(headers.etag).toBe(`"${sha256Of(text)}"`);
    expect((await ask('_manifest.json', key, { 'If-None-Match': headers.etag! })).status).toBe(304);
    const options = { from: `${serving.url}${LAKE}`, to: join(env.dir, 'covered'), key };
    expect(await mirror(options)).toMatchObject({ files: 1, new: 1 });
    expect(await mirror(options)).toMatchObject({ unchanged: 1, requests: 1, bytes: 0 });
    const reading = await keyOf('two', '--scopes', 'read');
    for (const path of ['_manifest.json', rowsOf()])
      expect(outcome(await ask(path, reading))).toEqual([409, 'AUTH_SCOPE_MISSING']);
  });

  describe('rows that are withdrawn after the lake was written are not served, though the lake still has them', () => {
    const { number } = DATASETS.get(TRADES)!;
    const database = () => connect({ url: env.databaseUrl, name: 'test' });
    const leaf = async (kind: string, key: string, index: number | null, of = number) => {
      await using client = await database();
      await client.query(
        `insert into proof_leaves (leaf_index, dataset_id, partition_key, attempt, kind, body) values ($1, $2, $3, 1, $4, 'x')`,
        [index, of, key, kind],
      );
    };
    const statuses = async () => {
      const answers = await Promise.all([rowsOf(), manifestOf(), rowsOf(OTHER_DAY)].map((path) => get(path)));
      return answers.map(outcome);
    };
    const SERVED = [200, undefined];
    const REFUSED = [503, 'LAKE_FILE_ALTERED'];
    const forget = async () => {
      await using client = await database();
      await client.query('delete from proof_leaves; delete from partitions');
    };
    afterAll(forget);
    beforeEach(async () => {
      await forget();
      await using client = await database();
      for (const [key, from] of [
        ['2024-01-01', '2024-01-01'],
        ['2024-02-01', '2024-02-01'],
      ]) {
        const ms = Date.parse(`${from}T00:00:00Z`);
        await client.query(
          `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic)
           values ($1, $2, 'quarantined', 1, 1, $3, $4, false)`,
          [number, key, ms, ms + 86_400_000],
        );
      }
    });

    test.each(['quarantined', 'retracted'])('%s, with an index and before it has one', async (kind) => {
      expect(await statuses()).toEqual([SERVED, SERVED, SERVED]);
      await leaf(kind, '2024-01-01', null);
      expect(await statuses()).toEqual([REFUSED, REFUSED, SERVED]);
      expect((await get(rowsOf())).headers['retry-after']).toBe('1');
      // The writer has replaced the file, and states the change.
      await using client = await database();
      await client.query('update proof_leaves set leaf_index = $1 where leaf_index is null', [change]);
      expect(await statuses()).toEqual([REFUSED, REFUSED, SERVED]);
      await write();
      expect(await statuses()).toEqual([SERVED, SERVED, SERVED]);
    });

    test('of other dates, new ones only and revised they are served; of a partition without times none', async () => {
      await leaf('quarantined', '2024-02-01', null);
      await leaf('proved', '2024-01-01', null);
      await leaf('revised', '2024-01-01', null);
      await leaf('refused', '2024-01-01', null);
      expect(await statuses()).toEqual([SERVED, SERVED, SERVED]);
      await leaf('retracted', '2024-03-01', null);
      expect(await statuses()).toEqual([REFUSED, REFUSED, SERVED]);
    });
  });

  test('a dataset that the service does not know is not served', async () => {
    const place = placeOf('another_dataset', '2024');
    contents.set(place, randomBytes(10));
    await write();
    expect(outcome(await get(rowsOf(place)))).toEqual([404, 'LAKE_NOT_FOUND']);
    const { tables } = (await get('_manifest.json')).json;
    expect(tables.map(({ table }: { table: string }) => table)).toEqual([`${TRADES}/native`, `${OTHER}/native`]);
  });

  test('a matrix for synthetic rows serves only tables whose note says that they are', async () => {
    const settings = { SVC_LAKE_FOLDER: lake };
    await using sampled = await startServing({
      databaseUrl: env.databaseUrl,
      rightsMatrixPath: SAMPLE_MATRIX,
      settings,
    });
    const ask = (path: string) => sampled.send({ method: 'GET', path: urlOf(path) });
    for (const path of [rowsOf(), manifestOf()]) {
      expect(outcome(await ask(path))).toEqual([409, 'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING']);
    }
    expect((await ask('_manifest.json')).json.tables).toEqual([]);
    await write({ synthetic: true });
    const { status, headers } = await ask(rowsOf());
    expect([status, headers['x-svc-synthetic']]).toEqual([200, 'true']);
    expect((await ask('_manifest.json')).json.tables).toHaveLength(2);
  });
});

describe('mirrors', () => {
  const command = (folder: string, ...more: string[]) =>
    runCommand(['mirror', `${serving.url}${LAKE}`, join(env.dir, folder), ...more], KEYED);

  test('the command copies the lake, and then asks once', async () => {
    const signer = generateSigner('log');
    await write({ signer });
    const key = ['--key', signer.verifier.line];
    const first: CommandAnswer = await command('mirrored', ...key);
    expect([first.exit, first.stderr]).toEqual([0, '']);
    expect(first.json).toMatchObject({
      command: 'mirror',
      ok: true,
      kind: 'lake',
      files: 2,
      new: 2,
      change,
      requests: 7,
    });
    expect(digestsIn(join(env.dir, 'mirrored'))).toEqual(digestsIn(lake));
    expect((await command('mirrored', ...key)).json).toMatchObject({ unchanged: 2, requests: 1, bytes: 0 });
    contents.set(DAY, randomBytes(1000));
    await write({ signer });
    expect((await command('mirrored', ...key)).json).toMatchObject({ replaced: 1, unchanged: 1, requests: 4 });
    await write({ signer: generateSigner('log') });
    const forged = await command('mirrored', ...key);
    expect([forged.exit, forged.json.error.code]).toEqual([1, 'MIRROR_SOURCE_INVALID']);
  });

  test('an altered file of the lake is not copied: the others are, and it is once it is whole again', async () => {
    const file = await open(join(lake, rowsOf()), 'r+');
    await file.write('altered', 100);
    await file.close();
    const to = join(env.dir, 'of-altered');
    const copy = () => mirror({ from: `${serving.url}${LAKE}`, to, key: API_KEY, attempts: 1 });
    await expect(copy()).rejects.toMatchObject({
      kind: 'missing',
      message: expect.stringMatching(/instrument=BTCUSDT.* answered 503/),
    });
    const [found, other] = [digestsIn(to), rowsOf(OTHER_DAY)];
    expect([found[rowsOf()], found[other]]).toEqual([undefined, digestsIn(lake)[other]]);
    await writeFile(join(lake, rowsOf()), contents.get(DAY)!);
    // The root manifest, the log of its table, and the file that was refused; the others are there.
    expect(await copy()).toMatchObject({ files: 2, requests: 3 });
    expect(digestsIn(to)).toEqual(digestsIn(lake));
  });

  test('its exit codes and messages', async () => {
    const url = `${serving.url}${LAKE}`;
    const of = async (args: string[], settings: Record<string, string> = KEYED) => {
      const { exit, json } = await runCommand(['mirror', ...args], settings);
      return [exit, json.error.code];
    };
    const folder = join(env.dir, 'codes');
    expect(await of([url, env.dir])).toEqual([2, 'USAGE']);
    expect(await of([url, lake])).toEqual([2, 'USAGE']);
    expect(await of(['ftp://x/', folder])).toEqual([2, 'USAGE']);
    expect(await of([url, folder, '--key', 'x'])).toEqual([2, 'USAGE']);
    expect(await of([url, folder, '--datasets', 'nothing'])).toEqual([2, 'USAGE']);
    expect(await of([url, folder], {})).toEqual([1, 'SERVICE_REFUSED']);
    await writeMatrix({ rights_state: 'Ingest Only', legal_signoff_artifact: undefined });
    // What rights do not allow is not listed.
    const { json: rest } = await runCommand(['mirror', url, folder], KEYED);
    expect(rest).toMatchObject({ ok: true, files: 1 });
    const { json } = await runCommand(['mirror', url, folder, '--datasets', OTHER], KEYED);
    expect(json).toMatchObject({ ok: true, files: 1 });
  });
});
