/** Applies `migrations/*.sql` in order, each once and in one transaction. Any process may run it at any time. */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Client } from 'pg';
import { BEGIN_ANEW, TidemarkError } from '../errors.ts';
import { DATASETS } from '../registry/index.ts';
import { hasInstruments, SLOTS, slotNumber } from '../registry/instruments.ts';
import { MIGRATION_LOCK, requireTimescale } from './connect.ts';
import { applyRoles, faultyReadRoles, regrantReadRoles, roleState } from './roles.ts';

export const MIGRATIONS_DIR = fileURLToPath(new URL('../../migrations/', import.meta.url));

export interface MigrationReport {
  readonly applied: readonly string[];
  readonly present: readonly string[];
}

/** Compares a database with the migrations of this tree, without changing it. */
export async function pendingMigrations(
  client: Pick<Client, 'query'>,
  directory: string = MIGRATIONS_DIR,
): Promise<{ missing: string[]; foreign: string[] }> {
  const files = migrationFiles(directory);
  const recorded = await recordedMigrations(client);
  return { missing: files.filter((name) => !recorded.has(name)), foreign: foreignIn(recorded, directory, files) };
}

/**
 * Refuses a database that another tree made, without changing it.
 * @throws TidemarkError DATABASE_UNSUITABLE
 */
export async function refuseForeign(client: Pick<Client, 'query'>): Promise<void> {
  await ownMigrations(client, MIGRATIONS_DIR, migrationFiles(MIGRATIONS_DIR));
}

/** The digests of the applied files by their names. @throws TidemarkError DATABASE_UNSUITABLE if another tree applied one. */
async function ownMigrations(
  client: Pick<Client, 'query'>,
  directory: string,
  files: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const recorded = await recordedMigrations(client);
  const foreign = foreignIn(recorded, directory, files);
  if (foreign.length === 0) return recorded;
  const more = foreign.length > 1 ? ` and ${foreign.length - 1} more` : '';
  throw new TidemarkError(
    'DATABASE_UNSUITABLE',
    `Another tree of Tidemark made this database: its migrations (${foreign[0]}${more}) are not those of migrations/`,
    { details: { foreign: foreign.join(', ') }, remedy: BEGIN_ANEW },
  );
}

/** The applied files that this tree does not have, or has with other bytes. */
const foreignIn = (recorded: ReadonlyMap<string, string>, directory: string, files: readonly string[]): string[] =>
  [...recorded]
    .filter(([name, sha256]) => !files.includes(name) || sha256 !== digestOf(readFile(directory, name)))
    .map(([name]) => name)
    .sort();

async function recordedMigrations(client: Pick<Client, 'query'>): Promise<ReadonlyMap<string, string>> {
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
 * @throws TidemarkError DATABASE_UNSUITABLE for an unsupported version of TimescaleDB, for a database of another tree, which stays
 *   as it is, when a file fails, and where this role may not migrate.
 */
export async function migrate(
  client: Client,
  directory: string = MIGRATIONS_DIR,
  onWait: () => void = () => {},
): Promise<MigrationReport> {
  const files = migrationFiles(directory);
  await requireTimescale(client);
  const found = await ownMigrations(client, directory, files);
  const { rows: may } = await client.query(`select has_schema_privilege('public', 'create') as create`);
  if (!may[0].create) return nothingMissing(found, files);
  if (await isUpToDate(client, found, files)) return { applied: [], present: files };
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
    // Another process may have migrated meanwhile.
    const recorded = await ownMigrations(client, directory, files);
    for (const name of files) {
      if (recorded.has(name)) {
        present.push(name);
        continue;
      }
      const sql = readFile(directory, name);
      await applyOne(client, name, sql, digestOf(sql));
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
 * Whether there is nothing to do. It only reads, and takes no lock: 16 ms of each start instead of 22. While another process
 * migrates, something is missing until it ends, at the latest privileges of roles, and this one waits for it.
 */
async function isUpToDate(
  client: Client,
  recorded: ReadonlyMap<string, string>,
  files: readonly string[],
): Promise<boolean> {
  if (files.some((name) => !recorded.has(name))) return false;
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
function nothingMissing(recorded: ReadonlyMap<string, string>, files: readonly string[]): MigrationReport {
  const missing = files.filter((name) => !recorded.has(name));
  if (missing.length === 0) return { applied: [], present: files };
  throw new TidemarkError(
    'DATABASE_UNSUITABLE',
    `This role may not change the schema, and these migrations are missing: ${missing.join(', ')}`,
    {
      details: { missing: missing.join(', ') },
      remedy: 'Run `./tidemark migrate` with SVC_DATABASE_OWNER_URL; this role may not change the schema.',
    },
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
    throw new TidemarkError('DATABASE_UNSUITABLE', `Migration ${name} failed`, {
      details: { file: name },
      remedy: 'Remove the cause, then migrate again; nothing of the failed migration was applied.',
      cause,
    });
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

/** Other instruments are registered as numbers without a symbol, so that whoever proves rows may claim one. */
function registered() {
  const datasets = [...DATASETS.values()];
  const slots = datasets.filter(hasInstruments).flatMap((base) =>
    Array.from({ length: SLOTS }, (_, index) => ({
      number: slotNumber(base, index + 1),
      key: `${base.key}#${index + 1}`,
    })),
  );
  return {
    numbers: [...datasets, ...slots].map(({ number }) => number),
    keys: [...datasets, ...slots].map(({ key }) => key),
    withoutKey: datasets.filter(({ aligned }) => aligned.seriesKey.length === 0).map(({ number }) => number),
  };
}
