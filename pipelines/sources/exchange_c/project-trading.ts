/** The projector's reader of events of exchange C's tree `trading`. It shares no parsing with the decoder. */
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import type { PartitionWindow } from '../../rows/binary-copy.ts';
import { DecimalReader } from '../../rows/exact-decimal.ts';
import { malformed } from '../trades/row-reader.ts';
import { type RowLayout, TradeRows } from '../trades/trade-rows.ts';

const COMMA = 44;
const LF = 10;
const SIDES = { b: Buffer.from('buy'), s: Buffer.from('sell') };
const LAYOUT: RowLayout = {
  columns: exchangeCSpotTrades.native.columns.length,
  /** `1585180818,A,Buy,1,1,P,m-1,1,1,1` */
  minEventBytes: 33,
  /** Column count, seven numbers and the lengths of four texts. */
  rowBytes: 2 + 7 * 12 + 4 * 4,
  hasTexts: true,
};

export class TradingRowProjector extends TradeRows {
  readonly #window: PartitionWindow;
  readonly #size = new DecimalReader();
  readonly #price = new DecimalReader();
  readonly #number = new DecimalReader();

  constructor(window: PartitionWindow) {
    super(window, LAYOUT);
    this.#window = window;
  }

  protected override row(raw: Buffer, start: number): number {
    const number = this.#number;
    let at = start;
    while (raw[at] !== COMMA && at < raw.length) at++;
    const ms = this.#milliseconds(raw, start, at);
    const symbol = ++at;
    while (raw[at] !== COMMA && at < raw.length) at++;
    const symbolEnd = at;
    const side = (raw[at + 1] | 0x20) === 0x62 ? SIDES.b : SIDES.s;
    at += 1 + side.length;
    if (raw[at] !== COMMA) throw malformed(raw, start);
    const sizeStart = at + 1;
    this.#size.read(raw, sizeStart, COMMA);
    const priceStart = this.#size.end + 1;
    this.#price.read(raw, priceStart, COMMA);
    const tick = this.#price.end + 1;
    at = tick;
    while (raw[at] !== COMMA && at < raw.length) at++;
    const tickEnd = at;
    const match = ++at;
    // Skip `m-`.
    at += 2;
    let id = 0;
    for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) id = id * 10 + digit;
    if (raw[at] !== COMMA || at - match < 3) throw malformed(raw, start);
    const matchEnd = at;
    number.read(raw, at + 1, COMMA);
    const gross = number.value;
    number.read(raw, number.end + 1, COMMA);
    const home = number.value;
    const foreignStart = number.end + 1;
    at = foreignStart;
    while (raw[at] !== COMMA && raw[at] !== LF && at < raw.length) at++;
    if (at === raw.length) throw malformed(raw, start);
    number.read(raw, foreignStart, raw[at]);
    while (raw[at] !== LF && at < raw.length) at++;
    if (raw[at++] !== LF) throw malformed(raw, start);

    const { seconds, copy } = this;
    const second = seconds.bucket(ms);
    if (second < 0) throw new TidemarkError('LOG_DAMAGED', `Trade ${id} at ${ms} ms is outside its partition`);
    seconds.price(second, id, this.#price.value);
    seconds.quantity(second, this.#size, raw, sizeStart);
    seconds.quote(second, number, raw, foreignStart);
    this.trades.add(ms, id, this.#price.value, this.#size.value, side === SIDES.s ? 1 : 0);
    this.day.add(ms, id);
    this.day.price.add(this.#price, raw, priceStart);
    this.day.quantity.add(this.#size, raw, sizeStart);

    copy.begin();
    copy.int8(ms);
    copy.int8(id);
    copy.float8(this.#price.value);
    copy.float8(this.#size.value);
    copy.float8(gross);
    copy.float8(home);
    copy.float8(number.value);
    copy.text(side, 0, side.length);
    copy.text(raw, tick, tickEnd);
    copy.text(raw, symbol, symbolEnd);
    copy.text(raw, match, matchEnd);
    return at;
  }

  /** Tenths of a millisecond, rounded half up to ms; a time never rounds past the end of its day. */
  #milliseconds(raw: Buffer, start: number, end: number): number {
    let tenths = 0;
    let decimals = -1;
    for (let at = start; at < end && decimals < 4; at++) {
      const digit = raw[at] - 48;
      if (digit >= 0 && digit <= 9) {
        tenths = tenths * 10 + digit;
        if (decimals >= 0) decimals++;
      } else if (raw[at] === 46 && decimals < 0) {
        decimals = 0;
      } else {
        throw malformed(raw, start);
      }
    }
    for (let missing = Math.max(decimals, 0); missing < 4; missing++) tenths *= 10;
    const { toMs } = this.#window;
    const rounded = Math.floor((tenths + 5) / 10);
    return rounded === toMs && tenths < toMs * 10 ? toMs - 1 : rounded;
  }
}
