/** The routes of a lake over real sockets, and mirrors of them: by the function, by the command, and after a kill. */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import { open, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { mirror } from '../../client/mirror/index.ts';
import { connect } from '../../shared/db/connect.ts';
import { generateSigner } from '../../shared/proof-log/note.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { type Answer as CommandAnswer, runCommand } from '../support/command.ts';
import { digestsIn, type LakeOptions, placeOf, rootManifest, sha256Of, writeLake } from '../support/lake-folder.ts';
import { type Answer, API_KEY, eventually, SAMPLE_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, natsSettings, type TestEnv } from '../support/stack.ts';

const [TRADES, OTHER] = ['exchange_a_spot_trades', 'exchange_b_spot_trades'];
const DAY = placeOf(TRADES, '2024-01-01');
const ROWS = `${DAY}/rows.parquet`;
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
    [placeOf(OTHER, '2024-01-01'), randomBytes(10)],
  ]);
  await write();
  await writeMatrix({});
});

const write = (options: LakeOptions = {}) => writeLake(lake, contents, { change: ++change, ...options });
/** Writes the root manifest alone, later than a file was changed. */
async function writeNewerRoot(file: string): Promise<void> {
  const changedAt = (path: string) => statSync(path, { bigint: true }).ctimeNs;
  const root = join(lake, '_manifest.json');
  // Times have the precision of a tick.
  do await writeFile(root, rootManifest(contents, { change }));
  while (changedAt(root) <= changedAt(file));
}
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

const get = (path: string, headers: Record<string, string> = {}, method = 'GET') =>
  serving.send({ method, path: `${LAKE}/${path}`, headers });
const outcome = ({ status, json }: Answer) => [status, json?.code];
const bytesOf = async (path: string, headers: Record<string, string> = {}) => {
  const response = await serving.open({ method: 'GET', path: `${LAKE}/${path}`, headers });
  const chunks: Buffer[] = [];
  for await (const chunk of response) chunks.push(chunk);
  return { status: response.statusCode, headers: response.headers, bytes: Buffer.concat(chunks) };
};

describe('files', () => {
  test('the root manifest, rows and their manifest come as they lie in the folder', async () => {
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
    const { headers } = await get(ROWS, {}, 'HEAD');
    const rest = { Range: 'bytes=299990-', 'If-Range': headers.etag! };
    const part = await bytesOf(ROWS, rest);
    expect([part.status, part.headers['content-range']]).toEqual([206, 'bytes 299990-299999/300000']);
    expect(part.bytes.equals(rows.subarray(299_990))).toBe(true);
    expect(outcome(await get(ROWS, { Range: 'bytes=300000-' }))).toEqual([416, 'EXPORT_RANGE_NOT_SATISFIABLE']);
    contents.set(DAY, randomBytes(300_000));
    await write();
    const whole = await bytesOf(ROWS, rest);
    expect([whole.status, whole.bytes.equals(contents.get(DAY)!)]).toEqual([200, true]);
    expect(outcome(await get(ROWS, { 'If-Match': headers.etag! }))).toEqual([412, 'EXPORT_PRECONDITION_FAILED']);
  });

  test.each([
    ['one that was replaced before the root manifest was', () => randomBytes(300_000)],
    ['one of another size', () => randomBytes(10)],
  ])('%s is not served as the one that the root manifest names', async (_, rows) => {
    await get(ROWS);
    await writeFile(join(lake, `${ROWS}.part`), rows());
    await rename(join(lake, `${ROWS}.part`), join(lake, ROWS));
    const answer = await get(ROWS);
    expect([...outcome(answer), answer.headers['retry-after']]).toEqual([503, 'LAKE_FILE_ALTERED', '1']);
    // The same bytes again, only later, are the file.
    await writeFile(join(lake, ROWS), contents.get(DAY)!);
    expect((await get(ROWS)).status).toBe(200);
  });

  test('a file that was altered in place was served as good once the root manifest was written again', async () => {
    expect((await get(ROWS)).status).toBe(200);
    const file = await open(join(lake, ROWS), 'r+');
    await file.write('altered', 1000);
    await file.close();
    expect(outcome(await get(ROWS))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await writeNewerRoot(join(lake, ROWS));
    expect(outcome(await get(ROWS))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await writeFile(join(lake, ROWS), contents.get(DAY)!);
    expect((await get(ROWS)).status).toBe(200);
  });

  test('a root manifest that is damaged or missing', async () => {
    await writeFile(join(lake, '_manifest.json'), '{"lake_version":1}');
    for (const path of ['_manifest.json', ROWS]) expect(outcome(await get(path))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await rm(join(lake, '_manifest.json'));
    for (const path of ['_manifest.json', ROWS]) expect(outcome(await get(path))).toEqual([404, 'LAKE_NOT_FOUND']);
  });

  test('a service without a lake says what to set', async () => {
    await using plain = await startServing({ databaseUrl: env.databaseUrl });
    for (const path of ['_manifest.json', ROWS]) {
      const { status, json } = await plain.send({ method: 'GET', path: `${LAKE}/${path}` });
      expect([status, json.code, json.detail]).toEqual([
        404,
        'LAKE_NOT_FOUND',
        expect.stringContaining('SVC_LAKE_FOLDER'),
      ]);
    }
  });

  test.each([
    `${DAY}/other.parquet`,
    `${DAY}/_mirror.json`,
    `${placeOf(TRADES, '2024-01-02')}/rows.parquet`,
    'dataset=exchange_a_spot_trades/mode=native/date=2024-01-01/..%2Frows.parquet',
    '..%2F..%2Fx/mode=native/date=2024-01-01/rows.parquet',
    '%2E%2E/%2E%2E/%2E%2E/matrix.json',
    'a/b/c/..%2F..%2F..%2F..%2Fmatrix.json',
    '_partial/x/y/rows.parquet',
    'dataset=x%00/mode=native/date=2024/rows.parquet',
    `${ROWS}/`,
    'matrix.json',
  ])('%s is not there', async (path) => {
    await writeFile(join(lake, DAY, 'other.parquet'), 'x');
    const { status, json } = await get(path);
    expect([status, json.code]).toEqual([404, expect.stringMatching(/^(LAKE|ROUTE)_NOT_FOUND$/)]);
  });

  test('links are not followed, neither of a file nor of a folder', async () => {
    await rename(join(lake, ROWS), join(env.dir, 'elsewhere'));
    await symlink(join(env.dir, 'elsewhere'), join(lake, ROWS));
    expect(outcome(await get(ROWS))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await rm(join(lake, ROWS));
    await rename(join(env.dir, 'elsewhere'), join(lake, ROWS));
    expect((await get(ROWS)).status).toBe(200);
    await rename(join(lake, DAY), join(env.dir, 'day'));
    await symlink(join(env.dir, 'day'), join(lake, DAY));
    expect(outcome(await get(ROWS))).toEqual([503, 'LAKE_FILE_ALTERED']);
    await rm(join(env.dir, 'day'), { recursive: true });
  });

  test('a reader that reads nothing is cut off', { tags: ['nightly'] }, async () => {
    contents.set(DAY, Buffer.alloc(64 * 1024 * 1024));
    await write();
    const response = await serving.open({ method: 'GET', path: `${LAKE}/${ROWS}`, unix: true });
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
    for (const path of ['_manifest.json', ROWS]) {
      const answer = await serving.send({ method: 'GET', path: `${LAKE}/${path}`, key: 'wrong' });
      expect(outcome(answer)).toEqual([409, 'AUTH_INVALID_API_KEY']);
    }
    expect(outcome(await get(`${ROWS}?x=1`))).toEqual([409, 'QUERY_CONTRACT_ERROR']);
  });

  test.each([
    ['QUERY_RIGHTS_INGEST_ONLY', { rights_state: 'Ingest Only', legal_signoff_artifact: undefined }],
    ['QUERY_RIGHTS_BYOK_REQUIRED', { rights_state: 'BYOK Required', legal_signoff_artifact: undefined }],
    ['QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING', { legal_signoff_artifact: 'gone.md' }],
    ['QUERY_RIGHTS_MISSING_STATE', null],
  ])('%s: the matrix decides at the time of reading, with and without credentials', async (code, exchangeA) => {
    expect((await get(ROWS)).status).toBe(200);
    await writeMatrix(exchangeA);
    for (const path of [ROWS, `${DAY}/_manifest.json`]) {
      for (const headers of [undefined, { 'X-Backend-Token': 'token' }]) {
        expect(outcome(await get(path, headers))).toEqual([409, code]);
      }
    }
    // The other dataset stays, and so does the manifest, which holds no row.
    expect((await get(`${placeOf(OTHER, '2024-01-01')}/rows.parquet`)).status).toBe(200);
    expect((await get('_manifest.json')).status).toBe(200);
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
      serving.send({ method: 'GET', path: `${LAKE}/${path}`, key: by, headers });
    expect((await ask(ROWS)).status).toBe(200);
    for (const date of ['2024-01-01', '1999-01-01']) {
      const path = `${placeOf(OTHER, date)}/rows.parquet`;
      expect(outcome(await ask(path))).toEqual([409, 'AUTH_DATASET_NOT_COVERED']);
    }
    const { json, headers, text } = await ask('_manifest.json');
    expect([json.files.map(({ path }: { path: string }) => path), json.signed, json.change]).toEqual([
      [ROWS],
      null,
      change,
    ]);
    expect(headers.etag).toBe(`"${sha256Of(text)}"`);
    expect((await ask('_manifest.json', key, { 'If-None-Match': headers.etag! })).status).toBe(304);
    const options = { from: `${serving.url}${LAKE}`, to: join(env.dir, 'covered'), key };
    expect(await mirror(options)).toMatchObject({ files: 1, new: 1 });
    expect(await mirror(options)).toMatchObject({ unchanged: 1, requests: 1, bytes: 0 });
    const reading = await keyOf('two', '--scopes', 'read');
    for (const path of ['_manifest.json', ROWS])
      expect(outcome(await ask(path, reading))).toEqual([409, 'AUTH_SCOPE_MISSING']);
  });

  describe('rows that are taken back after the lake was written are not served, though the lake still has them', () => {
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
      const [day, other] = [DAY, placeOf(OTHER, '2024-01-01')];
      const answers = await Promise.all(
        [ROWS, `${day}/_manifest.json`, `${other}/rows.parquet`].map((path) => get(path)),
      );
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

    test.each([
      ...['quarantined', 'retracted', 'revised'].map((kind) => [kind, undefined] as const),
      // A replay found that the rows were wrong, and says so in no other way.
      ['proved', 'proved'],
      ['proved', 'revised'],
    ] as const)('%s after %s, with an index and before it has one', async (kind, before) => {
      if (before !== undefined) await leaf(before, '2024-01-01', 0);
      expect(await statuses()).toEqual([SERVED, SERVED, SERVED]);
      await leaf(kind, '2024-01-01', null);
      expect(await statuses()).toEqual([REFUSED, REFUSED, SERVED]);
      expect((await get(ROWS)).headers['retry-after']).toBe('1');
      // The writer has replaced the file, and states the change.
      await using client = await database();
      await client.query('update proof_leaves set leaf_index = $1 where leaf_index is null', [change]);
      expect(await statuses()).toEqual([REFUSED, REFUSED, SERVED]);
      await write();
      expect(await statuses()).toEqual([SERVED, SERVED, SERVED]);
    });

    test('of other dates and new ones only they are served; of a partition without times none', async () => {
      await leaf('quarantined', '2024-02-01', null);
      await leaf('proved', '2024-01-01', null);
      await leaf('refused', '2024-01-01', null);
      expect(await statuses()).toEqual([SERVED, SERVED, SERVED]);
      await leaf('retracted', '2024-03-01', null);
      expect(await statuses()).toEqual([REFUSED, REFUSED, SERVED]);
    });

    test('the state that is carried into a date was, from a block of the date before', async () => {
      const dataset = DATASETS.get('bitcoin_circulating_supply')!;
      const [state, rows] = ['aligned_1s', 'native'].map((mode) => placeOf(dataset.key, '2024-01-03', mode));
      for (const place of [state, rows]) contents.set(place, randomBytes(10));
      await write();
      await writeMatrix({});
      await using client = await database();
      const known = async (height: string, at: string) => {
        const ms = Date.parse(at);
        await client.query(
          `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic)
           values ($1, $2, 'proved', 1, 1, $3, $4, false)`,
          [dataset.number, height, ms, ms + 1],
        );
      };
      const takeBack = (height: string) => leaf('quarantined', height, null, dataset.number);
      const outcomes = () =>
        Promise.all([state, rows].map(async (place) => outcome(await get(`${place}/rows.parquet`))));
      for (const [height, at] of [
        ['1', '2024-01-02T10:00:00Z'],
        ['2', '2024-01-02T22:00:00Z'],
        ['3', '2024-01-02T23:00:00Z'],
        ['4', '2024-01-04T01:00:00Z'],
      ])
        await known(height, at);
      for (const height of ['1', '2', '4']) await takeBack(height);
      expect(await outcomes()).toEqual([SERVED, SERVED]);
      await takeBack('3');
      expect(await outcomes()).toEqual([REFUSED, SERVED]);
    });
  });

  test('a dataset that the service does not know is not served', async () => {
    contents.set(placeOf('another_dataset', '2024'), randomBytes(10));
    await write();
    expect(outcome(await get(`${placeOf('another_dataset', '2024')}/rows.parquet`))).toEqual([404, 'LAKE_NOT_FOUND']);
  });

  test('a matrix for synthetic rows serves only files whose manifest says that they are', async () => {
    const settings = { SVC_LAKE_FOLDER: lake };
    await using sampled = await startServing({
      databaseUrl: env.databaseUrl,
      rightsMatrixPath: SAMPLE_MATRIX,
      settings,
    });
    const ask = (path: string) => sampled.send({ method: 'GET', path: `${LAKE}/${path}` });
    for (const path of [ROWS, `${DAY}/_manifest.json`]) {
      expect(outcome(await ask(path))).toEqual([409, 'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING']);
    }
    await write({ synthetic: true });
    const { status, headers } = await ask(ROWS);
    expect([status, headers['x-svc-synthetic']]).toEqual([200, 'true']);
    // A manifest of the same size that says so, older than the root manifest, and not the one that this names.
    contents.set(DAY, randomBytes(20));
    const manifest = join(lake, DAY, '_manifest.json');
    await write();
    const forged = (await readFile(manifest, 'utf8')).replace('"synthetic": false', '"synthetic": true ');
    await writeFile(manifest, forged);
    await writeNewerRoot(manifest);
    expect((await ask(ROWS)).status).toBe(503);
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
      requests: 5,
    });
    expect(digestsIn(join(env.dir, 'mirrored'))).toEqual(digestsIn(lake));
    expect((await command('mirrored', ...key)).json).toMatchObject({ unchanged: 2, requests: 1, bytes: 0 });
    contents.set(DAY, randomBytes(1000));
    await write({ signer });
    expect((await command('mirrored', ...key)).json).toMatchObject({ replaced: 1, unchanged: 1, requests: 3 });
    await write({ signer: generateSigner('log') });
    const forged = await command('mirrored', ...key);
    expect([forged.exit, forged.json.error.code]).toEqual([1, 'MIRROR_SOURCE_INVALID']);
  });

  test('an altered file of the lake is not copied: the others are, and it is once it is whole again', async () => {
    const file = await open(join(lake, ROWS), 'r+');
    await file.write('altered', 100);
    await file.close();
    const to = join(env.dir, 'of-altered');
    const copy = () => mirror({ from: `${serving.url}${LAKE}`, to, key: API_KEY, attempts: 1 });
    await expect(copy()).rejects.toMatchObject({
      kind: 'missing',
      message: expect.stringContaining(`${ROWS} answered 503`),
    });
    const { [ROWS]: altered, ...others } = digestsIn(to);
    const other = `${placeOf(OTHER, '2024-01-01')}/rows.parquet`;
    expect([altered, others[other]]).toEqual([undefined, digestsIn(lake)[other]]);
    await writeFile(join(lake, ROWS), contents.get(DAY)!);
    // The root manifest, and the file that was refused; the others are there.
    expect(await copy()).toMatchObject({ files: 2, requests: 2 });
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
    expect(await of([url, folder])).toEqual([1, 'SERVICE_REFUSED']);
    const { json } = await runCommand(['mirror', url, folder, '--datasets', OTHER], KEYED);
    expect(json).toMatchObject({ ok: true, files: 1 });
  });
});
