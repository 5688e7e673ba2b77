import { loadSettings } from '../../../shared/config/load.ts';
import { connect } from '../../../shared/db/connect.ts';
import {
  applyRoles,
  makeReadRole,
  provisionRoles,
  readTables,
  rolePasswords,
  roleStatements,
} from '../../../shared/db/roles.ts';
import { openContext } from '../context.ts';
import { PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput } from '../output.ts';
import { makeEverything } from '../streams.ts';

export async function runReadRole(command: ParsedCommand): Promise<number> {
  const [role] = command.positionals;
  if (command.values.sql === true) {
    const statements = roleStatements(role, { create: true, password: undefined });
    statements.push(`insert into read_roles (role) values ('${role}') on conflict do nothing`);
    createOutput(command).answer({ command: 'read-role', ok: true, role, sql: statements }, () =>
      [...statements.map((statement) => `${statement};`), `\\password ${role}`].join('\n'),
    );
    return 0;
  }
  await using context = await openContext(command, 'read-role');
  await using client = await connect({
    url: context.databaseUrls.owner,
    name: 'tidemark read-role',
    signal: context.signal,
  });
  const { created, password } = await makeReadRole(client, role, command.values.rotate === true);
  const answer = { command: 'read-role', ok: true, role, created, password: password ?? null, tables: readTables() };
  context.output.answer(answer, () =>
    [
      `role      ${role}, ${created ? 'created' : 'up to date'}; may read ${answer.tables.length} tables and write none`,
      password === undefined ? 'password  unchanged; --rotate sets a new one' : `password  ${password}`,
      `setting   SVC_BYOK_DATABASE_ROLE=${role}`,
    ].join('\n'),
  );
  return 0;
}

/**
 * If a superuser's URL is set: creates the roles that the other URLs name, before any process connects as one of them.
 */
async function makeRoles(command: ParsedCommand): Promise<void> {
  const settings = loadSettings({ env: command.io.env, flags: command.settings, cwd: PROJECT_ROOT });
  const admin = settings.SVC_DATABASE_ADMIN_URL?.href;
  if (admin === undefined) return;
  const passwords = rolePasswords([
    settings.SVC_DATABASE_URL,
    settings.SVC_DATABASE_OWNER_URL,
    settings.SVC_DATABASE_SERVE_URL,
    settings.SVC_DATABASE_EXPORT_URL,
    settings.SVC_DATABASE_MONITOR_URL,
  ]);
  await using client = await connect({ url: admin, name: 'tidemark roles' });
  await provisionRoles(client, passwords);
  await applyRoles(client);
}

export async function runMigrate(command: ParsedCommand): Promise<number> {
  await makeRoles(command);
  await using context = await openContext(command, 'migrate');
  const { applied, present } = context.migrations;
  // Streams are created with the tables. A stream that cannot be created is reported and blocks nothing that needs only
  // the tables.
  const faults = await makeEverything(context, await context.nats('operator'));
  for (const { stream, fault } of faults) context.output.note(`${stream}: ${fault}`);
  const streams = faults.length > 0 ? { streams_failed: faults } : {};
  context.output.answer({ command: 'migrate', ok: true, applied, present, ...streams }, () =>
    applied.length > 0
      ? `Applied ${applied.join(', ')}; ${present.length} were applied before.`
      : `Up to date: ${present.length} migrations.`,
  );
  return 0;
}
