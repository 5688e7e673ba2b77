/**
 * The canonical bytes of rows, from which a leaf's `rows_sha256` is computed: what PostgreSQL writes for
 * `copy (select <columns> ... order by <offset>) to stdout (format binary)`. Here they are made again from the fields of an
 * answer, so that whoever has an export can compute the digest without a database.
 * Format: PostgreSQL documentation, COPY, "Binary Format".
 */
import { createHash, type Hash } from 'node:crypto';
import {
  type Cell,
  type ExpectedPartition,
  fault,
  flagOf,
  floatOf,
  integerOf,
  isSame,
  isSet,
  type LayoutType,
  RowFault,
  type RowLayout,
  RULES,
} from './cells.ts';

/** "PGCOPY\n\377\r\n\0", flags 0, no header extension. */
export const COPY_HEADER = Buffer.from('5047434f50590aff0d0a000000000000000000', 'hex');
export const COPY_TRAILER = Buffer.from('ffff', 'hex');

/** Writes rows in the binary COPY format into a buffer that grows. */
export class RowBytes {
  bytes = Buffer.allocUnsafe(64 * 1024);
  at = 0;

  begin(columns: number): void {
    this.#reserve(2);
    this.at = this.bytes.writeInt16BE(columns, this.at);
  }

  null(): void {
    this.#reserve(4);
    this.at = this.bytes.writeInt32BE(-1, this.at);
  }

  integer(width: 2 | 4 | 8, value: number): void {
    this.#reserve(12);
    const at = this.bytes.writeInt32BE(width, this.at);
    if (width === 2) this.at = this.bytes.writeInt16BE(value, at);
    else if (width === 4) this.at = this.bytes.writeInt32BE(value, at);
    else {
      this.bytes.writeInt32BE(Math.floor(value / 4294967296), at);
      this.at = this.bytes.writeUInt32BE(value >>> 0, at + 4);
    }
  }

  float(value: number): void {
    this.#reserve(12);
    this.bytes.writeInt32BE(8, this.at);
    this.at = this.bytes.writeDoubleBE(value, this.at + 4);
  }

  flag(value: boolean): void {
    this.#reserve(5);
    this.bytes.writeInt32BE(1, this.at);
    this.at = this.bytes.writeUInt8(value ? 1 : 0, this.at + 4);
  }

  /** Copies the bytes [start, end) of `from`. */
  text(from: Uint8Array, start: number, end: number): void {
    this.#reserve(4 + end - start);
    const at = this.bytes.writeInt32BE(end - start, this.at);
    // A loop beats a call for the few bytes of a symbol.
    for (let index = start; index < end; index++) this.bytes[at + index - start] = from[index];
    this.at = at + end - start;
  }

  string(value: string): void {
    // A UTF-16 unit takes at most three bytes of UTF-8.
    this.#reserve(4 + 3 * value.length);
    const length = this.bytes.write(value, this.at + 4);
    this.bytes.writeInt32BE(length, this.at);
    this.at += 4 + length;
  }

  cell(type: LayoutType, cell: Cell): void {
    if (!isSet(cell)) this.null();
    else if (type === 'text') this.string(typeof cell === 'string' ? cell : fault('a text', cell));
    else if (type === 'float8') this.float(floatOf(cell));
    else if (type === 'bool') this.flag(flagOf(cell));
    else this.integer(type === 'int8' ? 8 : type === 'int4' ? 4 : 2, integerOf(cell));
  }

  #reserve(more: number): void {
    if (this.at + more <= this.bytes.length) return;
    const larger = Buffer.allocUnsafe(Math.max(this.at + more, 2 * this.bytes.length));
    this.bytes.copy(larger, 0, 0, this.at);
    this.bytes = larger;
  }
}

/** Rows are hashed in pieces of this size. */
const HASHED_BYTES = 48 * 1024;

/** The digest of one partition's rows, in the order in which they come. */
class OrderedRows {
  readonly #hash: Hash = createHash('sha256').update(COPY_HEADER);
  rows = 0;
  /** The offset of the last row, and whether it came after all others. */
  last = Number.NEGATIVE_INFINITY;
  isOrdered = true;

  update(bytes: Uint8Array): void {
    this.#hash.update(bytes);
  }

  digest(): string {
    return this.#hash.update(COPY_TRAILER).digest('hex');
  }
}

/**
 * The rows of one partition, kept until all have come, because answers are not in the order of offsets. Blocks of a month have more
 * than memory holds: each is let go once its expected number is there. Of more rows than that, the number alone is wrong enough.
 */
class SortedRows {
  readonly #expected: number | null;
  #kept: { readonly key: readonly Cell[]; readonly bytes: Buffer }[] = [];
  #digest: string | undefined;
  rows = 0;

  constructor(expected: number | null) {
    this.#expected = expected;
  }

  add(key: readonly Cell[], bytes: Buffer): void {
    this.rows++;
    if (this.#digest !== undefined) return;
    this.#kept.push({ key, bytes });
    if (this.rows === this.#expected) this.digest();
  }

  digest(): string {
    if (this.#digest !== undefined) return this.#digest;
    const hash = createHash('sha256').update(COPY_HEADER);
    for (const { bytes } of this.#kept.sort((a, b) => compareKeys(a.key, b.key))) hash.update(bytes);
    this.#kept = [];
    this.#digest = hash.update(COPY_TRAILER).digest('hex');
    return this.#digest;
  }
}

function compareKeys(a: readonly Cell[], b: readonly Cell[]): number {
  for (let index = 0; index < a.length; index++) {
    const [left, right] = [a[index]!, b[index]!];
    // Texts by code points, which is the order of UTF-8's bytes and not always that of UTF-16.
    const order =
      typeof left === 'string'
        ? Buffer.compare(Buffer.from(left), Buffer.from(String(right)))
        : Number(left) - Number(right);
    if (order !== 0) return order;
  }
  return 0;
}

export interface PartitionDigest {
  readonly partition: string;
  readonly rows: number;
  /** Null where rows came out of the order of offsets and were not kept: read them again with `keep`. */
  readonly sha256: string | null;
}

const DAY_MS = 86_400_000;
const DAY = /"realtime_start":"(\d{4}-\d\d-\d\d)"/;
const ARTIFACT = /"artifact_sha256":"([0-9a-f]{64})"/;

/** Divides the rows of an answer by partition and computes the digest of each. */
export class RowDigests {
  readonly #layout: RowLayout;
  readonly #room = new RowBytes();
  readonly #ordered = new Map<string, OrderedRows>();
  readonly #sorted = new Map<string, SortedRows>();
  readonly #partitionOf: (cells: readonly Cell[]) => string | undefined;
  readonly #expected: ReadonlyMap<string, ExpectedPartition>;
  readonly #keep: ReadonlySet<string>;
  readonly #isOrdered: boolean;
  #current:
    | { readonly key: string; readonly rows: OrderedRows; readonly from: number; readonly to: number }
    | undefined;
  /** Rows that belong to none of the expected partitions. */
  strays = 0;

  /** @param keep partitions whose rows are kept and sorted; others of file days are hashed as they come. */
  constructor(layout: RowLayout, expected: readonly ExpectedPartition[], keep: ReadonlySet<string> = new Set()) {
    this.#layout = layout;
    this.#partitionOf = partitionsOf(layout, expected);
    this.#expected = new Map(expected.map((one) => [one.partition, one]));
    this.#keep = keep;
    this.#isOrdered = layout.partition === 'file_day';
  }

  /**
   * Adds a row. @throws RowFault
   * @param cells those of `layout.columns`' fields by column
   * @param by those of `layout.partitionFields`
   * @param copies those of `layout.copies`, undefined where the rows lack the field
   */
  add(cells: readonly (readonly Cell[])[], by: readonly Cell[], copies: readonly Cell[]): void {
    const partition = this.#partitionOf(by);
    const expected = partition === undefined ? undefined : this.#expected.get(partition);
    if (partition === undefined || !expected) {
      this.strays++;
      return;
    }
    const { columns, order } = this.#layout;
    const room = this.#room;
    const isKept = !this.#isOrdered || this.#keep.has(partition);
    const rows = isKept ? undefined : this.#open(partition);
    const start = room.at;
    room.begin(columns.length);
    const values: Cell[] = [];
    for (let index = 0; index < columns.length; index++) {
      const { rule, type } = columns[index];
      const value = RULES[rule](cells[index], expected);
      room.cell(type, value);
      values.push(value);
    }
    for (const [index, { field, column, isTime }] of this.#layout.copies.entries()) {
      if (copies[index] === undefined || isSame(columns[column].type, copies[index], values[column], isTime)) continue;
      throw new RowFault(`${field} is not the value of ${columns[column].name}`);
    }
    if (!rows) {
      const kept = this.#sorted.get(partition) ?? new SortedRows(expected.rows ?? null);
      this.#sorted.set(partition, kept);
      const key = order.map((index) => (columns[index].type === 'text' ? values[index] : integerOf(values[index])));
      kept.add(key, Buffer.from(room.bytes.subarray(start, room.at)));
      room.at = start;
      return;
    }
    this.#ended(rows, integerOf(values[order[0]]));
  }

  /**
   * Makes room for a row whose columns are all `field`s, for readers that write its bytes themselves.
   * @returns undefined if the row has to be given to `add`
   */
  room(timeMs: number): RowBytes | undefined {
    const current = this.#current;
    if (!current || timeMs < current.from || timeMs >= current.to) return undefined;
    this.#room.begin(this.#layout.columns.length);
    return this.#room;
  }

  /** Ends a row that was written into `room`. */
  ended(offset: number): void {
    this.#ended(this.#current!.rows, offset);
  }

  #ended(rows: OrderedRows, offset: number): void {
    if (offset <= rows.last) rows.isOrdered = false;
    rows.last = offset;
    rows.rows++;
    if (this.#room.at >= HASHED_BYTES) this.#flush();
  }

  /** Makes the partition the current one; the written rows of the one before it are hashed. */
  #open(partition: string): OrderedRows {
    if (this.#current?.key === partition) return this.#current.rows;
    this.#flush();
    const rows = this.#ordered.get(partition) ?? new OrderedRows();
    this.#ordered.set(partition, rows);
    const from = Date.parse(dayOf(partition)) + this.#layout.startOffsetMs;
    this.#current = { key: partition, rows, from, to: from + DAY_MS };
    return rows;
  }

  /** Hashes the rows that are written. */
  #flush(): void {
    const room = this.#room;
    if (room.at > 0) this.#current!.rows.update(room.bytes.subarray(0, room.at));
    room.at = 0;
  }

  /** The digests of all partitions that had rows. */
  digests(): PartitionDigest[] {
    this.#flush();
    const ordered = [...this.#ordered].map(([partition, rows]) => {
      const sha256 = rows.digest();
      return { partition, rows: rows.rows, sha256: rows.isOrdered ? sha256 : null };
    });
    const sorted = [...this.#sorted].map(([partition, rows]) => ({
      partition,
      rows: rows.rows,
      sha256: rows.digest(),
    }));
    return [...ordered, ...sorted];
  }
}

/** The day of a file day's key. */
export const dayOf = (partition: string): string => partition.slice(partition.indexOf(':') + 1);

/** The partition of a row, by the cells of the layout's partition fields; undefined where none is expected. */
function partitionsOf(
  layout: RowLayout,
  expected: readonly ExpectedPartition[],
): (cells: readonly Cell[]) => string | undefined {
  const keys = new Set(expected.map(({ partition }) => partition));
  const known = (key: string) => (keys.has(key) ? key : undefined);
  switch (layout.partition) {
    case 'file_day': {
      // All are of one instrument, which the key of another than the default begins with.
      const days = new Map(expected.map(({ partition }) => [dayOf(partition), partition]));
      let [from, to, day]: [number, number, string | undefined] = [0, 0, undefined];
      return ([time]) => {
        const ms = integerOf(time);
        if (ms < from || ms >= to) {
          from = Math.floor((ms - layout.startOffsetMs) / DAY_MS) * DAY_MS + layout.startOffsetMs;
          to = from + DAY_MS;
          day = days.get(new Date(from - layout.startOffsetMs).toISOString().slice(0, 10));
        }
        return day;
      };
    }
    case 'height': {
      const ranges = [...keys].map((key) => {
        const [first, last = first] = key.split('-').map(Number);
        return { key, first, last };
      });
      ranges.sort((a, b) => a.first - b.first);
      return ([height]) => rangeOf(ranges, integerOf(height));
    }
    case 'snapshot':
      return ([time]) => known(String(integerOf(time)));
    case 'vintage':
      return ([source, provenance]) => known(`${source}:${DAY.exec(String(provenance))?.[1]}`);
    case 'capture': {
      const byDocument = new Map(
        expected.map(({ partition, document_sha256: document }) => [
          `${partition.split(':').slice(0, 2).join(':')} ${document}`,
          partition,
        ]),
      );
      return ([source, provenance, time]) => {
        const day = new Date(integerOf(time)).toISOString().slice(0, 10);
        const key = byDocument.get(`${source}:${day} ${ARTIFACT.exec(String(provenance))?.[1]}`);
        return key ?? known(`${source}:${day}`);
      };
    }
  }
}

/** The range with the height, by bisection: an export of all blocks has hundreds of thousands. */
function rangeOf(
  ranges: readonly { readonly key: string; readonly first: number; readonly last: number }[],
  height: number,
): string | undefined {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (ranges[middle].first <= height) low = middle + 1;
    else high = middle;
  }
  const found = ranges[low - 1];
  return found && height <= found.last ? found.key : undefined;
}
