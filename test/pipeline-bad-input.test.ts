/**
 * Every document that must be refused, through the real command: an error naming document and line, exit 1, nothing of
 * that day written, the other days unharmed, and a clean retry once the document is right.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { deflateRawSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { buildZip } from './support/broken-zip.ts';
import {
  type Answer,
  compareNative,
  csvOf,
  DAY_MS,
  type DocumentSpec,
  dayNames,
  documentPath,
  filesBelow,
  type Json,
  type LogMessage,
  memberName,
  SYMBOL,
  System,
  writeDocument,
} from './support/pipeline.ts';
import { startVendorServer, type VendorServer } from './support/vendor-server.ts';

const ROWS = 300;
/** Where a row is spoilt: behind frames that are in the log by then. */
const LINE = 250;
const MIB = 1 << 20;
const LIMITS = {
  SVC_FRAME_RAW_BYTES: '4096',
  SVC_SOURCE_MAX_UNPACKED_BYTES: String(MIB),
  SVC_SOURCE_MAX_DOCUMENT_BYTES: String(MIB),
  SVC_SOURCE_MAX_ATTEMPTS: '2',
  SVC_SOURCE_TIMEOUT_SECONDS: '1',
};

interface Case {
  readonly name: string;
  /** What the vendor has instead of the right document. */
  readonly write: (base: string, day: string, csv: string) => Promise<unknown>;
  readonly code: string;
  /** Line that is named, where a row is at fault. */
  readonly line?: number;
}

const zipOf = (day: string, csv: string | Buffer, more = {}) =>
  buildZip({ members: [{ name: memberName(day), content: Buffer.from(csv), ...more }] });
const document = (spec: (day: string, csv: string) => DocumentSpec) => (base: string, day: string, csv: string) =>
  writeDocument(base, day, csv, spec(day, csv));
const lineChanged = (change: (line: string) => string) => (base: string, day: string, csv: string) => {
  const lines = csv.split('\n');
  lines[LINE - 1] = change(lines[LINE - 1]);
  return writeDocument(base, day, lines.join('\n'));
};
const cell = (index: number, change: (text: string) => string) =>
  lineChanged((line) =>
    line
      .split(',')
      .map((text, column) => (column === index ? change(text) : text))
      .join(','),
  );
const row = (name: string, write: Case['write'], code = 'SOURCE_ROW_INVALID', line = LINE): Case => ({
  name,
  write,
  code,
  line,
});

const CASES: readonly Case[] = [
  {
    name: 'a zip cut in half, signed as it is',
    write: document((day, csv) => {
      const whole = zipOf(day, csv);
      return { zip: whole.subarray(0, whole.length >> 1) };
    }),
    code: 'SOURCE_TRUNCATED',
  },
  {
    name: 'a zip cut in half, signed whole',
    write: async (base, day, csv) => {
      const sha256 = await writeDocument(base, day, csv);
      const whole = zipOf(day, csv);
      const checksum = `${sha256}  ${SYMBOL}-trades-${day}.zip\n`;
      return writeDocument(base, day, csv, { zip: whole.subarray(0, whole.length >> 1), checksum });
    },
    code: 'SOURCE_CHECKSUM_MISMATCH',
  },
  {
    name: 'a wrong checksum',
    write: document((day) => ({ checksum: `${'0'.repeat(64)}  ${SYMBOL}-trades-${day}.zip\n` })),
    code: 'SOURCE_CHECKSUM_MISMATCH',
  },
  { name: 'no checksum', write: document(() => ({ checksum: null })), code: 'SOURCE_CHECKSUM_MISSING' },
  { name: 'a checksum file that is none', write: document(() => ({ checksum: 'sorry\n' })), code: 'SOURCE_CHECKSUM_MISSING' }, // biome-ignore format: a case a line
  {
    name: 'a checksum of another file',
    write: async (base, day, csv) => {
      const sha256 = await writeDocument(base, day, csv);
      return writeDocument(base, day, csv, { checksum: `${sha256}  ${SYMBOL}-trades-2001-01-01.zip\n` });
    },
    code: 'SOURCE_CHECKSUM_MISMATCH',
  },
  {
    name: 'a bomb that says its size',
    write: document((day) => ({ zip: zipOf(day, Buffer.alloc(2 * MIB, '1,')) })),
    code: 'SOURCE_TOO_LARGE',
  },
  {
    name: 'a bomb that lies about its size',
    write: document((day, csv) => ({
      zip: zipOf(day, csv, { packed: deflateRawSync(Buffer.concat([Buffer.from(csv), Buffer.alloc(64 * MIB)])) }),
    })),
    code: 'SOURCE_TOO_LARGE',
  },
  {
    name: 'a document larger than the limit',
    write: document((day) => ({ zip: zipOf(day, Buffer.alloc(MIB + 1, '1,'), { method: 0 }) })),
    code: 'SOURCE_TOO_LARGE',
  },
  {
    name: 'a wrong member name',
    write: document((day, csv) => ({ zip: zipOf(day, csv, { name: `${SYMBOL}-trades-2001-01-01.csv` }) })),
    code: 'SOURCE_ARCHIVE_INVALID',
  },
  {
    name: 'two members',
    write: document((day, csv) => {
      const content = Buffer.from(csv);
      return { zip: buildZip({ members: [{ name: memberName(day), content }, { name: 'more.csv', content }] }) }; // biome-ignore format: one case
    }),
    code: 'SOURCE_ARCHIVE_INVALID',
  },
  {
    name: 'bytes that do not match the CRC, known only at their end',
    write: document((day, csv) => ({ zip: zipOf(day, csv, { claim: { crc: 17 } }) })),
    code: 'SOURCE_ARCHIVE_INVALID',
  },
  {
    name: 'no zip at all',
    write: document((_day, csv) => ({ zip: Buffer.from(csv) })),
    code: 'SOURCE_ARCHIVE_INVALID',
  },
  { name: 'an empty archive', write: document(() => ({ zip: Buffer.alloc(0) })), code: 'SOURCE_EMPTY' },
  { name: 'an empty member', write: document((day) => ({ zip: zipOf(day, '') })), code: 'SOURCE_EMPTY' },
  {
    name: 'a header alone',
    write: document((day) => ({ zip: zipOf(day, 'id,price,qty,quote_qty,time,is_buyer_maker,is_best_match\n') })),
    code: 'SOURCE_EMPTY',
  },
  { name: 'no document', write: async () => {}, code: 'SOURCE_NOT_FOUND' },
  row(
    'a row of 6 columns',
    lineChanged((line) => line.replace(/,[^,]*$/, '')),
  ),
  row(
    'a row of 8 columns',
    lineChanged((line) => `${line},x`),
  ),
  row(
    'a non-numeric price',
    cell(1, () => 'abc'),
  ),
  row(
    'a negative quantity',
    cell(2, (text) => `-${text}`),
  ),
  row(
    'a NaN quantity',
    cell(2, () => 'NaN'),
  ),
  row(
    'a 12-digit timestamp',
    cell(4, (text) => text.slice(1)),
  ),
  row(
    'a time outside the day',
    cell(4, (text) => String(Number(text) + DAY_MS * 10 ** (text.length - 13))),
    'SOURCE_OUTSIDE_PARTITION',
  ),
  row(
    'a repeated id',
    cell(0, (text) => String(Number(text) - 1)),
    'SOURCE_SEQUENCE_BROKEN',
  ),
  row(
    'a missing id',
    cell(0, (text) => String(Number(text) + 1)),
    'SOURCE_SEQUENCE_BROKEN',
  ),
  row(
    'garbage behind a row',
    lineChanged((line) => `${line}garbage`),
  ),
  row(
    'an empty line',
    lineChanged((line) => `\n${line}`),
  ),
  row(
    'a NUL byte',
    lineChanged((line) => `\0${line}`),
  ),
  row(
    'a row of 1,000 bytes',
    cell(1, (text) => text + '0'.repeat(1000)),
  ),
  row('garbage behind the last row', (base, day, csv) => writeDocument(base, day, `${csv}garbage\n`), undefined, ROWS + 1), // biome-ignore format: a case a line
  row('an empty line at the end', (base, day, csv) => writeDocument(base, day, `${csv}\n`), undefined, ROWS + 1),
  row('a last row cut off', (base, day, csv) => writeDocument(base, day, csv.slice(0, -8)), undefined, ROWS),
];

/** Oddities that are read. */
const GOOD: readonly { name: string; write: Case['write'] }[] = [
  { name: 'as it is', write: (base, day, csv) => writeDocument(base, day, csv) },
  { name: 'CRLF ends', write: (base, day, csv) => writeDocument(base, day, csv.replaceAll('\n', '\r\n')) },
  { name: 'a byte order mark', write: (base, day, csv) => writeDocument(base, day, `\ufeff${csv}`) },
  { name: 'no last line end', write: (base, day, csv) => writeDocument(base, day, csv.trimEnd()) },
  {
    name: 'a header, with mark and CRLF',
    write: (base, day, csv) =>
      writeDocument(
        base,
        day,
        `\ufeffid,price,qty,quote_qty,time,is_buyer_maker,is_best_match\n${csv}`.replaceAll('\n', '\r\n'),
      ),
  },
];

const DAYS = dayNames('2024-05-01', CASES.length + GOOD.length);
const csvOfDay = (index: number) =>
  csvOf({ day: DAYS[index], rows: ROWS, seed: 5, firstId: 1000 + index * ROWS, timeUnit: index % 2 ? 'us' : 'ms' });
/** Good days lie among the bad ones. */
const plan = DAYS.map((day, index) => {
  const spread = Math.floor(DAYS.length / GOOD.length);
  const good = index % spread === 0 && index / spread < GOOD.length ? GOOD[index / spread] : undefined;
  return { day, index, good };
});
const goodDays = plan.filter(({ good }) => good !== undefined);
const badDays = plan.filter(({ good }) => good === undefined);

describe('a backfill over documents of which most are bad', () => {
  let system: System;
  let answer: Answer;
  let log: LogMessage[];
  const unitOf = (day: string) => answer.json.units.find((unit: Json) => unit.partition === day);
  const caseOf = (name: string) => {
    const at = CASES.findIndex((each) => each.name === name);
    return { ...CASES[at], day: badDays[at].day };
  };

  beforeAll(async () => {
    system = await System.create();
    for (const { day, index, good } of goodDays) await good!.write(system.vendor, day, csvOfDay(index));
    for (const [at, { day, index }] of badDays.entries()) {
      await CASES[at].write(system.vendor, day, csvOfDay(index));
    }
    answer = await system.backfill(DAYS[0], DAYS.at(-1)!, LIMITS);
    log = await system.log();
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('ends with exit 1 and a word on every day', () => {
    expect(answer.exit).toBe(1);
    expect(answer.json).toMatchObject({ ok: false, proved: GOOD.length, failed: CASES.length, refused: 0 });
    expect(answer.json.units.map((unit: Json) => unit.partition).sort()).toEqual(DAYS);
  });

  test.each(CASES.map(({ name }) => name))('%s: refused, naming the document and the line', (name) => {
    const { day, code, line } = caseOf(name);
    const unit = unitOf(day);
    expect(unit).toMatchObject({ state: 'failed', code, rows: 0 });
    expect(unit.reason).toContain(`${SYMBOL}-trades-${day}.zip`);
    if (line !== undefined) expect(unit.reason).toContain(`${SYMBOL}-trades-${day}.zip, line ${line}: `);
    expect(unit.remedy.length).toBeGreaterThan(10);
  });

  test('leaves nothing of a bad day: no manifest, no row, no frame in the index, no coverage, no state', async () => {
    const bad = new Set(badDays.map(({ day }) => day));
    const manifests = log.filter(({ manifest, header }) => manifest && bad.has(header.partition));
    expect(manifests.map(({ subject }) => subject)).toEqual([]);
    // Frames that were out before the fault was met lie there unreferenced.
    const withFrames = new Set(log.map(({ header }) => header.partition).filter((key) => bad.has(key)));
    const late = ['bytes that do not match the CRC, known only at their end', 'a last row cut off'];
    expect(withFrames).toEqual(new Set(late.map((name) => caseOf(name).day)));
    const [counts] = await system.rows(
      `select (select count(*) from exchange_a_spot_trades) as native, (select sum(trade_count) from canonical_aligned_1s_aggregates) as aligned,
        (select count(distinct partition_key) from frames) as frames, (select count(*) from partitions) as partitions,
        (select sum(upper(r) - lower(r)) from coverage, unnest(proved) r) as covered_ms`,
    );
    expect(counts).toEqual({
      native: String(GOOD.length * ROWS),
      aligned: String(GOOD.length * ROWS),
      frames: String(GOOD.length),
      partitions: String(GOOD.length),
      covered_ms: String(GOOD.length * DAY_MS),
    });
    const attempts = await system.rows(`select partition_key, state, reason from attempts where state <> 'proved'`);
    expect(attempts.length).toBe(withFrames.size);
    for (const { state, reason } of attempts)
      expect([state, reason]).toEqual(['abandoned', expect.stringMatching(/./)]);
    const status = await system.status();
    expect(status.partitions).toEqual({
      missing: expect.any(Number),
      publishing: 0,
      published: 0,
      proved: GOOD.length,
      quarantined: 0,
    });
    expect(status.log.unreferenced_messages).toBe(log.filter(({ header }) => bad.has(header.partition)).length);
    expect(await system.leftovers()).toEqual([]);
  });

  test('succeeds cleanly once the documents are right', async () => {
    for (const { day, index } of badDays) await writeDocument(system.vendor, day, csvOfDay(index));
    const { exit, json } = await system.backfill(DAYS[0], DAYS.at(-1)!, LIMITS);
    expect([exit, json.proved, json.unchanged]).toEqual([0, CASES.length, GOOD.length]);
    const csv: string[] = [];
    for (const { day, index } of plan) {
      csv.push(join(system.env.dir, `${day}.csv`));
      await writeFile(csv.at(-1)!, csvOfDay(index));
    }
    const rows = DAYS.length * ROWS;
    expect(await compareNative(system, csv, system.env.dir)).toEqual([rows, rows, 0, 0]);
    expect(await system.status()).toMatchObject({
      partitions: { missing: 0, proved: DAYS.length, quarantined: 0 },
      gaps: [],
      offset_breaks: [],
      unproved: [],
    });
  });

  test('of a long document that is bad at its end leaves frames that nothing refers to, and takes a new attempt', async () => {
    const [day] = dayNames(DAYS.at(-1)!, 2).slice(1);
    const csv = csvOf({ day, rows: 20_000, seed: 7, firstId: 1000 + DAYS.length * ROWS, timeUnit: 'ms' });
    const env = { ...LIMITS, SVC_SOURCE_MAX_UNPACKED_BYTES: String(4 * MIB) };
    await writeDocument(system.vendor, day, `${csv.trimEnd()},1`);
    const first = await system.backfill(day, day, env);
    expect([first.exit, first.json.units[0].code]).toEqual([1, 'SOURCE_ROW_INVALID']);
    expect(first.json.units[0].reason).toContain('line 20000: ');
    const left = (await system.log()).filter(({ header }) => header.partition === day);
    expect(left.length).toBeGreaterThan(100);
    expect(await system.traces(day)).toEqual({
      native: 0,
      aligned: 0,
      frames: 0,
      covered: 0,
      state: null,
      manifests: 0,
    });
    expect((await system.status()).log.unreferenced_messages).toBeGreaterThanOrEqual(left.length);
    await writeDocument(system.vendor, day, csv);
    const second = await system.backfill(day, day, env);
    expect([second.exit, second.json.units[0]]).toEqual([0, { partition: day, state: 'proved', rows: 20_000 }]);
    expect(await system.rows('select attempt, state from attempts where partition_key = $1 order by 1', [day])).toEqual(
      [
        { attempt: 1, state: 'abandoned' },
        { attempt: 2, state: 'proved' },
      ],
    );
  });
});

describe('a backfill over http', () => {
  const days = dayNames('2024-06-01', 9);
  const csv = (index: number) =>
    csvOf({ day: days[index], rows: ROWS, seed: 6, firstId: 1 + index * ROWS, timeUnit: 'ms' });
  let system: System;
  let server: VendorServer;
  const path = (index: number) => documentPath(days[index]);
  beforeAll(async () => {
    system = await System.create();
    for (const [index, day] of days.entries()) await writeDocument(system.vendor, day, csv(index));
    server = await startVendorServer(system.vendor);
  });
  afterAll(async () => {
    await server[Symbol.asyncDispose]();
    await system[Symbol.asyncDispose]();
  });
  const run = () => system.backfill(days[0], days.at(-1)!, { ...LIMITS, SVC_EXCHANGE_A_BASE_URL: server.url.href });

  test('refuses what does not arrive whole, sits out what passes, and names the document', async () => {
    server.fail(path(1), { kind: 'status', status: 404 });
    server.fail(path(2), { kind: 'status', status: 500 });
    server.fail(path(3), { kind: 'cut', afterBytes: 2000 });
    server.fail(path(4), { kind: 'stall', afterBytes: 100 });
    server.fail(`${path(5)}.CHECKSUM`, { kind: 'status', status: 404 });
    server.fail(`${path(6)}.CHECKSUM`, { kind: 'body', body: `${'ab'.repeat(32)}  ${SYMBOL}-trades-${days[6]}.zip\n` });
    server.fail(path(7), { kind: 'status', status: 503, times: 1 });
    server.fail(path(8), { kind: 'cut', afterBytes: 2000, times: 1, chunked: true });
    const { exit, json } = await run();
    const outcome = json.units.map((unit: Json) => [unit.partition, unit.state, unit.code]);
    expect(exit).toBe(1);
    expect(outcome.sort()).toEqual(
      [
        ['proved', undefined],
        ['failed', 'SOURCE_NOT_FOUND'],
        ['failed', 'SOURCE_UNREACHABLE'],
        ['failed', 'SOURCE_TRUNCATED'],
        ['failed', expect.stringMatching(/^SOURCE_(UNREACHABLE|TRUNCATED)$/)],
        ['failed', 'SOURCE_CHECKSUM_MISSING'],
        ['failed', 'SOURCE_CHECKSUM_MISMATCH'],
        ['proved', undefined],
        ['proved', undefined],
      ].map(([state, code], index) => [days[index], state, code]),
    );
    for (const unit of json.units.filter((each: Json) => each.state === 'failed')) {
      expect(unit.reason).toContain(`${SYMBOL}-trades-${unit.partition}.zip`);
    }
    expect(server.requests(path(2))).toHaveLength(2);
    expect(server.requests(path(1))).toHaveLength(1);
    const log = await system.log();
    expect(new Set(log.map(({ header }) => header.partition))).toEqual(new Set([days[0], days[7], days[8]]));
    expect((await filesBelow(join(system.env.dir, 'state', 'spool'))).filter((name) => !name.startsWith('.'))).toEqual(
      [],
    );
  });

  test('succeeds once the vendor is well again', async () => {
    server.reset();
    const { exit, json } = await run();
    expect([exit, json.proved, json.unchanged]).toEqual([0, 6, 3]);
    expect((await system.status()).rows).toBe(days.length * ROWS);
    expect(await filesBelow(join(system.env.dir, 'state', 'spool'))).toEqual([]);
  });

  test('of a vendor that is not there says so', async () => {
    const gone = await startVendorServer(system.vendor);
    await gone[Symbol.asyncDispose]();
    const { exit, json } = await system.backfill('2024-07-01', '2024-07-01', {
      ...LIMITS,
      SVC_EXCHANGE_A_BASE_URL: gone.url.href,
    });
    expect([exit, json.units[0].state, json.units[0].code]).toEqual([1, 'failed', 'SOURCE_UNREACHABLE']);
  });

  test('of a folder that is not there, and without any location, says so', async () => {
    const missing = pathToFileURL(join(system.env.dir, 'nosuchfolder/')).href;
    const { exit, json } = await system.backfill('2024-07-01', '2024-07-01', { SVC_EXCHANGE_A_BASE_URL: missing });
    expect([exit, json.units[0].state, json.units[0].code]).toEqual([1, 'failed', 'SOURCE_NOT_FOUND']);
    expect(json.units[0].reason).toContain('nosuchfolder');
    const unset = await system.backfill('2024-07-01', '2024-07-01', { SVC_EXCHANGE_A_BASE_URL: '' });
    expect([unset.exit, unset.json.error.code]).toEqual([2, 'CONFIGURATION_INVALID']);
    expect(unset.json.error.message).toContain('SVC_EXCHANGE_A_BASE_URL');
  });
});
