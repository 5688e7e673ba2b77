/** The port of the service: a free one is taken, and one that a process of a supervisor that is gone still holds is taken back. */
import { readFile } from 'node:fs/promises';
import type { Server } from 'node:http';
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
const RETRY_MS = 50;

interface Holder {
  readonly process: ProcessRef;
  /** Restarts the process when it ends. When it is gone, the process ends too, unless something holds it up. */
  readonly supervisor: ProcessRef;
}

/** Which supervised process listens on a port, in a file of the state folder for each port. */
export class PortHolders {
  readonly #folder: string;
  readonly #supervisor: number;
  readonly #log: Logger;
  /** Since when this process waits for another one to leave its port. */
  #waitsSince: number | undefined;

  constructor(deps: { readonly stateDir: string; readonly supervisor: number; readonly log: Logger }) {
    this.#folder = deps.stateDir;
    this.#supervisor = deps.supervisor;
    this.#log = deps.log;
  }

  #path = (port: number) => join(this.#folder, `http-${port}.json`);

  /** Records that this process listens on the port. Without the record (a full disk) a later start only says that the port is taken. */
  async hold(port: number): Promise<void> {
    const [own, supervisor] = [processRef(process.pid), processRef(this.#supervisor)];
    if (!own || !supervisor) return;
    try {
      await writeAtomic(this.#path(port), JSON.stringify({ process: own, supervisor } satisfies Holder), 0o644);
    } catch (error) {
      this.#log.warn({ port, fault: String(error) }, 'the process is not recorded as the one that holds its port');
    }
  }

  /**
   * Waits a moment for a process whose supervisor is gone to leave the port, and kills it when it does not: two services
   * cannot share a port, and nobody else would end that one.
   * @returns whether to try the port again
   */
  async takeBack(port: number): Promise<boolean> {
    let holder: Holder;
    try {
      holder = JSON.parse(await readFile(this.#path(port), 'utf8')) as Holder;
    } catch {
      return false;
    }
    if (isAlive(holder.supervisor)) return false;
    const isFirst = this.#waitsSince === undefined;
    this.#waitsSince ??= performance.now();
    // It may have ended since the port was tried.
    if (!isAlive(holder.process)) return isFirst;
    const waitedMs = performance.now() - this.#waitsSince;
    if (waitedMs < LEAVE_MS) {
      await delay(RETRY_MS);
      return true;
    }
    this.#log.warn(
      { port, pid: holder.process.pid },
      'killing the HTTP process that an earlier start left on the port',
    );
    return await endProcess(holder.process, [{ signal: 'SIGKILL', waitMs: KILLED_MS }]);
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
    } catch (cause) {
      const isTaken = (cause as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (isTaken && (await holders?.takeBack(candidate))) candidate--;
      else if (!isTaken || candidate >= last) {
        const other = isTaken ? '; another program does: choose another SVC_HTTP_PORT' : '';
        const message = `The service cannot listen on ${host}, port ${candidate}${other}`;
        throw new TidemarkError('CONFIGURATION_INVALID', message, { cause });
      }
      continue;
    }
    if (candidate > 0) await holders?.hold(candidate);
    return;
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
