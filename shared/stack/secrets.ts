/** Secrets of one state folder: made once, kept in a file only its owner can read, never logged. */
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { RolePasswords } from '../db/roles.ts';
import { TidemarkError } from '../errors.ts';
import type { NatsRole } from '../nats/accounts.ts';
import { writeAtomic } from './state.ts';

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
