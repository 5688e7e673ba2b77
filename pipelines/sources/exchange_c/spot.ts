/**
 * Rows of exchange C's tree `spot`: `id,timestamp,price,volume,side`, in files since 2025 with a column `rpi`. Ids begin at 1
 * every day. What the dataset has beside them is computed: products are exact and rounded once, and the direction of a price
 * follows from the trade before. So a row is read as a whole when it has its place in the order of ids; before, its id and time.
 */
import type { WrittenAs } from '../../../shared/frame/codec.ts';
import { ExactTotal } from '../../../shared/proof/row-facts.ts';
import { type KnownText, knownText, RowHasher } from '../../../shared/proof/row-hash.ts';
import type { PartitionWindow } from '../feed-types.ts';
import { Factor } from '../trades/factor.ts';
import {
  addTo,
  HASHED_TAKER_SIDES,
  MAX_ROW_BYTES,
  MAX_VALUE,
  MAX_VALUE_TEXT,
  RowReader,
  TAKER_SIDES,
} from '../trades/row-reader.ts';
import type { DayRows, DayRowsOptions } from './decode.ts';
import type { SortedRow } from './row-run.ts';

const COMMA = 44;
const LF = 10;
const CR = 13;
const COLUMNS = ['id', 'timestamp', 'price', 'volume', 'side'] as const;
const WITH_RPI = [...COLUMNS, 'rpi'] as const;
/** Float64 printers write at most 17; the rest is margin. */
const MAX_SIGNIFICANT_DIGITS = 20;
const MAX_ID_DIGITS = 15;
const MS_DIGITS = 13;
/** Gross values are in 1e-8 of the quote unit. */
const GROSS_TENS = 8;
const RPI = /^(?:true|false|0|1)?$/i;

/** By the direction of the last change of price and whether this trade made it. */
const TICKS = {
  none: knownText(''),
  up: [knownText('ZeroPlusTick'), knownText('PlusTick')],
  down: [knownText('ZeroMinusTick'), knownText('MinusTick')],
} as const;

export class SpotRows implements DayRows {
  readonly headers = [COLUMNS, WITH_RPI];
  readonly firstId = 1;
  readonly written: WrittenAs;
  /** Reads ids and times as the file arrives. */
  readonly reader: RowReader;
  /** Reads whole rows in the order of their ids. */
  readonly #rows: RowReader;
  readonly #window: PartitionWindow;
  readonly #hashedSymbol: KnownText;
  readonly #price = new Factor();
  readonly #hasher = new RowHasher();
  readonly #totals = {
    price: new ExactTotal(),
    size: new ExactTotal(),
    gross_value: new ExactTotal(),
    home_notional: new ExactTotal(),
    foreign_notional: new ExactTotal(),
  };
  readonly #matchId = Buffer.from(`m-${'0'.repeat(MAX_ID_DIGITS)}`);
  #before = Number.NaN;
  #direction: 'up' | 'down' | undefined;
  id = 0;
  ms = 0;

  constructor({ document, symbol, window }: DayRowsOptions) {
    this.#window = window;
    this.#hashedSymbol = knownText(symbol);
    this.written = { layout: 'spot', constants: { symbol } };
    const options = { document, columns: COLUMNS, maxSignificantDigits: MAX_SIGNIFICANT_DIGITS };
    this.reader = new RowReader(options);
    this.#rows = new RowReader(options);
  }

  place(buffer: Buffer, start: number): number {
    const { reader } = this;
    this.id = reader.integer(buffer, start, 0, MAX_ID_DIGITS);
    reader.noLeadingZero(buffer, start, 0);
    if (this.id === 0) throw reader.badCell(buffer, start, 0, 'must be at least 1');
    const time = reader.next(buffer, 0);
    this.ms = reader.integer(buffer, time, 1, MS_DIGITS);
    if (reader.at - time !== MS_DIGITS) throw reader.badCell(buffer, time, 1, `must have ${MS_DIGITS} digits (ms)`);
    const { key, fromMs, toMs } = this.#window;
    if (this.ms < fromMs || this.ms >= toMs) throw reader.outside(this.ms, key);
    reader.next(buffer, 1);
    const lf = buffer.indexOf(LF, reader.at);
    const end = buffer[lf - 1] === CR ? lf - 1 : lf;
    if (end - start > MAX_ROW_BYTES) throw reader.tooLong();
    return end;
  }

  take({ buffer, from, to, line, id, ms }: SortedRow): void {
    const reader = this.#rows;
    reader.line = line;
    reader.columns = this.reader.columns;
    reader.integer(buffer, from, 0, MAX_ID_DIGITS);
    this.#matchId.set(buffer.subarray(from, reader.at), 2);
    const matchIdEnd = 2 + reader.at - from;
    reader.integer(buffer, reader.next(buffer, 0), 1, MS_DIGITS);
    const price = reader.decimal(buffer, reader.next(buffer, 1), 2);
    const priceUnits = reader.units;
    this.#price.take(reader);
    const size = reader.decimal(buffer, reader.next(buffer, 2), 3, 'legal');
    const sizeUnits = reader.units;
    const foreign = this.#price.times(reader, buffer);
    const gross = this.#price.times(reader, buffer, GROSS_TENS);
    if (foreign >= MAX_VALUE) {
      throw reader.fault(`price x volume must be below ${MAX_VALUE_TEXT}, found ${foreign}`);
    }
    const side = reader.word(buffer, reader.next(buffer, 3), 4, TAKER_SIDES);
    if (reader.columns.length > COLUMNS.length) this.#rpi(buffer, reader.next(buffer, 4));
    const end = reader.endOfRow(buffer, from, reader.columns.length - 1);
    if (end !== to)
      throw reader.badCell(buffer, end, reader.columns.length - 1, 'must be followed by the end of the row');

    const totals = this.#totals;
    addTo(totals.price, priceUnits, price);
    addTo(totals.size, sizeUnits, size);
    totals.gross_value.addFloat(gross, 1);
    addTo(totals.home_notional, sizeUnits, size);
    totals.foreign_notional.addFloat(foreign, 1e8);
    // The columns are in the order of the native table (shared/proof/row-hash.ts).
    const hasher = this.#hasher;
    hasher.begin(ms, 0, 0);
    hasher.int8(id);
    hasher.float8(price);
    hasher.float8(size);
    hasher.float8(gross);
    hasher.float8(size);
    hasher.float8(foreign);
    hasher.known(HASHED_TAKER_SIDES[side]);
    hasher.known(this.#tick(price));
    hasher.known(this.#hashedSymbol);
    hasher.text(this.#matchId, 0, matchIdEnd);
    hasher.end();
  }

  repeated(): void {}

  facts() {
    const totals = Object.entries(this.#totals).map(([name, total]) => [name, total.toString()]);
    return { totals: Object.fromEntries(totals), rows_hash: this.#hasher.total() };
  }

  #tick(price: number): KnownText {
    const isChange = price !== this.#before;
    if (price > this.#before) this.#direction = 'up';
    else if (price < this.#before) this.#direction = 'down';
    this.#before = price;
    return this.#direction === undefined ? TICKS.none : TICKS[this.#direction][isChange ? 1 : 0];
  }

  #rpi(buffer: Buffer, start: number): void {
    let at = start;
    while (buffer[at] !== COMMA && buffer[at] !== LF && buffer[at] !== CR) at++;
    if (at - start > 5 || !RPI.test(buffer.toString('latin1', start, at))) {
      throw this.#rows.badCell(buffer, start, 5, 'must be empty, true, false, 0 or 1');
    }
    this.#rows.at = at;
  }
}
