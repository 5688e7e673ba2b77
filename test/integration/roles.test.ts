/** What the roles of the service's own processes cannot do, tried as each of them with everything switched on again. */
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Client, connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import {
  applyRoles,
  type DatabaseRole,
  provisionRoles,
  roleName,
  rolePasswords,
  roleState,
  roleTables,
} from '../../shared/db/roles.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { KLINE_TABLES } from '../../shared/registry/kept-klines.ts';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { System } from '../support/pipeline.ts';
import { migrated } from '../support/serving.ts';
import { createMigratedEnv, createTestEnv, execute, rolesOf, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let superuser: Client;
/** A column of each table. */
let columns: ReadonlyMap<string, string>;
const columnOf = (table: string) => `"${columns.get(table) ?? 'price'}"`;

beforeAll(async () => {
  env = await createMigratedEnv();
  superuser = await connect({ url: env.databaseUrl, name: 'test superuser' });
  // A copy of a database has its tables' privileges, and not its own.
  await migrated(env.databaseUrl);
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 50, 1000, 1)]);
  const { rows } = await execute(
    env.databaseUrl,
    `select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum = 1
     where c.relnamespace = 'public'::regnamespace`,
  );
  columns = new Map(rows.map(({ relname, attname }) => [relname, attname]));
});
afterAll(async () => {
  for (const session of sessions.values()) await (await session).end();
  await superuser[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const sessions = new Map<DatabaseRole, Promise<pg.Client>>();

async function sessionOf(role: DatabaseRole): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: env.databaseUrls[role] });
  await client.connect();
  return client;
}

/** One statement as the role, in a session as good as new that has undone its own settings. @returns rows, or the SQLSTATE. */
async function as(role: DatabaseRole, sql: string): Promise<unknown[] | string> {
  const session = sessions.get(role) ?? sessionOf(role);
  sessions.set(role, session);
  const client = await session;
  await client.query('discard all');
  await client.query(`set default_transaction_read_only = off; set search_path = public; set row_security = on`);
  try {
    return (await client.query(sql)).rows;
  } catch (error) {
    return (error as pg.DatabaseError).code!;
  }
}

const DATA = [
  ALIGNED_TABLE,
  ...Object.values(KLINE_TABLES),
  ...[...DATASETS.values()].flatMap(({ native, trades }) =>
    trades ? [native.table, `${native.table}_others`] : [native.table],
  ),
];
const PROOF = ['attempts', 'checkpoints', 'coverage', 'coverage_spans', 'frames', 'partitions', 'source_checks'];
const REFUSED = '42501';
/** What is also said to who may not: it is no superuser's, or belongs to somebody else. */
const REFUSALS = /^(42501|25006|2BP01|42P16|428C9)$/;

const changesTo = (table: string) => [
  `insert into ${table} default values`,
  `update ${table} set ${columnOf(table)} = default`,
  `delete from ${table}`,
  `truncate ${table}`,
  `drop table ${table}`,
  `alter table ${table} add column x int`,
  `alter table ${table} owner to current_user`,
  `create index on ${table} ((1))`,
  `create trigger x before insert on ${table} execute function suppress_redundant_updates_trigger()`,
];

/** Of the server and of the whole database: nobody but its superuser. */
const BEYOND = [
  'select * from pg_authid',
  'select * from pg_shadow',
  `select pg_read_file('postgresql.conf')`,
  `select pg_ls_dir('.')`,
  `select lo_import('/etc/passwd')`,
  'select lo_creat(-1)',
  'select lo_create(0)',
  `select lo_from_bytea(0, 'x')`,
  `copy (select 1) to program 'true'`,
  `copy (select 1) to '/tmp/tidemark-x'`,
  `create temporary table x (a text); copy x from '/etc/passwd'`,
  'alter system set fsync = off',
  'create role x superuser',
  `alter role ${roleName('owner')} password 'x'`,
  'alter role current_user superuser',
  'set role tidemark',
  `set session authorization ${roleName('owner')}`,
  'create extension file_fdw',
  `create function x() returns int language c as 'x'`,
  'create database x',
  'create event trigger x on ddl_command_start execute function x()',
  // The session that this file holds: another's would be ended under another test.
  `select pg_terminate_backend(pid) from pg_stat_activity join pg_roles on rolname = usename
   where rolsuper and datname = current_database() and application_name = 'test superuser'`,
];
/** Of the schema: its owner alone. */
const SCHEMA = [
  'create table x (a int)',
  'create view x as select 1',
  `create function x() returns int language sql as 'select 1'`,
  'create schema x',
  'drop schema public cascade',
  `update schema_migrations set sha256 = ''`,
  'insert into read_roles (role) values (current_user)',
  'select * from read_roles',
];

async function expectRefused(role: DatabaseRole, statements: readonly string[]): Promise<void> {
  for (const sql of statements) {
    expect([role, sql, await as(role, sql)]).toEqual([role, sql, expect.stringMatching(REFUSALS)]);
  }
}

describe('who serves', () => {
  test('reads what answers are made of, and cannot change a row of it, of the catalog or of the coverage', async () => {
    expect(await as('serve', 'select count(*)::int as n from exchange_a_spot_trades')).toEqual([{ n: 50 }]);
    for (const table of [...DATA, ...PROOF, 'datasets', 'ledger', 'runs', 'series', 'schema_migrations']) {
      for (const sql of changesTo(table)) {
        expect([sql, await as('serve', sql)]).toEqual([sql, REFUSED]);
      }
    }
    const [chunk] = (await as('serve', `select show_chunks('exchange_a_spot_trades')::text as name`)) as {
      name: string;
    }[];
    for (const sql of changesTo(chunk.name)) {
      expect([sql, await as('serve', sql)]).toEqual([sql, REFUSED]);
    }
    expect(await as('serve', `select drop_chunks('exchange_a_spot_trades', older_than => 9999999999999)`)).toBe(
      REFUSED,
    );
    expect(await as('serve', `select set_chunk_time_interval('${ALIGNED_TABLE}', interval '1 day')`)).toBe(REFUSED);
  });

  test('cannot read how partitions came to be, where readers stand, or who brings credentials', async () => {
    for (const table of ['attempts', 'checkpoints', 'source_failures', 'read_roles']) {
      expect([table, await as('serve', `select * from ${table}`)]).toEqual([table, REFUSED]);
    }
  });

  test('reaches neither schema nor server', async () => {
    await expectRefused('serve', [...SCHEMA, ...BEYOND, 'create temporary table x (a int)']);
  });

  test('writes exports and where their log ends', async () => {
    const insert = `insert into export_audit_heads (chain, sequence, hash) values ('c', 1, 'h') on conflict (chain) do update set sequence = 2`;
    expect(await as('serve', insert)).toEqual([]);
    expect(await as('serve', insert)).toEqual([]);
    expect(await as('serve', 'delete from export_audit_heads')).toBe(REFUSED);
    expect(await as('serve', `update exports set state = 'failed' where false`)).toEqual([]);
    expect(await as('serve', 'truncate exports')).toBe(REFUSED);
  });
});

describe('who ingests', () => {
  test('owns the rows and nothing else: cannot drop or alter the catalog, or rewrite what was recorded', async () => {
    for (const table of [...PROOF, 'datasets', 'exports', 'export_audit_heads', 'ledger', 'runs', 'series']) {
      await expectRefused('ingest', [
        `truncate ${table}`,
        `drop table ${table}`,
        `alter table ${table} add column x int`,
        `alter table ${table} disable trigger all`,
        `alter table ${table} owner to current_user`,
      ]);
    }
    await expectRefused('ingest', [
      'delete from ledger',
      `update ledger set reason = ''`,
      'delete from coverage',
      'delete from attempts',
      'insert into datasets values (99, $$x$$)',
    ]);
    const { rows } = await execute(
      env.databaseUrl,
      `select relname from pg_class where relkind in ('r', 'p')
      and relnamespace = 'public'::regnamespace and relowner = 'tidemark_ingest'::regrole order by 1`,
    );
    expect(rows.map(({ relname }) => relname)).toEqual(DATA.toSorted());
  });

  test('writes no export and no end of their log', async () => {
    await expectRefused('ingest', [
      'insert into exports default values',
      `update exports set state = 'succeeded'`,
      'delete from exports',
      `update export_audit_heads set hash = ''`,
      'delete from export_audit_heads',
    ]);
  });

  test('reaches neither schema nor server', async () => {
    // It works in temporary tables, so that one statement ends at the file.
    await expectRefused('ingest', [...SCHEMA, ...BEYOND]);
  });
});

describe('who exports, and who monitors', () => {
  test('reads rows and changes exports alone; makes none', async () => {
    expect(await as('export', 'select count(*)::int as n from exchange_a_spot_trades')).toEqual([{ n: 50 }]);
    expect(await as('export', `update exports set due_at = default where false`)).toEqual([]);
    await expectRefused('export', ['insert into exports default values', 'delete from exports', 'truncate exports']);
    for (const table of [...DATA, ...PROOF, 'ledger', 'runs']) await expectRefused('export', changesTo(table));
    await expectRefused('export', [...SCHEMA, ...BEYOND]);
  });

  test('counts and reads no row; changes nothing', async () => {
    expect(await as('monitor', 'select count(*)::int as n from coverage where dataset_id <= 255')).toEqual([
      { n: DATASETS.size },
    ]);
    for (const table of DATA) expect(await as('monitor', `select * from ${table}`)).toBe(REFUSED);
    for (const table of [...PROOF, 'exports', 'ledger', 'runs']) await expectRefused('monitor', changesTo(table));
    await expectRefused('monitor', [...SCHEMA, ...BEYOND]);
  });
});

describe('the owner', () => {
  test('is no superuser', async () => {
    const of = BEYOND.filter((sql) => !sql.includes(roleName('owner')));
    await expectRefused('owner', [...of, 'alter role tidemark password $$x$$']);
  });
});

describe('the roles of a database', () => {
  test('are what the tables say, of every table there is', async () => {
    await using client = await connect({ url: env.databaseUrl, name: 'test' });
    expect((await roleState(client)).changes).toEqual([]);
    const { rows } = await client.query(
      `select relname from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')`,
    );
    expect(rows.map(({ relname }) => relname as string).filter((name) => !roleTables().includes(name))).toEqual([]);
  });

  test('are brought back by the owner after they were changed, and tables of others are left alone', async () => {
    await execute(
      env.databaseUrl,
      `grant insert, delete on coverage, exchange_a_spot_trades to tidemark_serve; revoke select on series from tidemark_serve;
       create table somebodys (a int)`,
    );
    await using owner = await connect({ url: env.databaseUrls.owner, name: 'test' });
    expect((await roleState(owner)).changes).toHaveLength(3);
    expect(await applyRoles(owner)).toBe(true);
    expect((await roleState(owner)).changes).toEqual([]);
    expect(await as('serve', 'delete from coverage')).toBe(REFUSED);
    await execute(env.databaseUrl, 'drop table somebodys');
  });

  test('are made by `migrate` on a server of the operator, with the passwords of the URLs', async () => {
    await using own = await createTestEnv();
    const urls = rolesOf(own.databaseUrl);
    await using system = await System.create();
    // The roles are the server's: they keep the passwords that every other test uses.
    const { exit, json } = await system.run(['migrate'], {
      SVC_DATABASE_ADMIN_URL: own.databaseUrl,
      SVC_DATABASE_URL: urls.ingest,
      SVC_DATABASE_OWNER_URL: urls.owner,
      SVC_DATABASE_SERVE_URL: urls.serve,
    });
    expect([exit, json.present]).toEqual([0, []]);
    await using client = await connect({ url: own.databaseUrl, name: 'test' });
    expect((await roleState(client)).changes).toEqual([]);
    expect(rolePasswords([new URL('postgres://tidemark_serve:a%2Fb@h/d'), new URL('postgres://me:x@h/d')])).toEqual({
      serve: 'a/b',
    });
  });

  test('that let everybody make large objects count as not made', async () => {
    await using client = await connect({ url: env.databaseUrl, name: 'test' });
    expect((await roleState(client)).isProvisioned).toBe(true);
    // The lock of `provisionRoles`: other tests use the same roles.
    await client.query('begin; lock table pg_catalog.pg_db_role_setting in share row exclusive mode');
    await client.query('grant execute on function lo_creat(int) to public');
    expect((await roleState(client)).isProvisioned).toBe(false);
    await client.query('rollback');
  });

  test('that a server lacks are named, and nothing is changed for the others before they are made', async () => {
    await using client = await connect({ url: env.databaseUrl, name: 'test' });
    await client.query('begin; lock table pg_catalog.pg_db_role_setting in share row exclusive mode');
    for (const role of ['ingest', 'serve']) await client.query(`alter role tidemark_${role} rename to ${role}`);
    const state = { missing: ['ingest', 'serve'], isProvisioned: false, changes: [] };
    expect(await roleState(client)).toMatchObject(state);
    await client.query('rollback');
  });

  test('a role that may not change the schema is told what is missing, and changes nothing', async () => {
    await using own = await createTestEnv();
    await using admin = await connect({ url: own.databaseUrl, name: 'test' });
    await provisionRoles(admin, {});
    await using client = await connect({ url: rolesOf(own.databaseUrl).ingest, name: 'test' });
    await expect(migrate(client)).rejects.toMatchObject({ code: 'DATABASE_UNSUITABLE' });
    await migrate(admin);
    expect((await migrate(client)).applied).toEqual([]);
  });
});
