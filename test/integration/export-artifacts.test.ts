/** Export artifacts: complete, durable and the same bytes each time, or not there at all. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  BackpressureGate,
  FileSink,
  type FileTarget,
  type FileWriter,
} from '../../serving/exports/artifact/file-sink.ts';
import { ArtifactFiles, formatOf } from '../../serving/exports/artifact/files.ts';
import { StagingDirectory } from '../../serving/exports/artifact/staging.ts';
import {
  type Artifact,
  type ArtifactFormat,
  type ArtifactProgress,
  isIntact,
  readArtifact,
  removeArtifact,
} from '../../serving/exports/artifact/write.ts';
import { ExportDirectories } from '../../serving/exports/files.ts';
import type { Reader } from '../../serving/read/execute/answer.ts';
import { BufferPool } from '../../serving/render/response.ts';
import { type ArtifactLab, type Artifacts, artifactLab } from '../support/artifacts.ts';
import { writeRow } from '../support/generated-rows.ts';
import { NO_MOUNT } from '../support/given.ts';
import { DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import type { DuckDb } from '../support/read-parquet.ts';
import type { Serving } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

const DAYS = [
  randomDay('2024-03-01', 400, 1000, 1),
  randomDay('2024-03-02', 300, 1400, 2),
  randomDay('2024-03-04', 500, 2100, 3),
];
const WINDOW = { time_range: ['2024-03-01T00:00:00Z', '2024-03-03T00:00:00Z'] };

const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

let env: TestEnv;
let lab: ArtifactLab;
let duck: DuckDb;
let files: Artifacts;
let serving: Serving;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, DAYS);
  lab = await artifactLab(env);
  ({ files, duck, serving } = lab);
});

afterAll(async () => {
  await lab?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

/** The query's JSON, cell by cell as texts. */
async function cellsOf(body: object): Promise<(string | null)[][]> {
  const { json } = await serving.query(body);
  return json.rows.map((row: Record<string, unknown>) =>
    Object.values(row).map((cell) => (cell === null ? null : String(cell))),
  );
}

async function first(body: object): Promise<unknown> {
  return (await serving.query(body)).json.rows[0];
}

/** A reader whose first row has something happen. */
function interrupted(then: () => void): Reader {
  const read: Reader['read'] = (call) =>
    files.deps.reader.read({
      ...call,
      open(facts, flow) {
        const writer = call.open(facts, flow);
        return new Proxy(writer, {
          get(target, name) {
            const value = Reflect.get(target, name, target);
            if (typeof value !== 'function') return value;
            return (...args: unknown[]) => {
              if (name === 'row') then();
              return value.apply(target, args);
            };
          },
        });
      },
    });
  return { read } as Reader;
}

const csvOf = async (body: object) => (await serving.query(body, { Accept: 'text/csv' })).text;

const FORMATS: readonly ArtifactFormat[] = ['csv', 'parquet'];
const rowsOf = async ({ files: written, manifest }: Artifact) => {
  const paths = `[${written.map(({ path }) => `'${path}'`).join(', ')}]`;
  // CSV as text: its cells are the query's own.
  const csv = `read_csv(${paths}, header = true, all_varchar = true, nullstr = '', allow_quoted_nulls = false)`;
  return await duck.texts(`select * from ${manifest.format === 'csv' ? csv : `read_parquet(${paths})`}`);
};
const leftovers = async (dir = env.dir) => (await readdir(dir)).filter((name) => name.includes('partial'));

describe.for(FORMATS)('%s', (format) => {
  test.for(['native', 'aligned_1s'])(
    '%s: the rows that the query serves, and a manifest that is true',
    async (mode) => {
      const body = { sources: [DATASET], mode, ...WINDOW };
      const artifact = await files.write(body, format, { run: { export_id: 'e1' } });
      const { manifest, files: written, manifestPath } = artifact;
      const bytes = await readFile(written[0].path);
      const rows = await rowsOf(artifact);
      expect(rows).toEqual(await cellsOf(body));
      if (format === 'csv') expect(bytes.toString()).toBe(await csvOf(body));
      expect(JSON.parse(await readFile(manifestPath, 'utf8'))).toEqual(manifest);
      const name = `${DATASET}.${mode}.2024-03-01_2024-03-02.${format}`;
      const facts = { row_count: rows.length, bytes: bytes.length, sha256: sha256(bytes) };
      expect(manifest).toMatchObject({
        manifest_version: 1,
        dataset: DATASET,
        mode,
        format,
        ...facts,
        split: 'none',
        window: { kind: 'range', start_utc: '2024-03-01T00:00:00.000Z', end_utc: '2024-03-03T00:00:00.000Z' },
        as_of: null,
        as_of_utc: '2024-03-05T00:00:00.000Z',
        synthetic: false,
        run: { export_id: 'e1', written_at_utc: '2024-03-10T12:00:00.000Z' },
        files: [{ name, day: null, ...facts }],
      });
      expect(manifest.schema.map((column) => column.name)).toEqual(Object.keys((await first(body)) as object));
      expect(manifest.proof).toMatchObject({ partitions: 2, coverage_version: expect.any(Number) });
      expect(manifest.proof!.listed.map((one) => [one.partition, one.rows])).toEqual([
        ['2024-03-01', 400],
        ['2024-03-02', 300],
      ]);
      expect((await readdir(dirname(manifestPath))).sort()).toEqual([name, 'manifest.json']);
      expect(await leftovers()).toEqual([]);
      expect(await isIntact(artifact)).toBe(true);
    },
  );

  test('the same request over the same proved rows is the same bytes, and the same manifest but for its run', async () => {
    for (const window of [WINDOW, { n_rows: 123 }, { n_random: 77, random_seed: 5 }]) {
      const body = { sources: [DATASET], ...window };
      const [one, other] = [await files.write(body, format), await files.write(body, format, { run: { attempt: 2 } })];
      const [a, b] = await Promise.all([one, other].map((artifact) => readFile(artifact.files[0].path)));
      expect(a.equals(b)).toBe(true);
      const { run: _a, ...same } = one.manifest;
      const { run: _b, ...again } = other.manifest;
      expect(again).toEqual(same);
      expect(await rowsOf(one)).toEqual(await cellsOf(body));
    }
  });

  test('fields as asked for, in their order', async () => {
    const body = { sources: [DATASET], fields: ['datetime', 'price', 'trade_id'], ...WINDOW };
    expect(await rowsOf(await files.write(body, format))).toEqual(await cellsOf(body));
  });

  test('filters: the rows that the query serves, and the manifest says how much was searched', async () => {
    const price = DAYS[0].trades.map((trade) => trade.price).sort((a, b) => a - b)[350];
    const filters = [
      { field: 'price', op: 'gte', value: price },
      { field: 'is_buyer_maker', op: 'eq', value: 1 },
    ];
    const everything = { time_range: ['2024-03-01T00:00:00Z', '2024-03-05T00:00:00Z'] };
    for (const window of [everything, { n_rows: 20 }, { n_random: 5, random_seed: 3 }]) {
      const body = { sources: [DATASET], filters, ...window };
      const artifact = await files.write(body, format);
      const rows = await rowsOf(artifact);
      expect(rows).toEqual(await cellsOf(body));
      expect(rows.length).toBeGreaterThan(0);
      expect(artifact.manifest).toMatchObject({ filters, row_count: rows.length });
      expect(artifact.files[0].name).toContain('.filtered.');
    }
    const { manifest } = await files.write({ sources: [DATASET], filters, ...everything }, format);
    expect(manifest.searched).toEqual({ partitions_read: 3, partitions_skipped: 0, frames_read: 0, frames_skipped: 0 });
    expect(manifest.proof!.partitions).toBe(3);
    expect((await files.write({ sources: [DATASET], ...WINDOW }, format)).manifest).toMatchObject({
      filters: [],
      searched: null,
    });
    const none = [{ field: 'price', op: 'lt', value: 0 }];
    const empty = await files.write({ sources: [DATASET], filters: none, ...everything }, format);
    expect(empty.manifest.row_count).toBe(0);
    expect(await rowsOf(empty)).toEqual([]);
  });

  test('filters, split: a file for each day that they leave, by the rows that are searched', async () => {
    const [first, last] = [DAYS[0], DAYS[2]].map(({ trades }) => trades.map(({ trade_id }) => trade_id));
    const least = Math.min(...last);
    const body = {
      sources: [DATASET],
      time_range: ['2024-03-01T00:00:00Z', '2024-03-05T00:00:00Z'],
      filters: [{ field: 'trade_id', op: 'in', value: [first[7], least, least + 3] }],
    };
    const whole = await rowsOf(await files.write(body, format));
    expect(whole).toHaveLength(3);
    // The ids lead to two frames, and to none of the second day.
    const artifact = await files.write(body, format, { splitRows: 10 });
    expect(artifact.manifest.files.map(({ day, row_count }) => [day, row_count])).toEqual([
      ['2024-03-01', 1],
      ['2024-03-04', 2],
    ]);
    expect(await rowsOf(artifact)).toEqual(whole);
    // By its value ranges, the second day holds no such price.
    await execute(
      env.databaseUrl,
      `update partitions set value_ranges = '{"price": [1, 2]}' where partition_key = '2024-03-02'`,
    );
    const dear = { ...body, filters: [{ field: 'price', op: 'gte', value: 39_000 }] };
    const skipped = await files.write(dear, format, { splitRows: 899 });
    await execute(env.databaseUrl, 'update partitions set value_ranges = null');
    expect(skipped.manifest.searched).toMatchObject({ partitions_read: 2, partitions_skipped: 1 });
    expect(skipped.manifest.files.map(({ day, row_count }) => [day, row_count])).toEqual([
      ['2024-03-01', 400],
      ['2024-03-04', 500],
    ]);
    expect(skipped.manifest.proof!.partitions).toBe(3);
  });

  test('no row of a proved window: a valid file with its columns and none; nothing proved: no file', async () => {
    const quiet = { time_range: ['2024-03-01T00:00:00Z', '2024-03-01T00:00:00.001Z'] };
    const artifact = await files.write({ sources: [DATASET], ...quiet }, format);
    expect(artifact.manifest.row_count).toBe(0);
    expect(await rowsOf(artifact)).toEqual([]);
    expect(await duck.texts(`select count(*) from '${artifact.files[0].path}'`)).toEqual([['0']]);
    const unproved = { time_range: ['2024-03-03T00:00:00Z', '2024-03-04T00:00:00Z'] };
    const directory = join(env.dir, `none-${format}`);
    const refused = files.write({ sources: [DATASET], ...unproved }, format, { directory });
    await expect(refused).rejects.toMatchObject({ name: 'ReadFault', kind: 'no_rows' });
    expect(await readArtifact(directory)).toBeUndefined();
    expect(await leftovers()).toEqual([]);
  });

  test('what is warned of stands in the manifest; strict, nothing is written', async () => {
    const across = { sources: [DATASET], time_range: ['2024-03-01T00:00:00Z', '2024-03-05T00:00:00Z'] };
    const { manifest } = await files.write(across, format);
    expect(manifest.warnings.map(({ code }) => code)).toEqual(['WINDOW_EXCEEDS_PROVED_COVERAGE']);
    await expect(files.write({ ...across, strict: true }, format)).rejects.toMatchObject({ name: 'StrictRefusal' });
    expect(await leftovers()).toEqual([]);
  });

  test.for(['native', 'aligned_1s'])('%s: split, a file a day, together the same rows', async (mode) => {
    const body = { sources: [DATASET], mode, time_range: ['2024-03-01T06:00:00Z', '2024-03-05T00:00:00Z'] };
    const whole = await rowsOf(await files.write(body, format, { splitRows: 1200 }));
    // The ids lead to two frames, and to none of the second day.
    const artifact = await files.write(body, format, { splitRows: 10 });
    const { manifest } = artifact;
    const days = ['2024-03-01', '2024-03-02', '2024-03-04'];
    expect(manifest.split).toBe('day');
    expect(manifest.files.map(({ day }) => day)).toEqual(days);
    expect(await rowsOf(artifact)).toEqual(whole);
    expect(manifest.row_count).toBe(whole.length);
    expect(manifest.bytes).toBe(manifest.files.reduce((sum, file) => sum + file.bytes, 0));
    // As `sha256sum` prints them.
    const sums = await Promise.all(
      artifact.files.map(async ({ path, name }) => `${sha256(await readFile(path))}  ${name}\n`),
    );
    expect(manifest.sha256).toBe(sha256(Buffer.from(sums.join(''))));
    const time = manifest.schema.findIndex(({ name }) => name === (mode === 'native' ? 'datetime' : 'aligned_at_utc'));
    for (const [index, day] of days.entries()) {
      const rows = await rowsOf({ ...artifact, files: [artifact.files[index]] });
      expect(rows).toHaveLength(manifest.files[index].row_count);
      expect(new Set(rows.map((row) => row[time]!.slice(0, 10)))).toEqual(new Set([day]));
    }
    expect(await isIntact(artifact)).toBe(true);
  });
});

describe('an artifact that is there', () => {
  const body = { sources: [DATASET], ...WINDOW };

  test('is taken as it is: its writer was killed before it could tell', async () => {
    const directory = join(env.dir, 'adopted');
    const { files: one } = await files.write(body, 'parquet', { directory });
    const { files: other } = await files.write(body, 'parquet', { directory });
    expect(other).toEqual(one);
  });

  test.for(['altered', 'shortened', 'gone', 'without a manifest'])('%s: is written again', async (how) => {
    const directory = join(env.dir, how.replaceAll(' ', '-'));
    const artifact = await files.write(body, 'csv', { directory });
    const [{ path }] = artifact.files;
    const bytes = await readFile(path);
    if (how === 'altered') await writeFile(path, Buffer.from(bytes).fill(bytes[200] ^ 1, 200, 201));
    if (how === 'shortened') await truncate(path, bytes.length - 1);
    if (how === 'gone') await rm(path);
    if (how === 'without a manifest') await rm(artifact.manifestPath);
    expect((await readArtifact(directory)) === undefined).toBe(how !== 'altered');
    expect(how === 'without a manifest' || !(await isIntact(artifact))).toBe(true);
    await files.write(body, 'csv', { directory });
    expect((await readFile(path)).equals(bytes)).toBe(true);
    await removeArtifact(directory);
    expect(await readdir(env.dir)).not.toContain(basename(directory));
  });

  test('of several that race for it, exactly one is there, whole; who lost it is told', async () => {
    for (let round = 0; round < 4; round++) {
      const directory = join(env.dir, `raced-${round}`);
      const racing = ['csv', 'parquet', 'csv'] as const;
      const settled = await Promise.allSettled(racing.map((format) => files.write(body, format, { directory })));
      const won = settled.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
      const lost = settled.flatMap((one) => (one.status === 'rejected' ? [one.reason] : []));
      for (const reason of lost) expect(reason).toMatchObject({ name: 'ArtifactFault' });
      expect(won.length).toBeGreaterThan(0);
      // All who won have the same one.
      for (const one of won) expect(one).toEqual(won[0]);
      expect(await isIntact(won[0])).toBe(true);
      expect(await leftovers()).toEqual([]);
    }
  });
});

describe('what ends the writing leaves nothing behind', () => {
  const body = { sources: [DATASET], ...WINDOW };

  test.for(FORMATS)('%s: aborted midway', async (format) => {
    const controller = new AbortController();
    const reason = new Error('cancelled');
    const reader = interrupted(() => controller.abort(reason));
    const directory = join(env.dir, `aborted-${format}`);
    await expect(files.write(body, format, { directory, signal: controller.signal, reader })).rejects.toBe(reason);
    expect((await readdir(env.dir)).filter((name) => name.startsWith(basename(directory)))).toEqual([]);
  });

  test('a signal that was given before: nothing is begun', async () => {
    const directory = join(env.dir, 'never');
    const signal = AbortSignal.abort(new Error('too late'));
    await expect(files.write(body, 'csv', { directory, signal })).rejects.toThrow('too late');
    expect((await readdir(env.dir)).filter((name) => name.startsWith('never'))).toEqual([]);
  });

  test.for(FORMATS)('%s: the disk is full midway, then has room again', async (format, { skip }) => {
    const root = join(env.dir, `small-${format}`);
    await mkdir(root);
    try {
      // 64 KiB hold neither file.
      execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', root], { stdio: 'ignore' });
    } catch {
      skip(NO_MOUNT);
    }
    try {
      const all = { sources: [DATASET], time_range: ['2024-03-01T00:00:00Z', '2024-03-05T00:00:00Z'] };
      const filler = join(root, 'filler');
      if (format === 'parquet') await writeFile(filler, Buffer.alloc(56 * 1024));
      const directory = join(root, 'export');
      const full = files.write(all, format, { directory });
      await expect(full).rejects.toMatchObject({ name: 'ArtifactFault', kind: 'no_space' });
      expect((await readdir(root)).filter((name) => name !== 'filler')).toEqual([]);
      execFileSync('mount', ['-o', 'remount,size=4m', root]);
      const { manifest } = await files.write(all, format, { directory });
      expect(manifest.row_count).toBe(1200);
    } finally {
      execFileSync('umount', [root]);
    }
  });

  test('a directory that is a file', async () => {
    await writeFile(join(env.dir, 'file'), '');
    const refused = files.write(body, 'csv', { directory: join(env.dir, 'file', 'x') });
    await expect(refused).rejects.toMatchObject({ name: 'ArtifactFault', kind: 'not_writable' });
    await expect(refused).rejects.not.toThrow(env.dir);
  });

  // A run was ended as "cannot be written": what a killed run had left was swept, and its folder with it, as it began.
  test('an export’s folder that a sweep removes whenever it finds it empty', async () => {
    const places = new ExportDirectories(join(env.dir, 'places'));
    const exportId = '00000000-0000-4000-8000-000000000002';
    const directory = places.artifact(exportId, 4);
    let sweeping = true;
    const sweeps = (async () => {
      while (sweeping) await places.removeUnneeded(exportId, { state: 'running', fence: 4, artifactFence: null });
    })();
    try {
      for (let begun = 0; begun < 200; begun++) await (await StagingDirectory.create(directory))[Symbol.asyncDispose]();
      await files.write(body, 'csv', { directory });
    } finally {
      sweeping = false;
      await sweeps;
    }
    expect(await readdir(directory)).toHaveLength(2);
  });

  test('a directory that may not be written', async ({ skip }) => {
    if (process.getuid?.() === 0) {
      const root = join(env.dir, 'read-only');
      await mkdir(root);
      try {
        execFileSync('mount', ['-t', 'tmpfs', '-o', 'ro,size=64k', 'tmpfs', root], { stdio: 'ignore' });
      } catch {
        skip(NO_MOUNT);
      }
      try {
        const refused = files.write(body, 'csv', { directory: join(root, 'export') });
        await expect(refused).rejects.toMatchObject({ name: 'ArtifactFault', kind: 'not_writable' });
      } finally {
        execFileSync('umount', [root]);
      }
      return;
    }
    const root = join(env.dir, 'read-only');
    await mkdir(root, { mode: 0o500 });
    const refused = files.write(body, 'csv', { directory: join(root, 'export') });
    await expect(refused).rejects.toMatchObject({ name: 'ArtifactFault', kind: 'not_writable' });
  });

  test('what a killed writer left is removed by the next', async () => {
    const directory = join(env.dir, 'left');
    await mkdir(`${directory}.partial-0123456789ab`);
    await writeFile(join(`${directory}.partial-0123456789ab`, 'rows.csv'), 'half');
    await files.write(body, 'csv', { directory });
    expect((await readdir(env.dir)).filter((name) => name.startsWith('left'))).toEqual(['left']);
  });
});

test('progress tells rows and bytes', async () => {
  const told: ArtifactProgress[] = [];
  const { manifest } = await files.write({ sources: [DATASET], ...WINDOW }, 'csv', {
    onProgress: (one) => told.push(one),
  });
  expect(told.at(-1)).toEqual({ rows: manifest.row_count, bytes: manifest.bytes });
});

test('a disk that is behind holds the rows back, and lets them go again', async () => {
  const calls: string[] = [];
  const flow = { pause: () => void calls.push('pause'), resume: () => void calls.push('resume') };
  const path = join(env.dir, 'slow');
  const sink = await FileSink.create(path, { buffers: new BufferPool(), flow, onFault: () => {} });
  const parts = Array.from({ length: 40 }, (_, part) => Buffer.alloc(100_000, part));
  for (const part of parts) sink.write(part);
  expect(calls).toEqual(['pause']);
  const { bytes, sha256: digest } = await sink.finish();
  expect(calls).toEqual(['pause', 'resume']);
  const all = Buffer.concat(parts);
  expect([bytes, digest]).toEqual([all.length, sha256(all)]);
  expect((await readFile(path)).equals(all)).toBe(true);
});

test('while a finished day is synced the read is held back: it is not the database that is late', async () => {
  const calls: string[] = [];
  const gate = new BackpressureGate();
  gate.flow = { pause: () => void calls.push('pause'), resume: () => void calls.push('resume') };
  const format = {
    ...formatOf('csv', 'none'),
    open: (target: FileTarget): FileWriter => {
      const writer = formatOf('csv', 'none').open(target);
      const close = writer.close.bind(writer);
      return Object.assign(writer, { close: () => setTimeout(20).then(close) });
    },
  };
  const options = { directory: env.dir, stem: 'held', format, facts: {}, buffers: new BufferPool(), gate };
  await using days = new ArtifactFiles({ ...options, onFault: () => {} });
  const shape = { columns: [], hiddenFirst: false };
  days.shape = shape;
  const row = () => writeRow(days, shape, { cells: [], fromMs: 0, toMs: 0 });
  await days.begin('2024-03-01');
  row();
  await days.begin('2024-03-02');
  expect(calls).toEqual([]);
  row();
  await days.begin('2024-03-03');
  expect(calls).toEqual(['pause', 'resume']);
  await days.finish();
  expect(days.done.map(({ day, row_count }) => [day, row_count])).toEqual([
    ['2024-03-01', 1],
    ['2024-03-02', 1],
    ['2024-03-03', 0],
  ]);
});

test('what others commit meanwhile is not seen: rows, coverage and partitions are of one snapshot', async () => {
  const body = { sources: [DATASET], time_range: ['2024-03-01T00:00:00Z', '2024-03-05T00:00:00Z'] };
  const before = await cellsOf(body);
  const reader = {
    read: (call) =>
      files.deps.reader.read({
        ...call,
        async inspect(live, plan) {
          const inspected = await call.inspect!(live, plan);
          await execute(env.databaseUrl, `delete from ${DATASET} where "timestamp" >= ${Date.parse('2024-03-04')}`);
          return inspected;
        },
      }),
  } as Reader;
  const artifact = await files.write(body, 'parquet', { reader, splitRows: 1 });
  expect(artifact.files).toHaveLength(3);
  expect(await rowsOf(artifact)).toEqual(before);
  // A read that begins now sees the deletion, and is held to what was proved.
  const { status, json } = await serving.query(body);
  expect([status, json.code]).toEqual([503, 'QUERY_RUNTIME_ERROR']);
});
