/** Named keys: the command that makes them, and what the service lets through with each, until when. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { keyDigest, SCOPES, type Scope } from '../../shared/keys/key.ts';
import { DATASET_KEYS, DATASETS } from '../../shared/registry/index.ts';
import type { Json } from '../support/command.ts';
import { DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { parseMetrics, sampleOf } from '../support/metrics.ts';
import { System } from '../support/pipeline.ts';
import { type Answer, API_KEY, eventually, type Serving, startServing } from '../support/serving.ts';

const OTHER = 'macro_series_metrics';

let system: System;
let serving: Serving;
/** Another process, as far as keys go: it has its own copy of them. */
let second: Serving;
beforeAll(async () => {
  system = await System.create();
  await loadDays(system.env.databaseUrl, [randomDay('2024-03-01', 50, 1000, 1)]);
  [serving, second] = await Promise.all([serve(), serve()]);
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await second?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

const serve = () =>
  startServing({ databaseUrl: system.env.databaseUrl, settings: { SVC_STATE_DIR: `${system.env.dir}/state` } });

const keys = async (...args: string[]) => await system.run(['keys', ...args]);
let made = 0;
/** A key with that scope unless told otherwise. @returns its secret */
async function add(scopes: string, ...more: string[]): Promise<string> {
  const { exit, stdout, json } = await keys('add', `key-${++made}`, '--scopes', scopes, ...more);
  expect(exit, stdout).toBe(0);
  return json.secret;
}

const outcome = ({ status, json }: Answer) => (json?.code ? `${status} ${json.code}` : String(status));
const query = (key: string, to = serving, body: object = { sources: [DATASET], n_rows: 1 }) =>
  to.send({ key, body: JSON.stringify(body) });

/** Reads of the dataset wait until its disposal. */
async function locked(): Promise<AsyncDisposable> {
  const client = await connect({ url: system.env.databaseUrl, name: 'test' });
  await client.query(`begin; lock table ${DATASET} in access exclusive mode`);
  return client;
}

describe('the command', () => {
  test('adds a key, shows it once, lists it without, rotates and revokes it', async () => {
    const terms = ['--scopes', 'export,read', '--datasets', `${OTHER},${DATASET}`, '--expires', '2999-01-01'];
    const added = await keys('add', 'Desk.of_A-1', ...terms, '--requests-per-minute', '60', '--concurrent-reads', '2');
    expect(added.json).toEqual({
      command: 'keys',
      ok: true,
      action: 'add',
      secret: expect.stringMatching(/^tmk_[0-9a-f]{12}_[A-Za-z0-9_-]{43}$/),
      keys: [
        {
          id: added.json.secret.slice(4, 16),
          name: 'Desk.of_A-1',
          state: 'active',
          scopes: ['read', 'export'],
          datasets: DATASET_KEYS.filter((key) => key === DATASET || key === OTHER),
          requests_per_minute: 60,
          concurrent_reads: 2,
          created_at_utc: expect.stringMatching(/Z$/),
          expires_at_utc: '2999-01-01T00:00:00.000Z',
          rotated_at_utc: null,
          previous_until_utc: null,
          revoked_at_utc: null,
        },
      ],
    });
    const listed = await keys('list');
    expect(listed.json.keys).toContainEqual(added.json.keys[0]);
    expect(listed.stdout).not.toContain(added.json.secret.slice(17));
    const rotated = await keys('rotate', 'Desk.of_A-1', '--grace', '60');
    expect(rotated.json.secret.slice(0, 17)).toBe(added.json.secret.slice(0, 17));
    expect(rotated.json.secret).not.toBe(added.json.secret);
    const { rotated_at_utc: at, previous_until_utc: until } = rotated.json.keys[0];
    expect(Date.parse(until) - Date.parse(at)).toBe(60_000);
    const revoked = await keys('revoke', 'Desk.of_A-1');
    expect(revoked.json.keys[0]).toMatchObject({ state: 'revoked', revoked_at_utc: expect.stringMatching(/Z$/) });
    expect((await keys('revoke', 'Desk.of_A-1')).json).toEqual(revoked.json);
  });

  test('adds a key for an instrument that nobody reads, and says so', async () => {
    const of = async (name: string, symbol: string) =>
      (await keys('add', name, '--scopes', 'read', '--datasets', `${DATASET}:${symbol}`)).json.unknown_instruments;
    expect([await of('unread', 'ETHUSD'), await of('default', 'BTCUSDT')]).toEqual([[`${DATASET}:ETHUSD`], undefined]);
  });

  const ADD = ['add', 'refused', '--scopes', 'read'];
  test.each<[readonly string[], RegExp, string?]>([
    [['add', 'refused', '--scopes', 'read,write'], /--scopes: "write" is none of read, export, operate, metrics/],
    [[...ADD, '--datasets', 'exchange_z'], /--datasets: "exchange_z" is none of .*exchange_a_spot_trades/],
    [[...ADD, '--datasets', 'macro_series_metrics:UNRATE'], /macro_series_metrics has no instruments/],
    [[...ADD, '--datasets', "exchange_a_spot_trades:X' or 1=1"], /is no instrument: at most 32 letters/],
    [['add', 'refused', '--scopes', 'operate', '--datasets', DATASET], /--datasets bounds the scopes read and export/],
    [[...ADD, '--expires', '2020-01-01'], /--expires is over: 2020-01-01/],
    [[...ADD, '--expires', '2020-01-01T00:00:00Z'], /--expires is over/],
    [[...ADD, '--expires', '0d'], /--expires must be a day/],
    [[...ADD, '--expires', 'soon'], /--expires must be a day/],
    [['add', 'owner', '--scopes', 'read'], /"owner" cannot name a key/],
    [['add', 'taken', '--scopes', 'read'], /There is a key taken already, and it is active/, 'USAGE'],
    [['add', 'gone', '--scopes', 'read'], /There is a key gone already, and it is revoked/, 'USAGE'],
    [['rotate', 'gone'], /The key gone is revoked/, 'USAGE'],
    [['rotate', 'over'], /The key over is expired/, 'USAGE'],
    [['rotate', 'nobody'], /There is no key "nobody"/, 'USAGE'],
    [['revoke', 'nobody'], /There is no key "nobody"/, 'USAGE'],
  ])('refuses %j and changes nothing', async (args, message, code = 'USAGE') => {
    await givenKeys();
    const before = await stored();
    const { exit, json } = await keys(...args);
    expect(json.error).toMatchObject({ code, message: expect.stringMatching(message) });
    expect(exit).toBe(code === 'USAGE' ? 2 : 1);
    expect(await stored()).toEqual(before);
  });

  const stored = async () => (await system.client.query('select * from api_keys order by name')).rows;
  /** One that is in use, one that was revoked, and one that expired. */
  async function givenKeys(): Promise<void> {
    if ((await stored()).some(({ name }) => name === 'taken')) return;
    for (const name of ['taken', 'gone', 'over']) {
      expect((await keys('add', name, '--scopes', 'read', '--expires', '1d')).exit).toBe(0);
    }
    await keys('revoke', 'gone');
    await system.client.query(`update api_keys set expires_at = now() - interval '1 second' where name = 'over'`);
  }
});

/** The scope of each route; a route that is not here has none yet. */
const SCOPE_OF: Readonly<Record<string, Scope | 'open'>> = {
  'POST /v1/raw/query': 'read',
  'POST /v1/raw/estimate': 'read',
  'POST /v1/frame': 'read',
  ...Object.fromEntries(
    [...DATASETS.values()].flatMap(({ historicalPath, trades }) =>
      [historicalPath, ...(trades ? [trades.klinesPath] : [])].map((path) => [`POST /v1/historical/${path}`, 'read']),
    ),
  ),
  'GET /v1/datasets': 'read',
  'GET /v1/instruments': 'read',
  'GET /v1/conditions': 'read',
  'GET /v1/coverage/{dataset}': 'read',
  'GET /v1/changes': 'read',
  'GET /v1/revisions': 'read',
  'GET /v1/revisions/{id}/diff': 'operate',
  'GET /v1/lineage/{dataset}/{offset}': 'read',
  'GET /v1/lake/_manifest.json': 'export',
  'GET /v1/lake/_proofs/{dataset}/{mode}/{file}': 'export',
  'GET /v1/lake/{dataset}/{mode}/{folder}/{file}': 'export',
  'GET /v1/lake/{dataset}/{mode}/{date}/{instrument}/{file}': 'export',
  'POST /v1/raw/export': 'export',
  'GET /v1/raw/export': 'export',
  'GET /v1/raw/export/{export_id}': 'export',
  'DELETE /v1/raw/export/{export_id}': 'export',
  'GET /v1/raw/export/{export_id}/artifact': 'export',
  'GET /v1/raw/export/{export_id}/artifact/{file}': 'export',
  'GET /v1/raw/export/{export_id}/manifest': 'export',
  'GET /v1/ops/status': 'operate',
  'GET /v1/ops/history': 'operate',
  'GET /metrics': 'metrics',
  ...Object.fromEntries(
    [
      ...['/openapi.json', '/healthz', '/readyz'],
      ...['key', 'checkpoint', 'checkpoint/{size}', 'tile/{level}/{a}', 'tile/{level}/{a}/{b}'].map(
        (path) => `/v1/proofs/${path}`,
      ),
    ].map((path) => [`GET ${path}`, 'open']),
  ),
};

interface Operation {
  readonly name: string;
  readonly method: string;
  readonly path: string;
  readonly scope: Scope | 'open';
}

async function operations(): Promise<Operation[]> {
  const { json } = await serving.send({ method: 'GET', path: '/openapi.json', key: null });
  return Object.entries<Json>(json.paths).flatMap(([path, methods]) =>
    Object.entries<Json>(methods)
      .filter(([method]) => method !== 'head')
      .map(([method, { security }]) => ({
        name: `${method.toUpperCase()} ${path}`,
        method: method.toUpperCase(),
        path: path.replace('{dataset}', DATASET).replaceAll(/\{\w+\}/g, 'x'),
        scope: security[0]?.key[0] ?? 'open',
      })),
  );
}

describe('scopes', () => {
  test('each route has the scope that is decided for it', async () => {
    const found = (await operations()).filter(({ name }) => !name.startsWith('GET /v1/proofs/'));
    const decided = Object.entries(SCOPE_OF).filter(([name]) => !name.startsWith('GET /v1/proofs/'));
    expect(found.map(({ name, scope }) => [name, scope]).sort()).toEqual(decided.sort());
    const open = (await operations()).filter(({ name }) => name.startsWith('GET /v1/proofs/'));
    expect(new Set(open.map(({ scope }) => scope))).toEqual(new Set(['open']));
  });

  test.each(SCOPES)('a key with %s opens its routes and no others', async (scope) => {
    const key = await add(scope);
    for (const { name, method, path, scope: needed } of await operations()) {
      const answer = await serving.send({ method, path, key, ...(method === 'POST' && { body: '{}' }) });
      if (needed === scope || needed === 'open') expect(`${answer.json?.code}`, name).not.toMatch(/^AUTH_/);
      else expect([name, outcome(answer)]).toEqual([name, '409 AUTH_SCOPE_MISSING']);
    }
    const refused = await serving.send({
      method: 'GET',
      path: scope === 'operate' ? '/metrics' : '/v1/ops/status',
      key,
    });
    expect(refused.json.detail).toMatch(/needs the scope (operate|metrics), and the key key-\d+ has (\w+)\./);
  });

  test('the configured key has all of them, and no limit', async () => {
    for (const { name, method, path } of await operations()) {
      const answer = await serving.send({ method, path, ...(method === 'POST' && { body: '{}' }) });
      expect(`${answer.json?.code}`, name).not.toMatch(/^AUTH_/);
      expect(answer.headers).not.toHaveProperty('ratelimit');
    }
  });

  test('a scraper’s named key comes as a bearer token', async () => {
    const key = await add('metrics');
    const headers = { Authorization: `Bearer ${key}` };
    expect((await serving.send({ method: 'GET', path: '/metrics', key: null, headers })).status).toBe(200);
  });
});

describe('datasets', () => {
  const EXPORT = { format: 'csv', n_rows: 1 };
  const column = (dataset: string, field: string) => ({ name: field, dataset, field });

  test('that a key does not cover: the refusal of /v1/changes was not declared', async () => {
    const { json } = await serving.send({ method: 'GET', path: '/openapi.json' });
    const [changes, coverage] = ['/v1/changes', '/v1/coverage/{dataset}'].map((path) =>
      JSON.stringify(json.paths[path].get.responses),
    );
    for (const declared of [changes, coverage]) {
      for (const code of ['AUTH_DATASET_NOT_COVERED', 'AUTH_CONCURRENCY_LIMITED'])
        expect(declared).toContain(`"${code}"`);
    }
  });

  test('that a key does not cover are refused by every route that reads them, and not listed', async () => {
    const key = await add('read,export', '--datasets', OTHER);
    const frame = { grid: '1h', time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'] };
    const of = (dataset: string): [string, string, object?][] => [
      ['POST', '/v1/raw/query', { sources: [dataset], n_rows: 1 }],
      ['POST', '/v1/raw/estimate', { sources: [dataset], n_rows: 1 }],
      ['POST', '/v1/raw/export', { dataset, ...EXPORT }],
      ['POST', `/v1/historical/${DATASETS.get(dataset)!.historicalPath}`, { mode: 'native', n_latest_rows: 1 }],
      ['GET', `/v1/coverage/${dataset}`],
      ['GET', `/v1/lineage/${dataset}/1000`],
      ['GET', `/v1/changes?dataset=${dataset}`],
    ];
    const send = ([method, path, body]: [string, string, object?], as: string | undefined = key) =>
      serving.send({ method, path, key: as, ...(body && { body: JSON.stringify(body) }) });
    const mixed = [column(OTHER, 'metric_value_float'), column(DATASET, 'price')];
    const refused: [string, string, object?][] = [
      ...of(DATASET),
      ['POST', `/v1/historical/${DATASETS.get(DATASET)!.trades!.klinesPath}`, { kline_size: 3600, n_latest_rows: 1 }],
      ['POST', '/v1/frame', { ...frame, columns: mixed }],
      ['POST', '/v1/raw/export', { format: 'csv', ...frame, columns: mixed }],
    ];
    for (const request of refused) {
      const answer = await send(request);
      const owned = await send(request, API_KEY);
      if (owned.json?.code?.endsWith('CONTRACT_ERROR')) expect([request, owned.json.errors]).toEqual([]);
      expect([request, outcome(answer)]).toEqual([request, '409 AUTH_DATASET_NOT_COVERED']);
      expect(answer.json.detail).toContain(`does not cover ${DATASET}.`);
    }
    for (const request of of(OTHER)) expect(`${(await send(request)).json?.code}`).not.toMatch(/^AUTH_/);
    const { json } = await serving.send({ method: 'GET', path: '/v1/datasets', key });
    expect(json.datasets.map((one: Json) => one.key ?? one.dataset)).toEqual([OTHER]);
    const all = await serving.send({ method: 'GET', path: '/v1/datasets' });
    expect(all.json.datasets).toHaveLength(DATASETS.size);
  });
});

describe('changes', () => {
  const STREAM = { Accept: 'text/event-stream' };

  /** The catalog as it is after changes of two datasets, whatever they were. */
  beforeAll(async () => {
    for (const [index, dataset] of [DATASET, OTHER, DATASET].entries()) {
      await system.client.query(
        `insert into proof_leaves (leaf_index, dataset_id, kind, body) values ($1, $2, 'proved', '{"v":1}')`,
        [index, DATASETS.get(dataset)!.number],
      );
    }
    await system.client.query(`insert into proof_head (size, root) values (3, sha256('')) on conflict do nothing`);
  });

  test('of datasets that a key does not cover are passed over, and never sent', async () => {
    const key = await add('read', '--datasets', OTHER);
    const { json } = await serving.send({ method: 'GET', path: '/v1/changes', key });
    expect(json).toEqual({ changes: [{ number: 2, salt: null, v: 1 }], next: 3 });
    const response = await serving.open({ method: 'GET', path: '/v1/changes', key, headers: STREAM });
    let text = '';
    response.setEncoding('utf8').on('data', (chunk: string) => {
      text += chunk;
    });
    await eventually(() => text.includes('"number":2'), 'the change');
    expect(text).not.toMatch(/"number":[13]/);
    response.destroy();
  });

  test('are followed beside the reads of a key, until it is revoked', async () => {
    const key = await add('read', '--concurrent-reads', '3');
    const name = `key-${made}`;
    const streams = [1, 2].map(() => serving.open({ method: 'GET', path: '/v1/changes', key, headers: STREAM }));
    const [one, other] = await Promise.all(streams);
    expect([one.statusCode, other.statusCode, outcome(await query(key))]).toEqual([200, 200, '200']);
    const ended = [one, other].map(
      (response) => new Promise((resolve) => response.on('error', () => {}).once('close', resolve)),
    );
    for (const response of [one, other]) response.resume();
    await keys('revoke', name);
    await Promise.all(ended);
    expect(outcome(await serving.send({ method: 'GET', path: '/v1/changes', key, headers: STREAM }))).toBe(
      '409 AUTH_KEY_REVOKED',
    );
  });
});

describe('a change is noticed by every process', () => {
  const both = async (key: string) => [outcome(await query(key)), outcome(await query(key, second))];

  test('a new key, and its end', async () => {
    const key = await add('read');
    const name = `key-${made}`;
    await expect.poll(() => both(key)).toEqual(['200', '200']);
    await keys('revoke', name);
    await expect.poll(() => both(key)).toEqual(['409 AUTH_KEY_REVOKED', '409 AUTH_KEY_REVOKED']);
    const { json } = await query(key);
    expect(json.detail).toMatch(new RegExp(`^The key ${name} was revoked at 20`));
  });

  test('another secret, with grace and without', { tags: ['nightly'] }, async () => {
    const first = await add('read');
    const name = `key-${made}`;
    const { secret: next } = (await keys('rotate', name, '--grace', '3600')).json;
    await expect
      .poll(async () => [await both(first), await both(next)])
      .toEqual([
        ['200', '200'],
        ['200', '200'],
      ]);
    // Grace ends by the database's clock.
    await system.client.query(`update api_keys set previous_until = clock_timestamp() where name = $1`, [name]);
    await expect
      .poll(async () => [await both(first), await both(next)])
      .toEqual([
        ['409 AUTH_KEY_REVOKED', '409 AUTH_KEY_REVOKED'],
        ['200', '200'],
      ]);
    expect((await query(first)).json.detail).toContain('Send the key that replaced it.');
    const { secret: last } = (await keys('rotate', name)).json;
    await expect.poll(() => both(next)).toEqual(['409 AUTH_KEY_REVOKED', '409 AUTH_KEY_REVOKED']);
    // Two rotations ago: nobody knows it any more.
    expect(await both(first)).toEqual(['409 AUTH_INVALID_API_KEY', '409 AUTH_INVALID_API_KEY']);
    expect(await both(last)).toEqual(['200', '200']);
  });

  test('the end of its time', { tags: ['nightly'] }, async () => {
    const key = await add('read', '--expires', '1d');
    expect(await both(key)).toEqual(['200', '200']);
    await system.client.query(`update api_keys set expires_at = clock_timestamp() where name = $1`, [`key-${made}`]);
    await expect.poll(() => both(key)).toEqual(['409 AUTH_KEY_EXPIRED', '409 AUTH_KEY_EXPIRED']);
  });

  test('while its read runs: the read ends', async () => {
    const key = await add('read');
    const name = `key-${made}`;
    await using _locked = await locked();
    const answer = query(key);
    await eventually(() => serving.app.limiters.plain.load.running === 1, 'the read runs');
    await keys('revoke', name);
    expect(outcome(await answer)).toBe('409 AUTH_KEY_REVOKED');
    await eventually(() => serving.app.limiters.plain.load.running === 0, 'its slot is free');
  });

  test('and without a database no named key passes, while the owner’s does', async () => {
    const key = await add('read');
    await using away = await startServing({ databaseUrl: 'postgres://nobody@127.0.0.1:1/nothing' });
    const answer = await query(key, away);
    expect(outcome(answer)).toBe('503 AUTH_KEYS_UNAVAILABLE');
    expect(Number(answer.headers['retry-after'])).toBeGreaterThan(0);
    expect(outcome(await query(API_KEY, away, {}))).toBe('409 QUERY_CONTRACT_ERROR');
    expect(outcome(await query('tmk_x', away))).toBe('409 AUTH_INVALID_API_KEY');
  });
});

test('nothing that is stored contains a key: its digest alone is', async () => {
  const first = await add('read,export');
  const name = `key-${made}`;
  const { secret: next } = (await keys('rotate', name, '--grace', '60')).json;
  for (const key of [first, next]) {
    await query(key);
    const headers = { 'Idempotency-Key': 'one' };
    const body = JSON.stringify({ dataset: DATASET, format: 'csv', n_rows: 1 });
    await serving.send({ path: '/v1/raw/export', key, body, headers });
  }
  const { rows: tables } = await system.client.query(
    `select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')`,
  );
  let seen = 0;
  for (const { name: table } of tables) {
    const { rows } = await system.client.query(`select t::text as row from "${table}" t`);
    for (const { row } of rows) {
      seen++;
      for (const key of [first, next]) expect(row).not.toContain(key.slice(17));
    }
  }
  expect(seen).toBeGreaterThan(10);
  const { rows } = await system.client.query('select digest, previous_digest from api_keys where name = $1', [name]);
  expect(rows).toEqual([{ digest: keyDigest(next), previous_digest: keyDigest(first) }]);
});

describe('limits', () => {
  test('requests a minute: every answer tells what is left, and one too many is 429', async () => {
    const key = await add('read', '--requests-per-minute', '3');
    // A refusal is counted as well.
    const ask = [
      () => query(key),
      () => query(key, serving, {}),
      () => serving.send({ method: 'GET', path: '/metrics', key }),
    ];
    const answers: Answer[] = [];
    for (const one of ask) answers.push(await one());
    expect(answers.map(outcome)).toEqual(['200', '409 QUERY_CONTRACT_ERROR', '409 AUTH_SCOPE_MISSING']);
    expect(answers.map(({ headers }) => headers.ratelimit)).toEqual([
      expect.stringMatching(/^"requests";r=2;t=\d+$/),
      expect.stringMatching(/^"requests";r=1;t=\d+$/),
      expect.stringMatching(/^"requests";r=0;t=\d+$/),
    ]);
    const refused = await query(key);
    expect(outcome(refused)).toBe('429 RATE_LIMITED');
    expect(refused.headers['ratelimit-policy']).toBe('"requests";q=3;w=60');
    const [, wait] = /^"requests";r=0;t=(\d+)$/.exec(String(refused.headers.ratelimit))!;
    expect(refused.headers['retry-after']).toBe(wait);
    // Another key has its own; so has the other process.
    expect(outcome(await query(await add('read', '--requests-per-minute', '1')))).toBe('200');
    expect(outcome(await query(key, second))).toBe('200');
  });

  test('reads at once: one too many is 429, and passes when another has ended', async () => {
    const key = await add('read', '--concurrent-reads', '2');
    const running: Promise<Answer>[] = [];
    {
      await using _locked = await locked();
      running.push(query(key), query(key));
      await eventually(() => serving.app.limiters.plain.load.running === 2, 'both run');
      const refused = await query(key);
      expect([outcome(refused), refused.headers['retry-after']]).toEqual(['429 AUTH_CONCURRENCY_LIMITED', '1']);
    }
    expect((await Promise.all(running)).map(outcome)).toEqual(['200', '200']);
    expect(outcome(await query(key))).toBe('200');
  });
});

test('metrics name keys that exist, and nobody can add others', async () => {
  const key = await add('read', '--requests-per-minute', '1');
  const name = `key-${made}`;
  await query(key);
  await query(key);
  await serving.query({});
  await query(`tmk_${'0'.repeat(12)}_${'x'.repeat(43)}`);
  const text = async () => (await serving.send({ method: 'GET', path: '/metrics' })).text;
  await eventually(async () => (await text()).includes(`key="${name}",status="4xx"`), 'both are counted');
  const samples = parseMetrics(await text());
  const count = (labels: Record<string, string>) => sampleOf(samples, 'tidemark_key_requests_total', labels);
  expect([count({ key: name, status: '2xx' }), count({ key: name, status: '4xx' })]).toEqual([1, 1]);
  expect(sampleOf(samples, 'tidemark_key_rejections_total', { key: name, reason: 'rate' })).toBe(1);
  expect(count({ key: 'owner', status: '2xx' })).toBeGreaterThan(0);
  const { rows } = await system.client.query('select name from api_keys');
  const known = ['owner', ...rows.map((row) => row.name)];
  const labelled = samples
    .filter(({ name: metric }) => metric.startsWith('tidemark_key_'))
    .map(({ labels }) => labels.key);
  expect(labelled.filter((one) => !known.includes(one))).toEqual([]);
});
