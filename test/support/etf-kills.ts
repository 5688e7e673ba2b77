/** Backfills of issuers' archives that are killed. */
import { join } from 'node:path';
import { expect } from 'vitest';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';
import { Archives } from './etf.ts';
import { System } from './pipeline.ts';
import { eventually } from './serving.ts';

/** What the ten funds say of a day. */
const DAY_ROWS = 116;

/**
 * A backfill of these days that is killed whenever so many captures are proved, and then left to end, comes to what one
 * that is left alone comes to.
 */
export async function expectSameAfterKills(days: readonly string[], kills: readonly number[]): Promise<void> {
  await using undisturbed = await System.create();
  await using disturbed = await System.create();
  const archives = new Archives(join(undisturbed.env.dir, 'issuers'));
  await archives.fill(days);
  const settings = archives.settings();
  const [captures, rows] = [days.length * ISSUERS.length, days.length * DAY_ROWS];
  expect((await undisturbed.run(['backfill', 'etf'], settings)).json).toMatchObject({ proved: captures, rows });
  for (const enough of kills) {
    const { child, done } = disturbed.start(['backfill', 'etf'], settings);
    await eventually(async () => {
      const [run] = await disturbed.rows('select count(*)::int n from runs where pid = $1', [child.pid]);
      const [proved] = await disturbed.rows(`select count(*)::int n from partitions where state = 'proved'`);
      return run.n === 1 && proved.n >= enough;
    }, `${enough} captures are proved`);
    child.kill('SIGKILL');
    await done;
  }
  const { exit, json } = await disturbed.run(['backfill', 'etf'], settings);
  expect({ exit, failed: json.failed, refused: json.refused }).toEqual({ exit: 0, failed: 0, refused: 0 });
  const digests = await undisturbed.digests();
  expect(Object.keys(digests)).toHaveLength(captures);
  expect(await disturbed.digests()).toEqual(digests);
  expect((await disturbed.run(['replay', etfDailyMetrics.key])).json).toMatchObject({ ok: true });
  expect(await disturbed.digests()).toEqual(digests);
  const [{ n }] = await disturbed.rows(`select count(*)::int n from ${etfDailyMetrics.native.table}`);
  expect(n).toBe(rows);
}
