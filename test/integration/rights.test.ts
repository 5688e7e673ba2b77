/**
 * Rights: what the matrix and its artifacts say decides every read, at that moment, and nothing is served in doubt.
 *
 * Faults made on purpose and caught here or in integration/rights-form, system/audit-log: a serving state ignored, a
 * form of the matrix joined otherwise, bytes not written, half a line that nobody reports, a chain that ends elsewhere.
 */
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { mkdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { makeReadRole } from '../../shared/db/roles.ts';
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';
import { MatrixInvalid, parseMatrix } from '../../shared/rights/matrix.ts';
import { RightsStore } from '../../shared/rights/store.ts';
import { DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { type Answer, eventually, migrated, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, createPrivateStack, execute, type TestEnv, testLogger } from '../support/stack.ts';

const ROLE = `byok_${Math.random().toString(36).slice(2, 10)}`;
/** One that has to be escaped wherever it goes. */
const PASSWORD = 'p@ss word/ü:1';
const RANGE = ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'];

let env: TestEnv;
let serving: Serving;
let matrixPath: string;
let artifactPath: string;

const HOSTED = {
  rights_state: 'Hosted Allowed',
  rights_provisional: false,
  datasets: [DATASET],
  legal_signoff_artifact: 'legal/exchange_a.md',
};
const matrix = (exchangeA: object, more: object = {}) => ({
  version: '1',
  sources: { exchange_a: exchangeA, ...more },
});
const writeMatrix = (value: unknown) =>
  writeFile(matrixPath, typeof value === 'string' ? value : JSON.stringify(value));

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 100, 1000, 1)]);
  await using client = await connect({ url: env.databaseUrl, name: 'test' });
  await makeReadRole(client, ROLE, false);
  await client.query(`alter role ${ROLE} password '${PASSWORD}'`);
  matrixPath = join(env.dir, 'matrix.json');
  artifactPath = join(env.dir, 'legal', 'exchange_a.md');
  await mkdir(join(env.dir, 'legal'));
  await writeMatrix(matrix(HOSTED));
  serving = await startServing({
    databaseUrl: env.databaseUrl,
    rightsMatrixPath: matrixPath,
    settings: { SVC_BYOK_DATABASE_ROLE: ROLE },
  });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await execute(env.databaseUrl, `drop owned by ${ROLE}; drop role ${ROLE}`);
  await env[Symbol.asyncDispose]();
});
beforeEach(async () => {
  await writeFile(artifactPath, 'signed');
  await writeMatrix(matrix(HOSTED));
});

const ask = (headers?: Record<string, string>, body: object = {}) =>
  serving.query({ sources: [DATASET], time_range: RANGE, ...body }, headers);
const outcome = (answer: Answer) => [answer.status, answer.json.code];
const ready = async () => (await serving.send({ method: 'GET', path: '/readyz' })).json;

describe('states', () => {
  test('Hosted Allowed is served and says so; provisional too', async () => {
    expect((await ask()).json).toMatchObject({ rights_state: 'Hosted Allowed', rights_provisional: false });
    await writeMatrix(matrix({ ...HOSTED, rights_provisional: true }));
    expect((await ask()).json).toMatchObject({ rights_state: 'Hosted Allowed', rights_provisional: true });
  });

  test('Ingest Only is not served, in either mode, and needs no artifact to be refused', async () => {
    await writeMatrix(matrix({ ...HOSTED, rights_state: 'Ingest Only', legal_signoff_artifact: undefined }));
    expect(outcome(await ask())).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
    expect(outcome(await ask({}, { mode: 'aligned_1s' }))).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
  });

  test('a dataset that no source declares is not served', async () => {
    await writeMatrix({ version: '1', sources: {} });
    expect(outcome(await ask())).toEqual([409, 'QUERY_RIGHTS_MISSING_STATE']);
    expect(outcome(await serving.query({ sources: ['etf_daily_metrics'] }))).toEqual([
      409,
      'QUERY_RIGHTS_MISSING_STATE',
    ]);
  });

  test('of several sources the most restrictive state holds, and any provisional one makes it provisional', async () => {
    const etf = (state: string, provisional = false) => ({
      ...HOSTED,
      rights_state: state,
      rights_provisional: provisional,
      datasets: ['etf_daily_metrics'],
    });
    const query = () => serving.query({ sources: ['etf_daily_metrics'] });
    // The first two of the ten funds, and all the others as they are when nothing is the matter.
    const [one, other, ...rest] = etfDailyMetrics.sources;
    const others = Object.fromEntries(rest.map((source) => [source, etf('Hosted Allowed')]));
    const two = (a: object, b: object) => matrix(HOSTED, { [one]: a, [other]: b, ...others });
    await writeMatrix(matrix(HOSTED, { [one]: etf('Hosted Allowed'), ...others }));
    expect(outcome(await query())).toEqual([409, 'QUERY_RIGHTS_MISSING_STATE']);
    await writeMatrix(two(etf('Hosted Allowed'), etf('Ingest Only')));
    expect(outcome(await query())).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
    await writeMatrix(two(etf('BYOK Required'), etf('Hosted Allowed')));
    expect(outcome(await query())).toEqual([409, 'QUERY_RIGHTS_BYOK_REQUIRED']);
    await writeMatrix(two(etf('Hosted Allowed', true), etf('Hosted Allowed')));
    expect(outcome(await query())).toEqual([404, 'QUERY_NO_DATA']);
  });

  test('a frame needs the rights of all its datasets, and has the most restrictive', async () => {
    const trades = { name: 'close', dataset: DATASET, field: 'price' };
    const blocks = { name: 'height', dataset: 'bitcoin_block_headers', field: 'height' };
    const node = (state: string) => ({ ...HOSTED, rights_state: state, datasets: ['bitcoin_block_headers'] });
    const frame = (columns: readonly object[], headers: Record<string, string> = {}) =>
      serving.send({ path: '/v1/frame', headers, body: JSON.stringify({ columns, grid: '1h', time_range: RANGE }) });
    const both = [trades, blocks];
    await writeMatrix(matrix(HOSTED, { bitcoin_core: node('Ingest Only') }));
    expect(outcome(await frame(both))).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
    expect((await frame([trades])).json).toMatchObject({ rights_state: 'Hosted Allowed' });
    await writeMatrix(matrix(HOSTED, { bitcoin_core: node('BYOK Required') }));
    expect(outcome(await frame(both))).toEqual([409, 'QUERY_RIGHTS_BYOK_REQUIRED']);
    expect(outcome(await frame(both, { 'X-Backend-Token': 'wrong' }))).toEqual([409, 'QUERY_RIGHTS_BYOK_REFUSED']);
    const own = await frame(both, { 'X-Backend-Token': Buffer.from(PASSWORD).toString('latin1') });
    expect([own.status, own.json.rights_state], own.text.slice(0, 300)).toEqual([200, 'BYOK Required']);
    await writeMatrix(matrix(HOSTED));
    expect(outcome(await frame(both))).toEqual([409, 'QUERY_RIGHTS_MISSING_STATE']);
  });

  test('rights come after the contract, before strict and the queue', async () => {
    await writeMatrix(matrix({ ...HOSTED, rights_state: 'Ingest Only' }));
    expect(outcome(await ask({}, { fields: ['nope'] }))).toEqual([409, 'QUERY_CONTRACT_ERROR']);
    const strict = await serving.query({ sources: [DATASET], n_rows: 1, strict: true });
    expect(outcome(strict)).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
  });
});

describe('the serving state', () => {
  const METRICS = ['etf_daily_metrics', 'macro_series_metrics'] as const;
  const entry = (dataset: string, state = 'Hosted Allowed') => ({
    ...HOSTED,
    rights_state: state,
    datasets: [dataset],
  });
  const declare = (state?: string) =>
    writeMatrix(
      matrix(HOSTED, {
        ...Object.fromEntries(etfDailyMetrics.sources.map((source) => [source, entry(METRICS[0], state)])),
        macro: entry(METRICS[1], state),
      }),
    );

  test.each([
    [METRICS[0], 'SVC_ETF_QUERY_SERVING_STATE', METRICS[1]],
    [METRICS[1], 'SVC_MACRO_QUERY_SERVING_STATE', METRICS[0]],
  ] as const)(
    '%s in shadow is refused, after rights and before strict; the others are not',
    async (key, setting, other) => {
      await using shadow = await startServing({
        databaseUrl: env.databaseUrl,
        rightsMatrixPath: matrixPath,
        settings: { [setting]: 'shadow' },
      });
      await declare();
      for (const mode of ['native', 'aligned_1s']) {
        const refused = await shadow.query({ sources: [key], mode, n_rows: 1, strict: true });
        expect(outcome(refused)).toEqual([409, 'QUERY_SERVING_SHADOW_MODE']);
        expect(outcome(await shadow.query({ sources: [other], mode }))).toEqual([404, 'QUERY_NO_DATA']);
      }
      expect((await shadow.query({ sources: [DATASET], n_rows: 1 })).status).toBe(200);
      await declare('Ingest Only');
      expect(outcome(await shadow.query({ sources: [key] }))).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
      expect(outcome(await shadow.query({ sources: [key], n_rows: 0 }))).toEqual([409, 'QUERY_CONTRACT_ERROR']);
    },
  );

  test('both are promoted unless told otherwise', async () => {
    await declare();
    for (const key of METRICS) expect(outcome(await serving.query({ sources: [key] }))).toEqual([404, 'QUERY_NO_DATA']);
  });
});

describe('legal artifacts', () => {
  test('missing, empty, altered, unreadable, unnamed: refused until put right', async () => {
    const refused = [409, 'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING'];
    const sha256 = createHash('sha256').update('signed').digest('hex');
    await writeMatrix(matrix({ ...HOSTED, legal_signoff_sha256: sha256 }));
    expect((await ask()).status).toBe(200);
    await writeFile(artifactPath, 'signee');
    expect(outcome(await ask())).toEqual(refused);
    await writeFile(artifactPath, 'signed');
    expect((await ask()).status).toBe(200);
    await rm(artifactPath);
    expect(outcome(await ask())).toEqual(refused);
    await mkdir(artifactPath);
    expect(outcome(await ask())).toEqual(refused);
    await rm(artifactPath, { recursive: true });
    await writeFile(artifactPath, ' \n');
    expect(outcome(await ask())).toEqual(refused);
    await writeMatrix(matrix({ ...HOSTED, legal_signoff_artifact: undefined }));
    expect(outcome(await ask())).toEqual(refused);
    expect((await ask()).text).not.toContain(env.dir);
  });

  test('a link is followed, and paths start at the matrix file', async () => {
    await rm(artifactPath);
    await writeFile(join(env.dir, 'elsewhere.md'), 'signed');
    await symlink(join(env.dir, 'elsewhere.md'), artifactPath);
    expect((await ask()).status).toBe(200);
    await rm(join(env.dir, 'elsewhere.md'));
    expect((await ask()).status).toBe(409);
    await rm(artifactPath);
  });

  test('/readyz tells of them, without a path', async () => {
    await rm(artifactPath);
    const store = new RightsStore(matrixPath, { byokRole: undefined, log: testLogger() });
    expect(store.faults()).toEqual([
      'sources.exchange_a.legal_signoff_artifact: it does not exist, or its folder is not accessible',
    ]);
  });
});

describe('the file', () => {
  test('broken while running: reads fail closed with 503 and go on when it is right again', async () => {
    for (const broken of [
      '',
      '{',
      '[]',
      '{"version":"1"}',
      JSON.stringify(matrix({ ...HOSTED, rights_state: 'Maybe' })),
    ]) {
      await writeMatrix(broken);
      const answer = await ask();
      expect(outcome(answer)).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
      expect(answer.headers['retry-after']).toBeDefined();
      expect(answer.text).not.toContain(env.dir);
    }
    await rm(matrixPath);
    expect(outcome(await ask())).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
    await writeMatrix(matrix(HOSTED));
    expect((await ask()).status).toBe(200);
  });

  test('a right withdrawn is withdrawn with the next request, also in a file of the same size', async () => {
    const letters = (state: string) =>
      JSON.stringify(matrix({ ...HOSTED, rights_state: state, legal_signoff_artifact: undefined }));
    await writeMatrix(`${letters('Ingest Only')}   `);
    expect(outcome(await ask())).toEqual([409, 'QUERY_RIGHTS_INGEST_ONLY']);
    await writeMatrix(letters('Hosted Allowed'));
    expect(outcome(await ask())).toEqual([409, 'QUERY_RIGHTS_LEGAL_SIGNOFF_MISSING']);
  });

  test('so is one changed again within a tick of the clock', () => {
    const store = new RightsStore(matrixPath, { byokRole: ROLE, log: testLogger() });
    const states = ['Hosted Allowed', 'BYOK Required'];
    const seen = Array.from({ length: 100 }, (_, i) => {
      const state = states[i % 2];
      writeFileSync(matrixPath, JSON.stringify(matrix({ ...HOSTED, rights_state: state })).padEnd(400));
      writeFileSync(artifactPath, i % 2 === 0 ? 'signed' : '      ');
      const current = store.current();
      if ('faults' in current) return current.faults;
      const [rights] = current.matrix.sources;
      return [rights.state === state, store.signoff(rights).fault];
    });
    expect(seen).toEqual(seen.map((_, i) => [true, i % 2 === 0 ? undefined : 'it is empty']));
  });

  test('what is no file, or not one of the size of a matrix, is refused like a broken one', async () => {
    await rm(matrixPath);
    await symlink(matrixPath, matrixPath);
    expect(outcome(await ask())).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
    await rm(matrixPath);
    await mkdir(matrixPath);
    expect(outcome(await ask())).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
    await rm(matrixPath, { recursive: true });
    await writeFile(matrixPath, JSON.stringify(matrix(HOSTED)).padEnd(2 ** 20 + 1));
    expect(outcome(await ask())).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
  });

  test('a source declared twice is neither', async () => {
    const [allowed, refused] = [HOSTED, { ...HOSTED, rights_state: 'Ingest Only' }].map((one) => JSON.stringify(one));
    await writeMatrix(`{"version":"1","sources":{"exchange_a":${refused},"exchange_a":${allowed}}}`);
    expect(outcome(await ask())).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
  });

  test('/readyz is 503 while it is invalid', async () => {
    await writeMatrix('{');
    await using other = await startServing({ databaseUrl: env.databaseUrl, rightsMatrixPath: matrixPath });
    const answer = await other.send({ method: 'GET', path: '/readyz', key: null });
    expect(outcome(answer)).toEqual([503, 'NOT_READY']);
    expect(answer.json.checks).toMatchObject({ rights: 'invalid', database: 'ok' });
    expect(answer.text).not.toContain(env.dir);
    expect((await ready()).status).toBeDefined();
  });

  const invalid: readonly [string, unknown, RegExp][] = [
    [
      'unknown source',
      matrix(HOSTED, { exchange_z: { ...HOSTED, datasets: [DATASET] } }),
      /exchange_z: there is no such source/,
    ],
    ['unknown dataset', matrix({ ...HOSTED, datasets: ['exchange_a_futures'] }), /datasets/],
    ['dataset of another source', matrix({ ...HOSTED, datasets: ['macro_series_metrics'] }), /does not feed/],
    [
      'provisional without hosted',
      matrix({ ...HOSTED, rights_state: 'Ingest Only', rights_provisional: true }),
      /allowed only with Hosted/,
    ],
    ['no provisional', matrix({ ...HOSTED, rights_provisional: undefined }), /rights_provisional/],
    ['no state', matrix({ ...HOSTED, rights_state: undefined }), /rights_state/],
    ['state in other letters', matrix({ ...HOSTED, rights_state: 'hosted allowed' }), /rights_state/],
    ['no datasets', matrix({ ...HOSTED, datasets: [] }), /datasets/],
    ['unknown key', matrix({ ...HOSTED, note: 'x' }), /note/],
    ['unknown key on top', { ...matrix(HOSTED), comment: 'x' }, /comment/],
    ['no version', { sources: {} }, /version/],
    ['digest that is none', matrix({ ...HOSTED, legal_signoff_sha256: 'abc' }), /legal_signoff_sha256/],
    ['BYOK without a role', matrix({ ...HOSTED, rights_state: 'BYOK Required' }), /SVC_BYOK_DATABASE_ROLE/],
  ];
  test.each(invalid)('%s makes it invalid', (_, value, fault) => {
    const parse = () => parseMatrix(Buffer.from(JSON.stringify(value)), { byokRole: undefined });
    expect(parse).toThrow(MatrixInvalid);
    expect(parse).toThrow(fault);
  });

  test('every fault is named at once', () => {
    const faults = () => {
      try {
        parseMatrix(
          Buffer.from(
            JSON.stringify(
              matrix({ ...HOSTED, rights_state: 'Ingest Only', rights_provisional: true }, { exchange_z: HOSTED }),
            ),
          ),
          { byokRole: undefined },
        );
      } catch (error) {
        return (error as MatrixInvalid).faults;
      }
    };
    expect(faults()).toHaveLength(2);
  });
});

describe('the caller’s own credentials', () => {
  const byok = () =>
    writeMatrix(matrix({ ...HOSTED, rights_state: 'BYOK Required', legal_signoff_artifact: undefined }));
  const token = (value: string) => ({ 'X-Backend-Token': Buffer.from(value).toString('latin1') });

  test('without a token: refused; with a wrong one: refused; with the role’s password: served by that role', async () => {
    await byok();
    expect(outcome(await ask())).toEqual([409, 'QUERY_RIGHTS_BYOK_REQUIRED']);
    expect(outcome(await ask(token('  ')))).toEqual([409, 'QUERY_RIGHTS_BYOK_REQUIRED']);
    expect(outcome(await ask(token('wrong')))).toEqual([409, 'QUERY_RIGHTS_BYOK_REFUSED']);
    for (const mode of ['native', 'aligned_1s']) {
      for (const window of [{}, { time_range: undefined, n_rows: 5 }, { time_range: undefined, n_random: 5 }]) {
        const answer = await ask(token(PASSWORD), { mode, ...window });
        expect(answer.status, answer.text.slice(0, 300)).toBe(200);
        expect(answer.json.rights_state).toBe('BYOK Required');
      }
    }
    // What the role may not see, its callers do not get: not even from what another caller's read left behind.
    await execute(env.databaseUrl, `revoke select on exchange_a_spot_trades from ${ROLE}`);
    try {
      const answer = await ask(token(PASSWORD), { time_range: undefined, n_rows: 5 });
      expect(outcome(answer)).toEqual([503, 'QUERY_BACKEND_ERROR']);
    } finally {
      await execute(env.databaseUrl, `grant select on exchange_a_spot_trades to ${ROLE}`);
    }
  });

  test('a role that can do more than read serves nobody', async () => {
    await byok();
    await execute(env.databaseUrl, `alter role ${ROLE} createrole`);
    try {
      const answer = await ask(token(PASSWORD));
      expect(outcome(answer)).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
      expect(outcome(await ask(token('wrong')))).toEqual([409, 'QUERY_RIGHTS_BYOK_REFUSED']);
      await using other = await startServing({
        databaseUrl: env.databaseUrl,
        rightsMatrixPath: matrixPath,
        settings: { SVC_BYOK_DATABASE_ROLE: ROLE },
      });
      const found = await other.send({ method: 'GET', path: '/readyz', key: null });
      expect(outcome(found)).toEqual([503, 'NOT_READY']);
      expect(found.json.checks).toMatchObject({ rights: 'ok', byok_role: 'unfit' });
      expect(found.text).not.toContain(ROLE);
    } finally {
      await execute(env.databaseUrl, `alter role ${ROLE} nocreaterole`);
    }
    expect((await ask(token(PASSWORD))).status).toBe(200);
    expect((await ready()).checks).toMatchObject({ byok_role: 'ok' });
  });

  test('a database that asks for no password proves nothing: refused until it does', {
    tags: ['nightly'],
  }, async () => {
    await using own = await createPrivateStack();
    await migrated(own.stack.databaseUrl);
    await loadDays(own.stack.databaseUrl, [randomDay('2024-03-01', 100, 1000, 1)]);
    await using client = await connect({ url: own.stack.databaseUrl, name: 'test' });
    const { password } = await makeReadRole(client, 'reader', false);
    await using open = await startServing({
      databaseUrl: own.stack.databaseUrl,
      rightsMatrixPath: matrixPath,
      settings: { SVC_BYOK_DATABASE_ROLE: 'reader' },
    });
    await byok();
    const query = (value: string) => open.query({ sources: [DATASET], time_range: RANGE }, token(value));
    expect(outcome(await query('wrong'))).toEqual([409, 'QUERY_RIGHTS_BYOK_REFUSED']);
    const hba = (await client.query('show hba_file')).rows[0].hba_file;
    const before = await readFile(hba, 'utf8');
    await writeFile(hba, 'local all all trust\nhost all all all trust\n');
    await client.query('select pg_reload_conf()');
    await eventually(async () => (await query('wrong')).status === 503, 'the database asks for no password');
    expect(outcome(await query('wrong'))).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
    expect(outcome(await query(password!))).toEqual([503, 'QUERY_RIGHTS_RESOLUTION_ERROR']);
    await writeFile(hba, before);
    await client.query('select pg_reload_conf()');
    await eventually(async () => (await query('wrong')).status === 409, 'it asks again');
    expect((await query(password!)).status).toBe(200);
  });

  test('the connection is not kept for others', async () => {
    await byok();
    await ask(token(PASSWORD));
    // A session that was closed is listed until its process has ended.
    const sessions = `select count(*)::int4 as n from pg_stat_activity where usename = '${ROLE}'`;
    await expect
      .poll(async () => (await execute(env.databaseUrl, sessions)).rows[0].n, { timeout: 10_000 })
      .toBeLessThanOrEqual(1);
    await writeMatrix(matrix(HOSTED));
    expect((await ask(token('wrong'))).json.rights_state).toBe('Hosted Allowed');
  });
});
