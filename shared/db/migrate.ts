/** Applies `migrations/*.sql` in order, each once and in one transaction. Any process may run it at any time. */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Client } from 'pg';
import { TidemarkError } from '../errors.ts';
import { DATASETS } from '../registry/index.ts';
import { MIGRATION_LOCK, requireTimescale } from './connect.ts';
import { applyRoles, faultyReadRoles, regrantReadRoles, roleState } from './roles.ts';

export const MIGRATIONS_DIR = fileURLToPath(new URL('../../migrations/', import.meta.url));

/** Former names of files that were released with duplicate or missing numbers. Their bytes and order have not changed. */
export const FORMER_NAMES: Readonly<Record<string, string>> = {
  '0013_read_roles.sql': '0014_read_roles.sql',
  '0014_document_sha256.sql': '0015_document_sha256.sql',
  '0018_runs.sql': '0017_runs.sql',
  '0020_monitoring.sql': '0018_monitoring.sql',
  '0024_aligned_sparse_times.sql': '0019_aligned_sparse_times.sql',
  '0025_recount_requests.sql': '0020_recount_requests.sql',
};

export interface MigrationReport {
  readonly applied: readonly string[];
  readonly present: readonly string[];
}

/** Compares a database with the migrations of this release, without changing it. */
export async function pendingMigrations(
  client: Pick<Client, 'query'>,
  directory: string = MIGRATIONS_DIR,
): Promise<{ missing: string[]; changed: string[]; unknown: string[] }> {
  const files = migrationFiles(directory);
  const names = await recordedMigrations(client);
  const recorded = new Map([...names].map(([name, sha256]) => [FORMER_NAMES[name] ?? name, sha256]));
  const changed = files.filter(
    (name) => recorded.has(name) && recorded.get(name) !== digestOf(readFile(directory, name)),
  );
  const known = new Set(files);
  return {
    missing: files.filter((name) => !recorded.has(name)),
    changed,
    unknown: [...recorded.keys()].filter((name) => !known.has(name)).sort(),
  };
}

/** The digests of the applied files by their names, which may be former ones. */
async function recordedMigrations(client: Pick<Client, 'query'>): Promise<Map<string, string>> {
  const { rows: table } = await client.query(`select to_regclass('schema_migrations') is not null as there`);
  if (!table[0].there) return new Map();
  const { rows } = await client.query<{ name: string; sha256: string }>('select name, sha256 from schema_migrations');
  return new Map(rows.map(({ name, sha256 }) => [name, sha256]));
}

const readFile = (directory: string, name: string): string => readFileSync(`${directory}/${name}`, 'utf8');

const digestOf = (sql: string): string => createHash('sha256').update(sql).digest('hex');

// The files are small and read at every start; synchronous calls are many times cheaper.
const migrationFiles = (directory: string): string[] =>
  readdirSync(directory)
    .filter((name) => /^\d{4}_\w+\.sql$/.test(name))
    .sort();

/**
 * Applies the missing migrations. With a role that may not change the schema it only checks that none is missing.
 * @param onWait called before it waits for another process that migrates
 * @throws TidemarkError DATABASE_UNSUPPORTED for an unsupported version of TimescaleDB, MIGRATION_DRIFT when an applied
 *   file was changed afterwards, MIGRATION_FAILED naming the file, MIGRATION_NOT_ALLOWED.
 */
export async function migrate(
  client: Client,
  directory: string = MIGRATIONS_DIR,
  onWait: () => void = () => {},
): Promise<MigrationReport> {
  const files = migrationFiles(directory);
  await requireTimescale(client);
  const { rows: may } = await client.query(`select has_schema_privilege('public', 'create') as create`);
  if (!may[0].create) return await nothingMissing(client, directory, files);
  if (await isUpToDate(client, directory, files)) return { applied: [], present: files };
  const applied: string[] = [];
  const present: string[] = [];
  // A session lock, not one of a transaction: two processes must not both create the table of applied migrations.
  const { rows: locks } = await client.query('select pg_try_advisory_lock($1, $2) as held', [MIGRATION_LOCK, 0]);
  if (!locks[0].held) {
    onWait();
    await client.query('select pg_advisory_lock($1, $2)', [MIGRATION_LOCK, 0]);
  }
  try {
    await client.query(`create table if not exists schema_migrations
      (name text primary key, sha256 text not null, applied_at timestamptz not null default clock_timestamp())`);
    await renameFormer(client);
    const recorded = await recordedMigrations(client);
    for (const name of files) {
      const sql = readFile(directory, name);
      const sha256 = digestOf(sql);
      const before = recorded.get(name);
      if (before === sha256) {
        present.push(name);
        continue;
      }
      if (before !== undefined) {
        throw new TidemarkError('MIGRATION_DRIFT', `Migration ${name} was changed after it was applied`, {
          details: { file: name, applied: before, found: sha256 },
        });
      }
      await applyOne(client, name, sql, sha256);
      applied.push(name);
    }
    await registerDatasets(client);
    await applyRoles(client);
    await regrantReadRoles(client);
  } finally {
    await client.query('select pg_advisory_unlock($1, $2)', [MIGRATION_LOCK, 0]);
  }
  return { applied, present };
}

/**
 * Whether there is nothing to do. It only reads, and takes no lock: 16 ms of each start instead of 22. While another process of this
 * release migrates, something is missing until it ends, at the latest privileges of roles, and this one waits for it. It does
 * not wait for a later release, which applies each of its files in a transaction. A former name that is recorded beside the
 * present one stays until a start has something to do.
 */
async function isUpToDate(client: Client, directory: string, files: readonly string[]): Promise<boolean> {
  const recorded = await recordedMigrations(client);
  if (files.some((name) => recorded.get(name) !== digestOf(readFile(directory, name)))) return false;
  const { numbers, withoutKey } = registered();
  const { rows } = await client.query(
    `select (select count(*) from datasets where dataset_id = any ($1)) = cardinality($1)
       and (select count(*) from coverage where dataset_id = any ($1)) = cardinality($1)
       and (select count(*) from series where dataset_id = any ($2) and key = '') = cardinality($2) as complete`,
    [numbers, withoutKey],
  );
  if (!rows[0].complete) return false;
  const { mayChange, changes } = await roleState(client);
  return (!mayChange || changes.length === 0) && (await faultyReadRoles(client)).length === 0;
}

/** The check of a role that may not change the schema: every migration must be applied. */
async function nothingMissing(client: Client, directory: string, files: readonly string[]): Promise<MigrationReport> {
  const { missing, changed } = await pendingMigrations(client, directory);
  if (missing.length === 0 && changed.length === 0) return { applied: [], present: files };
  throw new TidemarkError(
    'MIGRATION_NOT_ALLOWED',
    `This role may not change the schema, and these migrations are missing or changed: ${[...missing, ...changed].join(', ')}`,
    { details: { missing: missing.join(', '), changed: changed.join(', ') } },
  );
}

/** Gives the records of applied files their current names, all in one statement. */
async function renameFormer(client: Client): Promise<void> {
  // A process of the earlier release that migrates at the same time records the former names once more.
  await client.query(
    `with names as (select * from unnest($1::text[], $2::text[]) n (former, now)),
       twice as (
         delete from schema_migrations m using names, schema_migrations other
         where m.name = names.former and other.name = names.now and other.sha256 = m.sha256 returning m.name)
     update schema_migrations m set name = names.now from names
     where m.name = names.former and not exists (select from schema_migrations other where other.name = names.now)`,
    [Object.keys(FORMER_NAMES), Object.values(FORMER_NAMES)],
  );
}

async function applyOne(client: Client, name: string, sql: string, sha256: string): Promise<void> {
  try {
    await client.query('begin');
    await client.query(sql);
    await client.query('insert into schema_migrations (name, sha256) values ($1, $2)', [name, sha256]);
    await client.query('commit');
  } catch (cause) {
    await client.query('rollback');
    throw new TidemarkError('MIGRATION_FAILED', `Migration ${name} failed`, { cause, details: { file: name } });
  }
}

/** Inserts for each dataset of the registry its row, an empty coverage, and its one series where it has no series key. */
async function registerDatasets(client: Client): Promise<void> {
  const { numbers, keys, withoutKey } = registered();
  await client.query('insert into datasets select * from unnest($1::int2[], $2::text[]) on conflict do nothing', [
    numbers,
    keys,
  ]);
  await client.query(
    `insert into coverage (dataset_id, version, proved, synthetic)
     select id, 0, '{}', false from unnest($1::int2[]) id on conflict do nothing`,
    [numbers],
  );
  await client.query(
    `insert into series (dataset_id, key) select id, '' from unnest($1::int2[]) id on conflict do nothing`,
    [withoutKey],
  );
}

function registered() {
  const datasets = [...DATASETS.values()];
  return {
    numbers: datasets.map(({ number }) => number),
    keys: datasets.map(({ key }) => key),
    withoutKey: datasets.filter(({ aligned }) => aligned.seriesKey.length === 0).map(({ number }) => number),
  };
}
