/** What is remembered of a stack between processes: `stack.json` and the holder files. Read and written under its lock. */

import { randomBytes } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type { RolePasswords } from '../db/roles.ts';
import { TidemarkError } from '../errors.ts';
import type { Logger } from '../logger.ts';
import type { NatsRole } from '../nats/accounts.ts';
import { isAlive, type ProcessRef, processRef } from './processes.ts';
import type { ServerName, ServerRecord } from './server.ts';

export type Records = { readonly [N in ServerName]?: ServerRecord };

export interface StackState {
  readonly version: 1;
  /** Where this was written: a copied folder tells of servers that are not its own. */
  readonly stateDir: string;
  /** How the servers are run; the data stays with the way that made it. */
  readonly kind: 'embedded' | 'docker';
  /** Records outlive their process: the port is used again. */
  readonly servers: Records;
}

export async function readState(stateDir: string): Promise<StackState | undefined> {
  try {
    const state = JSON.parse(await readFile(join(stateDir, 'stack.json'), 'utf8')) as StackState;
    if (state.version !== 1) return undefined;
    return state.stateDir === stateDir ? state : { ...state, stateDir, servers: forgetProcesses(state.servers) };
  } catch {
    // Missing, or cut short by a full disk: servers found running in the folders are ended before new ones start.
    return undefined;
  }
}

/** The records of servers that do not run: only their ports stay. */
export function forgetProcesses(records: Records): Records {
  return Object.fromEntries(
    Object.entries(records).map(([name, { port }]) => [name, { pid: 0, identity: '', port } satisfies ServerRecord]),
  );
}

export function writeState(stateDir: string, kind: StackState['kind'], servers: Records): Promise<void> {
  const state: StackState = { version: 1, stateDir, kind, servers };
  return writeAtomic(join(stateDir, 'stack.json'), `${JSON.stringify(state, null, 2)}\n`, 0o644);
}

/** Replaces a file so that it is whole whenever it is read. */
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

const NO_SPACE: ReadonlySet<string> = new Set(['ENOSPC', 'EDQUOT']);

/**
 * Registers this process as a user of the stack; returns the name to leave with. `others`: how many there are. Where the
 * disk is full and others keep the servers running it goes unregistered: whoever looks for the fault must be let in.
 */
export async function addHolder(stateDir: string, others: number, log: Logger): Promise<string> {
  const name = `${process.pid}-${randomBytes(4).toString('hex')}`;
  const path = join(stateDir, 'holders', name);
  try {
    await mkdir(join(stateDir, 'holders'), { recursive: true });
    await writeAtomic(path, JSON.stringify({ ...processRef(process.pid), stateDir }), 0o644);
  } catch (error) {
    if (others === 0 || !NO_SPACE.has((error as NodeJS.ErrnoException).code ?? '')) throw error;
    log.warn({ stateDir }, 'the disk is full: this process is not registered, and the servers end with the others');
  }
  return name;
}

export async function removeHolder(stateDir: string, name: string): Promise<void> {
  await rm(join(stateDir, 'holders', name), { force: true });
}

/** How many live users there are; the files of dead ones are removed. */
export async function countHolders(stateDir: string): Promise<number> {
  const dir = join(stateDir, 'holders');
  let live = 0;
  for (const name of await readdir(dir).catch(() => [])) {
    let ref: (ProcessRef & { stateDir: string }) | undefined;
    try {
      ref = JSON.parse(await readFile(join(dir, name), 'utf8')) as ProcessRef & { stateDir: string };
    } catch {
      // cut short: its writer is dead, since files here appear whole
    }
    if (ref?.stateDir === stateDir && isAlive(ref)) live++;
    else await rm(join(dir, name), { force: true });
  }
  return live;
}

/* Secrets of one state folder: made once, kept in a file only its owner can read, never logged. */

export interface Secrets {
  /** What callers send as X-API-Key. */
  readonly apiKey: string;
  /** Of the superuser, which makes the roles and is nobody else's to use. */
  readonly databasePassword: string;
  readonly databaseOwnerPassword: string;
  readonly databaseIngestPassword: string;
  readonly databaseServePassword: string;
  readonly databaseExportPassword: string;
  readonly databaseMonitorPassword: string;
  readonly natsPassword: string;
  /** Of the broker account that projects. */
  readonly natsProjectorPassword: string;
  /** Of the broker account that may only read. */
  readonly natsReaderPassword: string;
  /** Of the broker account of the export queue. */
  readonly natsExportPassword: string;
  /** Of the broker account that makes, changes and removes streams. */
  readonly natsOperatorPassword: string;
}

export const secretsPath = (stateDir: string): string => join(stateDir, 'secrets.json');

/** Call under the stack's lock. */
export async function loadSecrets(stateDir: string): Promise<Secrets> {
  const path = secretsPath(stateDir);
  let stored: Partial<Secrets> = {};
  try {
    stored = JSON.parse(await readFile(path, 'utf8')) as Partial<Secrets>;
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code !== 'ENOENT') {
      throw new TidemarkError('STACK_START_FAILED', `The secrets of the stack in ${path} cannot be read`, { cause });
    }
  }
  // 192 bits each, in characters that need no escaping in a URL or a configuration file.
  const secret = () => randomBytes(24).toString('hex');
  const secrets: Secrets = {
    apiKey: stored.apiKey ?? secret(),
    databasePassword: stored.databasePassword ?? secret(),
    databaseOwnerPassword: stored.databaseOwnerPassword ?? secret(),
    databaseIngestPassword: stored.databaseIngestPassword ?? secret(),
    databaseServePassword: stored.databaseServePassword ?? secret(),
    databaseExportPassword: stored.databaseExportPassword ?? secret(),
    databaseMonitorPassword: stored.databaseMonitorPassword ?? secret(),
    natsPassword: stored.natsPassword ?? secret(),
    natsProjectorPassword: stored.natsProjectorPassword ?? secret(),
    natsReaderPassword: stored.natsReaderPassword ?? secret(),
    natsExportPassword: stored.natsExportPassword ?? secret(),
    natsOperatorPassword: stored.natsOperatorPassword ?? secret(),
  };
  if (Object.keys(stored).length < Object.keys(secrets).length) {
    await writeAtomic(path, `${JSON.stringify(secrets, null, 2)}\n`, 0o600);
  }
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
  export: secrets.natsExportPassword,
  operator: secrets.natsOperatorPassword,
});

// Below the range from which systems take ports for outgoing connections (32768 on Linux), so that a remembered
// port is not lost to one of those while the stack is down.
const FIRST_PORT = 21_000;
const LAST_PORT = 31_999;

export function isPortFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ port, host: '127.0.0.1', exclusive: true }, () => server.close(() => resolve(true)));
  });
}

/** A free loopback port; the search starts anywhere, so that two starters seldom meet. */
export async function freePort(): Promise<number> {
  const span = LAST_PORT - FIRST_PORT + 1;
  const start = Math.floor(Math.random() * span);
  for (let i = 0; i < 200; i++) {
    const port = FIRST_PORT + ((start + i * 7) % span);
    if (await isPortFree(port)) return port;
  }
  throw new TidemarkError('STACK_START_FAILED', `No free port between ${FIRST_PORT} and ${LAST_PORT}`);
}
