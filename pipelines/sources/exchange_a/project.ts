/**
 * The projector's reader of exchange A's events: turns their bytes into storage rows. It shares no parsing with the
 * decoder.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { AlignedTrades } from '../../rows/aligned-trades.ts';
import type { FoldingProjector, KeptKlines, PartitionWindow } from '../../rows/binary-copy.ts';
import { rowTemplate, StampedRows, writeInt8 } from '../../rows/binary-copy.ts';
import { DecimalReader } from '../../rows/exact-decimal.ts';
import { DayKlines } from '../../rows/kept-klines.ts';
import { checkRowCount, malformed } from '../trades/row-reader.ts';

const COMMA = 44;
const LF = 10;
/** The shortest row, `1,1,1,1,1704067200000,1,1`, and its line end. */
const MIN_ROW_BYTES = 26;
const TEMPLATE = rowTemplate(exchangeASpotTrades.native.columns.map((column) => column.pg));

export class ExchangeARowProjector implements FoldingProjector {
  readonly #aligned: AlignedTrades;
  readonly #klines: DayKlines;
  readonly #reader = new DecimalReader();
  readonly #rows = new StampedRows(TEMPLATE);

  constructor(window: PartitionWindow) {
    this.#aligned = new AlignedTrades(window);
    this.#klines = new DayKlines(window);
  }

  rows(raw: Buffer, rows: number): { copy: Buffer; rows: number } {
    checkRowCount(raw, rows, MIN_ROW_BYTES);
    const copy = this.#rows.next(rows);
    const view = new DataView(copy.buffer, copy.byteOffset, copy.byteLength);
    const [timestampAt, idAt, priceAt, quantityAt, quoteAt, makerAt, bestAt] = TEMPLATE.offsets;
    const reader = this.#reader;
    const aligned = this.#aligned;
    const klines = this.#klines;
    let at = 0;
    for (let row = 0; row < copy.length; row += TEMPLATE.rowBytes) {
      let id = 0;
      const start = at;
      for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) id = id * 10 + digit;
      if (raw[at] !== COMMA || at === start) throw malformed(raw, start);

      const priceStart = at + 1;
      reader.read(raw, priceStart, COMMA);
      const price = reader.value;
      const quantityStart = reader.end + 1;

      // The fifth cell holds the second: find it first, then fold the decimals while reading them.
      reader.read(raw, quantityStart, COMMA);
      const quantity = reader.value;
      const quoteStart = reader.end + 1;
      // Loops instead of indexOf: a call into the runtime for each cell costs more than the cell.
      let timeStart = quoteStart;
      while (raw[timeStart] !== COMMA && timeStart < raw.length) timeStart++;
      timeStart++;
      let time = 0;
      at = timeStart;
      for (let digit = raw[at] - 48; digit >= 0 && digit <= 9; digit = raw[++at] - 48) time = time * 10 + digit;
      if (raw[at] !== COMMA) throw malformed(raw, start);
      const ms = at - timeStart === 16 ? Math.floor(time / 1000) : time;
      const second = aligned.bucket(ms);
      if (second < 0) throw new TidemarkError('LOG_FRAME_CORRUPT', `Trade ${id} at ${ms} ms is outside its partition`);

      aligned.price(second, id, price);
      aligned.quantity(second, reader, raw, quantityStart);
      reader.read(raw, quoteStart, COMMA);
      aligned.quote(second, reader, raw, quoteStart);

      const maker = isTrue(raw[at + 1]);
      at += 1 + flagLength(raw[at + 1]);
      if (raw[at] !== COMMA) throw malformed(raw, start);
      const best = isTrue(raw[at + 1]);
      at += 1 + flagLength(raw[at + 1]);
      if (raw[at++] !== LF) throw malformed(raw, start);
      klines.add(ms, id, price, quantity, maker);

      writeInt8(view, row + timestampAt, ms);
      writeInt8(view, row + idAt, id);
      view.setFloat64(row + priceAt, price);
      view.setFloat64(row + quantityAt, quantity);
      view.setFloat64(row + quoteAt, reader.value);
      copy[row + makerAt] = maker;
      copy[row + bestAt] = best;
    }
    if (at !== raw.length) throw malformed(raw, at);
    return { copy, rows };
  }

  aligned(key: { datasetId: number; seriesId: number }): { copy: Buffer; rows: number } {
    return this.#aligned.flush(key, this.#klines);
  }

  klines(datasetId: number): KeptKlines {
    return this.#klines.build(datasetId);
  }
}

/** The length of `True` or `False` in any case, or of one digit. */
const flagLength = (byte: number): number => ((byte | 0x20) === 0x74 ? 4 : (byte | 0x20) === 0x66 ? 5 : 1);

/** 1 for `True`, `true` and `1`. */
const isTrue = (byte: number): 0 | 1 => (byte === 0x31 || (byte | 0x20) === 0x74 ? 1 : 0);
