/**
 * The operator's command, in any process. Answers go to stdout (`--json`: one object, docs/cli.md), everything else to
 * stderr. Exit codes: `EXIT` in io.ts.
 */
import { codeOf, ERROR_CODES, explain, outageCode, TidemarkError } from '../../shared/errors.ts';
import { closestName } from '../../shared/nearest.ts';
import { printableJson, printableLines } from '../../shared/proof-log/printable.ts';
import type { Io } from './io.ts';
import { EXIT } from './io.ts';
import { type CommandSpec, commandHelp, type ParsedCommand, parseCommand } from './options.ts';
import { WaitingProjector } from './projector.ts';
import * as specs from './specs.ts';
import { logsInWords } from './terminal-log.ts';

interface Command {
  readonly spec: CommandSpec;
  /** Loaded on demand, so that a command does not pay for the modules of others at its start. */
  readonly load: () => Promise<(command: ParsedCommand, projector?: WaitingProjector) => Promise<number>>;
  /** Starts a projector's process before the command's own code is loaded. */
  readonly projects?: true;
}

/** By what one wants to do; `help` lists them in this order. */
const GROUPS: Readonly<Record<string, readonly Command[]>> = {
  Run: [
    { spec: specs.up, load: async () => (await import('./commands/up.ts')).runUp },
    { spec: specs.env, load: async () => (await import('./commands/env.ts')).runEnv },
    { spec: specs.follow, load: async () => (await import('./commands/follow.ts')).runFollow },
    { spec: specs.exportWorker, load: async () => (await import('./commands/export-worker.ts')).runExportWorker },
    { spec: specs.migrate, load: async () => (await import('./commands/roles.ts')).runMigrate },
  ],
  Fill: [
    { spec: specs.sample, load: async () => (await import('./commands/sample.ts')).runSample },
    { spec: specs.backfill, load: async () => (await import('./commands/backfill.ts')).runBackfill, projects: true },
    { spec: specs.reingest, load: async () => (await import('./commands/backfill.ts')).runBackfill, projects: true },
    { spec: specs.reparse, load: async () => (await import('./commands/backfill.ts')).runReparse, projects: true },
  ],
  Look: [
    { spec: specs.status, load: async () => (await import('./commands/status.ts')).runStatus },
    { spec: specs.runs, load: async () => (await import('./commands/status.ts')).runRuns },
    { spec: specs.event, load: async () => (await import('./commands/event.ts')).runEvent },
    { spec: specs.explain, load: async () => (await import('./commands/explain.ts')).runExplain },
    { spec: specs.quarantine, load: async () => (await import('./commands/quarantine.ts')).runQuarantine },
    { spec: specs.ledger, load: async () => (await import('./commands/quarantine.ts')).runLedger },
  ],
  Check: [
    { spec: specs.doctor, load: async () => (await import('./commands/doctor.ts')).runDoctor },
    { spec: specs.verify, load: async () => (await import('./commands/verify.ts')).runVerify },
    { spec: specs.check, load: async () => (await import('./commands/check.ts')).runCheck },
    { spec: specs.watchLog, load: async () => (await import('./commands/watch-log.ts')).runWatchLog },
    { spec: specs.audit, load: async () => (await import('./commands/audit.ts')).runAudit },
  ],
  Repair: [
    { spec: specs.replay, load: async () => (await import('./commands/replay.ts')).runReplay },
    { spec: specs.release, load: async () => (await import('./commands/quarantine.ts')).runRelease },
    { spec: specs.recover, load: async () => (await import('./commands/recover.ts')).runRecover },
    { spec: specs.compact, load: async () => (await import('./commands/compact.ts')).runCompact },
  ],
  Share: [
    { spec: specs.rights, load: async () => (await import('./commands/rights.ts')).runRights },
    { spec: specs.keys, load: async () => (await import('./commands/keys.ts')).runKeys },
    { spec: specs.readRole, load: async () => (await import('./commands/roles.ts')).runReadRole },
    { spec: specs.lake, load: async () => (await import('./commands/lake.ts')).runLake },
    { spec: specs.mirror, load: async () => (await import('./commands/mirror.ts')).runMirror },
    { spec: specs.proofLog, load: async () => (await import('./commands/proof-log.ts')).runProofLog },
  ],
};

const COMMANDS: readonly Command[] = Object.values(GROUPS).flat();

/** @returns the exit code. */
export async function run(argv: readonly string[], io: Io): Promise<number> {
  let stopped = false;
  const forget = io.onStop(() => {
    stopped = true;
  });
  try {
    const code = await dispatch(argv, io);
    // Everything is closed: who waits for the prompt learns why it comes.
    if (stopped && !argv.includes('--json')) io.stderr.write('tidemark: stopped\n');
    return code;
  } catch (error) {
    // After a stop, the stop is the reason of any failure, whatever the error says.
    const reported = stopped ? new TidemarkError('INTERRUPTED', 'stopped', { cause: error }) : error;
    return report(reported, argv, io);
  } finally {
    forget();
  }
}

async function dispatch(argv: readonly string[], io: Io): Promise<number> {
  const [name, ...rest] = argv;
  if (name === undefined || name === 'help' || name === '--help' || name === '-h') {
    const asked = COMMANDS.find(({ spec }) => spec.name === rest[0]);
    if (!asked && rest[0] !== undefined && !rest[0].startsWith('-')) throw unknownCommand(rest[0]);
    io.stdout.write(`${asked ? commandHelp(asked.spec) : overview()}\n`);
    return name === undefined ? 2 : 0;
  }
  if (name === '--version' || name === '-V') {
    io.stdout.write(`tidemark ${await version()}\n`);
    return EXIT.DONE;
  }
  const command = COMMANDS.find(({ spec }) => spec.name === name);
  if (!command) throw unknownCommand(name);
  const parsed = parseCommand(command.spec, rest, io);
  if (parsed.help) {
    io.stdout.write(`${commandHelp(command.spec)}\n`);
    return 0;
  }
  const projects = command.projects && io.project === undefined && parsed.values['dry-run'] !== true;
  await using projector = projects ? new WaitingProjector(io, logsInWords(parsed, name)) : undefined;
  return await (await command.load())(parsed, projector);
}

/** The release, as package.json names it. */
async function version(): Promise<string> {
  const { default: project } = await import('../../package.json', { with: { type: 'json' } });
  return project.version;
}

function unknownCommand(name: string): TidemarkError {
  const meant = closestName(
    name,
    COMMANDS.map(({ spec }) => spec.name),
  );
  const hint = meant === undefined ? `\n\n${overview()}` : `; did you mean ${meant}?`;
  return new TidemarkError('USAGE', `There is no command ${JSON.stringify(name.slice(0, 100))}${hint}`);
}

/** Longest line of the overview: most terminals show it unbroken. */
const LINE = 100;

function overview(): string {
  const width = Math.max(...COMMANDS.map(({ spec }) => spec.name.length));
  const margin = `\n${' '.repeat(width + 4)}`;
  const lineOf = ({ spec }: Command) => {
    const [first] = spec.doc.split('. ');
    const text = wrapped(first.replace(/\.$/, ''), LINE - width - 4).join(margin);
    return `  ${spec.name.padEnd(width)}  ${text}`;
  };
  return [
    'Usage: ./tidemark <command> [options]',
    ...Object.entries(GROUPS).flatMap(([group, commands]) => ['', `${group}:`, ...commands.map(lineOf)]),
    '',
    '`./tidemark help <command>` has the details; `./tidemark --version` names the release.',
  ].join('\n');
}

/** Lines of at most `width` characters, broken at blanks. */
function wrapped(text: string, width: number): string[] {
  const lines = [''];
  for (const word of text.split(' ')) {
    const line = lines[lines.length - 1];
    if (line !== '' && line.length + 1 + word.length > width) lines.push(word);
    else lines[lines.length - 1] = line === '' ? word : `${line} ${word}`;
  }
  return lines;
}

const USAGE_CODES: ReadonlySet<string> = new Set([
  'USAGE',
  'CONFIGURATION_INVALID',
  'CHECK_INPUT_INVALID',
  'LAKE_FOLDER_REFUSED',
  'MIRROR_FOLDER_REFUSED',
  'SOURCE_PINNED',
]);

function report(error: unknown, argv: readonly string[], io: Io): number {
  const [command] = argv;
  const code = codeOf(error) ?? outageCode(error) ?? 'UNEXPECTED';
  const remedy = code === 'UNEXPECTED' ? undefined : ERROR_CODES[code].remedy;
  if (argv.includes('--json'))
    io.stdout.write(
      `${printableJson(JSON.stringify({ command, ok: false, error: { code, message: explain(error), remedy } }))}\n`,
    );
  else io.stderr.write(`tidemark: ${printableLines(explain(error))}\n${remedy ? `${remedy}\n` : ''}[${code}]\n`);
  if (code === 'UNEXPECTED' && error instanceof Error && io.env.SVC_LOG_LEVEL === 'debug')
    io.stderr.write(`${printableLines(error.stack ?? '')}\n`);
  if (USAGE_CODES.has(code)) return EXIT.USAGE;
  if (code === 'INTERRUPTED') return EXIT.INTERRUPTED;
  return code === 'PUBLISHER_LEASE_HELD' || code === 'WORK_HELD' || code === 'LAKE_HELD' ? EXIT.HELD : EXIT.FAILED;
}
