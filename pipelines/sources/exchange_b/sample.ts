/** Synthetic documents in exchange B's layout, with the peculiarities of its files: gaps, repeats, printed floats. */

import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DAY_MS, daysBetween } from '../../../shared/dates.ts';
import { exchangeBSpotTrades } from '../../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { windowOf } from '../../../shared/registry/keys.ts';
import { marketTrades } from '../../sample/trades.ts';
import { localPath } from '../documents/locations.ts';
import { type WrittenZip, writeZip } from '../documents/zip-writer.ts';
import { inPieces, printedFloat, seededRandom } from '../trades/sample.ts';
import { archiveUrl, documentName } from './source.ts';

export interface ExchangeBDay {
  /** File day, `YYYY-MM-DD`. */
  readonly day: string;
  /** Distinct trades; repeats come on top. */
  readonly rows: number;
  readonly seed: number;
  readonly instrument?: string;
  /** Id of the first trade. Default 1. */
  readonly firstId?: number;
  /** Price of the first trades. Default: the sample market's. */
  readonly startPrice?: number;
  /** Writes the column of the later years. */
  readonly source?: boolean;
  /** Share of ids followed by a gap, and of rows repeated exactly. Default 0.01 and 0.001. */
  readonly gaps?: number;
  readonly repeats?: number;
}

/** Ticks in one quote unit. */
const TICKS = 10;

/** Yields the file's lines, header first, each with its line end. */
export function* generateLines(options: ExchangeBDay): Generator<string> {
  const { day, rows, seed, instrument = 'BTC-USDT', source = false, gaps = 0.01, repeats = 0.001 } = options;
  const { fromMs, toMs } = windowOf(exchangeBSpotTrades, day);
  const random = seededRandom(seed + fromMs / DAY_MS);
  yield `instrument_name,trade_id,side,price,size,created_time${source ? ',source' : ''}\n`;
  let id = options.firstId ?? 1;
  const { startPrice } = options;
  for (const trade of marketTrades({ rows, fromMs, toMs, random, ticks: TICKS, startPrice })) {
    // The exchange matches on several hosts: a later id may have a slightly earlier time.
    const ms = Math.max(fromMs, fromMs + Math.floor(trade.offsetMs) - (random() < 0.02 ? 3 : 0));
    const cells = [instrument, id, trade.buy ? 'buy' : 'sell', trade.price / TICKS, sizeText(trade.size, random), ms];
    const line = `${cells.join(',')}${source ? ',0' : ''}\n`;
    yield line;
    if (random() < repeats) yield line;
    id += random() < gaps ? 2 + Math.floor(random() * 5) : 1;
  }
}

/** Mostly whole hundred-millionths, some tiny sizes with an exponent, some results of summing floats. */
function sizeText(hundredThousandths: number, random: () => number): string {
  const kind = random();
  const units = hundredThousandths * 1000 - Math.floor(random() * 1000);
  if (kind < 0.05) return printedFloat(Math.ceil(random() * 9999) / 1e8);
  if (kind < 0.08) {
    const size = Math.max(units, 20_000) / 1e8;
    return printedFloat(size * (1 + 2 ** -52 * Math.ceil(random() * 3)));
  }
  if (kind < 0.1) return printedFloat(Math.ceil(units / 1e8));
  return printedFloat(units / 1e8);
}

/** Writes `trades/daily/YYYYMMDD/INSTRUMENT-trades-YYYY-MM-DD.zip` below the directory. */
export async function writeDay(options: ExchangeBDay & { readonly directory: string }): Promise<WrittenZip> {
  const { directory, day, instrument = 'BTC-USDT' } = options;
  return await writeZip({
    path: localPath(archiveUrl(pathToFileURL(join(directory, '/')), instrument, day)),
    memberName: documentName(instrument, day).replace(/zip$/, 'csv'),
    chunks: inPieces(generateLines(options)),
    modified: new Date(windowOf(exchangeBSpotTrades, day).toMs),
  });
}

/** Consecutive file days; their ids never overlap. */
export function consecutiveDays(options: {
  from: string;
  to: string;
  rowsPerDay: number;
  seed: number;
}): ExchangeBDay[] {
  return daysBetween(options.from, options.to).map((day, index) => ({
    day,
    rows: options.rowsPerDay,
    seed: options.seed,
    // Gaps take at most six ids a row.
    firstId: 1 + index * options.rowsPerDay * 7,
  }));
}
