/**
 * The lifecycle of the two servers of a state folder.
 *
 * A process that needs the stack acquires it and becomes a holder. The first holder starts the servers, later ones attach,
 * and the last live holder to leave stops them. A killed holder no longer counts: the next holder attaches to the servers
 * that it left if they answer, and otherwise ends and restarts them. All of this happens under one lock per state folder.
 * Servers run in sessions of their own: Ctrl-C reaches this process, which decides whether they stop.
 */

import { existsSync } from 'node:fs';
import { mkdir, realpath, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay, setTimeout as sleep } from 'node:timers/promises';
import { connect, describeUrl, MIGRATION_LOCK } from '../db/connect.ts';
import { refuseForeign } from '../db/migrate.ts';
import { applyRoles, type DatabaseRole, provisionRoles, roleState } from '../db/roles.ts';
import { explain, TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';
import type { NatsRole } from '../nats/accounts.ts';
import { serversOf } from '../nats/connect.ts';
import { chooseServerRuntime, type ServerRuntime } from './docker.ts';
import { natsFault, natsUrl } from './nats.ts';
import type { Runtime } from './packages.ts';
import { everyRole, postgresFault, postgresUrl, roleUrls } from './postgres.ts';
import { withLock } from './processes.ts';
import {
  type AcquireOptions,
  SERVER_NAMES,
  type Server,
  type ServerName,
  type ServerRecord,
  type Stack,
  type StackFault,
  type StackProcess,
} from './server.ts';
import {
  addHolder,
  countHolders,
  databasePasswords,
  forgetProcesses,
  freePort,
  isPortFree,
  loadSecrets,
  natsPasswords,
  type Records,
  readState,
  removeHolder,
  type Secrets,
  type StackState,
  writeState,
} from './state.ts';

/** Longest wait for a crash recovery, or for a shutdown that another process began. */
const STARTING_MS = 600_000;

interface EnsureOptions {
  readonly servers: readonly Server[];
  readonly kind: StackState['kind'];
  /** Whether others hold the stack: then ports must not change, and the running servers are theirs too. */
  readonly inUse: boolean;
  readonly responseTimeoutMs: number;
  readonly log: Logger;
  /** Ends waits; servers that were started are stopped, unless others use them. */
  readonly signal?: AbortSignal;
}

/** Keeps the servers that run and answer, and starts the others. The caller holds the lock. */
async function ensureServers(stateDir: string, options: EnsureOptions): Promise<{ records: Records; started: number }> {
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
  await orStop(servers, records, inUse, async () => {
    if (failure && !inUse) throw failure.reason;
    if (started > 0) await writeState(stateDir, kind, records);
  });
  if (failure) throw failure.reason;
  return { records, started };
}

/**
 * Does what follows a start. If it fails and nobody else holds the stack, no holder would stop the servers that did start, or
 * that an earlier holder left running.
 */
async function orStop<T>(
  servers: readonly Server[],
  records: Records,
  inUse: boolean,
  section: () => Promise<T>,
): Promise<T> {
  try {
    return await section();
  } catch (error) {
    if (!inUse) await stopLive(servers, records);
    throw error;
  }
}

async function stopLive(servers: readonly Server[], records: Records): Promise<void> {
  await Promise.all(
    servers.map(async (server) => {
      const record = records[server.name];
      if (record && (await server.isAlive(record))) await server.stop(record);
    }),
  );
}

async function isUsable(server: Server, record: ServerRecord, options: EnsureOptions): Promise<boolean> {
  if (!(await server.isAlive(record))) return false;
  const found = performance.now();
  for (;;) {
    const fault = await server.fault(record, options.responseTimeoutMs, options.signal);
    if (fault === undefined) return true;
    if (!(await server.isAlive(record))) return false;
    if (performance.now() - found > (fault.kind === 'starting' ? STARTING_MS : options.responseTimeoutMs)) {
      const { name } = server;
      options.log.warn(
        { server: name, pid: record.pid, reason: fault.reason },
        'a server does not answer; restarting it',
      );
      await server.kill(record);
      return false;
    }
    await sleep(100, undefined, { signal: options.signal });
  }
}

/** Starts a server on the port that it had, so that clients find it again; on another one only if nobody uses the stack. */
async function startServer(
  server: Server,
  knownPort: number | undefined,
  { inUse, log, signal }: EnsureOptions,
): Promise<ServerRecord> {
  for (let attempt = 1; ; attempt++) {
    const reuse = knownPort !== undefined && (inUse || (attempt === 1 && (await isPortFree(knownPort))));
    const port = reuse ? knownPort : await freePort();
    try {
      const before = performance.now();
      const record = await server.start(port, signal);
      log.info(
        { server: server.name, pid: record.pid, port, tookMs: Math.round(performance.now() - before) },
        'server started',
      );
      return record;
    } catch (error) {
      // Another process may have taken the port between the check and the start.
      if (signal?.aborted || attempt >= 3 || inUse || (await isPortFree(port))) throw error;
    }
  }
}

const RESTART_BACKOFF_MS = [0, 200, 500, 1_000, 2_000, 5_000];

interface HeldStackOptions extends AcquireOptions {
  readonly secrets: Secrets;
  /** The servers that are not given by URL. */
  readonly needed: readonly Server[];
  /** All servers, also those that a holder without URLs may have started: the last holder stops them too. */
  readonly all: readonly Server[];
  readonly records: Records;
  readonly holder: string;
  readonly locked: <T>(section: () => Promise<T>) => Promise<T>;
  readonly owned: boolean;
  readonly serverRuntime: ServerRuntime;
}

/** The stack as one of its holders has it. */
class HeldStack implements Stack {
  readonly stateDir: string;
  readonly owned: boolean;
  readonly runtime: Runtime | undefined;
  readonly serverUid: number | undefined;
  readonly #options: HeldStackOptions;
  #records: Records;
  #disposal: Promise<void> | undefined;
  #supervision: Promise<void> | undefined;
  readonly #ending = new AbortController();

  constructor(options: HeldStackOptions) {
    this.#options = options;
    this.#records = options.records;
    this.stateDir = options.stateDir;
    this.owned = options.owned;
    this.runtime = options.serverRuntime.runtime;
    this.serverUid = options.serverRuntime.serverUid;
  }

  get databaseUrls(): Readonly<Record<DatabaseRole, string>> {
    const { databaseUrl, secrets } = this.#options;
    if (databaseUrl !== undefined) return everyRole(databaseUrl);
    return roleUrls(this.#records.postgres as ServerRecord, databasePasswords(secrets));
  }

  get databaseUrl(): string {
    const { databaseUrl, secrets } = this.#options;
    return databaseUrl ?? postgresUrl(this.#records.postgres as ServerRecord, secrets.databasePassword);
  }

  get natsUrl(): string {
    return this.#natsUrlOf('publisher');
  }

  get natsProjectorUrl(): string {
    return this.#natsUrlOf('projector');
  }

  get natsReaderUrl(): string {
    return this.#natsUrlOf('reader');
  }

  get natsOperatorUrl(): string {
    return this.#natsUrlOf('operator');
  }

  #natsUrlOf(role: NatsRole): string {
    const { natsUrl: given, secrets } = this.#options;
    return given ?? natsUrl(this.#records.nats as ServerRecord, role, natsPasswords(secrets));
  }

  get apiKey(): string | undefined {
    return this.#options.databaseUrl === undefined ? this.#options.secrets.apiKey : undefined;
  }

  get processes(): StackProcess[] {
    const { databaseUrl, natsUrl: brokerUrl } = this.#options;
    const given: Record<ServerName, string | undefined> = { postgres: databaseUrl, nats: brokerUrl };
    return SERVER_NAMES.map((name) => {
      const pid = given[name] === undefined ? (this.#records[name]?.pid ?? 0) : 0;
      return { name, pid, external: pid === 0 };
    });
  }

  supervise(onRestart: (name: ServerName) => void = () => {}): void {
    this.#supervision ??= this.#superviseUntil(this.#ending.signal, onRestart);
  }

  async #superviseUntil(ending: AbortSignal, onRestart: (name: ServerName) => void): Promise<void> {
    const { needed, locked, stateDir, serverRuntime, log } = this.#options;
    const dead = async () => {
      const alive = await Promise.all(
        needed.map((server) => server.isAlive(this.#records[server.name] as ServerRecord)),
      );
      return needed.filter((_, index) => !alive[index]);
    };
    const intervalMs = Math.max(...needed.map((server) => server.checkIntervalMs));
    for (let failures = 0; !ending.aborted; ) {
      try {
        await sleep(intervalMs + RESTART_BACKOFF_MS[Math.min(failures, RESTART_BACKOFF_MS.length - 1)], null, {
          signal: ending,
          ref: false,
        });
      } catch {
        return;
      }
      const missing = await dead();
      if (missing.length === 0) {
        failures = 0;
        continue;
      }
      try {
        await locked(async () => {
          if (ending.aborted) return;
          // Another holder may have restarted the server already; then this one attaches to it.
          const ensured = await ensureServers(stateDir, { ...serverRuntime, servers: needed, inUse: true, log });
          this.#records = ensured.records;
        });
        failures++;
        for (const server of missing) onRestart(server.name);
      } catch (error) {
        failures++;
        log.error({ fault: explain(error) }, 'a server of the stack could not be restarted; retrying');
      }
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#disposal ??= this.#leave();
    return this.#disposal;
  }

  async #leave(): Promise<void> {
    const { stateDir, holder, locked, serverRuntime, all } = this.#options;
    this.#ending.abort();
    await this.#supervision;
    if (!existsSync(join(stateDir, 'stack.json'))) {
      // The folder was removed: no other process can find these servers.
      await stopLive(all, this.#records);
      return;
    }
    await locked(async () => {
      await removeHolder(stateDir, holder);
      if ((await countHolders(stateDir)) > 0) return;
      const servers = (await readState(stateDir))?.servers ?? this.#records;
      await stopLive(all, servers);
      await writeState(stateDir, serverRuntime.kind, forgetProcesses(servers));
    });
  }
}

export type { AcquireOptions, Stack, StackProcess } from './server.ts';

/** Longest wait for another process's start, which may be a first install or a crash recovery of minutes. */
const LOCK_WAIT_MS = 600_000;
const GIVEN_TIMEOUT_MS = 10_000;
const GIVEN_PAUSE_MS = 500;

/**
 * Attaches to the running stack of the state folder, or starts it.
 * @throws TidemarkError STACK_INSTALL_FAILED, STACK_START_FAILED, WORK_HELD;
 *   DATABASE_UNAVAILABLE or LOG_UNAVAILABLE when a given URL does not answer.
 */
export async function acquireStack(options: AcquireOptions): Promise<Stack> {
  await checkGiven(options);
  if (options.databaseUrl !== undefined && options.natsUrl !== undefined) return externalStack(options);
  const stateDir = await stateFolder(options.stateDir);
  const lock = join(stateDir, 'stack.lock');
  const onWait = () => options.log.info('waiting for another process that starts or stops the stack');
  const locked = <T>(section: () => Promise<T>, signal?: AbortSignal) =>
    withLock(lock, { waitMs: LOCK_WAIT_MS, onWait, signal }, section);
  const stack = await locked(async () => {
    const serverRuntime = await chooseServerRuntime(stateDir, options);
    const secrets = await loadSecrets(stateDir);
    const all = serverRuntime.createServers(secrets);
    const needed = all.filter(
      ({ name }) => (name === 'postgres' ? options.databaseUrl : options.natsUrl) === undefined,
    );
    const others = await countHolders(stateDir);
    const { records, started } = await ensureServers(stateDir, {
      ...serverRuntime,
      servers: needed,
      inUse: others > 0,
      log: options.log,
      signal: options.signal,
    });
    const holder = await orStop(needed, records, others > 0, async () => {
      if (options.databaseUrl === undefined)
        await ensureRoles(records.postgres as ServerRecord, secrets, options.signal);
      return await addHolder(stateDir, others, options.log);
    });
    return new HeldStack({
      ...options,
      stateDir,
      secrets,
      needed,
      all,
      records,
      holder,
      locked,
      owned: started === needed.length,
      serverRuntime,
    });
  }, options.signal);
  if (options.signal?.aborted) {
    await stack[Symbol.asyncDispose]();
    options.signal.throwIfAborted();
  }
  return stack;
}

/**
 * Refuses the database of another tree. Creates the roles in a new cluster, and sets the owners of the tables, also in a database
 * that was restored into the cluster. A process that migrates applies the roles itself at its end; two at a time would change the
 * same tables, and one would fail.
 */
async function ensureRoles(record: ServerRecord, secrets: Secrets, signal: AbortSignal | undefined): Promise<void> {
  const url = postgresUrl(record, secrets.databasePassword);
  await using admin = await connect({ url, name: 'tidemark roles', signal });
  await refuseForeign(admin);
  const { isProvisioned, changes } = await roleState(admin);
  if (!isProvisioned) await provisionRoles(admin, databasePasswords(secrets));
  else if (changes.length === 0) return;
  const lock = [MIGRATION_LOCK, 0];
  const { rows } = await admin.query('select pg_try_advisory_lock($1, $2) as held', lock);
  if (!rows[0].held) return;
  try {
    await applyRoles(admin);
  } finally {
    await admin.query('select pg_advisory_unlock($1, $2)', lock);
  }
}

/** Makes the state folder. @returns its path without links. @throws TidemarkError CONFIGURATION_INVALID */
export async function stateFolder(given: string): Promise<string> {
  const refused = (what: string, cause?: unknown) =>
    new TidemarkError('CONFIGURATION_INVALID', `The state folder ${given} (SVC_STATE_DIR) ${what}`, { cause });
  let stateDir: string;
  let uid: number;
  try {
    await mkdir(given, { recursive: true, mode: 0o755 });
    stateDir = await realpath(given);
    uid = (await stat(stateDir)).uid;
  } catch (cause) {
    throw refused(`cannot be used: ${explain(cause)}`, cause);
  }
  const ours = process.getuid?.();
  if (ours === undefined || ours === 0 || uid === ours) return stateDir;
  throw refused(
    `belongs to user ${uid}, and this is user ${ours}: run the command as that user, or name another folder`,
  );
}

async function checkGiven(options: AcquireOptions): Promise<void> {
  const { databaseUrl, natsUrl, signal } = options;
  if (databaseUrl !== undefined) {
    const what = `Cannot use the database of SVC_DATABASE_URL (${describeUrl(databaseUrl)})`;
    const fault = await lastingFault(() => postgresFault(databaseUrl, GIVEN_TIMEOUT_MS, { signal }), what, options);
    if (fault) throw new TidemarkError('DATABASE_UNAVAILABLE', `${what}: ${fault.reason}`);
  }
  if (natsUrl !== undefined) {
    const what = `Cannot use the nats-server of SVC_NATS_URL (${describeUrl(natsUrl)})`;
    const fault = await lastingFault(() => clusterFault(natsUrl, signal), what, options);
    if (fault) throw new TidemarkError('LOG_UNAVAILABLE', `${what}: ${fault.reason}`);
  }
}

/** Checks a given server until it has no passing fault, or until `waitMs` is over. @returns the fault that remains. */
async function lastingFault(
  find: () => Promise<StackFault | undefined>,
  what: string,
  { waitMs = 0, signal, progress }: AcquireOptions,
): Promise<StackFault | undefined> {
  const startedAt = performance.now();
  for (let isReported = false; ; isReported = true) {
    const fault = await find();
    if (!fault?.passing || performance.now() - startedAt >= waitMs) return fault;
    if (!isReported) progress?.(`${what} (${fault.reason}): retrying for up to ${waitMs / 1000} s`);
    await delay(GIVEN_PAUSE_MS, undefined, { signal });
  }
}

/** The fault of a cluster; one server that answers is enough. */
async function clusterFault(natsUrl: string, signal: AbortSignal | undefined): Promise<StackFault | undefined> {
  let fault: StackFault | undefined;
  for (const server of serversOf(new URL(natsUrl))) {
    const url = new URL(natsUrl);
    url.host = new URL(server).host;
    fault = await natsFault(url.href, GIVEN_TIMEOUT_MS, { signal });
    if (!fault) return undefined;
  }
  return fault;
}

function externalStack(options: AcquireOptions): Stack {
  const { stateDir, databaseUrl, natsUrl: brokerUrl } = options;
  return {
    stateDir,
    databaseUrl: databaseUrl as string,
    databaseUrls: everyRole(databaseUrl as string),
    natsUrl: brokerUrl as string,
    natsProjectorUrl: brokerUrl as string,
    natsReaderUrl: brokerUrl as string,
    natsOperatorUrl: brokerUrl as string,
    apiKey: undefined,
    serverUid: undefined,
    owned: false,
    processes: SERVER_NAMES.map((name) => ({ name, pid: 0, external: true })),
    runtime: undefined,
    supervise() {},
    async [Symbol.asyncDispose]() {},
  };
}
