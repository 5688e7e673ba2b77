/**
 * Exchange A's decoder and row projector, held against each other, against plain text handling and BigInts, and
 * against PostgreSQL reading the same text.
 */
import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { MAX_ROW_BYTES, TradeFileDecoder } from '../pipelines/sources/exchange_a/decode.ts';
import { generateDay } from '../pipelines/sources/exchange_a/generate.ts';
import { TradeRowProjector } from '../pipelines/sources/exchange_a/project.ts';
import type { DecodedItem, EventRun, PartitionEnd } from '../pipelines/sources/types.ts';
import { type Client, connect } from '../shared/db/connect.ts';
import { TidemarkError } from '../shared/errors.ts';
import { nativeRecountSql } from '../shared/proof/recount.ts';
import { exchangeASpotTrades } from '../shared/registry/datasets/exchange_a_spot_trades.ts';
import { createTestEnv, type TestEnv } from './support/stack.ts';

const DAY_MS = 86_400_000;
const DAY = Date.UTC(2024, 0, 15);
const DOCUMENT = 'BTCUSDT-trades-2024-01-15.zip';
const COLUMNS = 'id,price,qty,quote_qty,time,is_buyer_maker,is_best_match';

interface Reading {
  readonly frameRawBytes?: number;
  /** Sizes of the chunks the bytes come in, over and over; default all at once. */
  readonly chunks?: readonly number[];
  readonly days?: number;
}

function decode(bytes: Buffer, { frameRawBytes = 1 << 20, chunks = [], days = 1 }: Reading = {}): DecodedItem[] {
  const decoder = new TradeFileDecoder({ document: DOCUMENT, fromMs: DAY, toMs: DAY + days * DAY_MS, frameRawBytes });
  const items: DecodedItem[] = [];
  for (let at = 0, turn = 0; at < bytes.length; turn++) {
    const size = chunks.length > 0 ? chunks[turn % chunks.length] : bytes.length;
    // A buffer of its own, overwritten afterwards: a decompressor may use it again.
    const chunk = Buffer.from(bytes.subarray(at, at + size));
    items.push(...decoder.push(chunk));
    chunk.fill(0x21);
    at += size;
  }
  items.push(...decoder.finish());
  return items.map(withoutRelease);
}

/** What a frame holds, without the way to give its buffer back: two functions are never equal. */
const withoutRelease = (item: DecodedItem): DecodedItem =>
  item.kind === 'events' ? { ...item, release: undefined } : item;

const ends = (items: readonly DecodedItem[]) => items.filter((item): item is PartitionEnd => item.kind === 'end');
const runs = (items: readonly DecodedItem[], key?: string) =>
  items.filter((item): item is EventRun => item.kind === 'events' && (key === undefined || item.partition.key === key));
const rawOf = (items: readonly DecodedItem[], key?: string) => Buffer.concat(runs(items, key).map((run) => run.raw));

// ---- rows as text --------------------------------------------------------------------------------------------------

interface Row {
  readonly id: number;
  readonly price: string;
  readonly quantity: string;
  readonly quote: string;
  /** Offset from the start of the day, microseconds. */
  readonly us: number;
  readonly micro: boolean;
  readonly maker: string;
  readonly best: string;
}

const timeText = ({ us, micro }: Row) => String(micro ? DAY * 1000 + us : DAY + Math.floor(us / 1000));
const msOf = (row: Row) => DAY + Math.floor(row.us / 1000);
const rowText = (row: Row) =>
  [row.id, row.price, row.quantity, row.quote, timeText(row), row.maker, row.best].join(',');
const isTrue = (text: string) => /^(true|1)$/i.test(text);

/** Digits with a point `places` from the right. */
const fixed = (digits: string, places: number) => {
  const padded = digits.padStart(places + 1, '0');
  return places === 0 ? padded : `${padded.slice(0, -places)}.${padded.slice(-places)}`;
};
const usualDecimal = fc
  .tuple(fc.integer({ min: 1, max: 10 ** 14 }), fc.integer({ min: 0, max: 8 }))
  .filter(([units, places]) => units / 10 ** places < 9e10)
  .map(([units, places]) => fixed(String(units), places));
/** More places, more digits, exponents, signs: what the fast path leaves to the slow one. */
const unusualDecimal = fc.oneof(
  fc
    .tuple(fc.bigInt({ min: 1n, max: 10n ** 17n }), fc.integer({ min: 7, max: 20 }))
    .map(([units, places]) => fixed(String(units), places)),
  fc
    .tuple(fc.bigInt({ min: 10n ** 15n, max: 10n ** 17n }), fc.integer({ min: 8, max: 16 }))
    .map(([units, places]) => fixed(String(units), places)),
  fc
    .tuple(fc.integer({ min: 1, max: 10 ** 6 }), fc.integer({ min: -12, max: 4 }), fc.constantFrom('e', 'E'))
    .map(([units, exponent, e]) => `${fixed(String(units), 2)}${e}${exponent}`),
  fc.constantFrom('7.98e-05', '1e3', '1E+03', '+2.5', '.5', '5.', '007.50', '0.000000000000000000001', '1.e2', '.5e1'),
  fc.constantFrom('22517998.13685248', '22517998.13685247', '90071992.54740993', '9007199254.740993'),
);
const decimal = fc.oneof({ weight: 4, arbitrary: usualDecimal }, { weight: 1, arbitrary: unusualDecimal });
const flag = fc.constantFrom('True', 'False', 'true', 'false', 'TRUE', 'FALSE', '1', '0');

const rows = (decimals: fc.Arbitrary<string>, limits: fc.ArrayConstraints = { minLength: 1, maxLength: 40 }) =>
  fc
    .tuple(
      fc.integer({ min: 1, max: 10 ** 10 }),
      fc.array(
        fc.record({
          price: decimals,
          quantity: decimals,
          quote: decimals,
          // Few seconds, so that several rows share one; not in order.
          us: fc.oneof(fc.integer({ min: 0, max: 5_000_000 }), fc.integer({ min: 0, max: DAY_MS * 1000 - 1 })),
          micro: fc.boolean(),
          maker: flag,
          best: flag,
        }),
        limits,
      ),
    )
    .map(([firstId, list]): Row[] => list.map((row, index) => ({ ...row, id: firstId + index })));

interface Layout {
  readonly bom: boolean;
  readonly header: string | undefined;
  readonly crlf: readonly boolean[];
  readonly lastEnd: boolean;
}
const layout: fc.Arbitrary<Layout> = fc.record({
  bom: fc.boolean(),
  header: fc.constantFrom(undefined, COLUMNS, COLUMNS.toUpperCase(), COLUMNS.replace('id,', 'trade_id,')),
  crlf: fc.array(fc.boolean(), { minLength: 1, maxLength: 5 }),
  lastEnd: fc.boolean(),
});
const PLAIN: Layout = { bom: false, header: undefined, crlf: [false], lastEnd: true };

function fileOf(lines: readonly string[], { bom, header, crlf, lastEnd }: Layout = PLAIN): Buffer {
  const all = header === undefined ? [...lines] : [header, ...lines];
  const ended = all.map((line, index) => {
    const end = crlf[index % crlf.length] ? '\r\n' : '\n';
    return lastEnd || index < all.length - 1 ? line + end : line;
  });
  return Buffer.from((bom ? '\ufeff' : '') + ended.join(''));
}
const chunking = fc.oneof(
  fc.array(fc.integer({ min: 1, max: 90 }), { minLength: 1, maxLength: 12 }),
  fc.array(fc.integer({ min: 1, max: 3000 }), { maxLength: 3 }),
);

// ---- an independent computation ------------------------------------------------------------------------------------

/** The exact value of a decimal as a fraction over 10^40. */
function exact(text: string): bigint {
  const [, whole = '', fraction = '', exponent = '0'] = /^\+?(\d*)\.?(\d*)(?:e([+-]?\d+))?$/i.exec(text)!;
  const places = fraction.length - Number(exponent);
  return BigInt(`${whole}${fraction}` || '0') * 10n ** BigInt(40 - places);
}
const exactText = (value: bigint) => fixed(String(value), 40);
/** To an integer, halves to even: what adding and taking away 2^52 leaves of a float64. */
const rint = (value: number) => (value < 2 ** 52 ? value + 2 ** 52 - 2 ** 52 : value);
const totalOf = (texts: readonly string[]) =>
  texts.reduce((sum, text) => sum + BigInt(rint(Number(text) * 1e8)), 0n).toString();

function factsOf(list: readonly Row[]) {
  const times = list.map(msOf);
  return {
    rows: list.length,
    first_offset: String(list[0].id),
    last_offset: String(list.at(-1)!.id),
    first_ms: Math.min(...times),
    last_ms: Math.max(...times),
    gaps: 0,
    totals: {
      price: totalOf(list.map((row) => row.price)),
      quantity: totalOf(list.map((row) => row.quantity)),
      quote_quantity: totalOf(list.map((row) => row.quote)),
    },
    events_sha256: createHash('sha256')
      .update(list.map((row) => `${rowText(row)}\n`).join(''))
      .digest('hex'),
  };
}

// ---- reading -------------------------------------------------------------------------------------------------------

describe('a file', () => {
  test('yields the facts that plain text handling finds, whatever its line ends, header and mark', () => {
    fc.assert(
      fc.property(rows(decimal), layout, chunking, (list, how, chunks) => {
        const items = decode(fileOf(list.map(rowText), how), { chunks });
        const [end, ...others] = ends(items);
        expect(others).toEqual([]);
        const { rows_hash, ...facts } = end.facts;
        expect(facts).toEqual(factsOf(list));
        expect(rows_hash).toMatch(/^-?\d+$/);
        expect(end.partition).toEqual({ key: '2024-01-15', fromMs: DAY, toMs: DAY + DAY_MS });
        // The events are the rows' own bytes, line ends apart.
        expect(rawOf(items).toString()).toBe(list.map((row) => `${rowText(row)}\n`).join(''));
      }),
      { numRuns: 400 },
    );
  });

  test('yields the same facts and the same frames however it is cut into chunks', () => {
    fc.assert(
      fc.property(rows(decimal), layout, chunking, fc.integer({ min: 1, max: 700 }), (list, how, chunks, size) => {
        const file = fileOf(list.map(rowText), how);
        const whole = decode(file, { frameRawBytes: size });
        expect(decode(file, { frameRawBytes: size, chunks })).toEqual(whole);
        expect(decode(file, { frameRawBytes: size, chunks: [1] })).toEqual(whole);
      }),
      { numRuns: 250 },
    );
  });

  test('yields the same facts and bytes at any frame size, in frames that say what they hold', () => {
    fc.assert(
      fc.property(rows(decimal), layout, fc.integer({ min: 1, max: 3000 }), (list, how, frameRawBytes) => {
        const file = fileOf(list.map(rowText), how);
        const items = decode(file, { frameRawBytes });
        expect(ends(items)).toEqual(ends(decode(file)));
        expect(rawOf(items)).toEqual(rawOf(decode(file)));
        let next = 0;
        for (const run of runs(items)) {
          const held = list.slice(next, next + run.rows);
          next += run.rows;
          expect(run.raw.toString()).toBe(held.map((row) => `${rowText(row)}\n`).join(''));
          expect(run).toMatchObject({
            first_offset: String(held[0].id),
            last_offset: String(held.at(-1)!.id),
            first_ms: Math.min(...held.map(msOf)),
            last_ms: Math.max(...held.map(msOf)),
          });
          // Closed as soon as it is full.
          expect(run.raw.length).toBeLessThan(frameRawBytes + MAX_ROW_BYTES + 1);
          if (next < list.length) expect(run.raw.length).toBeGreaterThanOrEqual(frameRawBytes);
        }
        expect(next).toBe(list.length);
      }),
      { numRuns: 250 },
    );
  });

  test('of a generated day yields what its generator added up', () => {
    for (const timeUnit of ['ms', 'us'] as const) {
      const chunks: Buffer[] = [];
      const day = generateDay({ day: '2024-01-15', rows: 50_000, seed: 9, firstId: 4_359_935_386, timeUnit });
      let turn = day.next();
      for (; !turn.done; turn = day.next()) chunks.push(Buffer.from(turn.value));
      const summary = turn.value;
      const [{ facts }] = ends(decode(Buffer.concat(chunks), { chunks: [65_536] }));
      const perMs = timeUnit === 'us' ? 1000 : 1;
      expect(facts).toMatchObject({
        rows: summary.rows,
        first_offset: String(summary.firstId),
        last_offset: String(summary.lastId),
        first_ms: Math.floor(summary.firstTime / perMs),
        last_ms: Math.floor(summary.lastTime / perMs),
        totals: {
          quantity: summary.quantity.replace(/^0*|\./g, ''),
          quote_quantity: summary.quoteQuantity.replace('.', ''),
        },
      });
    }
  });

  test('of several days yields for each day the facts and bytes of the file of that day', () => {
    const days = fc.array(rows(decimal, { minLength: 1, maxLength: 12 }), { minLength: 1, maxLength: 5 });
    fc.assert(
      fc.property(days, layout, chunking, fc.integer({ min: 1, max: 900 }), (lists, how, chunks, frameRawBytes) => {
        // Ids run on; a day may be missing from the month.
        let id = lists[0][0].id;
        const month = lists.map((list, index) => {
          const day = index < 2 ? index : index + 2;
          return list.map((row): Row => ({ ...row, id: id++, us: row.us + day * DAY_MS * 1000 }));
        });
        const items = decode(fileOf(month.flat().map(rowText), how), { days: 10, chunks, frameRawBytes });
        expect(ends(items)).toHaveLength(month.length);
        for (const [index, list] of month.entries()) {
          const end = ends(items)[index];
          const shift = Math.floor(list[0].us / (DAY_MS * 1000)) * DAY_MS;
          const decoder = new TradeFileDecoder({
            document: DOCUMENT,
            fromMs: DAY + shift,
            toMs: DAY + shift + DAY_MS,
            frameRawBytes,
          });
          const own = [...decoder.push(fileOf(list.map(rowText))), ...decoder.finish()].map(withoutRelease);
          expect(end).toEqual(ends(own)[0]);
          expect(runs(items, end.partition.key)).toEqual(runs(own));
        }
        // One day after the other: every frame of a day before its end, none after it.
        const order = items.map((item) => item.partition.key);
        expect(order).toEqual([...order].sort());
      }),
      { numRuns: 150 },
    );
  });

  test('with a row of the largest size is read, with one byte more refused, at any chunking', () => {
    const rest = `,1.5,2.5,${DAY},True,True`;
    const row = (length: number, id = 17) => {
      const start = `${id},1.`;
      return `${start}${'3'.repeat(length - start.length - rest.length)}${rest}`;
    };
    for (const end of ['\n', '\r\n', '']) {
      for (const chunks of [[], [1], [7], [MAX_ROW_BYTES], [MAX_ROW_BYTES + 1], [MAX_ROW_BYTES + 2]]) {
        for (const frameRawBytes of [1, 100, 4096]) {
          const largest = Buffer.from(`${row(MAX_ROW_BYTES)}\n${row(MAX_ROW_BYTES, 18)}${end}`);
          const items = decode(largest, { chunks, frameRawBytes });
          expect(rawOf(items).toString()).toBe(`${row(MAX_ROW_BYTES)}\n${row(MAX_ROW_BYTES, 18)}\n`);
          const larger = Buffer.from(`${row(MAX_ROW_BYTES)}\n${row(MAX_ROW_BYTES + 1, 18)}${end}`);
          expect(faultOf(() => decode(larger, { chunks, frameRawBytes }))).toMatchObject({
            code: 'SOURCE_ROW_INVALID',
            line: 2,
          });
        }
      }
    }
  });
});

// ---- refusing ------------------------------------------------------------------------------------------------------

interface Fault {
  readonly code: string;
  readonly document: unknown;
  readonly line: unknown;
  readonly message: string;
}

function faultOf(work: () => unknown): Fault {
  try {
    work();
  } catch (error) {
    if (!(error instanceof TidemarkError)) throw error;
    const { code, message, details } = error;
    return { code, message, document: details.document, line: details.line };
  }
  throw new Error('no fault where one is due');
}

const good = (id: number) => `${id},42283.58000000,0.00069000,29.17567020,${DAY + (id % DAY_MS)},True,True`;
const cells = (changes: Partial<Record<number, string>>) => (id: number) =>
  good(id)
    .split(',')
    .map((cell, index) => changes[index] ?? cell)
    .join(',');

/** Name, how the row of this id is spoilt, code, and a part of the message. */
const BAD_ROWS: readonly [string, (id: number) => string, string, string][] = [
  ['6 columns', (id) => good(id).split(',').slice(0, 6).join(','), 'SOURCE_ROW_INVALID', '6 columns'],
  ['1 column', (id) => `${id}`, 'SOURCE_ROW_INVALID', '1 columns'],
  ['8 columns', (id) => `${good(id)},1`, 'SOURCE_ROW_INVALID', '8 columns'],
  ['8 columns, the last empty', (id) => `${good(id)},`, 'SOURCE_ROW_INVALID', '8 columns'],
  ['a cell too many in the middle', (id) => good(id).replace(',True', ',x,True'), 'SOURCE_ROW_INVALID', 'x'],
  ['a non-numeric id', cells({ 0: 'abc' }), 'SOURCE_ROW_INVALID', 'id'],
  ['an empty id', cells({ 0: '' }), 'SOURCE_ROW_INVALID', 'id'],
  ['a negative id', cells({ 0: '-5' }), 'SOURCE_ROW_INVALID', 'id'],
  ['an id with a point', (id) => cells({ 0: `${id}.0` })(id), 'SOURCE_ROW_INVALID', 'id'],
  ['an id with leading zeros', (id) => cells({ 0: `00${id}` })(id), 'SOURCE_ROW_INVALID', 'id'],
  ['an id past all numbers', cells({ 0: '12345678901234567890' }), 'SOURCE_ROW_INVALID', 'id'],
  ['an id in quotes', (id) => cells({ 0: `"${id}"` })(id), 'SOURCE_ROW_INVALID', 'id'],
  [
    'a non-numeric price',
    cells({ 1: 'abc' }),
    'SOURCE_ROW_INVALID',
    'price must be a decimal number above 0, found "abc"',
  ],
  ['an empty price', cells({ 1: '' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price of 0', cells({ 1: '0.00000000' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price in hexadecimal', cells({ 1: '0x10' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price with two points', cells({ 1: '1.2.3' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price with a space', cells({ 1: ' 1.5' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price of letters behind digits', cells({ 1: '1.5x' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price with an unfinished exponent', cells({ 1: '1e' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price that is a point', cells({ 1: '.' }), 'SOURCE_ROW_INVALID', 'price'],
  ['an endless price', cells({ 1: 'Infinity' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price over all floats', cells({ 1: '1e309' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price under all floats', cells({ 1: '1e-400' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price too large to be totalled', cells({ 1: '92233720368.54775808' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a price of 300 digits', cells({ 1: '9'.repeat(300) }), 'SOURCE_ROW_INVALID', 'price'],
  ['a negative quantity', cells({ 2: '-0.00069000' }), 'SOURCE_ROW_INVALID', 'qty must be a decimal number above 0'],
  ['a NaN quantity', cells({ 2: 'NaN' }), 'SOURCE_ROW_INVALID', 'qty'],
  ['an empty quantity', cells({ 2: '' }), 'SOURCE_ROW_INVALID', 'qty'],
  ['a null quote quantity', cells({ 3: 'null' }), 'SOURCE_ROW_INVALID', 'quote_qty'],
  ['a negative quote quantity', cells({ 3: '-1' }), 'SOURCE_ROW_INVALID', 'quote_qty'],
  ['a quote quantity too large to be totalled', cells({ 3: '1e12' }), 'SOURCE_ROW_INVALID', 'quote_qty'],
  ['a 12-digit timestamp', cells({ 4: '170527680000' }), 'SOURCE_ROW_INVALID', '13 digits'],
  ['a 10-digit timestamp', cells({ 4: '1705276800' }), 'SOURCE_ROW_INVALID', '13 digits'],
  ['a 14-digit timestamp', cells({ 4: '17052768000000' }), 'SOURCE_ROW_INVALID', '13 digits'],
  ['a 19-digit timestamp', cells({ 4: '1705276800000000000' }), 'SOURCE_ROW_INVALID', '13 digits'],
  ['a timestamp of 40 digits', cells({ 4: '1'.repeat(40) }), 'SOURCE_ROW_INVALID', 'time'],
  ['a timestamp with a point', cells({ 4: `${DAY}.5` }), 'SOURCE_ROW_INVALID', 'time'],
  ['a date for a timestamp', cells({ 4: '2024-01-15' }), 'SOURCE_ROW_INVALID', 'time'],
  ['an empty timestamp', cells({ 4: '' }), 'SOURCE_ROW_INVALID', 'time'],
  ['a time a ms before the day', cells({ 4: String(DAY - 1) }), 'SOURCE_OUTSIDE_PARTITION', '2024-01-14T23:59:59.999Z'],
  ['a time at the end of the day', cells({ 4: String(DAY + DAY_MS) }), 'SOURCE_OUTSIDE_PARTITION', '2024-01-16'],
  ['a µs before the day', cells({ 4: String(DAY * 1000 - 1) }), 'SOURCE_OUTSIDE_PARTITION', '2024-01-14'],
  ['a µs time at the end of the day', cells({ 4: String((DAY + DAY_MS) * 1000) }), 'SOURCE_OUTSIDE_PARTITION', '2024'],
  ['a time past all calendars', cells({ 4: '9999999999999999' }), 'SOURCE_OUTSIDE_PARTITION', 'outside'],
  ['a time of the first day ever', cells({ 4: '0000000000000' }), 'SOURCE_OUTSIDE_PARTITION', '1970-01-01'],
  ['a repeated id', (id) => good(id - 1), 'SOURCE_SEQUENCE_BROKEN', 'expected'],
  ['a missing id', (id) => good(id + 1), 'SOURCE_SEQUENCE_BROKEN', 'expected'],
  ['an id that goes back', (id) => good(id - 2), 'SOURCE_SEQUENCE_BROKEN', 'expected'],
  ['a flag that is none', cells({ 5: 'yes' }), 'SOURCE_ROW_INVALID', 'is_buyer_maker'],
  ['a flag that begins like one', cells({ 5: 'Trux' }), 'SOURCE_ROW_INVALID', 'is_buyer_maker'],
  ['a flag with more behind it', cells({ 5: 'Truee' }), 'SOURCE_ROW_INVALID', 'is_buyer_maker'],
  ['a flag of 2', cells({ 6: '2' }), 'SOURCE_ROW_INVALID', 'is_best_match'],
  ['an empty last flag', cells({ 6: '' }), 'SOURCE_ROW_INVALID', 'is_best_match'],
  ['a cut last flag', cells({ 6: 'Tru' }), 'SOURCE_ROW_INVALID', 'is_best_match'],
  ['trailing garbage', (id) => `${good(id)} garbage`, 'SOURCE_ROW_INVALID', 'end of the row'],
  ['a trailing space', (id) => `${good(id)} `, 'SOURCE_ROW_INVALID', 'end of the row'],
  ['a leading space', (id) => ` ${good(id)}`, 'SOURCE_ROW_INVALID', 'id'],
  ['two carriage returns', (id) => `${good(id)}\r\r`, 'SOURCE_ROW_INVALID', 'end of the row'],
  ['a carriage return within', (id) => good(id).replace(',True', '\r,True'), 'SOURCE_ROW_INVALID', ''],
  ['no bytes', () => '', 'SOURCE_ROW_INVALID', 'id'],
  ['only spaces', () => '   ', 'SOURCE_ROW_INVALID', 'id'],
  ['only commas', () => ',,,,,,', 'SOURCE_ROW_INVALID', 'id'],
  ['a NUL byte in front', (id) => `\0${good(id)}`, 'SOURCE_ROW_INVALID', 'id'],
  ['a NUL byte in a number', (id) => good(id).replace('.', '.\0'), 'SOURCE_ROW_INVALID', 'price'],
  ['a NUL byte at the end', (id) => `${good(id)}\0`, 'SOURCE_ROW_INVALID', 'end of the row'],
  ['only NUL bytes', () => '\0\0\0\0', 'SOURCE_ROW_INVALID', 'id'],
  ['a semicolon for a comma', (id) => good(id).replace(',', ';'), 'SOURCE_ROW_INVALID', 'id'],
  ['digits of another script', cells({ 1: '١٢' }), 'SOURCE_ROW_INVALID', 'price'],
  ['a second header', () => COLUMNS, 'SOURCE_ROW_INVALID', 'id'],
  ['a second byte order mark', (id) => `\ufeff${good(id)}`, 'SOURCE_ROW_INVALID', 'id'],
  ['600 bytes without an end', () => '1'.repeat(600), 'SOURCE_ROW_INVALID', ''],
  ['a row of 2,000 bytes', (id) => cells({ 1: `1.${'0'.repeat(480)}1`, 2: `1.${'0'.repeat(480)}1`, 3: `1.${'0'.repeat(480)}1` })(id), 'SOURCE_ROW_INVALID', 'longer than'], // biome-ignore format: one case a line
];

describe('a bad row', () => {
  test.each(BAD_ROWS)('%s: refused naming document and line', (_name, spoil, code, part) => {
    const count = 7;
    for (const at of [1, 4, count - 1]) {
      const lines = Array.from({ length: count }, (_, index) => (index === at ? spoil(100 + at) : good(100 + index)));
      for (const header of [undefined, COLUMNS]) {
        for (const how of [PLAIN, { ...PLAIN, lastEnd: false }, { ...PLAIN, bom: true, crlf: [true] }]) {
          // Without an end, an empty last line is no line.
          if (!how.lastEnd && at === count - 1 && lines[at] === '') continue;
          const file = fileOf(lines, { ...how, header });
          for (const chunks of [[], [1], [13], [64]]) {
            const fault = faultOf(() => decode(file, { chunks }));
            expect(fault).toMatchObject({ code, document: DOCUMENT, line: at + (header === undefined ? 1 : 2) });
            expect(fault.message).toContain(`${DOCUMENT}, line ${fault.line}: `);
            if (chunks.length === 0) expect(fault.message).toContain(part);
            expect(fault.message.length).toBeLessThan(300);
          }
        }
      }
    }
  });

  test('is refused also where it is the first or only row', () => {
    // The first id is whatever it is.
    const free = new Set(['a repeated id', 'a missing id', 'an id that goes back', 'a second byte order mark']);
    // A first row that names the columns is a header.
    free.add('a second header');
    for (const [name, spoil, code] of BAD_ROWS) {
      if (free.has(name) || spoil(100) === '') continue;
      for (const lines of [[spoil(100)], [spoil(100), good(101)]]) {
        expect([name, faultOf(() => decode(fileOf(lines)))]).toMatchObject([name, { code, line: 1 }]);
      }
    }
  });

  test('ends the decoding: no partition is said to have ended', () => {
    const lines = [good(100), good(101), good(102).replace('True', 'Tru')];
    const decoder = new TradeFileDecoder({ document: DOCUMENT, fromMs: DAY, toMs: DAY + DAY_MS, frameRawBytes: 10 });
    const items = decoder.push(Buffer.from(`${lines[0]}\n${lines[1]}\n`));
    expect(runs(items)).toHaveLength(2);
    expect(() => decoder.push(Buffer.from(`${lines[2]}\n`))).toThrow('line 3');
    expect(ends(items)).toEqual([]);
  });

  test('of random bytes put into a good file never passes unnoticed, and never crashes', () => {
    const file = fileOf(Array.from({ length: 6 }, (_, index) => good(100 + index)));
    const untouched = rawOf(decode(file)).toString();
    fc.assert(
      fc.property(
        fc.nat(file.length - 1),
        fc.uint8Array({ minLength: 1, maxLength: 4 }),
        fc.boolean(),
        chunking,
        (at, bytes, insert, chunks) => {
          const spoilt = Buffer.concat([file.subarray(0, at), bytes, file.subarray(insert ? at : at + bytes.length)]);
          let items: DecodedItem[];
          try {
            items = decode(spoilt, { chunks });
          } catch (error) {
            expect(error).toBeInstanceOf(TidemarkError);
            return;
          }
          // Still a good file (a digit for a digit): then the change is in the bytes and the facts.
          const raw = rawOf(items).toString();
          expect(spoilt.toString('latin1').replaceAll('\r\n', '\n').trimEnd()).toBe(raw.trimEnd());
          if (raw !== untouched) expect(ends(items)[0].facts).not.toEqual(ends(decode(file))[0].facts);
        },
      ),
      { numRuns: 3000 },
    );
  });
});

describe('a file that holds nothing', () => {
  test.each([
    ['no bytes', Buffer.alloc(0), 'SOURCE_EMPTY'],
    ['a header alone', fileOf([], { ...PLAIN, header: COLUMNS }), 'SOURCE_EMPTY'],
    ['a header alone, without its end', fileOf([], { ...PLAIN, header: COLUMNS, lastEnd: false }), 'SOURCE_EMPTY'],
    ['a mark and a header', fileOf([], { ...PLAIN, bom: true, header: COLUMNS }), 'SOURCE_EMPTY'],
    ['a mark alone', Buffer.from('\ufeff'), 'SOURCE_ROW_INVALID'],
    ['an empty line', Buffer.from('\n'), 'SOURCE_ROW_INVALID'],
    ['two headers', fileOf([COLUMNS], { ...PLAIN, header: COLUMNS }), 'SOURCE_ROW_INVALID'],
  ])('%s: refused', (_name, file, code) => {
    for (const chunks of [[], [1]]) {
      expect(faultOf(() => decode(file, { chunks }))).toMatchObject({ code, document: DOCUMENT });
    }
  });
});

describe('a header', () => {
  test.each([
    ['other columns', 'id,price,qty,time'],
    ['columns in another order', 'id,qty,price,quote_qty,time,is_buyer_maker,is_best_match'],
    ['a column too many', `${COLUMNS},source`],
    ['a column of another name', COLUMNS.replace('quote_qty', 'side')],
  ])('with %s is refused: its cells would be taken for others', (_name, header) => {
    const file = fileOf([good(100)], { ...PLAIN, header });
    for (const chunks of [[], [5]]) {
      expect(faultOf(() => decode(file, { chunks }))).toMatchObject({
        code: 'SOURCE_ROW_INVALID',
        document: DOCUMENT,
        line: 1,
      });
    }
  });

  test.each([
    'trade_id,price,qty,quote_qty,time,is_buyer_maker,is_best_match',
    'id,price,quantity,quote_quantity,timestamp,is_buyer_maker,is_best_match',
    'Id,Price,Qty,QuoteQty,Time,IsBuyerMaker,IsBestMatch',
    'id, price, qty, quoteQty, time, isBuyerMaker, isBestMatch',
  ])('written as %s is known', (header) => {
    expect(ends(decode(fileOf([good(100)], { ...PLAIN, header })))[0].facts.rows).toBe(1);
  });
});

test('a month whose rows go back to an ended day, or break ids at midnight, is refused', () => {
  const at = (id: number, day: number) => cells({ 4: String(DAY + day * DAY_MS + 5) })(id);
  const back = fileOf([at(1, 0), at(2, 1), at(3, 0)]);
  expect(faultOf(() => decode(back, { days: 31 }))).toMatchObject({ code: 'SOURCE_OUTSIDE_PARTITION', line: 3 });
  const broken = fileOf([at(1, 0), at(3, 1)]);
  expect(faultOf(() => decode(broken, { days: 31 }))).toMatchObject({ code: 'SOURCE_SEQUENCE_BROKEN', line: 2 });
  const after = fileOf([at(1, 0), at(2, 31)]);
  expect(faultOf(() => decode(after, { days: 31 }))).toMatchObject({ code: 'SOURCE_OUTSIDE_PARTITION', line: 2 });
});

// ---- projecting ----------------------------------------------------------------------------------------------------

/** Binary COPY rows, read by the description of the format. */
function copyRows(copy: Buffer, types: readonly ('int8' | 'float8' | 'bool' | 'int4' | 'int2')[]) {
  const result: (bigint | number)[][] = [];
  for (let at = 0; at < copy.length; ) {
    expect(copy.readInt16BE(at)).toBe(types.length);
    at += 2;
    const row: (bigint | number)[] = [];
    for (const type of types) {
      const length = copy.readInt32BE(at);
      at += 4;
      expect([type, length]).toEqual([type, { int8: 8, float8: 8, bool: 1, int4: 4, int2: 2 }[type]]);
      if (type === 'int8') row.push(copy.readBigInt64BE(at));
      else if (type === 'float8') row.push(copy.readDoubleBE(at));
      else if (type === 'bool') row.push(copy.readUInt8(at));
      else row.push(type === 'int4' ? copy.readInt32BE(at) : copy.readInt16BE(at));
      at += length;
    }
    result.push(row);
  }
  return result;
}
const NATIVE_TYPES = ['int8', 'int8', 'float8', 'float8', 'float8', 'bool', 'bool'] as const;
const ALIGNED_TYPES = [
  'int8',
  'int8',
  'float8',
  'float8',
  'float8',
  'float8',
  'float8',
  'float8',
  'int4',
  'int2',
] as const;
const US_TO_2000 = BigInt(Date.UTC(2000, 0, 1)) * 1000n;
const WINDOW = { key: '2024-01-15', fromMs: DAY, toMs: DAY + DAY_MS };

/** One-second rows by definition: exact sums, rounded once; first and last by id. */
function naiveSeconds(list: readonly Row[]) {
  const seconds = Map.groupBy(list, (row) => Math.floor((msOf(row) - DAY) / 1000));
  return [...seconds.entries()]
    .sort(([a], [b]) => a - b)
    .map(([second, members]) => {
      const byId = members.toSorted((a, b) => a.id - b.id);
      const prices = members.map((row) => Number(row.price));
      const sum = (texts: string[]) => Number(exactText(texts.reduce((total, text) => total + exact(text), 0n)));
      return [
        BigInt(DAY + second * 1000) * 1000n - US_TO_2000,
        BigInt(members.length),
        Number(byId[0].price),
        Math.max(...prices),
        Math.min(...prices),
        Number(byId.at(-1)!.price),
        sum(members.map((row) => row.quantity)),
        sum(members.map((row) => row.quote)),
        3,
        1,
      ];
    });
}

describe('the row projector', () => {
  test('stores of every row what Number() makes of its text', () => {
    fc.assert(
      fc.property(rows(decimal), fc.integer({ min: 1, max: 900 }), (list, frameRawBytes) => {
        const projector = new TradeRowProjector(WINDOW);
        const stored = runs(decode(fileOf(list.map(rowText)), { frameRawBytes })).flatMap((run) => {
          const { copy, rows: count } = projector.rows(run.raw, run.rows);
          expect(count).toBe(run.rows);
          return copyRows(copy, NATIVE_TYPES);
        });
        expect(stored).toEqual(
          list.map((row) => [
            BigInt(msOf(row)),
            BigInt(row.id),
            Number(row.price),
            Number(row.quantity),
            Number(row.quote),
            Number(isTrue(row.maker)),
            Number(isTrue(row.best)),
          ]),
        );
      }),
      { numRuns: 300 },
    );
  });

  test('makes one-second rows equal to exact arithmetic, at any framing', () => {
    // Many rows in few seconds, so that sums outgrow the fast integers.
    const huge = fc.oneof(
      decimal,
      fc.constantFrom('45035996.27370496', '90071992.54740992', '89999999999.99999999', '0.00000001', '1e-9'),
    );
    fc.assert(
      fc.property(rows(huge, { minLength: 1, maxLength: 120 }), fc.integer({ min: 1, max: 2000 }), (list, size) => {
        const projector = new TradeRowProjector(WINDOW);
        for (const run of runs(decode(fileOf(list.map(rowText)), { frameRawBytes: size })))
          projector.rows(run.raw, run.rows);
        const { copy, rows: count } = projector.aligned({ datasetId: 1, seriesId: 3 });
        const expected = naiveSeconds(list);
        expect(copyRows(copy, ALIGNED_TYPES)).toEqual(expected);
        expect(count).toBe(expected.length);
      }),
      { numRuns: 300 },
    );
  });

  test('takes open and close by the number of the id, not by the order of arrival', () => {
    const row = (id: number, price: string): Row => ({
      id,
      price,
      quantity: '1',
      quote: '1',
      us: 500,
      micro: false,
      maker: '1',
      best: '1',
    });
    const list = [row(9, '5'), row(10, '4'), row(8, '7'), row(11, '6')];
    const projector = new TradeRowProjector(WINDOW);
    projector.rows(Buffer.from(list.map((each) => `${rowText(each)}\n`).join('')), list.length);
    const [[, count, open, high, low, close]] = copyRows(projector.aligned({ datasetId: 1, seriesId: 3 }).copy, [
      ...ALIGNED_TYPES,
    ]);
    expect({ count, open, high, low, close }).toEqual({ count: 4n, open: 7, high: 7, low: 4, close: 6 });
  });

  test('refuses bytes that are no rows of its partition, instead of running on', () => {
    const bad = [
      'garbage\n',
      '\n',
      ',,,,,,\n',
      `${good(1)}\ngarbage\n`,
      `${good(1)}\n1,2\n`,
      `1,2,3,4,${DAY},True\n`,
      `1,2,3,4,x,True,True\n`,
      `x,2,3,4,${DAY},True,True\n`,
      `1,2,3,4,${DAY - 1},True,True\n`,
      `1,2,3,4,${DAY + DAY_MS},True,True\n`,
      `1,2,3,4,${DAY}000,True,True\n1,2,3,4`,
      '1,2,3,4\n5,6,7,8\n',
    ];
    for (const text of bad) refuses(text, Math.max(1, text.split('\n').length - 1));
  });

  test('refuses bytes that hold another number of rows than their header says', () => {
    const two = `${good(1)}\n${good(2)}\n`;
    expect(new TradeRowProjector(WINDOW).rows(Buffer.from(two), 2).rows).toBe(2);
    for (const claimed of [1, 3, 0, -1, 1e9, 1e300, 1.5, Number.NaN]) refuses(two, claimed);
  });
});

function refuses(text: string, claimed: number) {
  let code: unknown = 'accepted';
  try {
    new TradeRowProjector(WINDOW).rows(Buffer.from(text), claimed);
  } catch (error) {
    code = error instanceof TidemarkError ? error.code : error;
  }
  expect([text, claimed, code]).toEqual([text, claimed, 'LOG_FRAME_CORRUPT']);
}

// ---- PostgreSQL reads the same text --------------------------------------------------------------------------------

describe('PostgreSQL, parsing the text itself,', () => {
  let env: TestEnv;
  let client: Client;
  beforeAll(async () => {
    env = await createTestEnv();
    client = await connect({ url: env.databaseUrl, name: 'decode test' });
  });
  afterAll(async () => {
    await client[Symbol.asyncDispose]();
    await env[Symbol.asyncDispose]();
  });

  test.each([
    ['usual decimals', usualDecimal],
    ['unusual decimals', unusualDecimal],
    ['both', decimal],
  ])("comes to the decoder's facts: %s", async (_name, decimals) => {
    const [list] = fc.sample(rows(decimals, { minLength: 4000, maxLength: 4000, size: 'max' }), {
      numRuns: 1,
      seed: 11,
    });
    expect(list.length).toBe(4000);
    const items = decode(fileOf(list.map(rowText)), { chunks: [10_000], frameRawBytes: 50_000 });
    const [{ facts }] = ends(items);

    const { native } = exchangeASpotTrades;
    const declared = native.columns.map(({ name, pg }) => `"${name}" ${pg}`).join(', ');
    await client.query('begin');
    await client.query(`create temp table parsed (${declared}) on commit drop`);
    const lists = [
      list.map(msOf),
      list.map((row) => row.id),
      list.map((row) => row.price),
      list.map((row) => row.quantity),
      list.map((row) => row.quote),
      list.map((row) => isTrue(row.maker)),
      list.map((row) => isTrue(row.best)),
    ].map((column) => column.map(String));
    await client.query(
      `insert into parsed select * from unnest($1::int8[], $2::int8[], $3::float8[], $4::float8[], $5::float8[],
       $6::bool[], $7::bool[])`,
      lists,
    );
    const found = await client.query(
      nativeRecountSql(exchangeASpotTrades, { fromMs: DAY, toMs: DAY + DAY_MS }, 'parsed'),
    );
    await client.query('rollback');
    const { total_price, total_quantity, total_quote_quantity, ...rest } = found.rows[0];
    expect({ ...rest, totals: [total_price, total_quantity, total_quote_quantity] }).toEqual({
      rows: String(facts.rows),
      first_offset: facts.first_offset,
      last_offset: facts.last_offset,
      first_ms: String(facts.first_ms),
      last_ms: String(facts.last_ms),
      rows_hash: facts.rows_hash,
      totals: [facts.totals.price, facts.totals.quantity, facts.totals.quote_quantity],
    });
  });
});
