/** Decodes a large day of exchange C's layout in the order that the argument names, and prints its facts and peak memory. */
import { tmpdir } from 'node:os';
import { openScratch } from '../../pipelines/sources/documents/fetch.ts';
import { ExchangeCDecoder } from '../../pipelines/sources/exchange_c/decode.ts';
import { TradingRows } from '../../pipelines/sources/exchange_c/trading.ts';
import type { DecodedItem } from '../../pipelines/sources/feed-types.ts';
import { exchangeCSpotTrades } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { windowOf } from '../../shared/registry/keys.ts';

const DAY_ROWS = 3_500_000;
const CHUNK_ROWS = 5000;
const DAY = '2024-01-15';

const PLACES: Readonly<Record<string, (index: number) => number>> = {
  ids: (index) => index,
  newest_first: (index) => DAY_ROWS - 1 - index,
  // 1,048,583 is a prime that does not divide the number of rows, so every place comes once, far from the one before.
  scattered: (index) => (index * 1_048_583) % DAY_ROWS,
};

const window = { key: DAY, ...windowOf(exchangeCSpotTrades, DAY) };
const place = PLACES[process.argv[2]];
const document = 'day.csv.gz';
using decoder = new ExchangeCDecoder(new TradingRows({ document, symbol: 'BTCUSDT', window }), {
  document,
  window,
  frameRawBytes: 1 << 20,
  maxHeldBytes: 2 ** 40,

  sorting: { openScratch: () => openScratch(tmpdir()) },
});
let end: DecodedItem | undefined;
const take = (items: Iterable<DecodedItem>) => {
  for (const item of items) {
    if (item.kind === 'events') item.release?.();
    else end = item;
  }
};
const push = (chunk: Buffer) => take(decoder.push(chunk));
const rowOf = (id: number) =>
  `${(window.fromMs + id * 24) / 1000},BTCUSDT,Sell,0.857,6733.5,MinusTick,m-${id},577060950000.0,0.857,5770.6095\n`;
push(
  Buffer.from('timestamp,symbol,side,size,price,tickDirection,trdMatchID,grossValue,homeNotional,foreignNotional\n'),
);
const lines = Buffer.alloc(CHUNK_ROWS * 200);
for (let first = 0; first < DAY_ROWS; first += CHUNK_ROWS) {
  let used = 0;
  for (let index = first; index < first + CHUNK_ROWS; index++) used += lines.write(rowOf(place(index)), used, 'latin1');
  push(lines.subarray(0, used));
}
take(decoder.finish());
const facts = end?.kind === 'end' ? end.facts : undefined;
process.stdout.write(JSON.stringify({ facts, peakMib: process.resourceUsage().maxRSS / 1024 }));
