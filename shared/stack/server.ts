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
