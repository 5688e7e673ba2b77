/**
 * What a benchmark runs in: a folder of its own and servers of its own, both gone when it ends, be it at its end, by a
 * fault, or by SIGINT, SIGTERM or SIGHUP.
 */
import { mkdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createLogger, type Logger } from '../shared/logger.ts';
import { endProcess, processRef } from '../shared/stack/processes.ts';
import { acquireStack, type Stack } from '../shared/stack/stack.ts';
import { childrenOf } from './measure.ts';

export const ROOT = fileURLToPath(new URL('../', import.meta.url));
/** What is measured is in the vendors' layouts, which the sample's matrix does not cover. */
export const RIGHTS_MATRIX = join(ROOT, 'test/support/rights/matrix.json');

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
/** By custom a shell reads from it that a signal was the end. */
const INTERRUPTED = 130;
const CHILD_ENDS_MS = 30_000;

/** A line of progress, beside the result. */
export type Note = (line: string) => void;

export interface Lab extends AsyncDisposable {
  readonly directory: string;
  readonly stack: Stack;
  readonly log: Logger;
  readonly note: Note;
}

/** @param name of the benchmark; one of a name runs at a time. */
export async function benchLab(name: string): Promise<Lab> {
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
    await acquireStack({ stateDir: join(directory, 'state'), log, progress: note, signal: interrupted.signal }),
  );
  const kept = cleanup.move();
  let disposal: Promise<void> | undefined;
  const dispose = () => {
    disposal ??= kept.disposeAsync();
    return disposal;
  };
  interrupted.signal.addEventListener('abort', async () => {
    // From here on what still runs fails, for want of its processes and servers.
    process.on('uncaughtException', () => {});
    await endChildren(stack);
    await dispose();
    process.exit(INTERRUPTED);
  });
  return { directory, stack, log, note, [Symbol.asyncDispose]: dispose };
}

/** Those of the benchmark itself: the stack ends its own. */
async function endChildren({ processes }: Stack): Promise<void> {
  const servers = new Set(processes.map(({ pid }) => pid));
  const children = childrenOf(process.pid).flatMap((pid) => (servers.has(pid) ? [] : (processRef(pid) ?? [])));
  const steps = [
    { signal: 'SIGTERM', waitMs: CHILD_ENDS_MS },
    { signal: 'SIGKILL', waitMs: CHILD_ENDS_MS },
  ] as const;
  await Promise.all(children.map((child) => endProcess(child, steps)));
}
