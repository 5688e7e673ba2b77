/**
 * Every document that must be refused, of every vendor, through the real command: an error naming document and line, exit
 * 1, nothing of that day written, the other days unharmed, and a clean retry once the document is right.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { BAD_DOCUMENTS, BAD_DOCUMENT_LIMITS as LIMITS, ODD_DOCUMENTS } from '../support/bad-documents.ts';
import type { Answer, Json } from '../support/command.ts';
import { DAY_MS, dayNames, type LogMessage, System } from '../support/pipeline.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { compareNative } from '../support/trade-oracle.ts';
import { NO_TRACES, tracesOf } from '../support/trades.ts';
import { VENDOR_C, VENDORS } from '../support/vendors.ts';

const ROWS = 300;

describe.each(VENDORS)('a backfill of $dataset over documents of which most are bad', (vendor) => {
  const { dataset } = vendor;
  const cases = BAD_DOCUMENTS.get(vendor)!;
  const days = dayNames('2024-05-01', cases.length + ODD_DOCUMENTS.length);
  const textOf = (index: number) =>
    vendor.plainDay({ day: days[index], rows: ROWS, seed: index, firstId: 1000 + index * ROWS * 7 });
  /** Exchange A's ids run on through the days. */
  const contentOf = (index: number) =>
    vendor.layout.dataset.offset.contiguous && vendor.layout.dataset.offset.unique
      ? vendor.plainDay({ day: days[index], rows: ROWS, seed: index, firstId: 1000 + index * ROWS })
      : textOf(index);
  /** Good days lie among the bad ones. */
  const spread = Math.floor(days.length / ODD_DOCUMENTS.length);
  const isOdd = (index: number) => index % spread === 0 && index / spread < ODD_DOCUMENTS.length;
  const odd = [...days.keys()].filter(isOdd);
  const bad = [...days.keys()].filter((index) => !isOdd(index));

  let system: System;
  let answer: Answer;
  let log: LogMessage[];
  const run = (from: string, to: string, more = {}) =>
    system.run(['backfill', dataset, '--from', from, '--to', to], {
      ...vendor.settings(system.vendor),
      ...limitsEnv({ ...LIMITS, ...more }),
    });
  const status = async () => (await system.run(['status', dataset])).json.datasets[0];

  beforeAll(async () => {
    system = await System.create();
    for (const [at, index] of odd.entries()) {
      const text = ODD_DOCUMENTS[at].change(contentOf(index));
      await vendor.put(system.vendor, days[index], vendor.pack(days[index], text));
    }
    for (const [at, index] of bad.entries()) await cases[at].write(system.vendor, days[index], contentOf(index));
    answer = await run(days[0], days.at(-1)!);
    log = await system.log(dataset);
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('ends with exit 1 and a word on every day', () => {
    expect(answer.exit).toBe(1);
    expect(answer.json).toMatchObject({
      ok: false,
      proved: ODD_DOCUMENTS.length,
      failed: cases.length,
      refused: 0,
      quarantined: 0,
    });
    expect(answer.json.units.map((unit: Json) => unit.partition).sort()).toEqual(days);
  });

  test.each(cases.map((each, at) => ({ ...each, at })))(
    '$name: refused, naming the document and the line',
    ({ at, code, line }) => {
      const day = days[bad[at]];
      const unit = answer.json.units.find((each: Json) => each.partition === day);
      expect(unit).toMatchObject({ state: 'failed', code, rows: 0 });
      expect(unit.reason).toContain(vendor.document(day));
      if (line !== undefined) expect(unit.reason).toContain(`${vendor.document(day)}, line ${line}: `);
      expect(unit.remedy.length).toBeGreaterThan(10);
    },
  );

  test('leaves nothing of a bad day: no manifest, no row, no frame in the index, no coverage, no state', async () => {
    const badDays = new Set(bad.map((index) => days[index]));
    const manifests = log.filter(({ manifest, header }) => manifest && badDays.has(header.partition));
    expect(manifests.map(({ subject }) => subject)).toEqual([]);
    for (const day of badDays) expect(await tracesOf(system.client, vendor.layout.dataset, day)).toEqual(NO_TRACES);
    const proved = await tracesOf(system.client, vendor.layout.dataset, days[odd[0]]);
    expect(Object.entries(proved).filter(([, found]) => found === 0 || found === null)).toEqual([]);
    // Frames that were out before the fault was met lie there unreferenced.
    const withFrames = new Set(log.map(({ header }) => header.partition).filter((key) => badDays.has(key)));
    for (const [at, { late }] of cases.entries()) if (late) expect(withFrames).toContain(days[bad[at]]);
    const [counts] = await system.rows(
      `select (select count(*) from ${vendor.layout.dataset.native.table}) as native,
        (select sum(trade_count) from canonical_aligned_1s_aggregates) as aligned,
        (select count(distinct partition_key) from frames) as frames, (select count(*) from partitions) as partitions,
        (select sum(upper(r) - lower(r)) from coverage, unnest(proved) r) as covered_ms`,
    );
    expect(counts).toEqual({
      native: String(odd.length * ROWS),
      aligned: String(odd.length * ROWS),
      frames: String(odd.length),
      partitions: String(odd.length),
      covered_ms: String(odd.length * DAY_MS),
    });
    const attempts = await system.rows(`select partition_key, state, reason from attempts where state <> 'proved'`);
    expect(new Set(attempts.map(({ partition_key }) => partition_key))).toEqual(withFrames);
    for (const { state, reason } of attempts)
      expect([state, reason]).toEqual(['abandoned', expect.stringMatching(/./)]);
    const found = await status();
    expect(found.partitions).toMatchObject({ publishing: 0, published: 0, proved: odd.length, quarantined: 0 });
    expect(found.log.unreferenced_messages).toBe(log.filter(({ header }) => badDays.has(header.partition)).length);
    expect(await system.leftovers()).toEqual([]);
  });

  test('succeeds cleanly once the documents are right', async () => {
    for (const index of bad) await vendor.put(system.vendor, days[index], vendor.pack(days[index], contentOf(index)));
    const { exit, json } = await run(days[0], days.at(-1)!);
    expect([exit, json.proved, json.unchanged]).toEqual([0, bad.length, odd.length]);
    const csv: string[] = [];
    for (const [index, day] of days.entries()) {
      csv.push(join(system.env.dir, `${day}.csv`));
      await writeFile(csv.at(-1)!, contentOf(index));
    }
    const rows = days.length * ROWS;
    expect(await compareNative(system, csv, system.env.dir, dataset)).toEqual([rows, rows, 0, 0]);
    expect(await status()).toMatchObject({
      partitions: { missing: 0, proved: days.length, quarantined: 0 },
      gaps: [],
      offset_breaks: [],
      unproved: [],
    });
  });

  test('of a long document that is bad at its end leaves frames that nothing refers to, and takes a new attempt', async () => {
    const [, day] = dayNames(days.at(-1)!, 2);
    const firstId = 1000 + days.length * ROWS * 7;
    // Exchange C's decoder frames nothing of a document before two runs of 4 MiB are complete (exchange_c/sorted-rows.ts).
    const rows = vendor === VENDOR_C ? 120_000 : 20_000;
    const text = vendor.plainDay({ day, rows, seed: 7, firstId });
    const more = { unpackedBytes: 16 << 20, documentBytes: 16 << 20 };
    const lines = text.trimEnd().split('\n').length;
    await vendor.put(system.vendor, day, vendor.pack(day, `${text.trimEnd()},1`));
    const first = await run(day, day, more);
    expect([first.exit, first.json.units[0].code]).toEqual([1, 'SOURCE_DOCUMENT_INVALID']);
    expect(first.json.units[0].reason).toContain(`line ${lines}: `);
    const left = (await system.log(dataset)).filter(({ header }) => header.partition === day);
    expect(left.length).toBeGreaterThan(100);
    expect(await tracesOf(system.client, vendor.layout.dataset, day)).toEqual(NO_TRACES);
    expect((await status()).log.unreferenced_messages).toBeGreaterThanOrEqual(left.length);
    await vendor.put(system.vendor, day, vendor.pack(day, text));
    const second = await run(day, day, more);
    expect([second.exit, second.json.units[0]]).toEqual([0, { dataset, partition: day, state: 'proved', rows }]);
    expect(await system.rows('select attempt, state from attempts where partition_key = $1 order by 1', [day])).toEqual(
      [
        { attempt: 1, state: 'abandoned' },
        { attempt: 2, state: 'proved' },
      ],
    );
  });
});
