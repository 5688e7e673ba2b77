/** What an operator has of a backfill: its plan, its holder, what Ctrl-C leaves, several feeds at once. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { failedUnit, latestRuns, openRuns } from '../../shared/db/runs.ts';
import type { Json } from '../support/command.ts';
import { dayNames, filesBelow, System } from '../support/pipeline.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { startVendorServer } from '../support/vendor-server.ts';
import { VENDORS } from '../support/vendors.ts';

const DAYS = dayNames('2024-03-01', 6);
const ROWS = 200;
const [A, B, C] = VENDORS;

let system: System;
const settings: Record<string, string> = {};
const baseOf = (dataset: string) => join(system.env.dir, dataset);

beforeAll(async () => {
  system = await System.create();
  for (const vendor of VENDORS) {
    const base = baseOf(vendor.dataset);
    Object.assign(settings, vendor.settings(base));
    for (const [index, day] of DAYS.entries()) {
      const content = { day, rows: ROWS, seed: index + 1, firstId: 1 + index * 10_000 };
      await vendor.put(base, day, vendor.pack(day, vendor.plainDay(content)));
    }
  }
});
afterAll(() => system[Symbol.asyncDispose]());

const backfill = (feeds: readonly string[], more: readonly string[] = [], env = {}) =>
  system.run(['backfill', ...feeds, ...more], { ...settings, ...env });
const days = (from: number, to: number) => ['--from', DAYS[from], '--to', DAYS[to]];

describe('the plan', () => {
  test('is what is expected less what is proved, holes included; --dry-run changes nothing', async () => {
    expect((await backfill([A.dataset], days(0, 0))).exit).toBe(0);
    expect((await backfill([A.dataset], days(3, 3))).exit).toBe(0);
    const { exit, json } = await backfill([A.dataset], [...days(0, 5), '--dry-run']);
    expect([exit, json.plans[0].partitions]).toEqual([0, { fetch: 4, replace: 0, compare: 0, skip: 2, held: 0 }]);
    expect(json.plans[0].runs.map(({ action, from, to }: Json) => [action, from, to])).toEqual([
      ['skip', DAYS[0], DAYS[0]],
      ['fetch', DAYS[1], DAYS[2]],
      ['skip', DAYS[3], DAYS[3]],
      ['fetch', DAYS[4], DAYS[5]],
    ]);
    expect(Object.keys(await system.digests())).toEqual([DAYS[0], DAYS[3]]);
  });

  test('without a first day goes on from the first there is; without anything known it asks for one', async () => {
    const { json } = await backfill([A.dataset], ['--to', DAYS[5], '--dry-run']);
    expect(json.plans[0].runs[0]).toMatchObject({ action: 'skip', from: DAYS[0] });
    const unknown = await backfill([B.dataset], ['--dry-run']);
    expect([unknown.exit, unknown.json.error.code]).toEqual([2, 'USAGE']);
  });

  test('that reingests says so', async () => {
    const { json } = await system.run(['reingest', A.dataset, ...days(0, 1), '--reason', 'x', '--dry-run'], settings);
    expect(json.plans[0].partitions).toMatchObject({ replace: 2, skip: 0 });
  });
});

test('all feeds at once: a poisoned day and a feed whose vendor is away stop nobody else', async () => {
  await B.put(baseOf(B.dataset), DAYS[2], B.pack(DAYS[2], 'this is no trade file\n'));
  const { exit, json } = await backfill(['all'], days(0, 5), {
    SVC_EXCHANGE_C_BASE_URL: 'http://127.0.0.1:9/',
    ...limitsEnv({ sourceAttempts: 1 }),
  });
  expect(exit).toBe(1);
  const counts = Object.fromEntries(
    json.feeds.map(({ feed, planned, proved, unchanged, failed }: Json) => [
      feed,
      { planned, proved, unchanged, failed },
    ]),
  );
  expect(counts).toEqual({
    [A.dataset]: { planned: 6, proved: 4, unchanged: 2, failed: 0 },
    [B.dataset]: { planned: 6, proved: 5, unchanged: 0, failed: 1 },
    [C.dataset]: { planned: 6, proved: 0, unchanged: 0, failed: 6 },
  });
  const bad = json.units.find(({ state, dataset }: Json) => state === 'failed' && dataset === B.dataset);
  expect([bad.partition, bad.code]).toEqual([DAYS[2], 'SOURCE_DOCUMENT_INVALID']);
  expect((await openRuns(system.client)).length).toBe(0);
  expect(
    (await latestRuns(system.client, 3)).map(({ subject, state, planned }) => [subject, state, planned]).sort(),
  ).toEqual(VENDORS.map(({ dataset }) => [dataset, dataset === A.dataset ? 'done' : 'failed', 6]));
});

describe('a document that was refused before it was published', () => {
  const found = async (): Promise<Json[]> =>
    (await system.run(['doctor', '--check', 'work'])).json.checks.at(-1).findings;
  const about = async (day: string) => (await found()).filter(({ what }) => what.includes(` ${B.dataset} ${day} at `));
  const bad = (day: string) => B.put(baseOf(B.dataset), day, B.pack(day, 'this is no trade file\n'));
  const good = (day: string, firstId: number) =>
    B.put(baseOf(B.dataset), day, B.pack(day, B.plainDay({ day, rows: ROWS, seed: 9, firstId })));
  const oneDay = (day: string) => ['--from', day, '--to', day];

  test('is named by the run that failed, and by the doctor until another run has proved it', async () => {
    const [first, second] = dayNames('2024-05-01', 2);
    for (const day of [first, second]) await bad(day);
    const both = ['--from', first, '--to', second];
    expect((await backfill([B.dataset], both)).exit).toBe(1);
    const { json } = await system.run(['status', '--runs', '--limit', '1']);
    const { failed, failed_unit: unit } = json.runs[0];
    expect([failed, unit]).toEqual([
      2,
      {
        dataset: B.dataset,
        partition: first,
        code: 'SOURCE_DOCUMENT_INVALID',
        reason: expect.stringMatching(/line 1|this is no trade file/),
        at: expect.any(String),
      },
    ]);
    const [finding, ...others] = await about(first);
    expect(others).toEqual([]);
    expect(finding).toMatchObject({
      severity: 'warning',
      subject: `backfill ${B.dataset}`,
      what: expect.stringContaining(`SOURCE_DOCUMENT_INVALID: ${unit.reason}`),
      fix: expect.stringContaining(`./tidemark backfill ${B.dataset} --from ${first} --to ${second}`),
    });
    // Another run that fails it as well is no second finding, and one that proves another day mends nothing.
    expect((await backfill([B.dataset], oneDay(first))).exit).toBe(1);
    await good(second, 3_000_000);
    expect((await backfill([B.dataset], oneDay(second))).exit).toBe(0);
    expect(await about(first)).toHaveLength(1);
    await good(first, 2_000_000);
    expect((await backfill([B.dataset], oneDay(first))).exit).toBe(0);
    expect(await about(first)).toEqual([]);
  });

  test('has a reason of bounded length, which any text may be', () => {
    const { reason } = failedUnit(B.dataset, { partition: 'x', code: 'X', reason: `\0\ud800${'é'.repeat(9000)}` });
    expect([reason.length <= 500, reason.isWellFormed(), reason.includes('\0')]).toEqual([true, true, false]);
  });
});

test('Ctrl-C ends with 130 and leaves what the same command goes on with; who is at it is named', {
  tags: ['nightly'],
}, async () => {
  const more = dayNames('2024-04-01', 4);
  for (const [index, day] of more.entries()) {
    const content = { day, rows: ROWS, seed: index + 1, firstId: 1_000_000 + index * 10_000 };
    await C.put(baseOf(C.dataset), day, C.pack(day, C.plainDay(content)));
  }
  await using server = await startVendorServer(baseOf(C.dataset));
  server.fail(C.path(more[3]), { kind: 'stall' });
  const env = { ...settings, SVC_EXCHANGE_C_BASE_URL: server.url.href };
  const args = ['backfill', C.dataset, '--from', more[0], '--to', more[3]];
  const running = system.start(args, env);
  await expect.poll(async () => (await openRuns(system.client))[0]?.proved ?? 0).toBe(3);
  const [holder] = await openRuns(system.client);
  const other = await system.run(args, env);
  expect([other.exit, other.json.error.code]).toEqual([3, 'WORK_HELD']);
  for (const part of [`pid ${holder.pid} on ${holder.host}`, holder.started_at_utc, args.join(' ')]) {
    expect(other.json.error.message).toContain(part);
  }
  running.child.kill('SIGINT');
  const stopped = await running.done;
  expect([stopped.exit, stopped.json.interrupted, stopped.json.proved]).toEqual([130, true, 3]);
  const states = (await latestRuns(system.client, 2)).map(({ run_id, state, fault }) => [
    run_id === holder.run_id,
    state,
    fault?.slice(0, 22),
  ]);
  expect(states).toEqual([
    [false, 'failed', C.dataset],
    [true, 'interrupted', undefined],
  ]);
  const again = await system.run(args, settings);
  expect([again.exit, again.json.proved, again.json.unchanged]).toEqual([0, 1, 3]);
  expect(await system.leftovers()).toEqual([]);
});

test('Ctrl-C before the command has begun ends with 130, too', async () => {
  const early = `import { registerHooks } from 'node:module';
    registerHooks({ load(url, context, next) {
      if (url.endsWith('/commands/backfill.ts')) process.kill(process.pid, 'SIGINT');
      return next(url, context);
    } });`;
  const env = { ...settings, NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(early)}` };
  const { exit, signal } = await system.start(['backfill', A.dataset, ...days(0, 1)], env).done;
  expect([exit, signal]).toEqual([130, null]);
});

test('no document is fetched twice for being prefetched, and none is left behind', async () => {
  await using server = await startVendorServer(baseOf(A.dataset));
  const env = { SVC_EXCHANGE_A_BASE_URL: server.url.href };
  const args = ['reingest', A.dataset, ...days(0, 5), '--reason', 'again'];
  const { exit, json } = await system.run(args, { ...settings, ...env });
  expect([exit, json.proved]).toEqual([0, 6]);
  expect(server.requests().filter(({ path }) => path.endsWith('.zip'))).toHaveLength(6);
  const spool = join(system.settings.SVC_STATE_DIR, 'spool');
  expect(await filesBelow(spool)).toEqual([]);
});
