/** The versions of TimescaleDB that are supported, and one that is newer than the distribution's. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { timescaleFault } from '../../shared/db/connect.ts';
import { type Json, ROOT } from '../support/command.ts';
import { givenOtherDatabase } from '../support/given.ts';
import { csvOf, DATASET, dayNames, System, unitOf, writeDocument } from '../support/pipeline.ts';

test.each(['2.19.0', '2.19.3', '2.29.2', '2.20.0-dev'])('TimescaleDB %s is supported', (version) => {
  expect(timescaleFault(version)).toBeUndefined();
});

test.each(['2.18.2', '2.30.0', '2.2.9', '3.19.0', '1.29.0', '2', 'nonsense', '', null, undefined])(
  'TimescaleDB %s is refused, and those that are supported are named',
  (version) => {
    expect(timescaleFault(version)).toContain('2.19 to 2.29');
    if (version) expect(timescaleFault(version)).toContain(version);
  },
);

// Its tables change from version to version: with 2.29 two columns were gone, and nothing could be proved any more.
test("no statement reads TimescaleDB's private catalog", async () => {
  const reading: string[] = [];
  for (const folder of ['pipelines', 'serving', 'shared', 'migrations', 'bench']) {
    for (const name of await readdir(join(ROOT, folder), { recursive: true })) {
      if (!/\.(ts|sql)$/.test(name)) continue;
      const text = await readFile(join(ROOT, folder, name), 'utf8');
      if (/_timescaledb_(catalog|config|cache|functions)\b/.test(text)) reading.push(join(folder, name));
    }
  }
  expect(reading).toEqual([]);
});

givenOtherDatabase.describe('on the server that TIDEMARK_TEST_DATABASE_URL names', () => {
  test('days are proved, replaced, verified, replayed and found sound', async () => {
    await using system = await System.create('empty');
    const days = dayNames('2024-05-01', 3);
    for (const [index, day] of days.entries()) {
      const content = { day, rows: 500, seed: index + 1, firstId: 1 + index * 500, timeUnit: 'ms' } as const;
      await writeDocument(system.vendor, day, csvOf(content));
    }
    const backfilled = await system.backfill(days[0], days[2]);
    expect([backfilled.exit, backfilled.json?.proved], backfilled.stderr).toEqual([0, 3]);
    const digests = await system.digests();
    const content = { day: days[1], rows: 400, seed: 9, firstId: 501, timeUnit: 'ms' } as const;
    await writeDocument(system.vendor, days[1], csvOf(content));
    const replaced = await system.reingest(days[1], days[1], 'other content');
    expect([replaced.exit, unitOf(replaced.json, days[1]).state]).toEqual([0, 'proved']);
    const after = await system.digests();
    expect([after[days[0]], after[days[2]]]).toEqual([digests[days[0]], digests[days[2]]]);
    expect(after[days[1]]).toMatchObject({ revision: 2, rows: '400' });
    expect((await system.run(['verify', DATASET, '--deep'])).exit).toBe(0);
    const replayed = await system.run(['replay', DATASET]);
    expect([replayed.exit, replayed.json.ok]).toEqual([0, true]);
    expect(await system.digests()).toEqual(after);
    const { json } = await system.run(['doctor']);
    // A server for tests may trade durability for speed, and tests connect to it as its superuser.
    const known = new Set(['postgres', 'roles']);
    expect(json.checks.filter(({ check, state }: Json) => state !== 'ok' && !known.has(check))).toEqual([]);
    expect(JSON.stringify(json)).not.toContain('timescaledb"');
  });
});
