/** What reads do when the database does not go along: storage that is changed under them, servers and connections that die. */
import { once } from 'node:events';
import { buffer } from 'node:stream/consumers';
import { setTimeout } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PgPool, poolOptions } from '../../serving/db/pool.ts';
import { Snapshots } from '../../serving/read/snapshot/session.ts';
import { connect } from '../../shared/db/connect.ts';
import { DATASET, loadBulk, loadDays, randomDay } from '../support/load-rows.ts';
import { eventually, migrated, startServing } from '../support/serving.ts';
import { createMigratedEnv, createPrivateStack, execute, type TestEnv } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';

const ALL = { sources: [DATASET] };

let env: TestEnv;
beforeAll(async () => {
  env = await createMigratedEnv();
  await loadBulk(env.databaseUrl, { fromDay: '2024-05-01', days: 1, rowsPerDay: 10_000 });
});
afterAll(() => env[Symbol.asyncDispose]());

test('a read whose probe cannot be made keeps no connection', async () => {
  await using pool = new PgPool(poolOptions(env.databaseUrl));
  const probe = () => {
    throw new Error('no probe');
  };
  const owner = { own: () => {}, hasFired: false };
  await expect(new Snapshots({ pool, byokRole: undefined }).begin(probe, undefined, owner)).rejects.toThrow('no probe');
  expect(pool.open).toEqual({ idle: 0, busy: 0 });
});

describe('the storage contract', () => {
  const aligned = { ...ALL, mode: 'aligned_1s', n_rows: 1 };
  const table = 'canonical_aligned_1s_aggregates';
  const drifts: readonly [string, string, string, RegExp][] = [
    [
      'a column renamed',
      `alter table ${table} rename trade_count to trades`,
      `alter table ${table} rename trades to trade_count`,
      /trade_count is missing/,
    ],
    [
      'a column retyped',
      `alter table ${table} alter open_price type numeric`,
      `alter table ${table} alter open_price type float8`,
      /open_price is numeric, declared float8/,
    ],
    [
      'the table gone',
      `alter table ${table} rename to gone`,
      `alter table gone rename to ${table}`,
      /table \w+ is missing/,
    ],
  ];

  test.each(drifts)(
    '%s: aligned reads fail with its code, native ones go on, and it recovers',
    async (_, drift, repair, what) => {
      await using serving = await startServing({ databaseUrl: env.databaseUrl });
      expect((await serving.query(aligned)).status).toBe(200);
      await execute(env.databaseUrl, drift);
      try {
        for (const window of [
          { n_rows: 1 },
          { n_rows: undefined, n_random: 5 },
          { n_rows: undefined, time_range: ['2024-05-01T00:00:00Z', '2024-05-01T00:01:00Z'] },
        ]) {
          const answer = await serving.query({ ...aligned, ...window });
          expect([answer.status, answer.json.code]).toEqual([503, 'ALIGNED_STORAGE_CONTRACT_VIOLATION']);
          expect(answer.json.detail).toMatch(what);
        }
        expect((await serving.query({ ...ALL, n_rows: 1 })).status).toBe(200);
        await using other = await startServing({ databaseUrl: env.databaseUrl });
        const ready = await other.send({ method: 'GET', path: '/readyz' });
        expect([ready.status, ready.json.checks.aligned_storage]).toEqual([503, 'violated']);
        expect((await other.query({ ...ALL, n_rows: 1 })).status).toBe(200);
      } finally {
        await execute(env.databaseUrl, repair);
      }
      expect((await serving.query(aligned)).status).toBe(200);
    },
  );

  test('a native column of another type is a fault, not a wrong number', async () => {
    await using own = await createMigratedEnv();
    await loadDays(own.databaseUrl, [randomDay('2024-05-01', 100, 1, 1)]);
    await using serving = await startServing({ databaseUrl: own.databaseUrl });
    expect((await serving.query({ ...ALL, n_rows: 1 })).status).toBe(200);
    await execute(own.databaseUrl, 'alter table exchange_a_spot_trades alter price type numeric');
    for (const window of [{ n_rows: 1 }, {}]) {
      const answer = await serving.query({ ...ALL, ...window });
      expect([answer.status, answer.json.code]).toEqual([503, 'QUERY_RUNTIME_ERROR']);
    }
  });
});

/** Whether there is a process of this number. */
function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

describe('the database', () => {
  test('killed and back: broken answers meanwhile are broken or 503, then all is well', async () => {
    // It stays away until it is told to come back.
    await using own = await createPrivateStack({ supervise: false });
    await migrated(own.stack.databaseUrl);
    await loadBulk(own.stack.databaseUrl, { fromDay: '2024-05-01', days: 1, rowsPerDay: 800_000 });
    await using serving = await startServing({ databaseUrl: own.stack.databaseUrl });
    // 48 MB: more than sockets hold, however busy the machine is. One statement reads it: of two connections the sockets hold a whole section.
    const filters = [{ field: 'price', op: 'gt', value: 0 }];
    const response = await serving.open({ body: JSON.stringify({ ...ALL, filters }), unix: true });
    await once(response, 'data');
    response.pause();
    // Once the answer is held back, the server process ends in the middle of it, however busy the machine is.
    const reads = `select pid from pg_stat_activity where wait_event = 'ClientWrite'`;
    let pid = 0;
    await eventually(async () => {
      await using client = await connect({ url: own.stack.databaseUrl, name: 'test' });
      pid = (await client.query(reads)).rows[0]?.pid ?? 0;
      return pid > 0;
    }, 'the database waits for the reader');
    own.kill('postgres');
    await eventually(async () => !isRunning(pid), 'its process is gone');
    const outcome = await buffer(response).then(
      () => 'whole',
      (error: NodeJS.ErrnoException) => error.code,
    );
    expect(outcome).toBe('ECONNRESET');
    const served = async () => {
      const answer = await serving.query({ ...ALL, n_rows: 5 });
      if (answer.status === 200) return true;
      expect([answer.status, answer.json.code]).toEqual([503, 'QUERY_BACKEND_ERROR']);
      return false;
    };
    await eventually(async () => !(await served()), 'the database is away');
    own.stack.supervise();
    await eventually(served, 'the database is back');
  });

  test('connections that died while idle are not noticed by callers', async () => {
    await using serving = await startServing({ databaseUrl: env.databaseUrl });
    for (const body of [
      { ...ALL, n_rows: 5 },
      { ...ALL, mode: 'aligned_1s', n_rows: 5 },
      { ...ALL, n_random: 5 },
    ]) {
      expect((await serving.query(body)).status).toBe(200);
      await execute(
        env.databaseUrl,
        `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'tidemark serving'
         and datname = current_database()`,
      );
      expect((await serving.query(body)).status).toBe(200);
    }
  });

  // A network that swallows what is sent: no connection breaks, and no answer comes.
  test('that falls silent with its connections open is 503 in time, and served again when it speaks', {
    tags: ['nightly'],
  }, async () => {
    await using proxy = await startStoreProxy(env.databaseUrls.serve);
    await using serving = await startServing({ databaseUrl: proxy.url, limits: { firstRowMs: 500 } });
    const bodies = [{ n_rows: 5 }, { mode: 'aligned_1s', n_rows: 5 }, { n_random: 5 }];
    const answers = () => Promise.all(bodies.map((body) => serving.query({ ...ALL, ...body })));
    // On a busy machine the first reads, which open connections, may take longer than that.
    const areServed = async () => (await answers()).every(({ status }) => status === 200);
    await eventually(areServed, 'rows are served');
    proxy.mute();
    for (const { status, json } of await answers()) expect([status, json.code]).toEqual([503, 'QUERY_TIMEOUT']);
    expect((await serving.send({ method: 'GET', path: '/healthz' })).status).toBe(200);
    proxy.unmute();
    await eventually(areServed, 'rows are served again');
  });

  test('whose table is held makes /readyz 503 in time, on one connection: each probe opened another', {
    tags: ['nightly'],
  }, async () => {
    await using holder = await connect({ url: env.databaseUrl, name: 'test holder' });
    await holder.query('begin');
    await holder.query('lock table runs in access exclusive mode');
    await using serving = await startServing({ databaseUrl: env.databaseUrl });
    const probe = async () => {
      const { status, json } = await serving.send({ method: 'GET', path: '/readyz' });
      return [status, json.checks?.database];
    };
    const answers: Promise<unknown>[] = [];
    let [answered, most] = [0, 0];
    const isAnswered = async () => {
      answers.push(
        probe()
          .catch(String)
          .finally(() => answered++),
      );
      await setTimeout(200);
      const { idle, busy } = serving.app.pool.open;
      most = Math.max(most, idle + busy);
      return answered > 0;
    };
    await eventually(isAnswered, 'a probe is answered', 30_000);
    expect(await answers[0]).toEqual([503, 'unavailable']);
    expect(most).toBe(1);
    await holder.query('rollback');
    await Promise.all(answers);
    await eventually(async () => (await probe())[0] === 200, 'the service is ready again');
  });
});
