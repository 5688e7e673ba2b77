/** Generated rows as a Parquet file, written as exports are. */
import { BackpressureGate, FileSink } from '../../serving/exports/artifact/file-sink.ts';
import { formatOf } from '../../serving/exports/artifact/files.ts';
import { BufferPool } from '../../serving/render/response.ts';
import { type GeneratedRows, writeRow } from './generated-rows.ts';

interface ParquetOptions {
  readonly facts?: Record<string, string>;
  readonly compression?: 'zstd' | 'snappy' | 'none';
}

export async function writeParquet(
  path: string,
  generated: GeneratedRows,
  { facts = {}, compression = 'zstd' }: ParquetOptions = {},
): Promise<string> {
  // Rows come when they are let.
  let gate: PromiseWithResolvers<void> | undefined;
  const brake = new BackpressureGate();
  brake.flow = { pause: () => (gate = Promise.withResolvers()), resume: () => gate?.resolve() };
  const onFault = (error: unknown) => {
    throw error;
  };
  await using sink = await FileSink.create(path, { buffers: new BufferPool(), flow: brake.createReason(), onFault });
  const { shape } = generated;
  await using writer = formatOf('parquet', compression).open({
    sink,
    flow: brake.createReason(),
    shape,
    facts,
    onFault,
    buffers: new BufferPool(),
  });
  for (const row of generated.rows) {
    writeRow(writer, shape, row);
    if (shape.hiddenFirst) writer.resolve(row.toMs);
    await gate?.promise;
  }
  await writer.close();
  await sink.finish();
  return path;
}
