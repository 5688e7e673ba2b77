/** Logs go to stderr, one JSON object a line, so that stdout stays the operator's answer. */
import pino, { type Logger } from 'pino';

export type { Logger };

const REDACTED_PATHS = ['*.apiKey', '*.password', '*.authToken', 'apiKey', 'password', 'authToken'];

export function createLogger(level: string, process_: string): Logger {
  return pino(
    { level, base: { process: process_ }, timestamp: pino.stdTimeFunctions.isoTime, redact: REDACTED_PATHS },
    pino.destination({ fd: 2, sync: true }),
  );
}
