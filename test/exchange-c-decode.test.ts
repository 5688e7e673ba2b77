/** Exchange C's decoder and row projector against plain text handling. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ExchangeCDecoder } from '../pipelines/sources/exchange_c/decode.ts';
import { generateLines } from '../pipelines/sources/exchange_c/generate.ts';
import { HeldRows } from '../pipelines/sources/exchange_c/held-rows.ts';
import { ExchangeCRowProjector } from '../pipelines/sources/exchange_c/project.ts';
import type { DecodedItem } from '../pipelines/sources/types.ts';
import { TidemarkError } from '../shared/errors.ts';
import { exchangeCSpotTrades } from '../shared/registry/datasets/exchange_c_spot_trades.ts';
import { windowOf } from '../shared/registry/partitions.ts';
import { decodeInPieces, factsOf, rawOf } from './support/trades.ts';

const DAY = '2020-07-07';
const DOCUMENT = `BTCUSDT${DAY}.csv.gz`;
const HEADER = 'timestamp,symbol,side,size,price,tickDirection,trdMatchID,grossValue,homeNotional,foreignNotional\n';
const WITH_RPI = HEADER.replace('\n', ',RPI\n');
const ROW = '1594115944.4363,BTCUSDT,Sell,0.857,6733.5,MinusTick,m-20,577060950000.0,0.857,5770.6095';
const EXCERPTS = join(import.meta.dirname, '../../shared/data/exchange_c/excerpts');

interface More {
  readonly pieces?: readonly number[];
  readonly frame?: number;
  readonly day?: string;
  readonly maxHeldBytes?: number;
}

function decode(text: string | Buffer, { day = DAY, frame = 1 << 16, pieces, maxHeldBytes = 1 << 30 }: More = {}) {
  const decoder = new ExchangeCDecoder({
    document: `BTCUSDT${day}.csv.gz`,
    symbol: 'BTCUSDT',
    window: { key: day, ...windowOf(exchangeCSpotTrades, day) },
    frameRawBytes: frame,
    maxHeldBytes,
    limitName: 'THE_LIMIT',
  });
  return decodeInPieces(
    text,
    pieces,
    (chunk) => decoder.push(chunk),
    () => decoder.finish(),
  );
}

function refusal(text: string | Buffer, more: More = {}): TidemarkError {
  let items: DecodedItem[];
  try {
    items = decode(text, more);
  } catch (error) {
    expect(error).toBeInstanceOf(TidemarkError);
    return error as TidemarkError;
  }
  throw new Error(`accepted: ${JSON.stringify(factsOf(items))}`);
}

const set = (column: number, value: string, row = ROW) =>
  row
    .split(',')
    .map((cell, index) => (index === column ? value : cell))
    .join(',');
const withId = (id: string | number, row = ROW) => set(6, `m-${id}`, row);

function copyOf(items: DecodedItem[]): Buffer {
  const raw = Buffer.from(rawOf(items));
  const rows = raw.toString().split('\n').length - 1;
  return new ExchangeCRowProjector({ key: DAY, ...windowOf(exchangeCSpotTrades, DAY) }).rows(raw, rows).copy;
}
/** The first column of the first row. */
const storedMs = (items: DecodedItem[]) => Number(copyOf(items).readBigInt64BE(6));

describe('a file', () => {
  test('gives the same facts and bytes in any order, pieces and frames', () => {
    const options = { day: DAY, rows: 4000, seed: 3, repeats: 0.02, firstId: 99_990 } as const;
    const sorted = decode(generateLines({ ...options, order: 'ids' }).join(''));
    expect(factsOf(sorted)).toMatchObject({ rows: 4000, gaps: 0, first_offset: '99990', last_offset: '103989' });
    expect(factsOf(sorted)?.repeats_dropped).toBeGreaterThan(40);
    for (const [order, pieces, frame] of [
      ['newest_first', [1 << 20], 1 << 16],
      ['shuffled', [997], 1 << 16],
      ['mixed', [50_000], 4096],
    ] as const) {
      const items = decode(generateLines({ ...options, order }).join(''), { pieces, frame });
      expect(factsOf(items)).toEqual(factsOf(sorted));
      expect(rawOf(items)).toBe(rawOf(sorted));
    }
    const crlf = generateLines({ ...options, order: 'shuffled' })
      .join('')
      .replaceAll('\n', '\r\n');
    expect(rawOf(decode(`\uFEFF${crlf}`))).toBe(rawOf(sorted));
  });

  test('is ordered by the numbers in its match ids, not by their text', () => {
    const items = decode(HEADER + [10, 9, 11].map((id) => withId(id)).join('\n'));
    expect(rawOf(items).match(/m-\d+/g)).toEqual(['m-9', 'm-10', 'm-11']);
    const padded = decode(`${HEADER}${withId(10)}\n${withId('009')}\n`);
    expect(factsOf(padded)).toMatchObject({ first_offset: '9', last_offset: '10', gaps: 0 });
  });

  test('names what is missing between its lowest and its highest id', () => {
    const items = decode(HEADER + [30, 20, 21, 23, 23].map((id) => withId(id)).join('\n'));
    expect(factsOf(items)).toMatchObject({ rows: 4, gaps: 7, missing_offsets: ['22', '24..29'], repeats_dropped: 1 });
    expect(factsOf(decode(HEADER + [1, 1_000_000_000].map((id) => withId(id)).join('\n')))?.gaps).toBe(999_999_998);
  });

  test('may hold trades of size 0 and a last column of every kind', () => {
    const zero = '1594115944.4363,BTCUSDT,Sell,0.0,9221.0,ZeroMinusTick,m-1,10000.0,0.0,0.0001';
    expect(factsOf(decode(HEADER + zero))?.totals).toEqual({
      price: '922100000000',
      size: '0',
      gross_value: '10000',
      home_notional: '0',
      foreign_notional: '10000',
    });
    const rpi = ['', 'true', 'False', '0', '1'].map((value, id) => `${withId(id, zero)},${value}`);
    const items = decode(WITH_RPI + rpi.join('\n'));
    expect(rawOf(items)).toBe(`${rpi.join('\n')}\n`);
    expect(copyOf(items).length).toBeGreaterThan(0);
  });

  test.each([
    ['1594115944', 0],
    ['1594115944.4', 400],
    ['1594115944.43649999', 436],
    ['1594115944.4365', 437],
    ['1594115944.436500000000000001', 437],
    ['1594115944.9995', 1000],
    ['1594115944.0004', 0],
  ])('has times in decimal seconds, rounded half up: %s', (time, ms) => {
    const items = decode(HEADER + set(0, time));
    expect(factsOf(items)?.first_ms).toBe(1594115944000 + ms);
    expect(storedMs(items)).toBe(1594115944000 + ms);
  });

  test('ends with its day: a time that would round into the next is its last millisecond', () => {
    const midnight = Date.parse('2020-07-08T00:00:00Z');
    const items = decode(HEADER + set(0, `${midnight / 1000 - 1}.9996`));
    expect(factsOf(items)?.last_ms).toBe(midnight - 1);
    expect(storedMs(items)).toBe(midnight - 1);
    expect(refusal(HEADER + set(0, `${midnight / 1000}.0`)).code).toBe('SOURCE_OUTSIDE_PARTITION');
  });

  test('larger than may be held to be sorted is refused, naming the limit', () => {
    const text = generateLines({ day: DAY, rows: 300, seed: 3 }).join('');
    expect(refusal(text, { maxHeldBytes: 10_000, pieces: [1000] })).toMatchObject({
      code: 'SOURCE_TOO_LARGE',
      details: { document: DOCUMENT, limit: 'THE_LIMIT', maxBytes: 10_000 },
    });
  });
});

test('held rows are found in the order of their ids, equal ids in that of the file', () => {
  fc.assert(
    fc.property(
      fc.array(
        fc.oneof(
          fc.nat(20),
          fc.nat(200_000),
          fc.nat({ max: 2 ** 31 - 1 }).map((n) => n * 400_000),
        ),
      ),
      (ids) => {
        const held = new HeldRows();
        held.openBlock(Buffer.from('x'));
        for (const id of ids) held.add(id, 0, 0, 1);
        const order = [...(held.order() ?? ids.keys())];
        const expected = [...ids.keys()].sort((a, b) => ids[a] - ids[b] || a - b);
        expect(order).toEqual(expected);
      },
    ),
  );
});

describe('refused, naming document and line', () => {
  const cases: [string, string, string, RegExp][] = [
    ['a row of 9 columns', ROW.slice(0, ROW.lastIndexOf(',')), 'SOURCE_ROW_INVALID', /9 columns, expected 10/],
    ['a row of 11 columns under a header of 10', `${ROW},0`, 'SOURCE_ROW_INVALID', /11 columns, expected 10/],
    ['another symbol', set(1, 'BTCUSD'), 'SOURCE_ROW_INVALID', /symbol must be BTCUSDT/],
    ['a side of its own', set(2, 'Short'), 'SOURCE_ROW_INVALID', /side must be buy or sell/],
    [
      'a UUID as match id',
      set(6, '82c4f9a7-8675-54e6-9935-6ed6b9d9993f'),
      'SOURCE_ROW_INVALID',
      /trdMatchID must be m- followed by digits/,
    ],
    ['a match id without number', set(6, 'm-'), 'SOURCE_ROW_INVALID', /trdMatchID must be m-/],
    ['a match id with a sign', set(6, 'm--5'), 'SOURCE_ROW_INVALID', /trdMatchID/],
    ['a match id in capitals', set(6, 'M-5'), 'SOURCE_ROW_INVALID', /trdMatchID/],
    ['a match id with more behind', set(6, 'm-5x'), 'SOURCE_ROW_INVALID', /trdMatchID/],
    ['a match id of 16 digits', set(6, 'm-1234567890123456'), 'SOURCE_ROW_INVALID', /below m-1e15/],
    ['a price that is no number', set(4, 'dear'), 'SOURCE_ROW_INVALID', /price must be a decimal/],
    ['price 0', set(4, '0.0'), 'SOURCE_ROW_INVALID', /price must be a decimal number above 0/],
    ['a negative size', set(3, '-1'), 'SOURCE_ROW_INVALID', /size must be a decimal number of at least 0/],
    ['NaN', set(3, 'NaN'), 'SOURCE_ROW_INVALID', /size/],
    ['1e400', set(9, '1e400'), 'SOURCE_ROW_INVALID', /foreignNotional/],
    ['1e-400', set(3, '1e-400'), 'SOURCE_ROW_INVALID', /size/],
    ['a gross value of 1e19', set(7, '1e19'), 'SOURCE_ROW_INVALID', /grossValue must be below 2\^63/],
    ['foreign notional 0', set(9, '0.0'), 'SOURCE_ROW_INVALID', /foreignNotional/],
    ['a decimal of 30 digits', set(8, '0.123456789012345678901234567890'), 'SOURCE_ROW_INVALID', /20 significant/],
    ['no tick direction', set(5, ''), 'SOURCE_ROW_INVALID', /tickDirection must be a word/],
    ['a time in ms', set(0, '1594115944436'), 'SOURCE_ROW_INVALID', /timestamp/],
    ['a time with a point and nothing behind', set(0, '1594115944.'), 'SOURCE_ROW_INVALID', /decimal seconds/],
    ['a time with an exponent', set(0, '1.594115944e9'), 'SOURCE_ROW_INVALID', /timestamp/],
    ['the day before', set(0, '1594079999.9'), 'SOURCE_OUTSIDE_PARTITION', /outside the document's 2020-07-07/],
    ['the day after', set(0, '1594166400.0'), 'SOURCE_OUTSIDE_PARTITION', /outside/],
    ['trailing garbage', `${ROW} `, 'SOURCE_ROW_INVALID', /foreignNotional/],
    ['an empty line', '', 'SOURCE_ROW_INVALID', /line 3/],
    [
      'an id again with another tick direction',
      set(5, 'PlusTick', withId(19)),
      'SOURCE_ROW_CONFLICT',
      /id 19 is that of line 2/,
    ],
    ['a row of 600 bytes', set(3, `1.${'0'.repeat(600)}`), 'SOURCE_ROW_INVALID', /longer than 512|significant/],
  ];
  test.each(cases)('%s', (_, row, code, message) => {
    for (const end of ['\n', '\r\n', '']) {
      if (row === '' && end === '') continue;
      const fault = refusal(`${HEADER}${withId(19)}\n${row}${end}`);
      expect(fault).toMatchObject({ code, details: { document: DOCUMENT, line: 3 } });
      expect(fault.message).toMatch(message);
      expect(fault.message).toContain(`${DOCUMENT}, line 3`);
    }
  });

  test('10 columns under a header of 11, and a last column of another kind', () => {
    expect(refusal(`${WITH_RPI}${ROW}\n`).message).toMatch(/line 2: the row has 10 columns, expected 11/);
    expect(refusal(`${WITH_RPI}${ROW},2\n`).message).toMatch(/line 2: RPI must be/);
  });

  test.each([
    ['none', `${ROW}\n`],
    ['of the other archive', `id,timestamp,price,volume,side\n1,1696118403019,26965.24,0.000055,buy\n`],
    ['in another encoding', Buffer.concat([Buffer.from([0xbd, 0xbb]), Buffer.from(`${HEADER}${ROW}\n`)])],
  ])('a header: %s', (_, text) => {
    expect(refusal(text)).toMatchObject({ code: 'SOURCE_ROW_INVALID', details: { document: DOCUMENT, line: 1 } });
  });

  test.each([
    ['nothing', ''],
    ['a header alone', HEADER],
  ])('an empty day: %s', (_, text) => {
    expect(refusal(text)).toMatchObject({ code: 'SOURCE_EMPTY', details: { document: DOCUMENT } });
  });

  test('random bytes put into a good file: never unnoticed, never a crash', () => {
    const text = Buffer.from(generateLines({ day: DAY, rows: 20, seed: 8, repeats: 0, order: 'ids' }).join(''));
    const good = rawOf(decode(text));
    fc.assert(
      fc.property(fc.nat(text.length - 1), fc.uint8Array({ minLength: 1, maxLength: 3 }), (at, bytes) => {
        const bad = Buffer.from(text);
        bytes.forEach((byte, index) => {
          if (at + index < bad.length) bad[at + index] = byte;
        });
        let items: DecodedItem[];
        try {
          items = decode(bad);
        } catch (error) {
          expect(error).toBeInstanceOf(TidemarkError);
          return;
        }
        if (!bad.equals(text)) expect(rawOf(items) === good && !bad.includes('\r')).toBe(false);
        expect(() => copyOf(items)).not.toThrow();
      }),
      { numRuns: 800 },
    );
  });
});

describe.skipIf(!existsSync(EXCERPTS))('real first rows', () => {
  const read = (name: string) => readFileSync(join(EXCERPTS, name));
  test.each([
    ['trading_BTCUSDT_2020-03-26.newest_first.3rows.csv', '2020-03-26', /line 2: (the time|trdMatchID)/],
    [
      'trading_BTCUSDT_2021-05-03.1row.csv',
      '2021-05-03',
      /line 2: .*trdMatchID must be m-|line 2: trdMatchID must be m-/,
    ],
    ['trading_BTCUSDT_2026-09-01.first1.csv', '2026-09-01', /line 2: trdMatchID must be m-/],
    ['trading_other_symbols.rows.csv', '2021-08-29', /line 2: (symbol|the time)/],
    ['spot_BTCUSDT_2023-10-01.first1.csv', '2023-10-01', /line 1: the header must be/],
    ['spot_BTCUSDT_2025-05-19.first3.csv', '2025-05-19', /line 1: the header must be/],
    ['spot_BTCUSDT_2026-09-01.first3.csv', '2026-09-01', /line 1: the header must be/],
  ])('%s is refused: the contract has ids of m- and digits', (name, day, message) => {
    expect(refusal(read(name), { day }).message).toMatch(message);
  });

  test('are read once their ids are of the contract', () => {
    for (const [name, day, rows] of [
      ['trading_BTCUSDT_2021-05-03.1row.csv', '2021-05-03', 1],
      ['trading_BTCUSDT_2026-09-01.first1.csv', '2026-09-01', 1],
    ] as const) {
      let id = 5;
      const text = read(name)
        .toString()
        .replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, () => `m-${id++}`);
      expect(factsOf(decode(text, { day }))).toMatchObject({ rows, gaps: 0 });
    }
  });
});
