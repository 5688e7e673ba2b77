/** The log that an exchange's instruments share: a database made anew from it, a log that lost them, a lag in it. */
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { connect } from '../../shared/db/connect.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { subjectOf } from '../../shared/nats/stream.ts';
import type { Json } from '../support/command.ts';
import { DATASET, digestsOf, System } from '../support/pipeline.ts';
import { createMigratedEnv } from '../support/stack.ts';

const FIRST = '2024-03-01';
const LAST = '2024-03-02';
const ROWS = 300;
const OTHERS = ['ETHUSDT', 'SOLUSDT'];
const KEYS = [FIRST, LAST, ...OTHERS.flatMap((symbol) => [`${symbol}:${FIRST}`, `${symbol}:${LAST}`])].sort();
const env = { SVC_EXCHANGE_A_ALSO: OTHERS.join() };

let system: System;
const run = (args: readonly string[], more: Record<string, string> = {}) => system.run(args, { ...env, ...more });
const backfill = (more: readonly string[] = [], settings: Record<string, string> = {}) =>
  run(['backfill', DATASET, '--from', FIRST, '--to', LAST, '--instrument', 'all', ...more], settings);
beforeAll(async () => {
  system = await System.create();
  for (const symbol of ['BTCUSDT', ...OTHERS]) {
    for (const [at, day] of [FIRST, LAST].entries()) {
      const content = { rows: ROWS, seed: at, firstId: 1 + at * ROWS, timeUnit: 'us' } as const;
      await writeDay({ directory: system.vendor, symbol, day, ...content });
    }
  }
  expect((await backfill()).exit).toBe(0);
});
afterAll(() => system[Symbol.asyncDispose]());

const eventOf = async (partition: string, settings: Record<string, string> = {}): Promise<string> => {
  const offset = String(partition.endsWith(FIRST) ? 1 : 1 + ROWS);
  const { exit, json } = await run(['event', DATASET, offset, '--partition', partition], settings);
  expect([exit, json.partition]).toEqual([0, partition]);
  return json.event_id;
};

test('a database that is made again from it has every instrument, whatever number each gets: digests and event ids are the same', async () => {
  await using fresh = await createMigratedEnv();
  await using client = await connect({ url: fresh.databaseUrl, name: 'test' });
  // The first number is of another symbol there.
  await client.query(`insert into series (dataset_id, key) values (257, 'DOGEUSDT')`);
  const { databaseUrls: urls } = fresh;
  const into = {
    SVC_DATABASE_URL: urls.ingest,
    SVC_DATABASE_OWNER_URL: urls.owner,
    SVC_DATABASE_SERVE_URL: urls.serve,
    SVC_DATABASE_EXPORT_URL: urls.export,
    SVC_DATABASE_MONITOR_URL: urls.monitor,
    // Nobody configures them any more.
    SVC_EXCHANGE_A_ALSO: '',
  };
  const { exit, json } = await run(['backfill', DATASET, '--from', FIRST, '--to', LAST], into);
  expect([exit, json.unchanged]).toEqual([0, 2]);
  const digests = await digestsOf(client);
  expect(Object.keys(digests).sort()).toEqual(KEYS);
  expect(digests).toEqual(await digestsOf(system.client));
  const { rows } = await client.query('select dataset_id, key from series where dataset_id > 255 order by 1');
  expect(rows.map(({ key }) => key)).toEqual(['DOGEUSDT', ...OTHERS]);
  for (const key of KEYS) expect(await eventOf(key, into)).toBe(await eventOf(key));
  const verified = await run(['verify', DATASET, '--deep', '--instrument', 'all'], into);
  expect([verified.exit, verified.json.units.length]).toEqual([0, KEYS.length]);
});

test('a frame of another instrument that waits in it is told as the lag of the exchange', async () => {
  const newest = (await system.log()).findLast(({ header }) => header.kind === 'frame')!;
  expect(newest.header.partition).toBe(`SOLUSDT:${LAST}`);
  await using publisher = await connectNats(system.env.natsUrl, 'test');
  await jetstream(publisher).publish(subjectOf(DATASET, newest.header.partition, 9, 0), newest.data);
  const { exit, json } = await run(['status', DATASET]);
  expect([exit, json.datasets[0].log.lag]).toEqual([0, expect.objectContaining({ frames: 1, events: ROWS })]);
});

describe('a log that was lost', () => {
  test('is recovered from for all of them; what it lost is named, and ingested again by its instrument', async () => {
    await using operator = await connectNats(system.env.natsOperatorUrl, 'operator');
    const manager = await jetstreamManager(operator);
    await manager.streams.delete(DATASET);
    const { exit, json } = await run(['recover', DATASET]);
    expect([exit, json.plans[0].lost]).toEqual([0, KEYS]);
    const status = await run(['status', DATASET, '--instrument', 'ETHUSDT']);
    expect(status.json.datasets[0].rows).toBe(2 * ROWS);
    // Without a dataset it is of those that have the instrument.
    const anywhere = await run(['status', '--instrument', 'ETHUSDT']);
    expect(anywhere.json.datasets).toEqual(status.json.datasets);
    const again = ['--from', FIRST, '--to', LAST, '--reason', 'lost', '--instrument', OTHERS[0]];
    const revised = await run(['reingest', DATASET, ...again]);
    expect([revised.exit, revised.json.proved]).toEqual([0, 2]);
    const found = await system.rows<Json>(
      `select partition_key as key, revision from partitions where revision > 1 order by 1`,
    );
    expect(found).toEqual([FIRST, LAST].map((day) => ({ key: `${OTHERS[0]}:${day}`, revision: 2 })));
    const deep = await run(['verify', DATASET, '--deep', '--instrument', OTHERS[0]]);
    expect([deep.exit, deep.json.units.map(({ state }: Json) => state)]).toEqual([0, ['proved', 'proved']]);
  });
});
