/**
 * The errors that an operator can meet. Each has a stable `code`; messages are for people and may change. HTTP problem
 * codes are the public contract and have a table of their own (`serving/contract/problems.ts`).
 */

/** The table of error codes: `transient` says whether an unchanged retry can help, `remedy` what the operator should do. */
export const ERROR_CODES = {
  // configuration and usage (exit 2)
  CONFIGURATION_INVALID: {
    transient: false,
    remedy: 'Correct the settings that the message names; `.env.example` documents each.',
  },
  SOURCE_PINNED: {
    transient: false,
    remedy:
      'Set the setting back to the pinned value, or leave it unset. What is of another value needs a state folder (SVC_STATE_DIR), or a database and log, of its own.',
  },
  USAGE: { transient: false, remedy: 'Run `./tidemark help` for the commands and their options.' },

  // embedded stack
  STACK_UNSUPPORTED_MACHINE: {
    transient: false,
    remedy: 'Use Debian or Ubuntu with apt, or Docker, or set SVC_DATABASE_URL and SVC_NATS_URL.',
  },
  STACK_INSTALL_FAILED: {
    transient: true,
    remedy:
      'Check the command that the message names. It needs the network to the package mirror once; docs/operations.md says what to copy to a machine without one.',
  },
  STACK_START_FAILED: {
    transient: true,
    remedy: 'Mend what the message says; where it names a log file, the reason is at its end.',
  },
  STACK_LOCKED: {
    transient: true,
    remedy: 'Wait until the other process has started or stopped the stack of this state folder, then try again.',
  },

  SERVICE_START_FAILED: {
    transient: true,
    remedy: 'Read the log on standard error: it says what the service waits for.',
  },

  SERVICE_NOT_RUNNING: {
    transient: true,
    remedy: 'Start it with `npm start` or `./tidemark up`, or name the state folder of another one with SVC_STATE_DIR.',
  },
  SERVICE_KEY_UNKNOWN: {
    transient: false,
    remedy: 'Set SVC_INTERNAL_API_KEY here as it was set where the service was started, or start the service again.',
  },
  SERVICE_UNREACHABLE: {
    transient: true,
    remedy: 'Start the HTTP service with ./tidemark up, or name a running one with --url.',
  },
  SERVICE_UNPROVEN: {
    transient: false,
    remedy:
      'Another program has the port that the service had: stop it, or start the service again with ./tidemark up.',
  },
  SERVICE_REFUSED: {
    transient: false,
    remedy: 'The message is the answer of the HTTP service: correct the request or the key (SVC_INTERNAL_API_KEY).',
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
  SOURCE_TRUNCATED: { transient: true, remedy: 'The document ended early; fetch it again.' },
  SOURCE_CHECKSUM_MISSING: {
    transient: false,
    remedy:
      'Ask the vendor for the checksum that it publishes beside each document; this document has none that can be used.',
  },
  SOURCE_CHECKSUM_MISMATCH: {
    transient: true,
    remedy:
      'The document and the checksum that the vendor states do not belong together; fetch both again, and ask the vendor if they stay so.',
  },
  SOURCE_ARCHIVE_INVALID: {
    transient: false,
    remedy: 'The archive is damaged or does not have the documented form; ask the vendor.',
  },
  SOURCE_TOO_LARGE: {
    transient: false,
    remedy: 'The document exceeds the limit that the message names; docs/limits.md lists the limits.',
  },
  SPOOL_UNUSABLE: {
    transient: false,
    remedy: 'Check the space and the permissions of the state folder; downloads are stored there.',
  },
  SOURCE_OUTSIDE_FOLDER: {
    transient: false,
    remedy: 'Put the file itself into the folder, or point the setting at the folder that holds it.',
  },
  SOURCE_EMPTY: { transient: false, remedy: 'The document holds no rows.' },
  SOURCE_ROW_INVALID: {
    transient: false,
    remedy: 'The row that the message names does not have the documented form; ask the vendor.',
  },
  SOURCE_SEQUENCE_BROKEN: {
    transient: false,
    remedy: 'The ids of the document do not follow one another as the source numbers them; fetch the document again.',
  },
  SOURCE_ROW_CONFLICT: {
    transient: false,
    remedy: 'Two rows of the document have one id and different content; ask the vendor which is right.',
  },
  SOURCE_LAYOUT_UNKNOWN: {
    transient: false,
    remedy:
      'The document does not have the layout that its adapter reads, or the source sent another page. Nothing was written.',
  },
  SOURCE_LINK_INVALID: {
    transient: false,
    remedy: 'The link endpoint did not return a link of the requested document; check its URL setting.',
  },
  SOURCE_OUTSIDE_PARTITION: {
    transient: false,
    remedy: 'The row lies outside the time range of its partition; ask the vendor.',
  },

  // a Bitcoin node
  NODE_UNREACHABLE: {
    transient: true,
    remedy: 'Check that the node runs, and check SVC_BITCOIN_RPC_URL; then try again.',
  },
  NODE_ANSWER_CUT: {
    transient: true,
    remedy: 'The connection to the node broke in the middle of an answer; try again.',
  },
  NODE_CREDENTIALS_REFUSED: {
    transient: false,
    remedy: 'Check SVC_BITCOIN_RPC_USER and SVC_BITCOIN_RPC_PASSWORD.',
  },
  NODE_CHAIN_MISMATCH: {
    transient: false,
    remedy: 'The node is on another chain than SVC_BITCOIN_NETWORK names; correct one of them.',
  },
  NODE_PRUNED: { transient: false, remedy: 'Run the node with prune=0: Tidemark needs every block.' },
  NODE_HEIGHT_BEYOND_TIP: {
    transient: true,
    remedy:
      'The node has not reached this height, or SVC_BITCOIN_CONFIRMATION_DEPTH holds its block back; try again later.',
  },
  NODE_UNDO_MISSING: {
    transient: false,
    remedy:
      'The node does not report which outputs these inputs spent; it needs version 23 or newer and its undo data (-reindex).',
  },
  NODE_BLOCK_INVALID: {
    transient: false,
    remedy: 'The block does not match its hash; check the node and any proxy in front of it.',
  },
  NODE_ANSWER_INVALID: {
    transient: false,
    remedy:
      'The answer does not have the form that a Bitcoin node gives; check SVC_BITCOIN_RPC_URL and the version of the node.',
  },
  NODE_CALL_REFUSED: { transient: false, remedy: 'The message gives the reason for which the node refused the call.' },
  CHAIN_REORGANISED: {
    transient: true,
    remedy: 'Blocks have left the chain; `./tidemark status` shows the heights to `reingest`.',
  },

  // the log
  LOG_UNAVAILABLE: { transient: true, remedy: 'nats-server does not answer; check SVC_NATS_URL.' },
  LOG_ACCOUNT_REFUSED: {
    transient: false,
    remedy: 'Set SVC_NATS_OPERATOR_URL to an account that may create streams, and run `./tidemark migrate`.',
  },
  LOG_FULL: {
    transient: true,
    remedy:
      'The stream has reached its byte limit, or its disk is full: raise SVC_STREAM_MAX_BYTES or make room, then run the same command again.',
  },
  LOG_STORAGE_SHORT: {
    transient: false,
    remedy: 'Streams reserve their byte limit: lower SVC_STREAM_MAX_BYTES, or give nats-server a larger store.',
  },
  LOG_CONFLICT: { transient: false, remedy: 'The log holds another frame at this position; start a new attempt.' },
  LOG_FRAME_CORRUPT: {
    transient: false,
    remedy: 'A stored frame does not match its digest; `reingest` the partition.',
  },
  LOG_GAP: {
    transient: true,
    remedy:
      'The projector restarts at its checkpoint by itself. If this goes on, stop whatever else reads from the consumer `projector`.',
  },
  LOG_REWOUND: {
    transient: false,
    remedy:
      'The checkpoint was taken on another stream: `./tidemark recover` brings the two into step and names what the log lost.',
  },
  LOG_PARTITION_LOST: {
    transient: false,
    remedy:
      'The log has lost this partition; it is still served. `./tidemark reingest ... --reason` writes it to the log again.',
  },
  LOG_STREAM_MISCONFIGURED: {
    transient: false,
    remedy: 'Give the stream the settings that the message names: the immutable log needs them.',
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
  INTERRUPTED: { transient: true, remedy: 'Run the same command again; it continues where it stopped.' },
  PARTITION_UNKNOWN: { transient: false, remedy: '`./tidemark status` lists the existing partitions.' },
  PARTITION_OVERLAPS: {
    transient: false,
    remedy:
      'Request the heights of the partition that the message names; `./tidemark reingest` replaces a quarantined one.',
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
  EVENT_AMBIGUOUS: { transient: false, remedy: 'Name the day with --date, or the partition with --partition.' },
  PUBLISHER_LEASE_HELD: {
    transient: true,
    remedy: 'The process that the message names is publishing this dataset; wait for it, or stop it.',
  },
  WORK_HELD: {
    transient: true,
    remedy: 'The process that the message names is doing the same work; wait for it, or stop it.',
  },
  PUBLISHER_LEASE_LOST: {
    transient: true,
    remedy: 'Run the same command again; it continues where the lost connection, which held the lease, stopped it.',
  },

  // the lake
  LAKE_FOLDER_REFUSED: {
    transient: false,
    remedy:
      'Name a folder that is empty, does not exist, or holds a lake of this release, and that this user may write to.',
  },
  LAKE_HELD: {
    transient: true,
    remedy: 'Another process writes to this lake; stop it, or wait for it if it does not follow changes.',
  },
  LAKE_NOT_WRITTEN: {
    transient: true,
    remedy: 'Free space or repair the disk of the lake, then run the same command again; it continues.',
  },

  // storage
  DATABASE_UNAVAILABLE: { transient: true, remedy: 'PostgreSQL does not answer; check SVC_DATABASE_URL.' },
  DATABASE_UNSUPPORTED: {
    transient: false,
    remedy: 'Use a PostgreSQL 17 with a supported TimescaleDB; docs/dependencies.md names the versions.',
  },
  MIGRATION_NOT_ALLOWED: {
    transient: false,
    remedy: 'Run `./tidemark migrate` with SVC_DATABASE_OWNER_URL; this role may not change the schema.',
  },
  MIGRATION_FAILED: {
    transient: false,
    remedy: 'Remove the cause that the message gives, then migrate again; nothing of the failed migration was applied.',
  },
  STATE_FOREIGN: {
    transient: false,
    remedy:
      'Nothing was released, so no tree carries the state of another: stop everything, delete the state folder and the volumes of Docker, or use an empty database and an empty log, and start again; the sources fill them.',
  },
  PROOF_LOG_REWOUND: {
    transient: false,
    remedy:
      'The database or the folder of the proof log is older than the last checkpoint. Restore the newest copy of the folder that anybody has, such as a mirror; then `./tidemark proof-log restored --reason ...` takes what is missing from the other and says so in the log.',
  },
  PROOF_LOG_FORKED: {
    transient: false,
    remedy: 'Compare database and folder of the proof log with a backup or a mirror: one of them was changed.',
  },
  PROOF_LOG_KEY_INVALID: {
    transient: false,
    remedy: 'Set SVC_PROOF_LOG_KEY to the line `PRIVATE+KEY+name+hash+base64` of the log, or restore its key file.',
  },
  CHECK_INPUT_INVALID: {
    transient: false,
    remedy: 'Name the manifest of an export, a lineage answer, checkpoints, or the folder of a mirror.',
  },

  MIRROR_FOLDER_REFUSED: {
    transient: false,
    remedy: 'Name a folder that is missing, empty, or a mirror of this source. Nothing was changed.',
  },
  MIRROR_FOLDER_UNUSABLE: {
    transient: false,
    remedy: 'Check space and permissions of the folder, then run the same command again; it continues.',
  },
  MIRROR_UNREACHABLE: { transient: true, remedy: 'Run the same command again; it continues where it stopped.' },
  MIRROR_REFUSED: {
    transient: false,
    remedy:
      'The message is the answer of the source: correct what it names, such as the URL or the key (TIDEMARK_KEY), or name the datasets that you may read with --datasets.',
  },
  MIRROR_ALTERED: {
    transient: true,
    remedy:
      'The source does not have the bytes of its own manifest: it is being replaced, or was changed. Try again later.',
  },
  MIRROR_MANIFEST_INVALID: {
    transient: false,
    remedy: 'Nothing of it was used. Ask whoever keeps the source; check --key if the signature does not hold.',
  },

  RIGHTS_FILE_EXISTS: {
    transient: false,
    remedy:
      'Change the existing files, or name another path: SVC_SOURCE_RIGHTS_MATRIX_PATH, or with docker-compose.yml another folder, RIGHTS_DIR.',
  },
  RIGHTS_FILE_UNWRITABLE: {
    transient: false,
    remedy:
      'Check space and permissions, or name another path with SVC_SOURCE_RIGHTS_MATRIX_PATH. With docker-compose.yml, `docker compose run --rm rights init` writes into RIGHTS_DIR whosever it is.',
  },
  READ_ROLE_REFUSED: {
    transient: false,
    remedy: 'Let a role that may create roles run the statements of `./tidemark rights read-role ROLE --sql`.',
  },
  READ_ROLE_UNSAFE: {
    transient: false,
    remedy: 'Choose another name: callers know the password of this role, so it may do nothing but read.',
  },

  // named keys
  API_KEY_NAME_TAKEN: {
    transient: false,
    remedy:
      'Choose another name. Names of revoked keys stay taken, because exports and the audit log name keys by them; `./tidemark keys rotate` replaces a key that is in use.',
  },
  API_KEY_UNKNOWN: { transient: false, remedy: '`./tidemark keys list` shows the keys.' },
  API_KEY_OVER: { transient: false, remedy: 'Make a new key under another name with `./tidemark keys add`.' },

  INTERNAL_INVARIANT: { transient: false, remedy: 'This is a defect of Tidemark; please report it with the message.' },
} as const satisfies Record<string, { transient: boolean; remedy: string }>;

export type ErrorCode = keyof typeof ERROR_CODES;

/** Facts that locate a fault: document, line, offset, setting, partition ... Values must be safe to show to an operator. */
export type ErrorDetails = Readonly<Record<string, string | number | boolean | bigint | null | undefined>>;

export class TidemarkError extends Error {
  override readonly name = 'TidemarkError';
  readonly code: ErrorCode;
  readonly details: ErrorDetails;

  constructor(code: ErrorCode, message: string, options: { details?: ErrorDetails; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.details = options.details ?? {};
  }

  /** What the operator should do; the same for every error of this code. */
  get remedy(): string {
    return ERROR_CODES[this.code].remedy;
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
