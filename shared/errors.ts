/**
 * Every fault that an operator or a caller may meet carries a stable `code`; messages are for people and may change.
 * Codes are declared once, in `shared/errors.ts`, with the sentence that tells what to do about them.
 */

/**
 * The table of operator-facing fault codes: `transient` says whether an unchanged retry can help, `remedy` what to do.
 * HTTP codes are a table of their own (`serving/contract/problems.ts`): they are the public contract.
 */
export const ERROR_CODES = {
  // configuration and usage (exit 2)
  CONFIGURATION_INVALID: { transient: false, remedy: 'Correct the settings named; `.env.example` documents each.' },
  USAGE: { transient: false, remedy: 'Run `./tidemark help` for the commands and their options.' },

  // embedded stack
  STACK_UNSUPPORTED_MACHINE: {
    transient: false,
    remedy: 'Use Debian or Ubuntu with apt, or Docker, or set SVC_DATABASE_URL and SVC_NATS_URL.',
  },
  STACK_INSTALL_FAILED: {
    transient: true,
    remedy: 'See the command named; the network to the package mirror is needed once.',
  },
  STACK_START_FAILED: { transient: true, remedy: 'Read the log file named, in the state folder.' },
  STACK_LOCKED: { transient: true, remedy: 'Another process is starting or stopping the stack of this state folder.' },

  SERVICE_START_FAILED: { transient: true, remedy: 'The log on standard error says what it waits for.' },

  // fetching and reading a vendor document
  SOURCE_NOT_FOUND: {
    transient: false,
    remedy: 'The vendor has not published this document, or the base URL is wrong.',
  },
  SOURCE_UNREACHABLE: { transient: true, remedy: 'Check the network, the vendor and the base URL setting.' },
  SOURCE_REFUSED: {
    transient: false,
    remedy: 'The source says what is wrong with the request, most likely its key: check the setting of the key.',
  },
  SOURCE_TRUNCATED: { transient: true, remedy: 'The document ended early; fetch it again.' },
  SOURCE_CHECKSUM_MISSING: {
    transient: false,
    remedy: 'The vendor publishes a checksum beside each document; it is not there.',
  },
  SOURCE_CHECKSUM_MISMATCH: {
    transient: true,
    remedy: 'The bytes are not those the vendor signed for; fetch them again.',
  },
  SOURCE_ARCHIVE_INVALID: { transient: false, remedy: 'The archive is damaged or not of the documented shape.' },
  SOURCE_TOO_LARGE: {
    transient: false,
    remedy: 'The document exceeds a named limit; docs/limits.md lists them.',
  },
  SPOOL_UNUSABLE: {
    transient: false,
    remedy: 'Downloads are kept in the state folder; check its space and permissions.',
  },
  SOURCE_OUTSIDE_FOLDER: {
    transient: false,
    remedy: 'Put the file itself there, or point the setting at the folder that really holds it.',
  },
  SOURCE_EMPTY: { transient: false, remedy: 'The document holds no rows.' },
  SOURCE_ROW_INVALID: { transient: false, remedy: 'The vendor row named is not of the documented shape.' },
  SOURCE_SEQUENCE_BROKEN: {
    transient: false,
    remedy: 'The ids of the document do not follow each other as its source has them; fetch it again.',
  },
  SOURCE_ROW_CONFLICT: {
    transient: false,
    remedy: 'Two rows of the document claim one id with different content; ask the vendor which is right.',
  },
  SOURCE_LAYOUT_UNKNOWN: {
    transient: false,
    remedy: 'The document is not of the layout its adapter reads, or a page in its place; nothing was written.',
  },
  SOURCE_LINK_INVALID: {
    transient: false,
    remedy: 'The endpoint that tells where documents are did not name the one asked for; check its URL setting.',
  },
  SOURCE_OUTSIDE_PARTITION: { transient: false, remedy: 'The row is outside the time range of its partition.' },

  // a Bitcoin node
  NODE_UNREACHABLE: { transient: true, remedy: 'Check that the node runs and SVC_BITCOIN_RPC_URL; then ask again.' },
  NODE_ANSWER_CUT: { transient: true, remedy: 'The connection to the node broke inside of an answer; ask again.' },
  NODE_CREDENTIALS_REFUSED: {
    transient: false,
    remedy: 'Check SVC_BITCOIN_RPC_USER and SVC_BITCOIN_RPC_PASSWORD.',
  },
  NODE_CHAIN_MISMATCH: {
    transient: false,
    remedy: 'SVC_BITCOIN_NETWORK names another chain than the node has; correct one of them.',
  },
  NODE_PRUNED: { transient: false, remedy: 'A node that keeps every block is needed: run it with prune=0.' },
  NODE_HEIGHT_BEYOND_TIP: {
    transient: true,
    remedy: 'The node has not come so far, or SVC_BITCOIN_CONFIRMATION_DEPTH keeps these blocks back; ask again later.',
  },
  NODE_UNDO_MISSING: {
    transient: false,
    remedy: 'The node cannot tell what these inputs spent; it needs version 23 or newer and its undo data (-reindex).',
  },
  NODE_BLOCK_INVALID: {
    transient: false,
    remedy: 'The block named is not what its hash says; the node or what is in front of it is at fault.',
  },
  NODE_ANSWER_INVALID: {
    transient: false,
    remedy: 'The answer is not of the shape a Bitcoin node gives; check SVC_BITCOIN_RPC_URL and its version.',
  },
  NODE_CALL_REFUSED: { transient: false, remedy: 'The node refused the call for the reason in the message.' },
  CHAIN_REORGANISED: {
    transient: true,
    remedy: 'Blocks that were there are no longer in the chain; `./tidemark status` shows the heights to re-ingest.',
  },

  // the log
  LOG_UNAVAILABLE: { transient: true, remedy: 'nats-server is not answering; check SVC_NATS_URL.' },
  LOG_ACCOUNT_REFUSED: {
    transient: false,
    remedy: 'Set SVC_NATS_OPERATOR_URL to an account that makes streams, and run `./tidemark migrate`.',
  },
  LOG_FULL: {
    transient: true,
    remedy: 'The stream reached its byte limit; raise SVC_STREAM_MAX_BYTES, then run the same command again.',
  },
  LOG_STORAGE_SHORT: {
    transient: false,
    remedy: 'Streams reserve their limit: lower SVC_STREAM_MAX_BYTES, or give nats-server a larger store.',
  },
  LOG_CONFLICT: { transient: false, remedy: 'The log holds another frame at this place; a new attempt is needed.' },
  LOG_FRAME_CORRUPT: { transient: false, remedy: 'A stored frame does not match its digest; re-ingest the partition.' },
  LOG_GAP: { transient: true, remedy: 'The projector starts again at its checkpoint by itself.' },
  LOG_REWOUND: {
    transient: false,
    remedy:
      'The stream is not the one the checkpoint was taken on: `./tidemark recover` puts the two in step and names what the log lost.',
  },
  LOG_PARTITION_LOST: {
    transient: false,
    remedy:
      'The log lost this partition, which is served all the same; `./tidemark reingest ... --reason` puts it there again.',
  },
  LOG_STREAM_MISCONFIGURED: {
    transient: false,
    remedy: 'The stream exists with other settings than the immutable log needs.',
  },

  // partitions
  PARTITION_LATE_ARRIVAL: {
    transient: false,
    remedy:
      'The partition is proved with other content. `./tidemark reingest ... --reason` replaces it as a new revision.',
  },
  PARTITION_PROOF_FAILED: {
    transient: false,
    remedy: 'The partition is quarantined; `./tidemark status` shows expected and found.',
  },
  INTERRUPTED: { transient: true, remedy: 'Run the same command again; it goes on where it stopped.' },
  PARTITION_UNKNOWN: { transient: false, remedy: '`./tidemark status` lists the partitions there are.' },
  PARTITION_OVERLAPS: {
    transient: false,
    remedy: 'Ask for the heights of the partition named; a quarantined one gives way to `./tidemark reingest`.',
  },
  PARTITION_CHANGED: { transient: true, remedy: 'The partition was revised while it was read; run the command again.' },
  PARTITION_TIMEOUT: {
    transient: true,
    remedy: 'No projector proved the partition in time; run the same command again.',
  },
  PROJECTOR_FAILED: {
    transient: false,
    remedy: 'Mend what the message names, then run the same command again; what the log holds already is not lost.',
  },
  EVENT_UNKNOWN: { transient: false, remedy: 'Check the offset; `./tidemark status` shows what is proved.' },
  EVENT_AMBIGUOUS: { transient: false, remedy: 'Name the partition with --partition.' },
  PUBLISHER_LEASE_HELD: {
    transient: true,
    remedy: 'Another process is publishing this dataset; it is named in the message.',
  },
  WORK_HELD: {
    transient: true,
    remedy: 'The same work is being done by the process named in the message; wait for it, or stop it.',
  },
  PUBLISHER_LEASE_LOST: {
    transient: true,
    remedy: 'The connection that held the lease was lost; the same command goes on where it stopped.',
  },

  // storage
  DATABASE_UNAVAILABLE: { transient: true, remedy: 'PostgreSQL is not answering; check SVC_DATABASE_URL.' },
  DATABASE_UNSUPPORTED: {
    transient: false,
    remedy: 'Give Tidemark a PostgreSQL 17 with a supported TimescaleDB; docs/dependencies.md names the versions.',
  },
  MIGRATION_NOT_ALLOWED: {
    transient: false,
    remedy: 'Run `./tidemark migrate` with SVC_DATABASE_OWNER_URL; this role may not change the schema.',
  },
  MIGRATION_FAILED: { transient: false, remedy: 'The statement named failed; nothing of that migration was applied.' },
  MIGRATION_DRIFT: { transient: false, remedy: 'An applied migration file was changed afterwards; restore it.' },
  RIGHTS_FILE_EXISTS: {
    transient: false,
    remedy: 'Change the files that are there, or name another place with SVC_SOURCE_RIGHTS_MATRIX_PATH.',
  },
  RIGHTS_FILE_UNWRITABLE: {
    transient: false,
    remedy: 'Check space and permissions, or name another place with SVC_SOURCE_RIGHTS_MATRIX_PATH.',
  },
  READ_ROLE_REFUSED: {
    transient: false,
    remedy: 'Have the statements of `./tidemark read-role ROLE --sql` run by whoever may make roles.',
  },
  READ_ROLE_UNSAFE: {
    transient: false,
    remedy: 'A role whose password callers know may do nothing but read; take another name.',
  },

  INTERNAL_INVARIANT: { transient: false, remedy: 'This is a defect; please report it with the message.' },
} as const satisfies Record<string, { transient: boolean; remedy: string }>;

export type ErrorCode = keyof typeof ERROR_CODES;

/** Facts that place a fault: document, line, offset, setting, partition ... Values must be safe to show to an operator. */
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

  /** What to do about it; the same for every fault of this code. */
  get remedy(): string {
    return ERROR_CODES[this.code].remedy;
  }

  /** Whether trying the same thing again, unchanged, can help. */
  get transient(): boolean {
    return ERROR_CODES[this.code].transient;
  }
}

/** The code of any thrown value, or undefined for faults that are not ours. */
export function codeOf(error: unknown): ErrorCode | undefined {
  return error instanceof TidemarkError ? error.code : undefined;
}

/** One line for a person: message, then the chain of causes. */
export function explain(error: unknown): string {
  const parts: string[] = [];
  for (let at: unknown = error, depth = 0; at !== undefined && at !== null && depth < 5; depth++) {
    parts.push(at instanceof Error ? at.message || at.name : String(at));
    at = at instanceof Error ? at.cause : undefined;
  }
  return parts.join(': ');
}

/** An invariant of ours does not hold: a bug, never bad input. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new TidemarkError('INTERNAL_INVARIANT', message);
}

/* Telling that a store is away: its drivers report a lost connection as a bare Error, at whatever was being asked. */

/** Texts of the PostgreSQL driver for a connection that ended under a query or before one. */
const DATABASE_LOST = /Connection terminated|not queryable|Connection ended|Client was closed|trying to connect/;
/** PostgreSQL: shutdown and start-up, connection faults, no room for another connection. */
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

/** The code of the store that is away, if that is what the error says. */
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
