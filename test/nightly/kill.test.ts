/**
 * `kill -9` at random moments of a backfill, of every process there is: the command itself, its projector, PostgreSQL,
 * nats-server. The command is run again until it is done; then everything must be as if nothing had happened.
 *
 * The moments come out of a seed, which is printed (as far as moments can be repeated); see test/support/seed.ts.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { connect } from '../../shared/db/connect.ts';
import { ERROR_CODES, type ErrorCode } from '../../shared/errors.ts';
import { checkMirror } from '../../shared/proof-log/check.ts';
import { folderSource } from '../../shared/proof-log/folder.ts';
import { LogUnreachable } from '../../shared/proof-log/tiles.ts';
import { lookAt, type Watched } from '../../shared/proof-log/watch.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import { type Answer, type Json, type Running, startCommand } from '../support/command.ts';
import { dayNames, digestsOf, leftoversOf, readLog, System } from '../support/pipeline.ts';
import { checkpointOf, logFolderOf, sequence } from '../support/proof-log.ts';
import { SEED } from '../support/seed.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { createPrivateStack, natsSettings, type PrivateStack } from '../support/stack.ts';
import { compareNative, secondsOfFiles, secondsStored } from '../support/trade-oracle.ts';
import { type DayContent, VENDOR_A, VENDOR_B, VENDOR_C, type Vendor } from '../support/vendors.ts';

const TARGETS = ['command', 'projector', 'postgres', 'nats'] as const;
type Target = (typeof TARGETS)[number];
/** Days that one command is asked for; a few at a time, so that whole commands end among the kills too. */
const STAGE = 4;

const random = seededRandom(SEED);

/** The projector that a command has started, if it is there. */
function projectorOf(pid: number): number | undefined {
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const [, , ppid] = readFileSync(`/proc/${name}/stat`, 'utf8')
        .replace(/^.*\) /, 'x ')
        .split(' ');
      const command = readFileSync(`/proc/${name}/cmdline`, 'utf8');
      if (Number(ppid) === pid && command.includes('pipelines/projector/main.ts')) return Number(name);
    } catch {
      // Gone while we looked.
    }
  }
  return undefined;
}

function noSuchProcess(): never {
  throw Object.assign(new Error('no such process'), { code: 'ESRCH' });
}

/** A look at the proof log as a watcher takes it. @returns what the watcher remembers */
async function lookedAt(dir: string, watched: Partial<Watched>): Promise<Partial<Watched>> {
  try {
    const look = await lookAt(folderSource(logFolderOf({ dir })), watched);
    expect(look.report.faults).toEqual([]);
    return look.watched!;
  } catch (error) {
    // There is no checkpoint yet.
    if (error instanceof LogUnreachable) return watched;
    throw error;
  }
}

/** How a command ended that was not spared: a signal, success, or a code that says that it is worth another try. */
function outcomeOf({ exit, signal, json, stdout, stderr }: Answer): string {
  if (signal !== null) return signal;
  if (exit === 0) return 'done';
  const codes: string[] = [json?.error, ...(json?.units ?? [])].flatMap((each) => each?.code ?? []);
  const known = codes.length > 0 && codes.every((code) => ERROR_CODES[code as ErrorCode]?.transient);
  if (!known) throw new Error(`a command ended with ${exit}, ${codes}:\n${stdout}\n${stderr}`);
  return codes[0];
}

async function provedDays(databaseUrl: string): Promise<number | undefined> {
  try {
    await using client = await connect({ url: databaseUrl, name: 'test', connectTimeoutMs: 500 });
    const { rows } = await client.query(`select count(*)::int4 as n from partitions where state = 'proved'`);
    return rows[0].n;
  } catch {
    return undefined; // Down, or not migrated yet.
  }
}

const withoutRevision = (digests: Record<string, Json>) =>
  Object.fromEntries(Object.entries(digests).map(([day, { revision: _revision, ...rest }]) => [day, rest]));

/** @returns whether there was something to kill: a server may be on its way up again. */
function kill(target: Target, { child }: Running, own: PrivateStack): boolean {
  if (target === 'command') return child.kill('SIGKILL');
  try {
    if (target === 'projector') process.kill(projectorOf(child.pid!) ?? noSuchProcess(), 'SIGKILL');
    else own.kill(target);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ESRCH') return false;
    throw error;
  }
}

interface Trial {
  readonly vendor: Vendor;
  readonly dataset: string;
  readonly killsEach: number;
  readonly days: number;
}

const TRIALS: readonly Trial[] = [
  { vendor: VENDOR_A, dataset: VENDOR_A.dataset, killsEach: 6, days: 10 },
  { vendor: VENDOR_B, dataset: VENDOR_B.dataset, killsEach: 2, days: 6 },
  { vendor: VENDOR_C, dataset: VENDOR_C.dataset, killsEach: 2, days: 6 },
];

describe.each(TRIALS)('a backfill of $dataset', ({ vendor, dataset, killsEach, days }) => {
  const kills = TARGETS.length * killsEach;
  /** When all are proved before the last kill, some of them are ingested again, as revisions. */
  const DAYS: DayContent[] = [];
  for (const day of dayNames('2024-11-01', days)) {
    const before = DAYS.at(-1);
    // Exchange A's ids run on; B's leave gaps of up to six.
    const firstId = before ? before.firstId + before.rows * (vendor === VENDOR_B ? 7 : 1) : 5_000_000_000;
    DAYS.push({ day, firstId, seed: 21, rows: 20_000 + ((DAYS.length * 7919) % 50) * 1000 });
  }
  const ROWS = DAYS.reduce((sum, { rows }) => sum + rows, 0);
  let reference: System;
  let own: PrivateStack;
  const csv: string[] = [];

  beforeAll(async () => {
    reference = await System.create();
    for (const content of DAYS) {
      const text = vendor.plainDay(content);
      await vendor.put(reference.vendor, content.day, vendor.pack(content.day, text));
      csv.push(join(reference.env.dir, `${content.day}.csv`));
      await writeFile(csv.at(-1)!, text);
    }
    own = await createPrivateStack();
  });
  afterAll(async () => {
    await own?.[Symbol.asyncDispose]();
    await reference?.[Symbol.asyncDispose]();
  });

  const settings = () => ({
    SVC_DATABASE_URL: own.stack.databaseUrl,
    ...natsSettings(own.stack),
    SVC_STATE_DIR: join(own.dir, 'state'),
    ...vendor.settings(reference.vendor),
    SVC_STREAM_MAX_BYTES: String(1 << 28),
    // Several frames a day, so that kills fall within attempts.
    ...limitsEnv({ frameRawBytes: 60_000, publishWindow: 8 }),
  });
  const run = (command: string, first: number, last: number, ...more: string[]) =>
    startCommand([command, dataset, '--from', DAYS[first].day, '--to', DAYS[last].day, ...more], settings());

  test(`survives ${kills} kills with the digests of an undisturbed run`, {
    timeout: 900_000,
  }, async () => {
    console.log(`kill test: TIDEMARK_TEST_SEED=${SEED}`);
    const whole = ['backfill', dataset, '--from', DAYS[0].day, '--to', DAYS.at(-1)!.day];
    expect((await reference.run(whole, vendor.settings(reference.vendor))).exit).toBe(0);
    const expected = await reference.digests();
    expect(Object.keys(expected)).toHaveLength(DAYS.length);

    const queue: Target[] = TARGETS.flatMap((target) => Array.from({ length: killsEach }, () => target))
      .map((target) => [random(), target] as const)
      .sort(([a], [b]) => a - b)
      .map(([, target]) => target);
    const killed: Record<string, number> = {};
    const ends: Record<string, number> = {};
    let next = 0;
    let idle = 0;
    let watched: Partial<Watched> = {};
    const startedAt = performance.now();
    while (queue.length > 0) {
      const last = Math.min(next + STAGE, DAYS.length) - 1;
      const again = Math.floor(random() * (DAYS.length - STAGE));
      const running =
        next < DAYS.length
          ? run('backfill', 0, last)
          : run('reingest', again, again + STAGE - 1, '--reason', 'the kill test wants work');
      let ended = false;
      running.done.finally(() => {
        ended = true;
      });
      while (!ended && queue.length > 0) {
        await Promise.race([running.done, delay(100 + random() * 1000)]);
        const proved = await provedDays(own.stack.databaseUrl);
        if (ended || !kill(queue[0], running, own)) continue;
        const [target] = queue.splice(0, 1);
        killed[target] = (killed[target] ?? 0) + 1;
        watched = await lookedAt(own.dir, watched);
        if (next < DAYS.length && proved === last + 1) idle++;
        if (target === 'command') break;
      }
      const outcome = outcomeOf(await running.done);
      ends[outcome] = (ends[outcome] ?? 0) + 1;
      if (outcome === 'done') next = Math.min(next + STAGE, DAYS.length);
      else await delay(200);
    }
    // A server may still be on its way up, or not have noticed yet that a holder of a lease is gone.
    const last: string[] = [];
    while (last.at(-1) !== 'done' && last.length < 50) {
      if (last.length > 0) await delay(300);
      // A revision that was begun goes on only when it is asked for again.
      const command = next < DAYS.length ? ['backfill'] : ['reingest', '--reason', 'the kill test is over'];
      last.push(outcomeOf(await run(command[0], 0, DAYS.length - 1, ...command.slice(1)).done));
    }
    expect(last.at(-1), last.join()).toBe('done');
    console.log(
      `kill test: ${JSON.stringify(killed)} killed in ${Math.round((performance.now() - startedAt) / 1000)} s; commands ended: ${JSON.stringify(ends)}; kills with nothing to do: ${idle}`,
    );
    expect(Object.values(killed).reduce((sum, count) => sum + count, 0)).toBe(kills);
    // Kills that meet nobody at work prove nothing. How many do is chance and the machine's: none was seen with over half.
    expect(idle).toBeLessThanOrEqual((3 * kills) / 4);

    // Whoever watched the proof log all along saw one history, and it says what became of every attempt.
    await sequence({ dir: own.dir, databaseUrl: own.stack.databaseUrl });
    await lookedAt(own.dir, watched);
    const { faults } = await checkMirror(await checkpointOf(own), folderSource(logFolderOf(own)));
    expect(faults).toEqual([]);
    await using client = await connect({ url: own.stack.databaseUrl, name: 'test' });
    const system = { client };
    const { rows: leaves } = await client.query(
      `select (select count(*)::int4 from proof_leaves where kind in ('proved', 'revised')) as leaves,
         (select count(*)::int4 from attempts where state = 'proved') as attempts`,
    );
    expect(leaves[0].leaves).toBe(leaves[0].attempts);
    // Digests, counts, totals: of the manifests and of the recounts.
    expect(withoutRevision(await digestsOf(client))).toEqual(withoutRevision(expected));
    // None lost, none doubled, none changed.
    expect(await compareNative(system, csv, own.dir, dataset)).toEqual([ROWS, ROWS, 0, 0]);
    const seconds = await secondsOfFiles(csv, dataset);
    const stored = await secondsStored(system, dataset);
    expect(stored.length).toBe(seconds.length);
    expect(stored.filter((row, index) => row.some((cell, column) => cell !== seconds[index][column]))).toEqual([]);

    const attempts = await client.query(
      `select p.partition_key as day, p.revision, (select count(*)::int4 from attempts a where a.partition_key = p.partition_key
       and a.state = 'proved') as proved, (select max(attempt) = p.attempt from attempts a where a.partition_key = p.partition_key
       and a.state = 'proved') as latest from partitions p order by 1`,
    );
    expect(attempts.rows.map((row) => row.day)).toEqual(DAYS.map(({ day }) => day));
    for (const { day, revision, proved, latest } of attempts.rows) {
      expect({ day, latest, enough: proved >= 1 && proved <= revision }).toEqual({ day, latest: true, enough: true });
    }
    const others = await client.query(`select distinct state from attempts where state <> 'proved'`);
    expect(others.rows.map((row) => row.state).filter((each) => each !== 'abandoned')).toEqual([]);
    // The index of frames holds the frames of the proved attempts and no others.
    const frames = await client.query(
      `select f.partition_key, sum(f.rows)::int4 as rows, count(*)::int4 as frames from frames f group by 1 order by 1`,
    );
    expect(frames.rows.map((row) => [row.partition_key, row.rows])).toEqual(DAYS.map(({ day, rows }) => [day, rows]));
    const log = await readLog(own.stack.natsUrl, dataset);
    const indexed = await client.query('select stream_sequence::int4 as sequence, partition_key from frames');
    for (const { sequence, partition_key } of indexed.rows)
      expect(log[sequence - 1].header.partition).toBe(partition_key);
    const { rows: covered } = await client.query('select proved::text as proved from coverage where dataset_id = $1', [
      vendor.layout.dataset.number,
    ]);
    const start = windowOf(vendor.layout.dataset, DAYS[0].day).fromMs;
    expect(covered).toEqual([{ proved: `{[${start},${start + DAYS.length * 86_400_000})}` }]);
    expect(await leftoversOf(client)).toEqual([]);
    expect((await client.query('select count(*)::int4 as n from pg_prepared_xacts')).rows).toEqual([{ n: 0 }]);

    const { exit, json } = await startCommand(['verify', dataset, '--deep'], settings()).done;
    expect([exit, json.units.length]).toEqual([0, DAYS.length]);
    const status = (await startCommand(['status', dataset], settings()).done).json.datasets[0];
    expect(status).toMatchObject({
      rows: ROWS,
      partitions: { missing: 0, publishing: 0, published: 0, proved: DAYS.length, quarantined: 0 },
      gaps: [],
      offset_breaks: [],
      late_arrivals: [],
    });
  });
});
