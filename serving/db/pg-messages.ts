/**
 * Messages of PostgreSQL's extended query protocol: those that reads send and receive.
 * Format: PostgreSQL documentation, "Message Formats".
 */

/** A bound value in binary. It never becomes part of the SQL text, so it needs no escaping. */
export interface Param {
  readonly oid: number;
  readonly bytes: Buffer | null;
}

export interface Statement {
  readonly text: string;
  readonly params?: readonly Param[];
  /** Whether the connection prepares the statement. For the few texts that recur often. */
  readonly prepared?: boolean;
}

export const FROM_SERVER = {
  dataRow: 0x44, // D
  commandComplete: 0x43, // C
  readyForQuery: 0x5a, // Z
  error: 0x45, // E
  rowDescription: 0x54, // T
  emptyQuery: 0x49, // I
} as const;

export const SYNC = Buffer.from([0x53, 0, 0, 0, 4]);
export const TERMINATE = Buffer.from([0x58, 0, 0, 0, 4]);
const EXECUTE_ALL = Buffer.from([0x45, 0, 0, 0, 9, 0, 0, 0, 0, 0]);
const DESCRIBE_PORTAL = Buffer.from([0x44, 0, 0, 0, 6, 0x50, 0]);

const CANCEL_REQUEST_CODE = 80_877_102;

/** Bind and Execute, preceded by Parse if the connection has not prepared the statement under its name. */
export function encodeStatement(
  statement: Statement,
  options: { readonly name: string; readonly parse: boolean; readonly binary: boolean; readonly describe: boolean },
): Buffer {
  const { params = [] } = statement;
  const { name } = options;
  const parts: Buffer[] = [];
  if (options.parse) {
    const oids = Buffer.alloc(2 + params.length * 4);
    oids.writeInt16BE(params.length, 0);
    params.forEach((param, index) => {
      oids.writeInt32BE(param.oid, 2 + index * 4);
    });
    parts.push(message(0x50, cString(name), cString(statement.text), oids));
  }
  const values: Buffer[] = [];
  for (const { bytes } of params) {
    const length = Buffer.alloc(4);
    length.writeInt32BE(bytes === null ? -1 : bytes.length, 0);
    values.push(length);
    if (bytes) values.push(bytes);
  }
  const count = Buffer.alloc(2);
  count.writeInt16BE(params.length, 0);
  const resultFormat = Buffer.from([0, 1, 0, options.binary ? 1 : 0]);
  // Unnamed portal, statement, "all parameters binary", their number, the values, "all results binary" or text.
  parts.push(message(0x42, cString(''), cString(name), Buffer.from([0, 1, 0, 1]), count, ...values, resultFormat));
  if (options.describe) parts.push(DESCRIBE_PORTAL);
  parts.push(EXECUTE_ALL);
  return Buffer.concat(parts);
}

/** Deallocates a prepared statement. */
export const encodeClose = (name: string): Buffer => message(0x43, Buffer.from('S'), cString(name));

/** The request, sent on a separate connection, that cancels what a backend is running. */
export function encodeCancel(processId: number, secretKey: number): Buffer {
  const bytes = Buffer.alloc(16);
  bytes.writeInt32BE(16, 0);
  bytes.writeInt32BE(CANCEL_REQUEST_CODE, 4);
  bytes.writeInt32BE(processId, 8);
  bytes.writeInt32BE(secretKey, 12);
  return bytes;
}

/** The fields of an ErrorResponse by their letter: S severity, C SQLSTATE, M message ... */
export function decodeError(bytes: Buffer): Record<string, string> {
  const fields: Record<string, string> = {};
  let at = 0;
  while (at < bytes.length && bytes[at] !== 0) {
    const end = bytes.indexOf(0, at + 1);
    fields[String.fromCharCode(bytes[at])] = bytes.toString('utf8', at + 1, end);
    at = end + 1;
  }
  return fields;
}

/** The type OIDs of a RowDescription's columns. */
export function decodeColumnOids(bytes: Buffer): number[] {
  const oids: number[] = [];
  const columns = bytes.readInt16BE(0);
  let at = 2;
  for (let i = 0; i < columns; i++) {
    at = bytes.indexOf(0, at) + 1;
    oids.push(bytes.readInt32BE(at + 6));
    at += 18;
  }
  return oids;
}

function message(code: number, ...parts: readonly Buffer[]): Buffer {
  const head = Buffer.alloc(5);
  head[0] = code;
  head.writeInt32BE(
    parts.reduce((sum, part) => sum + part.length, 4),
    1,
  );
  return Buffer.concat([head, ...parts]);
}

const cString = (text: string) => Buffer.from(`${text}\0`);
