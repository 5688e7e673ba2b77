/**
 * Feeds the rows of a Parquet file to the digests of their partitions, a row group at a time, column by column. What a file says of
 * itself is compared with its manifest and with bounds before memory is taken for it: a few bytes can claim billions of rows.
 */
import { open } from 'node:fs/promises';
import { zstdDecompressSync } from 'node:zlib';
import {
  type AsyncBuffer,
  asyncBufferFromFile,
  type FileMetaData,
  parquetMetadataAsync,
  parquetScan,
  snappyUncompress,
} from 'hyparquet';
import { type Cell, RowFault, type RowLayout } from '../../shared/proof-log/cells.ts';
import { type FieldPlaces, placesOf } from '../../shared/proof-log/csv-feed.ts';
import type { RowDigests } from '../../shared/proof-log/rows.ts';

/** An export of this service has some kilobytes. */
const MAX_FOOTER_BYTES = 64 * 1024 * 1024;
/** An export of this service has 122,880. */
const MAX_GROUP_ROWS = 4_194_304;
/** Unpacked. */
const MAX_PAGE_BYTES = 256 * 1024 * 1024;

/** The size is the one that the page states. @throws RowFault */
function boundedPage(bytes: number): number {
  if (bytes >= 0 && bytes <= MAX_PAGE_BYTES) return bytes;
  throw new RowFault(`a page says that it unpacks to ${bytes} bytes, and at most ${MAX_PAGE_BYTES} are read`);
}

const compressors = {
  ZSTD: (input: Uint8Array, bytes: number): Uint8Array =>
    zstdDecompressSync(input, { maxOutputLength: Math.max(1, boundedPage(bytes)) }),
  SNAPPY: (input: Uint8Array, bytes: number): Uint8Array => {
    const page = new Uint8Array(boundedPage(bytes));
    snappyUncompress(input, page);
    return page;
  },
};

/** Decoded values stay numbers: a date for each row would cost more than everything else. */
const parsers = { timestampFromMilliseconds: Number, timestampFromMicroseconds: (us: bigint) => Number(us) / 1000 };

type Column = ArrayLike<Cell>;

interface Target {
  readonly layout: RowLayout;
  readonly digests: RowDigests;
}

/**
 * @param fields that the manifest lists
 * @param maxRows that the manifest leaves for this file
 * @returns its rows
 * @throws RowFault
 */
export async function feedParquet(
  path: string,
  target: Target,
  fields: readonly string[],
  maxRows = Number.MAX_SAFE_INTEGER,
): Promise<number> {
  try {
    return await feedGroups(path, target, fields, maxRows);
  } catch (cause) {
    if (cause instanceof RowFault) throw cause;
    // The reader says of a damaged file what it stumbles over, such as `Cannot read properties of undefined`.
    const what = cause instanceof Error ? cause.message : String(cause);
    throw new RowFault(`the file cannot be read as Parquet: ${what}`, { cause });
  }
}

/** Looks at the length of the footer and of its lists: the reader takes memory for each list as long as it says to be. @throws RowFault */
async function checkFooter(path: string): Promise<void> {
  await using file = await open(path);
  const { size } = await file.stat();
  const end = Buffer.alloc(8);
  if (size < 12) throw new RowFault(`the file cannot be read as Parquet: it has ${size} bytes`);
  await file.read(end, 0, 8, size - 8);
  const bytes = end.readUInt32LE(0);
  if (bytes > Math.min(size - 8, MAX_FOOTER_BYTES))
    throw new RowFault(
      `the footer says that it has ${bytes} bytes; the file has ${size}, and at most ${MAX_FOOTER_BYTES} are read`,
    );
  const footer = Buffer.alloc(bytes);
  await file.read(footer, 0, bytes, size - 8 - bytes);
  checkLists(footer);
}

/** Walks the compact Thrift of a footer. What it cannot read ends it: the reader says what is wrong there. @throws RowFault */
function checkLists(bytes: Uint8Array): void {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++] ?? 0;
      value += (byte & 0x7f) * scale;
      if (byte < 128) return value;
    }
  };
  const skip = (type: number, depth: number): void => {
    if (depth > 64) throw new RowFault('the footer is nested more than 64 levels deep');
    if (type === 3) at += 1;
    else if (type >= 4 && type <= 6) varint();
    else if (type === 7) at += 8;
    else if (type === 8) at += varint();
    else if (type === 9) list(depth);
    else if (type === 12) struct(depth);
  };
  const list = (depth: number): void => {
    const head = bytes[at++] ?? 0;
    const size = head >> 4 === 15 ? varint() : head >> 4;
    // Each element has a byte at least.
    if (size > bytes.length - at)
      throw new RowFault(`the footer has a list of ${size} elements in ${Math.max(0, bytes.length - at)} bytes`);
    const type = head & 15;
    for (let index = 0; index < size && at < bytes.length; index++) skip(Math.max(type, 3), depth + 1);
  };
  const struct = (depth: number): void => {
    while (at < bytes.length) {
      const head = bytes[at++];
      if ((head & 15) === 0) return;
      if (head >> 4 === 0) varint();
      skip(head & 15, depth + 1);
    }
  };
  struct(0);
}

/** The file, whose pages are looked at as they are read: the reader takes memory for as many values as a page says to have. */
function withCheckedPages(file: AsyncBuffer, metadata: FileMetaData): AsyncBuffer {
  const chunks = metadata.row_groups.flatMap(({ columns, num_rows: rows }) =>
    columns.flatMap(({ meta_data: meta }) => {
      if (!meta) return [];
      const start = Number(meta.dictionary_page_offset || meta.data_page_offset);
      return [{ start, end: start + Number(meta.total_compressed_size), rows: Number(rows) }];
    }),
  );
  return {
    byteLength: file.byteLength,
    slice: async (from, to) => {
      const bytes = await file.slice(from, to);
      for (const { start, end, rows } of chunks) {
        if (start < from || start >= from + bytes.byteLength) continue;
        checkPages(new Uint8Array(bytes).subarray(start - from, end - from), rows);
      }
      return bytes;
    },
  };
}

/** Walks the pages of a column in a row group. @throws RowFault where their values are more than its rows */
function checkPages(bytes: Uint8Array, rows: number): void {
  let values = 0;
  for (let at = 0; at < bytes.length - 1; ) {
    const page = pageAt(bytes, at);
    // A dictionary has at most the values of its column.
    for (const said of page.values) {
      if (said < 0 || said > rows)
        throw new RowFault(`a page says that it has ${said} values, and its row group ${rows} rows`);
    }
    values += page.isData ? (page.values[0] ?? 0) : 0;
    if (values > rows)
      throw new RowFault(`the pages of a column say more values than the ${rows} rows of their row group`);
    if (!(page.end > at)) throw new RowFault('a page ends before it begins');
    at = page.end;
  }
}

interface PageBounds {
  readonly isData: boolean;
  /** How many values, and rows, the page says to have. */
  readonly values: readonly number[];
  readonly end: number;
}

/** The numbers of a page's header, in compact Thrift, that the reader takes memory for. */
function pageAt(bytes: Uint8Array, from: number): PageBounds {
  let at = from;
  const fields = new Map<string, number>();
  const next = () => {
    if (at >= bytes.length) throw new RowFault('the header of a page is cut off');
    return bytes[at++];
  };
  const varint = (): number => {
    let value = 0;
    for (let scale = 1; scale < 2 ** 70; scale *= 128) {
      const byte = next();
      value += (byte & 0x7f) * scale;
      if (byte < 128) return value;
    }
    throw new RowFault('the header of a page has a number of more than ten bytes');
  };
  const zigzag = () => {
    const value = varint();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  };
  const struct = (path: string, depth: number): void => {
    if (depth > 8) throw new RowFault('the header of a page is nested more than 8 levels deep');
    for (let field = 0; ; ) {
      const head = next();
      const type = head & 15;
      if (type === 0) return;
      field = head >> 4 === 0 ? zigzag() : field + (head >> 4);
      const name = `${path}${field}`;
      if (type === 3) at += 1;
      else if (type >= 4 && type <= 6) fields.set(name, zigzag());
      else if (type === 7) at += 8;
      else if (type === 8) at += varint();
      else if (type === 12) struct(`${name}.`, depth + 1);
      // No header of a page has a list.
      else if (type > 2) throw new RowFault(`the header of a page has a field of the type ${type}`);
    }
  };
  struct('', 0);
  const isData = fields.get('1') !== 2;
  const said = ['5.1', '7.1', '8.1', '8.2', '8.3'].flatMap((name) => fields.get(name) ?? []);
  // The reader keeps 32 bits of such a number.
  if ([...said, fields.get('2') ?? 0, fields.get('3') ?? 0].some((value) => Math.abs(value) >= 2 ** 31))
    throw new RowFault('the header of a page has a number of more than 32 bits');
  boundedPage(fields.get('2') ?? 0);
  return { isData, values: said, end: at + (fields.get('3') ?? 0) };
}

async function feedGroups(
  path: string,
  { layout, digests }: Target,
  fields: readonly string[],
  maxRows: number,
): Promise<number> {
  await checkFooter(path);
  const unchecked = await asyncBufferFromFile(path);
  const metadata = await parquetMetadataAsync(unchecked);
  const groups = metadata.row_groups.map(({ num_rows: rows }) => Number(rows));
  const rows = groups.reduce((sum, each) => sum + each, 0);
  if (rows !== Number(metadata.num_rows))
    throw new RowFault(`the footer says ${metadata.num_rows} rows, and ${rows} in its row groups`);
  if (rows > maxRows) throw new RowFault(`the footer says ${rows} rows, and the manifest ${maxRows}`);
  const wrong = groups.find((each) => !(each >= 0 && each <= MAX_GROUP_ROWS));
  if (wrong !== undefined)
    throw new RowFault(`a row group says ${wrong} rows, and at most ${MAX_GROUP_ROWS} are read at once`);
  const file = withCheckedPages(unchecked, metadata);
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
  return rows;
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
