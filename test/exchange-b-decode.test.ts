/** Exchange B's decoder and row projector against plain text handling and BigInts. */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ExchangeBDecoder, exactProduct } from '../pipelines/sources/exchange_b/decode.ts';
import { generateLines } from '../pipelines/sources/exchange_b/generate.ts';
import { ExchangeBRowProjector } from '../pipelines/sources/exchange_b/project.ts';
import type { DecodedItem } from '../pipelines/sources/types.ts';
import { TidemarkError } from '../shared/errors.ts';
import { exchangeBSpotTrades } from '../shared/registry/datasets/exchange_b_spot_trades.ts';
import { windowOf } from '../shared/registry/partitions.ts';
import { decodeInPieces, factsOf, rawOf } from './support/trades.ts';

const DAY = '2024-01-01';
const DOCUMENT = `BTC-USDT-trades-${DAY}.zip`;
const HEADER = 'instrument_name,trade_id,side,price,size,created_time\n';
const WITH_SOURCE = 'instrument_name,trade_id,side,price,size,created_time,source\n';
const ROW = 'BTC-USDT,465953984,buy,42457.6,0.00118219,1704038400149';
const EXCERPTS = join(import.meta.dirname, '../../shared/data/exchange_b/excerpts');

function decode(text: string | Buffer, more: { pieces?: readonly number[]; frame?: number; day?: string } = {}) {
  const { day = DAY, frame = 1 << 16 } = more;
  const decoder = new ExchangeBDecoder({
    document: `BTC-USDT-trades-${day}.zip`,
    instrument: 'BTC-USDT',
    window: { key: day, ...windowOf(exchangeBSpotTrades, day) },
    frameRawBytes: frame,
  });
  return decodeInPieces(
    text,
    more.pieces,
    (chunk) => decoder.push(chunk),
    () => decoder.finish(),
  );
}

function refusal(text: string | Buffer, day = DAY): TidemarkError {
  let items: DecodedItem[];
  try {
    items = decode(text, { day });
  } catch (error) {
    expect(error).toBeInstanceOf(TidemarkError);
    return error as TidemarkError;
  }
  throw new Error(`accepted: ${JSON.stringify(factsOf(items))}`);
}

describe('a file', () => {
  test('of a real first row begins at 16:00 UTC of the day before', () => {
    const items = decode(HEADER + ROW);
    expect(factsOf(items)).toMatchObject({
      rows: 1,
      first_offset: '465953984',
      last_offset: '465953984',
      first_ms: Date.parse('2023-12-31T16:00:00.149Z'),
      gaps: 0,
      repeats_dropped: 0,
      totals: { price: '4245760000000', size: '118219', quote_quantity: '5019295014' },
    });
    expect(rawOf(items)).toBe(`${ROW}\n`);
  });

  test('keeps the later column in its bytes, and no byte order mark or CR', () => {
    const row = 'BTC-USDT,5,sell,78588.5,7.98e-05,1704038400149,0';
    expect(rawOf(decode(`${WITH_SOURCE}${row}\n`))).toBe(`${row}\n`);
    expect(rawOf(decode(`\uFEFF${(HEADER + ROW).replaceAll('\n', '\r\n')}\r\n`))).toBe(`${ROW}\n`);
  });

  test('drops exact repeats, also across pieces, and counts them and the gaps', () => {
    const lines = [1, 1, 1, 4, 5, 5, 9].map((id) => ROW.replace('465953984', String(id)));
    for (const pieces of [[1_000_000], [1], [7], [60], [140, 3]]) {
      const items = decode(`${HEADER}${lines.join('\n')}\n`, { pieces });
      expect(factsOf(items)).toMatchObject({
        rows: 4,
        gaps: 5,
        repeats_dropped: 3,
        first_offset: '1',
        last_offset: '9',
      });
      expect(rawOf(items)).toBe([lines[0], lines[3], lines[4], lines[6], ''].join('\n'));
    }
  });

  test('has the same facts and bytes however it is cut into pieces and frames', () => {
    const text = [...generateLines({ day: DAY, rows: 3000, seed: 5, repeats: 0.05, source: true })].join('');
    const whole = decode(text);
    for (const [pieces, frame] of [
      [[1009], 4096],
      [[63, 9001], 5000],
      [[100_000], 1 << 20],
    ] as const) {
      const items = decode(text, { pieces, frame });
      expect(factsOf(items)).toEqual(factsOf(whole));
      expect(rawOf(items)).toBe(rawOf(whole));
    }
    expect(factsOf(whole)?.repeats_dropped).toBeGreaterThan(50);
    expect(factsOf(whole)?.events_sha256).toBe(createHash('sha256').update(rawOf(whole)).digest('hex'));
  });
});

describe('numbers', () => {
  test.each([
    ['0.00044782999999999997', 0.00044782999999999997],
    ['1e-05', 0.00001],
    ['7.98e-05', 0.0000798],
    ['1E+2', 100],
    ['+0.5', 0.5],
    ['3', 3],
    ['12345678901234567890', undefined],
  ])('size %s is read exactly', (size, expected) => {
    const text = HEADER + ROW.replace('0.00118219', size);
    if (expected === undefined) expect(refusal(text).message).toContain('below');
    else expect(factsOf(decode(text))?.totals.size).toBe(String(Math.round(expected * 1e8)));
  });

  test('multiply exactly and round once, on both sides alike', () => {
    const digits = fc.tuple(fc.bigInt({ min: 1n, max: 10n ** 12n }), fc.integer({ min: 0, max: 12 }));
    const decimal = digits.map(([number, scale]) => {
      const text = number.toString().padStart(scale + 1, '0');
      return scale === 0 ? text : `${text.slice(0, -scale)}.${text.slice(-scale)}`;
    });
    const small = fc.integer({ min: 1, max: 9999 }).map((n) => `${n / 1000}e-05`);
    const artefact = fc.double({ min: 1e-4, max: 10, noNaN: true }).map(String);
    fc.assert(
      fc.property(decimal, fc.oneof(decimal, small, artefact), (price, size) => {
        fc.pre(Number(price) < 9e10 && Number(size) < 9e10 && Number(price) * Number(size) < 9e10);
        const quote = exactProduct(price, size);
        const items = decode(`${HEADER}BTC-USDT,1,buy,${price},${size},1704038400149\n`);
        const copy = copyOf(items);
        expect(copy.readDoubleBE(2 + 4 * 12 + 4)).toBe(quote);
        expect(quote).toBe(roundedProduct(price, size));
      }),
      { numRuns: 600 },
    );
  });
});

/** Independent: the exact product as one decimal text, read by Number(). */
function roundedProduct(a: string, b: string): number {
  const parts = [a, b].map((text) => {
    const [number, exponent = '0'] = text.split('e');
    const [whole, fraction = ''] = number.split('.');
    return { mantissa: BigInt(whole + fraction), scale: fraction.length - Number(exponent) };
  });
  const scale = parts[0].scale + parts[1].scale;
  const text = (parts[0].mantissa * parts[1].mantissa).toString().padStart(scale + 1, '0');
  return Number(scale <= 0 ? text + '0'.repeat(-scale) : `${text.slice(0, -scale)}.${text.slice(-scale)}`);
}

function copyOf(items: DecodedItem[]): Buffer {
  const raw = Buffer.from(rawOf(items));
  const rows = raw.toString().split('\n').length - 1;
  return new ExchangeBRowProjector({ key: DAY, ...windowOf(exchangeBSpotTrades, DAY) }).rows(raw, rows).copy;
}

describe('refused, naming document and line', () => {
  const cells = (change: (row: string[]) => void) => {
    const row = ROW.split(',');
    change(row);
    return row.join(',');
  };
  const set = (column: number, value: string) => cells((row) => (row[column] = value));
  const other = (id: number) => ROW.replace('465953984', String(id));
  const cases: [string, string, string, RegExp][] = [
    ['a row of 5 columns', cells((row) => row.pop()), 'SOURCE_ROW_INVALID', /5 columns, expected 6/],
    ['a row of 7 columns under a header of 6', `${ROW},0`, 'SOURCE_ROW_INVALID', /7 columns, expected 6/],
    ['another instrument', set(0, 'BTC-USD'), 'SOURCE_ROW_INVALID', /instrument_name must be BTC-USDT/],
    ['a longer instrument', set(0, 'BTC-USDT-SWAP'), 'SOURCE_ROW_INVALID', /instrument_name must be BTC-USDT/],
    ['a side of its own', set(2, 'hold'), 'SOURCE_ROW_INVALID', /side must be buy or sell/],
    ['no side', set(2, ''), 'SOURCE_ROW_INVALID', /side must be/],
    ['an id that is no number', set(1, 'm-5'), 'SOURCE_ROW_INVALID', /trade_id must be a whole number/],
    ['a negative id', set(1, '-5'), 'SOURCE_ROW_INVALID', /trade_id/],
    ['an id with leading zeros', set(1, '007'), 'SOURCE_ROW_INVALID', /leading zeros/],
    ['an id of 16 digits', set(1, '1234567890123456'), 'SOURCE_ROW_INVALID', /trade_id/],
    ['a price that is no number', set(3, 'dear'), 'SOURCE_ROW_INVALID', /price must be a decimal/],
    ['price 0', set(3, '0.0'), 'SOURCE_ROW_INVALID', /price must be a decimal number above 0/],
    ['NaN', set(4, 'NaN'), 'SOURCE_ROW_INVALID', /size must be a decimal/],
    ['1e400', set(4, '1e400'), 'SOURCE_ROW_INVALID', /size must be a decimal/],
    ['a negative size', set(4, '-0.5'), 'SOURCE_ROW_INVALID', /size/],
    ['size 0', set(4, '0'), 'SOURCE_ROW_INVALID', /above 0/],
    ['a decimal of 30 digits', set(4, '0.123456789012345678901234567890'), 'SOURCE_ROW_INVALID', /20 significant/],
    ['a number of 30 digits', set(4, '123456789012345678901234567890'), 'SOURCE_ROW_INVALID', /below/],
    ['a time of 12 digits', set(5, '170403840014'), 'SOURCE_ROW_INVALID', /13 digits/],
    ['a time in µs', set(5, '1704038400149000'), 'SOURCE_ROW_INVALID', /13 digits/],
    [
      'the time of the day before',
      set(5, '1704038399999'),
      'SOURCE_OUTSIDE_PARTITION',
      /outside the document's 2024-01-01/,
    ],
    ['the time of the day after', set(5, '1704124800000'), 'SOURCE_OUTSIDE_PARTITION', /outside the document's/],
    ['trailing garbage', `${ROW} `, 'SOURCE_ROW_INVALID', /line 3/],
    ['an empty line', '', 'SOURCE_ROW_INVALID', /line 3/],
    ['a falling id', other(465953982), 'SOURCE_SEQUENCE_BROKEN', /the id is 465953982, after 465953983/],
    [
      'an id again with another price',
      other(465953983).replace('42457.6', '42457.7'),
      'SOURCE_ROW_CONFLICT',
      /other content/,
    ],
    [
      'an id again with the price written otherwise',
      other(465953983).replace('42457.6', '42457.60'),
      'SOURCE_ROW_CONFLICT',
      /other/,
    ],
    ['a row of 600 bytes', set(3, `1.${'0'.repeat(600)}`), 'SOURCE_ROW_INVALID', /longer than 512|significant/],
  ];
  test.each(cases)('%s', (_, row, code, message) => {
    for (const end of ['\n', '\r\n', '']) {
      if (row === '' && end === '') continue;
      const fault = refusal(`${HEADER}${other(465953983)}\n${row}${end}`);
      expect(fault).toMatchObject({ code, details: { document: DOCUMENT, line: 3 } });
      expect(fault.message).toMatch(message);
      expect(fault.message).toContain(`${DOCUMENT}, line 3`);
    }
  });

  test('6 columns under a header of 7', () => {
    const fault = refusal(`${WITH_SOURCE}${ROW}\n`);
    expect(fault.message).toMatch(/line 2: the row has 6 columns, expected 7/);
  });

  test.each([
    ['none', `${ROW}\n`],
    ['of other names', `id,side,price,size,time\n${ROW}\n`],
    ['with a column too many', `${WITH_SOURCE.replace('source', 'source,more')}${ROW}\n`],
    ['in capitals', `${HEADER.toUpperCase()}${ROW}\n`],
    ['in another encoding', Buffer.concat([Buffer.from([0xbd, 0xbb, 0xd2, 0xd7]), Buffer.from(`/${HEADER}${ROW}\n`)])],
  ])('a header: %s', (_, text) => {
    expect(refusal(text)).toMatchObject({ code: 'SOURCE_ROW_INVALID', details: { document: DOCUMENT, line: 1 } });
  });

  test.each([
    ['nothing', ''],
    ['a header alone', HEADER],
    ['a header without line end', HEADER.trimEnd()],
  ])('an empty day: %s', (_, text) => {
    expect(refusal(text)).toMatchObject({ code: 'SOURCE_EMPTY', details: { document: DOCUMENT } });
  });

  test('a file of another day', () => {
    expect(refusal(HEADER + ROW, '2024-01-02')).toMatchObject({
      code: 'SOURCE_OUTSIDE_PARTITION',
      details: { line: 2 },
    });
  });

  test('random bytes put into a good file: never unnoticed, never a crash', () => {
    const text = Buffer.from([...generateLines({ day: DAY, rows: 20, seed: 8, repeats: 0 })].join(''));
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
        // What passes is another valid file: its rows are its own bytes, and the projector reads them too.
        if (!bad.equals(text)) expect(rawOf(items) === good && !bad.includes('\r')).toBe(false);
        expect(() => copyOf(items)).not.toThrow();
      }),
      { numRuns: 800 },
    );
  });
});

describe.skipIf(!existsSync(EXCERPTS))('real first rows', () => {
  const read = (name: string) => readFileSync(join(EXCERPTS, name));
  test('of 2024 and 2026 are read', () => {
    expect(factsOf(decode(read('spot_BTC-USDT-trades-2024-01-01.first1.csv')))?.rows).toBe(1);
    const later = decode(read('spot_BTC-USDT-trades-2026-09-01.first1.csv'), { day: '2026-09-01' });
    expect(factsOf(later)).toMatchObject({ rows: 1, first_offset: '1051558370', totals: { size: '7980' } });
    expect(rawOf(later)).toMatch(/,0\n$/);
  });
  test('with the old header in another encoding, and of other instruments, are refused', () => {
    const old = refusal(read('spot_BTC-USDT-trades-2025-04-19.old_header.2rows.gbk.csv'), '2025-04-19');
    expect(old).toMatchObject({ code: 'SOURCE_ROW_INVALID', details: { line: 1 } });
    const swap = refusal(read('swap_and_usd_rows.csv'));
    expect(swap.message).toMatch(/line 2: instrument_name must be BTC-USDT, found "BTC-USD"/);
  });
});
