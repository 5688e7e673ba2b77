/** A log that is not as a publisher left it: rewound, emptied, full; and who may publish to it. */

import { execFileSync } from 'node:child_process';
import { readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { LogReader, type LogReaderOptions } from '../../pipelines/projector/log-reader.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { connect, PUBLISHER_LOCK } from '../../shared/db/connect.ts';
import { RunRecorder } from '../../shared/db/runs.ts';
import type { DocumentFacts } from '../../shared/frame/manifest.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { CONSUMER_NAME, ensureStream, firstMessageFrom } from '../../shared/nats/stream.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { LogFactsReader } from '../../shared/status/log-facts.ts';
import { type Json, runCommand } from '../support/command.ts';
import { faultOf } from '../support/faults.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { csvOf, DATASET, dayNames, documentPath, System, writeDocument } from '../support/pipeline.ts';
import { eventually } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { createTestEnv, temporaryDir } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';
import { compareNative } from '../support/trade-oracle.ts';

const ROWS = 200;

const readerOf = (connection: NatsConnection, options: Partial<LogReaderOptions> = {}) => {
  const { signal } = new AbortController();
  const dataset = exchangeASpotTrades;
  return new LogReader({ connection, dataset, pullMaxBytes: 1 << 24, signal, onLost: async () => {}, ...options });
};

// ---- the stream itself ---------------------------------------------------------------------------------------------

describe('a stream that is not the one that was projected', () => {
  const days = dayNames('2024-09-01', 3);
  const csv = (index: number) =>
    csvOf({ day: days[index], rows: ROWS, seed: 4, firstId: 1 + index * ROWS, timeUnit: 'ms' });

  test('made anew: refused at once, nothing is published to it, what is served stays', async () => {
    await using system = await System.create();
    for (const [index, day] of days.entries()) await writeDocument(system.vendor, day, csv(index));
    expect((await system.backfill(days[0], days[1])).exit).toBe(0);
    const digests = await system.digests();
    await using operator = await connectNats(system.env.natsOperatorUrl, 'operator');
    const manager = await jetstreamManager(operator);
    // The account that ingests cannot do this.
    await using ours = await connectNats(system.env.natsUrl, 'test');
    const mine = await jetstreamManager(ours, { timeout: 1000 });
    await expect(mine.streams.delete(DATASET)).rejects.toThrow();
    await expect(mine.streams.purge(DATASET)).rejects.toThrow();
    await expect(mine.streams.deleteMessage(DATASET, 1)).rejects.toThrow();
    await manager.streams.delete(DATASET);

    const startedAt = performance.now();
    const { exit, json } = await system.backfill(days[2], days[2]);
    expect([exit, json.error?.code ?? json.units?.[0].code]).toEqual([1, 'LOG_REWOUND']);
    expect(performance.now() - startedAt).toBeLessThan(PATIENCE_MS);
    expect(await system.log()).toEqual([]);
    expect(await system.digests()).toEqual(digests);
    expect((await system.traces(days[2])).state).toBe(null);
  });

  describe('by its checkpoint', () => {
    let system: System;
    beforeAll(async () => {
      system = await System.create();
      for (const [index, day] of days.entries()) await writeDocument(system.vendor, day, csv(index));
      expect((await system.backfill(days[0], days[0])).exit).toBe(0);
    });
    afterAll(() => system?.[Symbol.asyncDispose]());

    test.each([
      ['that ends before the checkpoint', 'set stream_sequence = stream_sequence + 5', 'it ends at sequence'],
      ['that holds another message there', `set message_sha256 = repeat('ab', 32)`, 'holds another message'],
      ['made at another time', `set stream_created = stream_created - interval '1 s'`, 'it was created'],
    ])('%s: refused', async (_name, change, reason) => {
      const messages = (await system.log()).length;
      await system.rows('create table was as select * from checkpoints');
      await system.rows(`update checkpoints ${change}`);
      const { exit, json } = await system.backfill(days[1], days[1]);
      expect([exit, json.error?.code]).toEqual([1, 'LOG_REWOUND']);
      expect(json.error.message).toContain(reason);
      expect((await system.log()).length).toBe(messages);
      await system.rows(`update checkpoints c set stream_sequence = w.stream_sequence, message_sha256 = w.message_sha256,
        stream_created = w.stream_created from was w where w.dataset_id = c.dataset_id`);
      await system.rows('drop table was');
    });
  });

  test('that lost its tail on disk: refused; the day is there all the same', async () => {
    // The embedded nats-server of a state folder: at rest between two commands, so that its files can be put back.
    await using system = await System.create();
    const dir = await temporaryDir();
    try {
      for (const [index, day] of days.entries()) await writeDocument(system.vendor, day, csv(index));
      const ours = Object.entries(system.settings).filter(([name]) => !name.startsWith('SVC_NATS_'));
      const env = { ...Object.fromEntries(ours), SVC_STATE_DIR: join(dir, 'state') };
      const run = (...args: string[]) => runCommand(args, env);
      const backfill = (day: string) => run('backfill', DATASET, '--from', day, '--to', day);
      expect((await backfill(days[0])).exit).toBe(0);
      const servers = join(env.SVC_STATE_DIR, 'servers');
      const store = join(servers, (await readdir(servers)).find((name) => name.startsWith('nats'))!);
      // `cp -a` keeps the owner, who may be another user.
      execFileSync('cp', ['-a', store, join(dir, 'copy')]);
      expect((await backfill(days[1])).exit).toBe(0);
      await rm(store, { recursive: true });
      execFileSync('cp', ['-a', join(dir, 'copy'), store]);
      const { exit, json } = await backfill(days[2]);
      expect([exit, json.error?.code]).toEqual([1, 'LOG_REWOUND']);
      expect(json.error.message).toContain('it ends at sequence');
      const status = await run('status', DATASET);
      expect(status.json.datasets[0].partitions.proved).toBe(2);
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  });

  test('with other settings than the immutable log has: refused, not repaired', async () => {
    await using system = await System.create();
    await using operator = await connectNats(system.env.natsOperatorUrl, 'operator');
    const manager = await jetstreamManager(operator);
    await manager.streams.add({ name: DATASET, subjects: [`${DATASET}.>`], max_bytes: 1 << 26 });
    await writeDocument(system.vendor, days[0], csv(0));
    const { exit, json } = await system.backfill(days[0], days[0], { SVC_STREAM_MAX_BYTES: String(1 << 26) });
    expect([exit, json.error?.code]).toEqual([1, 'LOG_MISCONFIGURED']);
    for (const name of ['discard', 'deny_delete', 'deny_purge']) expect(json.error.message).toContain(name);
  });

  test('of another tree, which states no format of this one: refused before anything is written', async () => {
    await using system = await System.create();
    await using operator = await connectNats(system.env.natsOperatorUrl, 'operator');
    await ensureStream(operator, DATASET, { maxBytes: 1 << 26 });
    const manager = await jetstreamManager(operator);
    await manager.streams.update(DATASET, { metadata: {} });
    await writeDocument(system.vendor, days[0], csv(0));
    const { exit, json } = await system.backfill(days[0], days[0], { SVC_STREAM_MAX_BYTES: String(1 << 26) });
    expect([exit, json.error?.code]).toEqual([1, 'LOG_MISCONFIGURED']);
    expect(json.error.message).toContain(`made the stream ${DATASET}`);
    expect(json.error.remedy).toContain('an empty log');
    expect((await manager.streams.info(DATASET)).state.messages).toBe(0);
  });
});

// A projector that lived through the restart of a log that had lost its tail took the new messages, whose sequences it had read
// before, for repetitions: their partitions were never proved, or quarantined.
test('behind a new connection may be an older copy of the log: the reader reads nothing from it', async () => {
  await using system = await System.create();
  await writeDocument(
    system.vendor,
    '2024-09-01',
    csvOf({ day: '2024-09-01', rows: ROWS, seed: 4, firstId: 1, timeUnit: 'ms' }),
  );
  expect((await system.backfill('2024-09-01', '2024-09-01')).exit).toBe(0);
  await using proxy = await startStoreProxy(system.env.natsOperatorUrl);
  await using connection = await connectNats(proxy.url, 'test');
  const reader = readerOf(connection);
  await reader.seek(0);
  expect((await reader.read(PATIENCE_MS))?.seq).toBe(1);
  let isBack = false;
  void (async () => {
    for await (const { type } of connection.status()) isBack ||= type === 'reconnect';
  })();
  proxy.cut();
  await expect.poll(() => isBack).toBe(true);
  const { message } = await faultOf(reader.read(1000), 'LOG_UNAVAILABLE');
  expect(message).toContain('compared with its checkpoint again');
  await reader.close();
});

describe('messages that are missing', () => {
  test('because the log lost them are left out, and named', async () => {
    await using log = await emptyLog();
    for (let sequence = 1; sequence <= 7; sequence++) await log.publish();
    // `first_seq` moves past the first two; the others are holes.
    for (const lost of [1, 2, 4, 5]) await log.manager.streams.deleteMessage(DATASET, lost);
    const lost: number[][] = [];
    const reader = readerOf(log.connection, { onLost: async (...range) => void lost.push(range) });
    await reader.seek(0);
    for (const seq of [3, 6, 7]) expect((await reader.read(PATIENCE_MS))?.seq).toBe(seq);
    expect(lost).toEqual([
      [1, 2],
      [4, 5],
    ]);
    await reader.close();
  });

  // The consumer counts them as delivered: the projector restarted for ever, and a command that waited for one of them waited on.
  test('at the end of the log are not waited for', async () => {
    await using log = await emptyLog();
    for (let sequence = 1; sequence <= 3; sequence++) await log.publish();
    for (const lost of [2, 3]) await log.manager.streams.deleteMessage(DATASET, lost);
    const reader = readerOf(log.connection, { quietMs: 50 });
    await reader.seek(0);
    expect((await reader.read(PATIENCE_MS))?.seq).toBe(1);
    for (let pauses = 0; pauses < 20; pauses++) expect(await reader.read(50)).toBeUndefined();
    await log.publish();
    expect((await reader.read(PATIENCE_MS))?.seq).toBe(4);
    await reader.close();
  });

  test('do not hide for how long those after them wait', async () => {
    await using log = await emptyLog();
    const reader = readerOf(log.connection);
    await reader.seek(0);
    for (let sequence = 1; sequence <= 3; sequence++) await log.publish();
    for (const lost of [1, 2]) await log.manager.streams.deleteMessage(DATASET, lost);
    const { time } = (await firstMessageFrom(log.manager, DATASET, 3))!;
    expect((await new LogFactsReader().read(log.manager, DATASET))?.waitingSince).toEqual(time);
    await reader.close();
  });

  test('because the consumer left them out are a fault', async () => {
    await using log = await emptyLog();
    const reader = readerOf(log.connection);
    await reader.seek(0);
    const readAll = async () => {
      while (await reader.read(PATIENCE_MS));
    };
    const fault = faultOf(readAll(), 'LOG_MISCONFIGURED');
    // Another pull from the same consumer takes every second message.
    const consumer = await jetstream(log.connection).consumers.get(DATASET, CONSUMER_NAME);
    const other = await consumer.consume({ max_messages: 10, callback: () => {} });
    await expect.poll(async () => (await consumer.info()).num_waiting).toBe(2);
    for (let sequence = 1; sequence <= 4; sequence++) await log.publish();
    expect((await fault).message).toMatch(new RegExp(`${DATASET} delivered \\d after \\d, although the log holds \\d`));
    await other.close();
    await reader.close();
  });

  /** A log like that of the dataset, from which messages can be deleted. */
  async function emptyLog() {
    const env = await createTestEnv();
    const connection = await connectNats(env.natsOperatorUrl, 'test');
    const manager = await jetstreamManager(connection);
    await manager.streams.add({ name: DATASET, subjects: [`${DATASET}.>`], max_bytes: 1 << 26 });
    return {
      connection,
      manager,
      publish: () => jetstream(connection).publish(`${DATASET}.test`, 'a message'),
      [Symbol.asyncDispose]: async () => {
        await connection[Symbol.asyncDispose]();
        await env[Symbol.asyncDispose]();
      },
    };
  }
});

// Seen after a kill -9 of nats-server that lost the only frames there were: it calls the message before the first one a
// "bad request", which was taken for an outage and asked again until patience ended.
test('an attempt whose frames were all lost begins again in the empty log', async () => {
  const day = '2024-09-01';
  const text = csvOf({ day, rows: ROWS, seed: 4, firstId: 1, timeUnit: 'us' });
  await using undisturbed = await System.create();
  await using system = await System.create();
  for (const { vendor } of [undisturbed, system]) await writeDocument(vendor, day, text);
  expect((await undisturbed.backfill(day, day)).exit).toBe(0);
  const [{ document }] = await undisturbed.rows<{ document: DocumentFacts }>('select document from attempts');
  const opening = { attempt: 1, revision: 1, publisher: 'killed', document, synthetic: false };
  await new Catalog(system.client).openAttempts(exchangeASpotTrades, [day], opening);

  const { json } = await system.backfill(day, day);
  expect(json.units).toMatchObject([{ partition: day, state: 'proved', rows: ROWS }]);
  expect(await system.rows('select attempt, state from attempts')).toEqual([{ attempt: 1, state: 'proved' }]);
  expect(await system.digests()).toEqual(await undisturbed.digests());
});

describe('a stream that is full', () => {
  const days = dayNames('2024-09-01', 3);

  test('stops the publisher with its own code; with more room, the same attempt goes on', async () => {
    await using system = await System.create();
    // The second fills it, so that there is one behind it.
    const rows = [25_000, 50_000, 5000];
    const csv: string[] = [];
    for (const [index, day] of days.entries()) {
      const text = csvOf({ day, rows: rows[index], seed: 4, firstId: 1 + index * 50_000, timeUnit: 'us' });
      await writeDocument(system.vendor, day, text);
      csv.push(join(system.env.dir, `${day}.csv`));
      await writeFile(csv[index], text);
    }
    const small = limitsEnv({ frameRawBytes: 50_000, publishWindow: 4 });
    const room = { SVC_STREAM_MAX_BYTES: String(1 << 20) };
    const { exit, json } = await system.backfill(days[0], days[2], { ...small, ...room });
    expect(exit).toBe(1);
    const units = json.units.toSorted((a: Json, b: Json) => a.partition.localeCompare(b.partition));
    const full = units.findIndex((unit: Json) => unit.code === 'LOG_FULL');
    expect(full).toBe(1);
    // The days behind it are not tried: the attempt must stay the log's last.
    expect(units.map((unit: Json) => unit.state)).toEqual(days.map((_, index) => (index < full ? 'proved' : 'failed')));
    expect(units.slice(full).map((unit: Json) => unit.code)).toEqual(days.slice(full).map(() => 'LOG_FULL'));
    expect(units[full].remedy).toContain('SVC_STREAM_MAX_BYTES');
    expect(await system.rows(`select partition_key, attempt from attempts where state <> 'proved'`)).toEqual([
      { partition_key: days[full], attempt: 1 },
    ]);
    expect(await system.traces(days[full])).toMatchObject({ native: 0, aligned: 0, covered: 0, manifests: 0 });
    const messages = (await system.log()).length;

    // As a flag, which the environment's value gives way to.
    const more = ['--stream-max-bytes', String(1 << 24)];
    const again = await system.backfill(days[0], days[2], { ...small, ...room }, more);
    expect([again.exit, again.json.proved, again.json.unchanged]).toEqual([0, days.length - full, full]);
    expect(await system.rows('select partition_key, attempt, state from attempts order by 1')).toEqual(
      days.map((day) => ({ partition_key: day, attempt: 1, state: 'proved' })),
    );
    const log = await system.log();
    expect(log.length).toBeGreaterThan(messages);
    expect(new Set(log.map(({ subject }) => subject)).size).toBe(log.length);
    expect(await compareNative(system, csv, system.env.dir)).toEqual([80_000, 80_000, 0, 0]);
    expect((await system.status()).log).toMatchObject({ max_bytes: 1 << 24, unreferenced_messages: 0 });
  });
});

describe('the publisher lease', () => {
  test('held by another names its holder; the day is proved when it is free again', { tags: ['nightly'] }, async () => {
    await using system = await System.create();
    const [day] = dayNames('2024-09-01', 1);
    await writeDocument(system.vendor, day, csvOf({ day, rows: ROWS, seed: 4, firstId: 1, timeUnit: 'ms' }));
    {
      await using holder = await connect({ url: system.env.databaseUrl, name: 'somebody else, pid 17' });
      await holder.query('select pg_advisory_lock($1, 1)', [PUBLISHER_LOCK]);
      const { exit, json } = await system.backfill(day, day);
      expect([exit, json.error.code]).toEqual([3, 'WORK_HELD']);
      expect(json.error.message).toContain('somebody else, pid 17');
      expect(await system.log()).toEqual([]);
    }
    expect((await system.backfill(day, day)).exit).toBe(0);
  });

  // A follower has it for one document, and is waited for: for a minute, whatever the operator did.
  test('of a follower was waited for, and Ctrl-C was ignored meanwhile', async () => {
    await using system = await System.create();
    const [day] = dayNames('2024-09-01', 1);
    const { databaseUrl } = system.env;
    await using holder = await connect({ url: databaseUrl, name: 'a follower' });
    const { rows } = await holder.query('select pg_backend_pid() pid, pg_advisory_lock($1, 1)', [PUBLISHER_LOCK]);
    const datasets = [exchangeASpotTrades];
    const command = './tidemark follow';
    await using run = await RunRecorder.open({ databaseUrl, kind: 'follow', subject: DATASET, datasets, command });
    await run.write({ lease_backend: rows[0].pid });
    const waiting = system.begin(['backfill', DATASET, '--from', day, '--to', day]);
    const asks = `select from pg_stat_activity where datname = current_database()
      and application_name like 'tidemark publisher%' and query like '%pg_try_advisory_lock%'`;
    await eventually(async () => (await holder.query(asks)).rowCount === 1, 'it asks for the lease');
    waiting.stop();
    const { exit, json } = await waiting.done;
    // Without a limit of the test's own: whoever waits to the end names the follower.
    expect([exit, json.feeds[0].error]).toEqual([130, { code: 'INTERRUPTED', message: 'interrupted' }]);
    const [ended] = await system.rows<Json>(`select state from runs where kind = 'backfill'`);
    expect(ended).toEqual({ state: 'interrupted' });
  });

  test('lets one of two commands publish at a time, and neither does harm', async () => {
    await using system = await System.create();
    const days = dayNames('2024-09-01', 4);
    const csv: string[] = [];
    for (const [index, day] of days.entries()) {
      const text = csvOf({ day, rows: 5000, seed: 4, firstId: 1 + index * 5000, timeUnit: 'ms' });
      await writeDocument(system.vendor, day, text);
      csv.push(join(system.env.dir, `${day}.csv`));
      await writeFile(csv[index], text);
    }
    const answers = await Promise.all([system.backfill(days[0], days[3]), system.backfill(days[0], days[3])]);
    const codes = answers.map(({ exit, json }) => (exit === 0 ? 'done' : json.error?.code));
    expect(codes).toContain('done');
    expect(codes.every((code) => code === 'done' || code === 'WORK_HELD')).toBe(true);
    expect(await compareNative(system, csv, system.env.dir)).toEqual([20_000, 20_000, 0, 0]);
    expect((await system.log()).filter(({ manifest }) => manifest)).toHaveLength(4);
  });
});

test('the documents are where the tests say they are', () => {
  expect(documentPath('2024-09-01')).toBe('spot/daily/trades/BTCUSDT/BTCUSDT-trades-2024-09-01.zip');
  expect(documentPath('2024-09')).toBe('spot/monthly/trades/BTCUSDT/BTCUSDT-trades-2024-09.zip');
});
