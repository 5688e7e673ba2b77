/** Attempts in the log that are damaged or misleading: found, named, and no more than that day's harm. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import type { Json } from '../support/command.ts';
import { attemptOf, CASES, publish, sealed } from '../support/forged-attempts.ts';
import { documentOf, HEADERS, header, KindSystem } from '../support/kinds.ts';
import { csvOf, DATASET, DAY_MS, dayNames, System, writeDocument } from '../support/pipeline.ts';
import { eventually } from '../support/serving.ts';

const ROWS = 200;

const DAYS = dayNames('2024-08-01', CASES.length + 3);
const csvOfDay = (index: number) =>
  csvOf({ day: DAYS[index], rows: ROWS, seed: 8, firstId: 1 + index * ROWS, timeUnit: 'ms' });

describe('a log of damaged and misleading attempts', () => {
  let system: System;
  let quarantined: Map<string, Json>;
  const good = DAYS.at(-1)!;
  const [left, right] = DAYS.slice(-3);

  beforeAll(async () => {
    system = await System.create();
    for (const [index, { spoil }] of CASES.entries()) {
      const attempt = attemptOf(DAYS[index], csvOfDay(index));
      expect(attempt.frames.length).toBe(3);
      const instead = spoil(attempt);
      await publish(system.env, instead ?? attempt);
    }
    // Two attempts among each other.
    const [a, b] = [left, right].map((day, index) => attemptOf(day, csvOfDay(CASES.length + index)));
    await publish(system.env, [
      a.frames[0],
      b.frames[0],
      a.frames[1],
      b.frames[1],
      a.frames[2],
      sealed(a.manifest, { ...a.facts, first_sequence: 1 }),
      b.frames[2],
      sealed(b.manifest, { ...b.facts, first_sequence: 2 }),
    ]);
    await writeDocument(system.vendor, good, csvOfDay(DAYS.length - 1));
    const answer = await system.backfill(good, good);
    expect([answer.exit, answer.json?.units]).toEqual([
      0,
      [{ dataset: DATASET, partition: good, state: 'proved', rows: ROWS }],
    ]);
    const rows = await system.rows(`select * from partitions where state = 'quarantined'`);
    quarantined = new Map(rows.map((row) => [row.partition_key, row]));
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test.each(CASES.filter(({ reason }) => reason !== null).map((each) => [each.name, each] as const))(
    '%s: quarantined, naming the fact',
    async (_name, each) => {
      const day = DAYS[CASES.indexOf(each)];
      expect(quarantined.get(day)).toMatchObject({ attempt: 1, reason: expect.stringMatching(each.reason!) });
      const window = [Date.parse(`${day}T00:00:00Z`), Date.parse(`${day}T00:00:00Z`) + DAY_MS];
      expect([Number(quarantined.get(day).from_ms), Number(quarantined.get(day).to_ms)]).toEqual(window);
      const [ledger] = await system.rows('select kind, reason from ledger where partition_key = $1', [day]);
      expect(ledger).toMatchObject({ kind: 'quarantined', reason: expect.stringMatching(each.reason!) });
      const [attempt] = await system.rows('select state from attempts where partition_key = $1', [day]);
      expect(attempt).toEqual({ state: 'quarantined' });
    },
  );

  test('two attempts among each other: neither is proved', () => {
    expect(quarantined.get(left)?.reason).toMatch(/first frame is missing|follows/);
    expect(quarantined.get(right)?.reason).toMatch(/first frame is missing|follows/);
  });

  test('serves nothing but the good day', async () => {
    const readable = CASES.filter(({ reason }) => reason !== null).length + 2;
    expect([...quarantined.keys()]).toHaveLength(readable);
    const [counts] = await system.rows(
      `select (select count(*) from ${DATASET}) as native, (select sum(trade_count) from canonical_aligned_1s_aggregates) as aligned,
        (select count(distinct partition_key) from frames) as frames, (select proved::text from coverage where dataset_id = 1) as proved`,
    );
    const from = Date.parse(`${good}T00:00:00Z`);
    expect(counts).toEqual({
      native: String(ROWS),
      aligned: String(ROWS),
      frames: '1',
      proved: `{[${from},${from + DAY_MS})}`,
    });
    const { json, exit } = await system.run(['status', DATASET]);
    expect(exit).toBe(1);
    expect(json.datasets[0].partitions).toMatchObject({ proved: 1, quarantined: readable });
    expect(json.datasets[0].log.lag.frames).toBe(0);
    expect(await system.leftovers()).toEqual([]);
  });

  test('is read from its checkpoint again and again without another word', async () => {
    const ledger = await system.rows('select count(*)::int4 as n from ledger');
    expect((await system.backfill(good, good)).exit).toBe(0);
    expect(await system.rows('select count(*)::int4 as n from ledger')).toEqual(ledger);
  });

  test('holds a quarantined day back until it is re-ingested from the vendor', async () => {
    const [day] = DAYS;
    await writeDocument(system.vendor, day, csvOfDay(0));
    const refused = await system.backfill(day, day);
    expect([refused.exit, refused.json.units[0].code]).toEqual([1, 'PARTITION_PROOF_FAILED']);
    expect(refused.json.units[0].reason).toContain('digest');
    const again = await system.reingest(day, day, 'the frame was damaged');
    expect([again.exit, again.json.units[0].state]).toEqual([0, 'proved']);
    const [row] = await system.rows(
      'select state, attempt, revision, reason from partitions where partition_key = $1',
      [day],
    );
    expect(row).toEqual({ state: 'proved', attempt: 2, revision: 2, reason: null });
  });

  test('has a day whose attempt got no manifest proved by the next one', async () => {
    const at = CASES.findIndex(({ name }) => name === 'frames without a manifest');
    await writeDocument(system.vendor, DAYS[at], csvOfDay(at));
    // That attempt is not in the catalog: to the publisher its subjects are taken, by itself as it were.
    const { exit, json } = await system.backfill(DAYS[at], DAYS[at]);
    expect([exit, json.units[0].state]).toEqual([0, 'proved']);
  });
});

describe('an attempt for a day that is proved', () => {
  test('is passed over: in silence with the same content, on record with other', async () => {
    await using system = await System.create();
    const [day, next, after] = dayNames('2024-08-01', 3);
    const csv = csvOf({ day, rows: ROWS, seed: 8, firstId: 1, timeUnit: 'ms' });
    await writeDocument(system.vendor, day, csv);
    await writeDocument(system.vendor, next, csvOf({ day: next, rows: ROWS, seed: 8, firstId: 201, timeUnit: 'ms' }));
    expect((await system.backfill(day, day)).exit).toBe(0);
    const before = await system.digests();
    await publish(system.env, attemptOf(day, csv, { attempt: 2 }));
    const other = csvOf({ day, rows: ROWS + 1, seed: 9, firstId: 1, timeUnit: 'ms' });
    await publish(system.env, attemptOf(day, other, { attempt: 3 }));
    expect((await system.backfill(next, next)).exit).toBe(0);
    expect((await system.digests())[day]).toEqual(before[day]);
    expect(await system.rows('select attempt, state from attempts where partition_key = $1 order by 1', [day])).toEqual(
      [
        { attempt: 1, state: 'proved' },
        { attempt: 2, state: 'refused' },
        { attempt: 3, state: 'refused' },
      ],
    );
    const ledger = await system.rows('select kind, reason, details from ledger');
    expect(ledger).toMatchObject([{ kind: 'late_arrival_refused', details: { attempt: 3 } }]);
    expect(ledger[0].reason).toContain('rows_hash');
    expect((await system.status()).late_arrivals).toHaveLength(1);

    // A revision that fails its proof leaves the proved one as it is.
    const revision = attemptOf(day, other, { attempt: 4, revision: 2 });
    revision.facts.rows_hash = '17';
    await publish(system.env, revision);
    const third = csvOf({ day: after, rows: ROWS, seed: 8, firstId: 401, timeUnit: 'ms' });
    await writeDocument(system.vendor, after, third);
    const last = await system.backfill(day, after);
    expect([last.exit, last.json.unchanged, last.json.proved]).toEqual([0, 2, 1]);
    expect((await system.digests())[day]).toEqual(before[day]);
    const [quarantine] = await system.rows(`select reason from ledger where kind = 'quarantined'`);
    expect(quarantine.reason).toMatch(/^rows_hash: expected 17/);
  });

  test('whose events are not what its manifest says is found by verify --deep', async () => {
    await using system = await System.create();
    const [day, next] = dayNames('2024-08-01', 2);
    const forged = attemptOf(day, csvOf({ day, rows: ROWS, seed: 8, firstId: 1, timeUnit: 'ms' }));
    forged.facts.events_sha256 = 'cd'.repeat(32);
    await publish(system.env, forged);
    await writeDocument(system.vendor, next, csvOf({ day: next, rows: ROWS, seed: 8, firstId: 201, timeUnit: 'ms' }));
    expect((await system.backfill(next, next)).exit).toBe(0);
    const { exit, json } = await system.run(['verify', DATASET, '--deep']);
    expect(exit).toBe(1);
    expect(json.units).toMatchObject([
      { partition: day, state: 'quarantined', reason: expect.stringMatching(/^events_sha256: expected cdcd/) },
      { partition: next, state: 'proved' },
    ]);
  });
});

describe('an attempt at a range of heights', () => {
  // The recount selects rows by height, so that a row of another height passes it unseen.
  test('with a block of another height that its manifest does not count leaves no row of either', async () => {
    await using system = await KindSystem.create();
    const at = (height: number) => header(height, Date.parse('2026-01-01T00:00:00Z') + height * 1000);
    const of = (key: string, ...heights: number[]) => ({ dataset: HEADERS, key, events: heights.map(at) });
    const forged = { ...of('4', 4, 9), stated: [at(4)], source: { through_ms: Date.parse('2026-01-01T00:00:05Z') } };
    const good = { ...of('5', 5), source: { through_ms: Date.parse('2026-01-01T00:00:06Z') } };
    system.project([HEADERS]);
    const units = await system.ingest([HEADERS], [documentOf(forged), documentOf(good)]);
    expect(units.map(({ partition, state }) => [partition, state]).sort()).toEqual([
      ['4', 'quarantined'],
      ['5', 'proved'],
    ]);
    const { reason } = (await system.catalog.partition(HEADERS, '4'))!;
    expect(reason).toBe('rows of the partition: expected 2, found 1');
    expect(await system.rows(`select height from ${HEADERS.native.table}`)).toEqual([{ height: '5' }]);
  });
});

// Without the lock a command that looked at log and checkpoint in between saw a state that the commit changed.
test('an attempt is quarantined or refused only while nothing else holds the coverage', async () => {
  await using system = await System.create();
  const [proved, spoilt] = dayNames('2024-08-01', 2);
  const csv = csvOf({ day: proved, rows: ROWS, seed: 8, firstId: 1, timeUnit: 'ms' });
  await writeDocument(system.vendor, proved, csv);
  expect((await system.backfill(proved, proved)).exit).toBe(0);
  const quarantined = attemptOf(spoilt, csvOf({ day: spoilt, rows: ROWS, seed: 8, firstId: 201, timeUnit: 'ms' }));
  quarantined.facts.rows_hash = '17';
  const late = attemptOf(proved, csvOf({ day: proved, rows: ROWS + 1, seed: 9, firstId: 1, timeUnit: 'ms' }), {
    attempt: 2,
  });
  const same = attemptOf(proved, csv, { attempt: 3 });
  for (const attempt of [quarantined, late, same]) {
    const before = await system.rows('select * from checkpoints');
    await using holding = await connect({ url: system.env.databaseUrl, name: 'test of the coverage' });
    await holding.query('begin; select from coverage for update');
    await publish(system.env, attempt);
    const running = system.begin(['backfill', DATASET, '--from', proved, '--to', proved]);
    const waits = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
      and application_name like 'tidemark projector%'`;
    await eventually(async () => (await system.rows(waits)).length === 1, 'the projector waits for the coverage');
    expect(await system.rows('select * from checkpoints')).toEqual(before);
    await holding.query('rollback');
    await running.done;
  }
  expect(await system.rows('select partition_key, attempt, state from attempts order by 1, 2')).toEqual([
    { partition_key: proved, attempt: 1, state: 'proved' },
    { partition_key: proved, attempt: 2, state: 'refused' },
    { partition_key: proved, attempt: 3, state: 'refused' },
    { partition_key: spoilt, attempt: 1, state: 'quarantined' },
  ]);
});
