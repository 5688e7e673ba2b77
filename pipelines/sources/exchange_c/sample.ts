/**
 * Synthetic documents in the layouts of exchange C's trees. Those of `trading` have the peculiarities of its files: any order,
 * repeats, zero sizes, printed floats.
 */

import { createWriteStream } from 'node:fs';
import { mkdir, rename } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { pathToFileURL } from 'node:url';
import { createGzip } from 'node:zlib';
import { DAY_MS, daysBetween } from '../../../shared/dates.ts';
import { exchangeCSpotTrades } from '../../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { windowOf } from '../../../shared/registry/keys.ts';
import { type MarketTrades, marketTrades } from '../../sample/trades.ts';
import { localPath } from '../documents/locations.ts';
import { inPieces, printedFloat, seededRandom } from '../trades/sample.ts';
import { archiveUrl, type TreeName } from './source.ts';

export interface ExchangeCDay {
  /** `YYYY-MM-DD`. */
  readonly day: string;
  /** Distinct trades; repeats come on top. */
  readonly rows: number;
  readonly seed: number;
  /** Default `spot`. */
  readonly archive?: TreeName;
  readonly symbol?: string;
  /** Id of the first trade. Default 1. */
  readonly firstId?: number;
  /** Price of the first trades. Default: the sample market's. */
  readonly startPrice?: number;
  /** Order of the lines. Default: `ids`, and `mixed` in `trading`. */
  readonly order?: 'ids' | 'newest_first' | 'mixed' | 'shuffled';
  /** Writes the column of the later years. */
  readonly rpi?: boolean;
  /** Share of rows repeated exactly. Default 0, and 0.001 in `trading`. */
  readonly repeats?: number;
  /** Ids to leave out. */
  readonly without?: readonly number[];
}

const TICKS = ['PlusTick', 'ZeroPlusTick', 'MinusTick', 'ZeroMinusTick'];
const RPI = ['', '0', '1', 'true', 'false'];
/** From then on the files have the column; the vendor's first is of a day at most so late. */
const FIRST_DAY_WITH_RPI = '2025-05-19';

/** What the cells of a line are made of. */
interface Line {
  readonly id: number;
  readonly trade: MarketTrades;
  readonly fromMs: number;
  readonly toMs: number;
  readonly symbol: string;
  readonly rpi: boolean;
  readonly random: () => number;
}

interface Layout {
  readonly header: string;
  /** The column of the later years. */
  readonly rpiHeader: string;
  readonly order: NonNullable<ExchangeCDay['order']>;
  readonly repeats: number;
  readonly cells: (line: Line) => (string | number)[];
}

const LAYOUTS: Readonly<Record<TreeName, Layout>> = {
  spot: {
    header: 'id,timestamp,price,volume,side',
    rpiHeader: 'rpi',
    order: 'ids',
    repeats: 0,
    cells: ({ id, trade, fromMs, rpi, random }) => [
      id,
      fromMs + Math.floor(trade.offsetMs),
      trade.price / 10,
      (trade.size / 1e5).toFixed(6),
      trade.buy ? 'buy' : 'sell',
      ...(rpi ? [random() < 0.1 ? 1 : 0] : []),
    ],
  },
  trading: {
    header: 'timestamp,symbol,side,size,price,tickDirection,trdMatchID,grossValue,homeNotional,foreignNotional',
    rpiHeader: 'RPI',
    order: 'mixed',
    repeats: 0.001,
    cells({ id, trade, fromMs, toMs, symbol, rpi, random }) {
      // The exchange assigns ids slightly out of the order of times.
      const tenthsOfMs = Math.floor(Math.min(trade.offsetMs + random() * 40, toMs - fromMs - 0.2) * 10);
      const seconds = printedFloat((fromMs * 10 + tenthsOfMs) / 10_000);
      const size = random() < 0.002 ? 0 : Math.ceil(trade.size / 100) / 1000;
      const price = trade.price / 10;
      const foreign = size === 0 ? 0.0001 : size * price;
      const gross = foreign * 1e8;
      return [
        seconds.replace(/\.0$/, ''),
        symbol,
        trade.buy ? 'Buy' : 'Sell',
        printedFloat(size),
        printedFloat(price),
        TICKS[Math.floor(random() * TICKS.length)],
        `m-${id}`,
        rpi ? exponent(gross) : printedFloat(gross),
        printedFloat(size),
        printedFloat(foreign),
        ...(rpi ? [RPI[Math.floor(random() * RPI.length)]] : []),
      ];
    },
  },
};

/** The file's lines, header first, each with its line end. */
export function generateLines(options: ExchangeCDay): string[] {
  const layout = LAYOUTS[options.archive ?? 'spot'];
  const { day, rows, seed, startPrice, firstId = 1, symbol = 'BTCUSDT', rpi = false } = options;
  const { repeats = layout.repeats, order = layout.order } = options;
  const { fromMs, toMs } = windowOf(exchangeCSpotTrades, day);
  const random = seededRandom(seed + fromMs / DAY_MS);
  const without = new Set(options.without ?? []);
  const lines: string[] = [];
  let id = firstId;
  for (const trade of marketTrades({ rows, fromMs, toMs, random, ticks: 10, startPrice })) {
    const line = `${layout.cells({ id, trade, fromMs, toMs, symbol, rpi, random }).join(',')}\n`;
    if (!without.has(id)) {
      lines.push(line);
      if (repeats > 0 && random() < repeats) lines.push(line);
    }
    id++;
  }
  return [`${layout.header}${rpi ? `,${layout.rpiHeader}` : ''}\n`, ...reordered(lines, order, random)];
}

function reordered(lines: string[], order: ExchangeCDay['order'], random: () => number): string[] {
  if (order === 'ids') return lines;
  if (order === 'newest_first') return lines.reverse();
  const shuffle = (from: number, to: number) => {
    for (let at = to - 1; at > from; at--) {
      const other = from + Math.floor(random() * (at - from + 1));
      [lines[at], lines[other]] = [lines[other], lines[at]];
    }
  };
  if (order === 'shuffled') shuffle(0, lines.length);
  else for (let at = 0; at < lines.length; at += 500) shuffle(at, Math.min(at + 20, lines.length));
  return lines;
}

/** `7.854169999999999e+09`, the form in which later files print gross values. */
function exponent(value: number): string {
  const [digits, power] = value.toExponential().split('e');
  return `${digits}e${power[0]}${power.slice(1).padStart(2, '0')}`;
}

/** Writes the day's document below the directory. @returns its path. */
export async function writeDay(options: ExchangeCDay & { readonly directory: string }): Promise<string> {
  const { directory, day, archive = 'spot', symbol = 'BTCUSDT' } = options;
  const path = localPath(archiveUrl(pathToFileURL(join(directory, '/')), archive, symbol, day));
  await mkdir(dirname(path), { recursive: true });
  const partial = `${path}.${process.pid}.partial`;
  await pipeline(Readable.from(inPieces(generateLines(options))), createGzip({ level: 4 }), createWriteStream(partial));
  await rename(partial, path);
  return path;
}

/** Consecutive days; ids start again every day. */
export function consecutiveDays(options: {
  from: string;
  to: string;
  rowsPerDay: number;
  seed: number;
}): ExchangeCDay[] {
  return daysBetween(options.from, options.to).map((day) => ({
    day,
    rows: options.rowsPerDay,
    seed: options.seed,
    firstId: 1,
    rpi: day >= FIRST_DAY_WITH_RPI,
  }));
}
