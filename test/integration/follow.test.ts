/** `follow` of file days, and what starts it again: pauses that grow, others that never notice, faults that are over. */
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { keepRestarting, type Pauses } from '../../pipelines/cli/commands/follow.ts';
import type { Json } from '../support/command.ts';
import { csvOf, DATASET, DAY_MS, dayNames, documentPath, System, unitOf, writeDocument } from '../support/pipeline.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { startVendorServer, type VendorServer } from '../support/vendor-server.ts';
import { VENDOR_A, VENDORS, type Vendor } from '../support/vendors.ts';

describe('what failed starts again', () => {
  const PAUSES: Pauses = { firstMs: 4, longestMs: 30, forgottenMs: 60_000, jitter: 0.2 };

  async function restarted(times: number, pauses: Pauses, work: (turn: number) => Promise<void>) {
    const ending = new AbortController();
    const told: { failures: number; waitMs: number; atMs: number }[] = [];
    const starts: number[] = [];
    await keepRestarting(
      async () => {
        starts.push(performance.now());
        if (starts.length > times) return ending.abort();
        await work(starts.length);
        throw new Error('again');
      },
      {
        signal: ending.signal,
        pauses,
        onFailure: async ({ failures, waitMs }) => void told.push({ failures, waitMs, atMs: performance.now() }),
      },
    );
    return { told, starts };
  }

  test('after pauses that double up to the longest, each a fifth more or less', async () => {
    const { told, starts } = await restarted(6, PAUSES, async () => {});
    expect(told.map(({ failures }) => failures)).toEqual([1, 2, 3, 4, 5, 6]);
    for (const [index, expected] of [4, 8, 16, 30, 30, 30].entries()) {
      const { waitMs, atMs } = told[index];
      expect(Math.abs(waitMs - expected)).toBeLessThanOrEqual(expected * PAUSES.jitter + 1);
      // Node counts a timer from the last turn of its event loop, so that it may fire some milliseconds early.
      expect(starts[index + 1] - atMs).toBeGreaterThanOrEqual(waitMs / 2);
    }
  });

  test('a fault long after the last one counts as the first', async () => {
    let now = 0;
    using clock = vi.spyOn(performance, 'now').mockImplementation(() => now);
    const { told } = await restarted(5, { ...PAUSES, forgottenMs: 40 }, async (turn) => {
      now += turn === 4 ? 41 : 40;
    });
    expect(clock).toHaveBeenCalled();
    expect(told.map(({ failures }) => failures)).toEqual([1, 2, 3, 1, 2]);
  });

  test('being told to stop ends the pause, whatever is left of it', async () => {
    const ending = new AbortController();
    let starts = 0;
    const pauses = { ...PAUSES, firstMs: 3_600_000, longestMs: 3_600_000 };
    const onFailure = async () => void setTimeout(() => ending.abort(), 1);
    await keepRestarting(
      async () => {
        starts++;
        throw new Error('again');
      },
      { signal: ending.signal, pauses, onFailure },
    );
    expect(starts).toBe(1);
  });
});

describe('an exchange', () => {
  const today = Math.floor(Date.now() / DAY_MS) * DAY_MS;
  const [FIRST, LAST] = dayNames(new Date(today - 2 * DAY_MS).toISOString().slice(0, 10), 2);
  const put = (day: string, firstId: number) =>
    writeDocument(system.vendor, day, csvOf({ day, rows: 300, seed: firstId, firstId, timeUnit: 'ms' }));
  let system: System;
  let vendor: VendorServer;
  beforeAll(async () => {
    system = await System.create();
    await put(FIRST, 1);
    vendor = await startVendorServer(system.vendor);
  });
  afterAll(async () => {
    await vendor?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  const newest = async (): Promise<Json> =>
    (await system.rows(`select * from runs where kind = 'follow' order by run_id desc limit 1`))[0];
  const states = async () => {
    const rows = await system.rows<{ day: string }>(
      `select partition_key as day from partitions where state = 'proved'`,
    );
    return rows.map(({ day }) => day).sort();
  };
  const path = documentPath(LAST);

  test('is asked for its latest days until they are there; a fault is told until it answers again, day or no day', async () => {
    const settings = {
      SVC_EXCHANGE_A_BASE_URL: vendor.url.href,
      ...limitsEnv({ sourceAttempts: 1 }),
      SVC_STATE_DIR: join(system.env.dir, 'state'),
    };
    expect((await system.backfill(FIRST, FIRST, settings)).exit).toBe(0);
    const running = system.begin(['follow', DATASET], settings, { SVC_FOLLOW_FILES_SECONDS: 0.05 });
    // The last day is not published yet, which is no fault.
    await expect.poll(() => vendor.requests(path).length).toBeGreaterThan(1);
    expect(await newest()).toMatchObject({ state: 'running', failures: 0, fault: null });
    vendor.fail(path, { kind: 'status', status: 500 });
    await expect.poll(async () => (await newest()).failures).toBeGreaterThan(1);
    expect((await newest()).fault).toContain('SOURCE_UNREACHABLE');
    // It answers again, and has no new day yet: this was a failure until it had one.
    vendor.reset();
    await expect.poll(async () => (await newest()).failures).toBe(0);
    expect((await newest()).fault).toBeNull();
    await put(LAST, 301);
    await expect.poll(states).toEqual([FIRST, LAST]);
    running.stop();
    const { json } = await running.done;
    // What is not there yet is no failure.
    const refused = json.units.filter(({ code }: Json) => code !== undefined).map(({ code }: Json) => code);
    expect([...new Set(refused)]).toEqual(['SOURCE_UNREACHABLE']);
  });
});

describe("yesterday's document", () => {
  const DAY = new Date(Date.now() - DAY_MS).toISOString().slice(0, 10);
  const datasets = VENDORS.map(({ dataset }) => dataset);
  let system: System;
  let server: VendorServer;
  let settings: Record<string, string>;
  beforeAll(async () => {
    system = await System.create();
    server = await startVendorServer(system.vendor, 'etag');
    const locations = VENDORS.flatMap((vendor) => Object.keys(vendor.settings('/')));
    settings = Object.fromEntries(locations.map((name) => [name, server.url.href]));
  });
  afterAll(async () => {
    await server?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  /** Has every vendor publish so many rows of the day, in one of two archives. */
  const publish = async (rows: number, packing: 'usual' | 'other' = 'usual') => {
    for (const vendor of VENDORS) {
      const text = vendor.plainDay({ day: DAY, rows, seed: 1, firstId: 1 });
      const other = () =>
        vendor.archive === 'zip' ? vendor.pack(DAY, text, { method: 0 }) : gzipSync(text, { level: 9 });
      await vendor.put(system.vendor, DAY, packing === 'usual' ? vendor.pack(DAY, text) : other());
    }
  };
  const downloads = (vendor: Vendor) => server.requests(vendor.path(DAY)).filter(({ status }) => status === 200).length;
  /** How often the vendor was asked without sending the document. */
  const asks = (vendor: Vendor) =>
    vendor === VENDOR_A
      ? server.requests(`${vendor.path(DAY)}.CHECKSUM`).length
      : server.requests(vendor.path(DAY)).filter(({ status }) => status === 304).length;
  /** Each of the vendors is asked several times from now on. */
  const askedOften = async (...vendors: Vendor[]) => {
    const before = vendors.map(asks);
    await expect.poll(() => vendors.every((vendor, index) => asks(vendor) > before[index] + 2)).toBe(true);
  };
  /** Has every vendor publish so many rows, which are fetched, and then asked for without being fetched. */
  const replaced = async (...[rows, packing]: Parameters<typeof publish>) => {
    const before = VENDORS.map(downloads);
    await publish(rows, packing);
    await expect.poll(() => VENDORS.every((vendor, index) => downloads(vendor) > before[index])).toBe(true);
    await askedOften(...VENDORS);
    const after = VENDORS.map(downloads);
    await askedOften(...VENDORS);
    expect(VENDORS.map(downloads)).toEqual(after);
  };
  const late = async () => {
    const rows = await system.rows<{ n: number }>(
      `select d.key, count(*)::int4 as n from ledger join datasets d using (dataset_id)
       where kind = 'late_arrival_refused' and partition_key = $1 group by 1 order by 1`,
      [DAY],
    );
    return rows.map(({ n }) => n);
  };

  test('that is replaced while it is followed is a late arrival once; what is as it was is not fetched', async () => {
    await publish(40);
    // From 16:00 on, the last file day of exchange B is today's, and a follower that knows no day begins with it.
    expect((await system.run(['backfill', ...datasets, '--from', DAY, '--to', DAY], settings)).exit).toBe(0);
    const running = system.begin(['follow', ...datasets], settings, { SVC_FOLLOW_FILES_SECONDS: 0.05 });
    using stopping = new DisposableStack();
    stopping.defer(() => running.stop());
    await expect.poll(async () => (await system.rows(`select from partitions where state = 'proved'`)).length).toBe(3);
    await askedOften(...VENDORS);
    const fetched = VENDORS.map(downloads);
    await askedOften(...VENDORS);
    expect([VENDORS.map(downloads), await late()]).toEqual([fetched, []]);
    await replaced(80);
    expect(await late()).toEqual([1, 1, 1]);
    // It is a fault of the feed at the look that finds it alone.
    const faults = async () => await system.rows(`select failures, fault from runs where kind = 'follow'`);
    await expect.poll(faults).toEqual(datasets.map(() => ({ failures: 0, fault: null })));
    // The rows that were refused, then those that are proved, in other archives.
    await replaced(80, 'other');
    await replaced(40, 'other');
    running.stop();
    const { json } = await running.done;
    expect(await late()).toEqual([1, 1, 1]);
    expect(json.refused).toBe(3);
    // A look may meet an archive before the vendor replaced the checksum file beside it.
    const failed = json.units.filter(({ state }: Json) => state === 'failed').map(({ code }: Json) => code);
    expect(new Set([...failed, 'SOURCE_CHECKSUM_MISMATCH'])).toEqual(new Set(['SOURCE_CHECKSUM_MISMATCH']));
    const status = await system.status();
    expect([status.late_arrivals_total, status.late_arrivals[0].partition]).toEqual([1, DAY]);
  });

  test('is compared by a backfill without another entry, and is a late arrival again once an operator replaced it', async () => {
    await publish(80);
    const before = VENDORS.map(downloads);
    const range = ['--from', DAY, '--to', DAY];
    const compared = await system.run(['backfill', ...datasets, ...range, '--compare'], settings);
    expect(compared.json.units).toMatchObject(
      datasets.map(() => ({ state: 'refused', code: 'PARTITION_LATE_ARRIVAL', repeated: true })),
    );
    expect(VENDORS.map(downloads)).toEqual(before);
    expect(await late()).toEqual([1, 1, 1]);
    for (const [index, rows] of [40, 80].entries()) {
      expect((await system.reingest(DAY, DAY, 'the vendor republished the day', settings)).exit).toBe(0);
      await publish(rows);
      const { json } = await system.run(['backfill', DATASET, ...range, '--compare'], settings);
      expect(unitOf(json, DAY)).toMatchObject({ state: 'refused', reason: expect.stringContaining('rows') });
      expect([unitOf(json, DAY).repeated, await late()]).toEqual([undefined, [2 + index, 1, 1]]);
    }
  });

  test('that is unchanged says nothing of another day: the fault of that one stays', async () => {
    const [proved, faulty] = dayNames(new Date(Date.parse(DAY) - 2 * DAY_MS).toISOString().slice(0, 10), 2);
    const csv = csvOf({ day: proved, rows: 40, seed: 1, firstId: 1000, timeUnit: 'us' });
    await writeDocument(system.vendor, proved, csv);
    await publish(80);
    for (const day of [proved, DAY]) expect((await system.backfill(day, day, settings)).exit).toBe(0);
    server.fail(documentPath(faulty), { kind: 'status', status: 500 });
    const limits = { ...settings, ...limitsEnv({ sourceAttempts: 1 }) };
    const running = system.begin(['follow', DATASET], limits, { SVC_FOLLOW_FILES_SECONDS: 0.05 });
    using stopping = new DisposableStack();
    stopping.defer(() => running.stop());
    const newest = async (): Promise<Json> =>
      (await system.rows('select failures, fault from runs order by run_id desc limit 1'))[0];
    await askedOften(VENDOR_A);
    await expect.poll(async () => (await newest()).failures).toBeGreaterThan(2);
    expect((await newest()).fault).toContain('SOURCE_UNREACHABLE');
    server.reset();
    await expect.poll(newest).toEqual({ failures: 0, fault: null });
    running.stop();
    await running.done;
  });
});
