/**
 * The database roles and their privileges: those that the processes of the service use, and the read roles of callers.
 * This file is their only definition. `migrate` applies it after every migration, and `./tidemark doctor` checks the
 * database against it.
 *
 * A privilege covers whole tables. Each read itself restricts the rows to the proved ones, in a snapshot that begins with
 * the coverage; docs/security.md says what it would cost to let the database do that.
 */

import { randomBytes } from 'node:crypto';
import type { Client } from 'pg';
import { TidemarkError } from '../errors.ts';
import { ALIGNED_TABLE } from '../registry/aligned-storage.ts';
import { DATASETS } from '../registry/index.ts';
import { hasInstruments, othersTable } from '../registry/instruments.ts';
import { KLINE_TABLES } from '../registry/kept-klines.ts';
import { requireTimescale } from './connect.ts';

/** A `pg` client or pool. */
export interface Queryable {
  query(text: string, values?: unknown[]): Promise<{ rows: Record<string, unknown>[] }>;
}

/** Catalog tables that reads use. */
const CATALOG_TABLES = [
  'coverage',
  'coverage_spans',
  'frames',
  'partitions',
  'proof_head',
  'proof_leaves',
  'series',
  'source_checks',
];

const NATIVE_TABLES: readonly string[] = [...DATASETS.values()].flatMap((dataset) => [
  dataset.native.table,
  ...(hasInstruments(dataset) ? [othersTable(dataset)] : []),
]);

/** Every table that reads use. */
export const readTables = (): readonly string[] => [
  ...CATALOG_TABLES,
  ...Object.values(KLINE_TABLES),
  ALIGNED_TABLE,
  ...NATIVE_TABLES,
];

/** Names of roles that need no quoting in SQL. */
const ROLE_NAME = /^[a-z_][a-z0-9_]{0,62}$/;

/** A password of 192 bits, in characters that need no escaping in a header or a URL. */
const newPassword = () => randomBytes(24).toString('hex');

interface ReadRole {
  readonly role: string;
  readonly created: boolean;
  /** Set where it is new. It is stored nowhere and shown once. */
  readonly password: string | undefined;
}

/**
 * Creates a read role, or gives an existing one the privileges it should have. Callers of `BYOK Required` datasets send
 * the password of such a role, so it may read what the service reads and do nothing else.
 * @param rotate gives an existing role a new password.
 * @throws TidemarkError USAGE for an invalid name and for a role that can do more than read.
 */
export async function makeReadRole(client: Queryable, role: string, rotate: boolean): Promise<ReadRole> {
  const created = (await client.query('select 1 from pg_roles where rolname = $1', [checked(role)])).rows.length === 0;
  const password = created || rotate ? newPassword() : undefined;
  await client.query('begin');
  try {
    for (const statement of roleStatements(role, { create: created, password })) await client.query(statement);
    await client.query('insert into read_roles (role) values ($1) on conflict do nothing', [role]);
    const faults = await readRoleFaults(client, role);
    if (faults.length > 0) {
      throw new TidemarkError('USAGE', `The role ${role} ${faults.join('; it ')}`, {
        remedy: 'Choose another name: callers know the password of this role, so it may do nothing but read.',
      });
    }
    await client.query('commit');
  } catch (cause) {
    await client.query('rollback');
    if ((cause as { code?: string }).code !== '42501') throw cause;
    throw new TidemarkError('DATABASE_UNSUITABLE', `This role may not create or grant the role ${role}`, {
      remedy: `Let a role that may create roles run the statements of \`./tidemark rights read-role ${role} --sql\`.`,
      cause,
    });
  }
  return { role, created, password };
}

/** The SQL that creates a read role, for an administrator who may create roles where this process may not. */
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
    // PostgreSQL grants these to everyone by default; a reader creates nothing.
    `revoke create on schema public from public`,
    `do $$ begin execute format('revoke temporary on database %I from public', current_database()); end $$`,
  ];
}

/** The read roles whose privileges are not those that reads of this release need. */
export async function faultyReadRoles(client: Queryable): Promise<string[]> {
  const { rows } = await client.query('select r.role from read_roles r join pg_roles p on p.rolname = r.role');
  const faulty: string[] = [];
  for (const { role } of rows) {
    if ((await readRoleFaults(client, String(role))).length > 0) faulty.push(String(role));
  }
  return faulty;
}

/** Grants the read roles what reads of this release need. The owner of the tables calls it after migrations. */
export async function regrantReadRoles(client: Queryable): Promise<void> {
  // A grant on a hypertable goes to each of its chunks, which is too much for every start.
  for (const role of await faultyReadRoles(client)) {
    await client.query('begin');
    for (const statement of grantStatements(role)) await client.query(statement);
    await client.query('commit');
  }
}

/** The faults of a read role: privileges that reads do not need, and missing ones that they need. */
export async function readRoleFaults(client: Queryable, role: string): Promise<string[]> {
  const { rows } = await client.query(faultsSql(), [role]);
  return rows.map(({ fault }) => String(fault));
}

/** SQL that returns a row for each fault of the read role named `$1`. */
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
    `${JSON.stringify(role)} is not a valid role name: use at most 63 lower case letters, digits and _`,
  );
}

/**
 * `owner` owns the database and the catalog: it migrates and creates roles for callers. `ingest` owns the tables of rows,
 * so that it can create, index and compress chunks, and writes the catalog; the operator's commands use it too. `serve`
 * answers requests. `export` writes artifacts. `monitor` collects metrics.
 */
export const DATABASE_ROLES = ['owner', 'ingest', 'serve', 'export', 'monitor'] as const;
export type DatabaseRole = (typeof DATABASE_ROLES)[number];

export const roleName = (role: DatabaseRole): string => `tidemark_${role}`;

const OWNER = roleName('owner');
const INGEST = roleName('ingest');

export type RolePasswords = Readonly<Record<DatabaseRole, string>>;

const ACTIONS = { s: 'SELECT', i: 'INSERT', u: 'UPDATE', d: 'DELETE', m: 'MAINTAIN' } as const;
type Grantee = Exclude<DatabaseRole, 'owner'>;
/** Letters of ACTIONS by role; a role that is absent has no privilege. */
type Grants = Readonly<Partial<Record<Grantee, string>>>;

const READ: Grants = { serve: 's', export: 's', monitor: 's' };

/** Privileges on the tables of the catalog. The writers of the ledger can neither change nor delete its entries. */
const CATALOG: Readonly<Record<string, Grants>> = {
  // Whoever may write it may call the service, so it is the owner's alone.
  api_keys: { serve: 's' },
  attempts: { ingest: 'siu', monitor: 's' },
  checkpoints: { ingest: 'siud', monitor: 's' },
  coverage: { ...READ, ingest: 'su' },
  coverage_spans: { ...READ, ingest: 'siud' },
  datasets: { ...READ, ingest: 's' },
  export_audit_heads: { ingest: 's', serve: 'siu', export: 'siu' },
  exports: { ingest: 's', serve: 'siu', export: 'su', monitor: 's' },
  frames: { ...READ, ingest: 'siud' },
  lakes: { ingest: 's', serve: 's', export: 'siud', monitor: 's' },
  late_arrivals: { ingest: 'siu', serve: 's', monitor: 's' },
  ledger: { ...READ, ingest: 'si' },
  // Ingest analyses the table when many small partitions have been proved.
  partitions: { ...READ, ingest: 'siudm' },
  // A pin is neither changed nor removed.
  pinned_settings: { ingest: 'si' },
  proof_head: { ...READ, ingest: 'siu' },
  proof_leaves: { ...READ, ingest: 'siu' },
  proof_secret: { ingest: 'si' },
  read_roles: {},
  recount_requests: { ingest: 'siud', serve: 'si', export: 'si', monitor: 's' },
  runs: { ...READ, ingest: 'siud' },
  schema_migrations: { ...READ, ingest: 's' },
  series: { ...READ, ingest: 'si' },
  source_checks: { ...READ, ingest: 'siud' },
  source_failures: { ingest: 'siu', monitor: 's' },
};

const DATA_TABLES: ReadonlySet<string> = new Set([ALIGNED_TABLE, ...Object.values(KLINE_TABLES), ...NATIVE_TABLES]);
/** Every table of the service. */
export const roleTables = (): readonly string[] => [...Object.keys(CATALOG), ...DATA_TABLES];

/** Privileges on the tables of rows, which `ingest` owns. */
const DATA: Grants = { serve: 's', export: 's' };

/**
 * Creates the roles, gives them the database and sets these passwords. It needs a superuser: no other role may grant
 * privileges on TimescaleDB's own schema, hand over the database or change roles that others created. A second call
 * changes nothing but the passwords.
 */
export async function provisionRoles(admin: Queryable, passwords: Readonly<Partial<RolePasswords>>): Promise<void> {
  await requireTimescale(admin as Pick<Client, 'query'>);
  // Roles belong to the whole server, so only one process may do this at a time, whatever its database.
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

/** The passwords of the roles that the URLs of processes name; other users are ignored. */
export function rolePasswords(urls: readonly (URL | undefined)[]): Partial<RolePasswords> {
  const found: Partial<Record<DatabaseRole, string>> = {};
  for (const role of DATABASE_ROLES) {
    const url = urls.find((one) => one !== undefined && decodeURIComponent(one.username) === roleName(role));
    if (url) found[role] = decodeURIComponent(url.password);
  }
  return found;
}

/** What `provisionRoles` does in this database, besides creating the roles. */
const PROVISIONS: readonly string[] = [
  `grant ${INGEST} to ${OWNER} with inherit true, set true`,
  // For the figures of who holds a lease, and since when.
  `grant pg_read_all_stats to ${roleName('monitor')}`,
  `do $$ begin execute format('alter database %I owner to ${OWNER}', current_database()); end $$`,
  'create extension if not exists timescaledb',
  'create extension if not exists btree_gist',
  // The chunks and their indexes are created in this schema.
  `grant usage, create on schema _timescaledb_internal to ${INGEST}`,
  // PostgreSQL lets everybody make large objects, which no grant on a table limits: they would fill the disk.
  `do $$ declare f regprocedure; begin
     for f in select oid from pg_proc where pronamespace = 'pg_catalog'::regnamespace and proname ~ '^(lo_|loread$|lowrite$)' loop
       execute 'revoke execute on function ' || f || ' from public';
     end loop;
   end $$`,
  // Read roles that were created before there was an owner: the owner may grant them what later migrations add.
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
  /** Each as `role ACTION`. */
  readonly granted: readonly string[];
}

export interface RoleState {
  /** The roles that do not exist yet. */
  readonly missing: readonly DatabaseRole[];
  /** Whether `provisionRoles` was run: all roles exist and own this database, which may be new or restored. */
  readonly isProvisioned: boolean;
  /** Whether the current role may change owners and privileges. */
  readonly mayChange: boolean;
  /** The statements that bring owners and privileges to this definition; none while roles are missing. */
  readonly changes: readonly string[];
}

/**
 * Asked in one statement, because each start asks twice. `to_regrole` gives null for a role that is missing, and so does every
 * question about it. The name of a grantee comes from a function: a join with `pg_roles` takes twice as long, 7 ms in a
 * new connection.
 */
const ROLE_FACTS = `
  select array(select rolname::text from pg_roles where rolname = any ($1)) as roles,
    quote_ident(d.datname) as database,
    has_database_privilege(to_regrole('${roleName('serve')}'), d.oid, 'temporary') as open,
    has_database_privilege(to_regrole('${INGEST}'), d.oid, 'temporary') as held,
    me.rolsuper or coalesce(pg_has_role(me.oid, to_regrole('${OWNER}'), 'usage'), false) as may,
    pg_get_userbyid(d.datdba) = '${OWNER}' and exists (select from pg_namespace where nspname = '_timescaledb_internal'
      and has_schema_privilege(to_regrole('${INGEST}'), oid, 'create'))
      and not exists (select from pg_proc p where p.proname in ('lo_creat', 'lo_create', 'lo_from_bytea')
        and has_function_privilege(to_regrole('${INGEST}'), p.oid, 'execute')) as provisioned,
    (select coalesce(json_agg(t order by t.name), '[]') from (
       select c.relname as name, pg_get_userbyid(c.relowner) as owner, array(
           select pg_get_userbyid(a.grantee) || ' ' || a.privilege_type from aclexplode(c.relacl) a
           where pg_get_userbyid(a.grantee) = any ($1) order by 1) as granted
       from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not exists (
         select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')) t) as tables
  from pg_database d, pg_roles me where d.datname = current_database() and me.rolname = current_user`;

/** Compares a database with this definition, without changing it. */
export async function roleState(client: Queryable): Promise<RoleState> {
  const { rows } = await client.query(ROLE_FACTS, [DATABASE_ROLES.map(roleName)]);
  const { roles, provisioned, may, tables, ...database } = rows[0] as unknown as DatabaseFacts & {
    roles: string[];
    provisioned: boolean;
    may: boolean;
    tables: TableFacts[];
  };
  const missing = DATABASE_ROLES.filter((role) => !roles.includes(roleName(role)));
  return {
    missing,
    isProvisioned: provisioned && missing.length === 0,
    mayChange: may,
    changes: missing.length > 0 ? [] : [...tableChanges(tables), ...databaseChanges(database)],
  };
}

function tableChanges(tables: readonly TableFacts[]): string[] {
  const changes: string[] = [];
  const ownerChanges: string[] = [];
  for (const { name, owner, granted } of tables) {
    const data = DATA_TABLES.has(name);
    // A table that is not Tidemark's, in its schema.
    if (!data && !(name in CATALOG)) continue;
    const wantedOwner = data ? INGEST : OWNER;
    if (owner !== wantedOwner) (data ? ownerChanges : changes).push(`alter table "${name}" owner to ${wantedOwner}`);
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
  // The new owner of a table must be allowed to create tables in its schema at that moment.
  const transfer =
    ownerChanges.length > 0
      ? [`grant create on schema public to ${INGEST}`, ...ownerChanges, `revoke create on schema public from ${INGEST}`]
      : [];
  return [...transfer, ...changes];
}

interface DatabaseFacts {
  /** The quoted name. */
  readonly database: string;
  /** Whether everybody may create temporary tables. */
  readonly open: boolean;
  /** Whether ingest may. */
  readonly held: boolean;
}

/** Only ingest may create temporary tables; by default everybody may. */
const databaseChanges = ({ database, open, held }: DatabaseFacts): string[] => [
  ...(open ? [`revoke temporary on database ${database} from public`] : []),
  ...(open || !held ? [`grant temporary on database ${database} to ${INGEST}`] : []),
];

/**
 * Applies owners and privileges after migrations, if the roles exist and this role is allowed to. It changes each table
 * at most once, because a grant on a hypertable goes to each of its chunks.
 * @returns whether the database has the roles now.
 */
export async function applyRoles(client: Queryable): Promise<boolean> {
  const { missing, mayChange, changes } = await roleState(client);
  if (!mayChange || missing.length > 0) return false;
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
