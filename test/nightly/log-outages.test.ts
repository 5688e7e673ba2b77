/** A log that is there and does not answer, or loses what it was asked for: waited out, asked again, never misread. */
import { jetstreamManager } from '@nats-io/jetstream';
import { describe, expect, test } from 'vitest';
import { framesOf } from '../../pipelines/projector/verify.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { CONSUMER_NAME, ensureStream, streamInfo } from '../../shared/nats/stream.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { heightKey } from '../../shared/registry/keys.ts';
import { faultOf } from '../support/faults.ts';
import { documentOf, HEADERS, header, KindSystem } from '../support/kinds.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { createTestEnv } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';

const STREAM = { maxBytes: 1 << 20 };

describe('a log that does not answer', () => {
  test('is asked again until it does, and who waits is told', async () => {
    await using env = await createTestEnv();
    await using proxy = await startStoreProxy(env.natsOperatorUrl);
    const told: string[] = [];
    await using connection = await connectNats(proxy.url, 'test', { onWait: (message) => told.push(message) });
    proxy.mute();
    const making = ensureStream(connection, 'waited_for', STREAM);
    await expect.poll(() => told).toEqual([expect.stringMatching(/does not answer \$JS\.API.*for up to 60 s/)]);
    proxy.unmute();
    expect((await making).config.name).toBe('waited_for');
    expect(told.slice(1)).toEqual(['the log answers again']);
  });

  test('is waited for by a command', async () => {
    await using system = await System.create();
    await using proxy = await startStoreProxy(system.env.natsOperatorUrl);
    const day = '2024-09-01';
    await writeDocument(system.vendor, day, csvOf({ day, rows: 200, seed: 4, firstId: 1, timeUnit: 'ms' }));
    proxy.muteAt('$JS.API.');
    const args = ['backfill', DATASET, '--from', day, '--to', day];
    const running = system.start(args, { SVC_NATS_OPERATOR_URL: proxy.url });
    let said = '';
    running.child.stderr!.on('data', (text) => {
      said += text;
    });
    await expect.poll(() => said).toContain('the log does not answer');
    proxy.unmute();
    const { exit, json, stderr } = await running.done;
    expect([exit, json?.proved], stderr).toEqual([0, 1]);
  });

  test('is given up when its time is over, with a code that says so', async () => {
    await using env = await createTestEnv();
    await using proxy = await startStoreProxy(env.natsOperatorUrl);
    await using connection = await connectNats(proxy.url, 'test', { limitMs: 2000 });
    proxy.mute();
    const { message } = await faultOf(ensureStream(connection, 'never', STREAM), 'LOG_UNAVAILABLE');
    expect(message).toContain('did not answer for 2 s');
  });

  test('holds up nobody who is told to stop', async () => {
    await using env = await createTestEnv();
    await using proxy = await startStoreProxy(env.natsOperatorUrl);
    const stop = new AbortController();
    const onWait = () => stop.abort(new Error('told to stop'));
    await using connection = await connectNats(proxy.url, 'test', { onWait, signal: stop.signal });
    proxy.mute();
    await expect(ensureStream(connection, 'stopped', STREAM)).rejects.toThrow(/told to stop|aborted/);
  });

  test('is asked once by who did not say that he waits, and refusals are nobody to wait for', async () => {
    await using env = await createTestEnv();
    await using proxy = await startStoreProxy(env.natsOperatorUrl);
    await using once = await connectNats(proxy.url, 'test');
    const told: string[] = [];
    await using patient = await connectNats(env.natsUrl, 'test', { onWait: (message) => told.push(message) });
    const manager = await jetstreamManager(patient, { checkAPI: false });
    expect(await streamInfo(manager, 'not_there')).toBeUndefined();
    await expect(manager.streams.delete('not_there')).rejects.toThrow(/permissions/i);
    expect(told).toEqual([]);
    proxy.mute();
    const asked = jetstreamManager(once, { checkAPI: false, timeout: 500 });
    await expect(streamInfo(await asked, 'not_there')).rejects.toThrow('timeout');
  });
});

describe('a backfill whose store dies before its first document', () => {
  test.each([
    ['SVC_DATABASE_URL', 'as it is looked for', 'tidemark stack'],
    ['SVC_NATS_URL', 'as it is looked for', 'tidemark stack'],
    ['SVC_DATABASE_URL', 'as it takes down what it does', 'insert into runs'],
    ['SVC_DATABASE_URL', 'as it takes its lease', 'pg_try_advisory_lock'],
    ['SVC_DATABASE_URL', 'as it looks for the checkpoint', 'from checkpoints'],
    ['SVC_DATABASE_URL', 'as it plans', 'partition_key = any'],
    ['SVC_NATS_URL', 'as it connects', 'tidemark backfill'],
    ['SVC_NATS_URL', 'as it looks how far the log is', '$JS.API.STREAM.INFO'],
    ['SVC_NATS_OPERATOR_URL', 'as it makes the stream', '$JS.API.STREAM.INFO'],
  ] as const)('%s, %s: waits for it and goes on', async (setting, _when, words) => {
    await using system = await System.create();
    await using proxy = await startStoreProxy(system.settings[setting]);
    const day = '2024-09-01';
    await writeDocument(system.vendor, day, csvOf({ day, rows: 200, seed: 4, firstId: 1, timeUnit: 'ms' }));
    proxy.dieAt(words, 3);
    const { exit, json, stderr } = await system.backfill(day, day, { [setting]: proxy.url });
    expect(proxy.hasDied(), 'nobody said the words').toBe(true);
    expect([exit, json?.proved], stderr).toEqual([0, 1]);
  });

  test('waits for nothing where waiting changes nothing: a wrong password, a name that nobody knows', async () => {
    await using system = await System.create();
    for (const [setting, code] of [
      ['SVC_DATABASE_URL', 'DATABASE_UNAVAILABLE'],
      ['SVC_NATS_URL', 'LOG_UNAVAILABLE'],
    ] as const) {
      const [password, host] = [new URL(system.settings[setting]), new URL(system.settings[setting])];
      password.password = 'wrong';
      host.hostname = 'nobody.invalid';
      for (const { href } of [password, host]) {
        const { exit, json, stderr } = await system.backfill('2024-09-01', '2024-09-01', { [setting]: href });
        expect([exit, json?.error.code], stderr).toEqual([1, code]);
        expect(stderr).not.toContain('retrying');
      }
    }
  });
});

// Messages on their way when a connection breaks count as delivered: no server sends them again.
test('what was lost on its way to the projector is read again, with nothing behind it', async () => {
  await using system = await KindSystem.create();
  await using proxy = await startStoreProxy(system.env.natsProjectorUrl);
  system.project([HEADERS], proxy.url);
  const block = (height: number) => {
    const ms = Date.parse('2026-01-01T00:00:00Z') + height * 1000;
    const [events, source] = [[header(height, ms)], { through_ms: ms + 1000 }];
    return documentOf({ dataset: HEADERS, key: heightKey(height, height), events, source });
  };
  expect((await system.ingest([HEADERS], [block(0)])).map(({ state }) => state)).toEqual(['proved']);
  proxy.mute();
  const ingesting = system.ingest([HEADERS], [block(1)]);
  const manager = await jetstreamManager(system.connection, { checkAPI: false });
  const delivered = async () => (await manager.consumers.info(HEADERS.key, CONSUMER_NAME)).delivered.stream_seq;
  // A frame and a manifest of each.
  await expect.poll(delivered).toBe(4);
  proxy.cut();
  expect((await ingesting).map(({ state }) => state)).toEqual(['proved']);
});

test('frames are read on where a reader was lost: no proof says that they are not there', async () => {
  await using system = await System.create();
  const day = '2024-09-01';
  await writeDocument(system.vendor, day, csvOf({ day, rows: 5000, seed: 4, firstId: 1, timeUnit: 'ms' }));
  expect((await system.backfill(day, day, limitsEnv({ frameRawBytes: 20_000 }))).exit).toBe(0);
  const catalog = new Catalog(system.client);
  const { manifest } = (await catalog.partition(exchangeASpotTrades, day))!;
  expect(manifest!.frames).toBeGreaterThan(10);
  const { manifestSequence } = (await catalog.attempt(exchangeASpotTrades, day, 1))!;
  await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
  const manager = await jetstreamManager(connection);
  let lost = 0;
  const read: number[] = [];
  // A message a pull: the reader is asked for each. It is lost before each of them, the last one included.
  for await (const { header } of framesOf(connection, manifest!, manifestSequence!, 1)) {
    read.push(header.frame);
    for await (const { name } of manager.consumers.list(DATASET)) {
      if (name !== CONSUMER_NAME && (await manager.consumers.delete(DATASET, name))) lost++;
    }
  }
  expect(read).toEqual(Array.from({ length: manifest!.frames }, (_, index) => index));
  expect(lost).toBeGreaterThan(10);
});
