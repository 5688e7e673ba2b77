/**
 * The lifecycle of the two servers of a state folder.
 *
 * Rules. Whoever needs the stack acquires it and becomes a holder; the first one starts the servers, later ones attach,
 * and the last live holder to leave stops them. A holder that was killed no longer counts; the servers it leaves
 * behind are attached to by the next one if they answer, else ended and started again. All of this happens under one
 * lock per state folder. Servers run in sessions of their own: Ctrl-C reaches us, and we decide.
 */
import { mkdir, realpath, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { connect, describeUrl } from '../db/connect.ts';
import { applyRoles, isProvisioned, provisionRoles } from '../db/roles.ts';
import { TidemarkError } from '../errors.ts';
import { serversOf } from '../nats/connect.ts';
import type { AcquireOptions, Stack } from './contract.ts';
import { ensureServers } from './ensure.ts';
import { HeldStack } from './held-stack.ts';
import { withLock } from './lock.ts';
import { natsFault } from './nats.ts';
import { choosePlace } from './place.ts';
import { everyRole, postgresFault, postgresUrl } from './postgres.ts';
import { databasePasswords, loadSecrets, type Secrets } from './secrets.ts';
import { type Fault, SERVER_NAMES, type ServerRecord } from './server.ts';
import { addHolder, countHolders } from './state.ts';

export type { AcquireOptions, Stack, StackProcess } from './contract.ts';

/** A start can be a first install or a crash recovery of minutes; who comes meanwhile waits for it. */
const LOCK_WAIT_MS = 600_000;
const GIVEN_TIMEOUT_MS = 10_000;
const GIVEN_PAUSE_MS = 500;

/**
 * Attaches to the running stack of the state folder, or starts it.
 * @throws TidemarkError STACK_UNSUPPORTED_MACHINE, STACK_INSTALL_FAILED, STACK_START_FAILED, STACK_LOCKED;
 *   DATABASE_UNAVAILABLE or LOG_UNAVAILABLE when a given URL does not answer.
 */
export async function acquireStack(options: AcquireOptions): Promise<Stack> {
  await checkGiven(options);
  if (options.databaseUrl !== undefined && options.natsUrl !== undefined) return externalStack(options);
  await mkdir(options.stateDir, { recursive: true, mode: 0o755 });
  const stateDir = await realpath(options.stateDir);
  await checkOwner(stateDir);
  const lock = join(stateDir, 'stack.lock');
  const onWait = () => options.log.info('waiting for another process that starts or stops the stack');
  const locked = <T>(section: () => Promise<T>, signal?: AbortSignal) =>
    withLock(lock, { waitMs: LOCK_WAIT_MS, onWait, signal }, section);
  const stack = await locked(async () => {
    const place = await choosePlace(stateDir, options);
    const secrets = await loadSecrets(stateDir);
    const all = place.createServers(secrets);
    const needed = all.filter(
      ({ name }) => (name === 'postgres' ? options.databaseUrl : options.natsUrl) === undefined,
    );
    const others = await countHolders(stateDir);
    const { records, started } = await ensureServers(stateDir, {
      ...place,
      servers: needed,
      inUse: others > 0,
      log: options.log,
    });
    if (options.databaseUrl === undefined) await ensureRoles(records.postgres as ServerRecord, secrets);
    const holder = await addHolder(stateDir, others, options.log);
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
      place,
    });
  }, options.signal);
  if (options.signal?.aborted) {
    await stack[Symbol.asyncDispose]();
    options.signal.throwIfAborted();
  }
  return stack;
}

/**
 * A cluster that has no roles yet, new or an earlier release's, gets them, and its tables the owners they are to have; so
 * does a database that was restored into it.
 */
async function ensureRoles(record: ServerRecord, secrets: Secrets): Promise<void> {
  await using admin = await connect({ url: postgresUrl(record, secrets.databasePassword), name: 'tidemark roles' });
  if (!(await isProvisioned(admin))) await provisionRoles(admin, databasePasswords(secrets));
  await applyRoles(admin);
}

async function checkOwner(stateDir: string): Promise<void> {
  const ours = process.getuid?.();
  const { uid } = await stat(stateDir);
  if (ours !== undefined && ours !== 0 && uid !== ours) {
    throw new TidemarkError(
      'STACK_START_FAILED',
      `The state folder ${stateDir} belongs to another user (${uid}); remove it, or name another with SVC_STATE_DIR`,
    );
  }
}

async function checkGiven(options: AcquireOptions): Promise<void> {
  const { databaseUrl, natsUrl } = options;
  if (databaseUrl !== undefined) {
    const what = `The database of SVC_DATABASE_URL (${describeUrl(databaseUrl)}) cannot be used`;
    const fault = await lastingFault(() => postgresFault(databaseUrl, GIVEN_TIMEOUT_MS), what, options);
    if (fault) throw new TidemarkError('DATABASE_UNAVAILABLE', `${what}: ${fault.reason}`);
  }
  if (natsUrl !== undefined) {
    const what = `The nats-server of SVC_NATS_URL (${describeUrl(natsUrl)}) cannot be used`;
    const fault = await lastingFault(() => clusterFault(natsUrl), what, options);
    if (fault) throw new TidemarkError('LOG_UNAVAILABLE', `${what}: ${fault.reason}`);
  }
}

/** The fault of a server that is away is looked for again until it has gone or the time is over. */
async function lastingFault(
  find: () => Promise<Fault | undefined>,
  what: string,
  { waitMs = 0, signal, progress }: AcquireOptions,
): Promise<Fault | undefined> {
  const startedAt = performance.now();
  for (let told = false; ; told = true) {
    const fault = await find();
    if (!fault?.passing || performance.now() - startedAt >= waitMs) return fault;
    if (!told) progress?.(`${what} (${fault.reason}): asking again for up to ${waitMs / 1000} s`);
    await delay(GIVEN_PAUSE_MS, undefined, { signal });
  }
}

/** Of a cluster one that answers is enough. */
async function clusterFault(natsUrl: string): Promise<Fault | undefined> {
  let fault: Fault | undefined;
  for (const server of serversOf(new URL(natsUrl))) {
    const url = new URL(natsUrl);
    url.host = new URL(server).host;
    fault = await natsFault(url.href, GIVEN_TIMEOUT_MS);
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
    natsExportUrl: brokerUrl as string,
    natsOperatorUrl: brokerUrl as string,
    databaseSocketDir: undefined,
    apiKey: undefined,
    owned: false,
    processes: SERVER_NAMES.map((name) => ({ name, pid: 0, external: true })),
    runtime: undefined,
    supervise() {},
    async [Symbol.asyncDispose]() {},
  };
}
