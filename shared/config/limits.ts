/**
 * Sizes, times and counts that no operator has to change: constants, in one object that each process is handed with its settings,
 * because tests compose processes with smaller ones. `docs/limits.md` lists those that a user or operator can meet.
 */
const MIB = 1024 * 1024;

export const LIMITS = {
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
