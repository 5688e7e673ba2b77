/** Brings the servers of a state folder to life, keeping those that already are. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Logger } from '../log/logger.ts';
import { freePort, isPortFree } from './ports.ts';
import type { Server, ServerName, ServerRecord } from './server.ts';
import { type Records, readState, type StackState, writeState } from './state.ts';

/** Longest crash recovery, or shutdown begun by somebody else, that is waited for. */
const STARTING_MS = 600_000;

export interface EnsureOptions {
  readonly servers: readonly Server[];
  readonly kind: StackState['kind'];
  /** Others hold the stack: ports must stay, and what runs is theirs too. */
  readonly inUse: boolean;
  readonly patienceMs: number;
  readonly log: Logger;
}

/** Keeps what runs and answers, starts what does not. Call under the lock. */
export async function ensureServers(
  stateDir: string,
  options: EnsureOptions,
): Promise<{ records: Records; started: number }> {
  const { servers, kind, inUse } = options;
  const state = await readState(stateDir);
  const records: { [N in ServerName]?: ServerRecord } = { ...state?.servers };
  let started = 0;
  const outcomes = await Promise.allSettled(
    servers.map(async (server) => {
      const known = records[server.name];
      if (known && (await isUsable(server, known, options))) return;
      records[server.name] = await startServer(server, known?.port, options);
      started++;
    }),
  );
  const failure = outcomes.find((outcome) => outcome.status === 'rejected');
  if (failure && !inUse) {
    // Nobody would stop what did start, or was left over and still runs.
    for (const server of servers) {
      const record = records[server.name];
      if (record && (await server.isAlive(record))) await server.stop(record);
    }
    throw failure.reason;
  }
  if (started > 0) await writeState(stateDir, kind, records);
  if (failure) throw failure.reason;
  return { records, started };
}

async function isUsable(server: Server, record: ServerRecord, options: EnsureOptions): Promise<boolean> {
  if (!(await server.isAlive(record))) return false;
  const found = Date.now();
  for (;;) {
    const fault = await server.fault(record, options.patienceMs);
    if (fault === undefined) return await isCurrent(server, record, options);
    if (!(await server.isAlive(record))) return false;
    if (Date.now() - found > (fault.kind === 'starting' ? STARTING_MS : options.patienceMs)) {
      const { name } = server;
      options.log.warn(
        { server: name, pid: record.pid, reason: fault.reason },
        'a server does not answer; replacing it',
      );
      await server.kill(record);
      return false;
    }
    await sleep(100);
  }
}

/** Stops a server that an earlier release configured; its clients come back to the one that follows. */
async function isCurrent(server: Server, record: ServerRecord, { log }: EnsureOptions): Promise<boolean> {
  if ((await server.isCurrent?.()) ?? true) return true;
  log.warn(
    { server: server.name, pid: record.pid },
    'a server runs as another release configured it; starting it again',
  );
  await server.stop(record);
  return false;
}

/** On the port it had, so that clients find it again; a new one only where nobody uses the stack yet. */
async function startServer(
  server: Server,
  knownPort: number | undefined,
  { inUse, log }: EnsureOptions,
): Promise<ServerRecord> {
  for (let attempt = 1; ; attempt++) {
    const reuse = knownPort !== undefined && (inUse || (attempt === 1 && (await isPortFree(knownPort))));
    const port = reuse ? knownPort : await freePort();
    try {
      const before = Date.now();
      const record = await server.start(port);
      log.info({ server: server.name, pid: record.pid, port, tookMs: Date.now() - before }, 'server started');
      return record;
    } catch (error) {
      // Somebody may have taken the port between the look and the start.
      if (attempt >= 3 || inUse || (await isPortFree(port))) throw error;
    }
  }
}
