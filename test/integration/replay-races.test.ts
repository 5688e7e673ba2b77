/** Partitions that another process changes while a `replay` or `verify` is on its way to them, or at them. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type ReplayNeeds, replayPartition } from '../../pipelines/cli/commands/replay.ts';
import { retractSpan } from '../../pipelines/projector/retract.ts';
import { verifyPartition } from '../../pipelines/projector/verify.ts';
import { connect } from '../../shared/db/connect.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { heightKey } from '../../shared/registry/keys.ts';
import { faultOf } from '../support/faults.ts';
import { documentOf, HEADERS, header, KindSystem, projectionOf } from '../support/kinds.ts';

const START = Date.parse('2026-01-01T00:00:00Z');
const block = (height: number, salt = '') =>
  documentOf({
    dataset: HEADERS,
    key: heightKey(height, height),
    events: [header(height, START + height * 1000, salt)],
    source: { through_ms: START + (height + 1) * 1000 },
  });

let system: KindSystem;
let needs: ReplayNeeds;
beforeAll(async () => {
  system = await KindSystem.create();
  system.project([HEADERS]);
  await system.ingest([HEADERS], [block(0), block(1), block(2)]);
  needs = {
    dataset: HEADERS,
    client: system.client,
    catalog: system.catalog,
    connection: system.operator,
    projection: projectionOf(HEADERS),
    batchBytes: 1 << 22,
  };
});
afterAll(() => system?.[Symbol.asyncDispose]());

const rowOf = async (height: number): Promise<PartitionRow> => (await system.catalog.partition(HEADERS, `${height}`))!;
const alter = (height: number) =>
  system.client.query(`update ${HEADERS.native.table} set nonce = nonce + 1 where height = $1`, [height]);

test('replay --verify-only said that a partition differs whose revision was proved meanwhile', async () => {
  const before = await rowOf(0);
  const [unit] = await system.ingest([HEADERS], [block(0, 'other')], { reason: 'a correction' });
  expect(unit.state).toBe('proved');
  await faultOf(replayPartition(before, { ...needs, verifyOnly: true }), 'PARTITION_CHANGED');
  expect(await replayPartition(await rowOf(0), { ...needs, verifyOnly: true })).toMatchObject({ state: 'identical' });
});

test('replay proved a partition again that the source retracted meanwhile', async () => {
  await alter(1);
  const before = await rowOf(1);
  const retracting = { reason: 'the node has other blocks', by: 'source' };
  const span = { sourceId: 'bitcoin_core', span: { from: 1, to: 2 } };
  expect(await retractSpan(system.client, HEADERS, needs.projection.seconds!, span, retracting)).toEqual(['1']);
  await faultOf(replayPartition(before, needs), 'PARTITION_CHANGED');
  expect(await rowOf(1)).toMatchObject({ state: 'quarantined', reason: retracting.reason });
  expect(await system.proved(HEADERS)).toBe('{[0,1),[2,3)}');
});

test('of two replays of one partition the later one leaves what the other proved', async () => {
  const proved = await rowOf(2);
  await alter(2);
  expect(await verifyPartition(proved, needs)).toMatchObject({ state: 'quarantined' });
  const held = await rowOf(2);
  expect(await replayPartition(held, needs)).toMatchObject({ state: 'replaced' });
  const { provedAt } = await rowOf(2);
  // The attempt and the state are those of before the quarantine.
  for (const old of [held, proved]) await faultOf(replayPartition(old, needs), 'PARTITION_CHANGED');
  expect((await rowOf(2)).provedAt).toEqual(provedAt);
});

// Without a single snapshot the new rows would be compared with the old manifest.
test('verify does not take a revision for altered rows that is proved between its first look and its recount', async () => {
  const before = await rowOf(2);
  await using revising = await connect({ url: system.databaseUrl, name: 'test of a revision' });
  await revising.query('begin');
  await revising.query(`lock table ${HEADERS.native.table} in access exclusive mode`);
  const verifying = verifyPartition(before, needs);
  // Tables of other tests' databases may have the same number.
  const waiting = `select from pg_locks join pg_database d on d.oid = database and datname = current_database()
    where relation = '${HEADERS.native.table}'::regclass and not granted`;
  await system.until(async () => (await revising.query(waiting)).rowCount === 1);
  await revising.query(`update ${HEADERS.native.table} set nonce = nonce + 1 where height = 2;
    update partitions set attempt = attempt + 1, revision = revision + 1
      where dataset_id = ${HEADERS.number} and partition_key = '2';
    commit`);
  expect(await verifying).toMatchObject({ state: 'proved' });
  expect(await rowOf(2)).toMatchObject({ state: 'proved', attempt: before.attempt + 1 });
});
