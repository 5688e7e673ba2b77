/** Feeds the rows of a Parquet file to the digests of their partitions, a row group at a time, column by column. */
import { zstdDecompressSync } from 'node:zlib';
import { asyncBufferFromFile, parquetMetadataAsync, parquetScan } from 'hyparquet';
import { type Cell, RowFault, type RowLayout } from '../../shared/proof-log/cells.ts';
import { type FieldPlaces, placesOf } from '../../shared/proof-log/csv-feed.ts';
import type { RowDigests } from '../../shared/proof-log/rows.ts';

/** The reader unpacks snappy itself. */
const compressors = {
  ZSTD: (input: Uint8Array): Uint8Array => zstdDecompressSync(input),
};

/** Decoded values stay numbers: a date for each row would cost more than everything else. */
const parsers = { timestampFromMilliseconds: Number };

type Column = ArrayLike<Cell>;

interface Target {
  readonly layout: RowLayout;
  readonly digests: RowDigests;
}

/** @param fields that the manifest lists @throws RowFault */
export async function feedParquet(path: string, target: Target, fields: readonly string[]): Promise<void> {
  try {
    await feedGroups(path, target, fields);
  } catch (cause) {
    if (cause instanceof RowFault) throw cause;
    // The reader says of a damaged file what it stumbles over, such as `Cannot read properties of undefined`.
    const what = cause instanceof Error ? cause.message : String(cause);
    throw new RowFault(`the file cannot be read as Parquet: ${what}`, { cause });
  }
}

async function feedGroups(path: string, { layout, digests }: Target, fields: readonly string[]): Promise<void> {
  const file = await asyncBufferFromFile(path);
  const metadata = await parquetMetadataAsync(file);
  const present = metadata.schema.slice(1).map(({ name }) => name);
  const { columns: byColumn, by, copies } = placesOf(layout, present, fields);
  const needed = [...byColumn.flat(), ...by, ...copies.filter((place) => place >= 0)];
  const columns = [...new Set(needed)].map((place) => present[place]);
  const places: FieldPlaces = {
    columns: byColumn.map((list) => list.map((place) => columns.indexOf(present[place]))),
    by: by.map((place) => columns.indexOf(present[place])),
    copies: copies.map((place) => columns.indexOf(present[place])),
  };
  const scan = await parquetScan({ file, metadata, columns, compressors, parsers });
  for (const range of scan.ranges) {
    const values: Column[] = [];
    for (const column of columns) values.push((await scan.readColumn({ column, ...range })) as Column);
    feedRows(values, range.rowEnd - range.rowStart, places, { layout, digests });
  }
}

function feedRows(
  values: readonly Column[],
  rows: number,
  { columns, by, copies }: FieldPlaces,
  { layout, digests }: Target,
): void {
  const isPlain = layout.partition === 'file_day' && layout.columns.every(({ rule }) => rule === 'field');
  const times = values[by[0]];
  const plain = columns.map(([place]) => values[place]);
  const offsets = plain[layout.order[0]];
  const types = layout.columns.map(({ type }) => type);
  for (let row = 0; row < rows; row++) {
    try {
      const room = isPlain ? digests.room(Number(times[row])) : undefined;
      if (!room) {
        digests.add(
          columns.map((list) => list.map((place) => values[place][row])),
          by.map((place) => values[place][row]),
          copies.map((place) => values[place]?.[row]),
        );
        continue;
      }
      for (let index = 0; index < plain.length; index++) {
        const value = plain[index][row];
        const type = types[index];
        // The usual types first: what `cell` looks at for every other would take half the time.
        if (type === 'float8' && typeof value === 'number') room.float(value);
        else if (type === 'int8' && typeof value === 'bigint') room.integer(8, Number(value));
        else room.cell(type, value);
      }
      for (let index = 0; index < copies.length; index++) {
        const copied = copies[index] < 0 ? undefined : values[copies[index]][row];
        const { field, column } = layout.copies[index];
        // Times are epoch ms in both.
        if (copied !== undefined && Number(copied) !== Number(plain[column][row])) {
          throw new RowFault(`${field} is not the value of ${layout.columns[column].name}`);
        }
      }
      digests.ended(Number(offsets[row]));
    } catch (cause) {
      const what = cause instanceof Error ? cause.message : String(cause);
      throw new RowFault(`row ${row + 1} of a row group: ${what}`, { cause });
    }
  }
}
