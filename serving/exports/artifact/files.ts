/** The files of an artifact in progress: one, or one per day. Each opens before its rows and closes while the next one fills. */

import { once } from 'node:events';
import { join } from 'node:path';
import type { Transform } from 'node:stream';
import { createGzip, createZstdCompress } from 'node:zlib';
import type { Dtype } from '../../../shared/registry/index.ts';
import type { Compression } from '../../contract/export.ts';
import type { CsvFormulas } from '../../contract/shapes.ts';
import { type Destination, OutputBuffer, type RowShape, type RowWriter } from '../../render/cells.ts';
import { CsvRows } from '../../render/csv-rows.ts';
import type { BufferPool } from '../../render/response.ts';
import type { ArtifactFormat, ManifestColumn, ManifestFile } from './artifact.ts';
import { type BackpressureGate, type FileMetadata, FileSink, type FileTarget, type FileWriter } from './file-sink.ts';
import { ParquetFile } from './parquet-file.ts';

/** How rows become a file. */
export interface Format {
  readonly extension: string;
  readonly mediaType: string;
  typeOf(dtype: Dtype): ManifestColumn['type'];
  open(target: FileTarget): FileWriter;
}

interface Packed {
  readonly extension: string;
  readonly mediaType: string;
  create(): Transform;
}

/** How a whole CSV file is compressed; a Parquet file compresses its own pages. */
const PACKED: Partial<Record<Compression, Packed>> = {
  gzip: { extension: 'csv.gz', mediaType: 'application/gzip', create: () => createGzip() },
  zstd: { extension: 'csv.zst', mediaType: 'application/zstd', create: () => createZstdCompress() },
};

/** Column types by Arrow's names, which readers use too. */
const PARQUET_TYPES: Readonly<Record<Dtype, string>> = {
  int64: 'int64',
  float64: 'double',
  bool01: 'int8',
  timestamp_utc: 'timestamp[ms, UTC]',
  string: 'string',
  uuid: 'string',
  json: 'string',
};

interface FormatOptions {
  readonly formulas?: CsvFormulas | undefined;
  /** Of a lake's table: times in microseconds, which is what engines join without a cast. */
  readonly isOfTable?: boolean;
}

export function formatOf(
  format: ArtifactFormat,
  compression: Compression,
  { formulas, isOfTable }: FormatOptions = {},
): Format {
  if (format === 'parquet') {
    return {
      extension: 'parquet',
      mediaType: 'application/vnd.apache.parquet',
      typeOf: (dtype) => (isOfTable && dtype === 'timestamp_utc' ? 'timestamp[us, UTC]' : PARQUET_TYPES[dtype]),
      open: (target) => new ParquetFile(target, compression, isOfTable),
    };
  }
  const packed = PACKED[compression];
  return {
    extension: packed?.extension ?? 'csv',
    mediaType: packed?.mediaType ?? 'text/csv; charset=utf-8; header=present',
    typeOf: () => 'text',
    open: ({ sink, shape, flow, onFault, buffers }) => {
      const target = packed ? new PackedSink(packed.create(), { sink, flow, onFault, buffers }) : sink;
      return new CsvFile(new OutputBuffer(target), { shape, formulas }, packed && (target as PackedSink));
    },
  };
}

class CsvFile extends CsvRows implements FileWriter {
  readonly #output: OutputBuffer;
  readonly #packed: PackedSink | undefined;

  constructor(
    output: OutputBuffer,
    { shape, formulas }: { readonly shape: RowShape; readonly formulas: CsvFormulas | undefined },
    packed: PackedSink | undefined,
  ) {
    super(output, shape, formulas);
    this.#output = output;
    this.#packed = packed;
  }

  async close(): Promise<void> {
    this.#output.flush();
    await this.#packed?.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#packed?.destroy();
  }
}

/** Compresses what is written on its way to a sink, in the thread pool, and pauses the read while that is behind. */
class PackedSink implements Destination {
  readonly #stream: Transform;
  readonly #options: Pick<FileTarget, 'sink' | 'flow' | 'buffers'>;
  readonly #ended: Promise<unknown>;

  constructor(stream: Transform, options: Pick<FileTarget, 'sink' | 'flow' | 'onFault' | 'buffers'>) {
    this.#stream = stream;
    this.#options = options;
    stream.on('data', (chunk: Buffer) => options.sink.write(new Uint8Array(chunk)));
    stream.on('drain', () => options.flow.resume());
    stream.once('error', options.onFault);
    this.#ended = once(stream, 'end');
    this.#ended.catch(() => {});
  }

  buffer(): Buffer {
    return this.#options.buffers.take();
  }

  write(bytes: Buffer): void {
    const { flow, buffers } = this.#options;
    if (!this.#stream.write(bytes, () => buffers.give(Buffer.from(bytes.buffer)))) flow.pause();
  }

  async end(): Promise<void> {
    this.#stream.end();
    await this.#ended;
    // A stream that ends emits no `drain`, and the rows of the next file wait for it.
    this.#options.flow.resume();
  }

  destroy(): void {
    this.#stream.destroy();
    this.#options.flow.resume();
  }
}

interface FilesOptions {
  readonly directory: string;
  /** Prefix of the file names. */
  readonly stem: string;
  /** Ends the names on disk. */
  readonly inProgress?: string;
  readonly format: Format;
  readonly facts: FileMetadata;
  readonly buffers: BufferPool;
  readonly gate: BackpressureGate;
  /** Ends the read. Called with a fault that occurs outside it. */
  readonly onFault: (error: unknown) => void;
}

interface OpenFile {
  readonly name: string;
  readonly day: string | null;
  readonly sink: FileSink;
  writer: FileWriter | undefined;
}

export class ArtifactFiles implements RowWriter, AsyncDisposable {
  readonly done: ManifestFile[] = [];
  readonly #options: FilesOptions;
  readonly #open = new Set<OpenFile>();
  #shape: RowShape | undefined;
  /** The file that holds the last row. */
  #current: OpenFile | undefined;
  /** The file that the next row goes to. */
  #next: OpenFile | undefined;
  #closing: Promise<void>[] = [];
  #rowsBefore = 0;

  constructor(options: FilesOptions) {
    this.#options = options;
  }

  get rows(): number {
    return this.#rowsBefore + (this.#current?.writer?.rows ?? 0);
  }

  get bytes(): number {
    let bytes = this.done.reduce((sum, file) => sum + file.bytes, 0);
    for (const { sink } of this.#open) bytes += sink.bytes;
    return bytes;
  }

  /** The shape of the rows; set it before the first row. */
  set shape(shape: RowShape) {
    this.#shape = shape;
  }

  /** Starts a file for the next rows. The file before may still wait for the end of validity of its last row. */
  async begin(day: string | null): Promise<void> {
    await this.#waitUntilClosed();
    if (this.#next) this.#startClosing(this.#next);
    const { directory, stem, inProgress = '', format, buffers, gate, onFault } = this.#options;
    const name = `${stem}${day === null ? '' : `.${day}`}.${format.extension}`;
    const sink = await FileSink.create(join(directory, `${name}${inProgress}`), {
      buffers,
      flow: gate.createReason(),
      onFault,
    });
    this.#next = { name, day, sink, writer: undefined };
    this.#open.add(this.#next);
  }

  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    if (this.#next) this.#switchFile();
    this.#current!.writer!.row(view, bytes, at, length);
  }

  resolve(ms: number): void {
    this.#current?.writer?.resolve(ms);
  }

  flush(): void {}

  end(): void {}

  /** Call it after the last row. @throws the first fault of a file */
  async finish(): Promise<void> {
    if (this.#next) this.#switchFile();
    if (this.#current) this.#startClosing(this.#current);
    await Promise.all(this.#closing);
    this.done.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.allSettled(this.#closing);
    for (const { writer, sink } of this.#open) {
      await writer?.[Symbol.asyncDispose]();
      await sink[Symbol.asyncDispose]();
    }
  }

  /** Pauses the read meanwhile: a read whose rows are held back gets more time. */
  async #waitUntilClosed(): Promise<void> {
    if (this.#closing.length === 0) return;
    const reason = this.#options.gate.createReason();
    reason.pause();
    try {
      await Promise.all(this.#closing);
    } finally {
      reason.resume();
    }
    this.#closing = [];
  }

  #switchFile(): void {
    const next = this.#next!;
    this.#next = undefined;
    if (this.#current) {
      this.#rowsBefore += this.#current.writer!.rows;
      this.#startClosing(this.#current);
    }
    this.#writerOf(next);
    this.#current = next;
  }

  #writerOf(file: OpenFile): FileWriter {
    const { format, facts, gate, onFault, buffers } = this.#options;
    file.writer ??= format.open({
      sink: file.sink,
      flow: gate.createReason(),
      shape: this.#shape!,
      facts,
      onFault,
      buffers,
    });
    return file.writer;
  }

  #startClosing(file: OpenFile): void {
    const closing = this.#close(file);
    // The file reports the fault at once, because `finish` may wait for it much later.
    closing.catch(this.#options.onFault);
    this.#closing.push(closing);
  }

  async #close(file: OpenFile): Promise<void> {
    const writer = this.#writerOf(file);
    await writer.close();
    const { bytes, sha256 } = await file.sink.finish();
    await writer[Symbol.asyncDispose]();
    this.#open.delete(file);
    this.done.push({ name: file.name, day: file.day, row_count: writer.rows, bytes, sha256 });
  }
}
