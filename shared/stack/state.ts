/**
 * The files of a stack that its processes share: `stack.json`, the holder files and the secrets. They are read and written
 * under the stack's lock.
 */

import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type { RolePasswords } from '../db/roles.ts';
import { BEGIN_ANEW, isDiskFull, TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';
import type { NatsRole } from '../nats/accounts.ts';
import { isAlive, type ProcessRef, processRef } from './processes.ts';
import type { ServerName, ServerRecord } from './server.ts';

export type Records = { readonly [N in ServerName]?: ServerRecord };

export interface StackState {
  readonly version: 1;
  /** The folder in which this was written: a copied folder names servers that are not its own. */
  readonly stateDir: string;
  /** How the servers run; it never changes, because their data depends on it. */
  readonly kind: 'embedded' | 'docker';
  /** A record outlives its process, because the port is used again. */
  readonly servers: Records;
}

export async function readState(stateDir: string): Promise<StackState | undefined> {
  try {
    const state = JSON.parse(await readFile(join(stateDir, 'stack.json'), 'utf8')) as StackState;
    if (state.version !== 1) return undefined;
    return state.stateDir === stateDir ? state : { ...state, stateDir, servers: forgetProcesses(state.servers) };
  } catch {
    // Missing, or cut short by a full disk: a start ends the servers that it finds running in the folders.
    return undefined;
  }
}

/** The records of stopped servers: only the ports remain. */
export function forgetProcesses(records: Records): Records {
  return Object.fromEntries(
    Object.entries(records).map(([name, { port }]) => [name, { pid: 0, identity: '', port } satisfies ServerRecord]),
  );
}

export function writeState(stateDir: string, kind: StackState['kind'], servers: Records): Promise<void> {
  const state: StackState = { version: 1, stateDir, kind, servers };
  return writeAtomic(join(stateDir, 'stack.json'), `${JSON.stringify(state, null, 2)}\n`, 0o644);
}

/** Replaces a file atomically, so that readers never see a part of it. */
export async function writeAtomic(path: string, text: string, mode: number): Promise<void> {
  const part = `${path}.${randomBytes(4).toString('hex')}`;
  try {
    await using file = await open(part, 'wx', mode);
    await file.writeFile(text);
    await file.sync();
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
  await rename(part, path);
}

/**
 * Registers this process as a holder of the stack. Where the disk is full and others keep the servers running, the process
 * may use the stack unregistered, so that an operator can look for the fault.
 * @param others the number of other holders.
 * @returns the name for `removeHolder`.
 */
export async function addHolder(stateDir: string, others: number, log: Logger): Promise<string> {
  const name = `${process.pid}-${randomBytes(4).toString('hex')}`;
  const path = join(stateDir, 'holders', name);
  try {
    await mkdir(join(stateDir, 'holders'), { recursive: true });
    await writeAtomic(path, JSON.stringify({ ...processRef(process.pid), stateDir }), 0o644);
  } catch (error) {
    if (others === 0 || !isDiskFull(error)) throw error;
    log.warn({ stateDir }, 'the disk is full: this process is not registered, so the last other one stops the servers');
  }
  return name;
}

export async function removeHolder(stateDir: string, name: string): Promise<void> {
  await rm(join(stateDir, 'holders', name), { force: true });
}

/** The number of live holders; the files of dead ones are removed. */
export async function countHolders(stateDir: string): Promise<number> {
  const dir = join(stateDir, 'holders');
  let live = 0;
  for (const name of await readdir(dir).catch(() => [])) {
    let ref: (ProcessRef & { stateDir: string }) | undefined;
    try {
      ref = JSON.parse(await readFile(join(dir, name), 'utf8')) as ProcessRef & { stateDir: string };
    } catch {
      // An incomplete file: its writer is dead, since a live one writes atomically.
    }
    if (ref?.stateDir === stateDir && isAlive(ref)) live++;
    else await rm(join(dir, name), { force: true });
  }
  return live;
}

const SECRETS = [
  /** The key that callers send as X-API-Key. */
  'apiKey',
  /** Of the superuser, which only creates the roles. */
  'databasePassword',
  'databaseOwnerPassword',
  'databaseIngestPassword',
  'databaseServePassword',
  'databaseExportPassword',
  'databaseMonitorPassword',
  'natsPassword',
  /** Of the account of the projector in nats-server. */
  'natsProjectorPassword',
  /** Of the account that may only read. */
  'natsReaderPassword',
  /** Of the account that creates, changes and deletes streams. */
  'natsOperatorPassword',
] as const;

/** The secrets of a state folder: generated once, stored in a file that only its owner can read, and never logged. */
export type Secrets = Readonly<Record<(typeof SECRETS)[number], string>>;

export const secretsPath = (stateDir: string): string => join(stateDir, 'secrets.json');

/**
 * Reads the secrets, or generates them. The caller holds the stack's lock.
 * @throws TidemarkError STACK_START_FAILED where one is missing: another tree made the folder
 */
export async function loadSecrets(stateDir: string): Promise<Secrets> {
  const path = secretsPath(stateDir);
  try {
    const stored = JSON.parse(await readFile(path, 'utf8')) as Partial<Secrets>;
    const missing = SECRETS.filter((name) => typeof stored[name] !== 'string');
    if (missing.length === 0) return stored as Secrets;
    throw new TidemarkError(
      'STACK_START_FAILED',
      `Another tree of Tidemark made the state folder ${stateDir}: its secrets.json lacks ${missing.join(', ')}`,
      { remedy: BEGIN_ANEW },
    );
  } catch (cause) {
    if (cause instanceof TidemarkError) throw cause;
    if ((cause as NodeJS.ErrnoException).code !== 'ENOENT') {
      throw new TidemarkError('STACK_START_FAILED', `Cannot read the secrets of the stack in ${path}`, { cause });
    }
  }
  // 192 bits each, in characters that need no escaping in a URL or a configuration file.
  const secrets = Object.fromEntries(SECRETS.map((name) => [name, randomBytes(24).toString('hex')])) as Secrets;
  await writeAtomic(path, `${JSON.stringify(secrets, null, 2)}\n`, 0o600);
  return secrets;
}

export const databasePasswords = (secrets: Secrets): RolePasswords => ({
  owner: secrets.databaseOwnerPassword,
  ingest: secrets.databaseIngestPassword,
  serve: secrets.databaseServePassword,
  export: secrets.databaseExportPassword,
  monitor: secrets.databaseMonitorPassword,
});

export const natsPasswords = (secrets: Secrets): Readonly<Record<NatsRole, string>> => ({
  publisher: secrets.natsPassword,
  projector: secrets.natsProjectorPassword,
  reader: secrets.natsReaderPassword,
  operator: secrets.natsOperatorPassword,
});

// Below the range from which systems take ports for outgoing connections (32768 on Linux), so that none of those takes a
// recorded port while the stack is stopped.
const FIRST_PORT = 21_000;
const LAST_PORT = 31_999;

export function isPortFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ port, host: '127.0.0.1', exclusive: true }, () => server.close(() => resolve(true)));
  });
}

/** A free loopback port. The search starts at a random port, so that two starting processes seldom collide. */
export async function freePort(): Promise<number> {
  const span = LAST_PORT - FIRST_PORT + 1;
  const start = Math.floor(Math.random() * span);
  for (let i = 0; i < 200; i++) {
    const port = FIRST_PORT + ((start + i * 7) % span);
    if (await isPortFree(port)) return port;
  }
  throw new TidemarkError('STACK_START_FAILED', `Found no free port between ${FIRST_PORT} and ${LAST_PORT}`);
}
