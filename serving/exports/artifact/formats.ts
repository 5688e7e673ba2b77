/** How rows become a file. Another format is another entry. */
import type { Dtype } from '../../../shared/registry/index.ts';
import type { Flow } from '../../read/answer.ts';
import type { RowShape } from '../../rendering/cells.ts';
import { CsvRows } from '../../rendering/csv-rows.ts';
import { Out } from '../../rendering/out.ts';
import type { RowWriter } from '../../rendering/representations.ts';
import type { FileSink } from './file-sink.ts';
import { ParquetFile } from './parquet/parquet-file.ts';
import type { ArtifactFormat, ManifestColumn } from './types.ts';

/** Facts that a format may keep in the file; the same for the same request. */
export type FileFacts = Readonly<Record<string, string>>;

export interface FileTarget {
  readonly sink: FileSink;
  /** Holds rows back while earlier ones are being made into bytes. */
  readonly flow: Flow;
  readonly shape: RowShape;
  readonly facts: FileFacts;
  /** What goes wrong beside the calls. */
  readonly onFault: (error: unknown) => void;
}

export interface FileWriter extends RowWriter, AsyncDisposable {
  /** After the last row: all of the file's bytes are in its sink. */
  close(): Promise<void>;
}

export interface Format {
  readonly extension: string;
  readonly mediaType: string;
  typeOf(dtype: Dtype): ManifestColumn['type'];
  open(target: FileTarget): FileWriter;
}

/** In the words of Arrow, which readers use too. */
const PARQUET_TYPES: Readonly<Record<Dtype, string>> = {
  int64: 'int64',
  float64: 'double',
  bool01: 'int8',
  timestamp_utc: 'timestamp[ms, UTC]',
  string: 'string',
  uuid: 'string',
  json: 'string',
};

export const FORMATS: Readonly<Record<ArtifactFormat, Format>> = {
  csv: {
    extension: 'csv',
    mediaType: 'text/csv; charset=utf-8; header=present',
    typeOf: () => 'text',
    open: ({ sink, shape }) => new CsvFile(new Out(sink), shape),
  },
  parquet: {
    extension: 'parquet',
    mediaType: 'application/vnd.apache.parquet',
    typeOf: (dtype) => PARQUET_TYPES[dtype],
    open: (target) => new ParquetFile(target),
  },
};

class CsvFile extends CsvRows implements FileWriter {
  readonly #out: Out;

  constructor(out: Out, shape: RowShape) {
    super(out, shape);
    this.#out = out;
  }

  async close(): Promise<void> {
    this.#out.flush();
  }

  async [Symbol.asyncDispose](): Promise<void> {}
}
