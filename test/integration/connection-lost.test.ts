/** Connections that a store ends while they are in use, and those whose session it refuses. */
import { readFileSync } from 'node:fs';
import pg from 'pg';
import { expect, inject, test, vi } from 'vitest';
import { FairScheduler, PgConnection } from '../../serving/db/pg-connection.ts';
import { ReadDeadline } from '../../serving/read/execute/read-deadline.ts';
import { connect, createPool } from '../../shared/db/connect.ts';
import { explain } from '../../shared/errors.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { given } from '../support/given.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { eventually } from '../support/serving.ts';
import { createMigratedEnv, execute } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';

test('lost between two queries of a transaction it fails the next one, where it ended the process', async () => {
  await using env = await createMigratedEnv();
  const pool = createPool({ url: env.databaseUrl, name: 'test pool', max: 1 });
  const client = await pool.connect();
  await client.query('begin');
  const { rows } = await client.query('select pg_backend_pid() as pid');
  const ended = new Promise((resolve) => client.once('end', resolve));
  await execute(env.adminDatabaseUrl, `select pg_terminate_backend(${rows[0].pid})`);
  await ended;
  await expect(client.query('commit')).rejects.toThrow();
  client.release(true);
  expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }]);
  await pool.end();
});

test('a read connection is closed when the server refuses its settings, where it stayed open', async () => {
  await using env = await createMigratedEnv();
  const name = 'test refused session';
  const client = new pg.Client({ connectionString: env.databaseUrl });
  await client.connect();
  const database = new URL(env.databaseUrl).pathname.slice(1);
  await client.query(`create schema refusing;
    create function refusing.set_config(text, text, boolean) returns text language plpgsql
      as $$ begin raise 'the setting % is refused', $1; end $$;
    alter database "${database}" set search_path = refusing, pg_catalog, public`);
  const options = { url: env.databaseUrl, name, connectTimeoutMs: 60_000, scheduler: new FairScheduler() };
  await expect(PgConnection.open(options)).rejects.toThrow(/the setting \w+ is refused/);
  const isGone = async () =>
    (await client.query('select 1 from pg_stat_activity where application_name = $1', [name])).rowCount === 0;
  await eventually(isGone, 'the connection is closed');
  await client.end();
});

// The log had it three times.
test('the reason why a read found no database is said once', async () => {
  const options = { name: 'test', connectTimeoutMs: 60_000, scheduler: new FairScheduler() };
  const away = await PgConnection.open({ ...options, url: 'postgres://a:b@127.0.0.1:1/c' }).catch((error) => error);
  using deadline = new ReadDeadline(new AbortController().signal, { firstRowMs: 60_000, nextRowMs: 60_000 });
  expect(explain(deadline.explain(away))).toMatch(
    /^the read is lost: cannot connect to the database: connect ECONNREFUSED \S+$/,
  );
});

// A server that ends a session says so. A network that breaks says nothing, and half of what was sent may have arrived.
test('a database connection that is cut in the middle of a COPY costs a restart of its projector, and no row', {
  tags: ['nightly'],
}, async () => {
  await using system = await System.create();
  const day = { day: '2024-03-01', rows: 300_000, seed: 1, timeUnit: 'ms' } as const;
  await writeDocument(system.vendor, day.day, csvOf(day));
  await using proxy = await startStoreProxy(system.env.databaseUrls.ingest);
  // In the midst of 25 MB of rows.
  proxy.cutAfter(8 << 20);
  const backfill = ['backfill', DATASET, '--from', day.day, '--to', day.day, '--json'];
  const { exit, json, stderr } = await system.run(backfill, { SVC_DATABASE_URL: proxy.url });
  expect(proxy.hasCut()).toBe(true);
  expect(stderr.match(/projector starts again/g)).toHaveLength(1);
  expect({ exit, proved: json.proved }).toEqual({ exit: 0, proved: 1 });
  const { rows } = await system.client.query(
    `select count(*)::int as rows, count(distinct trade_id)::int as trades from ${DATASET}`,
  );
  expect(rows).toEqual([{ rows: day.rows, trades: day.rows }]);
});

// The client library makes an attempt after a pause, even if it was closed meanwhile: the socket stayed open, and a command that
// had ended never exited.
test('a connection to the log that is closed while it is tried for again stays closed', async () => {
  await using env = await createMigratedEnv();
  await using proxy = await startStoreProxy(env.natsUrl);
  const connection = await connectNats(proxy.url, 'test');
  const statuses = connection.status()[Symbol.asyncIterator]();
  proxy.cut();
  while ((await statuses.next()).value?.type !== 'disconnect');
  await connection[Symbol.asyncDispose]();
  await eventually(() => proxy.connections().accepted === 2, 'the attempt reaches the server');
  await eventually(() => proxy.connections().open === 0, 'no connection is left');
});

test('a connection to the log whose server is away is closed without waiting for it', async () => {
  await using env = await createMigratedEnv();
  await using proxy = await startStoreProxy(env.natsUrl);
  const connection = await connectNats(proxy.url, 'test');
  const statuses = connection.status()[Symbol.asyncIterator]();
  proxy.goAway();
  for (let tries = 0; tries < 2; ) if ((await statuses.next()).value?.type === 'reconnecting') tries++;
  await connection[Symbol.asyncDispose]();
  expect(connection.isClosed()).toBe(true);
  proxy.comeBack();
});

// The client library paced its attempts by the wall clock: after one in an hour that was taken back, none came for an hour.
test('a connection to the log that was tried for while the clock was an hour ahead is made when the clock is set back', async () => {
  await using env = await createMigratedEnv();
  await using proxy = await startStoreProxy(env.natsUrl);
  await using connection = await connectNats(proxy.url, 'test');
  const tries: string[] = [];
  void (async () => {
    for await (const { type } of connection.status()) tries.push(type);
  })();
  const now = Date.now.bind(Date);
  const clock = vi.spyOn(Date, 'now').mockImplementation(() => now() + 3_600_000);
  try {
    proxy.goAway();
    await eventually(() => tries.filter((type) => type === 'reconnecting').length >= 2, 'attempts to connect again');
  } finally {
    clock.mockRestore();
  }
  proxy.comeBack();
  await eventually(() => tries.includes('reconnect'), 'it is connected again');
  await connection.flush();
});

const { TIDEMARK_TEST_DATABASE_URL: other } = process.env;
const isHere = other === undefined && inject('testPrograms').postgresBin !== undefined;

/** Sockets of this machine whose keepalive timer runs: local and remote port, and when it rings next. */
function keptAlive(): { readonly ports: string; readonly ringsInMs: number }[] {
  const [, ...lines] = readFileSync('/proc/net/tcp', 'utf8').trim().split('\n');
  const port = (address: string) => Number.parseInt(address.split(':')[1], 16);
  return lines.flatMap((line) => {
    const [, local, remote, , , timer] = line.trim().split(/\s+/);
    const [kind, ticks] = timer.split(':');
    // A hundred ticks a second.
    return kind === '02'
      ? [{ ports: `${port(local)}>${port(remote)}`, ringsInMs: Number.parseInt(ticks, 16) * 10 }]
      : [];
  });
}

given(
  isHere,
  'the server’s sockets are not in /proc of this machine: run the tests on Debian or Ubuntu with apt, without TIDEMARK_TEST_DATABASE_URL',
).test(
  'both ends of every kind of connection notice within half a minute that the other is gone, where it took two hours',
  async () => {
    await using env = await createMigratedEnv();
    const url = new URL(env.databaseUrl);
    url.hostname = '127.0.0.1';
    await using single = await connect({ url: url.href, name: 'test single' });
    const pool = createPool({ url: url.href, name: 'test pool', max: 1 });
    const pooled = await pool.connect();
    const reader = await PgConnection.open({
      ...{ url: url.href, name: 'test reader', connectTimeoutMs: 60_000, scheduler: new FairScheduler() },
    });
    try {
      const { rows } = await single.query(
        `select client_port from pg_stat_activity where application_name in ('test single', 'test pool', 'test reader')`,
      );
      const ports = rows.flatMap(({ client_port: mine }) => [`${mine}>${url.port}`, `${url.port}>${mine}`]);
      expect(ports).toHaveLength(6);
      // What is on its way is acknowledged within a moment; until then another timer runs.
      const late = () => {
        const soon = keptAlive().filter(({ ringsInMs }) => ringsInMs <= 10_500);
        return ports.filter((one) => !soon.some((timer) => timer.ports === one));
      };
      await expect.poll(late).toEqual([]);
    } finally {
      reader.abandon();
      pooled.release();
      await pool.end();
    }
  },
);
