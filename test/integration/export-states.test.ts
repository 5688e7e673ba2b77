/** The life of an export: the table of states and events, and the database's rows against a model made of it. */
import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { ExportAudit } from '../../serving/exports/audit.ts';
import { ExportDirectories } from '../../serving/exports/files.ts';
import type { ExportRow, StoredArtifact } from '../../serving/exports/rows.ts';
import { ExportSweeper } from '../../serving/exports/service.ts';
import {
  EXPORT_EVENTS,
  EXPORT_STATES,
  type ExportState,
  isFinished,
  TRANSITIONS,
} from '../../serving/exports/states.ts';
import { type ExportOutcome, ExportStore, type ExportTransition } from '../../serving/exports/store.ts';
import { ExportWorker } from '../../serving/exports/worker.ts';
import { connect } from '../../shared/db/connect.ts';
import { createLogger } from '../../shared/logger.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let store: ExportStore;
const told: ExportTransition[] = [];
beforeAll(async () => {
  env = await createMigratedEnv();
  store = new ExportStore({
    databaseUrl: env.databaseUrl,
    leaseMs: 3_600_000,
    onTransition: async (transition) => void told.push(transition),
  });
});
afterAll(async () => {
  await store?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

test('the table: an event leads to one state from wherever it is taken, and what is over stays as it is', () => {
  for (const event of EXPORT_EVENTS) {
    const after = new Set(EXPORT_STATES.map((state) => TRANSITIONS[state][event]).filter((state) => state !== null));
    expect(after.size, event).toBe(1);
  }
  for (const state of EXPORT_STATES.filter(isFinished))
    expect(Object.values(TRANSITIONS[state])).toEqual(Array(5).fill(null));
  // What the contract allows, and nothing else.
  const steps = EXPORT_STATES.flatMap((from) =>
    EXPORT_EVENTS.flatMap((event) => (TRANSITIONS[from][event] ? [`${from} ${TRANSITIONS[from][event]}`] : [])),
  );
  expect([...new Set(steps)].sort()).toEqual(
    ['queued failed', 'queued running', 'running failed', 'running running', 'running succeeded'].sort(),
  );
});

const ARTIFACT: StoredArtifact = {
  row_count: 1,
  bytes: 1,
  sha256: 'a'.repeat(64),
  media_type: 'text/csv',
  split: 'none',
  files: [],
  manifest: { name: 'manifest.json', day: null, row_count: 1, bytes: 1, sha256: 'b'.repeat(64), modified_ms: 0 },
  synthetic: false,
};

const newExport = (exportId: string) => ({
  exportId,
  request: {},
  apiKey: 'owner',
  requestSha256: 'x',
  idempotencyKey: null,
  dataset: 'exchange_a_spot_trades',
  mode: 'native' as const,
  format: 'csv' as const,
  rightsState: 'Hosted Allowed' as const,
  rightsProvisional: false,
  viewId: 'v',
  viewVersion: 1,
  warnings: [],
  asOf: null,
});

const submit = async (apiKey = 'owner') => {
  const exportId = randomUUID();
  await store.submit({ ...newExport(exportId), apiKey }, { running: 1000, waiting: 100_000 }, async () => {});
  return exportId;
};

const take = (worker: string, how = {}) => store.take(worker, { mine: [], takesOver: true, ...how });

/** No export waits or runs but those that the test submits. */
const alone = () => execute(env.databaseUrl, 'delete from exports');

/** What the rows should be, in as few words as possible. */
interface Model {
  state: ExportState;
  fence: number;
  /** Who holds the highest fence and has not given it back. */
  holder: number | null;
  isAlive: boolean;
  crashes: number;
  /** The last fence of each worker. */
  readonly fences: number[];
}

type Command =
  | readonly ['claim' | 'beat' | 'release' | 'succeed' | 'fail', number]
  | readonly ['cancel' | 'silence', number];

const WORKERS = 3;
const commands = fc.array(
  fc.tuple(
    fc.constantFrom('claim', 'claim', 'beat', 'release', 'succeed', 'fail', 'cancel', 'silence'),
    fc.nat(WORKERS - 1),
  ) as fc.Arbitrary<Command>,
  { minLength: 1, maxLength: 14 },
);

/** What the model says becomes of a command. */
function step(model: Model, [name, worker]: Command): ExportOutcome['kind'] | boolean {
  const mine = model.fences[worker] === model.fence;
  if (name === 'silence') {
    model.isAlive = false;
    return true;
  }
  if (name === 'beat') {
    const counts = mine && model.state === 'running';
    if (counts) model.isAlive = true;
    return counts;
  }
  const next = TRANSITIONS[model.state][name];
  if (next === null) return name === 'claim' ? false : 'refused';
  if (name === 'claim') {
    if (model.holder !== null && model.isAlive) return false;
    if (model.holder !== null && model.holder !== worker) model.crashes++;
    model.fences[worker] = ++model.fence;
    [model.holder, model.isAlive] = [worker, true];
  } else {
    if (name !== 'cancel' && !mine) return 'taken';
    model.holder = null;
  }
  model.state = next;
  return 'done';
}

async function real(exportId: string, model: Model, [name, worker]: Command): Promise<ExportOutcome['kind'] | boolean> {
  const fence = model.fences[worker];
  switch (name) {
    case 'claim':
      return (await take(`worker ${worker}`)) ? 'done' : false;
    case 'beat':
      return await store.beat(exportId, fence, { rows: 1, bytes: 2 });
    case 'release':
      return (await store.release(exportId, fence)).kind;
    case 'succeed':
      return (await store.succeed(exportId, fence, { artifact: ARTIFACT, warnings: [], asOfUtc: null, ttlSeconds: 60 }))
        .kind;
    case 'fail':
      return (await store.fail(exportId, fence, 'EXPORT_RUN_FAILED', 'no')).kind;
    case 'cancel':
      return (await store.cancel(exportId, 'EXPORT_RUN_CANCELED', 'no')).kind;
    case 'silence':
      await execute(
        env.databaseUrl,
        `update exports set due_at = due_at - interval '2 h' where export_id = '${exportId}'`,
      );
      return true;
  }
}

test('rows do what the table says, whoever does it and in whatever order; only the highest fence counts', async () => {
  await fc.assert(
    fc.asyncProperty(commands, async (list) => {
      await alone();
      const exportId = await submit();
      told.length = 0;
      const model: Model = {
        state: 'queued',
        fence: 0,
        holder: null,
        isAlive: false,
        crashes: 0,
        fences: Array(WORKERS).fill(0),
      };
      let steps = 0;
      for (const command of list) {
        // Asked before the model takes the step: a worker acts by the fence it has then.
        const found = await real(exportId, model, command);
        const expected = step(model, command);
        expect(found, JSON.stringify([command, list])).toBe(expected);
        if (expected === 'done') steps++;
        const row = (await store.find(exportId))!;
        expect([row.state, row.fence, row.crashes]).toEqual([model.state, model.fence, model.crashes]);
        expect(row.updatedAt.getTime()).toBeGreaterThanOrEqual(row.submittedAt.getTime());
        expect([row.artifact !== null, row.errorCode !== null]).toEqual([
          row.state === 'succeeded',
          row.state === 'failed',
        ]);
      }
      expect(told).toHaveLength(steps);
    }),
    { numRuns: 25 },
  );
});

test('a clock that was set back keeps nobody alive, and delays no export', async () => {
  await alone();
  const exportId = await submit();
  const setBack = () =>
    execute(env.databaseUrl, `update exports set due_at = due_at + interval '1 day' where export_id = '${exportId}'`);
  await setBack();
  expect((await take('dead'))?.exportId).toBe(exportId);
  expect(await take('other')).toBeUndefined();
  await setBack();
  expect(await take('other')).toMatchObject({ exportId, fence: 2, crashes: 1 });
});

test('after a fault of a store an export waits longer for each try, whoever has time', async () => {
  await alone();
  const exportId = await submit();
  const due = async () => {
    const { rows } = await execute(env.databaseUrl, 'select due_at, clock_timestamp() as now from exports');
    return rows[0].due_at.getTime() - rows[0].now.getTime();
  };
  let before = 0;
  for (const least of [500, 1000, 2000]) {
    const { fence, crashes } = (await take('w'))!;
    expect(crashes).toBe(0);
    await store.retry(exportId, fence);
    const waits = await due();
    expect(waits).toBeGreaterThan(before);
    expect(waits).toBeLessThanOrEqual(least);
    expect(await take('other')).toBeUndefined();
    before = waits;
    await execute(env.databaseUrl, 'update exports set due_at = clock_timestamp()');
  }
});

test('a worker takes back neither what it runs nor, after an outage, what others may still run', async () => {
  await alone();
  const exportId = await submit();
  await take('w');
  await execute(env.databaseUrl, "update exports set due_at = clock_timestamp() - interval '1 h'");
  expect(await take('w', { mine: [exportId] })).toBeUndefined();
  expect(await take('other', { takesOver: false })).toBeUndefined();
  // Its own run that ended without a word to the database is no crash.
  expect(await take('w')).toMatchObject({ exportId, fence: 2, crashes: 0 });
});

// The lease of a living worker ends with an outage, too: it was counted as dead.
test('a worker that could not reach the database gives others time for a heartbeat before it takes over what they run', async () => {
  await alone();
  const exportId = await submit();
  await take('dead');
  await execute(env.databaseUrl, "update exports set due_at = clock_timestamp() - interval '1 h'");
  const asked: boolean[] = [];
  const failing = {
    take: async (...[worker, how]: Parameters<ExportStore['take']>) => {
      asked.push(how.takesOver);
      if (asked.length === 1) throw new Error('the database is away');
      return await store.take(worker, how);
    },
    beat: async () => true,
    fail: store.fail.bind(store),
  };
  await using _worker = new ExportWorker({
    store: failing as unknown as ExportStore,
    databaseUrl: env.databaseUrl,
    directories: new ExportDirectories(env.dir),
    concurrency: 1,
    leaseMs: 600,
    maxCrashes: 9,
    ttlSeconds: 60,
    log: createLogger('silent', 'test'),
    run: () => Promise.reject(new Error('it was taken')),
  });
  await expect.poll(async () => (await store.find(exportId))!.state, { timeout: 10_000 }).toBe('failed');
  expect(asked.slice(0, 3)).toEqual([true, false, true]);
});

test('the next export is of the key with the fewest running, then of the one that has waited longest for a worker', async () => {
  await alone();
  await execute(
    env.databaseUrl,
    `insert into api_keys (key_id, name, digest, scopes)
     select lpad(at::text, 12, '0'), name, sha256(name::bytea), '{export}'
     from unnest('{one,other,third}'::text[]) with ordinality as given (name, at)`,
  );
  for (const key of ['one', 'one', 'one', 'other', 'other', 'third']) await submit(key);
  const next = async () => (await take('w'))!;
  const end = (row: ExportRow) => store.fail(row.exportId, row.fence, 'EXPORT_RUN_FAILED', 'no');
  const [one, other] = [await next(), await next()];
  expect([one.apiKey, other.apiKey]).toEqual(['one', 'other']);
  await end(other);
  // None of `other` and `third` runs, and `third` has had no worker; then `one` was first, and still runs one.
  const third = await next();
  expect(third.apiKey).toBe('third');
  expect((await next()).apiKey).toBe('other');
  expect((await next()).apiKey).toBe('one');
});

test('many workers at once take each export once', async () => {
  await alone();
  const ids = await Promise.all(Array.from({ length: 12 }, () => submit()));
  const taken = await Promise.all(ids.map((_, index) => take(`worker ${index}`)));
  const found = taken.flatMap((row) => row?.exportId ?? []);
  expect(new Set(found).size).toBe(found.length);
  // Two may have looked at the same one; whoever got nothing looks again.
  for (let row = await take('last'); row; row = await take('last')) found.push(row.exportId);
  expect(found.sort()).toEqual(ids.sort());
});

// Only the first dataset of a frame was looked at.
test('the exports of a dataset include frames that read it beside others', async () => {
  const exportId = randomUUID();
  const columns = ['exchange_a_spot_trades', 'macro_series_metrics'].map((dataset) => ({ dataset }));
  const frame = { ...newExport(exportId), request: { columns } };
  await store.submit(frame, { running: 1000, waiting: 100_000 }, async () => {});
  const found = async (dataset: string) => {
    const filter = { apiKey: undefined, state: undefined, before: undefined, limit: 100 };
    return (await store.page({ ...filter, dataset })).map((row) => row.exportId);
  };
  expect(await found('macro_series_metrics')).toEqual([exportId]);
  expect(await found('exchange_a_spot_trades')).toContain(exportId);
  expect(await found('etf_daily_metrics')).toEqual([]);
});

// Both would read the state before either writes it, and the caller who canceled would get an artifact.
test('of a cancellation and a success at the same moment the store takes one and refuses the other', async () => {
  await alone();
  const exportId = await submit();
  const { fence } = (await take('worker'))!;
  const open = () => connect({ url: env.databaseUrl, name: 'test of the row lock' });
  await using holder = await open();
  // In a transaction the database shows the same activity again and again.
  await using watcher = await open();
  await holder.query('begin');
  await holder.query('select from exports where export_id = $1 for update', [exportId]);
  const both = Promise.all([
    store.succeed(exportId, fence, { artifact: ARTIFACT, warnings: [], asOfUtc: null, ttlSeconds: 60 }),
    store.cancel(exportId, 'EXPORT_RUN_CANCELED', 'canceled'),
  ]);
  // Both have looked at the row, or wait for it.
  const waiting = `select from pg_stat_activity where datname = current_database()
    and application_name = 'tidemark exports' and wait_event_type = 'Lock'`;
  await expect.poll(async () => (await watcher.query(waiting)).rowCount).toBe(2);
  await holder.query('commit');
  const outcomes = await both;
  expect(outcomes.map(({ kind }) => kind).sort()).toEqual(['done', 'refused']);
  const isSucceeded = outcomes[0].kind === 'done';
  expect(await store.find(exportId)).toMatchObject(
    isSucceeded ? { state: 'succeeded', errorCode: null } : { state: 'failed', artifact: null },
  );
});

test('of many submits at once exactly as many are taken as the queue has room for', async () => {
  await execute(env.databaseUrl, 'delete from exports');
  const limits = { running: 2, waiting: 3 };
  const outcomes = await Promise.all(
    Array.from({ length: 8 }, () => store.submit(newExport(randomUUID()), limits, async () => {})),
  );
  expect(outcomes.filter(({ kind }) => kind === 'accepted')).toHaveLength(3);
  // One runs: one more may wait.
  await take('w');
  expect((await store.submit(newExport(randomUUID()), limits, async () => {})).kind).toBe('accepted');
  expect((await store.submit(newExport(randomUUID()), limits, async () => {})).kind).toBe('full');
  // What must be on record first, and is not, undoes the submit.
  const unrecorded = randomUUID();
  await expect(
    store.submit(newExport(unrecorded), { running: 9, waiting: 9 }, async () => {
      throw new Error('the disk is full');
    }),
  ).rejects.toThrow('the disk is full');
  expect(await store.find(unrecorded)).toBeUndefined();
});

describe('the sweeper', () => {
  const lines: string[] = [];
  let directories: ExportDirectories;
  let root: string;
  let audit: ExportAudit;
  const log = createLogger('warn', 'test', { write: (line) => void lines.push(line) });
  beforeAll(() => {
    root = join(env.dir, 'exports');
    directories = new ExportDirectories(root);
    audit = new ExportAudit({ directory: join(env.dir, 'audit'), role: 'worker', log, keepHead: async () => {} });
  });
  afterAll(() => audit[Symbol.asyncDispose]());
  beforeEach(() => {
    lines.length = 0;
  });

  const sweeper = () => {
    const leaseMs = 3_600_000;
    return new ExportSweeper({ store, directories, audit, leaseMs, log, pageSize: 1 });
  };
  /** An export whose artifact has expired. */
  async function expired(): Promise<string> {
    await execute(env.databaseUrl, `delete from exports where state in ('queued', 'running')`);
    const exportId = await submit();
    const { fence } = (await take('w'))!;
    await store.succeed(exportId, fence, { artifact: ARTIFACT, warnings: [], asOfUtc: null, ttlSeconds: 60 });
    await execute(
      env.databaseUrl,
      `update exports set expires_at = clock_timestamp() - interval '1 s' where export_id = '${exportId}'`,
    );
    const folder = directories.artifact(exportId, fence);
    await mkdir(folder, { recursive: true });
    await writeFile(join(folder, 'rows.csv'), 'a');
    return exportId;
  }
  const isRemoved = async (exportId: string) => {
    const { rows } = await execute(
      env.databaseUrl,
      `select removed_at is not null as removed from exports where export_id = '${exportId}'`,
    );
    return [rows[0].removed, !(await directories.present()).includes(exportId)];
  };

  test('one expired artifact that could not be deleted kept all later ones, and nothing said so', async () => {
    const [stuck, next] = [await expired(), await expired()];
    // Nobody can delete this by its path, which is longer than a path may be: not even root, whom no permission stops.
    const deep = `const name = 'd'.repeat(200);
      for (let depth = 0; depth < 25; depth++) { require('node:fs').mkdirSync(name); process.chdir(name); }`;
    const folder = join(root, stuck);
    execFileSync(process.execPath, ['-e', deep], { cwd: directories.artifact(stuck, 1) });
    try {
      await using sweeping = sweeper();
      for (let sweep = 0; sweep < 3; sweep++) await sweeping.sweep();
      expect(await isRemoved(next)).toEqual([true, true]);
      expect(await isRemoved(stuck)).toEqual([false, false]);
      expect(lines.map((line) => JSON.parse(line))).toMatchObject([{ level: 40, exportId: stuck }]);
    } finally {
      execFileSync('rm', ['-rf', folder]);
    }
    await using sweeping = sweeper();
    await sweeping.sweep();
    expect(await isRemoved(stuck)).toEqual([true, true]);
  });
});
