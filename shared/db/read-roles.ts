/**
 * Roles that may read what the service reads, and do nothing else: callers of `BYOK Required` datasets come with the
 * password of one. What such a role may do is said here once, granted at its making and after every migration, and
 * held against the database by `readRoleFaults`.
 */
import { randomBytes } from 'node:crypto';
import { TidemarkError } from '../errors.ts';
import { ALIGNED_TABLE } from '../registry/aligned-storage.ts';
import { DATASETS } from '../registry/index.ts';

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
