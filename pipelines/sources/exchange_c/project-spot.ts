/** The projector's reader of events of exchange C's tree `spot`. It shares no parsing with the decoder. */
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import type { PartitionWindow } from '../../rows/binary-copy.ts';
import { DecimalProduct, DecimalReader, nearestFloat } from '../../rows/exact-decimal.ts';
import { malformed } from '../trades/row-reader.ts';
import { type RowLayout, TradeRows } from '../trades/trade-rows.ts';

const COMMA = 44;
const LF = 10;
const SIDES = { b: Buffer.from('buy'), s: Buffer.from('sell') };
/** By `change`. */
const PLUS = { new: Buffer.from('PlusTick'), same: Buffer.from('ZeroPlusTick') };
const MINUS = { new: Buffer.from('MinusTick'), same: Buffer.from('ZeroMinusTick') };
const NO_TICK = Buffer.alloc(0);
const MATCH_PREFIX = 'm-';
const MAX_ID_DIGITS = 15;
/** Gross values are in 1e-8 of the quote unit. */
const GROSS_PLACES = 8;

const layoutOf = (symbol: Buffer): RowLayout => ({
  columns: exchangeCSpotTrades.native.columns.length,
  /** `1,1696118403019,1,1,buy` */
  minEventBytes: 24,
  /** Column count, seven numbers, the lengths of four texts, and the texts that the row does not state. */
  rowBytes: 2 + 7 * 12 + 4 * 4 + MINUS.same.length + symbol.length + MATCH_PREFIX.length,
  hasTexts: true,
  /** Prices have one or two decimals, volumes six to eight. */
  quoteScale: 10,
});

export class SpotRowProjector extends TradeRows {
  readonly #symbol: Buffer;
  readonly #price = new DecimalReader();
  readonly #volume = new DecimalReader();
  readonly #quote = new DecimalProduct();
  readonly #match = Buffer.from(MATCH_PREFIX.padEnd(MATCH_PREFIX.length + MAX_ID_DIGITS));
  /** The price of the row before, and the texts of the last change. */
  #last = 0;
  #ticks: typeof PLUS | typeof MINUS | undefined;

  constructor(window: PartitionWindow, symbol: string) {
    super(window, layoutOf(Buffer.from(symbol)));
    this.#symbol = Buffer.from(symbol);
  }

  protected override row(raw: Buffer, start: number): number {
    let at = start;
    let id = 0;
    for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) id = id * 10 + digit;
    const idDigits = at - start;
    if (raw[at] !== COMMA || idDigits === 0 || idDigits > MAX_ID_DIGITS) throw malformed(raw, start);
    raw.copy(this.#match, MATCH_PREFIX.length, start, at);
    let ms = 0;
    at++;
    for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) ms = ms * 10 + digit;
    if (raw[at] !== COMMA) throw malformed(raw, start);
    const priceStart = at + 1;
    this.#price.read(raw, priceStart, COMMA);
    const volumeStart = this.#price.end + 1;
    this.#volume.read(raw, volumeStart, COMMA);
    at = this.#volume.end + 1;
    const side = (raw[at] | 0x20) === 0x62 ? SIDES.b : SIDES.s;
    at += side.length;
    if (raw[at] !== COMMA && raw[at] !== LF) throw malformed(raw, start);
    while (raw[at] !== LF && at < raw.length) at++;
    if (raw[at++] !== LF) throw malformed(raw, start);

    const { seconds, copy } = this;
    const second = seconds.bucket(ms);
    if (second < 0) throw new TidemarkError('LOG_DAMAGED', `Trade ${id} at ${ms} ms is outside its partition`);
    const quote = this.#quote;
    const price = this.#price.value;
    quote.multiply(raw, this.#price, priceStart, this.#volume, volumeStart);
    seconds.price(second, id, price);
    seconds.quantity(second, this.#volume, raw, volumeStart);
    seconds.quoteProduct(second, quote);
    this.trades.add(ms, id, price, this.#volume.value, side === SIDES.s ? 1 : 0);
    this.day.add(ms, id);
    this.day.price.add(this.#price, raw, priceStart);
    this.day.quantity.add(this.#volume, raw, volumeStart);
    const tick = this.#tick(price);

    copy.begin();
    copy.int8(ms);
    copy.int8(id);
    copy.float8(price);
    copy.float8(this.#volume.value);
    copy.float8(this.#gross());
    copy.float8(this.#volume.value);
    copy.float8(quote.value);
    copy.text(side, 0, side.length);
    copy.text(tick, 0, tick.length);
    copy.text(this.#symbol, 0, this.#symbol.length);
    copy.text(this.#match, 0, MATCH_PREFIX.length + idDigits);
    return at;
  }

  /** The quote quantity in 1e-8, rounded once from the exact product. */
  #gross(): number {
    const { exact, mantissa, scale } = this.#quote;
    const places = (exact?.scale ?? scale) - GROSS_PLACES;
    if (exact === undefined && places <= 0) return mantissa * 10 ** -places;
    const digits = exact?.mantissa ?? BigInt(mantissa);
    return places >= 0 ? nearestFloat(digits, places) : Number(digits * 10n ** BigInt(-places));
  }

  #tick(price: number): Buffer {
    const before = this.#last;
    this.#last = price;
    // The first row of the day has none before it.
    if (before !== 0 && price !== before) {
      this.#ticks = price > before ? PLUS : MINUS;
      return this.#ticks.new;
    }
    return this.#ticks?.same ?? NO_TICK;
  }
}
