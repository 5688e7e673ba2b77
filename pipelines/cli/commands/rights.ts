/**
 * `rights init` writes a rights matrix for the operator to fill in and sign, and needs neither database nor log. `rights read-role`
 * makes a database role for callers who bring their own credentials.
 */
import { dirname, join } from 'node:path';
import { loadSettings } from '../../../shared/config/load.ts';
import { connect } from '../../../shared/db/connect.ts';
import { makeReadRole, readTables, roleStatements } from '../../../shared/db/roles.ts';
import { writeOwnMatrix } from '../../../shared/rights/form.ts';
import { openContext } from '../context.ts';
import { EXIT, PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput } from '../output.ts';

export async function initRights(command: ParsedCommand): Promise<number> {
  const sources = command.positionals;
  const settings = loadSettings({ env: command.io.env, flags: command.settings, cwd: PROJECT_ROOT });
  const path = settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? join(settings.SVC_STATE_DIR, 'rights', 'matrix.json');
  const { matrix, forms, ingestOnly } = await writeOwnMatrix(path, sources);
  createOutput(command).answer(
    { command: 'rights', action: 'init', ok: true, matrix, forms, ingest_only: ingestOnly },
    () =>
      [
        `matrix    ${matrix}`,
        ...forms.map(({ source, path: form }) => `form      ${form}  (${source})`),
        ...(ingestOnly.length > 0 ? [`not served: ${ingestOnly.join(', ')}`] : []),
        '',
        'Rows that a source published are refused until its form is filled in: replace every [UNSIGNED: ...], or name',
        'the signed document in the matrix instead.',
        ...useOf(matrix, settings.SVC_SOURCE_RIGHTS_MATRIX_PATH),
      ].join('\n'),
  );
  return EXIT.DONE;
}

/** What is left to do for a service that is to use the matrix. @param named the path that the settings name already. */
export function useOf(matrix: string, named: string | undefined): string[] {
  if (named === undefined) {
    return [
      'Then name the matrix in .env, which the service and every command read:',
      '',
      `SVC_SOURCE_RIGHTS_MATRIX_PATH=${matrix}`,
    ];
  }
  return [
    'SVC_SOURCE_RIGHTS_MATRIX_PATH names this matrix already, and the service looks at it before each read. With',
    `docker-compose.yml, ${dirname(matrix)} is the folder that RIGHTS_DIR names.`,
  ];
}

export async function readRole(command: ParsedCommand): Promise<number> {
  const [role] = command.positionals;
  const head = { command: 'rights', action: 'read-role', ok: true };
  if (command.values.sql === true) {
    const statements = roleStatements(role, { create: true, password: undefined });
    statements.push(`insert into read_roles (role) values ('${role}') on conflict do nothing`);
    createOutput(command).answer({ ...head, role, sql: statements }, () =>
      [...statements.map((statement) => `${statement};`), `\\password ${role}`].join('\n'),
    );
    return 0;
  }
  await using context = await openContext(command, 'rights read-role');
  await using client = await connect({
    url: context.databaseUrls.owner,
    name: 'tidemark rights read-role',
    signal: context.signal,
  });
  const { created, password } = await makeReadRole(client, role, command.values.rotate === true);
  const answer = { ...head, role, created, password: password ?? null, tables: readTables() };
  context.output.answer(answer, () =>
    [
      `role      ${role}, ${created ? 'created' : 'up to date'}; may read ${answer.tables.length} tables and write none`,
      password === undefined ? 'password  unchanged; --rotate sets a new one' : `password  ${password}`,
      `setting   SVC_BYOK_DATABASE_ROLE=${role}`,
    ].join('\n'),
  );
  return 0;
}
