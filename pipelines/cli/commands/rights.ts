/** `rights init`: writes a rights matrix for the operator to fill in and sign. Needs neither database nor log. */
import { dirname, join } from 'node:path';
import { loadSettings } from '../../../shared/config/load.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { writeOwnMatrix } from '../../../shared/rights/form.ts';

import { EXIT, PROJECT_ROOT } from '../io.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput } from '../output.ts';

export async function runRights(command: ParsedCommand): Promise<number> {
  const [action, ...sources] = command.positionals;
  if (action !== 'init') throw new TidemarkError('USAGE', `rights takes init, not ${action}`);
  const settings = loadSettings({ env: command.io.env, flags: command.settings, cwd: PROJECT_ROOT });
  const path = settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? join(settings.SVC_STATE_DIR, 'rights', 'matrix.json');
  const { matrix, forms, ingestOnly } = await writeOwnMatrix(path, sources);
  createOutput(command).answer({ command: 'rights', action, ok: true, matrix, forms, ingest_only: ingestOnly }, () =>
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
