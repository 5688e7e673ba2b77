/** Rows of any columns as PostgreSQL sends them, beside what each cell must be shown as. */
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { POSTGRES_EPOCH_MS } from '../../serving/db/pg-messages.ts';
import { END_OF_STREAM } from '../../serving/render/arrow-messages.ts';
import type { RowWriter } from '../../serving/render/cells.ts';
import { BUFFER_BYTES, CELL, type Column, cellOf, OutputBuffer, type RowShape } from '../../serving/render/cells.ts';
import type { Representation } from '../../serving/render/representations.ts';
import type { Dtype, PgType } from '../../shared/registry/index.ts';

/** A cell: its bytes, and its text. */
export interface GeneratedCell {
  readonly bytes: Buffer;
  readonly text: string;
}

export interface GeneratedRow {
  readonly cells: readonly (GeneratedCell | null)[];
  /** Where validity is told by the next row: when this one begins, and when it ends. */
  readonly fromMs: number;
  readonly toMs: number;
}

export interface GeneratedRows {
  readonly shape: RowShape;
  readonly rows: readonly GeneratedRow[];
  /** Rows before which everything written so far is handed on, as the clock does. */
  readonly flushBefore: ReadonlySet<number>;
}

const sized = (length: number, write: (bytes: Buffer) => void): Buffer => {
  const bytes = Buffer.alloc(length);
  write(bytes);
  return bytes;
};

const int8 = (value: bigint) => sized(8, (bytes) => bytes.writeBigInt64BE(value));

const NEAR = [
  0n,
  -1n,
  2n ** 31n,
  -(2n ** 31n) - 1n,
  2n ** 32n,
  2n ** 53n,
  2n ** 53n + 1n,
  2n ** 63n - 1n,
  -(2n ** 63n),
];
/** Of any characters. A string whose unit is `binary` makes a table of all of them first, for two seconds. */
export function anyText(maxLength: number): fc.Arbitrary<string> {
  const character = fc.oneof(fc.nat(0x7f), fc.nat(0xffff), fc.nat(0x10ffff)).map((code) => String.fromCodePoint(code));
  return fc.array(character, { maxLength }).map((characters) => characters.join('').toWellFormed());
}

const integers = fc.oneof(
  fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
  fc.maxSafeInteger().map(BigInt),
  fc.constantFrom(...NEAR),
);
const FIRST_MS = Date.parse('0001-01-01T00:00:00Z');
const LAST_MS = Date.parse('9999-12-31T23:59:59.999Z');
const instants = fc.oneof(
  fc.integer({ min: FIRST_MS, max: LAST_MS }),
  fc.constantFrom(FIRST_MS, -1, 0, POSTGRES_EPOCH_MS, POSTGRES_EPOCH_MS - 1, LAST_MS),
);
/** Everything that has a meaning in one of the formats. PostgreSQL has no NUL in texts; readers drop a leading byte order mark. */
export const HOSTILE_TEXTS = [
  '',
  ' ',
  '""',
  '"',
  ',',
  '\n',
  '\r\n',
  '\r',
  'a,b',
  'a"b',
  '"a"',
  '\\',
  '\\N',
  '\\"',
  'null',
  'NULL',
  'NaN',
  '0',
  '#x',
  "'",
  ';',
  '\t',
  '\u0001',
  '\u007f',
  '\u2028',
  'a\ufeffb',
  'é',
  '🦊',
  '\ufffd',
  '{"a":"b,\\"c\\""}',
  '=1+1',
  '\\u0000',
  'x'.repeat(300),
];
const texts = fc.oneof(
  anyText(60).map((text) => text.replaceAll(/\0|^\ufeff+/g, '')),
  fc.constantFrom(...HOSTILE_TEXTS),
  fc.array(fc.constantFrom(...HOSTILE_TEXTS), { maxLength: 4 }).map((parts) => parts.join('')),
);

const KINDS: readonly { readonly dtype: Dtype; readonly pg: PgType; readonly of: fc.Arbitrary<GeneratedCell> }[] = [
  { dtype: 'int64', pg: 'int8', of: integers.map((value) => ({ bytes: int8(value), text: String(value) })) },
  {
    dtype: 'int64',
    pg: 'int4',
    of: fc.integer().map((value) => ({ bytes: sized(4, (bytes) => bytes.writeInt32BE(value)), text: String(value) })),
  },
  {
    dtype: 'int64',
    pg: 'int2',
    of: fc
      .integer({ min: -32_768, max: 32_767 })
      .map((value) => ({ bytes: sized(2, (bytes) => bytes.writeInt16BE(value)), text: String(value) })),
  },
  {
    dtype: 'float64',
    pg: 'float8',
    of: fc
      .oneof(
        fc.double({ noNaN: true, noDefaultInfinity: true }),
        fc.integer().map((value) => value / 1e5),
        fc.constantFrom(0, 1e21, 1e-7, 5e-324, 0.1 + 0.2, 2 ** 53, -1.5),
      )
      .map((value) => ({ bytes: sized(8, (bytes) => bytes.writeDoubleBE(value)), text: JSON.stringify(value) })),
  },
  {
    dtype: 'bool01',
    pg: 'bool',
    of: fc.boolean().map((value) => ({ bytes: Buffer.from([Number(value)]), text: value ? '1' : '0' })),
  },
  {
    dtype: 'timestamp_utc',
    pg: 'int8',
    of: instants.map((ms) => ({ bytes: int8(BigInt(ms)), text: new Date(ms).toISOString() })),
  },
  {
    dtype: 'timestamp_utc',
    pg: 'timestamptz',
    // finer than a millisecond: dropped
    of: fc.tuple(instants, fc.integer({ min: 0, max: 999 })).map(([ms, micros]) => ({
      bytes: int8(BigInt(ms - POSTGRES_EPOCH_MS) * 1000n + BigInt(micros)),
      text: new Date(ms).toISOString(),
    })),
  },
  { dtype: 'string', pg: 'text', of: texts.map((text) => ({ bytes: Buffer.from(text), text })) },
  { dtype: 'json', pg: 'text', of: fc.json().map((text) => ({ bytes: Buffer.from(text), text })) },
  {
    dtype: 'uuid',
    pg: 'uuid',
    of: fc.uuid().map((text) => ({ bytes: Buffer.from(text.replaceAll('-', ''), 'hex'), text })),
  },
];

/**
 * Any columns, nullable or not, of which some show a cell of an earlier one again; with or without an end of validity that the
 * next row tells.
 */
export const generatedRows: fc.Arbitrary<GeneratedRows> = fc
  .tuple(
    fc.array(fc.tuple(fc.constantFrom(...KINDS), fc.boolean()), { minLength: 1, maxLength: 8 }),
    fc.array(fc.tuple(fc.nat(7), fc.nat(11)), { maxLength: 4 }),
    fc.option(fc.nat(11), { nil: undefined }),
  )
  .chain(([kinds, repeats, validAt]) => {
    const hiddenFirst = validAt !== undefined;
    const columnOf = ([{ dtype, pg }, nullable]: (typeof kinds)[number]): Column => ({
      field: { name: '', dtype, pg, nullable, doc: '', sql: '', columns: [] },
      cell: cellOf({ name: '', dtype, pg }),
    });
    const own = kinds.map(columnOf);
    const columns = [...own];
    for (const [cell, place] of repeats) {
      const at = cell % kinds.length;
      const after = columns.indexOf(own[at]) + 1;
      const again = { ...columnOf(kinds[at]), again: at + Number(hiddenFirst) };
      columns.splice(after + (place % (columns.length - after + 1)), 0, again);
    }
    columns.forEach((column, index) => {
      columns[index] = { ...column, field: { ...column.field, name: `c${index}` } };
    });
    if (hiddenFirst) columns.splice(Math.min(validAt, columns.length), 0, VALID_TO);
    const cells = fc.tuple(...kinds.map(([{ of }, nullable]) => (nullable ? fc.option(of, { freq: 3 }) : of)));
    const row = fc.record({ cells, fromMs: instants, toMs: instants });
    return fc.record({
      shape: fc.constant({ columns, hiddenFirst }),
      rows: fc.array(row, { minLength: 1, maxLength: 30 }),
      flushBefore: fc.array(fc.nat(30), { maxLength: 3 }).map((places) => new Set(places)),
    });
  });

const VALID_TO: Column = {
  field: {
    name: 'valid_to_utc_exclusive',
    dtype: 'timestamp_utc',
    pg: 'timestamptz',
    nullable: false,
    doc: '',
    sql: '',
    columns: [],
  },
  cell: CELL.validTo,
};

/** The rows as every representation must give them back. */
export const expectedTexts = ({ shape, rows }: GeneratedRows): (string | null)[][] =>
  rows.map(({ cells, toMs }) => {
    let next = 0;
    return shape.columns.map((column) => {
      if (column === VALID_TO) return new Date(toMs).toISOString();
      const at = column.again === undefined ? next++ : column.again - Number(shape.hiddenFirst);
      return cells[at]?.text ?? null;
    });
  });

/** The body the representation makes of them. */
export function bodyOf(representation: Representation, generated: GeneratedRows): Buffer {
  return collected((out) => {
    const writer = representation.open(out, generated.shape, { mode: 'native', warnings: [] });
    generated.rows.forEach((row, index) => {
      if (generated.flushBefore.has(index)) writer.flush();
      writeRow(writer, generated.shape, row);
      if (generated.shape.hiddenFirst) writer.resolve(row.toMs);
    });
    writer.end();
  });
}

/** All that is written, from buffers that hold rubbish before. */
export function collected(write: (out: OutputBuffer) => void): Buffer {
  const parts: Buffer[] = [];
  const out = new OutputBuffer({
    write: (part) => parts.push(Buffer.from(part)),
    buffer: () => Buffer.alloc(BUFFER_BYTES, 0x21),
    digest: () => createHash('sha256').update(Buffer.concat(parts)),
  });
  write(out);
  out.flush();
  return Buffer.concat(parts);
}

/** Where the last message of an Arrow stream begins: its empty batch. */
export const lastMessageAt = (body: Buffer): number =>
  body.lastIndexOf(END_OF_STREAM.subarray(0, 4), body.length - END_OF_STREAM.length - 1);

export function writeRow(writer: RowWriter, shape: RowShape, { cells, fromMs }: GeneratedRow): void {
  const hidden = shape.hiddenFirst ? [{ bytes: int8(BigInt(fromMs - POSTGRES_EPOCH_MS) * 1000n), text: '' }] : [];
  const bytes = Buffer.concat([...hidden, ...cells].flatMap(wireCell));
  writer.row(new DataView(bytes.buffer, bytes.byteOffset, bytes.length), bytes, 0, bytes.length);
}

const wireCell = (cell: GeneratedCell | null): Buffer[] => [
  sized(4, (bytes) => bytes.writeInt32BE(cell ? cell.bytes.length : -1)),
  ...(cell ? [cell.bytes] : []),
];
