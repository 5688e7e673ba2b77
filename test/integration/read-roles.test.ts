/** Roles for callers' own credentials: they read what reads need, of every dataset, and can do nothing else. */
import { createHash } from 'node:crypto';
import { cp, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import { MIGRATIONS_DIR, migrate } from '../../shared/db/migrate.ts';
import { makeReadRole, readRoleFaults, readTables, roleStatements } from '../../shared/db/roles.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { migrated } from '../support/serving.ts';
import { createTestEnv, execute, type TestEnv } from '../support/stack.ts';

/** Roles are the server's, not the database's: each run has its own. */
const name = (what: string) =>
  `${what}_${createHash('sha256').update(`${process.pid} ${Date.now()} ${what}`).digest('hex').slice(0, 10)}`;
const ROLE = name('reader');

let env: TestEnv;
let password: string;
let made: string[];

beforeAll(async () => {
  env = await createTestEnv();
  made = [];
  await migrated(env.databaseUrl);
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 50, 1000, 1)]);
  password = (await make(ROLE)).password!;
});
afterAll(async () => {
  for (const role of made) await execute(env.databaseUrl, `drop owned by ${role}; drop role ${role}`);
  await env[Symbol.asyncDispose]();
});

async function make(role: string, rotate = false) {
  await using client = await connect({ url: env.databaseUrl, name: 'test' });
  const outcome = await makeReadRole(client, role, rotate);
  if (!made.includes(role)) made.push(role);
  return outcome;
}

async function faultsOf(role: string): Promise<string[]> {
  await using client = await connect({ url: env.databaseUrl, name: 'test' });
  return await readRoleFaults(client, role);
}

/** One statement as the role, outside of any read-only transaction. @returns rows, or the SQLSTATE. */
async function as(role: string, secret: string, sql: string): Promise<unknown[] | string> {
  const url = new URL(env.databaseUrl);
  [url.username, url.password] = [role, secret];
  const client = new pg.Client({ connectionString: url.href });
  try {
    await client.connect();
    await client.query('set default_transaction_read_only = off');
    return (await client.query(sql)).rows;
  } catch (error) {
    return (error as pg.DatabaseError).code!;
  } finally {
    await client.end();
  }
}

const REFUSED = '42501';

describe('a role', () => {
  test('reads every table that holds rows of a dataset', async () => {
    const tables = [...[...DATASETS.values()].map(({ native }) => native.table as string), ALIGNED_TABLE, 'coverage'];
    expect(readTables()).toEqual(expect.arrayContaining(tables));
    for (const table of readTables())
      expect(await as(ROLE, password, `select * from ${table} limit 1`)).toBeInstanceOf(Array);
    expect(await as(ROLE, password, 'select count(*)::int as n from exchange_a_spot_trades')).toEqual([{ n: 50 }]);
    expect(await faultsOf(ROLE)).toEqual([]);
  });

  test('reads no other table', async () => {
    const { rows } = await execute(
      env.databaseUrl,
      `select relname as name from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v', 'm')
       and relname <> all (array[${readTables().map((table) => `'${table}'`)}])`,
    );
    expect(rows.map((row) => row.name)).toEqual(expect.arrayContaining(['attempts', 'ledger', 'read_roles']));
    for (const row of rows)
      expect([row.name, await as(ROLE, password, `select * from ${row.name}`)]).toEqual([row.name, REFUSED]);
    expect(await as(ROLE, password, 'select * from pg_authid')).toBe(REFUSED);
    expect(await as(ROLE, password, `select pg_read_file('PG_VERSION')`)).toBe(REFUSED);
  });

  test('changes nothing', { tags: ['nightly'] }, async () => {
    for (const table of [...readTables(), 'attempts', 'ledger']) {
      for (const sql of [
        `delete from ${table}`,
        `truncate ${table}`,
        `insert into ${table} default values`,
        `update ${table} set ${table === ALIGNED_TABLE ? 'trade_count' : 'dataset_id'} = 1`,
        `drop table ${table}`,
        `alter table ${table} add column x int`,
      ]) {
        // Some of these tables have no such column; none of them is reached.
        expect([sql, await as(ROLE, password, sql)]).toEqual([sql, expect.stringMatching(/^(42501|42703)$/)]);
      }
    }
    for (const sql of [
      'create table x (a int)',
      'create temporary table x (a int)',
      'create schema x',
      `create function x() returns int language sql as 'select 1'`,
      'create role x',
      `alter role ${ROLE} superuser`,
      `copy (select 1) to program 'true'`,
      `copy (select 1) to '/tmp/x'`,
      `set role tidemark`,
      'begin; lock table coverage in access exclusive mode; commit',
      `select setval('series_series_id_seq', 1)`,
      `select drop_chunks('exchange_a_spot_trades', older_than => 9999999999999)`,
    ]) {
      expect([sql, await as(ROLE, password, sql)]).toEqual([sql, expect.stringMatching(/^(42501|25006)$/)]);
    }
    expect(await as(ROLE, password, 'select count(*)::int as n from exchange_a_spot_trades')).toEqual([{ n: 50 }]);
  });

  test('has a password that is shown once, and another when asked for', async () => {
    expect(password).toMatch(/^[0-9a-f]{48}$/);
    expect(await make(ROLE)).toEqual({ role: ROLE, created: false, password: undefined });
    const { password: next } = await make(ROLE, true);
    expect(await as(ROLE, password, 'select 1 as one')).toBe('28P01');
    expect(await as(ROLE, next!, 'select 1 as one')).toEqual([{ one: 1 }]);
    password = next!;
  });

  test('may be made by someone else, from the same statements', async () => {
    const other = name('by_hand');
    for (const statement of roleStatements(other, { create: true, password: undefined })) {
      await execute(env.databaseUrl, statement);
    }
    made.push(other);
    expect(await faultsOf(other)).toEqual([]);
  });

  test.each(['', 'Reader', 'reader; drop table coverage', 'r"x', '1reader', 'ü', 'x'.repeat(64)])(
    '%j is no name for one',
    async (text) => {
      await expect(make(text)).rejects.toMatchObject({ code: 'USAGE' });
    },
  );
});

describe('tables of later migrations', () => {
  test('are readable after the migration, if reads need them; what else there is stays closed', async () => {
    await using own = await createTestEnv();
    await using client = await connect({ url: own.databaseUrl, name: 'test' });
    await migrate(client);
    const role = name('later');
    await makeReadRole(client, role, false);
    try {
      // As if the tables had come with a later migration: this one makes them anew, without any grant.
      const later = [...readTables(), 'ledger'];
      const directory = join(own.dir, 'migrations');
      await cp(MIGRATIONS_DIR, directory, { recursive: true });
      const sql = later.map(
        (table) =>
          `create table new_${table} (like ${table} including all); drop table ${table} cascade; alter table new_${table} rename to ${table};`,
      );
      await writeFile(join(directory, '9999_later.sql'), sql.join('\n'));
      await migrate(client, directory);
      expect(await readRoleFaults(client, role)).toEqual([]);
      const may = await client.query(
        `select t, has_table_privilege($1, t, 'select') as may from unnest($2::text[]) t where has_table_privilege($1, t, 'select') <> (t <> 'ledger')`,
        [role, later],
      );
      expect(may.rows).toEqual([]);
    } finally {
      await client.query(`drop owned by ${role}; drop role ${role}`);
    }
  });
});

test('a privilege that a role lost is granted again by the next start', async () => {
  await using client = await connect({ url: env.databaseUrl, name: 'test' });
  await client.query(`revoke select on coverage from ${ROLE}`);
  expect(await faultsOf(ROLE)).toEqual(['may not read coverage']);
  await migrate(client);
  expect(await faultsOf(ROLE)).toEqual([]);
});

describe('a role that can do more, or less', () => {
  const changes: readonly [string, (role: string) => string, (role: string) => string, RegExp][] = [
    [
      'writes',
      (r) => `grant insert on coverage to ${r}`,
      (r) => `revoke insert on coverage from ${r}`,
      /may change coverage/,
    ],
    [
      'writes one column',
      (r) => `grant update (version) on coverage to ${r}`,
      (r) => `revoke update (version) on coverage from ${r}`,
      /may change coverage/,
    ],
    [
      'reads more',
      (r) => `grant select on ledger to ${r}`,
      (r) => `revoke select on ledger from ${r}`,
      /may read ledger/,
    ],
    [
      'reads less',
      (r) => `revoke select on series from ${r}`,
      (r) => `grant select on series to ${r}`,
      /may not read series/,
    ],
    ['is a superuser', (r) => `alter role ${r} superuser`, (r) => `alter role ${r} nosuperuser`, /is a superuser/],
    ['makes roles', (r) => `alter role ${r} createrole`, (r) => `alter role ${r} nocreaterole`, /may make roles/],
    [
      'belongs to others',
      (r) => `grant pg_read_all_data to ${r}`,
      (r) => `revoke pg_read_all_data from ${r}`,
      /is a member of pg_read_all_data/,
    ],
    [
      'makes tables',
      (r) => `grant create on schema public to ${r}`,
      (r) => `revoke create on schema public from ${r}`,
      /may create/,
    ],
    ['may not log in', (r) => `alter role ${r} nologin`, (r) => `alter role ${r} login`, /may not log in/],
  ];

  test.each(changes)('%s: is told', async (_, change, undo, fault) => {
    await execute(env.databaseUrl, change(ROLE));
    try {
      expect((await faultsOf(ROLE)).join('; ')).toMatch(fault);
    } finally {
      await execute(env.databaseUrl, undo(ROLE));
    }
    expect(await faultsOf(ROLE)).toEqual([]);
  });

  test('is not made a read role by its name', async () => {
    const powerful = name('powerful');
    await execute(env.databaseUrl, `create role ${powerful} superuser login`);
    made.push(powerful);
    await expect(make(powerful)).rejects.toMatchObject({ code: 'USAGE' });
    const known = await execute(env.databaseUrl, `select from read_roles where role = '${powerful}'`);
    expect(known.rowCount).toBe(0);
  });

  test('or is not there at all', async () => {
    expect(await faultsOf('nobody_here')).toEqual(['does not exist']);
  });
});
