/** The same days ingested in other ways, days whose ids do not follow each other, and a vendor's real days. */
import { cp, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { beforeAll, describe, expect, test } from 'vitest';
import { describeStatus } from '../../pipelines/cli/commands/status.ts';
import { consecutiveDays, writeMonth } from '../../pipelines/sources/exchange_a/sample.ts';
import { type Json, ROOT } from '../support/command.ts';
import { givenData } from '../support/given.ts';
import {
  csvOf,
  DATASET,
  documentPath,
  memberName,
  SYMBOL,
  System,
  unitOf,
  unzip,
  writeDocument,
} from '../support/pipeline.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { SMALL_DAYS as DAYS, FROM, TO, writeDays } from '../support/three-days.ts';
import { compareNative, secondsOfFiles, secondsStored } from '../support/trade-oracle.ts';

const NOTHING = { native: 0, aligned: 0, frames: 0, covered: 0, state: null, manifests: 0 };

describe('the same days, ingested otherwise,', () => {
  let reference: Json;
  beforeAll(async () => {
    await using system = await System.create();
    await writeDays(system, DAYS);
    expect((await system.backfill(FROM, TO)).exit).toBe(0);
    reference = await system.digests();
  });

  test('in other frames, other batches and another order have the same digests', async () => {
    await using system = await System.create();
    const csv = await writeDays(system, DAYS);
    const env = limitsEnv({ frameRawBytes: 20_001, pullBytes: 2 << 20, publishWindow: 3 });
    for (const { day } of DAYS.toReversed()) expect((await system.backfill(day, day, env)).exit).toBe(0);
    expect((await system.rows('select count(*)::int4 as frames from frames'))[0].frames).toBeGreaterThan(50);
    expect(await system.digests()).toEqual(reference);
    expect(await compareNative(system, csv, system.env.dir)).toEqual([25_000, 25_000, 0, 0]);
    // Replay, with batches of another size again.
    const replay = await system.run(['replay', DATASET], limitsEnv({ pullBytes: 9 << 20 }));
    expect(replay.json.units.map((each: Json) => each.state)).toEqual(['identical', 'identical', 'identical']);
    expect(await system.digests()).toEqual(reference);
  });

  test('out of the month have the same digests; proved days are compared and skipped', {
    tags: ['nightly'],
  }, async () => {
    await using system = await System.create();
    await writeDays(system, DAYS.slice(1, 2));
    await writeMonth({ directory: system.vendor, symbol: SYMBOL, days: DAYS });
    expect((await system.backfill(DAYS[1].day, DAYS[1].day)).exit).toBe(0);
    // Any day of the month names it. Days of which it holds nothing are reported: they are not proved.
    const { exit, json } = await system.backfill('2024-03-15', '2024-03-15', {}, ['--granularity', 'monthly']);
    expect([exit, json.proved, json.unchanged, json.failed]).toEqual([1, 2, 1, 28]);
    expect(unitOf(json, '2024-03-15')).toMatchObject({ state: 'failed', code: 'SOURCE_DOCUMENT_INVALID' });
    expect(unitOf(json, DAYS[1].day)).toEqual({
      dataset: DATASET,
      partition: DAYS[1].day,
      state: 'unchanged',
      rows: DAYS[1].rows,
    });
    expect(await system.digests()).toEqual(reference);
    const documents = await system.rows(`select partition_key, manifest->'document'->>'name' as name from partitions`);
    expect(new Map(documents.map(({ partition_key, name }) => [partition_key, name]))).toEqual(
      new Map(DAYS.map(({ day }, index) => [day, `${SYMBOL}-trades-${index === 1 ? day : '2024-03'}.zip`])),
    );
    // And by days again: nothing new.
    await writeDays(system, DAYS);
    expect((await system.backfill(FROM, TO)).json).toMatchObject({ ok: true, unchanged: 3 });
    expect((await system.log()).filter(({ manifest }) => manifest)).toHaveLength(3);
  });

  test('out of a month with a fault in its last day are proved up to that day', { tags: ['nightly'] }, async () => {
    await using system = await System.create();
    const whole = DAYS.map((day) => csvOf({ ...day, header: false }));
    await writeDocument(system.vendor, '2024-03', `${whole.join('')}garbage\n`);
    const { exit, json } = await system.backfill(FROM, TO, {}, ['--granularity', 'monthly']);
    expect(exit).toBe(1);
    for (const { day, rows } of DAYS.slice(0, 2)) {
      expect(unitOf(json, day)).toEqual({ dataset: DATASET, partition: day, state: 'proved', rows });
    }
    expect(json).toMatchObject({ proved: 2, failed: 29 });
    expect(unitOf(json, TO)).toMatchObject({ state: 'failed', code: 'SOURCE_DOCUMENT_INVALID' });
    expect(unitOf(json, TO).reason).toContain('BTCUSDT-trades-2024-03.zip, line 25001: ');
    expect(await system.traces(TO)).toEqual(NOTHING);
    await writeDocument(system.vendor, '2024-03', whole.join(''));
    const again = await system.backfill(FROM, TO, {}, ['--granularity', 'monthly']);
    expect(again.json).toMatchObject({ proved: 1, unchanged: 2, failed: 28 });
    expect(await system.digests()).toEqual(reference);
  });
});

describe('ids of neighbouring days', () => {
  test('that do not follow each other are proved, and the break is reported', async () => {
    await using system = await System.create();
    const days = consecutiveDays({ from: '2024-03-01', to: '2024-03-04', rowsPerDay: 500, seed: 3, timeUnit: 'ms' });
    const shifted = days.map((day, index) => ({ ...day, firstId: day.firstId! + (index >= 2 ? 17 : 0) }));
    await writeDays(system, shifted);
    // A day that is missing between two is no break of ids.
    expect((await system.backfill('2024-03-01', '2024-03-02')).exit).toBe(0);
    expect((await system.backfill('2024-03-04', '2024-03-04')).exit).toBe(0);
    let status = await system.status();
    expect(status).toMatchObject({
      offset_breaks: [],
      partitions: { proved: 3, missing: 1 },
      gaps: [{ from_utc: '2024-03-03T00:00:00.000Z', to_utc_exclusive: '2024-03-04T00:00:00.000Z' }],
    });
    expect((await system.backfill('2024-03-03', '2024-03-03')).exit).toBe(0);
    status = await system.status();
    expect(status.offset_breaks).toEqual([
      { before: '2024-03-02', partition: '2024-03-03', last_offset: '1000', first_offset: '1018' },
    ]);
    expect(status).toMatchObject({ gaps: [], partitions: { proved: 4, missing: 0 } });
    expect(describeStatus(status)).not.toContain('more');
    // The status lists 100 partitions and 20 late arrivals.
    const cut = {
      ...status,
      partitions: { ...status.partitions, published: 1200, quarantined: 3 },
      late_arrivals_total: 2,
    };
    expect(describeStatus(cut)).toContain('and 1,203 more partitions that are not proved');
    expect(describeStatus(cut)).toContain('and 2 more late arrivals');
  });

  test('that overlap are quarantined with the reason; the day before stays as it is', async () => {
    await using system = await System.create();
    const days = consecutiveDays({ from: '2024-03-01', to: '2024-03-03', rowsPerDay: 500, seed: 3, timeUnit: 'ms' });
    await writeDays(system, [days[0], { ...days[1], firstId: 500 }, days[2]]);
    const { exit, json } = await system.backfill('2024-03-01', '2024-03-03');
    expect([exit, json.proved, json.quarantined]).toEqual([1, 2, 1]);
    expect(unitOf(json, '2024-03-02')).toMatchObject({ state: 'quarantined', code: 'PARTITION_PROOF_FAILED' });
    expect(unitOf(json, '2024-03-02').reason).toContain('overlap');
    // Quarantined units had no remedy.
    expect(unitOf(json, '2024-03-02').remedy).toContain('./tidemark quarantine');
    expect(await system.traces('2024-03-02')).toEqual({ ...NOTHING, state: 'quarantined', manifests: 1 });
    const status = await system.status();
    expect(status.partitions).toEqual({ missing: 0, publishing: 0, published: 0, proved: 2, quarantined: 1 });
    expect(status.unproved).toMatchObject([{ partition: '2024-03-02', state: 'quarantined' }]);
    expect(status.unproved[0].reason).toContain('overlap');
    expect((await system.run(['status'])).exit).toBe(1);

    // Again: still quarantined, not tried in vain; nor does a replay of the log make it right.
    const again = await system.backfill('2024-03-02', '2024-03-02');
    expect([again.exit, unitOf(again.json, '2024-03-02').code]).toEqual([1, 'PARTITION_PROOF_FAILED']);
    const replay = await system.run(['replay', DATASET]);
    expect(replay.exit).toBe(1);
    expect(unitOf(replay.json, '2024-03-02')).toMatchObject({ state: 'failed' });
    expect(await system.traces('2024-03-02')).toEqual({ ...NOTHING, state: 'quarantined', manifests: 1 });

    // The operator has the right document: a new revision.
    await writeDays(system, [days[1]]);
    expect((await system.reingest('2024-03-02', '2024-03-02', 'ids were wrong')).exit).toBe(0);
    expect((await system.status()).partitions).toMatchObject({ proved: 3, quarantined: 0 });
    expect((await system.digests())['2024-03-02']).toMatchObject({ revision: 2, offsets: '[501,1001)' });
  });
});

describe('real documents', () => {
  const REAL = join(ROOT, '..', 'shared', 'data', 'exchange_a');

  givenData('exchange_a').test('of 2019 (ms) and 2025 (µs) are proved with the known answers', async () => {
    await using system = await System.create();
    const csv: string[] = [];
    const env = { SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${REAL}/`).href };
    for (const day of ['2019-04-01', '2025-01-01']) {
      const { exit, json } = await system.backfill(day, day, env);
      expect([exit, unitOf(json, day).state]).toEqual([0, 'proved']);
      csv.push(await unzip(join(REAL, documentPath(day)), memberName(day), system.env.dir));
    }
    const digests = await system.digests();
    expect(digests['2019-04-01']).toMatchObject({
      rows: '183355',
      first_offset: '109344068',
      last_offset: '109527422',
      gaps: 0,
      totals: { quantity: '2542102616900', quote_quantity: '10503163398776672' },
    });
    expect(digests['2025-01-01']).toMatchObject({
      rows: '210',
      first_offset: '4359935386',
      last_offset: '4359935595',
      totals: { quantity: '97857000', quote_quantity: '9156671862770' },
    });
    const makers = await system.rows(`select to_timestamp("timestamp" / 1000)::date::text as day,
      count(*) filter (where is_buyer_maker) as makers from ${DATASET} group by 1 order by 1`);
    expect(makers).toEqual([
      { day: '2019-04-01', makers: '82054' },
      { day: '2025-01-01', makers: '183' },
    ]);
    expect(await compareNative(system, csv, system.env.dir)).toEqual([183_565, 183_565, 0, 0]);
    const expected = await secondsOfFiles(csv);
    const stored = await secondsStored(system);
    expect(stored.length).toBe(expected.length);
    expect(stored.filter((row, index) => row.some((cell, column) => cell !== expected[index][column]))).toEqual([]);
  });

  givenData('exchange_a').test('of a month cut off on its way are refused, and nothing is written', async () => {
    await using system = await System.create();
    const target = join(system.vendor, documentPath('2019-04'));
    await mkdir(join(target, '..'), { recursive: true });
    for (const suffix of ['', '.CHECKSUM']) {
      await cp(join(REAL, 'broken', `${SYMBOL}-trades-2019-04.zip${suffix}`), `${target}${suffix}`);
    }
    const { exit, json } = await system.backfill('2019-04-01', '2019-04-30', {}, ['--granularity', 'monthly']);
    expect([exit, json.failed, json.proved]).toEqual([1, 30, 0]);
    expect(unitOf(json, '2019-04-01').code).toMatch(/^SOURCE_/);
    expect(unitOf(json, '2019-04-01').reason).toContain(`${SYMBOL}-trades-2019-04.zip`);
    expect(await system.traces('2019-04-01')).toEqual(NOTHING);
    expect(await system.log()).toEqual([]);
    expect(await system.rows('select * from attempts')).toEqual([]);
  });
});
