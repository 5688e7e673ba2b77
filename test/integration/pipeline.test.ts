/** From a vendor's document to proved rows, through real servers and the real command. */
import { createHash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { unpackEventId } from '../../shared/registry/event-id.ts';
import type { Json } from '../support/command.ts';
import {
  csvOf,
  DATASET,
  DAY_MS,
  documentPath,
  filesBelow,
  SYMBOL,
  System,
  unitOf,
  writeDocument,
} from '../support/pipeline.ts';
import { DAYS, FROM, TO, writeDays } from '../support/three-days.ts';
import { compareNative, duckdb, secondsOfFiles, secondsStored, tradesOf } from '../support/trade-oracle.ts';
import { startVendorServer } from '../support/vendor-server.ts';

describe('a backfill', () => {
  let system: System;
  let csv: string[];
  let first: Awaited<ReturnType<System['run']>>;
  let digests: Json;
  beforeAll(async () => {
    system = await System.create();
    csv = await writeDays(system);
    first = await system.backfill(FROM, TO);
    digests = await system.digests();
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('proves every day and says so', () => {
    expect(first).toMatchObject({ exit: 0, json: expect.anything() });
    const { elapsed_ms, rows_per_second, units, feeds, ...rest } = first.json;
    expect(rest).toEqual({
      command: 'backfill',
      feed: DATASET,
      ok: true,
      interrupted: false,
      proved: 3,
      unchanged: 0,
      refused: 0,
      quarantined: 0,
      failed: 0,
      rows: 100_000,
    });
    expect(elapsed_ms).toBeGreaterThan(0);
    expect(rows_per_second).toBeGreaterThan(0);
    expect(units).toEqual(DAYS.map(({ day, rows }) => ({ dataset: DATASET, partition: day, state: 'proved', rows })));
    // One object on stdout, nothing worth a warning on stderr; but a machine on which a projector takes ten seconds to start.
    expect(first.stdout.trim().split('\n')).toHaveLength(1);
    expect(first.stderr.split('\n').filter((line) => line !== '' && !line.includes('wait for their proof'))).toEqual(
      [],
    );
  });

  test('stores exactly the rows of the files, as DuckDB reads them', async () => {
    expect(await compareNative(system, csv, system.env.dir)).toEqual([100_000, 100_000, 0, 0]);
  });

  test('stores aligned rows equal to what DuckDB computes, for all seconds', async () => {
    const expected = await secondsOfFiles(csv);
    expect(expected.length).toBeGreaterThan(20_000);
    const stored = await secondsStored(system);
    expect(stored.length).toBe(expected.length);
    const differing = stored.filter((row, index) => row.some((cell, column) => cell !== expected[index][column]));
    expect(differing).toEqual([]);
  });

  test('leaves manifests that say what the files hold, and recounts that agree', async () => {
    for (const [index, { day, rows, firstId = 1 }] of DAYS.entries()) {
      const [sums] = await duckdb(
        `select sum(price), sum(qty), sum(quote), min(ms), max(ms) from ${tradesOf([csv[index]])}`,
      );
      const [price, quantity, quote_quantity] = sums.map((sum) => sum!.replace('.', '').replace(/^0+/, ''));
      const payload = csvOf({ ...DAYS[index], header: false });
      expect(digests[day]).toMatchObject({
        revision: 1,
        rows: String(rows),
        offsets: `[${firstId},${firstId + rows})`,
        first_offset: String(firstId),
        last_offset: String(firstId + rows - 1),
        gaps: 0,
        totals: { price, quantity, quote_quantity },
        first_ms: Number(sums[3]),
        last_ms: Number(sums[4]),
        events_sha256: createHash('sha256').update(payload).digest('hex'),
      });
      const { recount, rows_hash, aligned_hash, aligned_rows } = digests[day];
      expect(recount).toMatchObject({ rows, rows_hash, aligned_events: rows, aligned_hash });
      expect(String(recount.aligned_rows)).toBe(aligned_rows);
    }
  });

  test('indexes every frame: where it lies in the log and which rows it holds', async () => {
    const log = await system.log();
    for (const { day, rows, firstId = 1 } of DAYS) {
      const frames = await system.rows('select * from frames where partition_key = $1 order by stream_sequence', [day]);
      let next = firstId;
      for (const frame of frames) {
        const { header, raw, subject } = log[Number(frame.stream_sequence) - 1];
        expect(subject).toBe(`${DATASET}.${day}.1.${header.frame}`);
        expect([frame.row_base, frame.first_offset]).toEqual([String(next - firstId), String(next)]);
        next += frame.rows;
        expect(frame.last_offset).toBe(String(next - 1));
        const lines = raw.toString().split('\n').slice(0, -1);
        expect(lines).toHaveLength(frame.rows);
        expect(lines[0].startsWith(`${frame.first_offset},`)).toBe(true);
        expect(lines.at(-1)?.startsWith(`${frame.last_offset},`)).toBe(true);
      }
      expect(next).toBe(firstId + rows);
    }
    const referenced = await system.rows('select 1 from frames');
    expect(log.filter(({ header }) => header.kind === 'frame')).toHaveLength(referenced.length);
    expect(log.filter(({ manifest }) => manifest !== undefined)).toHaveLength(DAYS.length);
  });

  test('leaves a system at rest: all read, nothing unreferenced, no lock, no transaction, no file', async () => {
    const status = await system.status();
    expect(status).toMatchObject({
      dataset: DATASET,
      coverage_version: 3,
      synthetic: false,
      rows: 100_000,
      partitions: { missing: 0, publishing: 0, published: 0, proved: 3, quarantined: 0 },
      proved_ranges: [
        {
          source: 'exchange_a',
          from: '2024-03-01',
          to: '2024-03-03',
          from_utc: '2024-03-01T00:00:00.000Z',
          to_utc_exclusive: '2024-03-04T00:00:00.000Z',
        },
      ],
      gaps: [],
      proved_through_utc: '2024-03-04T00:00:00.000Z',
      offset_breaks: [],
      unproved: [],
      late_arrivals: [],
    });
    const messages = (await system.log()).length;
    expect(status.log).toMatchObject({
      messages,
      last_sequence: messages,
      checkpoint_sequence: messages,
      lag: { frames: 0, events: 0, event_time_seconds: 0, oldest_seconds: 0 },
      unreferenced_messages: 0,
    });
    expect(await system.rows('select * from ledger')).toEqual([]);
    expect(await system.leftovers()).toEqual([]);
    expect((await filesBelow(join(system.env.dir, 'state'))).filter((name) => name.includes('spool/'))).toEqual([]);
  });

  test('makes one chunk a day, each with the one unique index that the loader builds', async () => {
    const chunks = await system.rows(
      `select (select count(*)::int4 from pg_index i where i.indrelid = format('%I.%I', chunk_schema, chunk_name)::regclass
         and i.indisunique and i.indisvalid) as uniques from timescaledb_information.chunks where hypertable_name = $1`,
      [DATASET],
    );
    expect(chunks).toEqual([{ uniques: 1 }, { uniques: 1 }, { uniques: 1 }]);
  });

  test('run again finds nothing to do, and asks nobody; with --compare it asks for digests alone', async () => {
    await using server = await startVendorServer(system.vendor);
    const messages = (await system.log()).length;
    for (const [more, asked] of [
      [[], []],
      [['--compare'], DAYS.map(({ day }) => `${documentPath(day)}.CHECKSUM`)],
    ]) {
      const again = await system.backfill(FROM, TO, { SVC_EXCHANGE_A_BASE_URL: server.url.href }, more);
      expect(again.exit).toBe(0);
      expect(again.json).toMatchObject({ ok: true, proved: 0, unchanged: 3, rows: 0 });
      expect(again.json.units).toEqual(
        DAYS.map(({ day, rows }) => ({ dataset: DATASET, partition: day, state: 'unchanged', rows })),
      );
      expect(server.requests().map(({ path }) => path)).toEqual(asked);
    }
    expect((await system.log()).length).toBe(messages);
    expect(await system.digests()).toEqual(digests);
  });

  test('takes a document packed anew for what it is: the same rows', async () => {
    const [day] = DAYS;
    const before = await system.rows('select manifest from partitions where partition_key = $1', [day.day]);
    const sha256 = await writeDocument(system.vendor, day.day, csvOf(day), { member: { method: 0 } });
    expect(sha256).not.toBe(before[0].manifest.document.sha256);
    const again = await system.backfill(day.day, day.day, {}, ['--compare']);
    expect([again.exit, unitOf(again.json, day.day)]).toEqual([
      0,
      { dataset: DATASET, partition: day.day, state: 'unchanged', rows: day.rows },
    ]);
    expect(await system.digests()).toEqual(digests);
    expect(await system.rows('select * from ledger')).toEqual([]);
  });

  test('gives every event back from the log: its bytes and their digest', async () => {
    for (const { day, rows, firstId = 1, ...rest } of DAYS.slice(0, 2)) {
      const lines = csvOf({ day, rows, firstId, ...rest }).split('\n');
      for (const offset of [0, Math.floor(rows / 2), rows - 1]) {
        const { exit, json } = await system.run(['event', DATASET, String(firstId + offset)]);
        expect(exit).toBe(0);
        expect(json).toMatchObject({
          command: 'event',
          ok: true,
          dataset: DATASET,
          partition: day,
          offset: String(firstId + offset),
          payload_raw: lines[offset],
          payload_sha256_raw: createHash('sha256').update(lines[offset]).digest('hex'),
          document: { name: `${SYMBOL}-trades-${day}.zip`, granularity: 'daily' },
          synthetic: false,
        });
        expect(unpackEventId(json.event_id)).toEqual({
          datasetNumber: 1,
          partition: day,
          offset: String(firstId + offset),
        });
      }
    }
    for (const unknown of ['0', '100001', '99999999999', 'x', '-1', '1.5', '1; drop table frames']) {
      const { exit, json } = await system.run(['event', DATASET, '--', unknown]);
      expect([unknown, exit, json.error?.code]).toEqual([unknown, 1, 'EVENT_UNKNOWN']);
    }
  });
});

describe('a document that changed after its day was proved', () => {
  let system: System;
  const [day, next] = DAYS;
  const price = (line: string) => line.split(',')[1];
  let changed: string;
  let before: Json;
  beforeAll(async () => {
    system = await System.create();
    await writeDays(system, [day, next]);
    expect((await system.backfill(day.day, next.day)).exit).toBe(0);
    before = await system.digests();
    const lines = csvOf(day).split('\n');
    lines[7] = lines[7].replace(price(lines[7]), (Number(price(lines[7])) + 1).toFixed(8));
    changed = lines.join('\n');
    await writeDocument(system.vendor, day.day, changed);
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('is refused loudly, recorded, and changes nothing', async () => {
    const messages = (await system.log()).length;
    const { exit, json } = await system.backfill(day.day, next.day, {}, ['--compare']);
    expect(exit).toBe(1);
    expect(json).toMatchObject({ ok: false, refused: 1, unchanged: 1 });
    expect(unitOf(json, day.day)).toMatchObject({ state: 'refused', code: 'PARTITION_LATE_ARRIVAL' });
    expect(unitOf(json, day.day).reason).toContain('rows_hash');
    expect(unitOf(json, day.day).remedy).toContain('reingest');
    expect(await system.digests()).toEqual(before);
    expect((await system.log()).length).toBe(messages);
    const ledger = await system.rows('select partition_key, kind, details from ledger');
    expect(ledger).toMatchObject([{ partition_key: day.day, kind: 'late_arrival_refused' }]);
    expect(ledger[0].details.differing).toEqual(['rows_hash', 'events_sha256', 'totals.price']);
    const status = await system.status();
    expect(status.late_arrivals).toMatchObject([{ partition: day.day }]);
    expect(status.partitions).toMatchObject({ proved: 2, quarantined: 0 });
  });

  test('replaces the day only when told to, as revision 2; readers see the old rows until it is proved', async () => {
    const old = before[day.day].rows_hash;
    const window = [Date.parse(`${day.day}T00:00:00Z`), Date.parse(`${day.day}T00:00:00Z`) + DAY_MS];
    const running = system.start([
      'reingest',
      DATASET,
      '--from',
      day.day,
      '--to',
      day.day,
      '--reason',
      "the vendor's correction",
    ]);
    let ended = false;
    running.done.finally(() => {
      ended = true;
    });
    const seen: { sum: string; rows: string; seconds: string; covered: boolean; revision: number }[] = [];
    while (!ended) {
      // As a reader does it: coverage first, all in one snapshot.
      await system.client.query('begin isolation level repeatable read read only');
      const [{ covered, revision }] = await system.rows(
        `select proved @> int8range($1, $2) as covered, (select revision from partitions where from_ms = $1) as revision from coverage where dataset_id = 1`,
        window,
      );
      const [{ sum, rows }] = await system.rows(
        `select sum(price::numeric)::text as sum, count(*) as rows from ${DATASET} where "timestamp" >= $1 and "timestamp" < $2`,
        window,
      );
      const [{ seconds }] = await system.rows(
        `select sum(trade_count) as seconds from canonical_aligned_1s_aggregates
         where aligned_at_utc >= to_timestamp($1 / 1000.0) and aligned_at_utc < to_timestamp($2 / 1000.0)`,
        window,
      );
      await system.client.query('commit');
      seen.push({ sum, rows, seconds, covered, revision });
    }
    const { exit, json } = await running.done;
    expect([exit, json.command, unitOf(json, day.day)]).toEqual([
      0,
      'reingest',
      { dataset: DATASET, partition: day.day, state: 'proved', rows: day.rows },
    ]);

    const views = [...new Set(seen.map((view) => JSON.stringify(view)))].map((text) => JSON.parse(text));
    expect(seen.length).toBeGreaterThan(3);
    expect(views[0]).toMatchObject({ revision: 1 });
    expect(views.length).toBeLessThanOrEqual(2);
    for (const view of views) {
      expect(view).toMatchObject({ rows: String(day.rows), seconds: String(day.rows), covered: true });
    }
    if (views.length === 2) {
      expect(views[1].revision).toBe(2);
      expect(Math.round(Number(views[1].sum) - Number(views[0].sum))).toBe(1);
    }

    const after = await system.digests();
    expect(after[next.day]).toEqual(before[next.day]);
    expect(after[day.day].revision).toBe(2);
    expect(after[day.day].rows_hash).not.toBe(old);
    expect(after[day.day].events_sha256).toBe(createHash('sha256').update(changed).digest('hex'));
    const path = join(system.env.dir, 'changed.csv');
    await writeFile(path, changed);
    expect(await compareNative(system, [path, join(system.env.dir, `${next.day}.csv`)], system.env.dir)).toEqual([
      60_000, 60_000, 0, 0,
    ]);
    const ledger = await system.rows(`select kind, reason from ledger where kind <> 'late_arrival_refused' order by 1`);
    expect(ledger).toEqual([
      { kind: 'reingest_started', reason: "the vendor's correction" },
      { kind: 'revision_proved', reason: expect.stringContaining('2') },
    ]);
    const event = await system.run(['event', DATASET, '8']);
    expect(event.json.payload_raw).toBe(changed.split('\n')[7]);
  });

  test('is then the one that is compared with', async () => {
    const compared = await system.backfill(day.day, next.day, {}, ['--compare']);
    expect(compared.json).toMatchObject({ ok: true, unchanged: 2 });
    const deep = await system.run(['verify', DATASET, '--deep']);
    expect([deep.exit, deep.json.units.map((each: Json) => each.state)]).toEqual([0, ['proved', 'proved']]);
    const replay = await system.run(['replay', DATASET]);
    expect([replay.exit, replay.json.units.map((each: Json) => each.state)]).toEqual([0, ['identical', 'identical']]);
  });
});
