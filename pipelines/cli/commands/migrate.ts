/** `migrate`: the roles, the schema and the streams. */
import { loadSettings } from '../../../shared/config/load.ts';
import { connect } from '../../../shared/db/connect.ts';
import { applyRoles, provisionRoles, rolePasswords } from '../../../shared/db/roles.ts';
import { openContext } from '../context.ts';
import { PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { makeEverything } from '../streams.ts';

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
