import { cp, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Client, connect, MIGRATION_LOCK } from '../../shared/db/connect.ts';
import { MIGRATIONS_DIR, migrate, pendingMigrations, refuseForeign } from '../../shared/db/migrate.ts';
import { ATTEMPT_STATES, CATALOG_TABLES, describeTable, PARTITION_STATES } from '../../shared/db/schema.ts';
import { ALIGNED_KEY, ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { PgType } from '../../shared/registry/definition.ts';
import { ALIGNED_COLUMNS } from '../../shared/registry/definition.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { type Answer, beginCommand } from '../support/command.ts';
import { faultOf } from '../support/faults.ts';
import { eventually } from '../support/serving.ts';
import { createTestEnv, execute, type TestEnv, withDatabase } from '../support/stack.ts';

let env: TestEnv;
beforeAll(async () => {
  env = await createTestEnv();
});
afterAll(() => env[Symbol.asyncDispose]());

const open = (url = env.databaseUrl) => connect({ url, name: 'migrate test' });
const allFiles = async () => (await readdir(MIGRATIONS_DIR)).filter((name) => name.endsWith('.sql')).sort();

/** Everything that a migration could change, as text: equal before and after = nothing happened. */
const FINGERPRINT = `select string_agg(line, E'\\n' order by line) as text from (
  select format('%s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
      coalesce(pg_get_expr(d.adbin, d.adrelid), '')) as line
    from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'public'::regnamespace and a.attnum > 0 and not a.attisdropped
  union all select pg_get_indexdef(indexrelid) from pg_index i join pg_class c on c.oid = i.indrelid
    where c.relnamespace = 'public'::regnamespace
  union all select format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) from pg_constraint
    where connamespace = 'public'::regnamespace
  union all select format('hypertable %s %s', hypertable_name, format('%I.%I', hypertable_schema, hypertable_name)::regclass::oid) from timescaledb_information.hypertables
  union all select format('%s', t) from datasets t union all select format('%s', t) from series t
  union all select format('%s %s %s', dataset_id, version, proved) from coverage t
  union all select format('%s', t) from schema_migrations t) lines`;

describe('migrations', () => {
  test('are applied once, and found there after that', async () => {
    await using client = await open();
    const files = await allFiles();
    expect(await migrate(client)).toEqual({ applied: files, present: [] });
    const { rows: before } = await client.query(FINGERPRINT);
    expect(await migrate(client)).toEqual({ applied: [], present: files });
    await using other = await open();
    expect(await migrate(other)).toEqual({ applied: [], present: files });
    expect((await client.query(FINGERPRINT)).rows).toEqual(before);
    expect(before[0].text.split('\n').length).toBeGreaterThan(100);
  });

  test('may be run again by hand, each, without harm', async () => {
    await using client = await open();
    const { rows: before } = await client.query(FINGERPRINT);
    for (const name of await allFiles()) await client.query(await readFile(join(MIGRATIONS_DIR, name), 'utf8'));
    expect((await client.query(FINGERPRINT)).rows).toEqual(before);
  });

  test('register every dataset, with coverage and its one series', async () => {
    const { rows } = await execute(
      env.databaseUrl,
      `select d.dataset_id, d.key, c.proved::text, c.version, (select count(*)::int4 from series s where s.dataset_id = d.dataset_id) as series
       from datasets d left join coverage c using (dataset_id) where dataset_id <= 255 order by 1`,
    );
    expect(rows).toEqual(
      [...DATASETS.values()].map(({ number, key, aligned }) => ({
        dataset_id: number,
        key,
        proved: '{}',
        version: '0',
        series: aligned.seriesKey.length === 0 ? 1 : 0,
      })),
    );
  });

  test('register numbers of other instruments, which nobody has claimed', async () => {
    const { rows } = await execute(
      env.databaseUrl,
      `select min(d.key) as key, count(*)::int4 as numbers, count(c.*)::int4 as coverage, count(s.*)::int4 as claimed
       from datasets d left join coverage c using (dataset_id) left join series s using (dataset_id)
       where dataset_id > 255 group by dataset_id >> 8 order by dataset_id >> 8`,
    );
    expect(rows).toEqual(
      ['a', 'b', 'c'].map((exchange) => ({
        key: `exchange_${exchange}_spot_trades#1`,
        numbers: 255,
        coverage: 255,
        claimed: 0,
      })),
    );
  });
});

describe('migrating an empty database', () => {
  let url: string;
  let directory: string;
  let made = 0;
  beforeEach(async () => {
    const name = `${new URL(env.databaseUrl).pathname.slice(1)}_${++made}`;
    await execute(env.adminDatabaseUrl, `create database ${name}`);
    url = withDatabase(env.databaseUrl, name);
    directory = join(env.dir, `migrations${made}`);
    await cp(MIGRATIONS_DIR, directory, { recursive: true });
  });
  afterAll(async () => {
    const base = new URL(env.databaseUrl).pathname.slice(1);
    for (; made > 0; made--) await execute(env.adminDatabaseUrl, `drop database ${base}_${made} with (force)`);
  });

  test('is done once also when several start at the same moment', async () => {
    const reports = await Promise.all(
      Array.from({ length: 4 }, async () => {
        await using client = await open(url);
        return await migrate(client, directory);
      }),
    );
    const files = await allFiles();
    expect(reports.map((report) => report.applied.length).sort()).toEqual([0, 0, 0, files.length]);
    for (const { applied, present } of reports) expect([...present, ...applied]).toEqual(files);
  });

  test('that is done keeps no later start waiting', async () => {
    await using client = await open(url);
    await migrate(client, directory);
    await using other = await open(url);
    await other.query('select pg_advisory_lock($1, 0)', [MIGRATION_LOCK]);
    const onWait = () => {
      throw new Error('it waits');
    };
    expect(await migrate(client, directory, onWait)).toEqual({ applied: [], present: await allFiles() });
  });

  test.each([
    ['dataset', 'delete from series; delete from coverage; delete from datasets where dataset_id = 1', 'datasets'],
    ['coverage', 'delete from coverage where dataset_id = 1', 'coverage'],
    ['series', 'delete from series where dataset_id = 1', 'series'],
  ])('a start adds a %s that is missing, though every file is applied', async (_what, remove, table) => {
    await using client = await open(url);
    await migrate(client, directory);
    const rows = async () => (await client.query(`select dataset_id from ${table} order by 1`)).rows;
    const before = await rows();
    await client.query(remove);
    expect(await rows()).not.toEqual(before);
    await migrate(client, directory);
    expect(await rows()).toEqual(before);
  });

  test('a start gives a role its privilege back, though every file is applied', async () => {
    await using client = await open(url);
    await migrate(client, directory);
    await client.query('revoke select on coverage from tidemark_serve');
    await migrate(client, directory);
    const { rows } = await client.query(`select has_table_privilege('tidemark_serve', 'coverage', 'select') as may`);
    expect(rows).toEqual([{ may: true }]);
  });

  test.each([
    ['waited for another process', `select pg_advisory_lock(${MIGRATION_LOCK}, 0)`],
    ['changed the schema', 'begin; create table schema_migrations ()'],
  ])('ignored Ctrl-C while it %s', async (what, hold) => {
    await using other = await open(url);
    await other.query(hold);
    const command = beginCommand(['status'], {
      SVC_DATABASE_URL: url,
      SVC_NATS_URL: env.natsUrl,
      SVC_STATE_DIR: env.dir,
    });
    let answer: Answer | undefined;
    void command.done.then((given) => {
      answer = given;
    });
    const waiting = `select from pg_stat_activity where datname = current_database()
      and application_name = 'tidemark migrate' and wait_event_type = 'Lock'`;
    await eventually(async () => (await execute(url, waiting)).rowCount === 1, 'it is held up');
    command.stop();
    try {
      await eventually(async () => answer !== undefined, 'it ends');
    } finally {
      await other.query('rollback; select pg_advisory_unlock_all()');
      await command.done;
    }
    expect(answer).toMatchObject({ exit: 130, json: { error: { code: 'INTERRUPTED' } } });
    const note = 'waiting for another process that migrates the database';
    expect(answer!.stderr.includes(note)).toBe(what === 'waited for another process');
  });

  test.each([
    ['newer than any that was tried', '2.30.0', /TimescaleDB 2\.30\.0 is not supported; 2\.19 to 2\.29 is needed/],
    ['that is not there', null, /the server has no TimescaleDB; 2\.19 to 2\.29 is needed/],
  ])('refuses by name a TimescaleDB %s, and changes nothing', async (_what, version, says) => {
    await execute(url, 'create schema other');
    await execute(
      url,
      `create table other.pg_extension as select name as extname, default_version as extversion
         from pg_available_extensions where false;
       create table other.pg_available_extensions as select 'timescaledb' as name, ${version === null ? 'null' : `'${version}'`}::text as default_version`,
    );
    await using client = await open(url);
    // Unqualified names of the system catalog now mean the tables that tell of another version.
    await client.query('set search_path = other, pg_catalog, public');
    const { message } = await faultOf(migrate(client), 'DATABASE_UNSUITABLE');
    expect(message).toMatch(says);
    const { rows } = await client.query(`select to_regclass('public.schema_migrations') as there`);
    expect(rows).toEqual([{ there: null }]);
  });

  test.each<[string, string, ...string[]]>([
    [
      'of an earlier tree, with files that are gone',
      `update schema_migrations set name = overlay(name placing '1' from 2) where name in ('0002_aligned_rows.sql', '0010_callers.sql')`,
      '0102_aligned_rows.sql',
      '0110_callers.sql',
    ],
    [
      'of a tree with another file of the same name',
      `update schema_migrations set sha256 = '00' where name = '0002_aligned_rows.sql'`,
      '0002_aligned_rows.sql',
    ],
    ['of a later tree', `insert into schema_migrations values ('9999_later.sql', '00')`, '9999_later.sql'],
  ])('refuses a database %s, says how to begin anew, and changes nothing', async (_whose, made, ...files) => {
    await using client = await open(url);
    await migrate(client, directory);
    await client.query(made);
    await client.query('delete from coverage');
    const { rows: before } = await client.query(FINGERPRINT);
    for (const refuse of [() => migrate(client, directory), () => refuseForeign(client)]) {
      const { message, remedy } = await faultOf(refuse(), 'DATABASE_UNSUITABLE');
      expect(remedy).toMatch(/move kept\/, .* aside, .* delete the folder/);
      expect(message).toContain(
        `its migrations (${files[0]}${files[1] ? ' and 1 more' : ''}) are not those of migrations/`,
      );
    }
    expect((await client.query(FINGERPRINT)).rows).toEqual(before);
    expect(await pendingMigrations(client)).toMatchObject({ foreign: files });
    // No lock is held: another is not kept waiting.
    await using other = await open(url);
    await faultOf(migrate(other, directory), 'DATABASE_UNSUITABLE');
  });

  test('applies nothing of a file that fails, keeps those before it, and goes on when it is right', async () => {
    await using client = await open(url);
    const path = join(directory, '9998_wrong.sql');
    await writeFile(join(directory, '9999_later.sql'), 'create table later (a int)');
    const tables = () =>
      client.query(`select to_regclass('half')::text as half, to_regclass('later')::text as later,
        to_regclass('partitions')::text as partitions`);
    // One fails in itself, the other where its being applied is noted down.
    for (const fault of [
      'insert into half values (1); select 1 / 0',
      'alter table schema_migrations drop column name',
    ]) {
      await writeFile(path, `create table half (a int); ${fault}`);
      const { message } = await faultOf(migrate(client, directory), 'DATABASE_UNSUITABLE');
      expect(message).toContain('9998_wrong.sql');
      expect((await tables()).rows).toEqual([{ half: null, later: null, partitions: 'partitions' }]);
    }
    await writeFile(path, 'create table half (a int)');
    const { applied, present } = await migrate(client, directory);
    expect([applied, present]).toEqual([['9998_wrong.sql', '9999_later.sql'], await allFiles()]);
    expect((await tables()).rows).toEqual([{ half: 'half', later: 'later', partitions: 'partitions' }]);
  });

  test('makes two long chunks for the aligned rows of decades, and one every 30 days from October 2016 on', async () => {
    await using client = await open(url);
    await migrate(client, directory);
    const chunksAfter = async (...times: string[]) => {
      await client.query(
        `insert into ${ALIGNED_TABLE} (dataset_id, series_id, aligned_at_utc) select 5, 1, at from unnest($1::timestamptz[]) at`,
        [times],
      );
      return (await client.query(`select distinct tableoid::regclass::text from ${ALIGNED_TABLE}`)).rows.length;
    };
    expect(await chunksAfter('1950-01-01Z', '1969-12-31Z')).toBe(1);
    expect(await chunksAfter('1999-12-31Z', '2009-01-03Z', '2016-10-25T23:59:59Z')).toBe(2);
    expect(await chunksAfter('2016-10-26Z', '2026-01-01Z')).toBe(4);
  });
});

describe('the live tables', () => {
  let client: Client;
  beforeAll(async () => {
    client = await open();
    await migrate(client);
  });
  afterAll(() => client[Symbol.asyncDispose]());

  const liveColumns = async (table: string) => {
    const { rows } = await client.query<{ name: string; type: string; notNull: boolean }>(
      `select attname as name, format_type(atttypid, atttypmod) as type, attnotnull as "notNull" from pg_attribute
       where attrelid = $1::regclass and attnum > 0 and not attisdropped order by attnum`,
      [table],
    );
    return rows;
  };
  const SQL_NAMES: Record<PgType, string> = {
    int2: 'smallint',
    int4: 'integer',
    int8: 'bigint',
    float8: 'double precision',
    text: 'text',
    bool: 'boolean',
    timestamptz: 'timestamp with time zone',
    uuid: 'uuid',
    bytea: 'bytea',
  };

  test('of aligned rows have the columns that the code declares, in its order', async () => {
    expect(await liveColumns(ALIGNED_TABLE)).toEqual(
      Object.entries(ALIGNED_COLUMNS).map(([name, type]) => ({
        name,
        type: SQL_NAMES[type],
        notNull: name in ALIGNED_KEY,
      })),
    );
    for (const [name, type] of Object.entries(ALIGNED_KEY)) {
      expect([name, ALIGNED_COLUMNS[name as keyof typeof ALIGNED_COLUMNS]]).toEqual([name, type]);
    }
    const { rows } = await client.query(
      `select pg_get_indexdef(indexrelid) as sql from pg_index where indrelid = $1::regclass and indisunique`,
      [ALIGNED_TABLE],
    );
    expect(rows).toEqual([{ sql: expect.stringMatching(/\(dataset_id, series_id, aligned_at_utc\)$/) }]);
  });

  test.each([...DATASETS.values()].map((dataset) => [dataset.key, dataset] as const))(
    'of %s have the columns, the chunks and the order that the registry declares',
    async (_key, { native, aligned }) => {
      expect(await liveColumns(native.table)).toEqual(
        native.columns.map((column) => ({
          name: column.name,
          type: SQL_NAMES[column.pg],
          notNull: !('nullable' in column && column.nullable === true),
        })),
      );
      const dimensions = await client.query(
        `select column_name, coalesce(integer_interval, (extract(epoch from time_interval) * 1000000)::int8) as length
         from timescaledb_information.dimensions where hypertable_name = $1`,
        [native.table],
      );
      const unit = native.time.pg === 'int8' ? 1 : 1000;
      expect(dimensions.rows).toEqual([{ column_name: native.time.column, length: String(native.chunkMs * unit) }]);
      // Where a partition fills chunks of its own, the loader builds the unique index of each; elsewhere it is there.
      const indexes = await client.query(
        'select pg_get_indexdef(indexrelid) as sql from pg_index where indrelid = $1::regclass and indisunique',
        [native.table],
      );
      const key = [native.time.column, ...native.identity].map((name) => (name === 'timestamp' ? '"timestamp"' : name));
      expect(indexes.rows.map(({ sql }) => /\((.*)\)$/.exec(sql)![1])).toEqual(
        native.scope.kind === 'window' ? [] : [key.join(', ')],
      );
      const names = native.columns.map(({ name }) => name as string);
      expect(names).toEqual(expect.arrayContaining([native.time.column, ...native.identity]));
      for (const field of native.fields) expect(names).toEqual(expect.arrayContaining([...field.columns]));
      for (const field of aligned.fields) {
        expect(Object.keys(ALIGNED_COLUMNS)).toEqual(expect.arrayContaining([...field.columns]));
      }
      // Each declared expression is of the type that is declared for it.
      for (const [table, fields] of [
        [native.table, native.fields],
        [ALIGNED_TABLE, aligned.fields.filter((field) => field.columns.length > 0)],
      ] as const) {
        const { rows } = await client.query(
          `select ${fields.map((field) => `pg_typeof(${field.sql})::text as "${field.name}"`).join(', ')}
           from (select null) one left join ${table} t on true limit 1`,
        );
        expect(rows).toEqual([Object.fromEntries(fields.map((field) => [field.name, SQL_NAMES[field.pg]]))]);
      }
    },
  );

  test.each(CATALOG_TABLES.map(describeTable))(
    'of the catalog are those that the code declares: $name',
    async (table) => {
      const byName = (a: { name: string }, b: { name: string }) => a.name.localeCompare(b.name);
      expect((await liveColumns(table.name)).sort(byName)).toEqual(table.columns.sort(byName));
    },
  );

  test('allow exactly the states that the code knows', async () => {
    for (const [table, states] of [
      ['attempts', ATTEMPT_STATES],
      ['partitions', PARTITION_STATES],
    ] as const) {
      const { rows } = await client.query(
        `select pg_get_constraintdef(oid) as sql from pg_constraint where conrelid = $1::regclass and contype = 'c'`,
        [table],
      );
      const check = rows.map(({ sql }) => sql as string).find((sql) => sql.includes('state'));
      expect([...(check ?? '').matchAll(/'(\w+)'/g)].map(([, state]) => state).sort()).toEqual([...states].sort());
    }
  });

  test('keep the ids of proved partitions apart, and of no others', async () => {
    const insert = (key: string, state: string, offsets: string | null) =>
      client.query(
        `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, offsets)
         values (1, $1, $2, 1, 1, 0, 1, false, $3)`,
        [key, state, offsets],
      );
    await client.query('begin');
    await insert('a', 'proved', '[1,10]');
    await insert('b', 'quarantined', '[5,20]');
    await insert('c', 'proved', '[11,20]');
    await insert('d', 'proved', null);
    await expect(insert('e', 'proved', '[20,21]')).rejects.toMatchObject({ code: '23P01' });
    await client.query('rollback');
  });
});
