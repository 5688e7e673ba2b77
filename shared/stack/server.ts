import type { DatabaseRole } from '../db/roles.ts';
import type { Logger } from '../logger.ts';
import type { Progress } from './apt.ts';
import type { Runtime } from './packages.ts';
import type { ProcessRef } from './processes.ts';

export const SERVER_NAMES = ['postgres', 'nats'] as const;
export type ServerName = (typeof SERVER_NAMES)[number];

/** What is remembered of a running server, enough for another process to judge and stop it. */
export interface ServerRecord extends ProcessRef {
  readonly port: number;
}

/** Why a server cannot be used: no answer, an answer that asks to wait, or an answer that waiting will not change. */
export interface Fault {
  readonly kind: 'silent' | 'starting' | 'refused';
  readonly reason: string;
  /** Whether it may be another answer in a moment: nobody listens, a connection broke, a server that starts or stops. */
  readonly passing?: boolean;
}

/** One server of the stack, however it is run. Methods are called by the lifecycle in `stack.ts`, under its lock. */
export interface Server {
  readonly name: ServerName;
  /** How often asking `isAlive` is cheap enough. */
  readonly checkIntervalMs: number;
  /** Resolves when the server answers. */
  start(port: number): Promise<ServerRecord>;
  isAlive(record: ServerRecord): boolean | Promise<boolean>;
  /** False when it was started by a release that told it other things; it is started again then. */
  isCurrent?(): Promise<boolean>;
  /** Undefined when it answers as it should, else why not. */
  fault(record: ServerRecord, timeoutMs: number): Promise<Fault | undefined>;
  stop(record: ServerRecord): Promise<void>;
  /** Ends it without asking; both servers recover from that at their next start. */
  kill(record: ServerRecord): Promise<void>;
}

/** Sizes and promises of the servers; the defaults are those of a service, tests run smaller ones. */
export interface Profile {
  readonly sharedBuffersBytes: number;
  /** False skips waiting for the disk: state survives a killed process, not a power cut. For tests only. */
  readonly durable: boolean;
  /** A server found alive but silent this long is taken for hung and replaced; remnants of one may end by themselves, too. */
  readonly patienceMs: number;
  /** Accounts of the log, each with users and streams of its own and the disk as its limit; 1 unless tests share a server. */
  readonly logAccounts?: number;
}

/* What callers of the stack see. */

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
