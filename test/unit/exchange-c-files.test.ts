/** What only exchange C's files have: any order, ids to be gathered, decimal seconds, zero sizes, a last column. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { openScratch } from '../../pipelines/sources/documents/fetch.ts';
import { ExchangeCDecoder } from '../../pipelines/sources/exchange_c/decode.ts';
import { type ExchangeCDay, generateLines as generate } from '../../pipelines/sources/exchange_c/sample.ts';
import { SortedRows, type SortedRowsOptions } from '../../pipelines/sources/exchange_c/sorted-rows.ts';
import { TradingRows } from '../../pipelines/sources/exchange_c/trading.ts';
import { type DecodedItem, ReadAgain } from '../../pipelines/sources/feed-types.ts';
import { exchangeCSpotTrades } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import { givenData } from '../support/given.ts';
import { runs } from '../support/seed.ts';
import { decimal, EXCHANGE_C, EXCHANGE_C_SPOT, fileOf, OTHER_C, OTHER_C_SPOT } from '../support/trade-layouts.ts';
import { decodeFile, decodeInPieces, factsOf, rawOf, refusalOf, runsOf } from '../support/trades.ts';

const DAY = '2020-07-07';
const [HEADER, WITH_RPI] = EXCHANGE_C.headers.map((header) => `${header}\n`);
const ROW = '1594115944.4363,BTCUSDT,Sell,0.857,6733.5,MinusTick,m-20,577060950000.0,0.857,5770.6095';
const EXCERPTS = join(import.meta.dirname, '../../../shared/data/exchange_c/excerpts');
const generateLines = (day: ExchangeCDay) => generate({ ...day, archive: 'trading' });
const WINDOW = { key: DAY, ...windowOf(exchangeCSpotTrades, DAY) };
const rowsRead = (document: string) => new TradingRows({ document, symbol: 'BTCUSDT', window: WINDOW });
const decode = (text: string | Buffer, more: Parameters<typeof decodeFile>[2] = {}) =>
  decodeFile(EXCHANGE_C, text, { day: DAY, ...more });
const refusal = (text: string | Buffer, day = DAY) => refusalOf(() => decode(text, { day }));

const set = (column: number, value: string, row = ROW) => row.split(',').with(column, value).join(',');
const withId = (id: string | number, row = ROW) => set(6, `m-${id}`, row);

/** The time of the first row as the projecting side stores it. */
function storedMs(items: readonly DecodedItem[]): number {
  const [run] = runsOf(items);
  const projector = EXCHANGE_C.projector(DAY);
  return Number(projector.rows(run.raw, run.rows).copy.readBigInt64BE(6));
}

describe('a file', () => {
  test('gives the same facts and bytes in any order, pieces and frames', () => {
    const options = { day: DAY, rows: 4000, seed: 3, repeats: 0.02, firstId: 99_990 } as const;
    const sorted = decode(generateLines({ ...options, order: 'ids' }).join(''));
    expect(factsOf(sorted)).toMatchObject({ rows: 4000, gaps: 0, first_offset: '99990', last_offset: '103989' });
    expect(factsOf(sorted)?.repeats_dropped).toBeGreaterThan(40);
    for (const [order, pieces, frame, run] of [
      ['newest_first', [1 << 20], 1 << 16],
      ['newest_first', [9000], 1 << 16, 40_000],
      ['shuffled', [997], 1 << 16],
      ['shuffled', [997], 1 << 16, 1],
      ['mixed', [50_000], 4096],
      ['mixed', [50_000], 4096, 100_000],
      ['ids', [7000], 4096, 30_000],
      // Each piece fills a run, so that it overwrites the whole run before the last.
      ['ids', [29_000], 4096, 30_000],
    ] as const) {
      const items = decode(generateLines({ ...options, order }).join(''), { pieces, frame, run });
      expect(factsOf(items)).toEqual(factsOf(sorted));
      expect(rawOf(items)).toBe(rawOf(sorted));
      // The same frames: a publisher that was killed compares those of the log with its own.
      const same = decode(generateLines({ ...options, order: 'ids' }).join(''), { frame });
      expect(runsOf(items).map(({ raw }) => raw.length)).toEqual(runsOf(same).map(({ raw }) => raw.length));
    }
    const crlf = generateLines({ ...options, order: 'shuffled' })
      .join('')
      .replaceAll('\n', '\r\n');
    expect(rawOf(decode(`\uFEFF${crlf}`))).toBe(rawOf(sorted));
    expect(rawOf(decode(`\uFEFF${crlf}`, { pieces: [5000], run: 20_000 }))).toBe(rawOf(sorted));
  });

  test.each([
    ['trading', EXCHANGE_C],
    ['trading, of another instrument', OTHER_C],
    ['spot', EXCHANGE_C_SPOT],
    ['spot, of another instrument', OTHER_C_SPOT],
  ] as const)('of %s in any order of any rows is the file in the order of its ids', (_, layout) => {
    fc.assert(
      fc.property(
        layout.lines(decimal, { minLength: 1, maxLength: 30 }).chain((list) =>
          fc.tuple(
            fc.constant(list),
            fc.shuffledSubarray([...list.keys()], { minLength: list.length }),
            // Rows that come again.
            fc.array(fc.nat(list.length - 1), { maxLength: 5 }),
            fc.record({ pieces: fc.constant([150]), run: fc.constantFrom(undefined, 1, 400, 1000) }),
          ),
        ),
        ([list, places, again, reading]) => {
          const lines = list.map(({ line }) => line);
          const sorted = decodeFile(layout, fileOf(layout, lines));
          const mixed = [...places, ...again].map((place) => lines[place]);
          const items = decodeFile(layout, fileOf(layout, mixed), reading);
          expect(rawOf(items)).toBe(rawOf(sorted));
          expect(factsOf(items)).toEqual({ ...factsOf(sorted), repeats_dropped: again.length });
        },
      ),
      { numRuns: runs(300) },
    );
  });

  // Where its day was sorted in a file, the row was accepted without one of them.
  test('is refused for a row with two carriage returns, whatever its order', () => {
    const [first, second, third] = [3, 2, 1].map((id) => withId(id));
    for (const run of [undefined, 1]) {
      for (const rows of [`${first}\r\r\n${second}\n${third}\n`, `${third}\n${second}\n${first}\r\r\n`]) {
        const line = rows.startsWith(first) ? 2 : 4;
        const reading = { run, pieces: [HEADER.length, ROW.length] };
        expect(refusalOf(() => decode(HEADER + rows, reading)).message).toMatch(
          new RegExp(`line ${line}: foreignNotional must be followed by the end of the row`),
        );
      }
    }
  });

  test('of spot is refused for a row with two carriage returns, whatever its order', () => {
    const row = (id: number) => EXCHANGE_C_SPOT.row(id);
    const header = `${EXCHANGE_C_SPOT.headers[0]}\n`;
    for (const run of [undefined, 1]) {
      for (const text of [`${row(1)}\r\r\n${row(2)}\n${row(3)}\n`, `${row(3)}\n${row(2)}\n${row(1)}\r\r\n`]) {
        const line = text.startsWith(row(1)) ? 2 : 4;
        const reading = { run, pieces: [header.length, row(1).length] };
        expect(refusalOf(() => decodeFile(EXCHANGE_C_SPOT, header + text, reading)).message).toMatch(
          new RegExp(`line ${line}: side must be followed by the end of the row`),
        );
      }
    }
  });

  test('of spot may have a last column of every kind, which stays in the event', () => {
    const withRpi = `${EXCHANGE_C_SPOT.headers[0]},rpi`;
    const text = (values: readonly string[]) =>
      [withRpi, ...values.map((value, index) => `${EXCHANGE_C_SPOT.row(index + 1)},${value}`), ''].join('\n');
    const all = ['', 'true', 'False', '0', '1'];
    expect(rawOf(decodeFile(EXCHANGE_C_SPOT, text(all)))).toBe(text(all).slice(withRpi.length + 1));
    for (const value of ['2', 'yes', 'TRUEE', ' ', '-']) {
      expect(refusalOf(() => decodeFile(EXCHANGE_C_SPOT, text(['0', value]))).message).toMatch(/line 3: rpi must be/);
    }
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
    expect(rawOf(decode(WITH_RPI + rpi.join('\n')))).toBe(`${rpi.join('\n')}\n`);
    for (const value of ['2', 'yes', 'TRUEE', ' ', '-']) {
      expect(refusal(`${WITH_RPI}${ROW},${value}\n`).message).toMatch(/line 2: RPI must be/);
    }
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
    expect(refusal(HEADER + set(0, `${midnight / 1000}.0`)).code).toBe('SOURCE_DOCUMENT_INVALID');
  });

  test('larger than may be held to be sorted is refused, naming the limit', () => {
    const decoder = new ExchangeCDecoder(rowsRead(`BTCUSDT${DAY}.csv.gz`), {
      document: `BTCUSDT${DAY}.csv.gz`,
      window: WINDOW,
      frameRawBytes: 1 << 16,
      maxHeldBytes: 10_000,

      sorting: { openScratch: () => openScratch(tmpdir()) },
    });
    const text = generateLines({ day: DAY, rows: 300, seed: 3 }).join('');
    const work = () =>
      decodeInPieces(
        text,
        [1000],
        (chunk) => decoder.push(chunk),
        () => decoder.finish(),
      );
    expect(refusalOf(work)).toMatchObject({
      code: 'SOURCE_DOCUMENT_INVALID',
      details: { document: `BTCUSDT${DAY}.csv.gz`, maxBytes: 10_000 },
    });
  });
});

describe('rows to be sorted', () => {
  type Found = readonly [id: number, ms: number, line: number, text: string];
  const msOf = (index: number) => 1e12 + 7 * index;
  const rowsOf = (held: SortedRows) => {
    const found: Found[] = [];
    for (let row = held.next(); row !== undefined; row = held.next()) {
      found.push([row.id, row.ms, row.line, row.buffer.toString('latin1', row.from, row.to)]);
    }
    return found;
  };

  const inOrder = (ids: readonly number[]): Found[] => {
    const order = [...ids.keys()].sort((a, b) => ids[a] - ids[b] || a - b);
    return order.map((index) => [ids[index], msOf(index), index + 2, `${ids[index]}/${index}`]);
  };

  /** Puts lines of these ids, some at once, and takes what comes out each time. Sorts them as a whole where that is asked for. */
  function sorted(ids: readonly number[], together: number, options: Omit<SortedRowsOptions, 'openScratch'>): Found[] {
    using held = new SortedRows({ openScratch: () => openScratch(tmpdir()), ...options });
    const lines = ids.map((each, index) => `${each}/${index}`);
    const found: Found[] = [];
    try {
      for (let first = 0; first < lines.length; first += together) {
        const some = lines.slice(first, first + together);
        let { buffer, from } = held.open(Buffer.from(`${some.join('\n')}\n`));
        for (const [index, line] of some.entries()) {
          expect(buffer.toString('latin1', from, from + line.length)).toBe(line);
          held.add(ids[first + index], msOf(first + index), from, from + line.length);
          from += line.length + 1;
        }
        found.push(...rowsOf(held));
      }
    } catch (error) {
      if (!(error instanceof ReadAgain) || options.isUnordered) throw error;
      return sorted(ids, together, { ...options, isUnordered: true });
    }
    held.end();
    return [...found, ...rowsOf(held)];
  }

  test('come in the order of their ids, equal ids in that of the file, whatever fits in memory', () => {
    const near = fc.nat(20);
    const far = fc.nat({ max: 2 ** 31 - 1 }).map((n) => n * 400_000);
    for (const id of [near, fc.nat(16_000), far, fc.oneof(near, far)]) {
      fc.assert(
        fc.property(fc.array(id), fc.constantFrom(1, 30, 200, 1 << 20), fc.integer({ min: 1, max: 7 }), (...given) => {
          const [ids, runBytes, together] = given;
          const ascending = ids.toSorted((a, b) => a - b);
          const nearlyAscending = ascending.map((each, index) => ascending[index ^ 1] ?? each);
          for (const list of [ids, ascending, nearlyAscending]) {
            expect(sorted(list, together, { runBytes })).toEqual(inOrder(list));
          }
        }),
        { numRuns: runs(100) },
      );
    }
  });

  test('come in the order of their ids from every order of six rows in runs of one and of two', {
    tags: ['nightly'],
  }, () => {
    const orders = (ids: readonly number[]): number[][] =>
      ids.length === 0 ? [[]] : ids.flatMap((id, at) => orders(ids.toSpliced(at, 1)).map((rest) => [id, ...rest]));
    for (const ids of orders([0, 1, 2, 3, 4, 5])) {
      // 0, 0, 1, 1, 2 and 2 as well: each id comes twice.
      for (const list of [ids, ids.map((id) => id >> 1)]) {
        for (const together of [1, 2]) expect(sorted(list, together, { runBytes: 1 })).toEqual(inOrder(list));
      }
    }
  });

  // The runs of the first list end with 0, 5, 1 and 6: after the third, rows above 1 were taken for later than 5.
  test.each([
    ['a row below those that came out', 1, [0, 5, 1, 6, 2]],
    ['a row that came out', 2, [0, 1, 6, 7, 2, 3, 8, 9, 6, 10]],
    ['the row that came out last', 2, [100, 299, 201, 200, 300, 301, 299, 302]],
  ])('are sorted as a whole when %s comes again after two runs out of order', (_, together, ids) => {
    expect(sorted(ids, together, { runBytes: 1 })).toEqual(inOrder(ids));
  });

  /** Without a file; what comes out before the end, and whether the rows have to be sorted as a whole. */
  function early(ids: readonly number[]) {
    let late = 0;
    using held = new SortedRows({
      openScratch: () => expect.fail('a file was opened'),
      runBytes: 100,
      onLateRow: () => late++,
    });
    const found: number[] = [];
    try {
      for (const id of ids) {
        const line = Buffer.from(`${String(id).padStart(9)}\n`);
        const { from } = held.open(line);
        held.add(id, 0, from, from + 9);
        found.push(...rowsOf(held).map(([each]) => each));
      }
    } catch (error) {
      expect(error).toBeInstanceOf(ReadAgain);
      expect(late).toBe(1);
      return { found, isLate: true };
    }
    expect(late).toBe(0);
    return { found, isLate: false };
  }

  test('come out while the document arrives, all but two runs, where none is late by more than a run', () => {
    const ids = Array.from({ length: 1000 }, (_, index) => index);
    expect(early(ids)).toEqual({ found: ids.slice(0, 980), isLate: false });
    // Every ninth and tenth row, a run's last and the next one's first, have changed places, and then more distant ones.
    for (const by of [1, 3, 5]) {
      const mixed = ids.map((id) => (id % 10 === 10 - by ? id + by : id % 10 === 0 && id > 0 ? id - by : id));
      const { found, isLate } = early(mixed);
      expect(isLate).toBe(false);
      expect(found.length).toBeGreaterThanOrEqual(980);
      expect(found).toEqual(ids.slice(0, found.length));
    }
    // Late by less than a run.
    expect(early([...ids.slice(0, 39), 19.5])).toMatchObject({ isLate: false });
    for (const late of [500, 0, 979, 989]) {
      const { found, isLate } = early([...ids, late]);
      expect(isLate).toBe(true);
      expect(found).toEqual(ids.slice(0, 980));
    }
  });

  test('stay readable while their buffer is kept, however many rows follow', () => {
    using held = new SortedRows({ openScratch: () => openScratch(tmpdir()), runBytes: 1 });
    const text = (id: number) => `${'x'.repeat(500)}${String(id).padStart(5)}`;
    // Two runs of many pieces each.
    for (const first of [0, 1]) {
      const ids = Array.from({ length: 3000 }, (_, row) => 2 * row + first);
      const { from } = held.open(Buffer.from(ids.map((id) => `${text(id)}\n`).join('')));
      for (const [row, id] of ids.entries()) held.add(id, 0, from + 506 * row, from + 506 * row + 505);
    }
    held.end();
    const first = { ...held.next()! };
    held.keep(first.buffer);
    let rows = 1;
    for (let row = held.next(); row !== undefined; row = held.next()) {
      if (row.buffer.toString('latin1', row.from, row.to) !== text(row.id)) break;
      rows++;
    }
    expect(rows).toBe(6000);
    expect(first.buffer.toString('latin1', first.from, first.to)).toBe(text(0));
  });

  test('are in a file without a name, and a folder that takes none is named', () => {
    const folder = mkdtempSync(join(tmpdir(), 'tidemark-sorted-'));
    const text = generateLines({ day: DAY, rows: 300, seed: 3, order: 'shuffled' }).join('');
    const read = (spoolDir: string) => {
      using decoder = new ExchangeCDecoder(rowsRead('a.csv.gz'), {
        document: 'a.csv.gz',
        window: WINDOW,
        frameRawBytes: 1 << 16,
        maxHeldBytes: 1 << 30,

        sorting: { openScratch: () => openScratch(spoolDir), runBytes: 1000 },
      });
      return decodeInPieces(
        text,
        [1000],
        (chunk) => decoder.push(chunk),
        () => {
          expect(readdirSync(spoolDir)).toEqual([]);
          return decoder.finish();
        },
      );
    };
    try {
      expect(factsOf(read(folder))?.rows).toBe(300);
      writeFileSync(join(folder, 'file'), '');
      expect(refusalOf(() => read(join(folder, 'file'))).code).toBe('DISK_UNUSABLE');
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

givenData('exchange_c/excerpts').describe('real first rows', () => {
  const read = (name: string) => readFileSync(join(EXCERPTS, name));
  const UUID = /line 2: trdMatchID must be m- followed by digits, found "[0-9a-f-]{36}"/;
  test.each([
    ['trading_BTCUSDT_2020-03-26.newest_first.3rows.csv', '2020-03-26', UUID],
    ['trading_BTCUSDT_2021-05-03.1row.csv', '2021-05-03', UUID],
    ['trading_BTCUSDT_2026-09-01.first1.csv', '2026-09-01', UUID],
    ['trading_other_symbols.rows.csv', '2021-08-29', /line 2: symbol must be BTCUSDT, found "BTCUSD"/],
    ['spot_BTCUSDT_2023-10-01.first1.csv', '2023-10-01', /line 1: the header must be/],
    ['spot_BTCUSDT_2025-05-19.first3.csv', '2025-05-19', /line 1: the header must be/],
    ['spot_BTCUSDT_2026-09-01.first3.csv', '2026-09-01', /line 1: the header must be/],
  ])('%s is refused: the contract has ids of m- and digits', (name, day, message) => {
    const fault = refusal(read(name), day);
    expect(fault).toMatchObject({ code: 'SOURCE_DOCUMENT_INVALID', details: { document: `BTCUSDT${day}.csv.gz` } });
    expect(fault.message).toMatch(message);
  });

  test('are read once their ids are of the contract, newest first or not', () => {
    for (const [name, day, rows] of [
      ['trading_BTCUSDT_2020-03-26.newest_first.3rows.csv', '2020-03-26', 3],
      ['trading_BTCUSDT_2021-05-03.1row.csv', '2021-05-03', 1],
      ['trading_BTCUSDT_2026-09-01.first1.csv', '2026-09-01', 1],
    ] as const) {
      let id = 5;
      const text = read(name)
        .toString()
        .replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, () => `m-${id--}`);
      expect(factsOf(decode(text, { day }))).toMatchObject({ rows, gaps: 0, last_offset: '5' });
    }
  });
});
