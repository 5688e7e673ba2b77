/**
 * The trade files of each vendor, said once for all tests of reading them: which bytes are a row, what they mean, and
 * what is none. Written apart from the decoders: texts, Number() and BigInts.
 */
import { tmpdir } from 'node:os';
import fc from 'fast-check';
import type { FoldingProjector } from '../../pipelines/rows/binary-copy.ts';
import { openScratch } from '../../pipelines/sources/documents/fetch.ts';
import { ExchangeADecoder } from '../../pipelines/sources/exchange_a/decode.ts';
import { ExchangeARowProjector } from '../../pipelines/sources/exchange_a/project.ts';
import { ExchangeBDecoder } from '../../pipelines/sources/exchange_b/decode.ts';
import { ExchangeBRowProjector } from '../../pipelines/sources/exchange_b/project.ts';
import { type DayRows, ExchangeCDecoder } from '../../pipelines/sources/exchange_c/decode.ts';
import { SpotRowProjector } from '../../pipelines/sources/exchange_c/project-spot.ts';
import { TradingRowProjector } from '../../pipelines/sources/exchange_c/project-trading.ts';
import type { SortedRowsOptions } from '../../pipelines/sources/exchange_c/sorted-rows.ts';
import { SpotRows } from '../../pipelines/sources/exchange_c/spot.ts';
import { TradingRows } from '../../pipelines/sources/exchange_c/trading.ts';
import type { DecodedItem } from '../../pipelines/sources/feed-types.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { instrumentDataset, parseInstrument, slotNumber } from '../../shared/registry/instruments.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import { exactDecimal, fixed, TEN } from './decimals.ts';

/** A row, and what it means. */
export interface TradeLine {
  readonly line: string;
  readonly id: number;
  readonly ms: number;
  readonly price: string;
  readonly quantity: string;
  /** Exact, over 10^60. */
  readonly quote: bigint;
  /** The stored columns in table order, as the file's own text. */
  readonly texts: readonly string[];
}

export interface Column {
  readonly name: string;
  /** Values that are none, and what the message says beside the column's name. */
  readonly bad: readonly string[];
}

export interface Decoder extends Partial<Disposable> {
  push(chunk: Buffer): Iterable<DecodedItem>;
  finish(): Iterable<DecodedItem>;
}

export interface TradeLayout {
  /** The dataset's key, and for another instrument its symbol. */
  readonly name: string;
  readonly dataset: DatasetDefinition;
  readonly symbol: string;
  readonly day: string;
  readonly fromMs: number;
  readonly toMs: number;
  /** Name of the document, as in errors. */
  readonly document: string;
  /** Headers that are read; undefined: a file without one. */
  readonly headers: readonly (string | undefined)[];
  readonly columns: readonly Column[];
  /** `runBytes`: bytes of rows that are sorted in memory at once, for the decoder that sorts. */
  decoder(options?: { frameRawBytes?: number; day?: string; runBytes?: number; isUnordered?: boolean }): Decoder;
  projector(day?: string): FoldingProjector;
  /** A plain row of this id at this time; a second argument changes cells by their place. */
  row(id: number, cells?: Readonly<Record<number, string>>, ms?: number): string;
  /** Files of up to so many rows, in the order of their ids. */
  lines(decimals: fc.Arbitrary<string>, limits?: fc.ArrayConstraints): fc.Arbitrary<TradeLine[]>;
  /** What the manifest says of the ids, and of rows left out. */
  idFacts(list: readonly TradeLine[]): object;
}

// ---- decimals ------------------------------------------------------------------------------------------------------

export const usualDecimal = fc
  .tuple(fc.integer({ min: 1, max: 10 ** 14 }), fc.integer({ min: 0, max: 8 }))
  .filter(([units, places]) => units / 10 ** places < 9e10)
  .map(([units, places]) => fixed(String(units), places));
/** More places, more digits, exponents, signs: what the fast path leaves to the slow ones. */
export const unusualDecimal = fc.oneof(
  fc
    .tuple(fc.bigInt({ min: 1n, max: 10n ** 17n }), fc.integer({ min: 7, max: 20 }))
    .map(([units, places]) => fixed(String(units), places)),
  fc
    .tuple(fc.bigInt({ min: 10n ** 15n, max: 10n ** 17n }), fc.integer({ min: 8, max: 16 }))
    .map(([units, places]) => fixed(String(units), places)),
  fc
    .tuple(fc.integer({ min: 1, max: 10 ** 6 }), fc.integer({ min: -12, max: 4 }), fc.constantFrom('e', 'E'))
    .map(([units, exponent, e]) => `${fixed(String(units), 2)}${e}${exponent}`),
  fc.double({ min: 1e-4, max: 1e6, noNaN: true }).map(String),
  fc.constantFrom('7.98e-05', '1e3', '1E+03', '+2.5', '.5', '5.', '007.50', '0.000000000000000000001', '1.e2', '.5e1'),
  fc.constantFrom('22517998.13685248', '22517998.13685247', '90071992.54740993', '9007199254.740993'),
  fc.constant('2.3456789012345678901'),
  fc.constantFrom('0.00044782999999999997', '1e-05', '4074.0193999999997', '78.54169999999999'),
);
/** Coins of which a million cost a cent: prices down to 1e-8, quantities by the trillion. */
export const extremeDecimal = fc.oneof(
  fc.integer({ min: 1, max: 10_000 }).map((units) => fixed(String(units), 8)),
  fc
    .tuple(fc.integer({ min: 10 ** 11, max: 10 ** 13 }), fc.integer({ min: 0, max: 1 }))
    .map(([units, places]) => fixed(String(units), places)),
  fc.double({ min: 1e10, max: 1e12, noNaN: true }).map((value) => fixed(BigInt(Math.floor(value)).toString(), 0)),
);
export const decimal = fc.oneof({ weight: 4, arbitrary: usualDecimal }, { weight: 1, arbitrary: unusualDecimal });

const NO_DECIMALS = [
  'abc', '', '0x10', '1.2.3', ' 1.5', '1.5 ', '1.5x', '1e', '1e+', '.', 'Infinity', 'NaN', '-1', '-0.5', 'null', '1e309',
  '1e400', '1e-400', '1_000', '1 000', '"1.5"', '١٢', '\0', '1\0', '9'.repeat(300),
]; // biome-ignore format: one list
const ZEROS = ['0', '0.0', '0e5', '-0'];
const TOO_LARGE = ['9007199254740992', '1e16', '123456789012345678901234567890'];
/** A float is printed with 17 digits; these are no price's, and no proof could tell them from their neighbours. */
const TOO_LONG = ['0.123456789012345678901234567890', '1.23456789012345678901'];
const NO_WHOLE = ['abc', '', '-5', '5.0', ' 5', '"5"', '12345678901234567890', '1e3', '\0'];
const NO_ID = [...NO_WHOLE, '007', 'm-5', '1234567890123456'];
const NO_MATCH_ID = [
  '', '5', 'm-', 'm--5', 'M-5', 'm-5x', 'm-5.0', 'm -5', ' m-5', 'm-1234567890123456', '"m-5"', 'n-5', 'm-٥',
  '82c4f9a7-8675-54e6-9935-6ed6b9d9993f', '00000000-0000-0000-0000-000000000005', '\0',
]; // biome-ignore format: one list
const NO_TIME = [
  '', '170527680000', '1705276800', '17052768000000', '1705276800000000000', '1'.repeat(40), '2024-01-15', '-1705276800000',
  '\0',
]; // biome-ignore format: one list
const NO_FLAG = ['yes', 'Trux', 'Truee', 'Tru', '2', '', '-1', ' True', '\0'];
const NO_SIDE = ['hold', '', 'b', 'buys', 'Short', 'buy ', '\0'];
const quotedOr = (value: string) => ['', ` ${value}`, `${value}x`, value.toLowerCase(), `"${value}"`, value.slice(1)];

// ---- the vendors ---------------------------------------------------------------------------------------------------

const DAY = '2024-01-15';
const cellsOf = (cells: readonly string[], changed: Readonly<Record<number, string>> = {}) =>
  cells.map((cell, index) => changed[index] ?? cell).join(',');
/** Few seconds, so that several rows share one; not in order. */
const offsetUs = fc.oneof(fc.integer({ min: 0, max: 5_000_000 }), fc.integer({ min: 0, max: 86_400_000_000 - 1 }));
const exact = (text: string) => exactDecimal(text) * TEN ** 30n;

interface Read {
  readonly fromMs: number;
  readonly toMs: number;
  readonly symbol: string;
  partitionOf(day: string): { key: string; fromMs: number; toMs: number };
}

/** Of the default instrument, and of another one. */
function layouts(
  key: string,
  [byDefault, other]: readonly [string, string],
  make: (read: Read) => Omit<TradeLayout, Common>,
): readonly [TradeLayout, TradeLayout] {
  const base = datasetOf(key);
  const of = (dataset: DatasetDefinition, symbol: string): TradeLayout => {
    // Decoders know days; whose days they are, the feed adds.
    const partitionOf = (day: string) => ({ key: day, ...windowOf(base, day) });
    const { fromMs, toMs } = partitionOf(DAY);
    const name = dataset.instrument === undefined ? key : `${key}:${symbol}`;
    return { name, dataset, symbol, day: DAY, fromMs, toMs, ...make({ fromMs, toMs, symbol, partitionOf }) };
  };
  return [of(base, byDefault), of(instrumentDataset(base, parseInstrument(other)!, slotNumber(base, 1)), other)];
}
type Common = 'name' | 'dataset' | 'symbol' | 'day' | 'fromMs' | 'toMs';

/** Lists of what `cells` makes, each with its id; ids are told apart by `step`. */
function listOf<T>(
  cells: fc.Arbitrary<T>,
  step: fc.Arbitrary<number>,
  limits: fc.ArrayConstraints,
  line: (cells: T, id: number) => TradeLine,
): fc.Arbitrary<TradeLine[]> {
  return fc
    .tuple(fc.integer({ min: 1, max: 10 ** 10 }), fc.array(fc.tuple(cells, step), limits))
    .map(([firstId, list]) => {
      let id = firstId;
      return list.map(([each, ahead]) => {
        const made = line(each, id);
        id += ahead;
        return made;
      });
    });
}
const LIMITS = { minLength: 1, maxLength: 40 };

const HEADER_A = 'id,price,qty,quote_qty,time,is_buyer_maker,is_best_match';
export const [EXCHANGE_A, OTHER_A] = layouts(
  'exchange_a_spot_trades',
  ['BTCUSDT', '1000SATSUSDT'],
  ({ fromMs, symbol, partitionOf }) => ({
    document: `${symbol}-trades-${DAY}.zip`,
    headers: [undefined, HEADER_A, HEADER_A.toUpperCase(), HEADER_A.replace('id,', 'trade_id,')],
    columns: [
      { name: 'id', bad: NO_ID },
      ...['price', 'qty', 'quote_qty'].map((name) => ({ name, bad: [...NO_DECIMALS, ...ZEROS, ...TOO_LARGE] })),
      { name: 'time', bad: [...NO_TIME, `${DAY}.5`] },
      { name: 'is_buyer_maker', bad: NO_FLAG },
      { name: 'is_best_match', bad: NO_FLAG },
    ],
    decoder: ({ frameRawBytes = 1 << 16, day = DAY } = {}) =>
      new ExchangeADecoder({
        document: `${symbol}-trades-${day}.zip`,
        ...partitionOf(day),
        frameRawBytes,
      }),
    projector: (day = DAY) => new ExchangeARowProjector(partitionOf(day)),
    row: (id, changed, ms = fromMs + (id % 86_400_000)) =>
      cellsOf([`${id}`, '42283.58000000', '0.00069000', '29.17567020', `${ms}`, 'True', 'True'], changed),
    lines: (decimals, limits = LIMITS) =>
      listOf(
        fc.record({
          price: decimals,
          quantity: decimals,
          quote: decimals,
          us: offsetUs,
          micro: fc.boolean(),
          maker: fc.constantFrom('True', 'False', 'true', 'false', 'TRUE', 'FALSE', '1', '0'),
          best: fc.constantFrom('True', 'False', 'true', 'false', 'TRUE', 'FALSE', '1', '0'),
        }),
        fc.constant(1),
        limits,
        ({ price, quantity, quote, us, micro, maker, best }, id) => {
          const ms = fromMs + Math.floor(us / 1000);
          const time = micro ? fromMs * 1000 + us : ms;
          const flag = (text: string) => String(/^(true|1)$/i.test(text));
          return {
            line: [id, price, quantity, quote, time, maker, best].join(','),
            id,
            ms,
            price,
            quantity,
            quote: exact(quote),
            texts: [`${ms}`, `${id}`, price, quantity, quote, flag(maker), flag(best)],
          };
        },
      ),
    idFacts: () => ({ gaps: 0 }),
  }),
);

const HEADER_B = 'instrument_name,trade_id,side,price,size,created_time';
export const [EXCHANGE_B, OTHER_B] = layouts(
  'exchange_b_spot_trades',
  ['BTC-USDT', 'BTC-USDC'],
  ({ fromMs, symbol, partitionOf }) => ({
    document: `${symbol}-trades-${DAY}.zip`,
    headers: [HEADER_B, `${HEADER_B},source`],
    columns: [
      { name: 'instrument_name', bad: [...quotedOr(symbol), 'BTC-USD', `${symbol}-SWAP`, 'ETH-USDT'] },
      { name: 'trade_id', bad: NO_ID },
      { name: 'side', bad: NO_SIDE },
      ...['price', 'size'].map((name) => ({ name, bad: [...NO_DECIMALS, ...ZEROS, ...TOO_LARGE, ...TOO_LONG] })),
      { name: 'created_time', bad: [...NO_TIME, '1705276800000000', `${DAY}.5`] },
    ],
    decoder: ({ frameRawBytes = 1 << 16, day = DAY } = {}) =>
      new ExchangeBDecoder({
        document: `${symbol}-trades-${day}.zip`,
        instrument: symbol,
        window: partitionOf(day),
        frameRawBytes,
      }),
    projector: (day = DAY) => new ExchangeBRowProjector(partitionOf(day)),
    row: (id, changed, ms = fromMs + (id % 86_400_000)) =>
      cellsOf([symbol, `${id}`, 'buy', '42457.6', '0.00118219', `${ms}`], changed),
    lines: (decimals, limits = LIMITS) =>
      listOf(
        fc.record({
          price: decimals,
          quantity: decimals,
          us: offsetUs,
          side: fc.constantFrom('buy', 'sell', 'Buy', 'SELL'),
        }),
        fc.integer({ min: 1, max: 9 }),
        limits,
        ({ us, side, ...values }, id) => {
          const ms = fromMs + Math.floor(us / 1000);
          // What no quote quantity can be: see the refusals.
          const large = Number(values.price) * Number(values.quantity) > 9e10;
          const { price, quantity } = large ? { price: '0.1', quantity: '1e-05' } : values;
          const quote = exactDecimal(price) * exactDecimal(quantity);
          return {
            line: [symbol, id, side, price, quantity, ms].join(','),
            id,
            ms,
            price,
            quantity,
            quote,
            texts: [`${ms}`, `${id}`, price, quantity, fixed(String(quote), 60), side.toLowerCase(), symbol],
          };
        },
      ),
    idFacts: (list) => ({ gaps: list.at(-1)!.id - list[0].id + 1 - list.length, repeats_dropped: 0 }),
  }),
);

const SYMBOLS_C = ['BTCUSDT', 'SHIB1000USDT'] as const;
const HEADER_C = 'timestamp,symbol,side,size,price,tickDirection,trdMatchID,grossValue,homeNotional,foreignNotional';
/** Seconds with up to six decimals, and the millisecond they are rounded to. */
const secondsOf = (us: number, places: number, fromMs: number, toMs: number) => {
  const [whole, decimals] = [Math.floor(us / 1e6), String(us % 1e6).padStart(6, '0')];
  const text = places === 0 ? `${fromMs / 1000 + whole}` : `${fromMs / 1000 + whole}.${decimals.slice(0, places)}`;
  const shown = Number(decimals.slice(0, places).padEnd(6, '0'));
  const ms = fromMs + whole * 1000 + Math.floor((shown + 500) / 1000);
  return { text, ms: Math.min(ms, toMs - 1) };
};
const largeDecimal = fc.oneof(
  decimal,
  fc.bigInt({ min: 1n, max: 2n ** 62n }).map(String),
  fc.tuple(fc.integer({ min: 1, max: 9999 }), fc.integer({ min: 0, max: 14 })).map(([n, e]) => `${n / 1000}e+${e}`),
);
const decoderOfC = (
  rows: DayRows,
  {
    frameRawBytes,
    window,
    ...sorting
  }: { frameRawBytes: number; window: ReturnType<Read['partitionOf']> } & Omit<SortedRowsOptions, 'openScratch'>,
) =>
  new ExchangeCDecoder(rows, {
    document: rows.reader.document,
    window,
    frameRawBytes,
    maxHeldBytes: 1 << 30,
    sorting: { openScratch: () => openScratch(tmpdir()), ...sorting },
  });
export const [EXCHANGE_C, OTHER_C] = layouts(
  'exchange_c_spot_trades',
  SYMBOLS_C,
  ({ fromMs, toMs, symbol, partitionOf }) => ({
    document: `${symbol}${DAY}.csv.gz`,
    headers: [HEADER_C, `${HEADER_C},RPI`],
    columns: [
      {
        name: 'timestamp',
        bad: ['', 'abc', '-1', '1705276800.', '1705276800.x', '1.7052768e9', '.5', '1'.repeat(40), '\0'],
      },
      { name: 'symbol', bad: [...quotedOr(symbol), symbol.slice(0, -1), `${symbol}M`] },
      { name: 'side', bad: NO_SIDE },
      { name: 'size', bad: [...NO_DECIMALS, ...TOO_LARGE, ...TOO_LONG] },
      { name: 'price', bad: [...NO_DECIMALS, ...ZEROS, ...TOO_LARGE, ...TOO_LONG] },
      { name: 'tickDirection', bad: ['', 'Plus Tick', '1', 'x'.repeat(33), '"PlusTick"', '\0'] },
      { name: 'trdMatchID', bad: NO_MATCH_ID },
      { name: 'grossValue', bad: [...NO_DECIMALS, ...ZEROS, '1208925819614629174706176', '1e25', ...TOO_LONG] },
      { name: 'homeNotional', bad: [...NO_DECIMALS, ...TOO_LARGE, ...TOO_LONG] },
      { name: 'foreignNotional', bad: [...NO_DECIMALS, ...ZEROS, ...TOO_LARGE, ...TOO_LONG] },
    ],
    decoder: ({ frameRawBytes = 1 << 16, day = DAY, runBytes, isUnordered } = {}) =>
      decoderOfC(new TradingRows({ document: `${symbol}${day}.csv.gz`, symbol, window: partitionOf(day) }), {
        ...{ frameRawBytes, window: partitionOf(day), runBytes, isUnordered },
      }),
    projector: (day = DAY) => new TradingRowProjector(partitionOf(day)),
    row: (id, changed, ms = fromMs + (id % 86_400_000)) =>
      cellsOf(
        [
          `${ms / 1000}`,
          symbol,
          'Sell',
          '0.857',
          '6733.5',
          'MinusTick',
          `m-${id}`,
          '577060950000.0',
          '0.857',
          '5770.6095',
        ],
        changed,
      ),
    lines: (decimals, limits = LIMITS) =>
      listOf(
        fc.record({
          us: offsetUs,
          places: fc.integer({ min: 0, max: 6 }),
          side: fc.constantFrom('Buy', 'Sell', 'buy', 'SELL'),
          quantity: fc.oneof({ weight: 9, arbitrary: decimals }, fc.constantFrom('0', '0.0', '0e3')),
          price: decimals,
          tick: fc.constantFrom('PlusTick', 'ZeroPlusTick', 'MinusTick', 'ZeroMinusTick', 'x'),
          gross: largeDecimal,
          home: fc.oneof(decimals, fc.constant('0.0')),
          quote: decimals,
        }),
        fc.constant(1),
        limits,
        ({ us, places, side, quantity, price, tick, gross, home, quote }, id) => {
          const { text, ms } = secondsOf(us, places, fromMs, toMs);
          const match = `m-${id}`;
          return {
            line: [text, symbol, side, quantity, price, tick, match, gross, home, quote].join(','),
            id,
            ms,
            price,
            quantity,
            quote: exact(quote),
            texts: [`${ms}`, `${id}`, price, quantity, gross, home, quote, side.toLowerCase(), tick, symbol, match],
          };
        },
      ),
    idFacts: () => ({ gaps: 0, repeats_dropped: 0 }),
  }),
);

const HEADER_C_SPOT = 'id,timestamp,price,volume,side';
/** Files of the tree `spot`. What their rows do not state is computed here with BigInts, row by row. */
export const [EXCHANGE_C_SPOT, OTHER_C_SPOT] = layouts(
  'exchange_c_spot_trades',
  SYMBOLS_C,
  ({ fromMs, symbol, partitionOf }) => ({
    document: `${symbol}_${DAY}.csv.gz`,
    headers: [HEADER_C_SPOT, `${HEADER_C_SPOT},rpi`],
    columns: [
      { name: 'id', bad: [...NO_ID, '0'] },
      { name: 'timestamp', bad: [...NO_TIME, '1705276800000000', `${DAY}.5`] },
      { name: 'price', bad: [...NO_DECIMALS, ...ZEROS, ...TOO_LARGE, ...TOO_LONG] },
      { name: 'volume', bad: [...NO_DECIMALS, ...TOO_LARGE, ...TOO_LONG] },
      { name: 'side', bad: NO_SIDE },
    ],
    decoder: ({ frameRawBytes = 1 << 16, day = DAY, runBytes, isUnordered } = {}) =>
      decoderOfC(new SpotRows({ document: `${symbol}_${day}.csv.gz`, symbol, window: partitionOf(day) }), {
        ...{ frameRawBytes, window: partitionOf(day), runBytes, isUnordered },
      }),
    projector: (day = DAY) => new SpotRowProjector(partitionOf(day), symbol),
    row: (id, changed, ms = fromMs + (id % 86_400_000)) =>
      cellsOf([`${id}`, `${ms}`, '78580.8', '0.000160', 'buy'], changed),
    lines: (decimals, limits = LIMITS) =>
      listOf(
        fc.record({
          us: offsetUs,
          side: fc.constantFrom('Buy', 'Sell', 'buy', 'SELL'),
          quantity: fc.oneof({ weight: 9, arbitrary: decimals }, fc.constantFrom('0', '0.0', '0e3')),
          // Now and then the price of another row.
          price: fc.oneof(
            { weight: 3, arbitrary: decimals },
            fc.constantFrom('42000.1', '42000.10', '42000.2', '4.20001e4'),
          ),
        }),
        fc.constant(1),
        limits,
        ({ us, side, ...values }, id) => {
          const ms = fromMs + Math.floor(us / 1000);
          const large = Number(values.price) * Number(values.quantity) > 9e10;
          const { price, quantity } = large ? { price: '0.1', quantity: '1e-05' } : values;
          const quote = exactDecimal(price) * exactDecimal(quantity);
          const [foreign, gross] = [fixed(String(quote), 60), fixed(String(quote * 10n ** 8n), 60)];
          const texts = [
            `${ms}`,
            `${id}`,
            price,
            quantity,
            gross,
            quantity,
            foreign,
            side.toLowerCase(),
            '',
            symbol,
            `m-${id}`,
          ];
          return { line: [id, ms, price, quantity, side].join(','), id, ms, price, quantity, quote, texts };
        },
      ).map(withTicks),
    // Every day begins at 1.
    idFacts: ([{ id }]) => ({
      gaps: id - 1,
      missing_offsets: id === 1 ? undefined : [id === 2 ? '1' : `1..${id - 1}`],
      repeats_dropped: 0,
    }),
  }),
);

/** With the tick direction of each row, in the order of ids. */
function withTicks(list: readonly TradeLine[]): TradeLine[] {
  let last: 'Plus' | 'Minus' | undefined;
  return list.map((row, index) => {
    const [before, price] = [list[index - 1] ?? row, row].map((one) => Number(one.price));
    if (price !== before) last = price > before ? 'Plus' : 'Minus';
    const tick = last === undefined ? '' : `${price === before ? 'Zero' : ''}${last}Tick`;
    return { ...row, texts: row.texts.with(8, tick) };
  });
}

/** Those whose usual rows the decoder reads in WebAssembly. */
export const SCANNED_LAYOUTS = [EXCHANGE_A, EXCHANGE_B, EXCHANGE_C];
export const LAYOUTS = [...SCANNED_LAYOUTS, EXCHANGE_C_SPOT];
/** The same of another instrument of each. */
export const OTHER_LAYOUTS = [OTHER_A, OTHER_B, OTHER_C, OTHER_C_SPOT];

// ---- files ---------------------------------------------------------------------------------------------------------

export interface FileShape {
  readonly bom: boolean;
  readonly header: string | undefined;
  readonly crlf: readonly boolean[];
  readonly lastEnd: boolean;
}

export const shapes = (of: TradeLayout): fc.Arbitrary<FileShape> =>
  fc.record({
    bom: fc.boolean(),
    header: fc.constantFrom(...of.headers),
    crlf: fc.array(fc.boolean(), { minLength: 1, maxLength: 5 }),
    lastEnd: fc.boolean(),
  });

export const plain = (of: TradeLayout): FileShape => ({
  bom: false,
  header: of.headers[0],
  crlf: [false],
  lastEnd: true,
});

/** The bytes of a file. Under a header of one column more, each row has one more, which is not read. */
export function fileOf(of: TradeLayout, lines: readonly string[], shape = plain(of)): Buffer {
  const { bom, header, crlf, lastEnd } = shape;
  const all = header === undefined ? [...lines] : [header, ...withLast(of, lines, header)];
  const ended = all.map((line, index) => {
    const end = crlf[index % crlf.length] ? '\r\n' : '\n';
    return lastEnd || index < all.length - 1 ? line + end : line;
  });
  return Buffer.from((bom ? '\ufeff' : '') + ended.join(''));
}

/** Rows as they stand under this header. */
export const withLast = (of: TradeLayout, lines: readonly string[], header: string | undefined): string[] =>
  lines.map((line) => (header !== undefined && header.split(',').length > of.columns.length ? `${line},0` : line));

export const pieceSizes = fc.oneof(
  fc.array(fc.integer({ min: 1, max: 90 }), { minLength: 1, maxLength: 12 }),
  fc.array(fc.integer({ min: 1, max: 3000 }), { maxLength: 3 }),
);
