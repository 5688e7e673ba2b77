/**
 * The projector's reader of exchange A's events: turns their bytes into storage rows. It shares no parsing with the
 * decoder.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import type { PartitionWindow } from '../../rows/binary-copy.ts';
import { DecimalReader } from '../../rows/exact-decimal.ts';
import { malformed } from '../trades/row-reader.ts';
import { type RowLayout, TradeRows } from '../trades/trade-rows.ts';

const COMMA = 44;
const LF = 10;
const LAYOUT: RowLayout = {
  columns: exchangeASpotTrades.native.columns.length,
  /** `1,1,1,1,1704067200000,1,1` */
  minEventBytes: 26,
  /** Column count, five numbers and two flags. */
  rowBytes: 2 + 5 * 12 + 2 * 5,
  hasTexts: false,
};

export class ExchangeARowProjector extends TradeRows {
  readonly #price = new DecimalReader();
  readonly #quantity = new DecimalReader();
  readonly #quote = new DecimalReader();

  constructor(window: PartitionWindow) {
    super(window, LAYOUT);
  }

  protected override row(raw: Buffer, start: number): number {
    let id = 0;
    let at = start;
    for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) id = id * 10 + digit;
    if (raw[at] !== COMMA || at === start) throw malformed(raw, start);
    const priceStart = at + 1;
    this.#price.read(raw, priceStart, COMMA);
    const quantityStart = this.#price.end + 1;
    this.#quantity.read(raw, quantityStart, COMMA);
    const quoteStart = this.#quantity.end + 1;
    this.#quote.read(raw, quoteStart, COMMA);
    const timeStart = this.#quote.end + 1;
    let time = 0;
    at = timeStart;
    for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) time = time * 10 + digit;
    if (raw[at] !== COMMA) throw malformed(raw, start);
    const ms = at - timeStart === 16 ? Math.floor(time / 1000) : time;
    const maker = isTrue(raw[at + 1]);
    at += 1 + flagLength(raw[at + 1]);
    if (raw[at] !== COMMA) throw malformed(raw, start);
    const best = isTrue(raw[at + 1]);
    at += 1 + flagLength(raw[at + 1]);
    if (raw[at++] !== LF) throw malformed(raw, start);

    const { seconds, copy } = this;
    const second = seconds.bucket(ms);
    if (second < 0) throw new TidemarkError('LOG_DAMAGED', `Trade ${id} at ${ms} ms is outside its partition`);
    seconds.price(second, id, this.#price.value);
    seconds.quantity(second, this.#quantity, raw, quantityStart);
    seconds.quote(second, this.#quote, raw, quoteStart);
    this.trades.add(ms, id, this.#price.value, this.#quantity.value, maker);
    this.day.add(ms, id);
    this.day.price.add(this.#price, raw, priceStart);
    this.day.quantity.add(this.#quantity, raw, quantityStart);

    copy.begin();
    copy.int8(ms);
    copy.int8(id);
    copy.float8(this.#price.value);
    copy.float8(this.#quantity.value);
    copy.float8(this.#quote.value);
    copy.bool(maker);
    copy.bool(best);
    return at;
  }
}

/** The length of `True` or `False` in any case, or of one digit. */
const flagLength = (byte: number): number => ((byte | 0x20) === 0x74 ? 4 : (byte | 0x20) === 0x66 ? 5 : 1);

/** 1 for `True`, `true` and `1`. */
const isTrue = (byte: number): 0 | 1 => (byte === 0x31 || (byte | 0x20) === 0x74 ? 1 : 0);
