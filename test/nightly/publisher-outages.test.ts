/** Documents that are read again after a store was unavailable, or that meet what an earlier try left behind. */
import { setTimeout as delay } from 'node:timers/promises';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { AttemptWriter } from '../../pipelines/publisher/attempt-writer.ts';
import { planBackfill, type UnitResult } from '../../pipelines/publisher/backfill.ts';
import { RecordFrames } from '../../pipelines/sources/record-frames.ts';
import { encodeMessage, type FrameHeader } from '../../shared/frame/codec.ts';
import { ensureStream, streamOptions, subjectOf } from '../../shared/nats/stream.ts';
import {
  capture,
  documentOf,
  ETF,
  factsOf,
  HEADERS,
  header,
  KindSystem,
  type MadeDocument,
  MEMPOOL,
  TRANSACTIONS,
  transaction,
} from '../support/kinds.ts';

const START = Date.parse('2026-01-01T00:00:00Z');

let system: KindSystem;
beforeAll(async () => {
  system = await KindSystem.create();
  for (const { key } of [HEADERS, MEMPOOL, ETF])
    await ensureStream(system.operator, key, streamOptions(system.settings));
  system.project([HEADERS, ETF]);
});
afterAll(() => system[Symbol.asyncDispose]());

/** One partition a height. */
const heights = (from: number, to: number, salt = ''): MadeDocument =>
  documentOf(
    ...Array.from({ length: to - from + 1 }, (_, index) => {
      const [height, ms] = [from + index, START + (from + index) * 1000];
      return {
        dataset: HEADERS,
        key: `${height}`,
        events: [header(height, ms, salt)],
        source: { through_ms: ms + 1000 },
      };
    }),
  );

/** A database connection that is lost once, before a partition is decoded. */
const losing = (document: MadeDocument, at: number, first: () => Promise<unknown> = async () => {}): MadeDocument => {
  let isLost = false;
  return {
    ...document,
    async before(index) {
      if (index !== at || isLost) return;
      isLost = true;
      await first();
      throw new Error('Connection terminated unexpectedly');
    },
  };
};

const states = (units: readonly UnitResult[]) =>
  units.map(({ partition, state, code }) => `${partition} ${code ?? state}`).toSorted();
const ledger = (kind: string, like: string) =>
  system.rows(
    'select partition_key as key from ledger where kind = $1 and partition_key = any ($2) order by entry_id',
    [kind, like.split(' ')],
  );

// What was proved before the outage became a third revision: the command asked for one.
test('a reingest that is interrupted by an outage makes one revision of each partition', async () => {
  expect(states(await system.ingest([HEADERS], [heights(10, 11)]))).toEqual(['10 proved', '11 proved']);
  const isProved = () => system.until(async () => (await system.catalog.partition(HEADERS, '10'))?.revision === 2);
  const again = losing(heights(10, 12), 1, isProved);
  const units = await system.ingest([HEADERS], [again], { reason: 'the vendor repaired them' });
  expect(states(units)).toEqual(['10 proved', '11 proved', '12 proved']);
  expect(
    await system.rows(
      `select partition_key as key, revision, state from partitions where partition_key in ('10', '11', '12') order by 1`,
    ),
  ).toEqual([
    { key: '10', revision: 2, state: 'proved' },
    { key: '11', revision: 2, state: 'proved' },
    { key: '12', revision: 1, state: 'proved' },
  ]);
  expect(await ledger('reingest_started', '10 11 12')).toEqual([{ key: '10' }, { key: '11' }]);
});

// The attempt was opened in one statement and recorded in the next. When the database failed between them, the attempt was
// resumed and its ledger entry was missing.
test('a reingest whose ledger entry meets an outage is recorded when the database is back', async () => {
  expect(states(await system.ingest([HEADERS], [heights(60, 60)]))).toEqual(['60 proved']);
  await system.rows('create sequence entries');
  // A sequence keeps its value when the statement is rolled back.
  await system.rows(`create function shut_down() returns trigger language plpgsql as $$ begin
    if nextval('entries') = 1 then raise exception 'terminating connection' using errcode = '57P01'; end if;
    return new; end $$`);
  await system.rows(`create trigger shut_down before insert on ledger for each row
    when (new.kind = 'reingest_started') execute function shut_down()`);
  const units = await system.ingest([HEADERS], [heights(60, 60, 'other')], { reason: 'the vendor repaired it' });
  await system.rows('drop trigger shut_down on ledger');
  expect(states(units)).toEqual(['60 proved']);
  expect(
    await system.rows(`select reason, details from ledger where kind = 'reingest_started' and partition_key = '60'`),
  ).toEqual([{ reason: 'the vendor repaired it', details: { attempt: 2, revision: 2 } }]);
});

// The ledger, and the number of late arrivals that monitors read, counted one for every time the document was read.
test('a late arrival is recorded once although an outage has its document read again', async () => {
  expect(states(await system.ingest([HEADERS], [heights(20, 20)]))).toEqual(['20 proved']);
  const late = losing(heights(20, 21, 'other'), 1);
  expect(states(await system.ingest([HEADERS], [late]))).toEqual(['20 PARTITION_LATE_ARRIVAL', '21 proved']);
  expect(await ledger('late_arrival_refused', '20 21')).toEqual([{ key: '20' }]);
});

// An attempt that was opened by lookahead was written to without another look: its manifest named a document that the
// attempt was not of.
test('a document that has other content when it is read again does not fill the attempts of the first reading', async () => {
  const first = heights(30, 33);
  const made = [...first.made];
  const changed = losing({ ...first, made }, 2, async () => {
    made.splice(3, 1, heights(33, 33, 'other').made[0]);
  });
  expect(states(await system.ingest([HEADERS], [changed]))).toEqual([
    '30 proved',
    '31 proved',
    '32 proved',
    '33 proved',
  ]);
  const attempts = await system.rows(
    `select partition_key as key, document->>'sha256' = manifest->'document'->>'sha256' as same from attempts
     where state = 'proved' and partition_key in ('30', '31', '32', '33') order by 1`,
  );
  expect(attempts).toEqual(['30', '31', '32', '33'].map((key) => ({ key, same: true })));
});

// It was taken for a document without these rows. Later the attempt was abandoned, as if the document were at fault.
test('a document that ends inside a partition is a defect, and the next command resumes its attempt', async () => {
  const cut = { ...heights(40, 41), isCut: true };
  const attempts = () => system.rows(`select attempt, state from attempts where partition_key = '41'`);
  expect(states(await system.ingest([HEADERS], [cut]))).toEqual(['40 proved', '41 INTERNAL_INVARIANT']);
  expect(await attempts()).toEqual([{ attempt: 1, state: 'publishing' }]);
  expect(states(await system.ingest([HEADERS], [heights(40, 41)]))).toEqual(['40 unchanged', '41 proved']);
  expect(await attempts()).toEqual([{ attempt: 1, state: 'proved' }]);
});

test('an attempt that was opened by lookahead stayed open when its document lost the partition during an outage', async () => {
  const first = heights(70, 73);
  const made = [...first.made];
  const changed = losing({ ...first, made }, 2, async () => {
    made.splice(3, 1);
  });
  expect(states(await system.ingest([HEADERS], [changed]))).toEqual([
    '70 proved',
    '71 proved',
    '72 proved',
    '73 SOURCE_DOCUMENT_INVALID',
  ]);
  expect(await system.rows(`select state from attempts where partition_key = '73'`)).toEqual([{ state: 'abandoned' }]);
  expect(await system.catalog.partition(HEADERS, '73')).toBeUndefined();
});

describe('a killed publisher left an attempt with a damaged message in the log', () => {
  /** Opens an attempt at a height, and writes these messages as its frames. */
  async function leave(height: number, ...frames: Uint8Array[]): Promise<MadeDocument> {
    const document = heights(height, height);
    const opening = { attempt: 1, revision: 1, publisher: 'killed', document: factsOf(document), synthetic: false };
    await system.catalog.openAttempts(HEADERS, [`${height}`], opening);
    for (const [frame, message] of frames.entries()) {
      await jetstream(system.connection).publish(subjectOf(HEADERS.key, `${height}`, 1, frame), message);
    }
    return document;
  }
  const attempts = (height: number) =>
    system.rows(`select attempt, state from attempts where partition_key = $1 order by 1`, [`${height}`]);
  const FOLLOWED = [
    { attempt: 1, state: 'abandoned' },
    { attempt: 2, state: 'proved' },
  ];

  test('as its newest: every later document of its partition failed', async () => {
    const document = await leave(80, Buffer.from('not a frame'));
    expect(states(await system.ingest([HEADERS], [document]))).toEqual(['80 proved']);
    expect(await attempts(80)).toEqual(FOLLOWED);
  });

  test('before its newest: the document that met it failed', async () => {
    const { sha256 } = factsOf(heights(81, 81));
    const newest = await encodeMessage<FrameHeader>(
      {
        ...{ kind: 'frame', encoding: 'records', dataset: HEADERS.key, partition: '81', revision: 1, attempt: 1 },
        ...{ frame: 1, document_sha256: sha256, rows: 1, first_offset: '81', last_offset: '81' },
        ...{ first_ms: 1, last_ms: 1 },
      },
      Buffer.from('any'),
    );
    const document = await leave(81, Buffer.from('not a frame'), newest);
    expect(states(await system.ingest([HEADERS], [document]))).toEqual(['81 proved']);
    expect(await attempts(81)).toEqual(FOLLOWED);
  });
});

// The attempt was resumed and met the conflict again for a minute, and in every command that followed.
test('a later capture whose attempt meets another message in the log is published by the next attempt', async () => {
  const day = '2026-01-02';
  const key = `etf_ishares_ibit_daily:${day}`;
  const of = (units: string) =>
    documentOf({
      dataset: ETF,
      key,
      events: capture('etf_ishares_ibit_daily', day, { btc_units: units }),
      source: { span_end: START + 4 * 86_400_000 },
    });
  expect(states(await system.ingest([ETF], [of('10')]))).toEqual([`${key} proved`]);
  // A publisher was killed that had cut the document into other frames.
  const [document, second] = [factsOf(of('11')), `${key}:2`];
  const opening = { attempt: 1, revision: 1, publisher: 'killed', document, synthetic: false };
  await system.catalog.openAttempts(ETF, [second], opening);
  const frame = await encodeMessage<FrameHeader>(
    {
      ...{ kind: 'frame', encoding: 'records', dataset: ETF.key, partition: second, revision: 1, attempt: 1, frame: 0 },
      ...{ document_sha256: document.sha256, rows: 1, first_offset: 'a', last_offset: 'a', first_ms: 1, last_ms: 1 },
    },
    Buffer.from('cut elsewhere'),
  );
  await jetstream(system.connection).publish(subjectOf(ETF.key, second, 1, 0), frame);

  expect(states(await system.ingest([ETF], [of('11')]))).toEqual([`${second} proved`]);
  expect(
    await system.rows(`select attempt, state from attempts where partition_key = $1 order by 1`, [second]),
  ).toEqual([
    { attempt: 1, state: 'abandoned' },
    { attempt: 2, state: 'proved' },
  ]);
});

// The day was judged by its first capture: its document was not fetched until an operator acted on that one.
test('a third statement about a day was not fetched while the first capture was quarantined', async () => {
  const day = '2026-01-05';
  const key = `etf_ishares_ibit_daily:${day}`;
  const of = (units: string) =>
    documentOf({
      dataset: ETF,
      key,
      events: capture('etf_ishares_ibit_daily', day, { btc_units: units }),
      source: { span_end: START + 5 * 86_400_000 },
    });
  expect(states(await system.ingest([ETF], [of('10')]))).toEqual([`${key} proved`]);
  expect(states(await system.ingest([ETF], [of('11')]))).toEqual([`${key}:2 proved`]);
  await system.rows(`update partitions set state = 'quarantined', reason = 'checked' where partition_key = $1`, [key]);
  const options = { source: { datasets: [ETF] as const }, catalog: system.catalog, synthetic: false, compare: false };
  const plan = await planBackfill([of('12')], { ...options, reingest: false });
  expect(plan.documents.map(({ action }) => action)).toEqual(['compare']);
  expect(states(await system.ingest([ETF], [of('12')]))).toEqual([`${key}:3 proved`]);
});

// The first of them waited for ever: `follow` reads the same again while no projector is at work.
test('two documents that await the same attempt are both told of its proof', async () => {
  const snapshot = documentOf({ dataset: MEMPOOL, key: String(START + 500), events: [] });
  const stop = new AbortController();
  const documents = async function* () {
    yield snapshot;
    yield snapshot;
    await system.stopProjecting();
    system.project([MEMPOOL]);
  };
  const units = await system.ingest([MEMPOOL], documents(), { stop });
  expect(units.map(({ state }) => state)).toEqual(['proved', 'proved']);
});

// It sent on: a frame that it retried could come between those of the attempt that followed, which was then quarantined.
test('a writer that was stopped after a fault writes nothing more', async () => {
  const [{ dataset, key, events }] = documentOf({
    dataset: TRANSACTIONS,
    key: '50',
    events: [transaction(50, 0, START, Buffer.from('coinbase'))],
  }).made;
  const description = { dataset, key, attempt: 1, revision: 1, document: factsOf(heights(50, 50)), synthetic: false };
  const writer = await AttemptWriter.open(system.connection, description, 8);
  // Without a stream nobody acknowledges, and the writer retries.
  for (const event of events) {
    const frames = new RecordFrames(dataset, key, 4096);
    for (const item of [...frames.add(event), ...frames.end()])
      if (item.kind === 'events') await writer.writeFrame(item);
  }
  await writer.stop();
  const { state } = await ensureStream(system.operator, dataset.key, streamOptions(system.settings));
  expect(state.messages).toBe(0);
  await expect(writer.flush()).rejects.toThrow();
  await delay(2500);
  const manager = await jetstreamManager(system.operator);
  expect((await manager.streams.info(dataset.key)).state.messages).toBe(0);
});
