/** What the projectors of trades share. The projector of an exchange reads the events one by one. */

import type { TradeFacts } from '../../../shared/proof/facts.ts';
import { AlignedTrades } from '../../rows/aligned-trades.ts';
import { CopyRows, type FoldingProjector, type KeptKlines, type PartitionWindow } from '../../rows/binary-copy.ts';
import { DayKlines } from '../../rows/kept-klines.ts';
import { DayFacts } from '../../rows/trade-facts.ts';
import { checkRowCount, malformed } from './row-reader.ts';

/** What differs between the exchanges. */
export interface RowLayout {
  /** Of the table. */
  readonly columns: number;
  /** The shortest event, with its line end. */
  readonly minEventBytes: number;
  /** A storage row without the bytes of its texts. */
  readonly rowBytes: number;
  readonly hasTexts: boolean;
  /** The usual number of decimals of quote quantities. */
  readonly quoteScale?: number;
}

/** Turns events into storage rows, aligned rows and klines, and finds the facts of the partition. */
export abstract class TradeRows implements FoldingProjector {
  protected readonly seconds: AlignedTrades;
  protected readonly trades: DayKlines;
  protected readonly day: DayFacts;
  protected readonly copy: CopyRows;
  readonly #layout: RowLayout;

  constructor(window: PartitionWindow, layout: RowLayout) {
    this.seconds = new AlignedTrades(window, layout.quoteScale);
    this.trades = new DayKlines(window);
    this.day = new DayFacts(window);
    this.copy = new CopyRows(layout.columns);
    this.#layout = layout;
  }

  rows(raw: Buffer, rows: number): { copy: Buffer; rows: number } {
    const { minEventBytes, rowBytes, hasTexts } = this.#layout;
    checkRowCount(raw, rows, minEventBytes);
    this.copy.start(rows * rowBytes + (hasTexts ? raw.length : 0));
    let at = 0;
    for (let row = 0; row < rows; row++) at = this.row(raw, at);
    if (at !== raw.length) throw malformed(raw, at);
    return { copy: this.copy.rows(), rows };
  }

  /**
   * Reads the event at `start`, in whatever way it is written. @returns the position of the next.
   * @throws TidemarkError LOG_DAMAGED
   */
  protected abstract row(raw: Buffer, start: number): number;

  aligned(key: { datasetId: number; seriesId: number }): { copy: Buffer; rows: number } {
    // An event that comes later is refused by `row`.
    return this.seconds.flush(key, this.trades);
  }

  klines(datasetId: number): KeptKlines {
    return this.trades.build(datasetId);
  }

  facts(): TradeFacts {
    return this.day.build();
  }
}
