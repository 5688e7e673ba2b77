/** Exchange A's event bytes as storage rows: the projector's side, sharing no parsing with the decoder. */
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { ALIGNED_TRADE_COLUMNS, AlignedTrades } from '../../project/aligned-trades.ts';
import { rowTemplate, writeInt8 } from '../../project/binary-copy.ts';
import { DecimalReader } from '../../project/exact-decimal.ts';
import type { PartitionWindow, RowProjector } from '../types.ts';

const COMMA = 44;
const LF = 10;
const TEMPLATE = rowTemplate(exchangeASpotTrades.native.columns.map((column) => column.pg));

export class TradeRowProjector implements RowProjector {
  readonly alignedColumns = ALIGNED_TRADE_COLUMNS;
  readonly #aligned: AlignedTrades;
  readonly #reader = new DecimalReader();

  constructor(window: PartitionWindow) {
    this.#aligned = new AlignedTrades(window);
  }

  rows(raw: Buffer): { copy: Buffer; rows: number } {
    let rows = 0;
    for (let at = raw.indexOf(LF); at >= 0; at = raw.indexOf(LF, at + 1)) rows++;
    const copy = TEMPLATE.stamp(rows);
    const view = new DataView(copy.buffer, copy.byteOffset, copy.byteLength);
    const [timestampAt, idAt, priceAt, quantityAt, quoteAt, makerAt, bestAt] = TEMPLATE.offsets;
    const reader = this.#reader;
    const aligned = this.#aligned;
    let at = 0;
    for (let row = 0; row < copy.length; row += TEMPLATE.rowBytes) {
      let id = 0;
      for (; raw[at] !== COMMA; at++) id = id * 10 + raw[at] - 48;

      const priceStart = at + 1;
      reader.read(raw, priceStart, COMMA);
      const price = reader.value;
      const quantityStart = reader.end + 1;

      // The second is known only from the fifth cell: find it first, then fold the decimals as they are read.
      reader.read(raw, quantityStart, COMMA);
      const quantity = reader.value;
      const quoteStart = reader.end + 1;
      const timeStart = raw.indexOf(COMMA, quoteStart) + 1;
      let time = 0;
      at = timeStart;
      for (; raw[at] !== COMMA; at++) time = time * 10 + raw[at] - 48;
      const ms = at - timeStart === 16 ? Math.floor(time / 1000) : time;
      const second = aligned.bucket(ms);
      if (second < 0) throw new TidemarkError('LOG_FRAME_CORRUPT', `Trade ${id} at ${ms} ms is outside its partition`);

      aligned.price(second, id, price);
      aligned.quantity(second, reader, raw, quantityStart);
      reader.read(raw, quoteStart, COMMA);
      aligned.quote(second, reader, raw, quoteStart);

      const maker = isTrue(raw[at + 1]);
      at = raw.indexOf(COMMA, at + 1) + 1;
      const best = isTrue(raw[at]);
      at = raw.indexOf(LF, at) + 1;

      writeInt8(view, row + timestampAt, ms);
      writeInt8(view, row + idAt, id);
      view.setFloat64(row + priceAt, price);
      view.setFloat64(row + quantityAt, quantity);
      view.setFloat64(row + quoteAt, reader.value);
      copy[row + makerAt] = maker;
      copy[row + bestAt] = best;
    }
    return { copy, rows };
  }

  aligned(key: { datasetId: number; seriesId: number }): { copy: Buffer; rows: number } {
    return this.#aligned.copy(key);
  }
}

/** `True`, `true`, `1`. */
const isTrue = (byte: number): 0 | 1 => (byte === 0x31 || (byte | 0x20) === 0x74 ? 1 : 0);
