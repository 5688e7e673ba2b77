/** The port of the service: a free one is taken, and one that a process of a supervisor that is gone still holds is taken back. */
import { readFile } from 'node:fs/promises';
import type { Server } from 'node:net';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { endProcess, isAlive, type ProcessRef, processRef } from '../../shared/stack/processes.ts';
import { writeAtomic } from '../../shared/stack/state.ts';

const DEFAULT_PORT = 8080;
const PORTS_TRIED = 100;

/** A process that lost its supervisor leaves the port within a second. One that does not (it was stopped) is killed after this time. */
const LEAVE_MS = 3000;
const KILLED_MS = 5000;
/** A process counts as ended when its first thread has; its sockets close with the last one. */
const CLOSE_MS = 1000;
const RETRY_MS = 50;

interface Holder {
  readonly process: ProcessRef;
  /**
   * Restarts the process when it ends. When it is gone, the process ends too, unless something holds it up. Absent where
   * nobody restarts it.
   */
  readonly supervisor?: ProcessRef;
}

/** Which processes listen on a port, in a file of the state folder for each port. */
export class PortHolders {
  readonly #folder: string;
  readonly #log: Logger;
  /** Since when this process waits for others to leave its port. */
  #waitsSince: number | undefined;
  /** Since when they have ended. */
  #goneSince: number | undefined;

  constructor(deps: { readonly stateDir: string; readonly log: Logger }) {
    this.#folder = deps.stateDir;
    this.#log = deps.log;
  }

  #path = (port: number) => join(this.#folder, `http-${port}.json`);

  /** Records who listens on the port. Without the record (a full disk) a later start only says that the port is taken. */
  async record(port: number, pids: readonly { readonly pid: number; readonly supervisor?: number }[]): Promise<void> {
    const holders = pids.flatMap(({ pid, supervisor }): Holder[] => {
      const held = processRef(pid);
      return held ? [{ process: held, supervisor: supervisor === undefined ? undefined : processRef(supervisor) }] : [];
    });
    try {
      await writeAtomic(this.#path(port), JSON.stringify(holders), 0o644);
    } catch (error) {
      this.#log.warn({ port, fault: String(error) }, 'the process is not recorded as the one that holds its port');
    }
  }

  /**
   * Waits a moment for processes whose supervisor is gone to leave the port, and kills those that do not: two services
   * cannot share a port, and nobody else would end them.
   * @returns whether to try the port again
   */
  async takeBack(port: number): Promise<boolean> {
    const orphans = (await this.#read(port)).filter(({ supervisor }) => supervisor && !isAlive(supervisor));
    if (orphans.length === 0) return false;
    const now = performance.now();
    this.#waitsSince ??= now;
    const left = orphans.filter(({ process }) => isAlive(process));
    if (left.length === 0) {
      this.#goneSince ??= now;
      if (now - this.#goneSince > CLOSE_MS) return false;
      await delay(RETRY_MS);
      return true;
    }
    this.#goneSince = undefined;
    if (now - this.#waitsSince < LEAVE_MS) {
      await delay(RETRY_MS);
      return true;
    }
    const pids = left.map(({ process }) => process.pid);
    this.#log.warn({ port, pids: pids.join(' ') }, 'killing the HTTP processes that an earlier start left on the port');
    const ends = left.map(({ process }) => endProcess(process, [{ signal: 'SIGKILL', waitMs: KILLED_MS }]));
    return (await Promise.all(ends)).every(Boolean);
  }

  async #read(port: number): Promise<readonly Holder[]> {
    try {
      const holders: unknown = JSON.parse(await readFile(this.#path(port), 'utf8'));
      return Array.isArray(holders) ? (holders as Holder[]) : [];
    } catch {
      return [];
    }
  }
}

/**
 * Listens on the port, or on the first free one from 8080 on.
 * @throws TidemarkError CONFIGURATION_INVALID where another program has the port
 */
export async function listenOnFree(
  server: Server,
  host: string,
  port: number | undefined,
  holders: PortHolders | undefined,
): Promise<void> {
  const first = port ?? DEFAULT_PORT;
  const last = port === undefined ? DEFAULT_PORT + PORTS_TRIED : first;
  for (let candidate = first; ; candidate++) {
    try {
      await listenOn(server, host, candidate);
      return;
    } catch (cause) {
      const isTaken = (cause as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (isTaken && (await holders?.takeBack(candidate))) candidate--;
      else if (!isTaken || candidate >= last) {
        const other = isTaken ? '; another program does: choose another SVC_HTTP_PORT' : '';
        const message = `The service cannot listen on ${host}, port ${candidate}${other}`;
        throw new TidemarkError('CONFIGURATION_INVALID', message, { cause });
      }
    }
  }
}

async function listenOn(server: Server, host: string, port: number): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}
