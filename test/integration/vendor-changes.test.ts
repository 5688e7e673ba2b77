/** What a vendor changes of days that are proved: how it is noticed, what is kept of it, and what is said of it. */
import { createHash } from 'node:crypto';
import { mkdir, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Catalog } from '../../shared/db/catalog.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import type { Instrument } from '../../shared/registry/instruments.ts';
import { alterations, alteredText, expectedChanges, readDiff } from '../support/altered-days.ts';
import { buildZip } from '../support/broken-zip.ts';
import type { Json } from '../support/command.ts';
import { csvOf, DATASET, DAY_MS, dayNames, documentPath, System, unitOf, writeDocument } from '../support/pipeline.ts';
import { sequence } from '../support/proof-log.ts';
import { runs, SEED } from '../support/seed.ts';
import { startServing } from '../support/serving.ts';
import { startVendorServer, type VendorServer } from '../support/vendor-server.ts';
import { VENDOR_A, VENDOR_B, VENDOR_C, VENDORS } from '../support/vendors.ts';

describe('what a vendor states of a document', () => {
  const DAY = '2024-01-05';
  let system: System;
  let server: VendorServer;
  beforeAll(async () => {
    system = await System.create();
    server = await startVendorServer(system.vendor, 'time');
  });
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  test.each([VENDOR_B, VENDOR_C])('is kept with it, and another process asks by it: $dataset', async (vendor) => {
    const settings = Object.fromEntries(Object.keys(vendor.settings('/')).map((name) => [name, server.url.href]));
    const path = vendor.path(DAY);
    const touch = (at: number) => utimes(join(system.vendor, path), new Date(at), new Date(at));
    await vendor.put(
      system.vendor,
      DAY,
      vendor.pack(DAY, vendor.plainDay({ day: DAY, rows: 20, seed: 1, firstId: 1 })),
    );
    const changedAt = Math.floor(Date.now() / 1000) * 1000 - DAY_MS;
    await touch(changedAt);
    const compare = async () => {
      const args = ['backfill', vendor.dataset, '--from', DAY, '--to', DAY, '--compare'];
      expect((await system.run(args, settings)).exit).toBe(0);
      return server.requests(path).at(-1)?.status;
    };
    expect(await compare()).toBe(200);
    const [{ document }] = await system.rows(
      `select document from attempts join datasets using (dataset_id) where key = $1`,
      [vendor.dataset],
    );
    expect(document.last_modified).toBe(new Date(changedAt).toUTCString());
    expect(Math.abs(document.fetched_ms - Date.now())).toBeLessThan(60_000);
    expect(await compare()).toBe(304);
    // The time is another one: the digest decides.
    await touch(changedAt + 5000);
    expect([await compare(), await compare()]).toEqual([200, 200]);
  });
});

describe.each(VENDORS)('repaired days of $dataset', (vendor) => {
  let system: System;
  beforeAll(async () => {
    system = await System.create();
  });
  afterAll(async () => await system?.[Symbol.asyncDispose]());

  test('are compared row by row with what is served, whatever was done to them', async () => {
    const settings = vendor.settings(system.vendor);
    let first = '2023-01-01';
    let firstId = 1;
    await fc.assert(
      fc.asyncProperty(fc.array(alterations, { minLength: 6, maxLength: 6 }), async (altered) => {
        const days = dayNames(first, altered.length + 1);
        first = days.pop()!;
        const texts = new Map<string, { before: string; after: string }>();
        for (const [index, day] of days.entries()) {
          const before = vendor.plainDay({ day, rows: 60, seed: firstId, firstId });
          firstId += 200;
          texts.set(day, { before, after: alteredText(vendor, before, altered[index]) });
          await vendor.put(system.vendor, day, vendor.pack(day, before));
        }
        const range = ['--from', days[0], '--to', days.at(-1)!];
        expect((await system.run(['backfill', vendor.dataset, ...range], settings)).exit).toBe(0);
        for (const [day, { after }] of texts) await vendor.put(system.vendor, day, vendor.pack(day, after));
        const { json } = await system.run(['backfill', vendor.dataset, ...range, '--compare'], settings);
        for (const [day, { before, after }] of texts) {
          const found = await system.rows(`select * from late_arrivals where partition_key = $1`, [day]);
          expect([day, found.length]).toEqual([day, before === after ? 0 : 1]);
          if (before === after) continue;
          const diff = await readDiff(join(system.env.dir, 'state', 'kept'), found[0]);
          const expected = await expectedChanges(vendor, before, after);
          expect(diff.changes).toEqual(expected);
          expect(diff.head).toMatchObject({
            proved: false,
            partition: day,
            added: expected.filter(({ kind }) => kind === 'added').length,
            removed: expected.filter(({ kind }) => kind === 'removed').length,
            found: { document: { sha256: found[0].document.sha256 } },
          });
          const state = unitOf(json, day).state;
          if (expected.length > 0) expect([day, state]).toEqual([day, 'refused']);
        }
        // The same documents again are known: nothing is found twice, and nothing is served anew.
        const before = await system.rows('select * from late_arrivals order by 1');
        await system.run(['backfill', vendor.dataset, ...range, '--compare'], settings);
        expect(await system.rows('select * from late_arrivals order by 1')).toEqual(before);
      }),
      { seed: SEED, numRuns: runs(8), endOnFailure: true },
    );
  });
});

describe('an archive that is altered under a follower', () => {
  const DAYS = dayNames('2023-05-01', 5);
  const VENDORS_HERE = [VENDOR_A, VENDOR_C];
  const datasets = VENDORS_HERE.map(({ dataset }) => dataset);
  /** Twenty a second. */
  const FAST = { SVC_FOLLOW_FILES_SECONDS: 3600, SVC_FOLLOW_OLD_DAYS_PER_HOUR: 72_000 };
  let system: System;
  let server: VendorServer;
  let settings: Record<string, string>;
  beforeAll(async () => {
    system = await System.create();
    server = await startVendorServer(system.vendor, 'etag');
    const locations = VENDORS_HERE.flatMap((vendor) => Object.keys(vendor.settings('/')));
    settings = Object.fromEntries(locations.map((name) => [name, server.url.href]));
    for (const vendor of VENDORS_HERE) for (const day of DAYS) await publish(vendor, day, 'usual');
    const backfilled = await system.run(['backfill', ...datasets, '--from', DAYS[0], '--to', DAYS.at(-1)!], settings);
    expect(backfilled.exit).toBe(0);
  });
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  const textOf = (vendor: (typeof VENDORS_HERE)[number], day: string) =>
    vendor.plainDay({ day, rows: 40, seed: 2, firstId: DAYS.indexOf(day) * 100 + 1 });
  const publish = async (vendor: (typeof VENDORS_HERE)[number], day: string, which: 'usual' | 'repaired') => {
    const text = textOf(vendor, day);
    const repaired = () => alteredText(vendor, text, { fates: [[500, 'priced']], added: 1, order: 'kept' });
    await vendor.put(system.vendor, day, vendor.pack(day, which === 'usual' ? text : repaired()));
  };
  const arrivals = () =>
    system.rows<Json>(
      `select revision_id, d.key, partition_key as day, rows_added::int4 as added, rows_removed::int4 as removed,
         rows_altered::int4 as altered, left_at is not null as has_left
       from late_arrivals join datasets d using (dataset_id) order by 2, 3`,
    );
  /** Every day is asked about from now on: twice, since what was asked before may be noted now. */
  const allAsked = async () => {
    for (let round = 0; round < 2; round++) {
      const [{ now }] = await system.rows<{ now: Date }>('select clock_timestamp() as now');
      const asked = async () =>
        (await system.rows(`select from partitions where state = 'proved' and asked_at > $1`, [now])).length;
      await expect.poll(asked, { timeout: 30_000 }).toBe(DAYS.length * VENDORS_HERE.length);
    }
  };

  test('every alteration is found once; documents that are as they were are not fetched; what is taken back has left', async () => {
    const running = system.begin(['follow', ...datasets], settings, FAST);
    using stopping = new DisposableStack();
    stopping.defer(() => running.stop());
    await allAsked();
    expect(await arrivals()).toEqual([]);
    const altered = [DAYS[1], DAYS[3]];
    for (const vendor of VENDORS_HERE) for (const day of altered) await publish(vendor, day, 'repaired');
    await expect.poll(async () => (await arrivals()).length, { timeout: 30_000 }).toBe(4);
    const found = await arrivals();
    expect(found.map(({ day }) => day)).toEqual([...altered, ...altered]);
    for (const one of found) {
      // Of exchange C, the tick of the row behind an altered price may be another one as well.
      expect(one).toMatchObject({ added: 1, removed: 0, has_left: false });
      expect(one.altered).toBeGreaterThanOrEqual(1);
    }
    const downloads = () =>
      server.requests().filter(({ path, status }) => status === 200 && !path.endsWith('CHECKSUM'));
    const before = downloads().length;
    await allAsked();
    expect([await arrivals(), downloads().length]).toEqual([found, before]);
    // A vendor that goes back to its old bytes, and repairs them again.
    for (const vendor of VENDORS_HERE) await publish(vendor, altered[0], 'usual');
    await allAsked();
    expect((await arrivals()).map(({ has_left }) => has_left)).toEqual([true, false, true, false]);
    for (const vendor of VENDORS_HERE) await publish(vendor, altered[0], 'repaired');
    await allAsked();
    expect(await arrivals()).toEqual(found);
    running.stop();
    await running.done;
  });

  test('a follower that is started again goes on where it was, and asks no more often', async () => {
    const asked = () =>
      system.rows<{ day: string; at: Date }>(
        `select partition_key as day, asked_at as at from partitions where dataset_id = 1 order by asked_at`,
      );
    await system.rows(`update partitions set asked_at = asked_at - interval '2 h'`);
    const [oldest, ...others] = await asked();
    const running = system.begin(['follow', DATASET], settings, { ...FAST, SVC_FOLLOW_OLD_DAYS_PER_HOUR: 1 });
    using stopping = new DisposableStack();
    stopping.defer(() => running.stop());
    await expect.poll(async () => (await asked()).at(-1)!.day).toBe(oldest.day);
    await sleep(500);
    expect((await asked()).slice(0, -1)).toEqual(others);
    running.stop();
    await running.done;
  });

  test('instruments take turns, however many days each has; the longest unasked day comes first', async () => {
    const [base, other] = await Promise.all([
      datasetOf(DATASET),
      new Catalog(system.client).instrument(datasetOf(DATASET), 'ETHUSDT' as Instrument),
    ]);
    await system.rows(
      `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, proved_at)
       values ($1, 'ETHUSDT:2023-01-01', 'proved', 1, 1, 0, 1, false, now()), ($1, 'ETHUSDT:2023-01-02', 'proved', 1, 1, 1, 2, false, now())`,
      [other.number],
    );
    const catalog = new Catalog(system.client);
    const turn = async () => {
      const { dataset, key } = (await catalog.longestUnasked([base, other], Date.now()))!;
      await catalog.noteAsked(dataset, key);
      return key;
    };
    const keys: string[] = [];
    for (let n = 0; n < 8; n++) keys.push(await turn());
    expect(keys.filter((_, n) => n % 2 === 0)).toEqual(['01', '02', '01', '02'].map((day) => `ETHUSDT:2023-01-${day}`));
    expect(new Set(keys.filter((_, n) => n % 2 === 1)).size).toBe(4);
    expect(await catalog.longestUnasked([base, other], 0)).toBeUndefined();
  });
});

test('days of a partition that was made of its month are fetched once, and then asked for', async () => {
  await using system = await System.create();
  await using server = await startVendorServer(system.vendor, 'etag');
  const settings = { SVC_EXCHANGE_A_BASE_URL: server.url.href };
  const days = dayNames('2023-02-01', 28);
  const texts = days.map((day, index) => csvOf({ day, rows: 5, seed: 2, firstId: 1 + 5 * index, timeUnit: 'ms' }));
  await writeDocument(system.vendor, '2023-02', texts.join(''));
  for (const [index, day] of days.entries()) await writeDocument(system.vendor, day, texts[index]);
  expect((await system.backfill(days[0], days[27], settings, ['--granularity', 'monthly'])).exit).toBe(0);
  for (let look = 0; look < 2; look++) {
    expect((await system.backfill(days[3], days[3], settings, ['--compare'])).json).toMatchObject({ unchanged: 1 });
    expect(server.requests(documentPath(days[3])).map(({ status }) => status)).toEqual([200]);
  }
  expect(await system.rows('select * from late_arrivals')).toEqual([]);
});

test('another instrument has its own differences', async () => {
  await using system = await System.create();
  await using serving = await startServing({
    databaseUrl: system.env.databaseUrl,
    settings: { SVC_STATE_DIR: join(system.env.dir, 'state'), SVC_EXCHANGE_A_ALSO: 'ETHUSDT' },
  });
  const DAY = '2024-01-05';
  const settings = { SVC_EXCHANGE_A_ALSO: 'ETHUSDT' };
  const stem = `ETHUSDT-trades-${DAY}`;
  const folder = join(system.vendor, 'spot/daily/trades/ETHUSDT');
  const put = async (text: string) => {
    const zip = buildZip({ members: [{ name: `${stem}.csv`, content: Buffer.from(text) }] });
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, `${stem}.zip`), zip);
    await writeFile(join(folder, `${stem}.zip.CHECKSUM`), createHash('sha256').update(zip).digest('hex'));
  };
  const text = VENDOR_A.plainDay({ day: DAY, rows: 30, seed: 2, firstId: 1 });
  const repaired = alteredText(VENDOR_A, text, { fates: [[500, 'priced']], added: 1, order: 'kept' });
  await writeDocument(system.vendor, DAY, text);
  await put(text);
  const args = ['--instrument', 'all'];
  expect((await system.backfill(DAY, DAY, settings, args)).exit).toBe(0);
  await put(repaired);
  await system.backfill(DAY, DAY, settings, [...args, '--compare']);
  await sequence(system.env);
  const list = async (query: string) =>
    (await serving.send({ method: 'GET', path: `/v1/revisions?dataset=${DATASET}${query}` })).json.revisions;
  expect((await list('')).map(({ state }: Json) => state)).toEqual(['served']);
  const [, found] = await list('&instrument=ETHUSDT');
  expect(found).toMatchObject({ state: 'refused', instrument: 'ETHUSDT', partition: `ETHUSDT:${DAY}` });
  const diff = await serving.send({ method: 'GET', path: `/v1/revisions/${found.id}/diff` });
  const [head, ...rows] = diff.text
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(head).toMatchObject({ proved: false, instrument: 'ETHUSDT', added: 1, removed: 0, altered: 1 });
  const expected = await expectedChanges(VENDOR_A, text, repaired);
  expect(rows).toEqual(expected);
});
