/** What only exchange A's files have: months, headers that need not be there, times in ms or µs, a generator that adds up. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { ExchangeADecoder } from '../../pipelines/sources/exchange_a/decode.ts';
import { exchangeA } from '../../pipelines/sources/exchange_a/feed.ts';
import { generateDay } from '../../pipelines/sources/exchange_a/sample.ts';
import type { DecodedItem, Selection } from '../../pipelines/sources/feed-types.ts';
import { loadSettings } from '../../shared/config/load.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import { createLogger } from '../../shared/logger.ts';
import { faultOf } from '../support/faults.ts';
import { runs } from '../support/seed.ts';
import { decimal, EXCHANGE_A, fileOf, pieceSizes, shapes } from '../support/trade-layouts.ts';
import { decodeFile, decodeInPieces, endsOf, refusalOf, runsOf } from '../support/trades.ts';

const DAY_MS = 86_400_000;
const { fromMs: DAY, document, row, lines } = EXCHANGE_A;

/** A document of several days, the first of which is the layout's. */
function decodeMonth(bytes: Buffer, days: number, more: { pieces?: readonly number[]; frame?: number } = {}) {
  const decoder = new ExchangeADecoder({
    document,
    fromMs: DAY,
    toMs: DAY + days * DAY_MS,
    frameRawBytes: more.frame ?? 1 << 20,
  });
  return decodeInPieces(
    bytes,
    more.pieces,
    (chunk) => decoder.push(chunk),
    () => decoder.finish(),
  );
}
const comparable = (items: readonly DecodedItem[]) =>
  items.map((item) => (item.kind === 'events' ? { ...item, release: undefined } : item));
/** A line of the layout, so many days later and with another id. */
const shifted = (line: string, id: number, days: number) => {
  const cells = line.split(',');
  const perMs = cells[4].length === 16 ? 1000 : 1;
  return cells
    .with(0, `${id}`)
    .with(4, String(Number(cells[4]) + days * DAY_MS * perMs))
    .join(',');
};

describe('a month', () => {
  test('yields for each day the facts and bytes of the file of that day', () => {
    const days = fc.array(lines(decimal, { minLength: 1, maxLength: 12 }), { minLength: 1, maxLength: 5 });
    const sizes = fc.integer({ min: 1, max: 900 });
    fc.assert(
      fc.property(days, shapes(EXCHANGE_A), pieceSizes, sizes, (lists, shape, pieces, frame) => {
        // Ids run on; a day may be missing from the month.
        let id = lists[0][0].id;
        const places = lists.map((_, index) => (index < 2 ? index : index + 2));
        const month = lists.map((list, index) => list.map(({ line }) => shifted(line, id++, places[index])));
        const items = decodeMonth(fileOf(EXCHANGE_A, month.flat(), shape), 10, { pieces, frame });
        expect(endsOf(items)).toHaveLength(month.length);
        for (const [index, list] of month.entries()) {
          const fromMs = DAY + places[index] * DAY_MS;
          const alone = new ExchangeADecoder({ document, fromMs, toMs: fromMs + DAY_MS, frameRawBytes: frame });
          const own = [...alone.push(fileOf(EXCHANGE_A, list)), ...alone.finish()];
          const end = endsOf(items)[index];
          expect(end).toEqual(endsOf(own)[0]);
          const runs = runsOf(items).filter(({ partition }) => partition.key === end.partition.key);
          expect(comparable(runs)).toEqual(comparable(runsOf(own)));
        }
        // One day after the other: every frame of a day before its end, none after it.
        const order = items.map((item) => item.partition.key);
        expect(order).toEqual([...order].sort());
      }),
      { numRuns: runs(150) },
    );
  });

  test.each([
    ['go back to an ended day', [row(1), shifted(row(2), 2, 1), row(3)], 'SOURCE_DOCUMENT_INVALID', 3],
    ['break ids at midnight', [row(1), shifted(row(2), 3, 1)], 'SOURCE_DOCUMENT_INVALID', 2],
    ['go past its end', [row(1), shifted(row(2), 2, 31)], 'SOURCE_DOCUMENT_INVALID', 2],
  ])('whose rows %s is refused', (_, list, code, line) => {
    expect(refusalOf(() => decodeMonth(fileOf(EXCHANGE_A, list), 31))).toMatchObject({ code, details: { line } });
  });
});

describe('a range of months', () => {
  const periodsOf = async (options: Selection['options'], reingest = false) => {
    const [feed] = exchangeA.feeds;
    const settings = loadSettings({ env: {}, cwd: '/' });
    const needs = { settings, log: createLogger('silent', 'test'), signal: new AbortController().signal };
    const location = new URL('file:///archive/');
    await using opened = await feed.open({ ...needs, location, catalog: {} as Catalog });
    const events = await Array.fromAsync(opened.select({ options: { granularity: 'monthly', ...options }, reingest }));
    return events.map((event) => event.kind === 'document' && event.request.period);
  };

  test('that named some of its days replaced all of them', async () => {
    const part = { from: '2024-01-15', to: '2024-02-29' };
    await faultOf(periodsOf(part, true), 'USAGE');
    await faultOf(periodsOf({ from: '2024-01-01', to: '2024-02-28' }, true), 'USAGE');
    expect(await periodsOf({ from: '2024-01-01', to: '2024-02-29' }, true)).toEqual(['2024-01', '2024-02']);
    expect(await periodsOf({ ...part, granularity: 'daily' }, true)).toHaveLength(46);
    expect(await periodsOf(part)).toEqual(['2024-01', '2024-02']);
  });

  test('without an end asked for the month that is not over', async () => {
    const now = new Date();
    const last = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 0)).toISOString().slice(0, 7);
    expect((await periodsOf({ from: '2024-01-15' })).at(-1)).toBe(last);
  });
});

test('a generated day yields what its generator added up', () => {
  for (const timeUnit of ['ms', 'us'] as const) {
    const chunks: Buffer[] = [];
    const day = generateDay({ day: '2024-01-15', rows: 50_000, seed: 9, firstId: 4_359_935_386, timeUnit });
    let turn = day.next();
    for (; !turn.done; turn = day.next()) chunks.push(Buffer.from(turn.value));
    const summary = turn.value;
    const [{ facts }] = endsOf(decodeFile(EXCHANGE_A, Buffer.concat(chunks), { pieces: [65_536] }));
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

test.each([
  'trade_id,price,qty,quote_qty,time,is_buyer_maker,is_best_match',
  'id,price,quantity,quote_quantity,timestamp,is_buyer_maker,is_best_match',
  'Id,Price,Qty,QuoteQty,Time,IsBuyerMaker,IsBestMatch',
  'id, price, qty, quoteQty, time, isBuyerMaker, isBestMatch',
])('a header written as %s is known', (header) => {
  const file = Buffer.from(`${header}\n${row(100)}\n`);
  expect(endsOf(decodeFile(EXCHANGE_A, file))[0].facts.rows).toBe(1);
});

test('microseconds just outside the day are outside, whatever they would be cut to', () => {
  const end = (DAY + DAY_MS) * 1000;
  for (const [us, accepted] of [
    [`${DAY * 1000 - 1}`, false],
    [`${DAY * 1000}`, true],
    [`${end - 1}`, true],
    [`${end}`, false],
    ['9999999999999999', false],
  ] as const) {
    const work = () => decodeFile(EXCHANGE_A, fileOf(EXCHANGE_A, [row(1, { 4: us })]));
    if (accepted) expect(endsOf(work())[0].facts.first_ms).toBe(Math.floor(Number(us) / 1000));
    else expect(refusalOf(work).code).toBe('SOURCE_DOCUMENT_INVALID');
  }
});
