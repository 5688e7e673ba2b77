/**
 * Feeds the rows of a CSV file (RFC 4180, LF, with a header) to the digests of their partitions. Rows without quotes are read from
 * their bytes; a text or a number never becomes an object on the way.
 */
import { type Cell, numberOf, RowFault, type RowLayout } from './cells.ts';
import type { RowDigests } from './rows.ts';

/** A row of a transaction of a whole block has tens of megabytes. */
const MAX_ROW_BYTES = 64 * 1024 * 1024;

/** Node reads one frame of zstd, and other programs all: rows in a second one would be seen by everybody but a check. */
export const GOES_ON = 'the packed file goes on after its end';

const COMMA = 0x2c;
const LF = 0x0a;
const QUOTE = 0x22;
const POINT = 0x2e;
const MINUS = 0x2d;
const ZERO = 0x30;

/** Powers of ten that a double holds exactly: a quotient of two exact numbers is rounded once. */
const POWERS = Array.from({ length: 23 }, (_, exponent) => 10 ** exponent);
const MAX_EXACT = 2 ** 53;

/** The number of decimal text, the same as `Number` gives. */
export function decimalOf(bytes: Uint8Array, start: number, end: number): number {
  let at = start;
  const isNegative = bytes[at] === MINUS;
  if (isNegative) at++;
  let digits = 0;
  let decimals = -1;
  for (; at < end; at++) {
    const byte = bytes[at];
    if (byte === POINT && decimals < 0) {
      decimals = 0;
      continue;
    }
    const digit = byte - ZERO;
    if (digit < 0 || digit > 9) return slowNumber(bytes, start, end);
    digits = digits * 10 + digit;
    if (decimals >= 0) decimals++;
    if (digits >= MAX_EXACT) return slowNumber(bytes, start, end);
  }
  const signs = (isNegative ? 1 : 0) + (decimals >= 0 ? 1 : 0);
  if (end - start === signs || decimals > 22) return slowNumber(bytes, start, end);
  const value = decimals > 0 ? digits / POWERS[decimals] : digits;
  return isNegative ? -value : value;
}

/** Numbers of many digits or with an exponent, and whatever is none. */
const slowNumber = (bytes: Uint8Array, start: number, end: number): number =>
  numberOf(Buffer.from(bytes.buffer, bytes.byteOffset + start, end - start).toString('latin1'));

/** @throws RowFault */
function integer(value: number): number {
  if (Number.isSafeInteger(value)) return value;
  throw new RowFault(`${value} is not an integer`);
}

/** @throws RowFault */
function flagAt(bytes: Uint8Array, start: number, end: number): boolean {
  const flag = bytes[start] - ZERO;
  if (end === start + 1 && (flag === 0 || flag === 1)) return flag === 1;
  throw new RowFault('a flag is neither 0 nor 1');
}

const DAY_MS = 86_400_000;
/** The day that was written last: rows of a day come together. */
let lastDay = { number: Number.NaN, text: Buffer.alloc(0) };

/** Whether the cell is the instant as the service writes it, such as `2024-01-01T00:00:00.000Z`. */
function isInstant(bytes: Buffer, start: number, end: number, ms: number): boolean {
  const number = Math.floor(ms / DAY_MS);
  if (number !== lastDay.number) {
    const day = new Date(number * DAY_MS);
    if (Number.isNaN(day.getTime())) return false;
    lastDay = { number, text: Buffer.from(day.toISOString()) };
  }
  const { text } = lastDay;
  const rest = ms - number * DAY_MS;
  const seconds = Math.floor(rest / 1000);
  const minutes = Math.floor(seconds / 60);
  const put = (at: number, value: number) => {
    text[at] = ZERO + Math.floor(value / 10);
    text[at + 1] = ZERO + (value % 10);
  };
  put(11, Math.floor(minutes / 60));
  put(14, minutes % 60);
  put(17, seconds % 60);
  put(20, Math.floor((rest % 1000) / 10));
  text[22] = ZERO + (rest % 10);
  // A loop beats a call for 24 bytes.
  for (let at = 0; at < text.length; at++) {
    if (bytes[start + at] !== text[at]) return false;
  }
  return end - start === text.length;
}

/** How the columns of a layout are found in a header. */
export interface FieldPlaces {
  /** By column: the places of its fields. */
  readonly columns: readonly (readonly number[])[];
  /** Of the fields that tell the partition. */
  readonly by: readonly number[];
  /** Of the copies, -1 where the rows lack one. */
  readonly copies: readonly number[];
}

/** The fields that a layout needs and a file lacks. */
export function missingFields(layout: RowLayout, names: readonly string[]): string[] {
  const needed = [...layout.partitionFields, ...layout.columns.flatMap(({ fields }) => fields)];
  return [...new Set(needed)].filter((name) => !names.includes(name));
}

/**
 * @param names of the file's columns
 * @param listed the fields that the manifest lists
 * @throws RowFault naming what the file lacks, or where it differs from the manifest
 */
export function placesOf(layout: RowLayout, names: readonly string[], listed: readonly string[]): FieldPlaces {
  const other = names.findIndex((name, index) => name !== listed[index]);
  if (other >= 0)
    throw new RowFault(`column ${other + 1} is ${names[other]}, and ${listed[other] ?? 'none'} in the manifest`);
  if (names.length < listed.length) throw new RowFault(`column ${listed[names.length]} of the manifest is missing`);
  const twice = names.find((name, index) => names.indexOf(name) < index);
  if (twice !== undefined) throw new RowFault(`two columns are called ${twice}`);
  const missing = missingFields(layout, names);
  if (missing.length > 0) throw new RowFault(`the rows lack the fields ${missing.join(', ')}`);
  return {
    columns: layout.columns.map(({ fields }) => fields.map((name) => names.indexOf(name))),
    by: layout.partitionFields.map((name) => names.indexOf(name)),
    copies: layout.copies.map(({ field }) => names.indexOf(field)),
  };
}

export class CsvFeed {
  readonly #layout: RowLayout;
  readonly #digests: RowDigests;
  readonly #fields: readonly string[];
  #places: FieldPlaces | undefined;
  /** Whether rows can be written from their bytes. */
  #isPlain = false;
  /** The beginning of a row, in the pieces in which it came. */
  #rest: Buffer[] = [];
  #restBytes = 0;
  /** Where the cells of a row begin; a row with more is refused before it gets here. */
  #starts: Int32Array;
  #lines = 0;
  readonly #maxRows: number;

  /**
   * @param fields that the manifest lists
   * @param maxRows that the manifest leaves for this file: a small packed file may hold any number of them
   */
  constructor(
    layout: RowLayout,
    digests: RowDigests,
    fields: readonly string[],
    maxRows: number = Number.MAX_SAFE_INTEGER,
  ) {
    this.#maxRows = maxRows;
    this.#layout = layout;
    this.#digests = digests;
    this.#fields = fields;
    this.#starts = new Int32Array(fields.length + 1);
  }

  /** Rows so far, without the header. */
  get rows(): number {
    return Math.max(0, this.#lines - 1);
  }

  /** @throws RowFault naming the line */
  push(chunk: Buffer): void {
    // Rows end with a line feed: without one there is nothing to read yet.
    if (!chunk.includes(LF)) {
      this.#keep(chunk);
      return;
    }
    const bytes = this.#restBytes === 0 ? chunk : Buffer.concat([...this.#rest, chunk]);
    const end = this.#rows(bytes);
    this.#rest = [];
    this.#restBytes = 0;
    if (end < bytes.length) this.#keep(bytes.subarray(end));
  }

  /** @throws RowFault for a file that ends within a row */
  end(): void {
    if (this.#restBytes > 0) {
      // For the fault of its last row, which is the same wherever the file was cut.
      this.#rows(Buffer.concat(this.#rest));
      throw new RowFault(`the file ends within line ${this.#lines + 1}`);
    }
    if (!this.#places) throw new RowFault('the file has no header');
  }

  #keep(bytes: Buffer): void {
    this.#restBytes += bytes.length;
    if (this.#restBytes > MAX_ROW_BYTES) throw this.#fault(`the row has more than ${MAX_ROW_BYTES} bytes`);
    this.#rest.push(Buffer.from(bytes));
  }

  /** @returns where the rows that are complete end */
  #rows(bytes: Buffer): number {
    let at = 0;
    for (;;) {
      const next = this.#isPlain ? this.#plain(bytes, at) : this.#quoted(bytes, at);
      if (next < 0) return at;
      at = next;
      this.#lines++;
      if (this.rows > this.#maxRows) throw new RowFault(`the files hold more rows than the manifest says`);
    }
  }

  /** Reads the row at `start`. @returns where the next one begins, or -1 if its end is not there yet */
  #plain(bytes: Buffer, start: number): number {
    const starts = this.#starts;
    let cells = 1;
    starts[0] = start;
    let at = start;
    for (; ; at++) {
      if (at === bytes.length) return -1;
      const byte = bytes[at];
      if (byte === LF) break;
      if (byte === QUOTE) return this.#quoted(bytes, start);
      if (byte === COMMA) starts[cells++] = at + 1;
    }
    if (cells !== this.#fields.length) this.#miscounted(cells);
    starts[cells] = at + 1;
    const { columns, by, copies } = this.#places!;
    const [time] = by;
    const room = this.#digests.room(decimalOf(bytes, starts[time], starts[time + 1] - 1));
    if (!room) return this.#quoted(bytes, start);
    const { columns: types, order } = this.#layout;
    let offset = 0;
    try {
      for (let index = 0; index < columns.length; index++) {
        const [place] = columns[index];
        const from = starts[place];
        const to = starts[place + 1] - 1;
        const { type } = types[index];
        if (to <= from) room.null();
        else if (type === 'text') room.text(bytes, from, to);
        else if (type === 'bool') room.flag(flagAt(bytes, from, to));
        else {
          const value = decimalOf(bytes, from, to);
          if (type === 'float8') room.float(value);
          else room.integer(type === 'int8' ? 8 : type === 'int4' ? 4 : 2, integer(value));
          if (index === order[0]) offset = value;
        }
      }
      for (let index = 0; index < copies.length; index++) {
        if (copies[index] >= 0) this.#compare(bytes, index, copies[index]);
      }
    } catch (cause) {
      throw this.#fault(cause);
    }
    this.#digests.ended(offset);
    return at + 1;
  }

  /** Whether a copy is the value of its column, in the row whose cells begin at `#starts`. */
  #compare(bytes: Buffer, index: number, place: number): void {
    const starts = this.#starts;
    const { field, column, isTime } = this.#layout.copies[index];
    const [original] = this.#places!.columns[column];
    const [from, to] = [starts[place], starts[place + 1] - 1];
    const [first, last] = [starts[original], starts[original + 1] - 1];
    const isSame = isTime
      ? isInstant(bytes, from, to, decimalOf(bytes, first, last))
      : bytes.compare(bytes, first, last, from, to) === 0;
    if (!isSame) throw new RowFault(`${field} is not the value of ${this.#layout.columns[column].name}`);
  }

  #quoted(bytes: Buffer, start: number): number {
    const cells: (string | null)[] = [];
    for (let at = start; ; ) {
      const cell = cellAt(bytes, at);
      if (!cell) return -1;
      if (bytes[cell.end] !== COMMA && bytes[cell.end] !== LF) {
        throw this.#fault(`cell ${cells.length + 1} goes on after its closing quote`);
      }
      cells.push(cell.text);
      at = cell.end + 1;
      if (bytes[cell.end] === COMMA) continue;
      this.#take(cells);
      return at;
    }
  }

  #take(cells: readonly (string | null)[]): void {
    if (!this.#places) {
      this.#places = placesOf(
        this.#layout,
        cells.map((name) => name ?? ''),
        this.#fields,
      );
      const { columns, partition } = this.#layout;
      this.#isPlain = partition === 'file_day' && columns.every(({ rule }) => rule === 'field');
      return;
    }
    if (cells.length !== this.#fields.length) this.#miscounted(cells.length);
    const { columns, by, copies } = this.#places;
    try {
      this.#digests.add(
        columns.map((places) => places.map((place): Cell => cells[place])),
        by.map((place) => cells[place]),
        copies.map((place) => cells[place]),
      );
    } catch (cause) {
      throw this.#fault(cause);
    }
  }

  #miscounted(cells: number): never {
    throw this.#fault(`${cells} cells, and ${this.#fields.length} in the header`);
  }

  #fault(cause: unknown): RowFault {
    const what = cause instanceof Error ? cause.message : String(cause);
    return new RowFault(`line ${this.#lines + 1}: ${what}`, { cause });
  }
}

/** The cell at `start` and where its comma or line feed is; an empty one is null, and `""` an empty text. */
function cellAt(bytes: Buffer, start: number): { readonly text: string | null; readonly end: number } | undefined {
  if (bytes[start] !== QUOTE) {
    let end = start;
    while (end < bytes.length && bytes[end] !== COMMA && bytes[end] !== LF) end++;
    if (end === bytes.length) return undefined;
    return { text: end === start ? null : bytes.toString('utf8', start, end), end };
  }
  const parts: string[] = [];
  for (let from = start + 1; ; ) {
    const quote = bytes.indexOf(QUOTE, from);
    if (quote < 0 || quote + 1 >= bytes.length) return undefined;
    parts.push(bytes.toString('utf8', from, quote));
    if (bytes[quote + 1] !== QUOTE) return { text: parts.join('"'), end: quote + 1 };
    from = quote + 2;
  }
}
