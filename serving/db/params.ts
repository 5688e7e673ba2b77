/** Values that are bound to statements, in PostgreSQL's binary format. */
import { assert } from '../../shared/errors.ts';
import type { PgType } from '../../shared/registry/index.ts';
import type { Param } from './pg-messages.ts';

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
    assert(bytes !== null, 'an array of bound values cannot hold null');
    const length = Buffer.alloc(4);
    length.writeInt32BE(bytes.length);
    parts.push(length, bytes);
  }
  return { oid, bytes: Buffer.concat(parts) };
}
