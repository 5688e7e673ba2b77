/**
 * Rows of exchange C's tree `trading`:
 * `timestamp,symbol,side,size,price,tickDirection,trdMatchID,grossValue,homeNotional,foreignNotional`. Files of later
 * years end with a column `RPI`. The number in a match id is the trade's.
 */
import { ExactTotal } from '../../../shared/proof/row-facts.ts';
import { type KnownText, knownText, RowHasher } from '../../../shared/proof/row-hash.ts';
import type { PartitionWindow } from '../feed-types.ts';
import { addTo, HASHED_TAKER_SIDES, RowReader, TAKER_SIDES } from '../trades/row-reader.ts';
import { RowScanner } from '../trades/row-scanner.ts';
import type { DayRows, DayRowsOptions } from './decode.ts';
import type { SortedRow } from './row-run.ts';
import type { SortedRows } from './sorted-rows.ts';

const COMMA = 44;
const DOT = 46;
const LF = 10;
const CR = 13;
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
const RPI = /^(?:true|false|0|1)?$/i;

/** Sums a row when it arrives, since no fact of it depends on another, and takes repeats off at the end. */
export class TradingRows implements DayRows {
  readonly headers = [COLUMNS, WITH_RPI];
  readonly firstId = undefined;
  readonly reader: RowReader;
  readonly #window: PartitionWindow;
  readonly #symbol: Buffer;
  readonly #hashedSymbol: KnownText;
  readonly #scanner: RowScanner;
  /** Of all rows of the file, and of those among them that repeat another. */
  readonly #sums = new RowSums();
  readonly #repeated = new RowSums();
  id = 0;
  ms = 0;

  constructor({ document, symbol, window }: DayRowsOptions) {
    this.#window = window;
    this.#symbol = Buffer.from(symbol);
    this.#hashedSymbol = knownText(symbol);
    this.#scanner = new RowScanner(symbol);
    this.reader = new RowReader({ document, columns: COLUMNS, maxSignificantDigits: MAX_SIGNIFICANT_DIGITS });
  }

  begin(): void {
    this.#scanner.begin();
  }

  scan(buffer: Buffer, start: number, to: number, held: SortedRows): number {
    const scanner = this.#scanner;
    const { fromMs, toMs } = this.#window;
    const end = scanner.scanC(buffer, start, to, fromMs, toMs, this.reader.columns.length > COLUMNS.length);
    if (end > start) {
      this.reader.line += scanner.rows;
      this.#sums.add(scanner);
      const { ids, times, places, lengths } = scanner.lists;
      for (let row = 0; row < scanner.rows; row++) {
        const at = start + places[row];
        held.add(ids[row], times[row], at, at + lengths[row]);
      }
    }
    return end;
  }

  place(buffer: Buffer, start: number): number {
    return this.#row(buffer, start, this.#sums);
  }

  take(): void {}

  repeated({ buffer, from }: SortedRow): void {
    this.#row(buffer, from, this.#repeated);
  }

  facts() {
    return this.#sums.without(this.#repeated);
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
    this.id = id;
    this.ms = ms;

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
    const { key, fromMs, toMs } = this.#window;
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
