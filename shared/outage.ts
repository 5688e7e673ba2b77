/** Telling that a store is away: its drivers report a lost connection as a bare Error, at whatever was being asked. */
import type { ErrorCode } from './error-codes.ts';

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
