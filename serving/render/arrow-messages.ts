/**
 * Messages of the Arrow IPC stream: their Flatbuffers as the format's Schema.fbs and Message.fbs declare them. The numbers are
 * those of the declarations: slots of tables, members of unions.
 */
import { Builder } from 'flatbuffers';

export type ArrowType = 'int64' | 'float64' | 'int8' | 'timestamp_ms_utc' | 'utf8';

export type Metadata = readonly (readonly [key: string, value: string])[];

export interface ArrowField {
  readonly name: string;
  readonly type: ArrowType;
  readonly nullable: boolean;
  readonly metadata: Metadata;
}

/** One column of a batch: its number of nulls, and the lengths of its buffers. */
export interface BatchColumn {
  readonly nulls: number;
  readonly lengths: readonly number[];
}

const VERSION_V5 = 4;
const HEADER = { schema: 1, recordBatch: 3 } as const;
const PRECISION_DOUBLE = 2;
const UNIT_MILLISECOND = 1;
/** Buffers and messages start at multiples of this. */
const ALIGNMENT = 8;
const CONTINUATION = 0xffffffff;

export const padded = (length: number): number => Math.ceil(length / ALIGNMENT) * ALIGNMENT;

/** The marker after the last message. Readers take a stream without it for whole all the same. */
export const END_OF_STREAM = Buffer.from([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);

const TYPES: Readonly<Record<ArrowType, { readonly member: number; write(builder: Builder): number }>> = {
  int64: { member: 2, write: (builder) => intType(builder, 64) },
  int8: { member: 2, write: (builder) => intType(builder, 8) },
  float64: {
    member: 3,
    write(builder) {
      builder.startObject(1);
      builder.addFieldInt16(0, PRECISION_DOUBLE, 0);
      return builder.endObject();
    },
  },
  utf8: {
    member: 5,
    write(builder) {
      builder.startObject(0);
      return builder.endObject();
    },
  },
  timestamp_ms_utc: {
    member: 10,
    write(builder) {
      const zone = builder.createString('UTC');
      builder.startObject(2);
      builder.addFieldInt16(0, UNIT_MILLISECOND, 0);
      builder.addFieldOffset(1, zone, 0);
      return builder.endObject();
    },
  },
};

function intType(builder: Builder, bits: number): number {
  builder.startObject(2);
  builder.addFieldInt32(0, bits, 0);
  builder.addFieldInt8(1, 1, 0);
  return builder.endObject();
}

export function schemaMessage(fields: readonly ArrowField[], metadata: Metadata): Uint8Array {
  const builder = new Builder(2048);
  const written = offsets(
    builder,
    fields.map((field) => writeField(builder, field)),
  );
  const pairs = writeMetadata(builder, metadata);
  builder.startObject(4);
  // Slot 0, the byte order, is little-endian by default.
  builder.addFieldOffset(1, written, 0);
  builder.addFieldOffset(2, pairs, 0);
  return message(builder, HEADER.schema, builder.endObject(), 0);
}

function writeField(builder: Builder, { name, type, nullable, metadata }: ArrowField): number {
  const nameAt = builder.createString(name);
  const { member, write } = TYPES[type];
  const typeAt = write(builder);
  // Readers require the list of children even when it is empty.
  const children = offsets(builder, []);
  const pairs = writeMetadata(builder, metadata);
  builder.startObject(7);
  builder.addFieldOffset(0, nameAt, 0);
  builder.addFieldInt8(1, nullable ? 1 : 0, 0);
  builder.addFieldInt8(2, member, 0);
  builder.addFieldOffset(3, typeAt, 0);
  builder.addFieldOffset(5, children, 0);
  builder.addFieldOffset(6, pairs, 0);
  return builder.endObject();
}

function writeMetadata(builder: Builder, metadata: Metadata): number {
  const pairs = metadata.map(([key, value]) => {
    const keyAt = builder.createString(key);
    const valueAt = builder.createString(value);
    builder.startObject(2);
    builder.addFieldOffset(0, keyAt, 0);
    builder.addFieldOffset(1, valueAt, 0);
    return builder.endObject();
  });
  return offsets(builder, pairs);
}

/** A vector of tables. */
function offsets(builder: Builder, tables: readonly number[]): number {
  builder.startVector(4, tables.length, 4);
  for (const table of tables.toReversed()) builder.addOffset(table);
  return builder.endVector();
}

/** The header of a batch. Each buffer of the batch's body starts at a multiple of ALIGNMENT. */
export function recordBatchMessage(rows: number, columns: readonly BatchColumn[], metadata: Metadata = []): Uint8Array {
  const builder = new Builder(1024);
  const buffers: [at: number, length: number][] = [];
  let bodyBytes = 0;
  for (const length of columns.flatMap((column) => column.lengths)) {
    buffers.push([bodyBytes, length]);
    bodyBytes += padded(length);
  }
  const nodes = pairs(
    builder,
    columns.map(({ nulls }) => [rows, nulls]),
  );
  const locations = pairs(builder, buffers);
  const ofMessage = metadata.length > 0 ? writeMetadata(builder, metadata) : 0;
  builder.startObject(5);
  builder.addFieldInt64(0, BigInt(rows), 0n);
  builder.addFieldOffset(1, nodes, 0);
  builder.addFieldOffset(2, locations, 0);
  return message(builder, HEADER.recordBatch, builder.endObject(), bodyBytes, ofMessage);
}

/** A vector of structs of two 64-bit numbers each: FieldNode, Buffer. */
function pairs(builder: Builder, list: readonly (readonly [number, number])[]): number {
  builder.startVector(16, list.length, 8);
  for (const [first, second] of list.toReversed()) {
    builder.prep(8, 16);
    builder.writeInt64(BigInt(second));
    builder.writeInt64(BigInt(first));
  }
  return builder.endVector();
}

/** The Flatbuffer with its length before and its padding after it. @param metadata of the message itself; 0: none */
function message(builder: Builder, type: number, header: number, bodyBytes: number, metadata = 0): Uint8Array {
  builder.startObject(5);
  builder.addFieldInt16(0, VERSION_V5, 0);
  builder.addFieldInt8(1, type, 0);
  builder.addFieldOffset(2, header, 0);
  builder.addFieldInt64(3, BigInt(bodyBytes), 0n);
  builder.addFieldOffset(4, metadata, 0);
  builder.finish(builder.endObject());
  const table = builder.asUint8Array();
  const bytes = Buffer.alloc(8 + padded(table.length));
  bytes.writeUInt32LE(CONTINUATION, 0);
  bytes.writeInt32LE(padded(table.length), 4);
  bytes.set(table, 8);
  return bytes;
}
