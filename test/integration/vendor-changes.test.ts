/** What a vendor changes of days that are proved: how it is noticed, what is kept of it, and what is said of it. */
import { utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DAY_MS, System } from '../support/pipeline.ts';
import { startVendorServer, type VendorServer } from '../support/vendor-server.ts';
import { VENDOR_B, VENDOR_C } from '../support/vendors.ts';

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
