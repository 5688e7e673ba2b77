/** The one `./tidemark up` of a state folder: who runs it, and where its service answers. */
import { createHash } from 'node:crypto';
import { readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { codeOf, TidemarkError } from '../../shared/errors.ts';
import { newIdentity, proveService } from '../../shared/service-identity.ts';
import { isAlive, type ProcessRef, processRef, withLock } from '../../shared/stack/processes.ts';
import { stateFolder } from '../../shared/stack/stack.ts';
import { writeAtomic } from '../../shared/stack/state.ts';

/** The service of a state folder, as others find it. */
export interface RunningService {
  /** The process of `./tidemark up`. */
  readonly process: ProcessRef;
  readonly url: string;
  /** Digest of the key that it accepts, so that nobody is handed another one. */
  readonly keySha256: string;
  /** What it proves itself with (shared/service-identity.ts). */
  readonly identity: string;
}

const recordPath = (stateDir: string) => join(stateDir, 'up.json');

export const sha256Of = (key: string): string => createHash('sha256').update(key).digest('hex');

/** The service that runs in the state folder and listens; undefined if there is none. */
export async function runningService(stateDir: string): Promise<RunningService | undefined> {
  try {
    const found = JSON.parse(await readFile(recordPath(stateDir), 'utf8')) as RunningService;
    return isAlive(found.process) ? found : undefined;
  } catch {
    return undefined; // none was started, or its record was cut short by a full disk
  }
}

/**
 * The running service, after it has shown that it is the one of this state folder: its port may be another program's by now.
 * @throws TidemarkError SERVICE_UNREACHABLE
 */
export async function provenService(stateDir: string): Promise<RunningService> {
  const running = await runningService(stateDir);
  if (!running) throw new TidemarkError('SERVICE_UNREACHABLE', `No service runs in the state folder ${stateDir}`);
  await proveService(running.url, running.identity);
  return running;
}

/** Keeps the place of the only `up` of a state folder until disposal. */
export interface Turn extends AsyncDisposable {
  /** What the service proves itself with. */
  readonly identity: string;
  /** Records where the service listens; again after it was restarted on another port. */
  listens(url: string, key: string): Promise<void>;
}

const LOOK_MS = 100;
const REPORT_AFTER_MS = 3000;

interface TurnOptions {
  readonly stateDir: string;
  readonly signal: AbortSignal;
  /** Called once where another `up` has the turn and its address is awaited for long. */
  readonly onWait: () => void;
}

/**
 * Takes the turn, or finds the service of the `up` that has it: two that start at the same moment would load their samples into
 * one another. An `up` that has the turn and does not listen yet is awaited; if it ends first, the turn is free.
 * @throws the reason of the signal; TidemarkError where the folder cannot hold a lock
 */
export async function takeTurn({ stateDir, signal, onWait }: TurnOptions): Promise<Turn | RunningService> {
  await stateFolder(stateDir);
  const startedAt = performance.now();
  for (let isReported = false; ; ) {
    const turn = await turnIfFree(stateDir);
    if (turn) return turn;
    const running = await runningService(stateDir);
    if (running) return running;
    if (!isReported && performance.now() - startedAt > REPORT_AFTER_MS) {
      isReported = true;
      onWait();
    }
    await delay(LOOK_MS, undefined, { signal });
  }
}

/** The turn is the lock of a file, which ends with its process, however that dies. */
async function turnIfFree(stateDir: string): Promise<Turn | undefined> {
  const taken = Promise.withResolvers<void>();
  const over = Promise.withResolvers<void>();
  const held = withLock(join(stateDir, 'up.lock'), { waitMs: 0 }, async () => {
    taken.resolve();
    await over.promise;
    await rm(recordPath(stateDir), { force: true });
  });
  try {
    await Promise.race([taken.promise, held]);
  } catch (error) {
    if (codeOf(error) === 'WORK_HELD') return undefined;
    throw error;
  }
  const identity = newIdentity();
  return {
    identity,
    listens: (url, key) => {
      const record = { process: processRef(process.pid), url, keySha256: sha256Of(key), identity };
      return writeAtomic(recordPath(stateDir), `${JSON.stringify(record)}\n`, 0o600);
    },
    async [Symbol.asyncDispose]() {
      over.resolve();
      await held;
    },
  };
}
