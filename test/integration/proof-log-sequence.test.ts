/** What becomes a leaf, and how leaves become a tree: every change of a partition, concurrent commits, and a sequencer that is cut off anywhere. */
import { mkdir, readdir, readFile, rm, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { provingLeaf, storedRowsSha256 } from '../../pipelines/projector/logged-proof.ts';
import { keepSequenced, Sequencer } from '../../pipelines/proof-log/sequencer.ts';
import { loadSettings } from '../../shared/config/load.ts';
import { type Client, connect, PROOF_LOG_LOCK } from '../../shared/db/connect.ts';
import { checkConsistency, checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { differingFromLeaf } from '../../shared/proof-log/leaf.ts';
import { type Checkpoint, openCheckpoint } from '../../shared/proof-log/note.ts';
import { heightKey } from '../../shared/registry/keys.ts';
import { documentOf, HEADERS, header, KindSystem } from '../support/kinds.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { checkpointOf, logFolderOf, sequence } from '../support/proof-log.ts';
import { createMigratedEnv, type TestEnv, testLogger } from '../support/stack.ts';

const DAY = '2024-01-01';
const dayOf = (rows: number, seed = 1) => csvOf({ day: DAY, firstId: 1, seed, rows, timeUnit: 'ms' });

describe('a leaf is left by', () => {
  /** Kind, attempt, rows and reason of each, in order. */
  const leaves = async (client: Client) =>
    (
      await client.query(`select convert_from(body, 'UTF8')::jsonb as leaf from proof_leaves order by entry_id`)
    ).rows.map(({ leaf }) => leaf);

  test('proof, revision, late arrival, quarantine, release and replay', async () => {
    await using system = await System.create();
    await writeDocument(system.vendor, DAY, dayOf(100));
    expect((await system.backfill(DAY, DAY)).exit).toBe(0);
    await writeDocument(system.vendor, DAY, dayOf(120, 2));
    expect((await system.backfill(DAY, DAY, {}, ['--compare'])).exit).toBe(1);
    expect((await system.reingest(DAY, DAY, 'republished')).exit).toBe(0);
    const price = (by: number) => system.rows(`update ${DATASET} set price = price + ${by} where trade_id = 7`);
    await price(1);
    expect((await system.run(['verify', DATASET])).exit).toBe(1);
    await price(-1);
    expect((await system.run(['quarantine', 'release', DATASET, DAY, '--reason', 'a trial'])).exit).toBe(0);
    await price(1);
    expect((await system.run(['replay', DATASET])).exit).toBe(0);
    const found = await leaves(system.client);
    expect(found.map(({ kind, revision, attempt, rows, reason }) => [kind, revision, attempt, rows, reason])).toEqual([
      ['proved', 1, 1, 100, null],
      ['refused', 1, 1, null, 'the partition is proved with other content'],
      ['revised', 2, expect.any(Number), 120, null],
      ['quarantined', 2, expect.any(Number), 120, 'its stored rows are not those that were proved'],
      ['proved', 2, expect.any(Number), 120, 'released from quarantine'],
      ['proved', 2, expect.any(Number), 120, 'replayed from the log'],
    ]);
    const digests = found.map((leaf) => leaf.rows_commitment);
    expect([digests[1], digests[3]]).toEqual([null, null]);
    // The rows are the same each time, however they came to be proved again, and so are their facts.
    expect(new Set([digests[2], digests[4], digests[5]]).size).toBe(1);
    const facts = found.map((leaf) => leaf.facts_commitment);
    expect([facts[1], facts[3]]).toEqual([null, null]);
    expect([...new Set([facts[2], facts[4], facts[5]])]).toEqual([expect.stringMatching(/^[0-9a-f]{64}$/)]);
    expect(facts[0]).not.toBe(facts[2]);
    expect((await system.run(['verify', DATASET, '--deep'])).exit).toBe(0);
    expect((await system.run(['doctor', '--check', 'proof_log'])).json.checks.at(-1).findings).toEqual([]);
    // Facts that somebody changes disagree with the leaf, and with the log.
    await system.rows(`update partitions set facts = replace(facts, '"repeats":0', '"repeats":1')`);
    expect((await system.run(['replay', DATASET, '--verify-only'])).json.units[0].reason).toBe('differed in facts');
    expect((await system.run(['verify', DATASET])).json.units[0].reason).toMatch(/found facts .* is not what the leaf/);
    expect((await system.run(['replay', DATASET])).exit).toBe(0);
    expect((await system.run(['verify', DATASET])).exit).toBe(0);
    // Nothing else has the digest that a leaf states of the rows, so that only the log shows that it is another.
    const other = '0'.repeat(64);
    await system.rows(
      `update proof_leaves set body = convert_to(replace(convert_from(body, 'UTF8'), '${digests[5]}', '${other}'), 'UTF8')`,
    );
    expect((await system.run(['verify', DATASET])).exit).toBe(0);
    expect((await system.run(['verify', DATASET, '--deep'])).json.units[0].reason).toMatch(
      /^leaf of the proof log: expected what it states, found rows_sha256 [0-9a-f]{64} is not what the leaf commits to$/,
    );
  });

  test('ids that are taken: of a partition that is quarantined, and of a revision that is refused', async () => {
    await using system = await System.create();
    await writeDocument(system.vendor, DAY, dayOf(100));
    expect((await system.backfill(DAY, DAY)).exit).toBe(0);
    const next = '2024-01-02';
    const write = (firstId: number) =>
      writeDocument(system.vendor, next, csvOf({ day: next, firstId, seed: 2, rows: 50, timeUnit: 'ms' }));
    await write(1);
    expect((await system.backfill(next, next)).exit).toBe(1);
    await write(101);
    expect((await system.reingest(next, next, 'mended')).exit).toBe(0);
    await write(1);
    expect((await system.reingest(next, next, 'again')).exit).toBe(1);
    const found = (await leaves(system.client)).map(({ kind, partition, revision }) => [kind, partition, revision]);
    expect(found).toEqual([
      ['proved', DAY, 1],
      ['quarantined', next, 1],
      ['revised', next, 2],
      ['refused', next, 3],
    ]);
    // The revision that was refused changed nothing: the one before it is served, and its leaf is its own.
    expect((await system.run(['verify', DATASET])).exit).toBe(0);
  });

  test('the sample, when the first real partition retires it', async () => {
    await using system = await System.create();
    await writeDocument(system.vendor, DAY, dayOf(50));
    expect((await system.backfill(DAY, DAY)).exit).toBe(0);
    await system.rows(`update partitions set synthetic = true`);
    await system.rows(`update coverage set synthetic = true`);
    await writeDocument(
      system.vendor,
      '2024-01-02',
      csvOf({ day: '2024-01-02', firstId: 51, seed: 3, rows: 50, timeUnit: 'ms' }),
    );
    expect((await system.backfill('2024-01-02', '2024-01-02')).exit).toBe(0);
    expect((await leaves(system.client)).map(({ kind, partition, reason }) => [kind, partition, reason])).toEqual([
      ['proved', DAY, null],
      ['retracted', DAY, 'the first real partition was proved'],
      ['proved', '2024-01-02', null],
    ]);
  });

  test('each of many blocks in one transaction, and their retraction', async () => {
    await using system = await KindSystem.create();
    system.project([HEADERS]);
    const blocks = Array.from({ length: 20 }, (_, height) =>
      documentOf({
        dataset: HEADERS,
        key: heightKey(height, height),
        events: [header(height, Date.parse('2026-01-01') + height * 1000)],
        source: { through_ms: Date.parse('2026-01-01') + height * 1000 + 1000 },
      }),
    );
    await system.ingest([HEADERS], blocks);
    const found = await leaves(system.client);
    expect(found.map(({ kind, partition }) => `${kind} ${partition}`)).toEqual(blocks.map((_, at) => `proved ${at}`));
    expect(new Set(found.map((leaf) => leaf.rows_commitment)).size).toBe(20);
    // The projector hashes what it loads, without the columns that no row shows; the database what it stores.
    for (const row of await system.catalog.partitions(HEADERS, undefined, undefined)) {
      const { leaf, salt } = (await provingLeaf(system.client, HEADERS, row))!;
      const rows_sha256 = await storedRowsSha256(system.client, HEADERS, row);
      expect(differingFromLeaf(leaf, salt, { rows_sha256 })).toEqual([]);
    }
    const { retractSpan } = await import('../../pipelines/projector/retract.ts');
    const { HEADER_SECONDS } = await import('../../pipelines/sources/bitcoin/rows/seconds.ts');
    await system.stopProjecting();
    await retractSpan(
      system.client,
      HEADERS,
      HEADER_SECONDS,
      { sourceId: 'bitcoin_core', span: { from: 18, to: 20 } },
      { reason: 'a fork', by: 'source' },
    );
    const after = (await leaves(system.client)).slice(20);
    expect(after.map(({ kind, partition, reason }) => [kind, partition, reason])).toEqual([
      ['retracted', '18', 'its source withdrew it'],
      ['retracted', '19', 'its source withdrew it'],
    ]);
  });
});

describe('the sequencer', () => {
  let env: TestEnv;
  let client: Client;
  beforeEach(async () => {
    env = await createMigratedEnv();
    client = await connect({ url: env.databaseUrl, name: 'test' });
  });
  afterEach(async () => {
    await client[Symbol.asyncDispose]();
    await env[Symbol.asyncDispose]();
  });

  const add = (on: Client, text: string) =>
    on.query(`insert into proof_leaves (kind, partition_key, body) values ('restored', $1, convert_to($2, 'UTF8'))`, [
      text.split(' ')[0],
      text,
    ]);
  const open = () => Sequencer.open({ client, folder: logFolderOf(env), secret: undefined });
  const indexed = async () =>
    (
      await client.query(
        `select leaf_index::int as at, convert_from(body, 'UTF8') as text from proof_leaves where leaf_index is not null order by 1`,
      )
    ).rows;

  test('gives gapless indexes to what twelve writers commit and roll back side by side, in the order of each', async () => {
    const heads: Checkpoint[] = [];
    const { signal, abort } = (() => {
      const controller = new AbortController();
      return { signal: controller.signal, abort: () => controller.abort() };
    })();
    const sequencing = (async () => {
      await using own = await connect({ url: env.databaseUrl, name: 'test sequencer' });
      const sequencer = await Sequencer.open({ client: own, folder: logFolderOf(env), secret: undefined });
      while (!signal.aborted) {
        if ((await sequencer.round()) > 0) heads.push(await checkpointOf(env));
        await delay(5);
      }
      await sequencer.round();
    })();
    await Promise.all(
      Array.from({ length: 12 }, async (_, writer) => {
        await using own = await connect({ url: env.databaseUrl, name: `test writer ${writer}` });
        for (let n = 0; n < 25; n++) {
          await own.query('begin');
          await add(own, `${writer} ${n}`);
          await delay(Math.random() * 8);
          const isKept = (writer + n) % 5 !== 0;
          await own.query(isKept ? 'commit' : 'rollback');
        }
      }),
    );
    abort();
    await sequencing;
    const leaves = await indexed();
    expect(leaves.map(({ at }) => at)).toEqual(leaves.map((_, at) => at));
    expect(leaves).toHaveLength(240);
    for (let writer = 0; writer < 12; writer++) {
      const own = leaves.map(({ text }) => text.split(' ').map(Number)).filter(([by]) => by === writer);
      expect(own.map(([, n]) => n)).toEqual(own.map(([, n]) => n).toSorted((a, b) => a - b));
    }
    // Whatever was signed on the way is a beginning of the end.
    const last = await checkpointOf(env);
    for (const head of heads)
      expect((await checkConsistency(head, last, folderSource(logFolderOf(env)))).faults).toEqual([]);
    expect((await checkMirror(last, folderSource(logFolderOf(env)))).faults).toEqual([]);
  });

  test('goes on where it was cut off, with the same tree: before the tiles, before the checkpoint, before the catalog knows', async () => {
    const folder = logFolderOf(env);
    const cuts = ['tile/0/000.p/3', 'tile/entries/000.p/5', 'checkpoint'];
    for (const [round, path] of cuts.entries()) {
      const sequencer = await open();
      for (const n of [0, 1]) await add(client, `${round} ${n}`);
      if (round === 0) await add(client, 'first');
      // A folder stands where the file is to be written.
      const kept = await readFile(join(folder, path)).catch(() => undefined);
      await rm(join(folder, path), { force: true });
      await mkdir(join(folder, path), { recursive: true });
      await expect(sequencer.round()).rejects.toThrow();
      await rmdir(join(folder, path));
      if (kept) await writeFile(join(folder, path), kept);
      const before = await indexed();
      await (await open()).round();
      expect(await indexed()).toEqual(before);
      const head = await checkpointOf(env);
      expect(head.size).toBe(before.length);
    }
    // The database does not know of the last checkpoint yet. It is signed again, maybe in another second.
    const { root } = await checkpointOf(env);
    await client.query('update proof_head set signed_size = 0, checkpoint = null, key = null');
    await (await open()).round();
    const { rows } = await client.query('select checkpoint, signed_size::int as size from proof_head');
    const last = await checkpointOf(env);
    expect(last.root).toEqual(root);
    expect(rows[0]).toEqual({ checkpoint: last.note, size: 7 });
    expect((await checkMirror(last, folderSource(folder))).faults).toEqual([]);
  });

  test('writes the tiles of any number of leaves in any number of rounds, and the mirror of each is whole', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 400 }), { minLength: 1, maxLength: 4 }), async (rounds) => {
        await client.query('truncate proof_leaves, proof_head');
        const own = { dir: join(env.dir, `run-${Math.random()}`), databaseUrl: env.databaseUrl };
        let total = 0;
        for (const count of rounds) {
          await client.query(
            `insert into proof_leaves (kind, body) select 'restored', convert_to('leaf ' || n, 'UTF8') from generate_series($1::int, $2::int) n`,
            [total, total + count - 1],
          );
          total += count;
          expect(await sequence(own)).toBe(total);
          const head = await checkpointOf(own);
          expect((await checkMirror(head, folderSource(logFolderOf(own)))).faults).toEqual([]);
        }
      }),
      { numRuns: 8 },
    );
  });

  test('makes tiles again that are missing or altered, and keeps the incomplete ones that checkpoints refer to', async () => {
    const folder = logFolderOf(env);
    const fill = async (from: number, to: number) => {
      await client.query(
        `insert into proof_leaves (kind, body) select 'restored', convert_to('leaf ' || n, 'UTF8') from generate_series($1::int, $2::int - 1) n`,
        [from, to],
      );
      await (await open()).round();
    };
    for (const [from, to] of [
      [0, 100],
      [100, 150],
      [150, 300],
      [300, 310],
    ])
      await fill(from, to);
    expect((await readdir(join(folder, 'tile/0/001.p'))).sort()).toEqual(['44', '54']);
    expect(await readdir(join(folder, 'tile/0'))).not.toContain('000.p');
    const bytes = (path: string) => readFile(join(folder, path));
    const edge = 'tile/entries/001.p/54';
    for (const path of ['tile/0/000', 'tile/entries/000', 'tile/0/001.p/54', 'tile/1/000.p/1', edge]) {
      const before = await bytes(path);
      await rm(join(folder, path));
      await open();
      expect([path, await bytes(path)]).toEqual([path, before]);
    }
    const before = await bytes(edge);
    await writeFile(
      join(folder, edge),
      Buffer.from(before.toString('latin1').replace('leaf 300', 'LEAF 300'), 'latin1'),
    );
    await open();
    expect(await bytes(edge)).toEqual(before);
    expect((await checkMirror(await checkpointOf(env), folderSource(folder))).faults).toEqual([]);
  });

  test('does not replace the checkpoint of its successor when it lost the lock before it signed', async () => {
    const path = join(logFolderOf(env), 'checkpoint');
    await add(client, 'a');
    const first = await open();
    await mkdir(path, { recursive: true });
    await expect(first.round()).rejects.toThrow();
    await rmdir(path);
    const [stale, next] = [await open(), await open()];
    await add(client, 'b');
    await next.round();
    const { note, size } = await checkpointOf(env);
    expect(size).toBe(2);
    await expect(stale.round()).rejects.toThrow('has the lock moves the head');
    expect((await checkpointOf(env)).note).toBe(note);
  });

  test('signs what was proved since its last round when it is stopped', async () => {
    const settings = loadSettings({
      cwd: env.dir,
      env: {},
      flags: { SVC_STATE_DIR: join(env.dir, 'state') },
      limits: { checkpointMs: 60_000 },
    });
    const stop = new AbortController();
    const done = keepSequenced({ databaseUrl: env.databaseUrl, settings, log: testLogger(), signal: stop.signal });
    const size = async () => (await client.query('select signed_size::int as n from proof_head')).rows[0]?.n;
    await add(client, 'a');
    await expect.poll(size).toBe(1);
    await add(client, 'b');
    stop.abort();
    await done;
    expect(await size()).toBe(2);
  });

  test('is one process: a second one waits for its lock, and takes over', async () => {
    const settings = loadSettings({
      cwd: env.dir,
      env: {},
      flags: { SVC_STATE_DIR: join(env.dir, 'state') },
      limits: { checkpointMs: 1000 },
    });
    const run = () => {
      const stop = new AbortController();
      const done = keepSequenced({ databaseUrl: env.databaseUrl, settings, log: testLogger(), signal: stop.signal });
      return { stop: () => stop.abort(), done };
    };
    const signed = async () =>
      (await client.query('select coalesce(max(signed_size), 0)::int as n from proof_head')).rows[0].n;
    const holders = async () =>
      (
        await client.query(
          // Other tests have their own logs in other databases of the server.
          `select count(*)::int as n from pg_locks where locktype = 'advisory' and classid = $1 and granted
             and database = (select oid from pg_database where datname = current_database())`,
          [PROOF_LOG_LOCK],
        )
      ).rows[0].n;
    const [first, second] = [run(), run()];
    await add(client, 'a');
    await expect.poll(signed).toBe(1);
    expect(await holders()).toBe(1);
    first.stop();
    await first.done;
    await add(client, 'b');
    await expect.poll(signed).toBe(2);
    second.stop();
    await second.done;
    const note = Buffer.from((await folderSource(logFolderOf(env))('checkpoint'))!).toString();
    expect(openCheckpoint(note, [(await checkpointOf(env)).verifier]).size).toBe(2);
  });
});
