/** Mending: replay that only looks, quarantine and its ways out, verification on a schedule, stores out of step. */

import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { requireLogged } from '../../pipelines/projector/log-reader.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { connect } from '../../shared/db/connect.ts';
import { decodeMessage } from '../../shared/frame/codec.ts';
import { parseManifest } from '../../shared/frame/manifest.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { CHANGES_STREAM, ensureStream } from '../../shared/nats/stream.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import type { Json } from '../support/command.ts';
import { faultOf } from '../support/faults.ts';
import { attemptOf, publish } from '../support/forged-attempts.ts';
import { writeLake } from '../support/lake.ts';
import { csvOf, DATASET, dayNames, type LogMessage, System, writeDocument } from '../support/pipeline.ts';
import { type DuckDb, openDuckDb } from '../support/read-parquet.ts';
import { eventually, type Serving, startServing } from '../support/serving.ts';

const DAYS = dayNames('2024-05-01', 4);
const ROWS = 300;
let system: System;

beforeAll(async () => {
  system = await System.create();
  for (const [index, day] of DAYS.entries()) {
    const content = { day, rows: ROWS, seed: index + 1, firstId: 1 + index * ROWS, timeUnit: 'ms' } as const;
    await writeDocument(system.vendor, day, csvOf(content));
  }
  expect((await system.backfill(DAYS[0], DAYS[2])).exit).toBe(0);
});
afterAll(() => system[Symbol.asyncDispose]());

/** One price of a day becomes another; `undo` takes it back. */
const alter = (day: number, by: number) =>
  system.client.query(`update ${DATASET} set price = price + $1 where trade_id = $2`, [by, day * ROWS + 7]);
const stateOf = async (day: string) =>
  (await system.rows('select state from partitions where partition_key = $1', [day]))[0]?.state;
const run = async (...args: string[]): Promise<{ exit: number | null; json: Json }> => await system.run(args);

test('replay --verify-only tells what differs and changes nothing; replay of everything replaces that alone', async () => {
  await alter(1, 1);
  const looked = await run('replay', 'all', '--verify-only');
  expect(looked.exit).toBe(1);
  expect(looked.json.units.map(({ state }: Json) => state)).toEqual(['identical', 'differs', 'identical']);
  expect(looked.json.units[1].reason).toContain('rows_hash');
  const mended = await run('replay', 'all');
  expect([mended.exit, mended.json.units.map(({ state }: Json) => state)]).toEqual([
    0,
    ['identical', 'replaced', 'identical'],
  ]);
  expect((await run('replay', DATASET, '--verify-only')).exit).toBe(0);
});

describe('verification on a schedule', () => {
  test('one that could not be verified came first for ever, and the others were never looked at', {
    tags: ['nightly'],
  }, async () => {
    const where = `partition_key = '${DAYS[0]}'`;
    const [lost] = await system.rows(`update attempts set manifest_sequence = null where ${where} returning *, (
      select manifest_sequence from attempts o where o.${where} order by attempt desc limit 1) as was`);
    await system.client.query('update partitions set verified_at = null');
    const running = system.begin(['verify', DATASET, '--deep', '--every', '1']);
    const verified = async () => {
      const sql = 'select partition_key as day from partitions where verified_at is not null order by 1';
      return (await system.rows(sql)).map(({ day }) => day);
    };
    await expect.poll(verified).toEqual([DAYS[1], DAYS[2]]);
    const told = async () => {
      const { json } = await run('doctor', '--check', 'work');
      return json.checks.flatMap(({ findings }: Json) => findings.map(({ what }: Json) => what));
    };
    await expect
      .poll(told)
      .toEqual([expect.stringMatching(`1 partitions could not be verified.*${DAYS[0]}.*no longer holds`)]);
    await system.client.query(`update attempts set manifest_sequence = $1 where ${where}`, [lost.was]);
    await expect.poll(async () => (await verified()).length).toBe(3);
    running.stop();
    expect((await running.done).exit).toBe(0);
  });

  test('quarantines a proved partition one of whose stored rows was altered; quarantine shows expected and found', async () => {
    await system.client.query('update partitions set verified_at = null');
    await alter(0, 1);
    const running = system.begin(['verify', DATASET, '--every', '1']);
    await expect.poll(() => stateOf(DAYS[0])).toBe('quarantined');
    running.stop();
    expect((await running.done).exit).toBe(0);
    expect(await stateOf(DAYS[1])).toBe('proved');
    const { exit, json } = await run('quarantine', DATASET, DAYS[0]);
    expect([exit, json.partitions.length]).toEqual([0, 1]);
    const [one] = json.partitions;
    expect(one).toMatchObject({ partition: DAYS[0], by: 'verify', stored_rows: ROWS });
    const fact = one.discrepancies.find((found: Json) => found.fact === 'totals.price');
    // The column holds the price to eight decimals.
    expect(BigInt(fact.found) - BigInt(fact.expected)).toBe(100_000_000n);
    expect(one.remedy).toContain('replay');
  });

  test('release serves it again only when its rows are what they were', async () => {
    await alter(0, -1);
    const { exit, json } = await run('quarantine', 'release', DATASET, DAYS[0], '--reason', 'the row was put back');
    expect([exit, json.state]).toEqual([0, 'proved']);
    expect((await run('verify', DATASET)).exit).toBe(0);
    await alter(0, 1);
    expect((await run('verify', DATASET)).exit).toBe(1);
    const given = await run('quarantine', 'release', DATASET, DAYS[0], '--reason', 'fetch it anew');
    expect([given.exit, given.json.state]).toEqual([0, 'missing']);
    expect((await system.traces(DAYS[0])).native).toBe(0);
    expect((await system.backfill(DAYS[0], DAYS[2])).json).toMatchObject({ ok: true, proved: 1, unchanged: 2 });
    const ledger = await run('ledger', DATASET, '--limit', '100');
    const kinds = ledger.json.entries.map(({ kind, partition }: Json) => `${partition} ${kind}`);
    expect(kinds.filter((kind: string) => kind.startsWith(DAYS[0]))).toEqual([
      `${DAYS[0]} released`,
      `${DAYS[0]} quarantined`,
      `${DAYS[0]} released`,
      `${DAYS[0]} quarantined`,
    ]);
    expect((await run('quarantine', 'release', DATASET, DAYS[1], '--reason', 'x')).json.error.code).toBe('USAGE');
    // One that is named and not there was "nothing to do", and so done well.
    const named = await run('verify', DATASET, '--partition', '2001-01-01');
    expect([named.exit, named.json.error.code]).toEqual([2, 'USAGE']);
  });
});

describe('a lake that was written while a stored value was wrong', () => {
  let duck: DuckDb;
  let folder: string;
  let lakes = 0;
  beforeAll(async () => {
    duck = await openDuckDb();
  });
  afterAll(() => duck?.[Symbol.dispose]());

  const input = () => ({ databaseUrl: system.env.databaseUrl, folder });
  const pathOf = (day: number) => join(folder, `${DATASET}/native/date=${DAYS[day]}/instrument=BTCUSDT/*.parquet`);
  const priceIn = async (day: number) =>
    Number((await duck.texts(`select price from '${pathOf(day)}' where trade_id = ${day * ROWS + 7}`))[0][0]);
  /** Writes a lake with a wrong price of the day. @returns the right one */
  async function writeAltered(day: number): Promise<number> {
    folder = join(system.env.dir, `lake-${lakes++}`);
    await alter(day, 1);
    expect(await writeLake(input())).toMatchObject({ failed: [], skipped: [] });
    return (await priceIn(day)) - 1;
  }

  test('had it for ever after verify and replay', { tags: ['nightly'] }, async () => {
    const right = await writeAltered(1);
    expect((await run('verify', DATASET)).exit).toBe(1);
    expect((await run('replay', DATASET)).exit).toBe(0);
    // The wrong rows were quarantined, so that they go at once.
    expect(await writeLake(input())).toMatchObject({ failed: [], skipped: [] });
    expect(await priceIn(1)).toBeCloseTo(right, 6);
    // Neither a verification nor a replay that finds nothing makes it write a file again.
    for (const command of ['verify', 'replay']) expect((await run(command, DATASET)).exit).toBe(0);
    expect(await writeLake(input())).toMatchObject({ written: 0, replaced: 0, removed: 0 });
  });
});

describe('stores restored to different points', () => {
  let serving: Serving;
  beforeAll(async () => {
    serving = await startServing({ databaseUrl: system.env.databaseUrl });
  });
  afterAll(() => serving?.[Symbol.asyncDispose]());
  /** Rows of every day, in both modes, and klines: what is proved is served whatever became of the log. */
  const readsAll = async () => {
    for (const mode of ['native', 'aligned_1s']) {
      const { status, json } = await serving.query({ sources: [DATASET], mode });
      expect([mode, status]).toEqual([mode, 200]);
      if (mode === 'native') expect(json.row_count).toBe(DAYS.length * ROWS);
    }
    const body = JSON.stringify({ kline_size: '1d' });
    const klines = await serving.send({ path: '/v1/historical/exchange_a/spot/klines', body });
    expect([klines.status, klines.json.row_count]).toEqual([200, DAYS.length]);
  };

  const verdicts = async () => {
    const { json } = await run('recover', DATASET, '--dry-run');
    return [json.plans[0].verdict, json.plans[0].lost];
  };
  const doctor = async () => {
    const { json } = await run('doctor', '--check', 'checkpoints');
    const { state, findings } = json.checks.find(({ check }: Json) => check === 'checkpoints');
    return [state, findings.map(({ fix }: Json) => fix)];
  };

  test('the database behind: doctor says so, the projector catches up, nothing is doubled', async () => {
    const before = await system.digests();
    // As a backup has it that was taken before the day proved last, which is the first one, ingested again.
    const [day] = DAYS;
    const window = [Date.parse(`${day}T00:00:00Z`), Date.parse(`${day}T00:00:00Z`) + 86_400_000];
    const known = await system.rows<{ sequence: string }>(
      'select max(manifest_sequence) as sequence from attempts where partition_key <> $1',
      [day],
    );
    const sequence = Number(known[0].sequence);
    const message = (await system.log()).find((one) => one.sequence === sequence)!;
    await system.client.query('begin');
    const without: [string, unknown[]][] = [
      ['delete from partitions where partition_key = $1', [day]],
      ['delete from frames where partition_key = $1', [day]],
      ['delete from attempts where manifest_sequence > $1', [sequence]],
      [`delete from ${DATASET} where "timestamp" >= $1 and "timestamp" < $2`, window],
      [
        `delete from canonical_aligned_1s_aggregates where aligned_at_utc >= to_timestamp($1 / 1000.0)
         and aligned_at_utc < to_timestamp($2 / 1000.0)`,
        window,
      ],
      ['update coverage set proved = proved - int8multirange(int8range($1, $2)) where dataset_id = 1', window],
      [
        'update checkpoints set stream_sequence = $1, message_sha256 = $2 where dataset_id = 1',
        [sequence, createHash('sha256').update(message.data).digest('hex')],
      ],
    ];
    for (const [sql, values] of without) await system.client.query(sql, values);
    await system.client.query('commit');
    expect(await verdicts()).toEqual(['log_ahead', []]);
    expect(await doctor()).toEqual(['warning', ['./tidemark up: its projector clears the backlog']]);
    expect((await system.backfill(DAYS[0], DAYS[3])).exit).toBe(0);
    const { [DAYS[3]]: _new, ...after } = await system.digests();
    expect(after).toEqual(before);
    expect((await run('verify', DATASET, '--deep')).exit).toBe(0);
  });

  test('a message that another program wrote into the stream of changes: doctor says so, recover fills it again', async () => {
    await using connection = await connectNats(system.env.natsProjectorUrl, 'test');
    await using operator = await connectNats(system.env.natsOperatorUrl, 'test');
    await ensureStream(operator, CHANGES_STREAM, { maxBytes: 1 << 26 });
    const { seq } = await jetstream(connection).publish(`${CHANGES_STREAM}.${DATASET}.proved`, '{"number":1}');
    const changesOf = async () => {
      const { json } = await run('doctor', '--check', 'changes');
      return json.checks.find(({ check }: Json) => check === 'changes').state;
    };
    expect([seq, await changesOf()]).toEqual([1, 'fault']);
    const dry = await run('recover', DATASET, '--dry-run');
    expect(dry.json.changes).toEqual({
      finding: expect.stringMatching(/its message 1 |holds 1 changes, and the catalog 0/),
      rewritten: null,
    });
    const { json } = await run('recover', DATASET);
    const [head] = await system.rows('select size::int4 from proof_head');
    expect(json.changes).toEqual({ finding: dry.json.changes.finding, rewritten: head?.size ?? 0 });
    expect(await changesOf()).toBe('ok');
    expect((await run('recover', DATASET)).json.changes).toEqual({ finding: null, rewritten: null });
  });

  test('the stream made anew: refused; recover names what is lost, reingest puts it back, reads never stop', async () => {
    await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
    await (await jetstreamManager(connection)).streams.delete(DATASET);
    expect((await system.backfill(DAYS[0], DAYS[3], {}, ['--compare'])).json.error.code).toBe('LOG_REWOUND');
    expect(await doctor()).toEqual(['fault', [`./tidemark recover ${DATASET}`]]);
    expect(await verdicts()).toEqual(['stream_recreated', DAYS]);
    await readsAll();
    const { exit, json } = await run('recover', 'all');
    expect([exit, json.changed, json.plans.find(({ dataset }: Json) => dataset === DATASET).lost]).toEqual([
      0,
      1,
      DAYS,
    ]);
    const fix = './tidemark reingest, with a --reason, writes them to the log again';
    expect(await doctor()).toEqual(['warning', [fix]]);
    // It was said that no proved partition holds it.
    expect((await run('event', DATASET, '5')).json.error.code).toBe('LOG_DAMAGED');
    expect((await run('event', DATASET, '99999999')).json.error.code).toBe('EVENT_UNKNOWN');
    const lineage = await serving.send({ method: 'GET', path: `/v1/lineage/${DATASET}/5` });
    expect([lineage.status, lineage.json.code]).toEqual([503, 'LINEAGE_LOG_DAMAGED']);
    expect((await run('verify', DATASET)).exit).toBe(0);
    const deep = await run('verify', DATASET, '--deep');
    expect(deep.json.units.map(({ code }: Json) => code)).toEqual(DAYS.map(() => 'LOG_DAMAGED'));
    expect((await system.reingest(DAYS[0], DAYS[3], 'the log was lost')).json).toMatchObject({ ok: true, proved: 4 });
    expect(await doctor()).toEqual(['ok', []]);
    expect((await run('replay', DATASET, '--verify-only')).exit).toBe(0);
  });

  test('the database ahead of the log: the checkpoint goes back to the last message that both know', async () => {
    // As a backup of the log from before the last two days would be: the same messages, the tail gone.
    const messages = await system.log();
    await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
    const manager = await jetstreamManager(connection);
    const { config } = await manager.streams.info(DATASET);
    await manager.streams.delete(DATASET);
    await manager.streams.add(config);
    const kept = messages.filter(({ header }) => header.partition < DAYS[2]);
    for (const { subject, data } of kept) await jetstream(connection).publish(subject, data);
    const lost = DAYS.slice(2);
    expect(await verdicts()).toEqual(['stream_recreated', lost]);
    const { json } = await run('recover', DATASET, '--reason', 'log restored from a backup');
    expect(json.plans[0]).toMatchObject({ common_sequence: kept.at(-1)!.sequence, lost });
    await readsAll();
    const deep = await run('verify', DATASET, '--deep');
    expect(deep.json.units.map(({ state }: Json) => state)).toEqual(['proved', 'proved', 'failed', 'failed']);
    expect((await system.reingest(lost[0], lost[1], 'the log lost its tail')).exit).toBe(0);
  });

  test.each([
    ['log_behind', 'that lost its tail, as a copy of its files is', (_tail: readonly LogMessage[]) => []],
    ['other_messages', 'whose lost tail was written over', (tail: readonly LogMessage[]) => tail.toReversed()],
    ['no_stream', 'that is gone', undefined],
  ] as const)(
    '%s, a log %s: recover says what is lost, and reingest puts it back',
    { tags: ['nightly'] },
    async (verdict, _what, after) => {
      const messages = await system.log();
      await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
      const dataset = datasetOf(DATASET);
      const read = async () => (await new Catalog(system.client).checkpoint(dataset))!;
      await requireLogged(connection, dataset, await read());
      const manager = await jetstreamManager(connection);
      const { config } = await manager.streams.info(DATASET);
      await manager.streams.delete(DATASET);
      const lost = after ? DAYS.slice(2) : DAYS;
      if (after) {
        const { created } = await manager.streams.add(config);
        const kept = messages.filter(({ header }) => !lost.includes(header.partition));
        const tail = messages.filter(({ header }) => lost.includes(header.partition));
        for (const { subject, data } of [...kept, ...after(tail)]) await jetstream(connection).publish(subject, data);
        // A copy of its files keeps the time that the stream was made at.
        await system.client.query(
          'update checkpoints set stream_created = $1, stream_sequence = $2, message_sha256 = $3',
          [created, kept.length + tail.length, createHash('sha256').update(tail.at(-1)!.data).digest('hex')],
        );
      }
      expect(await verdicts()).toEqual([verdict, lost]);
      // A commit after that loss would move the checkpoint to a message that is gone.
      await faultOf(requireLogged(connection, dataset, await read()), 'LOG_UNAVAILABLE');
      await readsAll();
      expect(await doctor()).toEqual(['fault', [`./tidemark recover ${DATASET}`]]);
      expect((await run('recover', DATASET, '--reason', 'the log was restored')).exit).toBe(0);
      // What stands in the tail's place is ahead of the projector, until somebody projects.
      expect(await doctor()).toMatchObject(['warning', { length: verdict === 'other_messages' ? 2 : 1 }]);
      const deep = await run('verify', DATASET, '--deep');
      expect(
        deep.json.units.filter(({ state }: Json) => state === 'failed').map(({ partition }: Json) => partition),
      ).toEqual(lost);
      expect((await system.reingest(lost[0], lost.at(-1)!, 'the log lost it')).exit).toBe(0);
      expect((await run('verify', DATASET, '--deep')).exit).toBe(0);
    },
  );

  // `recover` ran before the commit, found nothing to correct, and the next start refused the log again.
  test('a log that was restored during a proof is not committed as projected: what it holds is projected', {
    tags: ['nightly'],
  }, async () => {
    await using own = await System.create();
    for (const index of [0, 1]) {
      const content = {
        day: DAYS[index],
        rows: ROWS,
        seed: index + 1,
        firstId: 1 + index * ROWS,
        timeUnit: 'ms',
      } as const;
      await writeDocument(own.vendor, DAYS[index], csvOf(content));
    }
    expect((await own.backfill(DAYS[0], DAYS[0])).exit).toBe(0);
    const kept = await own.log();
    await using holding = await connect({ url: own.env.databaseUrl, name: 'test of a restored log' });
    await holding.query('begin; select from coverage for update');
    const running = own.begin(['backfill', DATASET, '--from', DAYS[0], '--to', DAYS[1]]);
    const waits = `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
      and application_name like 'tidemark projector%'`;
    await eventually(async () => (await own.rows(waits)).length === 1, 'the projector waits for the coverage');
    await using connection = await connectNats(own.env.natsOperatorUrl, 'test');
    const manager = await jetstreamManager(connection);
    const { config } = await manager.streams.info(DATASET);
    await manager.streams.delete(DATASET);
    const { created } = await manager.streams.add(config);
    for (const { subject, data } of kept) await jetstream(connection).publish(subject, data);
    // A copy of its files keeps the time that the stream was made at.
    await own.client.query('update checkpoints set stream_created = $1', [new Date(created)]);
    const recovering = own.run(['recover', DATASET, '--reason', 'the log lost its tail']);
    const recovers = waits.replace('projector%', 'recover');
    await eventually(async () => (await own.rows(recovers)).length === 1, 'recover waits for the commit');
    await holding.query('rollback');
    expect((await recovering).json.plans).toMatchObject([{ verdict: 'in_step', lost: [] }]);
    running.stop();
    await running.done;
    expect(await own.rows(`select partition_key as day from partitions where state = 'proved'`)).toEqual([
      { day: DAYS[0] },
    ]);
    expect(await own.rows('select stream_sequence from checkpoints')).toEqual([{ stream_sequence: `${kept.length}` }]);
    expect((await own.backfill(DAYS[0], DAYS[1])).json).toMatchObject({ ok: true, proved: 1 });
    expect((await own.run(['verify', DATASET, '--deep'])).exit).toBe(0);
  });

  // The checkpoint went to the end of what was published since, which then nobody projected: every command waited for it.
  test('a day that was published after the log lost its tail is projected, and every lost day is named', async () => {
    const day = '2024-05-05';
    // Its end lies between those of the second and the third day, which are the middle of what is looked at.
    const csv = csvOf({ day, rows: 240, seed: 5, firstId: 1 + 4 * ROWS, timeUnit: 'ms' });
    await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
    const manager = await jetstreamManager(connection);
    const { config } = await manager.streams.info(DATASET);
    await manager.streams.delete(DATASET);
    const { created } = await manager.streams.add(config);
    await system.client.query('update checkpoints set stream_created = $1', [created]);
    // A publisher that has not noticed.
    const catalog = new Catalog(system.client);
    const dataset = datasetOf(DATASET);
    const attempt = attemptOf(day, csv);
    const { document } = attempt.facts;
    const opening = { attempt: 1, revision: 1, document, synthetic: false, publisher: 'test' };
    await catalog.openAttempts(dataset, [day], opening);
    await publish(system.env, attempt);
    const end = (await system.log()).at(-1)!;
    const manifest = parseManifest((await decodeMessage(end.data, 'its end')).raw, 'its end');
    await catalog.markPublished(dataset, [{ manifest, sequence: end.sequence }]);
    const ends = await system.rows(
      'select manifest_sequence::int4 as at from attempts where manifest_sequence > 0 order by 1',
    );
    expect(ends.map(({ at }) => at)).toEqual([2, 4, end.sequence, 6, 8]);
    const { exit, json } = await run('recover', DATASET);
    expect([exit, json.plans[0].common_sequence, json.plans[0].lost]).toEqual([0, 0, DAYS]);
    await writeDocument(system.vendor, day, csv);
    const brought = await system.backfill(day, day);
    expect([brought.exit, await stateOf(day)]).toEqual([0, 'proved']);
    expect((await system.reingest(DAYS[0], DAYS[3], 'the log lost it')).exit).toBe(0);
    expect((await run('verify', DATASET, '--deep')).exit).toBe(0);
  });

  // Recovery bisected for the last common manifest: of two lost days it named the one after it.
  test('a log that lost messages before others that it kept: each lost day is named', async () => {
    const messages = await system.log();
    const [first, last] = [messages[0].header.partition, messages.at(-1)!.header.partition];
    await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
    const manager = await jetstreamManager(connection);
    const { config } = await manager.streams.info(DATASET);
    await manager.streams.delete(DATASET);
    const kept = messages.filter(({ header }) => header.partition !== first);
    const { created } = await manager.streams.add({ ...config, first_seq: kept[0].sequence });
    const tail = kept.filter(({ header }) => header.partition === last);
    const whole = kept.filter(({ header }) => header.partition !== last);
    for (const { subject, data } of [...whole, ...tail.toReversed()])
      await jetstream(connection).publish(subject, data);
    await system.client.query('update checkpoints set stream_created = $1', [created]);
    // A day that waited for its proof.
    const waiting = '2024-05-06';
    const catalog = new Catalog(system.client);
    const dataset = datasetOf(DATASET);
    const { manifest } = (await catalog.partition(dataset, last))!;
    const opening = { attempt: 1, revision: 1, document: manifest!.document, synthetic: false, publisher: 'test' };
    await catalog.openAttempts(dataset, [waiting], opening);
    const published = { ...manifest!, partition: waiting, attempt: 1 };
    await catalog.markPublished(dataset, [{ manifest: published, sequence: messages.at(-1)!.sequence + 2 }]);
    const lost = [first, last].sort();
    expect(await verdicts()).toEqual(['other_messages', lost]);
    const { json } = await run('recover', DATASET, '--reason', 'the log lost messages');
    expect(json.plans[0]).toMatchObject({ lost, common_sequence: whole.at(-1)!.sequence });
    // Who follows the vendor asks for it again.
    expect((await catalog.attempt(dataset, waiting, 1))?.state).toBe('abandoned');
    expect(await catalog.partition(dataset, waiting)).toBeUndefined();
    const failed = async () => {
      const { json: deep } = await run('verify', DATASET, '--deep');
      return deep.units.filter(({ state }: Json) => state === 'failed').map(({ partition }: Json) => partition);
    };
    expect(await failed()).toEqual(lost);
    for (const day of lost) expect((await system.reingest(day, day, 'the log lost it')).exit).toBe(0);
    expect(await failed()).toEqual([]);
  });
});
