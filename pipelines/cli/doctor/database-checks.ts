/** Checks of PostgreSQL: migrations, schema, indexes, settings, clock, roles. */

import { connect, SUPPORTED_TIMESCALE, timescaleFault } from '../../../shared/db/connect.ts';
import { pendingMigrations } from '../../../shared/db/migrate.ts';
import { roleState } from '../../../shared/db/roles.ts';
import { CATALOG_TABLES, describeTable } from '../../../shared/db/schema.ts';
import { ALIGNED_TABLE } from '../../../shared/registry/aligned-storage.ts';
import { ALIGNED_COLUMNS } from '../../../shared/registry/definition.ts';
import type { PgType } from '../../../shared/registry/index.ts';
import { hasInstruments, INSTRUMENT_COLUMN, othersTable } from '../../../shared/registry/instruments.ts';
import { type Check, type Finding, fault, warning } from './types.ts';

const MIGRATE = './tidemark migrate';
const REPAIR = 'restore it as in the migrations (migrations/), or restore the database from a backup';

const migrations: Check = {
  name: 'migrations',
  doc: 'every migration is applied, and no other',
  needs: ['database'],
  async run({ database }) {
    const { missing, foreign } = await pendingMigrations(database);
    return [
      ...missing.map((name) => fault(name, 'is not applied', MIGRATE)),
      ...foreign.map((name) => fault(name, 'was applied by another tree of Tidemark', 'run that tree, or begin anew')),
    ];
  },
};

/** The schema builder's type names that differ from SQL's. */
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

const storage: Check = {
  name: 'storage',
  doc: 'tables and columns are those that the code expects',
  needs: ['database'],
  async run({ database, datasets }) {
    const expected = new Map<string, Record<string, string>>();
    for (const dataset of datasets) {
      const columns = Object.fromEntries(dataset.native.columns.map(({ name, pg }) => [name, SQL_NAMES[pg]]));
      expected.set(dataset.native.table, columns);
      if (hasInstruments(dataset))
        expected.set(othersTable(dataset), { ...columns, [INSTRUMENT_COLUMN]: SQL_NAMES.int2 });
    }
    const aligned = Object.entries(ALIGNED_COLUMNS).map(([name, pg]) => [name, SQL_NAMES[pg]]);
    expected.set(ALIGNED_TABLE, Object.fromEntries(aligned));
    for (const { name, columns } of CATALOG_TABLES.map(describeTable)) {
      expected.set(name, Object.fromEntries(columns.map((column) => [column.name, column.type])));
    }
    const { rows } = await database.query(
      `select c.relname as table, a.attname as column, format_type(a.atttypid, a.atttypmod) as type
       from pg_class c left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
       where c.relnamespace = current_schema::regnamespace and c.relname = any ($1)`,
      [[...expected.keys()]],
    );
    const live = Map.groupBy(rows, (row) => row.table as string);
    const findings: Finding[] = [];
    for (const [table, columns] of expected) {
      const found = live.get(table);
      if (!found) {
        findings.push(fault(table, 'the table is missing', REPAIR));
        continue;
      }
      const types = new Map(found.map((row) => [row.column as string, row.type as string]));
      for (const [column, type] of Object.entries(columns)) {
        const is = types.get(column);
        if (is === undefined) findings.push(fault(`${table}.${column}`, 'the column is missing', REPAIR));
        else if (is !== type) findings.push(fault(`${table}.${column}`, `is ${is}, must be ${type}`, REPAIR));
      }
    }
    return findings;
  },
};

const chunks: Check = {
  name: 'chunks',
  doc: 'each chunk of each hypertable has one valid unique index',
  needs: ['database'],
  async run({ database, datasets }) {
    const others = datasets.filter(hasInstruments).map(othersTable);
    const tables = [...datasets.map(({ native }) => native.table), ...others, ALIGNED_TABLE];
    const { rows: hypertables } = await database.query(
      `select hypertable_name as name from timescaledb_information.hypertables
       where hypertable_name = any ($1) and hypertable_schema = current_schema`,
      [tables],
    );
    const known = new Set(hypertables.map((row) => row.name));
    const { rows } = await database.query(
      `select hypertable_name as table, format('%I.%I', chunk_schema, chunk_name) as chunk,
         (select count(*) from pg_index i where i.indisunique and i.indisvalid
            and i.indrelid = format('%I.%I', chunk_schema, chunk_name)::regclass)::int4 as indexes
       from timescaledb_information.chunks
       where hypertable_name = any ($1) and hypertable_schema = current_schema`,
      [tables],
    );
    return [
      ...tables.filter((table) => !known.has(table)).map((table) => fault(table, 'is not a hypertable', REPAIR)),
      ...rows
        .filter(({ indexes }) => indexes !== 1)
        .map(({ table, chunk, indexes }) => {
          const dataset = datasets.find((one) => one.native.table === table || othersTable(one) === table);
          const owner = others.includes(table) ? [INSTRUMENT_COLUMN] : [];
          const columns = dataset
            ? [...owner, dataset.native.time.column, ...dataset.native.identity].map((name) => `"${name}"`).join(', ')
            : 'dataset_id, series_id, aligned_at_utc';
          const what = `${chunk} has ${indexes} valid unique indexes`;
          return indexes === 0
            ? fault(table, what, `create unique index on ${chunk} (${columns})`)
            : warning(table, what, 'drop all but one of them');
        }),
    ];
  },
};

const GIB = 1024 ** 3;
const inBytes = (value: string, unit: string | null): number => {
  const unitBytes = { B: 1, kB: 1024, '8kB': 8192, MB: 1024 ** 2, GB: GIB }[unit ?? 'B'] ?? 1;
  return Number(value) * unitBytes;
};

interface ServerSetting {
  readonly name: string;
  readonly severity: 'fault' | 'warning';
  readonly holds: (value: string, unit: string | null) => boolean;
  readonly want: string;
  readonly why: string;
}

/** The settings that are checked, with reasons; shared/stack/postgres.ts has the whole list. */
const SERVER_SETTINGS: readonly ServerSetting[] = [
  { name: 'fsync', severity: 'fault', holds: (v) => v === 'on', want: 'on', why: 'a crash loses what was proved' },
  {
    name: 'full_page_writes',
    severity: 'fault',
    holds: (v) => v === 'on',
    want: 'on',
    why: 'a crash can tear pages',
  },
  {
    name: 'synchronous_commit',
    severity: 'fault',
    holds: (v) => v !== 'off',
    want: 'on',
    why: 'a crash forgets commits that were confirmed',
  },
  {
    name: 'random_page_cost',
    severity: 'warning',
    holds: (v) => Number(v) <= 2,
    want: '1.1',
    why: 'reads scan windows instead of using the index',
  },
  { name: 'jit', severity: 'warning', holds: (v) => v === 'off', want: 'off', why: 'short reads pay for compilation' },
  {
    name: 'max_wal_size',
    severity: 'warning',
    holds: (v, u) => inBytes(v, u) >= GIB,
    want: '4GB',
    why: 'checkpoints run throughout a backfill',
  },
  {
    name: 'shared_buffers',
    severity: 'warning',
    holds: (v, u) => inBytes(v, u) >= GIB / 8,
    want: 'a quarter of memory',
    why: 'indexes do not stay in memory',
  },
  {
    name: 'maintenance_work_mem',
    severity: 'warning',
    holds: (v, u) => inBytes(v, u) >= GIB / 4,
    want: '512MB',
    why: 'the index of a day is sorted on disk',
  },
  {
    name: 'max_locks_per_transaction',
    severity: 'warning',
    holds: (v) => Number(v) >= 256,
    want: '1024',
    why: 'reads of thousands of chunks run out of locks',
  },
  {
    name: 'max_connections',
    severity: 'warning',
    holds: (v) => Number(v) >= 100,
    want: '200',
    why: 'projectors, readers and commands use up to fifty',
  },
];

const postgres: Check = {
  name: 'postgres',
  doc: 'settings of PostgreSQL that durability and speed depend on, and a supported TimescaleDB',
  needs: ['database'],
  async run({ database }) {
    const { rows } = await database.query('select name, setting, unit from pg_settings where name = any ($1)', [
      SERVER_SETTINGS.map(({ name }) => name),
    ]);
    const found = new Map(rows.map((row) => [row.name as string, row]));
    const findings: Finding[] = [];
    for (const { name, severity, holds, want, why } of SERVER_SETTINGS) {
      const row = found.get(name);
      if (!row || holds(row.setting, row.unit)) continue;
      findings.push({
        severity,
        subject: name,
        what: `is ${row.setting}${row.unit ? ` x ${row.unit}` : ''}: ${why}`,
        fix: `alter system set ${name} = '${want}', and restart the server if PostgreSQL asks for it`,
      });
    }
    const { rows: extension } = await database.query(
      `select extversion as version from pg_extension where extname = 'timescaledb'`,
    );
    if (extension.length === 0) {
      findings.push(fault('timescaledb', 'the extension is missing', 'create extension timescaledb'));
    } else {
      const unsupported = timescaleFault(extension[0].version);
      const fix = `run PostgreSQL 17 with TimescaleDB ${SUPPORTED_TIMESCALE}`;
      if (unsupported) findings.push(fault('timescaledb', unsupported, fix));
    }
    return findings;
  },
};

/** A larger clock difference falsifies freshness and ingestion times. */
const MAX_SKEW_MS = 2000;

const clock: Check = {
  name: 'clock',
  doc: 'the clocks of this machine and the database agree',
  needs: ['database'],
  async run({ database, now }) {
    const before = now();
    const { rows } = await database.query('select extract(epoch from clock_timestamp())::float8 * 1000 as ms');
    const after = now();
    const skewMs = Math.round(rows[0].ms - (before + after) / 2);
    // The time that the query took does not count as a difference.
    if (Math.abs(skewMs) <= MAX_SKEW_MS + (after - before)) return [];
    return [
      fault(
        'clock',
        `the database is ${Math.abs(skewMs) / 1000} s ${skewMs > 0 ? 'ahead of' : 'behind'} this machine`,
        'keep both in step with NTP (timedatectl set-ntp true)',
      ),
    ];
  },
};

const ROLES_FIX = 'docs/operations.md, "Roles of the database"; then ./tidemark migrate';

const roles: Check = {
  name: 'roles',
  doc: 'no process connects as a superuser, and each database role has exactly the rights that it needs',
  needs: ['database'],
  async run({ database, roleUrls }) {
    const findings: Finding[] = [];
    for (const [subject, url] of Object.entries(roleUrls)) {
      await using client = await connect({ url, name: 'tidemark doctor' });
      const { rows } = await client.query(
        'select rolname, rolsuper, rolbypassrls or rolreplication as strong from pg_roles where rolname = current_user',
      );
      const [{ rolname, rolsuper, strong }] = rows;
      if (rolsuper || strong) {
        const what = `connects as ${rolname}, ${rolsuper ? 'a superuser' : 'which may replicate or bypass row security'}`;
        findings.push(warning(subject, what, ROLES_FIX));
      }
    }
    const { missing, isProvisioned, changes } = await roleState(database);
    if (missing.length === 0 && !isProvisioned) {
      const fix = './tidemark migrate with SVC_DATABASE_ADMIN_URL (docs/operations.md, "Roles of the database")';
      const what =
        'has another owner than tidemark_owner, lacks the right to create chunks, or lets everybody make large objects';
      findings.push(warning('provisioning', what, fix));
    }
    return [...findings, ...changes.map((sql) => warning('privileges', `lacks: ${sql}`, ROLES_FIX))];
  },
};

export const DATABASE_CHECKS: readonly Check[] = [migrations, storage, chunks, roles, postgres, clock];
