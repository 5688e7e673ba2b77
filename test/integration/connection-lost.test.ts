/** A connection of a pool that the database ends while somebody has it in use. */
import { expect, test } from 'vitest';
import { createPool } from '../../shared/db/connect.ts';
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
