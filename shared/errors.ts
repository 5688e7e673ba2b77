/**
 * The errors that an operator can meet. Each has a stable `code`; messages are for people and may change. HTTP problem
 * codes are the public contract and have a table of their own (`serving/contract/problems.ts`).
 */

/**
 * The table of error codes: `transient` says whether an unchanged retry can help, `remedy` what the operator should do where the
 * error itself says nothing closer. Faults that a program and an operator treat alike share a code; their messages differ.
 */
export const ERROR_CODES = {
  // the command, its settings and what they need (exit 2)
  USAGE: { transient: false, remedy: 'Run `./tidemark help` for the commands and their options.' },
  CONFIGURATION_INVALID: {
    transient: false,
    remedy: 'Correct the settings that the message names; `.env.example` documents each.',
  },
  DISK_UNUSABLE: {
    transient: false,
    remedy:
      'Check the space and the permissions of the folder that the message names, then run the same command again; it continues.',
  },
  WORK_HELD: {
    transient: true,
    remedy: 'The process that the message names is doing the same work; wait for it, or stop it.',
  },
  INTERRUPTED: { transient: true, remedy: 'Run the same command again; it continues where it stopped.' },
  INTERNAL_INVARIANT: { transient: false, remedy: 'This is a defect of Tidemark; please report it with the message.' },

  // embedded stack
  STACK_INSTALL_FAILED: {
    transient: true,
    remedy:
      'Check the command that the message names. It needs the network to the package mirror once; docs/operations.md says what to copy to a machine without one.',
  },
  STACK_START_FAILED: {
    transient: true,
    remedy: 'Mend what the message says; where it names a log file, the reason is at its end.',
  },

  // an HTTP service that a command asks
  SERVICE_UNREACHABLE: {
    transient: true,
    remedy:
      'Start the HTTP service with `npm start` or `./tidemark up`, name a running one with --url, or its state folder with SVC_STATE_DIR.',
  },
  SERVICE_REFUSED: {
    transient: false,
    remedy: 'The message is the answer of the HTTP service: correct the request or the key (SVC_INTERNAL_API_KEY).',
  },
  MIRROR_SOURCE_INVALID: {
    transient: true,
    remedy:
      'The source does not have the bytes of its own manifest: it is being replaced, or was changed. Try again later.',
  },

  // fetching and reading a vendor document
  SOURCE_NOT_FOUND: {
    transient: false,
    remedy: 'Check the base URL setting. If it is right, the vendor has not published this document.',
  },
  SOURCE_UNREACHABLE: { transient: true, remedy: 'Check the network, the vendor and the base URL setting.' },
  SOURCE_REFUSED: {
    transient: false,
    remedy: 'Read in the message what the source refused, and check the setting of its key first.',
  },
  SOURCE_CHECKSUM_MISMATCH: {
    transient: true,
    remedy:
      'The document and the checksum that the vendor states do not belong together; fetch both again, and ask the vendor if they stay so.',
  },
  SOURCE_DOCUMENT_INVALID: {
    transient: false,
    remedy:
      'The document breaks the rule that the message names; nothing of it was written. docs/sources.md has the form of each document, docs/limits.md the limits. Ask the vendor.',
  },
  SOURCE_LAYOUT_UNKNOWN: {
    transient: false,
    remedy:
      'The document does not have the layout that its adapter reads, or the source sent another page. Nothing was written.',
  },

  // a Bitcoin node
  NODE_UNREACHABLE: {
    transient: true,
    remedy: 'Check that the node runs, and check SVC_BITCOIN_RPC_URL; then try again.',
  },
  NODE_UNSUITABLE: {
    transient: false,
    remedy: 'Correct the setting that the message names, or run the node as docs/bitcoin.md says.',
  },
  NODE_HEIGHT_BEYOND_TIP: {
    transient: true,
    remedy:
      'The node has not reached this height, or SVC_BITCOIN_CONFIRMATION_DEPTH holds its block back; try again later.',
  },
  NODE_ANSWER_INVALID: {
    transient: false,
    remedy:
      'The answer is not what a Bitcoin node of version 23 or newer gives; check SVC_BITCOIN_RPC_URL, the node, and any proxy in front of it.',
  },
  CHAIN_REORGANISED: {
    transient: true,
    remedy: 'Blocks have left the chain; `./tidemark status` shows the heights to `reingest`.',
  },

  // the log
  LOG_UNAVAILABLE: { transient: true, remedy: 'nats-server does not answer; check SVC_NATS_URL.' },
  LOG_MISCONFIGURED: {
    transient: false,
    remedy: 'Give the stream the settings that the message names: the immutable log needs them.',
  },
  LOG_FULL: {
    transient: true,
    remedy:
      'The stream has reached its byte limit, or its disk is full: raise SVC_STREAM_MAX_BYTES or make room, then run the same command again.',
  },
  LOG_CONFLICT: { transient: false, remedy: 'The log holds another frame at this position; start a new attempt.' },
  LOG_DAMAGED: {
    transient: false,
    remedy:
      'The log does not hold this partition as it was published; what is proved is still served. `./tidemark reingest ... --reason` writes it to the log again.',
  },
  LOG_REWOUND: {
    transient: false,
    remedy:
      'The checkpoint was taken on another stream: `./tidemark recover` brings the two into step and names what the log lost.',
  },

  // partitions
  PARTITION_LATE_ARRIVAL: {
    transient: false,
    remedy:
      'The partition is proved with different content. `./tidemark reingest ... --reason` replaces it with a new revision.',
  },
  PARTITION_PROOF_FAILED: {
    transient: false,
    remedy:
      'The partition is quarantined; `./tidemark quarantine` shows the expected and the found values, and what to do.',
  },
  PARTITION_CHANGED: { transient: true, remedy: 'The partition was revised while it was read; run the command again.' },
  PARTITION_TIMEOUT: {
    transient: true,
    remedy: 'No projector has proved the partition in time; run the same command again.',
  },
  PROJECTOR_FAILED: {
    transient: false,
    remedy: 'Repair what the message names, then run the same command again. What the log already holds is not lost.',
  },
  EVENT_UNKNOWN: { transient: false, remedy: 'Check the offset; `./tidemark status` shows what is proved.' },

  // storage
  DATABASE_UNAVAILABLE: { transient: true, remedy: 'PostgreSQL does not answer; check SVC_DATABASE_URL.' },
  DATABASE_UNSUITABLE: {
    transient: false,
    remedy: 'Use a PostgreSQL 17 with a supported TimescaleDB; docs/dependencies.md names the versions.',
  },
  PROOF_LOG_DIVERGED: {
    transient: false,
    remedy: 'Compare database and folder of the proof log with a backup or a mirror: one of them was changed.',
  },
} as const satisfies Record<string, { transient: boolean; remedy: string }>;

/** The remedy where database, log or state folder are of another tree, whatever the code. */
export const BEGIN_ANEW =
  'Nothing was released, so no tree carries the state of another. Begin anew: stop everything, move kept/, mempool/ and rights/ of the state folder aside, which nothing else has, delete the folder and the volumes of Docker, or use an empty database and an empty log, and start again; the sources fill them.';

export type ErrorCode = keyof typeof ERROR_CODES;

/** Facts that locate a fault: document, line, offset, setting, partition ... Values must be safe to show to an operator. */
export type ErrorDetails = Readonly<Record<string, string | number | boolean | bigint | null | undefined>>;

export class TidemarkError extends Error {
  override readonly name = 'TidemarkError';
  readonly code: ErrorCode;
  readonly details: ErrorDetails;
  /** What the operator should do: of this error, or else of its code. */
  readonly remedy: string;

  constructor(
    code: ErrorCode,
    message: string,
    options: { details?: ErrorDetails; remedy?: string; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.details = options.details ?? {};
    this.remedy = options.remedy ?? ERROR_CODES[code].remedy;
  }

  /** Whether an unchanged retry can help. */
  get transient(): boolean {
    return ERROR_CODES[this.code].transient;
  }
}

/** The code of a thrown value; undefined unless it is a `TidemarkError`. */
export function codeOf(error: unknown): ErrorCode | undefined {
  return error instanceof TidemarkError ? error.code : undefined;
}

/** One line for a person: the message, then the chain of causes. */
export function explain(error: unknown): string {
  const parts: string[] = [];
  for (let cause: unknown = error, depth = 0; cause !== undefined && cause !== null && depth < 5; depth++) {
    parts.push(cause instanceof Error ? cause.message || cause.name : String(cause));
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  return parts.join(': ');
}

/** Checks an invariant of Tidemark. A failure is a bug, never bad input. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new TidemarkError('INTERNAL_INVARIANT', message);
}

/** Messages of the PostgreSQL driver about a connection that ended before or during a query. */
const DATABASE_LOST = /Connection terminated|not queryable|Connection ended|Client was closed|trying to connect/;
/** SQLSTATEs of PostgreSQL for shutdown and start-up, connection faults, and too many connections. */
const DATABASE_STATES = /^(57P0|08|53)/;
const LOG_ERRORS: ReadonlySet<string> = new Set([
  'TimeoutError',
  'NoRespondersError',
  'ConnectionError',
  'ClosedConnectionError',
  'DrainingConnectionError',
  'RequestError',
  'JetStreamNotEnabled',
]);
const SOCKET_CODES: ReadonlySet<string> = new Set(['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ENOENT']);

/**
 * The code of the server that an error says is unavailable, PostgreSQL or nats-server; undefined for other errors. The
 * drivers report a lost connection as a bare `Error`, from whatever call was in progress.
 */
export function outageCode(error: unknown): ErrorCode | undefined {
  if (!(error instanceof Error)) return undefined;
  if (LOG_ERRORS.has(error.name)) return 'LOG_UNAVAILABLE';
  const { code, syscall } = error as { code?: unknown; syscall?: unknown };
  if (DATABASE_LOST.test(error.message) || (typeof code === 'string' && DATABASE_STATES.test(code))) {
    return 'DATABASE_UNAVAILABLE';
  }
  const socket = syscall === 'connect' || syscall === 'read' || syscall === 'write';
  return socket && SOCKET_CODES.has(String(code)) ? 'DATABASE_UNAVAILABLE' : undefined;
}

const NO_SPACE: ReadonlySet<unknown> = new Set(['ENOSPC', 'EDQUOT']);

/** Whether a disk, or a quota of it, had no room for what was written. */
export const isDiskFull = (error: unknown): boolean => NO_SPACE.has((error as NodeJS.ErrnoException | undefined)?.code);

/** SQLSTATEs of a server that answers and refuses: wrong credentials, missing rights, unknown database. */
const REFUSED_STATES = /^(28|3D|42)/;
/** Names of the log client's errors that say the same, or that the server cannot do what its address asks for. */
const LOG_REFUSALS: ReadonlySet<string> = new Set([
  'AuthorizationError',
  'UserAuthenticationExpiredError',
  'PermissionViolationError',
  'InvalidArgumentError',
]);
/** Codes of a TLS handshake: another protocol, an unknown authority, another name, an expired certificate. */
const TLS_CODES = /^(ERR_TLS|ERR_SSL|EPROTO$|CERT_|UNABLE_TO_|DEPTH_ZERO_|SELF_SIGNED_|HOSTNAME_MISMATCH$|INVALID_CA$)/;
/** Messages of the drivers: TLS that the server lacks or breaks off, and a password that the URL lacks. */
const DRIVER_REFUSALS = /does not support SSL|establishing an SSL connection|^SASL: |does not support 'tls'/;

/** Whether a store refuses, so that only another setting helps and no repetition does. */
export function isRefusal(error: unknown): boolean {
  if (error instanceof AggregateError && error.errors.some(isRefusal)) return true;
  if (!(error instanceof Error)) return false;
  const code = String((error as { code?: unknown }).code ?? '');
  const refuses = REFUSED_STATES.test(code) || TLS_CODES.test(code) || LOG_REFUSALS.has(error.name);
  return refuses || DRIVER_REFUSALS.test(error.message) || isRefusal(error.cause);
}
