/** What callers of the stack see. */
import type { DatabaseRole } from '../db/roles.ts';
import type { Logger } from '../log/logger.ts';
import type { Progress } from './apt-download.ts';
import type { Runtime } from './install.ts';
import type { Profile, ServerName } from './server.ts';

export interface AcquireOptions {
  readonly stateDir: string;
  /** Given: used as it is, no PostgreSQL is started. */
  readonly databaseUrl?: string;
  /** Given: used as it is, no nats-server is started. */
  readonly natsUrl?: string;
  readonly log: Logger;
  /** Short lines for a person, during a first install. */
  readonly progress?: Progress;
  readonly profile?: Profile;
  /** How long a server that is given and away is asked again, which `progress` is told of; default: it is asked once. */
  readonly waitMs?: number;
  /** Gives up while installing or waiting; servers already started are stopped again. */
  readonly signal?: AbortSignal;
}

export interface StackProcess {
  readonly name: ServerName;
  /** 0 for a server that is not a process of this machine that we know of. */
  readonly pid: number;
  /** Named by a URL, or run by an engine: not ours to signal. */
  readonly external: boolean;
}

export interface Stack extends AsyncDisposable {
  readonly stateDir: string;
  /** The superuser's of the embedded database, for its maker and for tests; else the URL that was given. */
  readonly databaseUrl: string;
  /** Through each role: what processes connect with. All the same where the database is given by URL. */
  readonly databaseUrls: Readonly<Record<DatabaseRole, string>>;
  /**
   * The accounts of the broker (`shared/nats/accounts.ts`). This one writes events; where the broker is given by a URL, all
   * are that one.
   */
  readonly natsUrl: string;
  readonly natsProjectorUrl: string;
  readonly natsReaderUrl: string;
  readonly natsExportUrl: string;
  readonly natsOperatorUrl: string;
  /** Folder of PostgreSQL's unix socket, where there is one. */
  readonly databaseSocketDir: string | undefined;
  /** Generated once per state folder; undefined with a given database, whose key is a setting. */
  readonly apiKey: string | undefined;
  /** Whether this call started the servers. Who stops them is decided by who leaves last. */
  readonly owned: boolean;
  readonly processes: readonly StackProcess[];
  /** Programs of the embedded servers (psql ...), where they are embedded. */
  readonly runtime: Runtime | undefined;
  /** Until disposal, a server that dies is started again on its port. */
  supervise(onRestart?: (name: ServerName) => void): void;
  /** Leaves; the last holder stops the servers. */
  [Symbol.asyncDispose](): Promise<void>;
}
