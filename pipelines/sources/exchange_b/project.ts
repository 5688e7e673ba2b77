/**
 * The projector's reader of exchange B's events: turns their bytes into storage rows. It shares no parsing with the
 * decoder.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeBSpotTrades } from '../../../shared/registry/datasets/exchange_b_spot_trades.ts';
import type { PartitionWindow } from '../../rows/binary-copy.ts';
import { DecimalProduct, DecimalReader } from '../../rows/exact-decimal.ts';
import { malformed } from '../trades/row-reader.ts';
import { type RowLayout, TradeRows } from '../trades/trade-rows.ts';

const COMMA = 44;
const LF = 10;
const SIDES = { b: Buffer.from('buy'), s: Buffer.from('sell') };
const LAYOUT: RowLayout = {
  columns: exchangeBSpotTrades.native.columns.length,
  /** `A-B,1,buy,1,1,1704038400149` */
  minEventBytes: 28,
  /** Column count, five numbers and the lengths of two texts. */
  rowBytes: 2 + 5 * 12 + 2 * 4,
  hasTexts: true,
  /** Prices have one or two decimals, sizes eight. */
  quoteScale: 10,
};

export class ExchangeBRowProjector extends TradeRows {
  readonly #price = new DecimalReader();
  readonly #size = new DecimalReader();
  readonly #quote = new DecimalProduct();

  constructor(window: PartitionWindow) {
    super(window, LAYOUT);
  }

  protected override row(raw: Buffer, start: number): number {
    let at = start;
    while (raw[at] !== COMMA && at < raw.length) at++;
    const instrumentEnd = at;
    const idStart = ++at;
    let id = 0;
    for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) id = id * 10 + digit;
    if (raw[at] !== COMMA || at === idStart) throw malformed(raw, start);
    const side = (raw[at + 1] | 0x20) === 0x62 ? SIDES.b : SIDES.s;
    at += 1 + side.length;
    if (raw[at] !== COMMA) throw malformed(raw, start);
    const priceStart = at + 1;
    this.#price.read(raw, priceStart, COMMA);
    const sizeStart = this.#price.end + 1;
    this.#size.read(raw, sizeStart, COMMA);
    const timeStart = this.#size.end + 1;
    let ms = 0;
    at = timeStart;
    for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) ms = ms * 10 + digit;
    if (at === timeStart || (raw[at] !== LF && raw[at] !== COMMA)) throw malformed(raw, start);
    while (raw[at] !== LF && at < raw.length) at++;
    if (raw[at++] !== LF) throw malformed(raw, start);

    const { seconds, copy } = this;
    const second = seconds.bucket(ms);
    if (second < 0) throw new TidemarkError('LOG_DAMAGED', `Trade ${id} at ${ms} ms is outside its partition`);
    this.#quote.multiply(raw, this.#price, priceStart, this.#size, sizeStart);
    seconds.price(second, id, this.#price.value);
    seconds.quantity(second, this.#size, raw, sizeStart);
    seconds.quoteProduct(second, this.#quote);
    this.trades.add(ms, id, this.#price.value, this.#size.value, side === SIDES.s ? 1 : 0);
    this.day.add(ms, id);
    this.day.price.add(this.#price, raw, priceStart);
    this.day.quantity.add(this.#size, raw, sizeStart);

    copy.begin();
    copy.int8(ms);
    copy.int8(id);
    copy.float8(this.#price.value);
    copy.float8(this.#size.value);
    copy.float8(this.#quote.value);
    copy.text(side, 0, side.length);
    copy.text(raw, start, instrumentEnd);
    return at;
  }
}
