/**
 * The operator's command. Answers on stdout (`--json`: one object, docs/cli.md), everything else on stderr.
 * Exit 0: done. 1: some unit failed. 2: usage or configuration.
 */
import { ERROR_CODES } from '../../shared/error-codes.ts';
import { codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import { outageCode } from '../../shared/outage.ts';
import { type CommandSpec, commandHelp, type ParsedCommand, parseCommand } from './options.ts';
import * as specs from './specs.ts';

interface Command {
  readonly spec: CommandSpec;
  /** Loaded when asked for: what a command does not use costs it no start-up time. */
  readonly load: () => Promise<(command: ParsedCommand) => Promise<number>>;
}

const COMMANDS: readonly Command[] = [
  { spec: specs.up, load: async () => (await import('./commands/up.ts')).runUp },
  { spec: specs.migrate, load: async () => (await import('./commands/migrate.ts')).runMigrate },
  { spec: specs.backfill, load: async () => (await import('./commands/backfill.ts')).runBackfill },
  { spec: specs.reingest, load: async () => (await import('./commands/backfill.ts')).runBackfill },
  { spec: specs.replay, load: async () => (await import('./commands/replay.ts')).runReplay },
  { spec: specs.verify, load: async () => (await import('./commands/verify.ts')).runVerify },
  { spec: specs.status, load: async () => (await import('./commands/status.ts')).runStatus },
  { spec: specs.event, load: async () => (await import('./commands/event.ts')).runEvent },
];

async function main(argv: readonly string[]): Promise<number> {
  const [name, ...rest] = argv;
  const json = argv.includes('--json');
  try {
    if (name === undefined || name === 'help' || name === '--help' || name === '-h') {
      const asked = COMMANDS.find(({ spec }) => spec.name === rest[0]);
      process.stdout.write(`${asked ? commandHelp(asked.spec) : overview()}\n`);
      return name === undefined ? 2 : 0;
    }
    const command = COMMANDS.find(({ spec }) => spec.name === name);
    if (!command) throw new TidemarkError('USAGE', `There is no command ${JSON.stringify(name)}\n\n${overview()}`);
    const parsed = parseCommand(command.spec, rest);
    if (parsed.help) {
      process.stdout.write(`${commandHelp(command.spec)}\n`);
      return 0;
    }
    return await (await command.load())(parsed);
  } catch (error) {
    return report(error, name, json);
  }
}

function overview(): string {
  const width = Math.max(...COMMANDS.map(({ spec }) => spec.name.length));
  const lines = COMMANDS.map(({ spec }) => `  ${spec.name.padEnd(width)}  ${spec.doc.split('. ')[0]}`);
  return [
    'Usage: ./tidemark <command> [options]',
    '',
    ...lines,
    '',
    '`./tidemark help <command>` tells the rest.',
  ].join('\n');
}

function report(error: unknown, command: string | undefined, json: boolean): number {
  const code = codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED';
  const remedy = code === 'UNEXPECTED' ? undefined : ERROR_CODES[code].remedy;
  if (json)
    process.stdout.write(
      `${JSON.stringify({ command, ok: false, error: { code, message: explain(error), remedy } })}\n`,
    );
  else process.stderr.write(`tidemark: ${explain(error)}\n${remedy ? `${remedy}\n` : ''}[${code}]\n`);
  if (code === 'UNEXPECTED' && error instanceof Error && process.env.SVC_LOG_LEVEL === 'debug')
    process.stderr.write(`${error.stack}\n`);
  return code === 'USAGE' || code === 'CONFIGURATION_INVALID' ? 2 : 1;
}

process.exitCode = await main(process.argv.slice(2));
