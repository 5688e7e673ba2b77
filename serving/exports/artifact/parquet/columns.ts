/** Columns as Parquet has them: their schema, and a batch's values as the encoder takes them. */
import type { SchemaElement } from 'hyparquet-writer';
import type { ArrowType } from '../../../rendering/arrow/messages.ts';
import type { EncoderBatch, EncoderColumn } from './messages.ts';

/** Converted types are for readers of before there were logical ones. */
const ELEMENTS: Readonly<Record<ArrowType, Omit<SchemaElement, 'name' | 'repetition_type'>>> = {
  int64: { type: 'INT64' },
  float64: { type: 'DOUBLE' },
  // By its converted type alone: version 0.17.0 of the library writes the bit width of the logical type as Thrift's i32,
  // where the format has an i8, and no reader takes the file.
  int8: { type: 'INT32', converted_type: 'INT_8' },
  timestamp_ms_utc: {
    type: 'INT64',
    converted_type: 'TIMESTAMP_MILLIS',
    logical_type: { type: 'TIMESTAMP', isAdjustedToUTC: true, unit: 'MILLIS' },
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

/** A column's values in a row group. */
export function valuesOf({ type, isDocument }: EncoderColumn, rows: number, batch: EncoderBatch): Values {
  if (type === 'utf8') return isDocument ? documentsOf(rows, batch) : textsOf(rows, batch);
  const values = numbersOf(type, batch.values);
  const { validity } = batch;
  if (validity.length === 0) return values;
  return Array.from<bigint | number, bigint | number | null>(values, (value, row) =>
    isValid(validity, row) ? value : null,
  );
}

const isValid = (validity: Uint8Array, row: number) => (validity[row >> 3] & (1 << (row & 7))) !== 0;

function numbersOf(type: Exclude<ArrowType, 'utf8'>, { buffer, byteOffset, byteLength }: Uint8Array) {
  switch (type) {
    case 'int64':
    case 'timestamp_ms_utc':
      return new BigInt64Array(buffer, byteOffset, byteLength / 8);
    case 'float64':
      return new Float64Array(buffer, byteOffset, byteLength / 8);
    case 'int8':
      return Int32Array.from(new Int8Array(buffer, byteOffset, byteLength));
  }
}

function textsOf(rows: number, batch: EncoderBatch): (string | null)[] {
  const { text } = batch;
  const bytes = Buffer.from(text.buffer, text.byteOffset, text.byteLength);
  return places(rows, batch, (from, to) => bytes.toString('utf8', from, to));
}

/** As the bytes they are: a string of each would be made only to be encoded again. */
const documentsOf = (rows: number, batch: EncoderBatch): (Uint8Array | null)[] =>
  places(rows, batch, (from, to) => batch.text.subarray(from, to));

function places<T>(
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
