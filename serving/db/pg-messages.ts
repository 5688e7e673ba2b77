/** The values that statements bind, in PostgreSQL's binary format; and what its answers say. */
import { assert } from '../../shared/errors.ts';
import type { PgType } from '../../shared/registry/index.ts';

/** Milliseconds from 1970-01-01 to 2000-01-01, the epoch of timestamptz. */
export const POSTGRES_EPOCH_MS = 946_684_800_000;

export const OID = {
  bool: 16,
  bytea: 17,
  int8: 20,
  int2: 21,
  int4: 23,
  text: 25,
  float8: 701,
  timestamptz: 1184,
  uuid: 2950,
} as const satisfies Record<PgType, number>;

/** Array types by element type. */
const ARRAY_OID: Readonly<Record<number, number>> = {
  [OID.int8]: 1016,
  [OID.int4]: 1007,
  [OID.text]: 1009,
  [OID.float8]: 1022,
  [OID.timestamptz]: 1185,
  [OID.uuid]: 2951,
};

/** Collects the parameters of one statement. */
export class Params {
  readonly list: Param[] = [];

  /** @returns the placeholder. */
  add(param: Param): string {
    this.list.push(param);
    return `$${this.list.length}`;
  }
}

export function int8(value: number | bigint): Param {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(BigInt(value));
  return { oid: OID.int8, bytes };
}

export function int4(value: number): Param {
  const bytes = Buffer.alloc(4);
  bytes.writeInt32BE(value);
  return { oid: OID.int4, bytes };
}

export function int2(value: number): Param {
  const bytes = Buffer.alloc(2);
  bytes.writeInt16BE(value);
  return { oid: OID.int2, bytes };
}

export function float8(value: number): Param {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleBE(value);
  return { oid: OID.float8, bytes };
}

export const bool = (value: boolean): Param => ({ oid: OID.bool, bytes: Buffer.from([value ? 1 : 0]) });

export const text = (value: string): Param => ({ oid: OID.text, bytes: Buffer.from(value) });

export const uuid = (value: string): Param => ({ oid: OID.uuid, bytes: Buffer.from(value.replaceAll('-', ''), 'hex') });

export function timestamptz(ms: number): Param {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE((BigInt(ms) - BigInt(POSTGRES_EPOCH_MS)) * 1000n);
  return { oid: OID.timestamptz, bytes };
}

/** An array of at least one scalar; all elements have one type and none is null. */
export function array(elements: readonly Param[]): Param {
  const oid = ARRAY_OID[elements[0]?.oid];
  assert(oid !== undefined, 'there is no array type for elements of this type');
  const head = Buffer.alloc(20);
  head.writeInt32BE(1, 0); // dimensions
  head.writeInt32BE(0, 4); // no nulls
  head.writeInt32BE(elements[0].oid, 8);
  head.writeInt32BE(elements.length, 12);
  head.writeInt32BE(1, 16); // lower bound
  const parts: Buffer[] = [head];
  for (const { bytes } of elements) {
    const length = Buffer.alloc(4);
    length.writeInt32BE(bytes.length);
    parts.push(length, bytes);
  }
  return { oid, bytes: Buffer.concat(parts) };
}

/** A bound value in binary. It never becomes part of the SQL text, so it needs no escaping. */
export interface Param {
  readonly oid: number;
  readonly bytes: Buffer;
}

export interface Statement {
  readonly text: string;
  readonly params?: readonly Param[];
  /** Whether the connection prepares the statement. For the few texts that recur often. */
  readonly prepared?: boolean;
  /** The statement may read rows in any order and sort them, with so many parallel workers; undefined where it must not. */
  readonly sorted?: { readonly workers: number };
}

export const FROM_SERVER = {
  dataRow: 0x44, // D
  commandComplete: 0x43, // C
  readyForQuery: 0x5a, // Z
  error: 0x45, // E
  rowDescription: 0x54, // T
  emptyQuery: 0x49, // I
} as const;

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

/** An error of the server, by SQLSTATE. Its text goes to the log, never to a caller. */
export class ServerFault extends Error {
  override readonly name = 'ServerFault';
  readonly sqlState: string;

  constructor(fields: Record<string, string>) {
    super(fields.M ?? 'the server reported an unknown error');
    this.sqlState = fields.C ?? '';
  }
}

/** The columns of a result do not have the declared types. */
export class ColumnTypeFault extends Error {
  override readonly name = 'ColumnTypeFault';
}

/** @throws ColumnTypeFault */
export function checkOids(found: readonly number[], expected: readonly number[]): void {
  const fits = found.length === expected.length && found.every((oid, index) => oid === expected[index]);
  if (!fits) throw new ColumnTypeFault(`the columns have types ${found.join(',')}, declared are ${expected.join(',')}`);
}
