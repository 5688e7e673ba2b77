/** Faults around a working projector: each pauses it, and none ends it. */
import { createHash } from 'node:crypto';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { drainBacklog } from '../../pipelines/cli/streams.ts';
import { ProofWaiter } from '../../pipelines/publisher/await-proof.ts';
import { CopyIn } from '../../pipelines/rows/copy-in.ts';
import { connect, PROJECTOR_LOCK } from '../../shared/db/connect.ts';
import { CONSUMER_NAME, messageAt, subjectOf } from '../../shared/nats/stream.ts';
import { heightKey } from '../../shared/registry/keys.ts';
import { documentOf, HEADERS, header, KindSystem } from '../support/kinds.ts';
import { PATIENCE_MS } from '../support/patience.ts';
import { execute } from '../support/stack.ts';

let system: KindSystem;
beforeAll(async () => {
  system = await KindSystem.create();
  system.project([HEADERS]);
});
afterAll(() => system[Symbol.asyncDispose]());

const START = Date.parse('2026-01-01T00:00:00Z');
const block = (height: number) => {
  const ms = START + height * 1000;
  return documentOf({
    dataset: HEADERS,
    key: heightKey(height, height),
    events: [header(height, ms)],
    source: { through_ms: ms + 1000 },
  });
};

// The stream of a COPY that is closed before the database lets it begin waited for an answer that never comes.
test.each([
  ['refused by the database', 'no_such_table', false],
  ['that went with its connection', 'bitcoin_block_headers', true],
])('a COPY %s is given up at once', async (_what, table, lost) => {
  await using client = await connect({ url: system.databaseUrl, name: 'test copy' });
  if (lost) {
    const { rows } = await client.query('select pg_backend_pid() as pid');
    const ended = new Promise((resolve) => client.once('end', resolve));
    await execute(system.databaseUrl, `select pg_terminate_backend(${rows[0].pid})`);
    await ended;
  }
  const copy = new CopyIn(client, table, ['height']);
  await expect(copy.end()).rejects.toThrow();
  await copy.abort();
});

test('a projector whose COPY is refused starts again, and goes on when it is taken', async () => {
  await system.rows('alter table bitcoin_block_headers rename column nonce to spoilt');
  const ingesting = system.ingest([HEADERS], [block(0)]);
  const backends = new Set<string>();
  // The second projector is there, so the first has ended.
  await system.until(async () => {
    const rows = await system.rows(
      `select pid from pg_stat_activity where datname = current_database()
       and application_name = 'tidemark projector bitcoin_block_headers'`,
    );
    for (const { pid } of rows) backends.add(pid);
    return backends.size > 1;
  });
  await system.rows('alter table bitcoin_block_headers rename column spoilt to nonce');
  expect((await ingesting).map(({ state }) => state)).toEqual(['proved']);
});

// With a server whose catalog had changed, a backfill waited 303 s and then said `failed` without a reason.
test('a command reports why its projector cannot work instead of waiting in vain', async () => {
  // The five failures are not waited for; the test above has to be quicker than they are.
  await system.stopProjecting();
  system.project([HEADERS], undefined, { firstMs: 10, longestMs: 100 });
  await system.rows('alter table bitcoin_block_headers rename column nonce to spoilt');
  const [unit] = await system.ingest([HEADERS], [block(30)]);
  expect(unit).toMatchObject({ state: 'failed', code: 'PROJECTOR_FAILED' });
  expect(unit.reason).toMatch(/projector of bitcoin_block_headers failed 5 times in a row: column "nonce" .*not exist/);
  await system.rows('alter table bitcoin_block_headers rename column spoilt to nonce');
  // What the log holds is not lost.
  expect((await system.ingest([HEADERS], [block(30)])).map(({ state }) => state)).toEqual(['proved']);
});

// A crash of nats-server took the first messages and kept their sequences. The projector waited for message 1 for ever, and so
// did each command for its proof.
test('a log that lost its first messages before they were projected is read from where it begins', async () => {
  await using other = await KindSystem.create();
  const waiting = other.ingest([HEADERS], [block(1)]);
  await other.until(async () => (await other.rows(`select from attempts where state = 'published'`)).length === 1);
  const manager = await jetstreamManager(other.operator, { checkAPI: false });
  const manifest = (await messageAt(manager, HEADERS.key, 2))!;
  const { config } = await manager.streams.info(HEADERS.key);
  await manager.streams.delete(HEADERS.key);
  await manager.streams.add({ ...config, first_seq: 2 });
  await jetstream(other.operator).publish(manifest.subject, manifest.data);
  other.project([HEADERS]);
  const reason = expect.stringContaining('its first frame is missing');
  expect(await waiting).toEqual([expect.objectContaining({ state: 'quarantined', reason })]);
  expect((await other.ingest([HEADERS], [block(2)])).map(({ state }) => state)).toEqual(['proved']);
  // Also when it is read again.
  await other.stopProjecting();
  await other.rows('delete from checkpoints');
  other.project([HEADERS]);
  await other.until(async () => (await other.rows('select from checkpoints where stream_sequence = 4')).length === 1);
  expect(await other.rows(`select reason from ledger where kind = 'log_lost'`)).toEqual([
    { reason: expect.stringContaining('lost message 1;') },
  ]);
});

test('a projector whose consumer was taken from it makes another', async () => {
  expect((await system.ingest([HEADERS], [block(1)])).map(({ state }) => state)).toEqual(['proved']);
  const manager = await jetstreamManager(system.operator, { checkAPI: false });
  await manager.consumers.delete(HEADERS.key, CONSUMER_NAME);
  expect((await system.ingest([HEADERS], [block(2)])).map(({ state }) => state)).toEqual(['proved']);
});

// Nothing of it is open when the manifest of an empty partition arrives: a damaged one was passed over, and its publisher
// waited in vain.
test('a damaged manifest ends its attempt, once, although the log holds nothing else of it', async () => {
  expect((await system.ingest([HEADERS], [block(3)])).map(({ state }) => state)).toEqual(['proved']);
  const { manifest } = (await system.catalog.partition(HEADERS, heightKey(3, 3)))!;
  const partition = heightKey(50, 50);
  const { document } = manifest!;
  const opening = { attempt: 1, revision: 1, publisher: 'test', document, synthetic: false };
  await system.catalog.openAttempts(HEADERS, [partition], opening);
  const subject = subjectOf(HEADERS.key, partition, 1, 0);
  const { seq } = await jetstream(system.connection).publish(subject, Buffer.from('damaged'));
  const copy = { ...manifest!, partition, frames: 0, rows: 0, first_sequence: 0 };
  await system.catalog.markPublished(HEADERS, [{ manifest: copy, sequence: seq }]);
  const ends = () =>
    system.rows(`select kind from ledger where partition_key = $1 and kind = 'quarantined'`, [partition]);
  await system.until(async () => (await ends()).length > 0);

  // When the log is read again, the recorded end stays, and the checkpoint reaches the end of the log.
  await system.ingest([HEADERS], [block(4)]);
  await system.stopProjecting();
  const at = async () => (await system.rows('select stream_sequence as at from checkpoints'))[0]?.at;
  const end = await at();
  await system.rows('delete from checkpoints');
  await system.rows(`update attempts set state = 'published' where partition_key = $1`, [heightKey(4, 4)]);
  system.project([HEADERS]);
  await system.until(async () => (await at()) === end);
  expect(await ends()).toHaveLength(1);
  await system.rows(`update attempts set state = 'proved' where partition_key = $1`, [heightKey(4, 4)]);
});

describe('a projector that stands still', () => {
  const NAME = 'a session that does nothing';

  test('delays publishing for a moment only, and is named', async () => {
    await using stuck = await stalled();
    const notes: string[] = [];
    const needs = { connection: system.connection, catalog: system.catalog, signal: new AbortController().signal };
    const waiting = system.ingest([HEADERS], [block(10)], { stop: stuck.stop });
    await system.until(async () => (await system.rows(`select from attempts where state = 'published'`)).length === 1);
    const limits = { timeoutMs: 60_000, stillMs: 200 };
    await drainBacklog({ ...needs, ...limits, project: () => {}, note: (message) => notes.push(message) }, HEADERS);
    expect(notes).toEqual([
      expect.stringMatching(/the log is 2 messages ahead of the database; they are projected before/),
      expect.stringMatching(new RegExp(`held by "${NAME}" \\(server process ${stuck.pid}, .*publishing goes on`)),
    ]);
    // The command ends when it is stopped, and the next one finds its partition in the log.
    stuck.stop.abort(new Error('told to stop'));
    expect((await waiting).map(({ code }) => code)).toEqual(['INTERRUPTED']);
    await stuck[Symbol.asyncDispose]();
    expect((await system.ingest([HEADERS], [block(10)])).map(({ state }) => state)).toEqual(['proved']);
  });

  test('is named when a command gives up waiting for it', async () => {
    await using stuck = await stalled();
    const [unit] = await system.ingest([HEADERS], [block(11)], { timeoutMs: 200 });
    expect(unit).toMatchObject({ state: 'failed', code: 'PARTITION_TIMEOUT' });
    expect(unit.reason).toContain(`held by "${NAME}" (server process ${stuck.pid}, `);
  });

  // A crash of nats-server had taken the end of the log, and the command waited until PARTITION_TIMEOUT.
  test('is not waited for by a command whose manifest the log has lost', { tags: ['nightly'] }, async () => {
    await using _stuck = await stalled();
    const limits = { timeoutMs: 3000, stillMs: 200 };
    const waiting = system.ingest([HEADERS], [block(12), block(13)], limits);
    const published = `from attempts where state = 'published' and partition_key = any ($1)`;
    const keys = [heightKey(12, 12), heightKey(13, 13)];
    await system.until(async () => (await system.rows(`select ${published}`, [keys])).length === 2);
    // The log holds nothing there, as after it lost its end.
    await system.rows(`update attempts set manifest_sequence = manifest_sequence + 1000 where partition_key = $1`, [
      keys[1],
    ]);
    const [first, second] = await waiting;
    // Who follows the source publishes it again: it was taken for published as long as the process lived.
    const states = `select (select state from attempts where partition_key = $1) as attempt,
      (select state from partitions where partition_key = $1) as partition`;
    expect(await system.rows(states, [keys[1]])).toEqual([{ attempt: 'abandoned', partition: null }]);
    expect(await system.rows(states, [keys[0]])).toEqual([{ attempt: 'published', partition: 'published' }]);
    // Another process that waits for the same attempt.
    const { databaseUrl, catalog, connection } = system;
    const { signal } = new AbortController();
    await using proofs = await ProofWaiter.open({ databaseUrl, catalog, connection, signal, timeoutMs: PATIENCE_MS });
    const abandoned = expect.objectContaining({ message: expect.stringContaining('was abandoned: The log lost') });
    expect(await proofs.of(HEADERS, keys[1], 1)).toEqual({ state: 'unknown', error: abandoned });
    const lost = { partition: keys[1], state: 'failed', code: 'PARTITION_TIMEOUT' };
    expect(first).toMatchObject({
      ...lost,
      reason: `The log lost the manifest of ${HEADERS.key} ${keys[1]} attempt 1`,
    });
    expect(second).toMatchObject({ partition: keys[0], code: 'PARTITION_TIMEOUT' });
    expect(second.reason).toContain('was not proved in 3 s');
  });

  // Recovery once set a checkpoint behind what nobody had projected, and every command waited until PARTITION_TIMEOUT.
  test('is not waited for by a command whose manifest lies behind the checkpoint; the next one publishes again', {
    tags: ['nightly'],
  }, async () => {
    const key = heightKey(14, 14);
    const before = await system.ingest([HEADERS], [block(15)]);
    expect(before.map(({ state }) => state)).toEqual(['proved']);
    const stuck = await stalled();
    const waiting = system.ingest([HEADERS], [block(14)], { timeoutMs: 10_000, stillMs: 200 });
    await system.until(async () => {
      return (
        (await system.rows(`select from attempts where state = 'published' and partition_key = $1`, [key])).length === 1
      );
    });
    const [{ at }] = await system.rows('select manifest_sequence::int4 as at from attempts where partition_key = $1', [
      key,
    ]);
    const manager = await jetstreamManager(system.connection);
    const message = await messageAt(manager, HEADERS.key, at);
    await system.rows('update checkpoints set stream_sequence = $1, message_sha256 = $2 where dataset_id = $3', [
      at,
      createHash('sha256').update(message!.data).digest('hex'),
      HEADERS.number,
    ]);
    const reason = `The checkpoint is past the manifest of ${HEADERS.key} ${key} attempt 1, which nobody projected`;
    expect(await waiting).toEqual([expect.objectContaining({ state: 'failed', code: 'PARTITION_TIMEOUT', reason })]);
    await stuck[Symbol.asyncDispose]();
    expect((await system.ingest([HEADERS], [block(14)])).map(({ state }) => state)).toEqual(['proved']);
    expect((await system.rows('select attempt from partitions where partition_key = $1', [key]))[0]).toEqual({
      attempt: 2,
    });
  });

  /** A session that holds the projector's lock and does not project. */
  async function stalled() {
    await system.stopProjecting();
    const client = await connect({ url: system.databaseUrl, name: NAME });
    await client.query('select pg_advisory_lock($1, $2)', [PROJECTOR_LOCK, HEADERS.number]);
    const { rows } = await client.query('select pg_backend_pid() as pid');
    let held = true;
    return {
      pid: rows[0].pid as number,
      stop: new AbortController(),
      [Symbol.asyncDispose]: async () => {
        if (!held) return;
        held = false;
        await client[Symbol.asyncDispose]();
        system.project([HEADERS]);
      },
    };
  }
});
