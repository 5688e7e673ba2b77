/** A log that was restored from a backup: who notices, what they say, and how the log continues. And a log that is idle, or kept back. */
import { cp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { leavesAheadAt, publishChanges } from '../../pipelines/proof-log/change-publisher.ts';
import { Sequencer } from '../../pipelines/proof-log/sequencer.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { holdSecret } from '../../shared/db/proof-secret.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { CHANGES_STREAM, ensureStream } from '../../shared/nats/stream.ts';
import { encodeLeaf, logLeaf } from '../../shared/proof-log/leaf.ts';
import { readSigners, rotateSigner } from '../../shared/proof-log/signers.ts';
import { System } from '../support/pipeline.ts';
import { backUpLog, checkpointOf, forgeLog, logFolderOf, sequence } from '../support/proof-log.ts';
import { SAMPLE_MATRIX } from '../support/serving.ts';

let system: System;
let client: Client;
let log: string;
beforeEach(async () => {
  system = await System.create();
  client = await connect({ url: system.env.databaseUrl, name: 'test' });
  log = logFolderOf(system.env);
  // As a projector does at its start.
  await holdSecret(client, log);
});
afterEach(async () => {
  await client[Symbol.asyncDispose]();
  await system[Symbol.asyncDispose]();
});

const inDir = (name: string) => join(system.env.dir, name);
const watch = async (url: string, ...args: string[]) =>
  await system.run(['watch-log', url, '--once', '--state', inDir('watch.json'), ...args]);

/** Adds leaves about the log itself, and signs. */
async function grow(count: number): Promise<number> {
  for (let at = 0; at < count; at++) {
    const leaf = encodeLeaf(logLeaf({ kind: 'restored', reason: `leaf ${Math.random()}` }));
    await client.query(`insert into proof_leaves (kind, body) values ('restored', $1)`, [leaf]);
  }
  return await sequence(system.env);
}

const backUp = () => backUpLog(client, log, inDir('backup'));

/** Writes the leaves to the stream of changes. */
async function publish(): Promise<void> {
  await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
  await ensureStream(connection, CHANGES_STREAM, { maxBytes: 1 << 26 });
  const manager = await jetstreamManager(connection, { checkAPI: false });
  await publishChanges({ client, manager, jetstream: jetstream(connection) });
}

/** The sequencer as the projector runs it. */
const open = (refreshMs = 1000) =>
  Sequencer.open({ client, folder: log, leavesAhead: leavesAheadAt(system.env.natsUrl), refreshMs });

/** A rotation would end the key at a size below the tree that it signed, which no later one could mend. */
async function refusesRotation(): Promise<void> {
  const kept = () =>
    Promise.all([readFile(`${log}.key`, 'utf8'), readFile(join(log, 'rotations'), 'utf8').catch(() => '')]);
  const before = await kept();
  const { exit, json } = await system.run(['proof-log', 'rotate']);
  expect([exit, json.error?.code, await kept()]).toEqual([1, 'PROOF_LOG_DIVERGED', before]);
}

describe('a log that was restored', () => {
  test('is told from one that forked, by a follower who saw more', async () => {
    await grow(300);
    const restore = await backUp();
    await grow(40);
    expect((await watch(log)).exit).toBe(0);
    const { current } = (await readSigners({ folder: log }))!;
    await restore();
    const seen = await watch(log);
    expect([seen.exit, seen.json.faults]).toEqual([
      1,
      [
        expect.stringMatching(
          /^the log shrank from 340 to 300 leaves, which are the first of them: it was restored from a backup\. Its operator/,
        ),
      ],
    ]);
    const fork = inDir('fork');
    await forgeLog(
      fork,
      Array.from({ length: 200 }, (_, at) => Buffer.from(`other ${at}`)),
      [current],
    );
    const forked = await watch(fork);
    expect([forked.exit, forked.json.faults]).toEqual([
      1,
      ['the log shrank from 340 to 200 leaves, which are not the first of them: it forked, and history was rewritten'],
    ]);
  });

  test('by more leaves than a follower remembers is left to a mirror, which tells', async () => {
    await grow(5);
    const restore = await backUp();
    await grow(1100);
    expect((await watch(log, '--mirror', inDir('mirror'))).exit).toBe(0);
    await restore();
    const { json } = await watch(log);
    expect(json.faults).toEqual([
      expect.stringMatching(/^the log shrank from 1105 to 5 leaves: .* only a mirror of it tells/),
    ]);
    const told = await system.run(['check', inDir('mirror'), '--log', log]);
    expect([told.exit, told.json.checked]).toEqual([
      0,
      expect.arrayContaining(['the tree of 1105 leaves continues that of 5']),
    ]);
  });

  test('signs nothing where the stream of changes has more, and takes its leaves back', async () => {
    await grow(3);
    const restore = await backUp();
    await system.run(['proof-log', 'rotate']);
    await grow(4);
    const key = await readFile(`${log}.key`, 'utf8');
    await publish();
    const { note, size } = await checkpointOf(system.env);
    expect((await watch(log)).exit).toBe(0);
    await restore();
    await expect(open()).rejects.toMatchObject({
      code: 'PROOF_LOG_DIVERGED',
      message: expect.stringContaining(`hold 3 leaves of the proof log, and the stream of changes ${size}`),
      remedy: expect.stringContaining('Never begin another log'),
    });
    await refusesRotation();
    const { json } = await system.run(['recover', 'all']);
    expect(json.proof_log).toMatch(/^database and folder lack 5 leaves from 3 on, which the stream of changes has/);
    expect(json.changes).toMatchObject({ rewritten: null, kept: true });
    const { exit, json: restored } = await system.run(['proof-log', 'restored', '--reason', 'backup of Monday']);
    expect([exit, restored]).toMatchObject([0, { from: 3, to: 8, leaves: 5 }]);
    // The key of the rotation that was lost with the rest is needed.
    expect(await readFile(`${log}.key`, 'utf8')).toBe(key);
    await (await open()).round();
    const head = await checkpointOf(system.env);
    expect([head.size, (await watch(log)).exit]).toEqual([9, 0]);
    await writeFile(inDir('before'), note);
    expect((await system.run(['check', inDir('before'), join(log, 'checkpoint'), '--log', log])).exit).toBe(0);
  });

  test('signs nothing smaller than the checkpoint that a follower shows, and goes on with the tiles of a mirror', async () => {
    await grow(3);
    const restore = await backUp();
    await grow(4);
    expect((await watch(log, '--mirror', inDir('mirror'))).exit).toBe(0);
    await restore();
    const running = await open();
    const args = ['recover', 'all', '--checkpoint', join(inDir('mirror'), 'checkpoint')];
    const { json, exit } = await system.run(args);
    expect([exit, json.proof_log]).toEqual([
      0,
      expect.stringMatching(
        / is a checkpoint of 7 leaves, and no store of the proof log has more than 3: .*Restore the newer tiles/,
      ),
    ]);
    // At once, so that an idle sequencer gives up its lock, for which the repair waits.
    await expect(running.round()).rejects.toMatchObject({ code: 'PROOF_LOG_DIVERGED' });
    await client.query(`insert into proof_leaves (kind, body) values ('restored', convert_to('another', 'UTF8'))`);
    for (const refused of [() => running.round(), open])
      await expect(refused()).rejects.toMatchObject({
        code: 'PROOF_LOG_DIVERGED',
        message: 'The proof log holds 3 leaves, and a follower has a checkpoint of 7',
      });
    expect((await checkpointOf(system.env)).size).toBe(3);
    await refusesRotation();
    await cp(inDir('mirror'), log, { recursive: true });
    const restored = await system.run(['proof-log', 'restored', '--reason', 'backup of Monday']);
    expect([restored.exit, restored.json]).toMatchObject([0, { from: 3, to: 7 }]);
    await (await open()).round();
    expect([(await checkpointOf(system.env)).size, (await watch(log)).exit]).toEqual([9, 0]);
  });

  test('is not believed to be one for what another program wrote into the stream', async () => {
    await grow(3);
    await publish();
    await using connection = await connectNats(system.env.natsOperatorUrl, 'test');
    await jetstream(connection).publish(`${CHANGES_STREAM}.proof_log.restored`, '{"number":4,"kind":"restored"}');
    await (await open()).round();
    expect((await checkpointOf(system.env)).size).toBe(3);
  });
});

describe('a checkpoint', () => {
  test('is signed again while nothing is added, and says when: an idle log is told from one that is kept back', async () => {
    await grow(3);
    const first = await checkpointOf(system.env);
    // A signature tells whole seconds.
    await delay(2000);
    await (await open(3_600_000)).round();
    expect((await checkpointOf(system.env)).note).toBe(first.note);
    await (await open()).round();
    const next = await checkpointOf(system.env);
    expect([next.size, next.root]).toEqual([first.size, first.root]);
    expect(next.signedAt! - first.signedAt!).toBeGreaterThanOrEqual(1);
    expect(Math.abs(next.signedAt! - Date.now() / 1000)).toBeLessThan(60);
    const idle = await watch(log, '--max-age', '1h', '--metrics', inDir('watch.prom'));
    expect([idle.exit, idle.json.checked[0]]).toEqual([
      0,
      expect.stringMatching(/^the checkpoint of 3 leaves was signed at 2.*Z, \d+ s ago$/),
    ]);
    expect(await readFile(inDir('watch.prom'), 'utf8')).toContain(
      `checkpoint_timestamp_seconds{log="${log}"} ${next.signedAt}\n`,
    );
    // Its answers are those of two hours ago.
    const { current } = (await readSigners({ folder: log }))!;
    const entries = Array.from({ length: 3 }, (_, at) => Buffer.from(`leaf ${at}`));
    const old = inDir('old');
    const seconds = Math.floor(Date.now() / 1000) - 7200;
    await forgeLog(old, entries, [current], seconds);
    const look = async (...args: string[]) =>
      await system.run(['watch-log', old, '--once', '--state', inDir('old.json'), ...args]);
    const at = new Date(seconds * 1000).toISOString();
    expect([(await look()).exit, (await look('--max-age', '3h')).exit]).toEqual([0, 0]);
    const { exit, json } = await look('--max-age', '1h');
    expect([exit, json.faults]).toEqual([
      1,
      [expect.stringContaining(`the checkpoint of 3 leaves was signed at ${at}, and it may be 3,600 s old: `)],
    ]);
    await forgeLog(old, entries, [current], Math.floor(Date.now() / 1000) + 7200);
    expect((await look('--max-age', '1h')).json.faults).toEqual([expect.stringContaining('which is still to come')]);
    expect((await look('--max-age', 'soon')).json.error.message).toContain('--max-age must be a time such as');
  });

  test('has the lines of the keys before it for their time, whether the key is set or in its file', async () => {
    await grow(3);
    const { current: first } = (await readSigners({ folder: log }))!;
    const lines = async () =>
      (await readFile(join(log, 'checkpoint'), 'utf8')).split('\n\n')[1].trimEnd().split('\n').length;
    const signed = async (secret?: string) => {
      await client.query('update proof_head set signed_at = null');
      await (await Sequencer.open({ client, folder: log, secret, refreshMs: 1 })).round();
      return await lines();
    };
    expect(await lines()).toBe(2);
    // The setting names the key: the next one waits in the file, so that the log goes on before the setting is changed.
    await rm(`${log}.key`);
    const { json, exit } = await system.run(['proof-log', 'rotate'], { SVC_PROOF_LOG_KEY: first.secret });
    expect([exit, json.secret]).toEqual([0, expect.stringMatching(/^PRIVATE\+KEY\+/)]);
    expect(await readFile(`${log}.key`, 'utf8')).toBe(`${json.secret}\n`);
    expect(await signed(first.secret)).toBe(3);
    await rm(`${log}.key`);
    const set = `${json.secret},${first.secret}`;
    expect([await signed(set), (await readSigners({ folder: log, secret: set }))!.current.secret]).toEqual([
      3,
      json.secret,
    ]);
    expect(await signed(json.secret)).toBe(2);
    await expect(signed(first.secret)).rejects.toMatchObject({ code: 'CONFIGURATION_INVALID' });
    // A time that is over: the old key is gone from the file as well.
    await writeFile(`${log}.key`, `${json.secret}\n`);
    const { size } = await checkpointOf(system.env);
    const third = await rotateSigner({ folder: log }, { size, untilMs: Date.now() });
    expect(await signed()).toBe(2);
    expect(await readFile(`${log}.key`, 'utf8')).toBe(`${third.secret}\n`);
    expect((await watch(log, '--key', first.verifier.line)).exit).toBe(0);
  });

  test('has the origin of the setting, for ever', async () => {
    const origin = 'log.example.org/tidemark';
    const settings = { SVC_PROOF_LOG_ORIGIN: origin };
    await using own = await connect({ url: system.env.databaseUrl, name: 'test' });
    const leaf = encodeLeaf(logLeaf({ kind: 'restored', reason: null }));
    await client.query(`insert into proof_leaves (kind, body) values ('restored', $1)`, [leaf]);
    const place = { client: own, folder: log };
    await (await Sequencer.open({ ...place, origin })).round();
    const { note, verifier } = await checkpointOf(system.env);
    expect([note.split('\n')[0], verifier.name]).toEqual([origin, origin]);
    const other = {
      code: 'CONFIGURATION_INVALID',
      message: `SVC_PROOF_LOG_ORIGIN is log.example.org/other, and the proof log of this state has the origin ${origin} for ever`,
    };
    await expect(Sequencer.open({ ...place, origin: 'log.example.org/other' })).rejects.toMatchObject(other);
    const refused = await system.run(['proof-log', 'rotate'], { SVC_PROOF_LOG_ORIGIN: 'log.example.org/other' });
    expect([refused.exit, refused.json.error]).toMatchObject([2, other]);
    const up = await system.run(['up'], {
      SVC_PROOF_LOG_ORIGIN: 'log.example.org/other',
      ...{ SVC_INTERNAL_API_KEY: 'a-key', SVC_SOURCE_RIGHTS_MATRIX_PATH: SAMPLE_MATRIX },
    });
    expect([up.exit, up.json.error]).toMatchObject([2, other]);
    expect((await system.run(['proof-log', 'rotate'], settings)).exit).toBe(0);
    for (const wrong of ['https://log.example.org/x', 'two words', 'a+b', 'log.example.org/']) {
      const { json } = await system.run(['proof-log', 'rotate'], { SVC_PROOF_LOG_ORIGIN: wrong });
      expect([wrong, JSON.stringify(json.error)]).toEqual([wrong, expect.stringContaining('SVC_PROOF_LOG_ORIGIN')]);
    }
  });
});
