/**
 * Sizes, times and counts that no operator has to change: constants, in one object that each process is handed with its settings,
 * because tests compose processes with smaller ones. `docs/limits.md` lists those that a user or operator can meet.
 */
const MIB = 1024 * 1024;

export const LIMITS = {
  /** A source that sends nothing for this long is asked again. */
  sourceTimeoutMs: 60_000,
  /** Tries for one document, or one call of a node, with growing pauses between them. */
  sourceAttempts: 4,
  /** Largest document that is downloaded: far above an exchange's busiest day. It bounds what a wrong answer takes of the disk. */
  documentBytes: 4096 * MIB,
  /** Largest member of an archive, unpacked; a larger one is a bomb. */
  unpackedBytes: 65_536 * MIB,
  /** Largest unpacked day of exchange C: its rows come in any order, and are sorted in the spool folder. */
  sortBytes: 2048 * MIB,
  /** A followed exchange is asked again for this many of its last days, because vendors replace documents. */
  recheckDays: 7,
  /** A followed issuer or series is asked this often: they publish once a day at most. */
  metricsEveryMs: 4 * 3_600_000,
  /** A followed node is asked for new blocks this often: blocks come every ten minutes, and the question costs nothing. */
  nodePollMs: 5000,
  /** Calls to a node at once: one is answered while another is decoded and one is on its way. */
  nodeCalls: 3,
  /**
   * Event bytes of a frame before compression. Compressed, they must fit into a message (MAX_MESSAGE_BYTES); digests do not depend on
   * it.
   */
  frameRawBytes: MIB,
  /** Frames that the publisher sends before the log has acknowledged them: enough that it never waits for a single one. */
  publishWindow: 32,
  /** Bytes that the projector requests from the log at once: a few messages, so that the next ones arrive while it works. */
  pullBytes: 8 * MIB,
  /** The projector rolls an attempt back that sends no frame for this long, and reads it again when further frames come. */
  attemptSilenceMs: 30_000,
  /** While a projector runs, a checkpoint of the proof log is signed at most this long after a partition is proved. */
  checkpointMs: 2000,
  /** While nothing is proved, the last checkpoint is signed again this often, with the time. */
  refreshMs: 300_000,
  /** After a rotation checkpoints carry the signature of the key before for this long, for those who do not know of it yet. */
  bothKeysMs: 7 * 86_400_000,
  /** The projector that compacts looks for chunks that have become old enough this often. */
  compactEveryMs: 600_000,
  /** Chunks that ended later than this stay in rows: late blocks and revisions still come, and reads of the newest rows are fastest there. */
  columnsAfterDays: 1,
  /** Chunks of which a partition was proved since stay in rows, too: a backfill may be filling them. */
  columnsQuietMs: 600_000,

  /**
   * Connections with a request in progress, far above the reads that run and wait. Above this number the service answers health and
   * metrics only.
   */
  connections: 1024,
  /** Discovery requests running and waiting: a fraction of a second each, and of no use later than that. */
  discoveryRunning: 4,
  discoveryWaiting: 64,
  /** Longest wait for the slot of a read: callers repeat after a 503. */
  queueMs: 10_000,
  /**
   * Time of a read until its first row, and from one row to the next; the time that the client takes to read does not count. What
   * takes longer is an export.
   */
  firstRowMs: 30_000,
  nextRowMs: 60_000,
  /** A filtered search of fewer rows reads them all: to look up first which granules it can leave out takes as long. */
  granuleLookupRows: 100_000,
  /** A client that takes no bytes for this long loses its connection, its slot and its database backend. */
  stallMs: 60_000,
  /** An event stream without a change gets a comment this often, below the time-outs of proxies, so that both ends notice a lost connection. */
  heartbeatMs: 15_000,

  /** An export whose partitions hold more rows becomes one file a UTC day: a month of the busiest dataset is one file. */
  exportSplitRows: 250_000_000,
  /** A worker that does not renew its lease for this long counts as dead, and another one starts its export again. All workers agree. */
  exportLeaseMs: 30_000,
  /** An export fails when its worker has died this often while it ran; orderly stops and outages do not count. */
  exportCrashes: 5,

  /** A lake that is followed commits to a table at most this often; withdrawals do not wait. */
  lakeCommitMs: 60_000,
  /** What a revision replaces in a lake stays for this long, and the versions that have it. */
  lakeKeepMs: 7 * 86_400_000,
};

export type Limits = Readonly<typeof LIMITS>;
