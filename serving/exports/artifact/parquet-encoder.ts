/**
 * A thread that encodes batches of columns into a Parquet file. 3.5 M trades take three seconds, during which the serving
 * thread could answer nobody. The thread returns every row group as soon as it is encoded.
 */

import { parentPort } from 'node:worker_threads';
import { constants, zstdCompressSync } from 'node:zlib';
import type { ColumnChunk } from 'hyparquet';
import { ByteWriter, type ColumnSource, ParquetWriter, type SchemaElement } from 'hyparquet-writer';
import { writeColumn } from 'hyparquet-writer/src/column.js';
import { writePageHeader } from 'hyparquet-writer/src/datapage.js';
import { deltaBinaryPack } from 'hyparquet-writer/src/delta.js';
import { unconvertMinMax } from 'hyparquet-writer/src/unconvert.js';
import type { EncoderBatch, EncoderColumn, EncoderFile, FromEncoder, ToEncoder } from './parquet-file.ts';

/** Parquet types. Converted types serve readers that predate logical types. */
const ELEMENTS: Readonly<Record<EncoderColumn['type'], Omit<SchemaElement, 'name' | 'repetition_type'>>> = {
  int64: { type: 'INT64' },
  float64: { type: 'DOUBLE' },
  // The encoder sets the converted type alone: version 0.17.0 of the library writes the bit width of the logical type as Thrift's i32,
  // where the format has an i8, and no reader accepts the file.
  int8: { type: 'INT32', converted_type: 'INT_8' },
  timestamp_ms_utc: {
    type: 'INT64',
    converted_type: 'TIMESTAMP_MILLIS',
    logical_type: { type: 'TIMESTAMP', isAdjustedToUTC: true, unit: 'MILLIS' },
  },
  timestamp_us_utc: {
    type: 'INT64',
    converted_type: 'TIMESTAMP_MICROS',
    logical_type: { type: 'TIMESTAMP', isAdjustedToUTC: true, unit: 'MICROS' },
  },
  utf8: { type: 'BYTE_ARRAY', converted_type: 'UTF8', logical_type: { type: 'STRING' } },
};

export function schemaOf(columns: readonly EncoderColumn[]): SchemaElement[] {
  return [
    { name: 'schema', num_children: columns.length },
    ...columns.map(
      ({ name, type, nullable }): SchemaElement => ({
        name,
        repetition_type: nullable ? 'OPTIONAL' : 'REQUIRED',
        ...ELEMENTS[type],
      }),
    ),
  ];
}

type Values = BigInt64Array | Float64Array | Int32Array | (bigint | number | string | Uint8Array | null)[];

/** The values of a column in a row group, as the encoder takes them. */
function valuesOf({ type, isDocument }: EncoderColumn, rows: number, batch: EncoderBatch): Values {
  if (type === 'utf8') return isDocument ? documentsOf(rows, batch) : textsOf(rows, batch);
  const values = numbersOf(type, batch.values);
  const { validity } = batch;
  if (validity.length === 0) return values;
  return Array.from<bigint | number, bigint | number | null>(values, (value, row) =>
    isValid(validity, row) ? value : null,
  );
}

const isValid = (validity: Uint8Array, row: number) => (validity[row >> 3] & (1 << (row & 7))) !== 0;

function numbersOf(type: Exclude<EncoderColumn['type'], 'utf8'>, { buffer, byteOffset, byteLength }: Uint8Array) {
  switch (type) {
    case 'int64':
    case 'timestamp_ms_utc':
      return new BigInt64Array(buffer, byteOffset, byteLength / 8);
    case 'timestamp_us_utc':
      toMicros(new Int32Array(buffer, byteOffset, byteLength / 4));
      return new BigInt64Array(buffer, byteOffset, byteLength / 8);
    case 'float64':
      return new Float64Array(buffer, byteOffset, byteLength / 8);
    case 'int8':
      return Int32Array.from(new Int8Array(buffer, byteOffset, byteLength));
  }
}

const WORD = 2 ** 32;

/** Milliseconds become microseconds in place, by halves: a bigint a value would take an order of magnitude longer. */
function toMicros(words: Int32Array): void {
  for (let low = 0; low < words.length; low += 2) {
    const micros = (words[low] >>> 0) * 1000;
    const carry = Math.floor(micros / WORD);
    words[low] = micros - carry * WORD;
    words[low + 1] = words[low + 1] * 1000 + carry;
  }
}

function textsOf(rows: number, batch: EncoderBatch): (string | null)[] {
  const { text } = batch;
  const bytes = Buffer.from(text.buffer, text.byteOffset, text.byteLength);
  return rowRanges(rows, batch, (from, to) => bytes.toString('utf8', from, to));
}

/** Documents stay bytes: a string of each would only be encoded again. */
const documentsOf = (rows: number, batch: EncoderBatch): (Uint8Array | null)[] =>
  rowRanges(rows, batch, (from, to) => batch.text.subarray(from, to));

function rowRanges<T>(
  rows: number,
  { values, validity }: EncoderBatch,
  of: (from: number, to: number) => T,
): (T | null)[] {
  const ends = new Int32Array(values.buffer, values.byteOffset, rows + 1);
  const all: (T | null)[] = new Array(rows);
  for (let row = 0; row < rows; row++) {
    const isNull = validity.length > 0 && !isValid(validity, row);
    all[row] = isNull ? null : of(ends[row], ends[row + 1]);
  }
  return all;
}

/** Size of a page before compression. A page is the unit that a reader with a filter can skip by the page index. */
const PAGE_BYTES = 256 * 1024;
/** Level 3, the default of zstd: an eighth smaller than level 1 for a twentieth more time. */
const ZSTD = { params: { [constants.ZSTD_c_compressionLevel]: 3 } };

/** Bounds of JSON texts are useless, and the library would hold those of every group in memory until the end. */
const DOCUMENT = { encoding: 'PLAIN', statistics: false } as const;

/**
 * For doubles, zstd is as good as a dictionary: on a day of real trades 0.28 and 0.28 MB of prices, 0.96 and 1.00 MB of
 * quantities. For everything else the library chooses.
 */
function encodingOf({ type, isDocument }: EncoderColumn): Pick<ColumnSource, 'encoding' | 'statistics'> {
  if (isDocument) return DOCUMENT;
  return type === 'float64' ? { encoding: 'PLAIN' } : {};
}

const port = parentPort!;
const CODECS = { zstd: 'ZSTD', snappy: 'SNAPPY', none: 'UNCOMPRESSED' } as const;
type Chunk = ReturnType<typeof writeColumn>;

/** A reader of differences that fills a word of 64 bits, as fastparquet's, has no room for wider ones and reads them wrong. */
const MAX_DELTA_BITS = 28n;

/**
 * The values, where differences suit them: ascending ids and times take a bit or two each. fastparquet accepts differences only
 * without nulls.
 */
function deltasOf({ type, nullable }: EncoderColumn, values: Values): BigInt64Array | undefined {
  if (nullable || (type !== 'int64' && !isTime(type))) return undefined;
  const integers = values as BigInt64Array;
  let [min, max] = [0n, 0n];
  for (let row = 1; row < integers.length; row++) {
    const delta = integers[row] - integers[row - 1];
    if (row === 1 || delta < min) min = delta;
    if (row === 1 || delta > max) max = delta;
  }
  return max - min < 1n << MAX_DELTA_BITS ? integers : undefined;
}

const isTime = (type: EncoderColumn['type']) => type === 'timestamp_ms_utc' || type === 'timestamp_us_utc';

const DELTA = 'DELTA_BINARY_PACKED';
const DELTA_PAGE_ROWS = PAGE_BYTES / 8;

/**
 * Writes required 64-bit integers as differences, in data pages of version 1. The library writes pages of version 2 only, and
 * fastparquet reads differences in those as 32-bit integers, without an error. Without nulls the two have the same bytes but
 * for their headers.
 */
function writeDeltas(
  parquet: ParquetWriter,
  element: SchemaElement,
  values: BigInt64Array,
  hasColumnIndex: boolean,
): Chunk {
  const { writer, codec, compressors } = parquet;
  const start = writer.offset;
  let uncompressedBytes = 0;
  const locations: { offset: bigint; compressed_page_size: number; first_row_index: bigint }[] = [];
  const bounds: (readonly [min: bigint, max: bigint])[] = [];
  for (let row = 0; row < values.length; row += DELTA_PAGE_ROWS) {
    const ofPage = values.subarray(row, row + DELTA_PAGE_ROWS);
    const page = new ByteWriter();
    deltaBinaryPack(page, ofPage, 'INT64');
    const plain = page.getBytes();
    const bytes = compressors[codec]?.(plain) ?? plain;
    const offset = writer.offset;
    writePageHeader(writer, {
      type: 'DATA_PAGE',
      uncompressed_page_size: plain.length,
      compressed_page_size: bytes.length,
      data_page_header: {
        num_values: ofPage.length,
        encoding: DELTA,
        definition_level_encoding: 'RLE',
        repetition_level_encoding: 'RLE',
      },
    });
    uncompressedBytes += writer.offset - offset + plain.length;
    writer.appendBytes(bytes);
    locations.push({
      offset: BigInt(offset),
      compressed_page_size: writer.offset - offset,
      first_row_index: BigInt(row),
    });
    bounds.push(boundsOf(ofPage));
  }
  const mins = bounds.map(([min]) => min);
  const maxs = bounds.map(([, max]) => max);
  const [min_value, max_value] = boundsOf(BigInt64Array.from(bounds.flat()));
  const chunk: ColumnChunk = {
    file_offset: BigInt(start),
    meta_data: {
      type: 'INT64',
      encodings: [DELTA],
      path_in_schema: [element.name],
      codec,
      num_values: BigInt(values.length),
      total_compressed_size: BigInt(writer.offset - start),
      total_uncompressed_size: BigInt(uncompressedBytes),
      data_page_offset: BigInt(start),
      statistics: { min_value, max_value, null_count: 0n },
      encoding_stats: [{ page_type: 'DATA_PAGE', encoding: DELTA, count: locations.length }],
    },
  };
  const encoded = (bound: bigint, isMax: boolean) => unconvertMinMax(bound, element, isMax)!;
  return {
    chunk,
    offsetIndex: { page_locations: locations },
    ...(hasColumnIndex && {
      columnIndex: {
        null_pages: bounds.map(() => false),
        min_values: mins.map((min) => encoded(min, false)),
        max_values: maxs.map((max) => encoded(max, true)),
        boundary_order: orderOf(mins, maxs),
        null_counts: bounds.map(() => 0n),
      },
    }),
  };
}

function boundsOf(values: BigInt64Array): readonly [min: bigint, max: bigint] {
  let min = values[0];
  let max = values[0];
  for (const value of values) {
    if (value < min) min = value;
    if (value > max) max = value;
  }
  return [min, max];
}

function orderOf(...lists: readonly (readonly bigint[])[]): 'ASCENDING' | 'DESCENDING' | 'UNORDERED' {
  const every = (inOrder: (before: bigint, after: bigint) => boolean) =>
    lists.every((list) => list.every((value, index) => index === 0 || inOrder(list[index - 1], value)));
  if (every((before, after) => before <= after)) return 'ASCENDING';
  return every((before, after) => before >= after) ? 'DESCENDING' : 'UNORDERED';
}

const countNull = (nulls: number, value: unknown) => nulls + (value === null ? 1 : 0);

/** Writes one row group, as the library's `write` does. */
function writeGroup(
  parquet: ParquetWriter,
  columns: readonly EncoderColumn[],
  rows: number,
  batches: readonly EncoderBatch[],
  countsNulls: boolean,
): void {
  const { writer, schema, codec, compressors } = parquet;
  const [root, ...elements] = schema;
  const start = writer.offset;
  const chunks = columns.map((column, index): Chunk => {
    const element = elements[index];
    const values = valuesOf(column, rows, batches[index]);
    const columnIndex = isTime(column.type);
    const deltas = deltasOf(column, values);
    if (deltas) return writeDeltas(parquet, element, deltas, columnIndex);
    const { encoding, statistics = true } = encodingOf(column);
    const written = writeColumn({
      writer,
      column: {
        columnName: column.name,
        element,
        schemaPath: [root, element],
        codec,
        compressors,
        stats: statistics,
        pageSize: PAGE_BYTES,
        columnIndex,
        offsetIndex: true,
        encoding,
      },
      pageData: {
        values,
        definitionLevels: column.nullable
          ? Array.from<unknown, number>(values, (value) => (value === null ? 0 : 1))
          : [],
        repetitionLevels: [],
        maxDefinitionLevel: column.nullable ? 1 : 0,
      },
    });
    // A table's log states how many values are missing in each column, in documents as well.
    const nulls = column.nullable ? (values as (unknown | null)[]).reduce<number>(countNull, 0) : 0;
    if (countsNulls) written.chunk.meta_data!.statistics ??= { null_count: BigInt(nulls) };
    return written;
  });
  parquet.pendingIndexes.push(...chunks);
  parquet.num_rows += BigInt(rows);
  parquet.row_groups.push({
    columns: chunks.map(({ chunk }) => chunk),
    total_byte_size: chunks.reduce((sum, { chunk }) => sum + chunk.meta_data!.total_uncompressed_size, 0n),
    num_rows: BigInt(rows),
    total_compressed_size: BigInt(writer.offset - start),
  });
}

/** The file in progress. */
let current: {
  readonly isOfTable: boolean;
  readonly columns: readonly EncoderColumn[];
  readonly writer: ByteWriter;
  readonly parquet: ParquetWriter;
};

function begin({ columns, facts, compression, isOfTable }: EncoderFile): typeof current {
  const writer = new ByteWriter();
  const parquet = new ParquetWriter({
    writer,
    schema: schemaOf(columns),
    codec: CODECS[compression as keyof typeof CODECS],
    compressors: { ZSTD: (bytes) => zstdCompressSync(bytes, ZSTD) },
    kvMetadata: facts.map(([key, value]) => ({ key, value })),
    // The name includes a version of the files' layout: readers that find none ignore the bounds of texts.
    createdBy: 'tidemark version 1',
  });
  return { columns, writer, parquet, isOfTable };
}

port.on('message', (message: ToEncoder) => {
  if (message.kind === 'begin') {
    current = begin(message.file);
    return;
  }
  const { columns, writer, parquet, isOfTable } = current;
  if (message.kind === 'end') {
    parquet.finish();
    const bytes = written(writer);
    port.postMessage({ kind: 'end', bytes } satisfies FromEncoder, [bytes.buffer]);
    return;
  }
  writeGroup(parquet, columns, message.rows, message.columns, isOfTable);
  const bytes = written(writer);
  const memory = message.columns.map(({ values, text }) => ({
    bytes: new Uint8Array(values.buffer as ArrayBuffer),
    text: new Uint8Array(text.buffer as ArrayBuffer),
  }));
  const buffers = memory.flatMap((column) => [column.bytes.buffer, column.text.buffer]);
  port.postMessage({ kind: 'bytes', bytes, memory } satisfies FromEncoder, [bytes.buffer, ...buffers]);
});

/** The bytes written since the last call. Offsets in the file continue. */
function written(writer: ByteWriter): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(writer.getBuffer());
  writer.index = 0;
  return bytes;
}
