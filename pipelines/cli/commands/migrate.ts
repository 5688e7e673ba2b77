import { openContext } from '../context.ts';
import type { ParsedCommand } from '../options.ts';

export async function runMigrate(command: ParsedCommand): Promise<number> {
  await using context = await openContext(command, 'migrate');
  const { applied, present } = context.migrations;
  context.output.answer({ command: 'migrate', ok: true, applied, present }, () =>
    applied.length > 0
      ? `Applied ${applied.join(', ')}; ${present.length} were there.`
      : `Up to date: ${present.length} migrations.`,
  );
  return 0;
}
