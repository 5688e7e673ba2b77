/** What only exchange B's files have: repeats, gaps, quote quantities that are made, the file day, real first rows. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { generateLines } from '../../pipelines/sources/exchange_b/sample.ts';
import { productOfTexts } from '../../pipelines/sources/trades/factor.ts';
import { exactDecimal, fixed, unitsOf } from '../support/decimals.ts';
import { givenData } from '../support/given.ts';
import { runs } from '../support/seed.ts';
import { decimal, EXCHANGE_B, fileOf } from '../support/trade-layouts.ts';
import { decodeFile, factsOf, rawOf, refusalOf, runsOf } from '../support/trades.ts';

const DAY = '2024-01-01';
const HEADER = `${EXCHANGE_B.headers[0]}\n`;
/** The first row of the vendor's file of that day. */
const ROW = 'BTC-USDT,465953984,buy,42457.6,0.00118219,1704038400149';
const EXCERPTS = join(import.meta.dirname, '../../../shared/data/exchange_b/excerpts');
const decode = (text: string | Buffer, more: Parameters<typeof decodeFile>[2] = {}) =>
  decodeFile(EXCHANGE_B, text, { day: DAY, ...more });

describe('a file', () => {
  test('begins at 16:00 UTC of the day before and ends at 16:00 UTC', () => {
    expect(factsOf(decode(HEADER + ROW))).toMatchObject({
      rows: 1,
      first_offset: '465953984',
      last_offset: '465953984',
      first_ms: Date.parse('2023-12-31T16:00:00.149Z'),
      gaps: 0,
      repeats_dropped: 0,
      totals: { price: '4245760000000', size: '118219', quote_quantity: '5019295014' },
    });
    for (const [time, accepted] of [
      ['2023-12-31T15:59:59.999Z', false],
      ['2023-12-31T16:00:00.000Z', true],
      ['2024-01-01T00:00:00.000Z', true],
      ['2024-01-01T15:59:59.999Z', true],
      ['2024-01-01T16:00:00.000Z', false],
    ] as const) {
      const text = HEADER + ROW.replace('1704038400149', String(Date.parse(time)));
      if (accepted) expect(factsOf(decode(text))?.first_ms).toBe(Date.parse(time));
      else expect(refusalOf(() => decode(text)).code).toBe('SOURCE_DOCUMENT_INVALID');
    }
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

  test('with all of it mixed has the same facts and bytes however it is cut into pieces and frames', () => {
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

/** The first row's quote quantity as the projecting side stores it. */
function storedQuote(text: string): number {
  const [run] = runsOf(decodeFile(EXCHANGE_B, text));
  const { copy } = EXCHANGE_B.projector().rows(run.raw, run.rows);
  const column = EXCHANGE_B.dataset.native.columns.findIndex(({ name }) => name === 'quote_quantity');
  return copy.readDoubleBE(2 + column * 12 + 4);
}

describe('the quote quantity', () => {
  test.each([
    ['42457.6', '0.00044782999999999997', 19.013787007999998],
    ['42457.6', '1e-05', 0.424576],
    ['78588.5', '7.98e-05', 6.2713623],
    ['0.1', '0.2', 0.02],
    ['3', '1E+2', 300],
    ['1.1', '+1.1', 1.21],
    ['123456.7', '12345.678901234567', 1_524_156_776.4],
  ])('of %s x %s is the exact product, rounded once', (price, size, about) => {
    const exact = Number(fixed(String(exactDecimal(price) * exactDecimal(size)), 60));
    expect(exact).toBeCloseTo(about, 1);
    const text = fileOf(EXCHANGE_B, [EXCHANGE_B.row(1, { 3: price, 4: size })]).toString();
    expect(storedQuote(text)).toBe(exact);
    expect(factsOf(decodeFile(EXCHANGE_B, text))?.totals.quote_quantity).toBe(String(unitsOf(exact, 8)));
  });

  test('is the same whether it is made fast or slowly', () => {
    fc.assert(
      fc.property(decimal, decimal, (price, size) => {
        expect(productOfTexts(price, size, 0)).toBe(
          Number(fixed(String(exactDecimal(price) * exactDecimal(size)), 60)),
        );
      }),
      { numRuns: runs(2000) },
    );
  });
});

givenData('exchange_b/excerpts').describe('real first rows', () => {
  const read = (name: string) => readFileSync(join(EXCERPTS, name));

  test('of 2024, and of 2026 with the later column and an exponent, are read', () => {
    expect(factsOf(decode(read('spot_BTC-USDT-trades-2024-01-01.first1.csv')))?.rows).toBe(1);
    const later = decode(read('spot_BTC-USDT-trades-2026-09-01.first1.csv'), { day: '2026-09-01' });
    expect(factsOf(later)).toMatchObject({ rows: 1, first_offset: '1051558370', totals: { size: '7980' } });
    expect(rawOf(later)).toMatch(/,0\n$/);
  });

  test('with the old header in GBK, and of other instruments, are refused', () => {
    const old = read('spot_BTC-USDT-trades-2025-04-19.old_header.2rows.gbk.csv');
    // The bytes are not UTF-8, and the columns stand in another order.
    expect(() => new TextDecoder('utf-8', { fatal: true }).decode(old)).toThrow();
    expect(refusalOf(() => decode(old, { day: '2025-04-19' }))).toMatchObject({
      code: 'SOURCE_DOCUMENT_INVALID',
      details: { line: 1 },
    });
    const swap = refusalOf(() => decode(read('swap_and_usd_rows.csv')));
    expect(swap.message).toMatch(/line 2: instrument_name must be BTC-USDT, found "BTC-USD"/);
  });
});
