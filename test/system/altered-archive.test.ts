/** An archive that is altered under a follower which is killed again and again: every alteration is found, once, with its rows. */
import { watch } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { type Alterations, alteredText, expectedChanges, readDiff } from '../support/altered-days.ts';
import type { Json } from '../support/command.ts';
import { dayNames, System } from '../support/pipeline.ts';
import { SEED } from '../support/seed.ts';
import { VENDORS } from '../support/vendors.ts';

/** Old enough for none of them to be among the latest days. */
const FIRST = '2023-03-01';

/** Resolves when something changes in the folder, which is in the middle of keeping an alteration. */
async function changeIn(folder: string, signal: AbortSignal): Promise<void> {
  await new Promise<void>((resolve) => {
    const watcher = watch(folder, { signal }, () => {
      watcher.close();
      resolve();
    });
    signal.addEventListener('abort', () => resolve());
  });
}

async function alteredUnderKills({ days: count, kills }: { days: number; kills: number }): Promise<void> {
  const random = seededRandom(SEED);
  const pick = <T>(list: readonly T[]) => list[Math.floor(random() * list.length)];
  await using system = await System.create();
  const settings = Object.assign({}, ...VENDORS.map((vendor) => vendor.settings(system.vendor)));
  const days = dayNames(FIRST, count);
  const datasets = VENDORS.map(({ dataset }) => dataset);
  const texts = new Map<string, string>();
  for (const vendor of VENDORS) {
    for (const [index, day] of days.entries()) {
      const text = vendor.plainDay({ day, rows: 80, seed: 2 * index, firstId: 1 + 100 * index });
      texts.set(`${vendor.dataset} ${day}`, text);
      await vendor.put(system.vendor, day, vendor.pack(day, text));
    }
  }
  const backfilled = await system.run(['backfill', ...datasets, '--from', days[0], '--to', days.at(-1)!], settings);
  expect(backfilled.exit).toBe(0);

  const alterationOf = (): Alterations => ({
    fates: Array.from({ length: 1 + Math.floor(random() * 5) }, () => [
      Math.floor(random() * 1000),
      pick(['removed', 'priced', 'priced'] as const),
    ]),
    added: pick([0, 0, 2]),
    order: pick(['kept', 'kept', 'reversed'] as const),
  });
  const folder = join(system.env.dir, 'state', 'kept');
  await mkdir(join(folder, 'partial'), { recursive: true });
  const after = new Map<string, string>();
  // The whole archive is altered while the follower goes through it.
  const altering = (async () => {
    for (const day of days) {
      for (const vendor of VENDORS) {
        const name = `${vendor.dataset} ${day}`;
        const text = alteredText(vendor, texts.get(name)!, alterationOf());
        after.set(name, text);
        await vendor.put(system.vendor, day, vendor.pack(day, text));
        await delay(random() * 300);
      }
    }
  })();
  const follow = () => system.start(['follow', ...datasets], { ...settings, SVC_FOLLOW_OLD_DAYS_PER_HOUR: '3600' });
  for (let killed = 0; killed < kills; killed++) {
    const running = follow();
    // Half of the kills strike while an alteration is being kept.
    const signal = AbortSignal.timeout(6000);
    await (killed % 2 === 0 ? changeIn(join(folder, 'partial'), signal) : delay(1500 + random() * 3000));
    await delay(random() * 60);
    running.child.kill('SIGKILL');
    await running.done;
  }
  await altering;
  const running = follow();
  const arrivals = () =>
    system.rows<Json>(
      'select late_arrivals.*, d.key from late_arrivals join datasets d using (dataset_id) order by d.key, partition_key',
    );
  const total = days.length * VENDORS.length;
  await expect
    .poll(async () => (await arrivals()).length, { timeout: 30_000 + total * 3000, interval: 200 })
    .toBe(total);
  // Another look at each of them finds nothing new.
  const [{ now }] = await system.rows<{ now: Date }>('select clock_timestamp() as now');
  const asked = async () => (await system.rows('select from partitions where asked_at > $1', [now])).length;
  await expect.poll(asked, { timeout: 30_000 + total * 3000, interval: 200 }).toBe(total);
  running.child.kill('SIGTERM');
  await running.done;
  const found = await arrivals();
  expect(found.map(({ key, partition_key }) => `${key} ${partition_key}`)).toEqual([...after.keys()].sort());
  for (const one of found) {
    const name = `${one.key} ${one.partition_key}`;
    const vendor = VENDORS.find(({ dataset }) => dataset === one.key)!;
    const { changes } = await readDiff(folder, one);
    expect([name, changes]).toEqual([name, await expectedChanges(vendor, texts.get(name)!, after.get(name)!)]);
  }
  const [{ refused, leaves }] = await system.rows<Json>(
    `select (select count(*)::int4 from ledger where kind = 'late_arrival_refused') as refused,
       (select count(*)::int4 from proof_leaves where kind = 'refused') as leaves`,
  );
  expect(leaves).toBe(total);
  expect(refused).toBeLessThanOrEqual(total);
}

test('every alteration is found once, over a kill in the middle of one', async () => {
  await alteredUnderKills({ days: 2, kills: 2 });
});

test('and over many, of a longer archive', { tags: ['nightly'], timeout: 1_200_000 }, async () => {
  await alteredUnderKills({ days: 40, kills: 24 });
});
