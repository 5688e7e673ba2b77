/** Connections that the database ends while they are in use, and those whose session it refuses. */
import pg from 'pg';
import { expect, test } from 'vitest';
import { FairScheduler, PgConnection } from '../../serving/db/pg-connection.ts';
import { createPool } from '../../shared/db/connect.ts';
import { eventually } from '../support/serving.ts';
import { createMigratedEnv, execute } from '../support/stack.ts';

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
