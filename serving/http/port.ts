/** The port of the service: a free one is taken, and one that a process of a supervisor that is gone still holds is taken back. */
import { once } from 'node:events';
import { readFile, rm } from 'node:fs/promises';
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
/** Until a record that could not be written is tried again. */
const AGAIN_MS = 1000;

interface Holder {
  readonly process: ProcessRef;
  /**
   * Restarts the process when it ends. When it is gone, the process ends too, unless something holds it up. Absent where
   * nobody restarts it.
   */
  readonly supervisor?: ProcessRef;
}

interface Pids {
  readonly pid: number;
  readonly supervisor?: number;
}

/** The holder of these numbers; none if the process has ended. */
function holderOf({ pid, supervisor }: Pids): Holder[] {
  const held = processRef(pid);
  if (!held) return [];
  if (supervisor === undefined) return [{ process: held }];
  // Only of itself does a process know it: a supervisor that cannot be looked at need not be gone.
  const isGone = pid === process.pid && supervisor !== process.ppid;
  return [{ process: held, supervisor: isGone ? { pid: supervisor, identity: 'gone' } : processRef(supervisor) }];
}

/** Which processes listen on a port or are about to, in a file of the state folder for each port. */
export class PortHolders {
  readonly #folder: string;
  readonly #supervisor: number | undefined;
  readonly #log: Logger;
  /** The port that this process claims, and who else was on record for it then. */
  #claimed: { readonly port: number; readonly others: readonly Holder[] } | undefined;
  /** Since when this process waits for others to leave its port. */
  #waitsSince: number | undefined;
  /** Since when they have ended. */
  #goneSince: number | undefined;
  /** What is still to be written, by port; a later record replaces an earlier one. */
  readonly #unwritten = new Map<number, readonly Holder[]>();
  #writing = Promise.resolve();
  #again: NodeJS.Timeout | undefined;

  /** @param deps.supervisor who restarts this process */
  constructor(deps: { readonly stateDir: string; readonly supervisor: number | undefined; readonly log: Logger }) {
    this.#folder = deps.stateDir;
    this.#supervisor = deps.supervisor;
    this.#log = deps.log;
  }

  #path = (port: number) => join(this.#folder, `http-${port}.json`);

  /** Adds this process to those on record, before it listens, so that it is found even if it hangs right afterwards. */
  async claim(port: number): Promise<void> {
    if (this.#claimed?.port === port) return;
    const others = (await this.#read(port)).filter((one) => one.process.pid !== process.pid);
    this.#claimed = { port, others };
    this.#waitsSince = undefined;
    this.#goneSince = undefined;
    await this.#write(port, [
      ...others.filter((one) => isAlive(one.process)),
      ...holderOf({ pid: process.pid, supervisor: this.#supervisor }),
    ]);
  }

  /** Takes this process off the record of a port that it did not get. */
  async release(): Promise<void> {
    if (!this.#claimed) return;
    const { port } = this.#claimed;
    this.#claimed = undefined;
    // Read anew: whoever has the port may have recorded itself since.
    const others = (await this.#read(port)).filter((one) => one.process.pid !== process.pid && isAlive(one.process));
    await this.#write(port, others);
  }

  /** Records who listens on the port, and nobody else. */
  async record(port: number, pids: readonly Pids[]): Promise<void> {
    await this.#write(port, pids.flatMap(holderOf));
  }

  #write(port: number, holders: readonly Holder[]): Promise<void> {
    this.#unwritten.set(port, holders);
    this.#writing = this.#writing.then(() => this.#writeLatest());
    return this.#writing;
  }

  /** Without the record a later start only says that the port is taken, so a write that a full disk refused is tried again. */
  async #writeLatest(): Promise<void> {
    clearTimeout(this.#again);
    for (const [port, holders] of this.#unwritten) {
      try {
        if (holders.length > 0) await writeAtomic(this.#path(port), JSON.stringify(holders), 0o644);
        else await rm(this.#path(port), { force: true });
        if (this.#unwritten.get(port) === holders) this.#unwritten.delete(port);
      } catch (error) {
        const fault = String(error);
        if (!this.#again) this.#log.warn({ port, fault }, 'who holds the port is not on record yet');
      }
    }
    this.#again = undefined;
    if (this.#unwritten.size === 0) return;
    this.#again = setTimeout(() => {
      this.#writing = this.#writing.then(() => this.#writeLatest());
    }, AGAIN_MS).unref();
  }

  /**
   * Waits a moment for processes whose supervisor is gone to leave the claimed port, and kills those that do not: two services
   * cannot share a port, and nobody else would end them.
   * @returns whether to try the port again
   */
  async takeBack(): Promise<boolean> {
    if (!this.#claimed) return false;
    const { port, others } = this.#claimed;
    const orphans = others.filter(({ supervisor }) => supervisor && !isAlive(supervisor));
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
    // One that may not be killed keeps the port.
    const ends = left.map(({ process }) =>
      endProcess(process, [{ signal: 'SIGKILL', waitMs: KILLED_MS }]).catch(() => false),
    );
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
      if (candidate !== 0) await holders?.claim(candidate);
      await listenOn(server, host, candidate);
      return;
    } catch (cause) {
      const isTaken = (cause as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (isTaken && (await holders?.takeBack())) {
        candidate--;
        continue;
      }
      await holders?.release();
      if (!isTaken || candidate >= last) {
        const other = isTaken ? '; another program does: choose another SVC_HTTP_PORT' : '';
        const message = `The service cannot listen on ${host}, port ${candidate}${other}`;
        throw new TidemarkError('CONFIGURATION_INVALID', message, { cause });
      }
    }
  }
}

async function listenOn(server: Server, host: string, port: number): Promise<void> {
  server.listen(port, host);
  // Rejects at `error`.
  await once(server, 'listening');
}
