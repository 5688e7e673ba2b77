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
};

export type Limits = Readonly<typeof LIMITS>;
