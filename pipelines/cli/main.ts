/**
 * The operator's command. Answers on stdout (`--json`: one object, docs/cli.md), everything else on stderr.
 * Exit codes: exit.ts.
 */
import { ERROR_CODES } from '../../shared/error-codes.ts';
import { codeOf, explain, TidemarkError } from '../../shared/errors.ts';
import { outageCode } from '../../shared/outage.ts';
import { EXIT, STOP_SIGNALS } from './exit.ts';
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
  { spec: specs.reparse, load: async () => (await import('./commands/backfill.ts')).runReparse },
  { spec: specs.follow, load: async () => (await import('./commands/follow.ts')).runFollow },
  { spec: specs.replay, load: async () => (await import('./commands/replay.ts')).runReplay },
  { spec: specs.verify, load: async () => (await import('./commands/verify.ts')).runVerify },
  { spec: specs.status, load: async () => (await import('./commands/status.ts')).runStatus },
  { spec: specs.doctor, load: async () => (await import('./commands/doctor.ts')).runDoctor },
  { spec: specs.quarantine, load: async () => (await import('./commands/quarantine.ts')).runQuarantine },
  { spec: specs.release, load: async () => (await import('./commands/quarantine.ts')).runRelease },
  { spec: specs.ledger, load: async () => (await import('./commands/quarantine.ts')).runLedger },
  { spec: specs.recover, load: async () => (await import('./commands/recover.ts')).runRecover },
  { spec: specs.runs, load: async () => (await import('./commands/runs.ts')).runRuns },
  { spec: specs.readRole, load: async () => (await import('./commands/read-role.ts')).runReadRole },
  { spec: specs.rights, load: async () => (await import('./commands/rights.ts')).runRights },
  { spec: specs.exportWorker, load: async () => (await import('./commands/export-worker.ts')).runExportWorker },
  { spec: specs.audit, load: async () => (await import('./commands/audit.ts')).runAudit },
  { spec: specs.event, load: async () => (await import('./commands/event.ts')).runEvent },
];

/** Standard output takes nothing: the answer did not arrive. */
let unwritten = false;

/** By a signal: whatever a command fails with afterwards, that is why. */
let stopped = false;

async function main(argv: readonly string[]): Promise<number> {
  const [name, ...rest] = argv;
  const json = argv.includes('--json');
  try {
    if (name === undefined || name === 'help' || name === '--help' || name === '-h') {
      const asked = COMMANDS.find(({ spec }) => spec.name === rest[0]);
      if (!asked && rest[0] !== undefined && !rest[0].startsWith('-')) throw unknownCommand(rest[0]);
      process.stdout.write(`${asked ? commandHelp(asked.spec) : overview()}\n`);
      return name === undefined ? 2 : 0;
    }
    const command = COMMANDS.find(({ spec }) => spec.name === name);
    if (!command) throw unknownCommand(name);
    const parsed = parseCommand(command.spec, rest);
    if (parsed.help) {
      process.stdout.write(`${commandHelp(command.spec)}\n`);
      return 0;
    }
    return await (await command.load())(parsed);
  } catch (error) {
    return report(stopped ? new TidemarkError('INTERRUPTED', 'stopped', { cause: error }) : error, name, json);
  }
}

const unknownCommand = (name: string) =>
  new TidemarkError('USAGE', `There is no command ${JSON.stringify(name)}\n\n${overview()}`);

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
  if (code === 'USAGE' || code === 'CONFIGURATION_INVALID') return EXIT.USAGE;
  if (code === 'INTERRUPTED') return EXIT.INTERRUPTED;
  return code === 'PUBLISHER_LEASE_HELD' || code === 'WORK_HELD' ? EXIT.HELD : EXIT.FAILED;
}

// A reader that goes away (`| head`), a terminal that is closed or a full disk takes the output, not the work: a service
// that ended here would leave its servers behind.
process.stderr.on('error', () => {});
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE' || error.code === 'EIO') return;
  process.stderr.write(`tidemark: the answer could not be written: ${error.message}\n`);
  unwritten = true;
});

// From the first moment Ctrl-C ends in order, and so does the end of the terminal: a command stops by its own listener
// once it has one, and before that, or without one, there is nothing to put away.
for (const name of STOP_SIGNALS) {
  process.on(name, () => {
    stopped = true;
    if (process.listenerCount(name) === 1) process.exit(EXIT.INTERRUPTED);
  });
}
process.exitCode = await main(process.argv.slice(2));
if (unwritten) process.exitCode ||= EXIT.FAILED;
