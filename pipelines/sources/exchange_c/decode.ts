/**
 * Decodes exchange C's trade files:
 * `timestamp,symbol,side,size,price,tickDirection,trdMatchID,grossValue,homeNotional,foreignNotional`. Files of later
 * years end with a column `RPI`. Rows come in any order. The decoder frames them in the order of the number in their
 * match id, so the same trades give the same log whatever the order of the file. It therefore sorts a day, under a named
 * limit (sorted-rows.ts).
 * While the file arrives, the decoder parses each row, and frames those whose place is certain: all but the last megabytes of a
 * file that is nearly in order, and none of another before its end. If a row comes so late that rows behind it are framed
 * already, the document is read again and sorted as a whole. The decoder drops a row that repeats another byte for byte, which
 * it parses twice, and refuses one with the same id and other bytes.
 */
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { ExactTotal } from '../../../shared/proof/row-facts.ts';
import { type KnownText, knownText, RowHasher } from '../../../shared/proof/row-hash.ts';
import type { DecodedItem, PartitionWindow } from '../feed-types.ts';
import { PartitionFrames } from '../trades/partition-frames.ts';
import {
  addTo,
  HASHED_TAKER_SIDES,
  LineSplitter,
  type LineTaker,
  RowReader,
  readHeader,
  TAKER_SIDES,
} from '../trades/row-reader.ts';
import { RowScanner } from '../trades/row-scanner.ts';
import type { SortedRow } from './row-run.ts';
import { SortedRows, type SortedRowsOptions } from './sorted-rows.ts';

const CR = 13;
const COMMA = 44;
const DOT = 46;
const LF = 10;
const LETTER_M = 0x6d;
const DASH = 0x2d;
const COLUMNS = [
  'timestamp',
  'symbol',
  'side',
  'size',
  'price',
  'tickDirection',
  'trdMatchID',
  'grossValue',
  'homeNotional',
  'foreignNotional',
] as const;
const WITH_RPI = [...COLUMNS, 'RPI'] as const;
const ID_COLUMN = 6;
/** Float64 printers write at most 17; the rest is margin. */
const MAX_SIGNIFICANT_DIGITS = 20;
const MAX_TICK_BYTES = 32;
const MAX_ID_BYTES = 40;
const MAX_ID = 1e15;
/** At most this many missing ids, or runs of them, are named. */
const MAX_NAMED_GAPS = 20;
const RPI = /^(?:true|false|0|1)?$/i;

export interface ExchangeCDecodeOptions {
  /** Every error names it. */
  readonly document: string;
  readonly symbol: string;
  readonly window: PartitionWindow;
  readonly frameRawBytes: number;
  /** Most bytes of rows that may be sorted, and the setting that limits them. */
  readonly maxHeldBytes: number;
  readonly limitName: string;
  /** Where rows are kept that do not fit in memory. */
  readonly sorting: SortedRowsOptions;
}

export class ExchangeCDecoder implements LineTaker, Disposable {
  readonly reader: RowReader;
  readonly #options: ExchangeCDecodeOptions;
  readonly #symbol: Buffer;
  readonly #hashedSymbol: KnownText;
  readonly #feeder = new LineSplitter(this);
  readonly #held: SortedRows;
  readonly #scanner: RowScanner;
  /** Of all rows of the file, and of those among them that repeat another. */
  readonly #sums = new RowSums();
  readonly #repeated = new RowSums();
  readonly #frames: PartitionFrames;
  readonly #missing = new MissingIds();
  /** The row that was framed last. */
  readonly #last = { id: -1, line: 0, buffer: Buffer.alloc(0) as Buffer, from: 0, to: 0 };
  #repeats = 0;
  #started = false;

  // The row that was parsed last.
  #id = 0;
  #ms = 0;

  constructor(options: ExchangeCDecodeOptions) {
    this.#options = options;
    this.#held = new SortedRows(options.sorting);
    this.#scanner = new RowScanner(options.symbol);
    this.#frames = new PartitionFrames(options.frameRawBytes);
    this.#frames.begin(options.window);
    this.#symbol = Buffer.from(options.symbol);
    this.#hashedSymbol = knownText(options.symbol);
    this.reader = new RowReader({
      document: options.document,
      columns: COLUMNS,
      maxSignificantDigits: MAX_SIGNIFICANT_DIGITS,
    });
  }

  /** @throws ReadAgain when the file is less in order than it was so far. */
  push(chunk: Buffer): Iterable<DecodedItem> {
    this.#feeder.push(chunk);
    return this.#certainRows();
  }

  lines(buffer: Buffer, from: number, to: number): void {
    let start = from;
    if (!this.#started) {
      this.#started = true;
      start = readHeader(this.reader, buffer, from, [COLUMNS, WITH_RPI]);
    }
    if (start === to) return;
    const { maxHeldBytes, limitName, document } = this.#options;
    // Copied, because the decompressor reuses the chunk.
    const held = this.#held.open(buffer.subarray(start, to));
    if (this.#held.bytes > maxHeldBytes) {
      throw new TidemarkError(
        'SOURCE_TOO_LARGE',
        `${document} has more rows than ${limitName} allows to sort (${maxHeldBytes} bytes)`,
        { details: { document, limit: limitName, maxBytes: maxHeldBytes } },
      );
    }
    this.#scanner.begin();
    for (let at = held.from; at < held.to; ) {
      const scanned = this.#scan(held.buffer, at, held.to);
      if (scanned > at) {
        at = scanned;
        continue;
      }
      this.reader.line++;
      const end = this.#row(held.buffer, at, this.#sums);
      this.#held.add(this.#id, this.#ms, at, end);
      at = end + (held.buffer[end] === CR ? 2 : 1);
    }
  }

  /** Ends the file. Yields the frames that are left, then the end of the partition. */
  *finish(): Generator<DecodedItem> {
    this.#feeder.finish();
    const { document } = this.#options;
    if (this.#held.rows === 0) {
      throw new TidemarkError('SOURCE_EMPTY', `${document} holds no rows`, { details: { document } });
    }
    this.#held.end();
    yield* this.#certainRows();
    const { gaps, named } = this.#missing;
    this.#frames.end({
      gaps,
      ...(gaps > 0 ? { missing_offsets: named } : {}),
      repeats_dropped: this.#repeats,
      ...this.#sums.without(this.#repeated),
    });
    yield* this.#frames.take();
  }

  /** Frames the rows whose place is certain, in the order of their ids. */
  *#certainRows(): Generator<DecodedItem> {
    const held = this.#held;
    const frames = this.#frames;
    const last = this.#last;
    for (let row = held.next(); row !== undefined; row = held.next()) {
      if (last.id === row.id) {
        this.#checkSame(row, last);
        this.#row(row.buffer, row.from, this.#repeated);
        this.#repeats++;
        continue;
      }
      if (last.id >= 0) this.#missing.between(last.id, row.id);
      frames.append(row.id, row.ms, row.buffer, row.from, row.to);
      last.id = row.id;
      last.line = row.line;
      last.buffer = row.buffer;
      last.from = row.from;
      last.to = row.to;
      held.keep(row.buffer);
      if (frames.hasItems) yield* frames.take();
    }
    // The rows that are held may move now.
    frames.endAppended();
  }

  [Symbol.dispose](): void {
    this.#held[Symbol.dispose]();
  }

  #checkSame(row: SortedRow, twin: Omit<SortedRow, 'id' | 'ms'>): void {
    if (twin.buffer.compare(row.buffer, row.from, row.to, twin.from, twin.to) === 0) return;
    this.reader.line = row.line;
    const why = `the id ${row.id} repeats that of line ${twin.line}, but the content differs`;
    throw this.reader.fault('SOURCE_ROW_CONFLICT', why, { found: row.id });
  }

  /** Reads the rows that are written as usual. @returns the position behind them. */
  #scan(buffer: Buffer, start: number, to: number): number {
    const scanner = this.#scanner;
    const { fromMs, toMs } = this.#options.window;
    const end = scanner.scanC(buffer, start, to, fromMs, toMs, this.reader.columns.length > COLUMNS.length);
    if (end > start) {
      this.reader.line += scanner.rows;
      this.#sums.add(scanner);
      const { ids, times, places, lengths } = scanner.lists;
      for (let row = 0; row < scanner.rows; row++) {
        const at = start + places[row];
        this.#held.add(ids[row], times[row], at, at + lengths[row]);
      }
    }
    return end;
  }

  /** Parses the row at `start` and adds it to the sums. @returns the position of its CR or LF. */
  #row(buffer: Buffer, start: number, sums: RowSums): number {
    const reader = this.reader;
    const ms = this.#time(buffer, start);
    reader.exactly(buffer, reader.next(buffer, 0), 1, this.#symbol);
    const side = reader.word(buffer, reader.next(buffer, 1), 2, TAKER_SIDES);
    const size = reader.decimal(buffer, reader.next(buffer, 2), 3, 'legal');
    const sizeUnits = reader.units;
    const price = reader.decimal(buffer, reader.next(buffer, 3), 4);
    const priceUnits = reader.units;
    const tick = reader.next(buffer, 4);
    const tickEnd = this.#letters(buffer, tick);
    const matchId = reader.next(buffer, 5);
    const id = this.#matchId(buffer, matchId);
    const matchIdEnd = reader.at;
    const gross = reader.magnitude(buffer, reader.next(buffer, ID_COLUMN), 7);
    const home = reader.decimal(buffer, reader.next(buffer, 7), 8, 'legal');
    const homeUnits = reader.units;
    const foreign = reader.decimal(buffer, reader.next(buffer, 8), 9);
    const foreignUnits = reader.units;
    if (reader.columns.length > COLUMNS.length) this.#rpi(buffer, reader.next(buffer, 9));
    const end = reader.endOfRow(buffer, start, reader.columns.length - 1);
    this.#id = id;
    this.#ms = ms;

    addTo(sums.price, priceUnits, price);
    addTo(sums.size, sizeUnits, size);
    sums.gross_value.addFloat(gross, 1);
    addTo(sums.home_notional, homeUnits, home);
    addTo(sums.foreign_notional, foreignUnits, foreign);
    // The columns are in the order of the native table (shared/proof/row-hash.ts).
    const { hasher } = sums;
    hasher.begin(ms, 0, 0);
    hasher.int8(id);
    hasher.float8(price);
    hasher.float8(size);
    hasher.float8(gross);
    hasher.float8(home);
    hasher.float8(foreign);
    hasher.known(HASHED_TAKER_SIDES[side]);
    hasher.text(buffer, tick, tickEnd);
    hasher.known(this.#hashedSymbol);
    hasher.text(buffer, matchId, matchIdEnd);
    hasher.end();
    return end;
  }

  /**
   * Decimal seconds as ms, rounded half up. A time that rounds to the end of its day becomes the day's last
   * millisecond.
   */
  #time(buffer: Buffer, start: number): number {
    const reader = this.reader;
    const whole = reader.integer(buffer, start, 0, 11) * 1000;
    let ms = whole;
    if (buffer[reader.at] === DOT) {
      let at = reader.at + 1;
      // The fourth decimal decides the rounding.
      let tenths = 0;
      let decimals = 0;
      for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) {
        if (decimals === 4) continue;
        tenths = tenths * 10 + digit;
        decimals++;
      }
      for (; decimals < 4; decimals++) tenths *= 10;
      ms += ((tenths + 5) / 10) | 0;
      if (at === reader.at + 1 || at - reader.at > 20) {
        throw reader.badCell(buffer, start, 0, 'must be decimal seconds');
      }
      reader.at = at;
    }
    if (buffer[reader.at] !== COMMA) throw reader.badCell(buffer, start, 0, 'must be decimal seconds');
    const { key, fromMs, toMs } = this.#options.window;
    if (ms === toMs && whole < toMs) return toMs - 1;
    if (ms < fromMs || ms >= toMs) throw reader.outside(ms, key);
    return ms;
  }

  #letters(buffer: Buffer, start: number): number {
    let at = start;
    for (let letter = buffer[at] | 0x20; letter >= 0x61 && letter <= 0x7a; letter = buffer[++at] | 0x20);
    if (at === start || at - start > MAX_TICK_BYTES) throw this.reader.badCell(buffer, start, 5, 'must be a word');
    this.reader.at = at;
    return at;
  }

  /** Reads `m-` and digits. @returns the number. */
  #matchId(buffer: Buffer, start: number): number {
    const reader = this.reader;
    const rule = 'must be m- followed by digits';
    if (buffer[start] !== LETTER_M || buffer[start + 1] !== DASH) throw reader.badCell(buffer, start, ID_COLUMN, rule);
    let at = start + 2;
    let id = 0;
    for (let digit = buffer[at] - 48; digit >= 0 && digit <= 9; digit = buffer[++at] - 48) id = id * 10 + digit;
    if (at === start + 2 || buffer[at] !== COMMA) {
      if (buffer[at] === LF || buffer[at] === CR) throw reader.columnCount(buffer, at);
      throw reader.badCell(buffer, start, ID_COLUMN, rule);
    }
    if (id >= MAX_ID || at - start > MAX_ID_BYTES)
      throw reader.badCell(buffer, start, ID_COLUMN, 'must be below m-1e15');
    reader.at = at;
    return id;
  }

  #rpi(buffer: Buffer, start: number): void {
    let at = start;
    while (buffer[at] !== COMMA && buffer[at] !== LF && buffer[at] !== CR) at++;
    if (at - start > 5 || !RPI.test(buffer.toString('latin1', start, at))) {
      throw this.reader.badCell(buffer, start, 10, 'must be empty, true, false, 0 or 1');
    }
    this.reader.at = at;
  }
}

/** The facts of rows that do not depend on their order: exact totals and the sum of the row hashes. */
class RowSums {
  readonly price = new ExactTotal();
  readonly size = new ExactTotal();
  readonly gross_value = new ExactTotal();
  readonly home_notional = new ExactTotal();
  readonly foreign_notional = new ExactTotal();
  readonly hasher = new RowHasher();

  /** Adds the rows of a scan. */
  add(scanner: RowScanner): void {
    scanner.addTo(this.hasher, [this.price, this.size, this.gross_value, this.home_notional, this.foreign_notional]);
  }

  /** The facts without those of `others`, which are among these rows. */
  without(others: RowSums): { readonly totals: Record<string, string>; readonly rows_hash: string } {
    const difference = (all: string, some: string) => String(BigInt(all) - BigInt(some));
    const names = ['price', 'size', 'gross_value', 'home_notional', 'foreign_notional'] as const;
    const totals = names.map((name) => [name, difference(this[name].toString(), others[name].toString())]);
    return { totals: Object.fromEntries(totals), rows_hash: difference(this.hasher.total(), others.hasher.total()) };
  }
}

/** The ids missing between rows in the order of their ids. */
class MissingIds {
  gaps = 0;
  readonly named: string[] = [];

  between(before: number, after: number): void {
    const step = after - before;
    if (step === 1) return;
    assert(step > 1, `the rows come in the order of their ids, not ${after} after ${before}`);
    this.gaps += step - 1;
    const first = before + 1;
    if (this.named.length < MAX_NAMED_GAPS) this.named.push(step === 2 ? `${first}` : `${first}..${first + step - 2}`);
    else if (this.named.length === MAX_NAMED_GAPS) this.named.push('...');
  }
}
