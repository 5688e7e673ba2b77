/**
 * The operator's command, in any process. Answers go to stdout (`--json`: one object, docs/cli.md), everything else to
 * stderr. Exit codes: `EXIT` in io.ts.
 */
import { codeOf, ERROR_CODES, explain, isDiskFull, outageCode, TidemarkError } from '../../shared/errors.ts';
import { printableJson, printableLines } from '../../shared/proof-log/printable.ts';
import { parse } from './commands/program.ts';
import type { Io } from './io.ts';
import { EXIT } from './io.ts';
import { WaitingProjector } from './projector.ts';
import { logsInWords } from './terminal-log.ts';

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
  const chosen = parse(argv, io);
  if (typeof chosen === 'number') return chosen;
  const { runnable, parsed } = chosen;
  const projects = runnable.projects && io.project === undefined && parsed.values['dry-run'] !== true;
  await using projector = projects ? new WaitingProjector(io, logsInWords(parsed, argv[0])) : undefined;
  const command = await runnable.load();
  return await command(parsed, projector);
}

function report(error: unknown, argv: readonly string[], io: Io): number {
  const [command] = argv;
  const code = codeOf(error) ?? outageCode(error) ?? (isDiskFull(error) ? 'DISK_UNUSABLE' : 'UNEXPECTED');
  const remedy =
    error instanceof TidemarkError ? error.remedy : code === 'UNEXPECTED' ? undefined : ERROR_CODES[code].remedy;
  if (argv.includes('--json'))
    io.stdout.write(
      `${printableJson(JSON.stringify({ command, ok: false, error: { code, message: explain(error), remedy } }))}\n`,
    );
  else io.stderr.write(`tidemark: ${printableLines(explain(error))}\n${remedy ? `${remedy}\n` : ''}[${code}]\n`);
  if (code === 'UNEXPECTED' && error instanceof Error && io.env.SVC_LOG_LEVEL === 'debug')
    io.stderr.write(`${printableLines(error.stack ?? '')}\n`);
  if (code === 'USAGE' || code === 'CONFIGURATION_INVALID') return EXIT.USAGE;
  if (code === 'INTERRUPTED') return EXIT.INTERRUPTED;
  return code === 'WORK_HELD' ? EXIT.HELD : EXIT.FAILED;
}
