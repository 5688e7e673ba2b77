/**
 * The harness of a benchmark: a folder and servers of its own. Both are removed when the benchmark ends, also after an error
 * or by SIGINT, SIGTERM or SIGHUP.
 */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createLogger, type Logger } from '../shared/logger.ts';
import { endProcess, processRef } from '../shared/stack/processes.ts';
import { acquireStack, type Stack } from '../shared/stack/stack.ts';
import { childrenOf } from './measure.ts';

export const ROOT = fileURLToPath(new URL('../', import.meta.url));

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
/** The exit code by which a shell knows that a signal ended the process. */
const INTERRUPTED = 130;
const CHILD_ENDS_MS = 30_000;

/** Writes a line of progress to standard error; the result goes to standard output. */
export type Note = (line: string) => void;

export interface Harness extends AsyncDisposable {
  readonly directory: string;
  readonly stack: Stack;
  readonly log: Logger;
  readonly note: Note;
}

/**
 * @param name of the benchmark; only one benchmark of a name may run at a time.
 * @param databaseUrl of an empty database; by default the harness starts PostgreSQL, too.
 */
export async function benchHarness(name: string, databaseUrl?: string): Promise<Harness> {
  const note: Note = (line) => process.stderr.write(`${line}\n`);
  const log = createLogger('warn', 'bench');
  const directory = join(ROOT, '.tidemark', `bench-${name}`);
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true });
  await using cleanup = new AsyncDisposableStack();
  cleanup.defer(() => rm(directory, { recursive: true, force: true }));
  const interrupted = new AbortController();
  const interrupt = () => interrupted.abort(new Error('interrupted'));
  for (const signal of SIGNALS) process.once(signal, interrupt);
  cleanup.defer(() => {
    for (const signal of SIGNALS) process.off(signal, interrupt);
  });
  const stack = cleanup.use(
    await acquireStack({
      stateDir: join(directory, 'state'),
      databaseUrl,
      log,
      progress: note,
      signal: interrupted.signal,
    }),
  );
  const resources = cleanup.move();
  let disposal: Promise<void> | undefined;
  const dispose = () => {
    disposal ??= resources.disposeAsync();
    return disposal;
  };
  interrupted.signal.addEventListener('abort', async () => {
    // Work that still runs fails from here on, because its processes and servers end.
    process.on('uncaughtException', () => {});
    await endChildren(stack);
    await dispose();
    process.exit(INTERRUPTED);
  });
  return { directory, stack, log, note, [Symbol.asyncDispose]: dispose };
}

/** Ends the child processes of the benchmark; the stack ends its own. */
async function endChildren({ processes }: Stack): Promise<void> {
  const servers = new Set(processes.map(({ pid }) => pid));
  const children = childrenOf(process.pid).flatMap((pid) => (servers.has(pid) ? [] : (processRef(pid) ?? [])));
  const steps = [
    { signal: 'SIGTERM', waitMs: CHILD_ENDS_MS },
    { signal: 'SIGKILL', waitMs: CHILD_ENDS_MS },
  ] as const;
  await Promise.all(children.map((child) => endProcess(child, steps)));
}
