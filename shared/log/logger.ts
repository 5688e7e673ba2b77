/** Logs go to stderr, one JSON object a line, so that stdout stays the operator's answer. */
import pino, { type Logger } from 'pino';

export type { Logger };

const REDACTED_PATHS = ['*.apiKey', '*.password', '*.authToken', 'apiKey', 'password', 'authToken'];

/** Characters kept while standard error takes nothing; what comes after them is dropped. */
const MAX_UNWRITTEN = 1 << 20;

export function createLogger(level: string, process_: string): Logger {
  const destination = pino.destination({ fd: 2, sync: true, maxLength: MAX_UNWRITTEN });
  // Whoever reads the log has gone, or its disk is full: what is at work goes on.
  destination.on('error', () => {});
  return pino(
    { level, base: { process: process_ }, timestamp: pino.stdTimeFunctions.isoTime, redact: REDACTED_PATHS },
    destination,
  );
}
