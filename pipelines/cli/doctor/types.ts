/** A check of the doctor: an entry of a table that reads and changes nothing. */
import type { JetStreamManager } from '@nats-io/jetstream';
import type { SettingName, Settings } from '../../../shared/config/settings.ts';
import type { Client } from '../../../shared/db/connect.ts';
import type { NatsRole } from '../../../shared/nats/accounts.ts';
import type { NatsConnection } from '../../../shared/nats/connect.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { baseOf } from '../../../shared/registry/instruments.ts';
import type { DatasetDetails } from '../../../shared/status/catalog-facts.ts';
import type { DatasetState, State } from '../../../shared/status/state.ts';

export interface Finding {
  /** `fault`: something does not work, or soon will not. `warning`: it works, but not as it should. */
  readonly severity: 'fault' | 'warning';
  /** The setting, table, stream or dataset that it is about. */
  readonly subject: string;
  readonly what: string;
  readonly fix: string;
}

export interface Account {
  readonly role: Exclude<NatsRole, 'operator'>;
  /** The setting that holds its URL. */
  readonly setting: string;
  readonly url: string;
}

export interface CheckContext {
  readonly settings: Settings;
  /** The names of those that were given and do not have their defaults. */
  readonly given: ReadonlySet<SettingName>;
  readonly datasets: readonly DatasetDefinition[];
  readonly database: Client;
  /** The state with its details, read by the first check that looks at it. */
  readonly state: () => Promise<State>;
  /** The URLs that processes connect with, by the name of their setting. */
  readonly roleUrls: Readonly<Record<string, string>>;
  /** The accounts of the log whose rights are checked. */
  readonly accounts: readonly Account[];
  readonly log: { readonly connection: NatsConnection; readonly manager: JetStreamManager };
  /** The account of the embedded servers; undefined where it is that of this process, or no such server runs here. */
  readonly serverUid: number | undefined;
  /** Folder of the embedded log; undefined if the log is given by a URL. */
  readonly logDir: string | undefined;
  /** Folder of the embedded database; undefined if the database is given by a URL. */
  readonly databaseDir: string | undefined;
  /** Bytes that this user may still write to the folder's disk. */
  readonly freeBytes: (dir: string) => Promise<number>;
  readonly now: () => number;
}

export interface Check {
  readonly name: string;
  /** What it checks, for people. */
  readonly doc: string;
  /** The stores that it needs. */
  readonly needs: readonly ('database' | 'log')[];
  readonly run: (context: CheckContext) => Promise<readonly Finding[]>;
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

/** The datasets of the context in the state and their other instruments, with their details. */
export async function statesOf({
  state,
  datasets,
}: Pick<CheckContext, 'state' | 'datasets'>): Promise<(DatasetState & { readonly details: DatasetDetails })[]> {
  const { statuses } = await state();
  return statuses
    .filter(({ dataset }) => datasets.includes(baseOf(dataset)))
    .map(({ details, ...rest }) => ({ ...rest, details: details! }));
}
