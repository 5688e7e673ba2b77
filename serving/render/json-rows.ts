/**
 * Rows as JSON objects, rendered from the bytes of PostgreSQL's binary rows without an object per row; and the envelope as
 * headers or Arrow metadata, for bodies that hold only rows.
 */
import { CELL, type Cell, CellPlaces, type OutputBuffer, type RowShape, type RowWriter, sizeAt } from './cells.ts';
import {
  maxStringBytes,
  readTimestamptzMs,
  TIMESTAMP_BYTES,
  TimestampWriter,
  writeNumber,
  writeString,
  writeUuid,
} from './text.ts';

const COMMA = 0x2c;
const QUOTE = 0x22;
const OPEN = 0x5b;
const LF = 0x0a;
const CLOSE_LF = 0x7d | (LF << 8);
const NULL_LE = 0x6c6c756e; // "null"
/** Size of the widest fixed-size cell: an integer of 20 digits, a float of 25 characters, a quoted timestamp or uuid. */
const FIXED_CELL_BYTES = 40;
const NO_HOLE = -1;

/** The bytes before a cell, `,"name":`, as 8-byte stores. ASCII text is never the bit pattern of a NaN. */
interface Prefix {
  readonly words: Float64Array;
  readonly length: number;
}

/** The text around the objects. */
interface JsonFraming {
  readonly kind: 'list' | 'lines';
  /** The text after the last row. */
  end(rows: number): string;
}

/** Members of an answer that are known when its last row was rendered. */
export type ClosingMembers = () => Readonly<Record<string, string>>;

/** A list that is the last member of an answer but `row_count` and the closing members. */
export const jsonList = (closing: ClosingMembers = () => ({})): JsonFraming => ({
  kind: 'list',
  end: (rows) => `${rows === 0 ? '[' : ''}],${JSON.stringify({ row_count: rows, ...closing() }).slice(1)}`,
});
/** One object per line; every line ends with LF. */
export const JSON_LINES: JsonFraming = { kind: 'lines', end: () => '' };

export class JsonRows implements RowWriter {
  readonly #out: OutputBuffer;
  readonly #framing: JsonFraming;
  readonly #cells: readonly Cell[];
  readonly #prefixes: readonly Prefix[];
  readonly #fixedBytes: number;
  readonly #variable: boolean;
  readonly #places: CellPlaces;
  /** A list's opening bracket overwrites the comma before the first row, which saves a branch per row. */
  readonly #isList: boolean;
  readonly #closeBytes: number;
  readonly #times = new TimestampWriter();
  #rows = 0;
  #hole = NO_HOLE;

  constructor(out: OutputBuffer, shape: RowShape, framing: JsonFraming) {
    const { columns } = shape;
    this.#out = out;
    this.#framing = framing;
    this.#isList = framing.kind === 'list';
    this.#closeBytes = this.#isList ? 1 : 2;
    this.#cells = columns.map((column) => column.cell);
    this.#prefixes = columns.map(({ field }, index) =>
      prefixOf(`${index > 0 ? ',' : this.#isList ? ',{' : '{'}${JSON.stringify(field.name)}:`),
    );
    this.#variable = this.#cells.includes(CELL.text);
    this.#fixedBytes = this.#prefixes.reduce((sum, prefix) => sum + prefix.length + FIXED_CELL_BYTES, 8);
    this.#places = new CellPlaces(shape);
  }

  get rows(): number {
    return this.#rows;
  }

  /** Writes a row: `at` is the start of its cells, after the column count; `length` is their size. */
  row(view: DataView, source: Buffer, at: number, length: number): void {
    const out = this.#out;
    const places = this.#places.of(view, at, length);
    out.reserve(this.#variable ? this.#fixedBytes + this.#places.mostShown * maxStringBytes(length) : this.#fixedBytes);
    const to = out.view;
    const start = out.at;
    const cells = this.#cells;
    let next = start;
    for (let index = 0; index < cells.length; index++) {
      const prefix = this.#prefixes[index];
      const { words } = prefix;
      for (let word = 0; word < words.length; word++) to.setFloat64(next + word * 8, words[word], true);
      next += prefix.length;
      const cell = cells[index];
      if (cell === CELL.validTo) {
        this.#hole = next;
        next += TIMESTAMP_BYTES + 2;
        continue;
      }
      const place = places[index];
      if (place < 0) {
        to.setUint32(next, NULL_LE, true);
        next += 4;
        continue;
      }
      const from = at + place;
      switch (cell) {
        case CELL.epochMs:
          next = this.#time(to, next, view.getInt32(from) * 4294967296 + view.getUint32(from + 4));
          break;
        case CELL.timestamptz:
          next = this.#time(to, next, readTimestamptzMs(view, from));
          break;
        case CELL.text:
          next = writeString(out.bytes, next, source, from, from + sizeAt(view, from));
          break;
        case CELL.uuid:
          to.setUint8(next, QUOTE);
          next = writeUuid(out.bytes, next + 1, source, from);
          to.setUint8(next++, QUOTE);
          break;
        default:
          next = writeNumber(cell, to, next, view, from);
      }
    }
    to.setUint16(next, CLOSE_LF, true);
    if (this.#rows++ === 0 && this.#isList) to.setUint8(start, OPEN);
    out.at = next + this.#closeBytes;
  }

  /** Sets the end of validity of the last row written. The buffer must not be handed on between the two. */
  resolve(ms: number): void {
    if (this.#hole === NO_HOLE) return;
    this.#time(this.#out.view, this.#hole, ms);
    this.#hole = NO_HOLE;
  }

  flush(): void {
    if (this.#hole === NO_HOLE) this.#out.flush();
  }

  end(): void {
    this.#out.text(this.#framing.end(this.#rows));
  }

  #time(to: DataView, at: number, ms: number): number {
    to.setUint8(at, QUOTE);
    const next = this.#times.write(to, at + 1, ms);
    to.setUint8(next, QUOTE);
    return next + 1;
  }
}

function prefixOf(text: string): Prefix {
  const length = Buffer.byteLength(text);
  const padded = Buffer.alloc(Math.ceil(length / 8) * 8, COMMA);
  padded.write(text);
  const view = new DataView(padded.buffer, padded.byteOffset, padded.length);
  const words = new Float64Array(padded.length / 8);
  for (let i = 0; i < words.length; i++) words[i] = view.getFloat64(i * 8, true);
  return { words, length };
}

/** The members of an answer beside its rows. */
export type Envelope = Readonly<Record<string, unknown>>;

/**
 * The envelope inside a body. It leaves out freshness, which changes every second: the same rows of the same window must yield
 * the same bytes.
 */
export function envelopeMetadata(envelope: Envelope): [name: string, text: string][] {
  return Object.entries(envelope)
    .filter(([name]) => name !== 'freshness')
    .map(([name, value]) => [name, textOf(value)]);
}

/** The envelope as headers: `view_id` becomes `X-Svc-View-Id`. */
export function envelopeHeaders(envelope: Envelope): Record<string, string> {
  return Object.fromEntries(
    Object.entries(envelope).map(([name, value]) => [
      headerName(name),
      SHORTENED[name]?.(value) ?? ascii(textOf(value)),
    ]),
  );
}

/** `row_count` -> `X-Svc-Row-Count` */
export const headerName = (name: string): string =>
  `X-Svc-${name.replaceAll(/(?:^|_)([a-z])/g, (_, letter: string) => `-${letter.toUpperCase()}`).slice(1)}`;

/** Clients accept 16 KiB of headers and common proxies less; the schema of the widest frame takes 6 KiB. */
const MAX_WARNINGS_BYTES = 4096;
const MAX_COLUMNS_BYTES = 3072;

/** Details beyond this are left out first: a sample's seed stays where a hundred gaps do not fit. */
const MAX_DETAILS_BYTES = 512;

/** What may not fit into a header. */
const SHORTENED: Readonly<Record<string, (value: unknown) => string>> = {
  warnings: warningsHeader,
  columns: columnsHeader,
};

/** The first of the texts that is short enough, or the last. */
const fitting = (shorter: readonly unknown[], maxBytes: number): string => {
  const texts = shorter.map((some) => ascii(JSON.stringify(some)));
  return texts.find((text) => text.length <= maxBytes) ?? texts[texts.length - 1];
};

/** Columns of a frame: without what the request says of each, or without any. */
function columnsHeader(columns: unknown): string {
  const list = columns as readonly Readonly<Record<string, unknown>>[];
  const unasked = list.map(({ name, proved_from_utc, proved_through_utc, warnings }) => {
    return { name, proved_from_utc, proved_through_utc, warnings };
  });
  return fitting([list, unasked, { omitted: true }], MAX_COLUMNS_BYTES);
}

/** Warnings that name a hundred gaps do not fit into a header: it then omits their details and says so. */
function warningsHeader(warnings: unknown): string {
  const list = warnings as readonly { readonly code: string; readonly message: string; readonly details: unknown }[];
  const isLong = (details: unknown) => JSON.stringify(details).length > MAX_DETAILS_BYTES;
  const shorter = [
    list,
    list.map((one) => (isLong(one.details) ? { ...one, details: { omitted: true } } : one)),
    list.map(({ code, message }) => ({ code, message, details: { omitted: true } })),
    list.map(({ code }) => ({ code })),
  ];
  return fitting(shorter, MAX_WARNINGS_BYTES);
}

/** Texts unchanged, everything else as JSON. */
const textOf = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value));

/** Header values are ASCII; JSON can escape every other character. */
const ascii = (text: string): string =>
  text.replaceAll(/[^\x20-\x7e]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
