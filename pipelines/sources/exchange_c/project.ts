/** The projector's reader of exchange C's events: the headers of a partition's frames say of which tree they are. */
import { TidemarkError } from '../../../shared/errors.ts';
import type { WrittenAs } from '../../../shared/frame/codec.ts';
import type { FoldingProjector, PartitionWindow } from '../../rows/binary-copy.ts';
import type { TradeRows } from '../trades/trade-rows.ts';
import { SpotRowProjector } from './project-spot.ts';
import { TradingRowProjector } from './project-trading.ts';

export class ExchangeCRows implements FoldingProjector {
  readonly #window: PartitionWindow;
  /** Known with the first frame. */
  #rows: TradeRows | undefined;

  constructor(window: PartitionWindow) {
    this.#window = window;
  }

  rows(raw: Buffer, rows: number, written: WrittenAs = {}) {
    this.#rows ??= this.#readerOf(written);
    return this.#rows.rows(raw, rows);
  }

  aligned(key: { datasetId: number; seriesId: number }) {
    return this.#of().aligned(key);
  }

  klines(datasetId: number) {
    return this.#of().klines(datasetId);
  }

  facts() {
    return this.#of().facts();
  }

  #of(): TradeRows {
    this.#rows ??= this.#readerOf({});
    return this.#rows;
  }

  #readerOf({ layout, constants = {} }: WrittenAs): TradeRows {
    if (layout === undefined) return new TradingRowProjector(this.#window);
    const { symbol } = constants;
    if (layout === 'spot' && symbol !== undefined) return new SpotRowProjector(this.#window, symbol);
    throw new TidemarkError(
      'LOG_DAMAGED',
      `A frame holds rows of the layout ${JSON.stringify(layout)}, with ${symbol === undefined ? 'no' : 'a'} symbol: none that is read`,
    );
  }
}
