/** Logs go to stderr, or where a command takes them, one JSON object a line: stdout stays the operator's answer. */

import type { Logger } from 'pino';
import pino from 'pino';

export type { Logger };

const REDACTED_PATHS = ['*.apiKey', '*.password', '*.authToken', 'apiKey', 'password', 'authToken'];

/** Characters kept while standard error takes nothing; what comes after them is dropped. */
const MAX_UNWRITTEN = 1 << 20;

/** @param taker of each line, in place of standard error. */
export function createLogger(level: string, process_: string, taker?: { write(line: string): void }): Logger {
  return pino(
    { level, base: { process: process_ }, timestamp: pino.stdTimeFunctions.isoTime, redact: REDACTED_PATHS },
    taker ?? standardError(),
  );
}

function standardError() {
  const destination = pino.destination({ fd: 2, sync: true, maxLength: MAX_UNWRITTEN });
  // Whoever reads the log has gone, or its disk is full: what is at work goes on.
  destination.on('error', () => {});
  return destination;
}
