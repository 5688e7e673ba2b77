/** The types of the stack: one server of it, and the stack as its callers see it. */
import type { DatabaseRole } from '../db/roles.ts';
import type { Logger } from '../logger.ts';
import type { ReportProgress } from './apt.ts';
import type { Runtime } from './packages.ts';
import type { ProcessRef } from './processes.ts';

export const SERVER_NAMES = ['postgres', 'nats'] as const;
export type ServerName = (typeof SERVER_NAMES)[number];

/** What is recorded of a running server: enough for another process to check and stop it. */
export interface ServerRecord extends ProcessRef {
  readonly port: number;
}

/** Why a server of the stack cannot be used: it does not answer, it asks to wait, or it refuses for good. */
export interface StackFault {
  readonly kind: 'silent' | 'starting' | 'refused';
  readonly reason: string;
  /** Whether the fault may pass in a moment: nobody listens, a connection broke, or the server starts or stops. */
  readonly passing?: boolean;
}

/** One server of the stack, as a process or a container. `stack.ts` calls the methods under its lock. */
export interface Server {
  readonly name: ServerName;
  /** An interval at which a call of `isAlive` is cheap enough. */
  readonly checkIntervalMs: number;
  /** Resolves when the server answers. The signal ends the wait, and the server. */
  start(port: number, signal?: AbortSignal): Promise<ServerRecord>;
  isAlive(record: ServerRecord): boolean | Promise<boolean>;
  /** Why the server cannot be used; undefined when it answers. */
  fault(record: ServerRecord, timeoutMs: number, signal?: AbortSignal): Promise<StackFault | undefined>;
  stop(record: ServerRecord): Promise<void>;
  /** Kills the server; both servers recover from that at their next start. */
  kill(record: ServerRecord): Promise<void>;
}

/** Sizes and guarantees of the servers. The defaults suit a service; tests use smaller ones. */
export interface Profile {
  readonly sharedBuffersBytes: number;
  /** False does not wait for the disk: state survives a killed process, but not a power cut. For tests only. */
  readonly durable: boolean;
  /** A live server that does not answer for this long is replaced; processes that a dead one left get this long to end. */
  readonly responseTimeoutMs: number;
  /** Accounts of the log, each with its own users and streams; 1 unless tests share a server. */
  readonly logAccounts?: number;
}

export interface AcquireOptions {
  readonly stateDir: string;
  /** The account that servers run as when root starts them; default `nobody`. */
  readonly runAs?: string;
  /** A PostgreSQL to use; then none is started. */
  readonly databaseUrl?: string;
  /** A nats-server to use; then none is started. */
  readonly natsUrl?: string;
  readonly log: Logger;
  /** Receives short lines for a person during a first install. */
  readonly progress?: ReportProgress;
  readonly profile?: Profile;
  /** How long to retry a given server that does not answer; `progress` reports it. Default: no retry. */
  readonly waitMs?: number;
  /** Ends an install or a wait; servers that were started already are stopped. */
  readonly signal?: AbortSignal;
}

export interface StackProcess {
  readonly name: ServerName;
  /** 0 for a server that is not a known process of this machine. */
  readonly pid: number;
  /** Whether a URL names it or a Docker engine runs it, so that this process must not signal it. */
  readonly external: boolean;
}

export interface Stack extends AsyncDisposable {
  readonly stateDir: string;
  /** The account of the embedded servers; undefined where it is that of this process, or a Docker engine runs them. */
  readonly serverUid: number | undefined;
  /** The URL of the embedded database's superuser, for set-up and tests; otherwise the given URL. */
  readonly databaseUrl: string;
  /** By role, the URLs that processes use; all the same where the database is given by URL. */
  readonly databaseUrls: Readonly<Record<DatabaseRole, string>>;
  /**
   * The URLs of the accounts of nats-server (`shared/nats/accounts.ts`); all the same where it is given by URL. This one is
   * of the account that writes events.
   */
  readonly natsUrl: string;
  readonly natsProjectorUrl: string;
  readonly natsReaderUrl: string;
  readonly natsOperatorUrl: string;
  /** Generated once per state folder; undefined with a given database, where a setting gives the key. */
  readonly apiKey: string | undefined;
  /** Whether this call started the servers. The last holder to leave stops them. */
  readonly owned: boolean;
  readonly processes: readonly StackProcess[];
  /** The programs of the embedded servers (psql ...), where there are any. */
  readonly runtime: Runtime | undefined;
  /** Restarts a server that dies, on its port, until disposal. */
  supervise(onRestart?: (name: ServerName) => void): void;
  /** Leaves the stack; the last holder stops the servers. */
  [Symbol.asyncDispose](): Promise<void>;
}
