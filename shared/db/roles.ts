/**
 * The roles that the processes of the service connect as, and what each may do: said here once, brought about after every
 * migration, and held against the database by `./tidemark doctor`.
 *
 * A privilege ends at the table. Which of its rows are proved is decided by each read, in a snapshot that begins with
 * the coverage; docs/security.md says what it would cost to have the database decide it.
 */

import { randomBytes } from 'node:crypto';
import type { Client } from 'pg';
import { TidemarkError } from '../errors.ts';
import { ALIGNED_TABLE } from '../registry/aligned-storage.ts';
import { DATASETS } from '../registry/index.ts';
import { requireTimescale } from './connect.ts';

/*
 * Roles that may read what the service reads, and do nothing else: callers of `BYOK Required` datasets come with the
 * password of one. What such a role may do is said here once, granted at its making and after every migration, and
 * held against the database by `readRoleFaults`.
 */

/** A `pg` client, or anything like it. */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>;
}

/** Catalog tables that answers are made from. */
const CATALOG_TABLES = ['coverage', 'coverage_spans', 'frames', 'partitions', 'series', 'source_checks'];

/** Every table a read may touch. */
export const readTables = (): readonly string[] => [
  ...CATALOG_TABLES,
  ALIGNED_TABLE,
  ...[...DATASETS.values()].map((dataset) => dataset.native.table),
];

/** Names that need no quoting anywhere. */
const ROLE_NAME = /^[a-z_][a-z0-9_]{0,62}$/;

/** 192 bits, in characters that need no escaping in a header or a URL. */
const newPassword = () => randomBytes(24).toString('hex');

export interface MadeRole {
  readonly role: string;
  readonly created: boolean;
  /** Set where it is new: it is stored nowhere, and shown once. */
  readonly password: string | undefined;
}

/**
 * Makes the role, or brings it to what it should be. `rotate` gives a role that exists a new password.
 * @throws TidemarkError USAGE for a name that is none; READ_ROLE_UNSAFE for a role that can do more than read.
 */
export async function makeReadRole(client: Queryable, role: string, rotate: boolean): Promise<MadeRole> {
  const created = (await client.query('select 1 from pg_roles where rolname = $1', [checked(role)])).rows.length === 0;
  const password = created || rotate ? newPassword() : undefined;
  await client.query('begin');
  try {
    for (const statement of roleStatements(role, { create: created, password })) await client.query(statement);
    await client.query('insert into read_roles (role) values ($1) on conflict do nothing', [role]);
    const faults = await readRoleFaults(client, role);
    if (faults.length > 0) throw new TidemarkError('READ_ROLE_UNSAFE', `The role ${role} ${faults.join('; it ')}`);
    await client.query('commit');
  } catch (cause) {
    await client.query('rollback');
    if ((cause as { code?: string }).code !== '42501') throw cause;
    throw new TidemarkError('READ_ROLE_REFUSED', `The database does not let us make or grant the role ${role}`, {
      cause,
    });
  }
  return { role, created, password };
}

/** What makes the role, as SQL: for whoever may make roles where we may not. */
export function roleStatements(role: string, options: { create: boolean; password: string | undefined }): string[] {
  checked(role);
  const { create, password } = options;
  const login = password === undefined ? '' : ` password '${password}'`;
  return [
    ...(create
      ? [`create role ${role} login nosuperuser nocreatedb nocreaterole noreplication nobypassrls noinherit${login}`]
      : password === undefined
        ? []
        : [`alter role ${role}${login}`]),
    `alter role ${role} set default_transaction_read_only = on`,
    ...grantStatements(role),
  ];
}

function grantStatements(role: string): string[] {
  return [
    `revoke all on all tables in schema public from ${role}`,
    `grant usage on schema public to ${role}`,
    `grant select on ${readTables().join(', ')} to ${role}`,
    // Granted to everyone by default: a reader has nothing to create.
    `revoke create on schema public from public`,
    `do $$ begin execute format('revoke temporary on database %I from public', current_database()); end $$`,
  ];
}

/** Grants the roles that lack some of it what reads need now. Called after migrations, by the tables' owner. */
export async function regrantReadRoles(client: Queryable): Promise<void> {
  const { rows } = await client.query('select r.role from read_roles r join pg_roles p on p.rolname = r.role');
  for (const { role } of rows) {
    // A grant on a hypertable goes to each of its chunks: not something for every start.
    if ((await readRoleFaults(client, String(role))).length === 0) continue;
    await client.query('begin');
    for (const statement of grantStatements(String(role))) await client.query(statement);
    await client.query('commit');
  }
}

/** What the role can do beyond reading what reads need, and what of that it cannot. */
export async function readRoleFaults(client: Queryable, role: string): Promise<string[]> {
  const { rows } = await client.query(faultsSql(), [role]);
  return rows.map(({ fault }) => String(fault));
}

/** The same as SQL over the role's name, `$1`: one row a fault. */
export const faultsSql = (): string => `
  with role as (select * from pg_roles where rolname = $1::text),
    mine as (select c.oid, c.relname as name, c.relkind as kind, c.relowner as owner,
        c.relname in (${readTables().map((table) => `'${table}'`)}) as needed
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') and n.nspname not like 'pg\\_%'
        and n.nspname <> 'information_schema' and n.nspname not like '%timescaledb%'
        and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e'))
  select 'does not exist' as fault where not exists (select from role)
  union all select 'is a superuser' from role where rolsuper
  union all select 'may not log in' from role where not rolcanlogin
  union all select 'may make roles, databases or replicas, or passes row security' from role
    where not rolsuper and (rolcreaterole or rolcreatedb or rolreplication or rolbypassrls)
  union all select 'is a member of ' || string_agg(m.roleid::regrole::text, ', ') from role
    join pg_auth_members m on m.member = role.oid group by role.oid
  union all select 'may create in this database' from role
    where not rolsuper and (has_database_privilege(role.oid, current_database(), 'create, temporary')
      or has_schema_privilege(role.oid, 'public', 'create'))
  union all select 'may change ' || string_agg(name, ', ' order by name) from role, mine
    where not rolsuper and case kind when 'S' then has_sequence_privilege(role.oid, mine.oid, 'usage, update')
      else has_table_privilege(role.oid, mine.oid, 'insert, update, delete, truncate, references, trigger')
        or has_any_column_privilege(role.oid, mine.oid, 'insert, update, references') end having count(*) > 0
  union all select 'may read ' || string_agg(name, ', ' order by name) from role, mine
    where not rolsuper and not needed and kind <> 'S' and has_any_column_privilege(role.oid, mine.oid, 'select')
    having count(*) > 0
  union all select 'may not read ' || string_agg(name, ', ' order by name) from role, mine
    where needed and not has_table_privilege(role.oid, mine.oid, 'select') having count(*) > 0`;

function checked(role: string): string {
  if (ROLE_NAME.test(role)) return role;
  throw new TidemarkError(
    'USAGE',
    `${JSON.stringify(role)} is no role name: lower case letters, digits and _, at most 63`,
  );
}

/**
 * `owner` owns the database and the catalog: it migrates and makes roles for callers. `ingest` owns the tables of rows,
 * so that it can make chunks, index and compress them, and keeps the catalog; the operator's commands use it too. `serve`
 * answers requests. `export` writes artifacts. `monitor` collects figures.
 */
export const DATABASE_ROLES = ['owner', 'ingest', 'serve', 'export', 'monitor'] as const;
export type DatabaseRole = (typeof DATABASE_ROLES)[number];

export const roleName = (role: DatabaseRole): string => `tidemark_${role}`;

const OWNER = roleName('owner');
const INGEST = roleName('ingest');

export type RolePasswords = Readonly<Record<DatabaseRole, string>>;

const ACTIONS = { s: 'SELECT', i: 'INSERT', u: 'UPDATE', d: 'DELETE', m: 'MAINTAIN' } as const;
type Grantee = Exclude<DatabaseRole, 'owner'>;
/** Letters of ACTIONS by role; none: nothing. */
type Grants = Readonly<Partial<Record<Grantee, string>>>;

const READ: Grants = { serve: 's', export: 's', monitor: 's' };

/** Tables of the catalog. What is only added to (the ledger) can neither be changed nor deleted by those who write it. */
const CATALOG: Readonly<Record<string, Grants>> = {
  attempts: { ingest: 'siu', monitor: 's' },
  checkpoints: { ingest: 'siud', monitor: 's' },
  coverage: { ...READ, ingest: 'su' },
  coverage_spans: { ...READ, ingest: 'siud' },
  datasets: { ...READ, ingest: 's' },
  export_audit_heads: { ingest: 's', serve: 'siu', export: 'siu' },
  exports: { ingest: 's', serve: 'siud', export: 'su', monitor: 's' },
  frames: { ...READ, ingest: 'siud' },
  ledger: { ...READ, ingest: 'si' },
  // Its statistics are taken when many small partitions have been proved.
  partitions: { ...READ, ingest: 'siudm' },
  read_roles: {},
  recount_requests: { ingest: 'siud', serve: 'si', export: 'si', monitor: 's' },
  runs: { ...READ, ingest: 'siud' },
  schema_migrations: { ...READ, ingest: 's' },
  series: { ...READ, ingest: 'si' },
  source_checks: { ...READ, ingest: 'siud' },
  source_failures: { ingest: 'siu', monitor: 's' },
};

const DATA_TABLES: ReadonlySet<string> = new Set([
  ALIGNED_TABLE,
  ...[...DATASETS.values()].map((dataset) => dataset.native.table as string),
]);
/** Every table that the service has. */
export const roleTables = (): readonly string[] => [...Object.keys(CATALOG), ...DATA_TABLES];

/** `ingest` owns them. */
const DATA: Grants = { serve: 's', export: 's' };

/**
 * Makes the roles, hands them the database, and gives them these passwords. For a superuser: nobody else may grant
 * rights on TimescaleDB's own schema, hand over the database or change roles that others made. Repeated it changes nothing but passwords.
 */
export async function provisionRoles(admin: Queryable, passwords: Readonly<Partial<RolePasswords>>): Promise<void> {
  await requireTimescale(admin as Pick<Client, 'query'>);
  // One at a time on the server, whatever database it is asked for in: roles belong to all of them.
  await admin.query('begin');
  try {
    await admin.query('lock table pg_catalog.pg_db_role_setting in share row exclusive mode');
    for (const role of DATABASE_ROLES) {
      const name = roleName(role);
      const { rows } = await admin.query('select from pg_roles where rolname = $1', [name]);
      const attributes = `login nosuperuser nocreatedb ${role === 'owner' ? 'createrole' : 'nocreaterole'} noreplication nobypassrls inherit`;
      if (rows.length === 0) await admin.query(`create role ${name} ${attributes}`);
      const password = passwords[role];
      if (password === undefined) continue;
      await admin.query(`alter role ${name} ${attributes} password '${password.replaceAll("'", "''")}'`);
    }
    for (const statement of PROVISIONS) await admin.query(statement);
    await admin.query('commit');
  } catch (error) {
    await admin.query('rollback');
    throw error;
  }
}

/** What the URLs of processes say about the roles that they name; other users are none of ours. */
export function rolePasswords(urls: readonly (URL | undefined)[]): Partial<RolePasswords> {
  const found: Partial<Record<DatabaseRole, string>> = {};
  for (const role of DATABASE_ROLES) {
    const url = urls.find((one) => one !== undefined && decodeURIComponent(one.username) === roleName(role));
    if (url) found[role] = decodeURIComponent(url.password);
  }
  return found;
}

/** Whether `provisionRoles` was done here: all roles are there, and this database, new or restored, is theirs. */
export async function isProvisioned(admin: Queryable): Promise<boolean> {
  if ((await missingRoles(admin)).length > 0) return false;
  const { rows } = await admin.query(
    `select pg_get_userbyid(datdba) = '${OWNER}' and exists (select from pg_namespace where nspname = '_timescaledb_internal'
       and has_schema_privilege('${INGEST}', oid, 'create')) as done from pg_database where datname = current_database()`,
  );
  return rows[0].done === true;
}

/** Roles that are not there yet. */
export async function missingRoles(client: Queryable): Promise<DatabaseRole[]> {
  const { rows } = await client.query('select rolname from pg_roles where rolname = any ($1)', [
    DATABASE_ROLES.map(roleName),
  ]);
  const found = new Set(rows.map(({ rolname }) => rolname));
  return DATABASE_ROLES.filter((role) => !found.has(roleName(role)));
}

/** Beside the roles themselves, all of it for this database. */
const PROVISIONS: readonly string[] = [
  `grant ${INGEST} to ${OWNER} with inherit true, set true`,
  // Whose session holds a lease, and since when.
  `grant pg_read_all_stats to ${roleName('monitor')}`,
  `do $$ begin execute format('alter database %I owner to ${OWNER}', current_database()); end $$`,
  'create extension if not exists timescaledb',
  'create extension if not exists btree_gist',
  // Chunks are there, and their indexes are made there.
  `grant usage, create on schema _timescaledb_internal to ${INGEST}`,
  // Roles of callers that were made before there was an owner: it may grant them what later migrations bring.
  `do $$ declare r text; begin
     if to_regclass('read_roles') is not null then
       for r in select role from read_roles join pg_roles on rolname = role where not rolsuper loop
         execute format('grant %I to ${OWNER} with admin option, inherit false, set false', r);
       end loop;
     end if;
   end $$`,
];

interface TableFacts {
  readonly name: string;
  readonly owner: string;
  /** `role ACTION`. */
  readonly granted: readonly string[];
}

/** Statements that are left to do, for the owner or a superuser; none where all is as it should be. */
export async function roleChanges(client: Queryable): Promise<string[]> {
  const tables = await tablesOf(client);
  const changes = await databaseChanges(client);
  const handed: string[] = [];
  for (const { name, owner, granted } of tables) {
    const data = DATA_TABLES.has(name);
    // Of somebody else, who has a table of another name in our schema.
    if (!data && !(name in CATALOG)) continue;
    const wantedOwner = data ? INGEST : OWNER;
    if (owner !== wantedOwner) (data ? handed : changes).push(`alter table "${name}" owner to ${wantedOwner}`);
    const grants = data ? DATA : CATALOG[name];
    for (const role of DATABASE_ROLES) {
      if (role === 'owner' || (data && role === 'ingest')) continue;
      const wanted = [...(grants[role] ?? '')].map((letter) => ACTIONS[letter as keyof typeof ACTIONS]);
      const held = granted.filter((grant) => grant.startsWith(`${roleName(role)} `)).map((g) => g.split(' ')[1]);
      const excess = held.filter((action) => !(wanted as readonly string[]).includes(action));
      const lacking = wanted.filter((action) => !held.includes(action));
      if (excess.length > 0) changes.push(`revoke ${excess.join(', ')} on "${name}" from ${roleName(role)}`);
      if (lacking.length > 0) changes.push(`grant ${lacking.join(', ')} on "${name}" to ${roleName(role)}`);
    }
  }
  // Who takes a table over must be allowed to make tables in its schema: for this moment alone.
  const handing =
    handed.length > 0
      ? [`grant create on schema public to ${INGEST}`, ...handed, `revoke create on schema public from ${INGEST}`]
      : [];
  return [...handing, ...changes];
}

/** Temporary tables are for those who ingest; by default anybody may make them. */
async function databaseChanges(client: Queryable): Promise<string[]> {
  const { rows } = await client.query(
    `select quote_ident(current_database()) as name,
       has_database_privilege('${roleName('serve')}', current_database(), 'temporary') as open,
       has_database_privilege('${INGEST}', current_database(), 'temporary') as held`,
  );
  const [{ name, open, held }] = rows;
  return [
    ...(open ? [`revoke temporary on database ${name} from public`] : []),
    ...(open || !held ? [`grant temporary on database ${name} to ${INGEST}`] : []),
  ];
}

async function tablesOf(client: Queryable): Promise<TableFacts[]> {
  const { rows } = await client.query(
    `select c.relname as name, pg_get_userbyid(c.relowner) as owner, coalesce((
         select array_agg(r.rolname || ' ' || a.privilege_type order by 1) from aclexplode(c.relacl) a
         join pg_roles r on r.oid = a.grantee where r.rolname = any ($1)), '{}') as granted
     from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
       and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
     order by c.relname`,
    [DATABASE_ROLES.map(roleName)],
  );
  return rows as unknown as TableFacts[];
}

/**
 * Tables get their owners and roles their privileges, where the roles are there and we may: after migrations. Each table
 * is changed once; a grant on a hypertable goes to each of its chunks.
 * @returns whether the database has roles now.
 */
export async function applyRoles(client: Queryable): Promise<boolean> {
  const { rows } = await client.query(
    `select rolsuper or case when to_regrole('${OWNER}') is null then false
       else pg_has_role(oid, to_regrole('${OWNER}'), 'usage') end as may from pg_roles where rolname = current_user`,
  );
  if (!rows[0].may || (await missingRoles(client)).length > 0) return false;
  const changes = await roleChanges(client);
  if (changes.length === 0) return true;
  await client.query('begin');
  try {
    for (const statement of changes) await client.query(statement);
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw error;
  }
  return true;
}
