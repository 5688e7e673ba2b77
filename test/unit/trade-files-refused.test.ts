/**
 * Trade files that must be refused, every vendor's alike: each bad cell and each bad row, in each place of a file, named
 * by document and line, and never a crash.
 */
import { mkdtempDisposable, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32, gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { openTradeFile } from '../../pipelines/sources/trades/feed.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { buildZip } from '../support/broken-zip.ts';
import { faultOf } from '../support/faults.ts';
import { runs } from '../support/seed.ts';
import {
  EXCHANGE_A,
  EXCHANGE_B,
  EXCHANGE_C,
  EXCHANGE_C_SPOT,
  fileOf,
  LAYOUTS,
  OTHER_LAYOUTS,
  pieceSizes,
  plain,
  type TradeLayout,
} from '../support/trade-layouts.ts';
import { decodeFile, factsOf, rawOf, refusalOf, runsOf } from '../support/trades.ts';

type Spoil = (row: string, id: number) => string;

/** Rows that are none in any layout. */
const BAD_ROWS: readonly (readonly [string, Spoil])[] = [
  ['a column too few', (row) => row.slice(0, row.lastIndexOf(','))],
  ['one column', (_, id) => `${id}`],
  ['a column too many', (row) => `${row},1`],
  ['a column too many, empty', (row) => `${row},`],
  ['a cell too many in the middle', (row) => row.replace(',', ',?,')],
  ['garbage behind it', (row) => `${row} garbage`],
  ['a space behind it', (row) => `${row} `],
  ['a space in front', (row) => ` ${row}`],
  ['two carriage returns', (row) => `${row}\r\r`],
  ['a carriage return within', (row) => row.replace(',', '\r,')],
  ['no bytes', () => ''],
  ['only spaces', () => '   '],
  ['only commas', (row) => row.replaceAll(/[^,]/g, '')],
  ['a NUL byte in front', (row) => `\0${row}`],
  ['a NUL byte at its end', (row) => `${row}\0`],
  ['only NUL bytes', () => '\0\0\0\0'],
  ['a semicolon for a comma', (row) => row.replace(',', ';')],
  ['a second byte order mark', (row) => `\ufeff${row}`],
  ['600 bytes without a comma', () => '1'.repeat(600)],
  ['2,000 bytes', (row) => row.replace(/\d\./, (digits) => '0'.repeat(2000) + digits)],
];

/** Every bad cell and row of a layout: name, how a row is spoilt, what the message says. */
function casesOf(layout: TradeLayout): [string, Spoil, string][] {
  const cells = layout.columns.flatMap(({ name, bad }, column) =>
    bad.map((value): [string, Spoil, string] => {
      const shown = value.length > 40 ? `${value.slice(0, 12)}... of ${value.length} bytes` : JSON.stringify(value);
      return [`${name} ${shown}`, (_, id) => layout.row(id, { [column]: value }), name];
    }),
  );
  const rows = BAD_ROWS.map(([name, spoil]): [string, Spoil, string] => [`a row with ${name}`, spoil, '']);
  const header = layout.headers.at(-1)!;
  return [...cells, ...rows, ['a second header', () => header, '']];
}

/** Where a row is spoilt, of seven. */
const PLACES = [0, 1, 4, 6];

describe.each(LAYOUTS)('a file of $dataset.key', (layout) => {
  const headerOnce = layout.headers.find((header) => header !== undefined)!;
  const shapesTried = [
    plain(layout),
    { ...plain(layout), header: headerOnce, lastEnd: false },
    { ...plain(layout), header: headerOnce, bom: true, crlf: [true] },
  ];

  test.each(casesOf(layout))('with %s is refused, naming document and line', (name, spoil, part) => {
    // Compared once a case: an assertion for each of the 36 files takes longer than reading them.
    const refusals: object[] = [];
    const wanted: object[] = [];
    for (const at of PLACES) {
      const lines = Array.from({ length: 7 }, (_, index) => {
        const row = layout.row(100 + index);
        return index === at ? spoil(row, 100 + index) : row;
      });
      for (const shape of shapesTried) {
        // Without an end, an empty last line is no line.
        if (!shape.lastEnd && at === 6 && lines[at] === '') continue;
        // The first line of a file may be a header, and have a mark.
        if (shape.header === undefined && at === 0 && name.includes('second')) continue;
        const file = fileOf(layout, lines, shape);
        for (const pieces of [[], [1], [64]]) {
          const fault = refusalOf(() => decodeFile(layout, file, { pieces }));
          const line = at + (shape.header === undefined ? 1 : 2);
          const { code, details, message } = fault;
          const isNamed = message.includes(`${layout.document}, line ${line}: `) && message.length < 420;
          const isTold = pieces.length > 0 || message.includes(part);
          refusals.push({
            code,
            document: details.document,
            line: details.line,
            wrong: isNamed && isTold ? '' : message,
          });
          wanted.push({ code: 'SOURCE_DOCUMENT_INVALID', document: layout.document, line, wrong: '' });
        }
      }
    }
    expect(refusals).toEqual(wanted);
    expect(refusals.length).toBeGreaterThan(24);
  });

  test('with a row outside its day is refused, by a millisecond', () => {
    for (const [ms, accepted] of [
      [layout.fromMs - 1, false],
      [layout.fromMs, true],
      [layout.toMs - 1, true],
      [layout.toMs, false],
      [0, false],
      [layout.toMs + 86_400_000 * 30, false],
    ] as const) {
      const lines = [layout.row(7), layout.row(8, {}, ms)];
      // 0 has too few digits where times are milliseconds.
      const work = () => decodeFile(layout, fileOf(layout, lines));
      if (accepted) {
        expect(factsOf(work())?.rows).toBe(2);
      } else {
        const fault = refusalOf(work);
        expect(fault.code).toBe('SOURCE_DOCUMENT_INVALID');
        expect(fault.details.line).toBe(layout.headers[0] === undefined ? 2 : 3);
      }
    }
  });

  test('of another day is refused at its first row', () => {
    for (const day of ['2024-01-14', '2024-01-16', '2020-02-29']) {
      const fault = refusalOf(() => decodeFile(layout, fileOf(layout, [layout.row(7)]), { day }));
      expect(fault).toMatchObject({ code: 'SOURCE_DOCUMENT_INVALID' });
      expect(fault.message).toContain(day);
    }
  });

  test('whose header is longer than a row may be is refused, however it is cut into pieces', () => {
    const header = headerOnce.replace(',', `${' '.repeat(700)},`);
    for (const pieces of [[], [1], [64], [600]]) {
      const fault = refusalOf(() => decodeFile(layout, fileOf(layout, [header, layout.row(7)]), { pieces }));
      expect([fault.code, fault.details.line]).toEqual([
        'SOURCE_DOCUMENT_INVALID',
        layout.headers[0] === undefined ? 1 : 2,
      ]);
    }
  });

  test('that holds nothing is refused', () => {
    const one = (shape: object) => fileOf(layout, [], { ...plain(layout), header: headerOnce, ...shape });
    for (const file of [
      Buffer.alloc(0),
      one({}),
      one({ lastEnd: false }),
      one({ bom: true, crlf: [true] }),
      Buffer.from('\ufeff'),
      Buffer.from('\n'),
      Buffer.concat([one({}), one({})]),
    ]) {
      for (const pieces of [[], [1]]) {
        const fault = refusalOf(() => decodeFile(layout, file, { pieces }));
        expect([file.toString(), fault.code]).toEqual([file.toString(), 'SOURCE_DOCUMENT_INVALID']);
        expect(fault.details.document).toBe(layout.document);
      }
    }
  });

  test('with a header of other columns is refused: its cells would be taken for others', () => {
    const names = headerOnce.split(',');
    for (const header of [
      names.slice(0, -1).join(','),
      [...names, 'more', 'and more'].join(','),
      [names[0], names[2], names[1], ...names.slice(3)].join(','),
      headerOnce.replace(names[3], 'other'),
      `${headerOnce};`,
      // The first column's name in an encoding of its own.
      `${names[0]}/\xbd\xbb\xd2\xd7,${names.slice(1).join(',')}`,
    ]) {
      const file = Buffer.from(`${header}\n${layout.row(7)}\n`, 'latin1');
      for (const pieces of [[], [5]]) {
        expect(refusalOf(() => decodeFile(layout, file, { pieces }))).toMatchObject({
          code: 'SOURCE_DOCUMENT_INVALID',
          details: { document: layout.document, line: 1 },
        });
      }
    }
  });
});

/** Ids that contradict their file, by vendor: name, ids of the rows before, the row, what the message says. */
const same = (layout: TradeLayout, id: number, column: string, value: string) =>
  layout.row(id, { [layout.columns.findIndex(({ name }) => name === column)]: value });

test.each([...LAYOUTS, ...OTHER_LAYOUTS])(
  'a file of $name spoilt by random bytes never passes unnoticed, and never crashes',
  (layout) => {
    const file = fileOf(
      layout,
      Array.from({ length: 6 }, (_, index) => layout.row(100 + index)),
    );
    const untouched = rawOf(decodeFile(layout, file));
    // The end of the last line may be cut: "\r" of "\r\n", or nothing.
    const linesIn = (text: string) => [...new Set(text.split(/\r?\n|\r$/).filter(Boolean))].sort();
    fc.assert(
      fc.property(
        fc.nat(file.length - 1),
        fc.uint8Array({ minLength: 1, maxLength: 4 }),
        fc.boolean(),
        pieceSizes,
        (at, bytes, insert, pieces) => {
          const spoilt = Buffer.concat([file.subarray(0, at), bytes, file.subarray(insert ? at : at + bytes.length)]);
          let items: ReturnType<typeof decodeFile>;
          try {
            items = decodeFile(layout, spoilt, { pieces });
          } catch (error) {
            expect(error).toBeInstanceOf(TidemarkError);
            return;
          }
          // Still a good file, a digit for a digit: then the change is in the bytes and in the facts.
          const raw = rawOf(items);
          const header = layout.headers[0];
          const body = header === undefined ? spoilt : spoilt.subarray(header.length + 1);
          expect(linesIn(raw)).toEqual(linesIn(body.toString('latin1')));
          if (raw !== untouched) expect(factsOf(items)).not.toEqual(factsOf(decodeFile(layout, file)));
          // And the other side reads it too.
          const projector = layout.projector();
          for (const run of runsOf(items)) expect(projector.rows(run.raw, run.rows).rows).toBe(run.rows);
        },
      ),
      { numRuns: runs(1500), examples: [[file.length - 1, Uint8Array.of(13), false, []]] },
    );
  },
);
test.each<[string, TradeLayout, number[], string, RegExp]>([
  ['A: a repeated id', EXCHANGE_A, [7, 8], EXCHANGE_A.row(8), /the id is 8, expected 9/],
  ['A: a missing id', EXCHANGE_A, [7, 8], EXCHANGE_A.row(10), /the id is 10, expected 9/],
  ['A: a missing id after the first that there can be', EXCHANGE_A, [0], EXCHANGE_A.row(2), /the id is 2, expected 1/],
  ['A: an id that goes back', EXCHANGE_A, [7, 8], EXCHANGE_A.row(7), /expected 9/],
  ['B: an id that goes back', EXCHANGE_B, [7, 9], EXCHANGE_B.row(8), /the id is 8, below the id 9 before it/],
  ['B: an id again with another price', EXCHANGE_B, [7, 8], same(EXCHANGE_B, 8, 'price', '42457.7'), /the id 8 repeats that of the row before/],
  ['B: an id again with its price written otherwise', EXCHANGE_B, [7, 8], same(EXCHANGE_B, 8, 'price', '42457.60'), /but the content differs/],
  ['B: an id again with another side', EXCHANGE_B, [7, 8], same(EXCHANGE_B, 8, 'side', 'sell'), /but the content differs/],
  ['B: a quote quantity beyond all totals', EXCHANGE_B, [7, 8], EXCHANGE_B.row(9, { 3: '9000000000000000', 4: '2' }), /price x size must be below/],
  ['C: an id again with another tick direction', EXCHANGE_C, [8, 7], same(EXCHANGE_C, 8, 'tickDirection', 'PlusTick'), /the id 8 repeats that of line 2, but/],
  ['C: an id again with zeros in front', EXCHANGE_C, [8, 7], EXCHANGE_C.row(8).replace('m-8', 'm-08'), /the id 8 repeats that of line 2/],
  ['C, spot: a quote quantity beyond all totals', EXCHANGE_C_SPOT, [8, 7], EXCHANGE_C_SPOT.row(9, { 2: '9000000000000000', 3: '2' }), /price x volume must be below/],
  ['C, spot: an id again with its price written otherwise', EXCHANGE_C_SPOT, [8, 7], same(EXCHANGE_C_SPOT, 8, 'price', '78580.80'), /the id 8 repeats that of line 2, but/],
  ['C, spot: an id again with its side in capitals', EXCHANGE_C_SPOT, [8, 7], same(EXCHANGE_C_SPOT, 8, 'side', 'BUY'), /the id 8 repeats that of line 2, but/],
])('%s: refused', (_, layout, before, row, message) => {
  // The row at fault is named, not the last one that was parsed.
  const lines = [...before.map((id) => layout.row(id)), row, layout.row(11)];
  for (const pieces of [[], [1], [100]]) {
    const fault = refusalOf(() => decodeFile(layout, fileOf(layout, lines), { pieces }));
    expect(fault).toMatchObject({ code: 'SOURCE_DOCUMENT_INVALID', details: { document: layout.document } });
    expect(fault.details.line).toBe(before.length + (layout === EXCHANGE_A ? 1 : 2));
    expect(fault.message).toMatch(message);
  }
}); // biome-ignore format: a case a line

test.each(LAYOUTS)(
  'a row of $dataset.key that damage to its archive spoilt is not blamed on the vendor',
  async (layout) => {
    await using folder = await mkdtempDisposable(join(tmpdir(), 'damaged-'));
    const { document } = layout;
    const archive = document.endsWith('.zip') ? 'zip' : 'gzip';
    const whole = fileOf(layout, [layout.row(7), layout.row(8)]);
    const spoilt = Buffer.from(whole);
    spoilt[spoilt.lastIndexOf(',')] = 0;
    const packed = (content: Buffer) => {
      const crc = crc32(whole);
      if (archive === 'zip') {
        return buildZip({ members: [{ name: document.replace(/zip$/, 'csv'), content, claim: { crc } }] });
      }
      const gzip = gzipSync(content);
      gzip.writeUInt32LE(crc, gzip.length - 8);
      return gzip;
    };
    const decoded = async (bytes: Buffer) => {
      const path = join(folder.path, document);
      await writeFile(path, bytes);
      await using opened = await openTradeFile(
        {
          file: {
            ...{
              url: document,
              name: document,
              path,
              bytes: bytes.length,
              sha256: '',
              headers: {},
              validators: {},
              attempts: 1,
            },
            assertUnchanged: async () => {},
            [Symbol.asyncDispose]: async () => {},
          },
          request: { period: '', granularity: 'daily', partitions: [] },
          archive,
          decoder: ({ frameRawBytes }) => layout.decoder({ frameRawBytes }),
        },
        { spoolDir: folder.path, timeoutMs: 1, maxAttempts: 1, maxDocumentBytes: 1, maxUnpackedBytes: 1 << 20 },
      );
      return await Array.fromAsync(opened.decode({ frameRawBytes: 1 << 16 }), ({ kind }) => kind);
    };
    expect(await decoded(packed(whole))).toEqual(['events', 'end']);
    const fault = await faultOf(decoded(packed(spoilt)), 'SOURCE_DOCUMENT_INVALID');
    expect(fault.details.document).toBe(document);
  },
);

test('a faulty row ends the decoding: no partition is said to have ended', () => {
  for (const layout of [EXCHANGE_A, EXCHANGE_B]) {
    const decoder = layout.decoder({ frameRawBytes: 10 });
    const items = [...decoder.push(fileOf(layout, [layout.row(7), layout.row(8)]))];
    expect(runsOf(items)).toHaveLength(2);
    expect(() => decoder.push(Buffer.from(`${layout.row(9)}x\n`))).toThrow('must be followed by the end of the row');
    expect(factsOf(items)).toBeUndefined();
  }
});
