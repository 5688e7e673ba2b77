import { connect } from '../../../shared/db/connect.ts';
import { makeReadRole, readTables, roleStatements } from '../../../shared/db/read-roles.ts';
import { openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput } from '../output.ts';

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
  await using client = await connect({ url: context.databaseUrls.owner, name: 'tidemark read-role' });
  const { created, password } = await makeReadRole(client, role, command.values.rotate === true);
  const answer = { command: 'read-role', ok: true, role, created, password: password ?? null, tables: readTables() };
  context.output.answer(answer, () =>
    [
      `role      ${role}, ${created ? 'made' : 'up to date'}; reads ${answer.tables.length} tables, writes none`,
      password === undefined ? 'password  as it was; --rotate makes another' : `password  ${password}`,
      `setting   SVC_BYOK_DATABASE_ROLE=${role}`,
    ].join('\n'),
  );
  return 0;
}
