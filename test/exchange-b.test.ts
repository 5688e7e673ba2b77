/** Exchange B end to end: real servers, the real command, a vendor on loopback. */

import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { consecutiveDays, type DayOptions, generateLines, writeDay } from '../pipelines/sources/exchange_b/generate.ts';
import { exchangeBSource } from '../pipelines/sources/exchange_b/source.ts';
import { eventId } from '../shared/events/event-id.ts';
import { exchangeBSpotTrades as dataset } from '../shared/registry/datasets/exchange_b_spot_trades.ts';
import { buildZip } from './support/broken-zip.ts';
import { faultOf } from './support/faults.ts';
import { DAY_MS, duckdb, type Json, ROOT, System } from './support/pipeline.ts';
import { type Serving, startServing } from './support/serving.ts';
import { killedBackfill, NO_TRACES, storedRows, storedSeconds, tracesOf } from './support/trades.ts';

const LARGE: DayOptions = { day: '2024-03-02', rows: 500_000, seed: 11, firstId: 1_000_000, gaps: 0.05, repeats: 0.01 };
const NEXT: DayOptions = { day: '2024-03-03', rows: 30_000, seed: 12, firstId: 9_000_000, source: true };
const name = (day: string) => `BTC-USDT-trades-${day}`;
const archivePath = (day: string) => `trades/daily/${day.replaceAll('-', '')}/${name(day)}.zip`;
const envOf = (vendor: string) => ({ SVC_EXCHANGE_B_BASE_URL: pathToFileURL(`${vendor}/`).href });
const backfill = (system: System, from: string, to = from, env: Record<string, string> = envOf(system.vendor)) =>
  system.run(['backfill', dataset.key, '--from', from, '--to', to], env);

/** The rows as DuckDB reads them, decimals exact. */
const files = (paths: readonly string[]) =>
  `(select * from (${paths
    .map(
      (
        path,
      ) => `select instrument_name, trade_id, side, price, size, created_time as ms from read_csv('${path}', header = true,
      columns = {instrument_name: 'varchar', trade_id: 'bigint', side: 'varchar', price: 'decimal(6,1)', size: 'varchar',
      created_time: 'bigint'${path.includes('source') ? `, source: 'varchar'` : ''}})`,
    )
    .join(' union all ')}))`;
const SIZE = 'size::decimal(32,22)';

describe('two file days', () => {
  let system: System;
  let serving: Serving;
  /** The files' distinct lines. */
  const csv: string[] = [];
  const repeats: number[] = [];
  const seconds = async (sql: string) => (await duckdb(sql)).map((row) => row.map(Number));
  beforeAll(async () => {
    system = await System.create();
    for (const day of [LARGE, NEXT]) {
      await writeDay({ directory: system.vendor, ...day });
      const lines = [...generateLines(day)];
      const distinct = new Set(lines);
      repeats.push(lines.length - distinct.size);
      const path = join(system.env.dir, `${day.day}${day.source ? '-source' : ''}.csv`);
      await writeFile(path, [...distinct].join(''));
      csv.push(path);
    }
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await system[Symbol.asyncDispose]();
  });

  test('the first proved: the UTC day it lies in is served in part, with the warning', async () => {
    const { exit, json } = await backfill(system, LARGE.day);
    expect([exit, json.units]).toEqual([0, [{ partition: LARGE.day, state: 'proved', rows: LARGE.rows }]]);
    serving = await startServing({ databaseUrl: system.env.databaseUrl });
    const day = { time_range: [`${LARGE.day}T00:00:00Z`, `${NEXT.day}T00:00:00Z`] };
    const body = { mode: 'aligned_1s', sources: [dataset.key], fields: ['aligned_at_utc', 'trade_count'], ...day };
    const answer = await serving.query(body);
    expect(answer.status).toBe(200);
    expect(answer.json.warnings).toMatchObject([
      {
        code: 'WINDOW_EXCEEDS_PROVED_COVERAGE',
        details: { gaps: [{ start: `${LARGE.day}T16:00:00.000Z`, end: `${NEXT.day}T00:00:00.000Z` }] },
      },
      ...(answer.json.warnings.length > 1 ? [{ code: 'ALIGNED_FRESHNESS_STALE' }] : []),
    ]);
    const [[rows]] = await seconds(
      `select count(*) from ${files([csv[0]])} where ms >= ${Date.parse(`${LARGE.day}T00:00:00Z`)}`,
    );
    expect(answer.json.rows.reduce((sum: number, row: Json) => sum + row.trade_count, 0)).toBe(rows);
    expect((await serving.query({ ...body, strict: true })).status).toBe(409);
  });

  test('both proved: the UTC day is whole, and says so', async () => {
    const { exit } = await backfill(system, LARGE.day, NEXT.day);
    expect(exit).toBe(0);
    const from = Date.parse(`${LARGE.day}T00:00:00Z`);
    const answer = await serving.query({
      mode: 'native',
      sources: [dataset.key],
      strict: true,
      fields: ['trade_id', 'timestamp'],
      time_range: [`${LARGE.day}T00:00:00Z`, `${NEXT.day}T00:00:00Z`],
    });
    expect([answer.status, answer.json.warnings]).toEqual([200, []]);
    const [[rows]] = await seconds(`select count(*) from ${files(csv)} where ms >= ${from} and ms < ${from + DAY_MS}`);
    expect(answer.json.row_count).toBe(rows);
    const status = (await system.run(['status', dataset.key])).json.datasets[0];
    expect(status.proved_ranges).toEqual([
      { from_utc: '2024-03-01T16:00:00.000Z', to_utc_exclusive: '2024-03-03T16:00:00.000Z' },
    ]);
    expect([status.partitions.missing, status.gaps, status.offset_breaks]).toEqual([0, [], []]);
  });

  test('hold exactly the rows of the files, repeats once, as DuckDB reads them', async () => {
    const path = join(system.env.dir, 'stored.csv');
    await storedRows(system.client, dataset, path);
    const [counts] = await duckdb(`
      with files as (select ms, trade_id, price::double, size::double, side, instrument_name from ${files(csv)}),
      stored as (select ms, trade_id, price, size, side, instrument from read_csv('${path}', header = false, columns = {ms: 'bigint',
        trade_id: 'bigint', price: 'double', size: 'double', quote: 'double', side: 'varchar', instrument: 'varchar'}))
      select (select count(*) from files), (select count(*) from stored),
        (select count(*) from (from files except all from stored)), (select count(*) from (from stored except all from files))`);
    expect(counts.map(Number)).toEqual([530_000, 530_000, 0, 0]);
    // The quote quantity: the exact product, rounded once.
    const products = await duckdb(
      `select trade_id, (price * ${SIZE})::varchar from ${files([csv[1]])} order by trade_id limit 20000`,
    );
    const { rows } = await system.client.query(
      `select trade_id, quote_quantity from ${dataset.native.table} where trade_id >= ${NEXT.firstId} order by 1 limit 20000`,
    );
    expect(rows.map((row) => [row.trade_id, row.quote_quantity])).toEqual(
      products.map(([id, product]) => [id, Number(product)]),
    );
  });

  test('have one-second rows equal to what DuckDB computes, for all seconds', async () => {
    const expected = await seconds(
      `select (ms // 1000)::bigint, count(*), arg_min(price, trade_id)::varchar, max(price)::varchar, min(price)::varchar,
         arg_max(price, trade_id)::varchar, sum(${SIZE})::varchar, sum(price * ${SIZE})::varchar
       from ${files(csv)} group by 1 order by 1`,
    );
    expect(expected.length).toBeGreaterThan(70_000);
    const stored = await storedSeconds(system.client, dataset);
    expect(stored.length).toBe(expected.length);
    const differing = stored.filter((row, index) => row.some((cell, column) => cell !== expected[index][column]));
    expect(differing).toEqual([]);
  });

  test('count what was left out, in their manifests', async () => {
    const lines = readFileSync(csv[0], 'utf8').trimEnd().split('\n').slice(1);
    const { rows } = await system.client.query(`select manifest from partitions where partition_key = '${LARGE.day}'`);
    const { manifest } = rows[0];
    const ids = lines.map((line) => Number(line.split(',')[1]));
    expect(manifest).toMatchObject({
      rows: LARGE.rows,
      repeats_dropped: repeats[0],
      gaps: ids[ids.length - 1] - ids[0] + 1 - LARGE.rows,
      from_ms: Date.parse('2024-03-01T16:00:00Z'),
      events_sha256: createHash('sha256')
        .update(`${lines.join('\n')}\n`)
        .digest('hex'),
    });
    expect(manifest.repeats_dropped).toBeGreaterThan(3000);
  });

  test('answer with every field, lineage among them', async () => {
    const partitions = await system.client.query(
      `select partition_key, from_ms, to_ms, manifest->>'ingested_at_ms' as at from partitions order by from_ms`,
    );
    for (const window of [
      { n_random: 200, random_seed: 5 },
      { time_range: ['2024-03-02T15:59:00Z', '2024-03-02T16:05:00Z'] },
      { n_rows: 50 },
    ]) {
      const answer = await serving.query({ mode: 'native', sources: [dataset.key], ...window });
      expect([answer.status, answer.json?.schema?.length]).toEqual([200, 12]);
      expect(answer.json.row_count).toBeGreaterThan(40);
      for (const row of answer.json.rows) {
        const { partition_key, at } = partitions.rows.find(
          ({ from_ms, to_ms }) => row.timestamp >= Number(from_ms) && row.timestamp < Number(to_ms),
        );
        expect(row).toMatchObject({
          instrument_name: 'BTC-USDT',
          event_id: eventId(dataset, partition_key, String(row.trade_id)),
          source_offset_or_equivalent: String(row.trade_id),
          source_event_time_utc: new Date(row.timestamp).toISOString(),
          datetime: new Date(row.timestamp).toISOString(),
          ingested_at_utc: new Date(Number(at)).toISOString(),
        });
        expect(['buy', 'sell']).toContain(row.side);
      }
    }
    const first = (await serving.query({ mode: 'native', sources: [dataset.key], n_rows: 1 })).json.rows[0];
    const found = await serving.query({
      mode: 'native',
      sources: [dataset.key],
      time_range: ['2024-03-03T15:00:00Z', '2024-03-03T16:00:00Z'],
      filters: [{ field: 'event_id', op: 'eq', value: first.event_id }],
    });
    expect(found.json.rows).toEqual([first]);
  });

  test('are read back, replayed and verified to the byte', async () => {
    for (const command of [['replay'], ['verify', '--deep']]) {
      const { exit, json } = await system.run([command[0], dataset.key, ...command.slice(1)]);
      expect([exit, json.units.map(({ state }: Json) => state)]).toEqual([
        0,
        command[0] === 'replay' ? ['identical', 'identical'] : ['proved', 'proved'],
      ]);
    }
    // Days named to a command are file days.
    const { json } = await system.run(['verify', dataset.key, '--from', NEXT.day, '--to', NEXT.day]);
    expect(json.units).toMatchObject([{ partition: NEXT.day, state: 'proved', rows: NEXT.rows }]);
    const event = await system.run(['event', dataset.key, String(NEXT.firstId)]);
    expect(event.json).toMatchObject({
      partition: NEXT.day,
      payload_raw: readFileSync(csv[1], 'utf8').split('\n')[1],
      event_id: eventId(dataset, NEXT.day, String(NEXT.firstId)),
    });
    const again = await backfill(system, LARGE.day, NEXT.day);
    expect(again.json).toMatchObject({ ok: true, proved: 0, unchanged: 2 });
  });

  test('each in the two chunks it lies in, every chunk with its one unique index', async () => {
    const chunks = await system.client.query(
      `select (select count(*)::int4 from pg_index i where i.indrelid = format('%I.%I', c.schema_name, c.table_name)::regclass
         and i.indisunique and i.indisvalid) as uniques from _timescaledb_catalog.chunk c
       join _timescaledb_catalog.hypertable h on h.id = c.hypertable_id where h.table_name = $1 and not c.dropped`,
      [dataset.native.table],
    );
    expect(chunks.rows).toEqual([{ uniques: 1 }, { uniques: 1 }, { uniques: 1 }]);
  });
});

describe('a document that is not right', () => {
  let system: System;
  const DAY = '2024-05-05';
  const day: DayOptions = { day: DAY, rows: 500, seed: 4 };
  const csv = [...generateLines(day)].join('');
  const put = async (zip: Buffer | undefined) => {
    const path = join(system.vendor, archivePath(DAY));
    await mkdir(dirname(path), { recursive: true });
    if (zip) await writeFile(path, zip);
    else await rm(path, { force: true });
  };
  const zipOf = (...members: [string, string][]) =>
    buildZip({ members: members.map(([member, content]) => ({ name: member, content: Buffer.from(content) })) });
  beforeAll(async () => {
    system = await System.create();
  });
  afterAll(() => system[Symbol.asyncDispose]());

  test('fails the day, naming document and line, leaves nothing, and is read once it is right', async () => {
    const good = zipOf([`${name(DAY)}.csv`, csv]);
    const lines = csv.trimEnd().split('\n');
    const late = lines.with(480, lines[480].replace(/,(\d{13})$/, ',1704038400149'));
    const faults: [Buffer | undefined, string, RegExp][] = [
      [undefined, 'SOURCE_NOT_FOUND', /does not exist/],
      [Buffer.alloc(0), 'SOURCE_EMPTY', /empty/],
      [good.subarray(0, good.length - 300), 'SOURCE_TRUNCATED', /cut/],
      [zipOf([`${name(DAY)}.csv`, csv], ['other.csv', csv]), 'SOURCE_ARCHIVE_INVALID', /2 members/],
      [zipOf(['trades.csv', csv]), 'SOURCE_ARCHIVE_INVALID', /instead of/],
      [zipOf([`${name(DAY)}.csv`, '']), 'SOURCE_EMPTY', /no rows/],
      // The fault comes after frames have been published.
      [zipOf([`${name(DAY)}.csv`, late.join('\n')]), 'SOURCE_OUTSIDE_PARTITION', /line 481/],
    ];
    for (const [zip, code, message] of faults) {
      await put(zip);
      const { exit, json } = await backfill(system, DAY, DAY, {
        ...envOf(system.vendor),
        SVC_FRAME_RAW_BYTES: '4096',
      });
      expect([code, exit, json.units]).toMatchObject([code, 1, [{ partition: DAY, state: 'failed', code }]]);
      expect(json.units[0].reason).toMatch(message);
      expect(json.units[0].reason).toContain(name(DAY));
      expect(await tracesOf(system.client, dataset, DAY)).toEqual(NO_TRACES);
    }
    await put(good);
    expect((await backfill(system, DAY)).json.units).toEqual([{ partition: DAY, state: 'proved', rows: 500 }]);
  });

  test('settings: neither location, both, or months are refused with exit 2', async () => {
    const none = await backfill(system, DAY, DAY, {});
    expect([none.exit, none.json.error.code]).toEqual([2, 'CONFIGURATION_INVALID']);
    expect(none.json.error.message).toMatch(/SVC_EXCHANGE_B_BASE_URL or SVC_EXCHANGE_B_LINK_URL/);
    const both = { ...envOf(system.vendor), SVC_EXCHANGE_B_LINK_URL: 'http://127.0.0.1:9/link' };
    expect((await backfill(system, DAY, DAY, both)).exit).toBe(2);
    const monthly = ['backfill', dataset.key, '--from', DAY, '--to', DAY, '--granularity', 'monthly'];
    expect((await system.run(monthly, envOf(system.vendor))).exit).toBe(2);
  });
});

describe('the link endpoint', () => {
  const DAY = '2024-06-01';
  let server: Server;
  let base: string;
  let directory: string;
  let zip: Buffer;
  const calls: { at: number; body: Json; method: string | undefined }[] = [];
  /** What the endpoint answers next; the last one stays. */
  let answers: ((response: ServerResponse) => void)[] = [];
  let md5: string | undefined;
  const json = (value: unknown) => (response: ServerResponse) => response.end(JSON.stringify(value));
  const file = (more: object = {}) => ({
    filename: `${name(DAY)}.zip`,
    url: `${base}zip/${name(DAY)}.zip?sign=x`,
    ...more,
  });
  const link = (...groups: object[]) => json({ code: '0', data: { details: [{ groupDetails: groups }] } });

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'exchange-b-'));
    await writeDay({ directory, day: DAY, rows: 2000, seed: 3 });
    zip = await readFile(join(directory, archivePath(DAY)));
    server = createServer(async (request: IncomingMessage, response) => {
      if (request.url?.startsWith('/zip/')) {
        response.writeHead(200, { 'content-length': zip.length, ...(md5 === undefined ? {} : { 'content-md5': md5 }) });
        response.end(zip);
        return;
      }
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      calls.push({ at: Date.now(), body: JSON.parse(Buffer.concat(pieces).toString()), method: request.method });
      (answers.length > 1 ? answers.shift()! : answers[0])(response);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  });
  afterAll(async () => {
    server.closeAllConnections();
    server.close();
    await rm(directory, { recursive: true, force: true });
  });

  const source = () =>
    exchangeBSource({
      location: new URL(`${base}link`),
      resolve: 'link',
      instrument: 'BTC-USDT',
      spoolDir: join(directory, 'spool'),
      timeoutMs: 5000,
      maxAttempts: 2,
      backoff: { firstMs: 1 },
      maxDocumentBytes: 1e9,
      maxUnpackedBytes: 1e9,
    });
  const [request] = exchangeBSource({} as never).plan(DAY, DAY, 'daily');
  const open = () => source().open(request);

  test('is asked by POST for the day and believed when it names the file; an md5 is checked where stated', async () => {
    answers = [link(file())];
    md5 = createHash('md5').update(zip).digest('base64');
    await using stated = await open();
    expect(stated.facts).toMatchObject({ name: `${name(DAY)}.zip`, bytes: zip.length, content_md5: md5 });
    const begin = String(Date.parse('2024-05-31T16:00:00Z'));
    expect(calls.at(-1)).toMatchObject({
      method: 'POST',
      body: {
        module: '1',
        instType: 'SPOT',
        instQueryParam: { instIdList: ['BTC-USDT'] },
        dateQuery: { dateAggrType: 'daily', begin, end: begin },
      },
    });
    md5 = undefined;
    await using silent = await open();
    expect(silent.facts.content_md5).toBeUndefined();
  });

  test.each(['AAAAAAAAAAAAAAAAAAAAAA==', 'nonsense'])(
    'whose file has another md5 than stated (%s): refused',
    async (wrong) => {
      answers = [link(file())];
      md5 = wrong;
      const fault = await faultOf(open(), 'SOURCE_CHECKSUM_MISMATCH');
      expect(fault.details).toMatchObject({ document: `${name(DAY)}.zip`, expected: wrong });
      md5 = undefined;
    },
  );

  test('answering 429 is asked again after the time it names; 429 for ever fails', async () => {
    const limited = (response: ServerResponse) => response.writeHead(429, { 'retry-after': '2' }).end();
    answers = [limited, link(file())];
    const before = calls.length;
    await using document = await open();
    expect(document.facts.bytes).toBe(zip.length);
    expect(calls[before + 1].at - calls[before].at).toBeGreaterThanOrEqual(2000);
    answers = [(response) => response.writeHead(429).end()];
    expect((await faultOf(open(), 'SOURCE_UNREACHABLE')).message).toMatch(/429.*after 2 attempts/);
  });

  test.each<[string, () => (response: ServerResponse) => void, RegExp]>([
    ['what is no JSON', () => (response) => response.end('<html>'), /no JSON/],
    ['null', () => json(null), /code/],
    ['an error code', () => json({ code: '51000', data: null }), /code "51000"/],
    ['no files', () => link(), /0 files/],
    ['two files', () => link(file(), file()), /2 files/],
    ['no list', () => json({ code: '0', data: {} }), /no list/],
    ["another file's name", () => link(file({ filename: `${name('2024-06-02')}.zip` })), /named the file/],
    ['no address', () => link(file({ url: 'x' })), /no address/],
    ['a local path', () => link(file({ url: 'file:///etc/passwd' })), /file:/],
    ['a megabyte', () => json({ code: '0', more: 'x'.repeat(1 << 20) }), /at length/],
  ])('answering with %s: refused', async (_, answer, message) => {
    answers = [answer()];
    const fault = await faultOf(open(), 'SOURCE_LINK_INVALID');
    expect(fault.message).toMatch(message);
    expect(fault.details).toMatchObject({ document: `${name(DAY)}.zip` });
  });

  test('is called at most once in 750 ms, by all processes of the host together', async () => {
    const before = calls.length;
    const module = pathToFileURL(join(ROOT, 'pipelines/sources/documents/pace.ts')).href;
    const script = `const { pace } = await import(${JSON.stringify(module)});
      for (let i = 0; i < 2; i++) {
        await pace({ name: ${JSON.stringify(`${base}link`)}, spacingMs: 750 });
        await fetch(${JSON.stringify(`${base}link`)}, { method: 'POST', body: '{}' });
      }`;
    answers = [json({})];
    const children = [0, 1, 2].map(() =>
      spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'inherit' }),
    );
    await Promise.all(children.map((child) => once(child, 'exit')));
    const times = calls.slice(before).map(({ at }) => at);
    expect(times).toHaveLength(6);
    const apart = times.slice(1).map((at, index) => at - times[index]);
    // What is paced is the sending: on a busy machine one arrival may be late, and the next seem close behind it.
    expect(Math.min(...apart)).toBeGreaterThan(400);
    expect(times[5] - times[0]).toBeGreaterThanOrEqual(5 * 750 - 100);
  });
});

test('killed at random moments, it comes to the same end', { timeout: 120_000 }, async () => {
  await using reference = await System.create();
  await using system = await System.create();
  const days = consecutiveDays({ from: '2024-07-01', to: '2024-07-05', rowsPerDay: 60_000, seed: 9 });
  for (const day of days) await writeDay({ directory: reference.vendor, ...day });
  const env = envOf(reference.vendor);
  const args = ['backfill', dataset.key, '--from', days[0].day, '--to', days[4].day];
  expect((await reference.run(args, env)).exit).toBe(0);
  const { seededRandom } = await import('../pipelines/sources/trades/synthetic.ts');
  const random = seededRandom(Date.now());
  const last = await killedBackfill(() => system.start(args, env), 6, random);
  expect(last.exit).toBe(0);
  expect(await system.digests()).toEqual(await reference.digests());
  expect(await storedSeconds(system.client, dataset)).toEqual(await storedSeconds(reference.client, dataset));
});
