/** A check of the doctor: one entry of a table, which looks and changes nothing. */
import type { JetStreamManager } from '@nats-io/jetstream';
import type { Settings } from '../../../shared/config/settings.ts';
import type { Client } from '../../../shared/db/connect.ts';
import type { NatsRole } from '../../../shared/nats/accounts.ts';
import type { NatsConnection } from '../../../shared/nats/connect.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';

export interface Finding {
  /** `fault`: something does not work, or will not. `warning`: it works, and not as it should. */
  readonly severity: 'fault' | 'warning';
  /** A setting, a table, a stream, a dataset. */
  readonly subject: string;
  readonly what: string;
  readonly fix: string;
}

export interface Account {
  readonly role: Exclude<NatsRole, 'operator'>;
  /** The setting that names it. */
  readonly setting: string;
  readonly url: string;
}

export interface Patient {
  readonly settings: Settings;
  readonly datasets: readonly DatasetDefinition[];
  readonly database: Client;
  /** What processes connect with, by the setting that says so. */
  readonly roleUrls: Readonly<Record<string, string>>;
  /** The accounts of the log that are to have no more rights than their work needs. */
  readonly accounts: readonly Account[];
  readonly log: { readonly connection: NatsConnection; readonly manager: JetStreamManager };
  /** Folder whose disk the embedded log lies on; undefined where the log is given by a URL. */
  readonly logDir: string | undefined;
  /** Folder whose disk the embedded database lies on. */
  readonly databaseDir: string | undefined;
  /** Bytes free for us on the disk of a folder. */
  readonly freeBytes: (dir: string) => Promise<number>;
  readonly now: () => number;
}

export interface Check {
  readonly name: string;
  /** What it looks at, for people. */
  readonly doc: string;
  /** Without these it cannot be asked. */
  readonly needs: readonly ('database' | 'log')[];
  readonly run: (patient: Patient) => Promise<readonly Finding[]>;
}

export const fault = (subject: string, what: string, fix: string): Finding => ({
  severity: 'fault',
  subject,
  what,
  fix,
});
export const warning = (subject: string, what: string, fix: string): Finding => ({
  severity: 'warning',
  subject,
  what,
  fix,
});

export const bytes = (count: number): string =>
  count >= 1e9 ? `${(count / 1e9).toFixed(1)} GB` : `${(count / 1e6).toFixed(1)} MB`;
