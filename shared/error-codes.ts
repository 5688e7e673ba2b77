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
    remedy: 'The document exceeds a named limit; see docs/architecture.md, limits.',
  },
  SPOOL_UNUSABLE: {
    transient: false,
    remedy: 'Downloads are kept in the state folder; check its space and permissions.',
  },
  SOURCE_EMPTY: { transient: false, remedy: 'The document holds no rows.' },
  SOURCE_ROW_INVALID: { transient: false, remedy: 'The vendor row named is not of the documented shape.' },
  SOURCE_SEQUENCE_BROKEN: { transient: false, remedy: 'Offsets must be contiguous within this document.' },
  SOURCE_ROW_CONFLICT: {
    transient: false,
    remedy: 'Two rows of the document claim one id with different content; ask the vendor which is right.',
  },
  SOURCE_LINK_INVALID: {
    transient: false,
    remedy: 'The endpoint that tells where documents are did not name the one asked for; check its URL setting.',
  },
  SOURCE_OUTSIDE_PARTITION: { transient: false, remedy: 'The row is outside the time range of its partition.' },

  // the log
  LOG_UNAVAILABLE: { transient: true, remedy: 'nats-server is not answering; check SVC_NATS_URL.' },
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
    remedy: 'The stream is not the one the checkpoint was taken on; see docs/architecture.md, recovery.',
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
  PARTITION_CHANGED: { transient: true, remedy: 'The partition was revised while it was read; run the command again.' },
  PARTITION_TIMEOUT: {
    transient: true,
    remedy: 'No projector proved the partition in time; run the same command again.',
  },
  EVENT_UNKNOWN: { transient: false, remedy: 'Check the offset; `./tidemark status` shows what is proved.' },
  EVENT_AMBIGUOUS: { transient: false, remedy: 'Name the partition with --partition.' },
  PUBLISHER_LEASE_HELD: {
    transient: true,
    remedy: 'Another process is publishing this dataset; it is named in the message.',
  },
  PROJECTOR_STOPPED: { transient: true, remedy: 'The projector ended; its log tells why.' },

  // storage
  DATABASE_UNAVAILABLE: { transient: true, remedy: 'PostgreSQL is not answering; check SVC_DATABASE_URL.' },
  MIGRATION_FAILED: { transient: false, remedy: 'The statement named failed; nothing of that migration was applied.' },
  MIGRATION_DRIFT: { transient: false, remedy: 'An applied migration file was changed afterwards; restore it.' },

  INTERNAL_INVARIANT: { transient: false, remedy: 'This is a defect; please report it with the message.' },
} as const satisfies Record<string, { transient: boolean; remedy: string }>;

export type ErrorCode = keyof typeof ERROR_CODES;
