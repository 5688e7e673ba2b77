/** The logger: one JSON object a line on stderr, or to a destination that a command gives. stdout is for results. */

import type { Logger } from 'pino';
import pino from 'pino';

export type { Logger };

const REDACTED_PATHS = ['*.apiKey', '*.password', '*.authToken', 'apiKey', 'password', 'authToken'];

/** Characters buffered while standard error accepts none; the logger drops what exceeds them. */
const MAX_UNWRITTEN = 1 << 20;

/** @param destination receives each line in place of standard error. */
export function createLogger(level: string, process_: string, destination?: { write(line: string): void }): Logger {
  return pino(
    { level, base: { process: process_ }, timestamp: pino.stdTimeFunctions.isoTime, redact: REDACTED_PATHS },
    destination ?? standardError(),
  );
}

function standardError() {
  const destination = pino.destination({ fd: 2, sync: true, maxLength: MAX_UNWRITTEN });
  // The reader of the log has gone, or its disk is full: the process continues without the log.
  destination.on('error', () => {});
  return destination;
}
