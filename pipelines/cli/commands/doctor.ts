/** `doctor`: what is wrong and how to mend it, for people as a table and for programs as an object that stays as it is. */
import { PROJECT_ROOT } from '../context.ts';
import { type CheckReport, examine } from '../doctor/examine.ts';
import { EXIT } from '../exit.ts';
import type { ParsedCommand } from '../options.ts';
import { createOutput, table } from '../output.ts';

export async function runDoctor(command: ParsedCommand): Promise<number> {
  const checks = await examine(command, PROJECT_ROOT, command.values.check as string | undefined);
  const ok = checks.every(({ state }) => state === 'ok' || state === 'warning');
  createOutput(command).answer({ command: 'doctor', ok, checks }, () => describe(checks));
  return ok ? EXIT.DONE : EXIT.FAILED;
}

function describe(checks: readonly CheckReport[]): string {
  const lines = [
    table(
      ['check', 'state', ''],
      checks.map(({ check, state, doc }) => [check, state, doc]),
    ),
  ];
  const findings = checks.flatMap((report) => report.findings);
  for (const { severity, subject, what, fix } of findings) {
    lines.push('', `${severity}  ${subject}: ${what}`, `  fix  ${fix}`);
  }
  if (findings.length === 0) lines.push('', 'Nothing was found.');
  return lines.join('\n');
}
