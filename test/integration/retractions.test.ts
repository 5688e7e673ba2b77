/** What its source retracted stays out of service, in this database and in any that is built again from the log. */
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Context } from '../../pipelines/cli/context.ts';
import { publishRetraction, Retractions } from '../../pipelines/cli/retraction.ts';
import { DirtyBuckets } from '../../pipelines/projector/dirty-buckets.ts';
import { retractPartition } from '../../pipelines/projector/retract.ts';
import { connect } from '../../shared/db/connect.ts';
import { lockCoverage } from '../../shared/db/partition-changes.ts';
import { encodeMessage, type RetractionHeader } from '../../shared/frame/codec.ts';
import { retractionSubject } from '../../shared/nats/stream.ts';
import { documentOf, HEADERS, header, KindSystem, type MadeDocument, MEMPOOL, projectionOf } from '../support/kinds.ts';
import { testLogger } from '../support/stack.ts';

const START = Date.parse('2026-01-01T00:00:00Z');
const SECONDS = { 0: 0, 1: 0, 2: 0, 3: 1, 4: 1 } as const;
type Height = keyof typeof SECONDS;
const REASON = 'the node has other blocks';

const block = (height: Height, salt = ''): MadeDocument => {
  const ms = START + SECONDS[height] * 1000;
  return documentOf({
    dataset: HEADERS,
    key: `${height}`,
    events: [header(height, ms, salt)],
    source: { through_ms: ms + 1000 },
  });
};

let system: KindSystem;
beforeAll(async () => {
  system = await KindSystem.create();
  system.project([HEADERS]);
  await system.ingest(
    [HEADERS],
    ([0, 1, 2, 3, 4] as const).map((height) => block(height)),
  );
});
afterAll(() => system?.[Symbol.asyncDispose]());

const checkpoint = async (of: KindSystem) =>
  (await of.rows('select stream_sequence as at from checkpoints where dataset_id = $1', [HEADERS.number]))[0]?.at;

/** Another database, from the same log, once it has come as far; `look` sees every change of what is proved. */
async function builtAgain(look: (again: KindSystem) => Promise<void>): Promise<string[]> {
  const url = new URL(system.databaseUrl);
  url.pathname += '_again';
  const name = url.pathname.slice(1);
  await system.client.query(`create database ${name}`);
  const seen = new Set<string>();
  // A stream has one projector.
  await system.stopProjecting();
  try {
    await using again = await KindSystem.create({ env: system.env, databaseUrl: url.href });
    await again.rows(`create table seen (proved text)`);
    await again.rows(`create function see() returns trigger language plpgsql as
      $$ begin insert into seen values (new.proved::text); return null; end $$`);
    await again.rows(`create trigger see after update on coverage for each row execute function see()`);
    again.project([HEADERS]);
    const end = await checkpoint(system);
    await again.until(async () => (await checkpoint(again)) === end);
    for (const { proved } of await again.rows('select proved from seen')) seen.add(proved);
    await look(again);
    await again.stopProjecting();
  } finally {
    system.project([HEADERS]);
    await system.client.query(`drop database ${name} with (force)`);
  }
  return [...seen];
}

test('a retraction takes the proved partition of an attempt out of service, once', async () => {
  const row = (await system.catalog.partition(HEADERS, '3'))!;
  await publishRetraction(system.connection, HEADERS, row, { reason: REASON });
  await system.until(async () => (await system.proved(HEADERS)) === '{[0,3),[4,5)}');
  expect(await system.catalog.partition(HEADERS, '3')).toMatchObject({ state: 'quarantined', reason: REASON });
  expect(
    await system.rows('select records_in_bucket::int as n from canonical_aligned_1s_aggregates order by 1'),
  ).toEqual([{ n: 1 }, { n: 3 }]);
  const manager = await jetstreamManager(system.connection);
  const { messages } = (await manager.streams.info(HEADERS.key)).state;
  await publishRetraction(system.connection, HEADERS, row, { reason: REASON });
  expect((await manager.streams.info(HEADERS.key)).state.messages).toBe(messages);
});

test('a database built again from the log served it until the node was asked', async () => {
  const seen = await builtAgain(async (again) => {
    expect(await again.proved(HEADERS)).toBe('{[0,3),[4,5)}');
    expect(await again.catalog.partition(HEADERS, '3')).toMatchObject({ state: 'quarantined' });
    expect(await again.rows('select height::int from bitcoin_block_headers order by 1')).toEqual(
      [0, 1, 2, 4].map((height) => ({ height })),
    );
  });
  // Nor while the log was read up to the retraction.
  expect(seen.filter((proved) => /\[0,[45]\)/.test(proved))).toEqual([]);
});

test('what was ingested again in its place is served, in both', async () => {
  const [unit] = await system.ingest([HEADERS], [block(3, 'reorganised')], { reason: 'a reorganisation' });
  expect(unit.state).toBe('proved');
  expect(await system.proved(HEADERS)).toBe('{[0,5)}');
  const before = await system.digests(HEADERS);
  await builtAgain(async (again) => expect(await again.digests(HEADERS)).toEqual(before));
});

/** Ingests 400 blocks in many frames; `interrupt` publishes another message among them. */
async function ingestAround(firstHeight: number, interrupt: () => Promise<unknown>) {
  const ms = START + firstHeight * 6000;
  const events = Array.from({ length: 400 }, (_, index) => header(firstHeight + index, ms));
  let interrupted: Promise<unknown> | undefined;
  // Twice: once for the document's digest, and once for its frames.
  Object.assign(events, {
    *[Symbol.iterator]() {
      for (let index = 0; index < events.length; index++) {
        if (index === 100) interrupted = interrupt();
        yield events[index];
      }
    },
  });
  const key = `${firstHeight}-${firstHeight + 399}`;
  const document = documentOf({ dataset: HEADERS, key, events, source: { through_ms: ms + 1000 } });
  const [unit] = await system.ingest([HEADERS], [document], { frameRawBytes: 512 });
  await interrupted;
  expect(unit).toMatchObject({ partition: key, state: 'proved', rows: 400 });
  const manager = await jetstreamManager(system.connection);
  const first = await manager.streams.getMessage(HEADERS.key, { last_by_subj: `${HEADERS.key}.${key}.1.0` });
  return { first: first!.seq, last: (await manager.streams.info(HEADERS.key)).state.last_seq };
}

test('a retraction among the frames of another attempt is carried out, and that attempt is proved', async () => {
  const row = (await system.catalog.partition(HEADERS, '2'))!;
  const { first, last } = await ingestAround(10, () =>
    publishRetraction(system.connection, HEADERS, row, { reason: REASON }),
  );
  expect(await system.proved(HEADERS)).toBe('{[0,2),[3,5),[10,410)}');
  const manager = await jetstreamManager(system.connection);
  const retraction = await manager.streams.getMessage(HEADERS.key, { last_by_subj: `${HEADERS.key}.2.1.withheld` });
  expect([retraction!.seq > first, retraction!.seq < last]).toEqual([true, true]);
});

// Its load was rolled back for the retraction and never read again: `its first frame is missing`.
test('a damaged retraction does no harm to the attempt whose frames it lies among', async () => {
  const { partition, revision, attempt } = { partition: '0', revision: 1, attempt: 1 };
  const message = await encodeMessage<RetractionHeader>(
    { kind: 'withheld', dataset: HEADERS.key, partition, revision, attempt, frame: 0, document_sha256: '' },
    Buffer.from('no JSON'),
  );
  let sequence = 0;
  const { first, last } = await ingestAround(1000, async () => {
    const subject = retractionSubject(HEADERS.key, partition, attempt);
    sequence = (await jetstream(system.connection).publish(subject, message)).seq;
  });
  expect([sequence > first, sequence < last]).toEqual([true, true]);
  expect(await system.proved(HEADERS)).toBe('{[0,2),[3,5),[10,410),[1000,1400)}');
});

test('a retraction of a replaced attempt changes nothing, and a damaged one is skipped', async () => {
  const row = (await system.catalog.partition(HEADERS, '3'))!;
  await publishRetraction(system.connection, HEADERS, { ...row, attempt: 77 }, { reason: REASON });
  await jetstream(system.connection).publish(`${HEADERS.key}.4.1.withheld`, Buffer.from('no retraction'));
  const [unit] = await system.ingest([HEADERS], [block(4, 'again')], { reason: 'to see it go on' });
  expect(unit.state).toBe('proved');
  expect(await system.proved(HEADERS)).toBe('{[0,2),[3,5),[10,410),[1000,1400)}');
});

// The projector had read the partition as proved before the command's commit, and the ledger had two entries.
test('a retraction that a command and the projector carry out at the same time is recorded once', async () => {
  const row = (await system.catalog.partition(HEADERS, '1'))!;
  const { seconds } = projectionOf(HEADERS);
  await using command = await connect({ url: system.databaseUrl, name: 'test command' });
  await DirtyBuckets.prepare(command);
  await command.query('begin');
  await lockCoverage(command, HEADERS);
  await publishRetraction(system.connection, HEADERS, row, { reason: REASON });
  await retractPartition(command, HEADERS, seconds, row, { reason: REASON, by: 'source' });
  const waiting = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
    and application_name like 'tidemark projector %'`;
  await system.until(async () => (await system.rows(waiting)).length > 0);
  await command.query('commit');

  const manager = await jetstreamManager(system.connection);
  const { last_seq } = (await manager.streams.info(HEADERS.key)).state;
  await system.until(async () => Number(await checkpoint(system)) === last_seq);
  const entries = `select reason from ledger where partition_key = '1' and kind = 'quarantined'`;
  expect(await system.rows(entries)).toEqual([{ reason: REASON }]);
});

// The retried command found nothing proved, so that it reported no partition and ended as a success.
test('a partition whose retraction is in the log is reported although the database fails after it', async () => {
  const retractions = new Retractions({
    catalog: system.catalog,
    databaseUrls: { ingest: system.databaseUrl },
    settings: system.settings,
    log: testLogger(),
    nats: async (role?: string) => (role === 'operator' ? system.operator : system.connection),
  } as unknown as Context);
  const span = { from: 4, to: 5 };
  const event = { kind: 'retraction', dataset: HEADERS, span, code: 'CHAIN_REORGANISED', reason: REASON } as const;
  await system.rows(`create function shut_down() returns trigger language plpgsql as
    $$ begin raise exception 'terminating connection' using errcode = '57P01'; end $$`);
  await system.rows(`create trigger shut_down before insert on ledger for each row
    when (current_setting('application_name') = 'tidemark retraction') execute function shut_down()`);
  await system.stopProjecting();
  await expect(retractions.carryOut(event)).rejects.toThrow('terminating connection');
  system.project([HEADERS]);
  await system.until(async () => (await system.catalog.partition(HEADERS, '4'))?.state === 'quarantined');
  await system.rows('drop trigger shut_down on ledger');
  await retractions.carryOut(event);
  const unit = {
    dataset: HEADERS.key,
    partition: '4',
    state: 'quarantined',
    code: 'CHAIN_REORGANISED',
    reason: REASON,
  };
  expect(retractions.rest()).toMatchObject([unit]);
  expect(retractions.rest()).toEqual([]);
});

// Nothing is missing between two snapshots, so that the span of those around it goes on over it.
test('a snapshot that is taken out of service is not proved any longer, although one before and one after it are', async () => {
  await using fresh = await KindSystem.create();
  fresh.project([MEMPOOL]);
  const [first, second, third] = [START, START + 60_000, START + 120_000];
  const empty = (ms: number) => documentOf({ dataset: MEMPOOL, key: String(ms), events: [] });
  await fresh.ingest([MEMPOOL], [first, second, third].map(empty));
  expect(await fresh.proved(MEMPOOL)).toBe(`{[${first},${third + 1})}`);
  const row = (await fresh.catalog.partition(MEMPOOL, String(second)))!;
  await DirtyBuckets.prepare(fresh.client);
  await fresh.client.query('begin');
  const retracting = { reason: REASON, by: 'verify' };
  await retractPartition(fresh.client, MEMPOOL, projectionOf(MEMPOOL).seconds, row, retracting);
  await fresh.client.query('commit');
  expect(await fresh.proved(MEMPOOL)).toBe(`{[${first},${second}),[${second + 1},${third + 1})}`);
});
