/** What a vendor changes of days that are proved: how it is noticed, what is kept of it, and what is said of it. */
import { utimes } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { alterations, alteredText, expectedChanges, readDiff } from '../support/altered-days.ts';
import { DAY_MS, dayNames, System, unitOf } from '../support/pipeline.ts';
import { runs, SEED } from '../support/seed.ts';
import { startVendorServer, type VendorServer } from '../support/vendor-server.ts';
import { VENDOR_B, VENDOR_C, VENDORS } from '../support/vendors.ts';

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
