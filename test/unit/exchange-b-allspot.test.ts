/** Rows of exchange B's `allspot` document, set apart: they are those of each instrument's own file, whatever their order. */
import { tmpdir } from 'node:os';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { openScratch } from '../../pipelines/sources/documents/fetch.ts';
import { AllspotDecoder } from '../../pipelines/sources/exchange_b/allspot.ts';
import { ExchangeBDecoder } from '../../pipelines/sources/exchange_b/decode.ts';
import type { DecodedItem } from '../../pipelines/sources/feed-types.ts';
import { exchangeBSpotTrades } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { instrumentDataset, parseInstrument, slotNumber } from '../../shared/registry/instruments.ts';
import { windowOf } from '../../shared/registry/keys.ts';

const BASE: DatasetDefinition = exchangeBSpotTrades;
const DAY = '2024-03-01';
const WINDOW = windowOf(BASE, DAY);
/** Beginnings of one another, which a name must not be taken for. */
const SYMBOLS = ['BTC-USDT', 'BTC-USD', 'BTC-USDC', '1000SATS-USDT'];
const UNREAD = ['BTC-US', 'BTC-USDT2', 'DOGE-USDT'];
const datasetOf = (symbol: string): DatasetDefinition => {
  const slot = SYMBOLS.indexOf(symbol);
  return slot === 0 ? BASE : instrumentDataset(BASE, parseInstrument(symbol)!, slotNumber(BASE, slot));
};

interface Decoding extends Disposable {
  push(chunk: Buffer): Iterable<DecodedItem>;
  finish(): Iterable<DecodedItem>;
}

/** By instrument: the bytes of its events, and the facts of its day. */
function decoded(decoder: Decoding, chunks: readonly Buffer[]) {
  const found: Record<string, { raw: string; rows: number; facts?: unknown }> = {};
  const take = (items: Iterable<DecodedItem>) => {
    for (const item of items) {
      const of = item.dataset?.instrument ?? SYMBOLS[0];
      found[of] ??= { raw: '', rows: 0 };
      if (item.kind === 'end') found[of].facts = item.facts;
      else {
        found[of].raw += item.raw.toString('latin1');
        found[of].rows += item.rows;
        item.release?.();
      }
    }
  };
  for (const chunk of chunks) take(decoder.push(chunk));
  take(decoder.finish());
  return found;
}

const cut = (text: string, places: readonly number[]): Buffer[] => {
  const bytes = Buffer.from(text, 'latin1');
  const at = [...new Set([0, ...places.map((place) => place % bytes.length), bytes.length])].sort((a, b) => a - b);
  return at.slice(1).map((end, index) => bytes.subarray(at[index], end));
};

const rows = fc.array(
  fc.record({
    symbol: fc.constantFrom(...SYMBOLS, ...UNREAD),
    side: fc.constantFrom('buy', 'SELL'),
    price: fc.constantFrom('0.00000001', '65000.1', '1.912e-05'),
    size: fc.constantFrom('100000000', '0.5', '3'),
    again: fc.boolean(),
  }),
  { minLength: 1, maxLength: 60 },
);

test('rows are those of their own files, however they take turns and bytes are cut', () => {
  fc.assert(
    fc.property(
      rows,
      fc.array(fc.nat(), { maxLength: 12 }),
      fc.record({
        mark: fc.constantFrom('', '\xef\xbb\xbf'),
        crlf: fc.boolean(),
        open: fc.boolean(),
        late: fc.boolean(),
      }),
      (traded, places, { mark, crlf, open, late }) => {
        const eol = crlf ? '\r\n' : '\n';
        const header = `instrument_name,trade_id,side,price,size,created_time${late ? ',source' : ''}`;
        const lines = traded.flatMap(({ symbol, side, price, size, again }, at) => {
          const line = [symbol, 10 + at, side, price, size, WINDOW.fromMs + at * 1000, ...(late ? ['x'] : [])].join();
          // The vendor repeats rows.
          return Array.from({ length: again ? 2 : 1 }, () => ({ symbol, line }));
        });
        const textOf = (of: readonly { line: string }[]) =>
          [mark + header, ...of.map(({ line }) => line)].join(eol) + (open ? '' : eol);
        using joint = new AllspotDecoder({
          document: 'allspot',
          wanted: SYMBOLS.map((symbol) => ({ dataset: datasetOf(symbol), symbol, day: DAY })),
          openScratch: () => openScratch(tmpdir()),
          frameRawBytes: 400,
        });
        const expected: ReturnType<typeof decoded> = {};
        for (const symbol of SYMBOLS) {
          const own = lines.filter((one) => one.symbol === symbol);
          if (own.length === 0) continue;
          const options = { document: 'own', instrument: symbol, window: { key: DAY, ...WINDOW }, frameRawBytes: 400 };
          const decoder = new ExchangeBDecoder(options);
          const alone = decoded(Object.assign(decoder, { [Symbol.dispose]() {} }), [
            Buffer.from(textOf(own), 'latin1'),
          ]);
          expected[symbol] = alone[SYMBOLS[0]];
        }
        expect(decoded(joint, cut(textOf(lines), places))).toEqual(expected);
      },
    ),
    { numRuns: 300 },
  );
});
