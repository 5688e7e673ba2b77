/**
 * Rows that were lost or added in the database after their proof: a read that covers whole partitions knows how many rows they
 * have, refuses to answer with another number, and asks for a recount.
 */
import { readdir } from 'node:fs/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { checkCount } from '../../serving/read/plan/counted.ts';
import { LostRows } from '../../serving/read/read-model.ts';
import { type ArtifactLab, artifactLab } from '../support/artifacts.ts';
import { DATASET, loadBulk } from '../support/load-rows.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { type Body, DAYS, type SmallHistory, serveSmallHistory } from '../support/small-history.ts';
import { execute } from '../support/stack.ts';
import { chainWorlds } from '../support/worlds.ts';

test('more rows than counted pass only where partitions at the edges may add some', () => {
  const window = { from: 0, to: 86_400_000 };
  checkCount('d', { rows: 2, window }, 2);
  checkCount('d', { rows: 2, window, isMinimum: true }, 3);
  for (const [count, found] of [
    [{ rows: 2, window }, 1],
    [{ rows: 2, window }, 3],
    [{ rows: 2, window, isMinimum: true }, 1],
  ] as const) {
    expect(() => checkCount('d', count, found)).toThrow(LostRows);
  }
});

describe('a row that was deleted by hand was missing from a well-formed answer', () => {
  let history: SmallHistory;
  let lab: ArtifactLab;
  const [, day] = DAYS;
  const lost = day.trades[120];
  const whole = { time_range: ['2024-03-02T00:00:00Z', '2024-03-03T00:00:00Z'] as const };
  const second = Math.floor(lost.timestamp / 1000);

  beforeAll(async () => {
    history = await serveSmallHistory();
    lab = await artifactLab({ databaseUrl: history.env.databaseUrl, dir: history.env.dir });
    await execute(
      history.env.databaseUrl,
      `create table kept_native as select * from ${DATASET} where trade_id = ${lost.trade_id};
       create table kept_aligned as select * from canonical_aligned_1s_aggregates
         where dataset_id = 1 and aligned_at_utc = to_timestamp(${second});
       create table kept_newest (like ${DATASET});
       create table kept_headers (like bitcoin_block_headers);
       create table kept_seconds (like canonical_aligned_1s_aggregates)`,
    );
  });
  afterAll(async () => {
    await lab[Symbol.asyncDispose]();
    await history[Symbol.asyncDispose]();
  });
  afterEach(async () => {
    await restore();
    await execute(history.env.databaseUrl, 'delete from recount_requests');
  });

  const lose = () =>
    execute(
      history.env.databaseUrl,
      `delete from ${DATASET} where trade_id = ${lost.trade_id};
       delete from canonical_aligned_1s_aggregates where dataset_id = 1 and aligned_at_utc = to_timestamp(${second})`,
    );
  const restore = () =>
    execute(
      history.env.databaseUrl,
      `delete from ${DATASET} where trade_id in (${lost.trade_id}, 999999);
       delete from canonical_aligned_1s_aggregates where dataset_id = 1 and aligned_at_utc = to_timestamp(${second});
       insert into ${DATASET} select * from kept_native;
       insert into canonical_aligned_1s_aggregates select * from kept_aligned`,
    );
  const requests = async () =>
    (await execute(history.env.databaseUrl, 'select partition_key, reason from recount_requests order by 1')).rows;
  const ask = (body: Omit<Body, 'sources'>, headers?: Record<string, string>) =>
    history.serving.query({ sources: [DATASET], ...body }, headers);

  test.each<[string, Omit<Body, 'sources'>]>([
    ['a day', whole],
    ['a window that cuts the days around it', { time_range: ['2024-03-01T12:00:00Z', '2024-03-04T12:00:00Z'] }],
    ['the whole history', {}],
    ['the newest rows, past that day', { n_rows: 1200 }],
    ['as many random rows as there are', { n_random: 1400, random_seed: 1 }],
  ])('%s is refused in both modes, and the recount asked for', async (_, body) => {
    for (const mode of ['native', 'aligned_1s'] as const) {
      const before = await ask({ ...body, mode });
      expect(before.status, before.text).toBe(200);
      await lose();
      const answer = await ask({ ...body, mode });
      expect([mode, answer.status, answer.json.code]).toEqual([mode, 503, 'QUERY_RUNTIME_ERROR']);
      const asked = await requests();
      expect(asked.map((row) => row.partition_key)).toContain('2024-03-02');
      expect(asked[0].reason).toMatch(/rows were found, but \d+ are proved/);
      await restore();
      expect((await ask({ ...body, mode })).text).toBe(before.text);
    }
  });

  test('the newest rows reached one row further back when one of the newest day was gone', async () => {
    const { trade_id: id } = DAYS[3].trades[100];
    for (const n_rows of [600, 200]) {
      expect((await ask({ n_rows })).status).toBe(200);
      await execute(
        history.env.databaseUrl,
        `with gone as (delete from ${DATASET} where trade_id = ${id} returning *) insert into kept_newest select * from gone`,
      );
      const answer = await ask({ n_rows });
      expect([n_rows, answer.status, answer.json.code]).toEqual([n_rows, 503, 'QUERY_RUNTIME_ERROR']);
      expect((await requests()).map((row) => row.partition_key)).toContain('2024-03-05');
      await execute(
        history.env.databaseUrl,
        `insert into ${DATASET} select * from kept_newest; truncate kept_newest, recount_requests`,
      );
    }
  });

  test('so it is in every representation and on historical routes', async () => {
    await lose();
    for (const accept of ['application/x-ndjson', 'text/csv', 'application/vnd.apache.arrow.stream']) {
      expect((await ask(whole, { Accept: accept })).status).toBe(503);
    }
    const historical = await history.serving.send({
      path: '/v1/historical/exchange_a/spot/trades',
      body: JSON.stringify({ start_date: '2024-03-02', end_date: '2024-03-02' }),
    });
    expect([historical.status, historical.json.code]).toEqual([503, 'HISTORICAL_RUNTIME_ERROR']);
    expect((await requests()).map((row) => row.partition_key)).toEqual(['2024-03-02']);
  });

  test('a row added is refused as well', async () => {
    await execute(
      history.env.databaseUrl,
      `insert into ${DATASET} select "timestamp", 999999, price, quantity, quote_quantity, is_buyer_maker, is_best_match
       from kept_native`,
    );
    expect((await ask(whole)).status).toBe(503);
    expect((await requests()).map((row) => row.partition_key)).toEqual(['2024-03-02']);
  });

  test('windows without the day are served, and nothing is asked for', async () => {
    await lose();
    expect((await ask({ time_range: ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'] })).status).toBe(200);
    expect((await ask({ time_range: ['2024-03-04T00:00:00Z', '2024-03-06T00:00:00Z'] })).status).toBe(200);
    expect(await requests()).toEqual([]);
  });

  test.each([1e9, 1])('an export of it leaves no artifact, split by day or not (%i rows a file)', async (splitRows) => {
    await lose();
    const before = await readdir(history.env.dir);
    const body = { sources: [DATASET], ...whole };
    await expect(lab.files.write(body, 'csv', { splitRows })).rejects.toThrow(LostRows);
    expect(await readdir(history.env.dir)).toEqual(before);
    expect((await requests()).map((row) => row.partition_key)).toEqual(['2024-03-02']);
  });

  test('heights know their rows too, in a window that holds them whole and in one that may cut some', async () => {
    const world = chainWorlds(3).find(({ dataset }) => dataset.key === 'bitcoin_block_headers')!;
    await loadWorld(history.env.databaseUrl, world);
    const proved = world.rows.filter(({ partition }) => partition.state === 'proved');
    const { ms, partition } = proved[Math.floor(proved.length / 2)];
    const iso = (at: number) => new Date(at).toISOString();
    const rowsOf = {
      native: { table: 'bitcoin_block_headers', where: `"timestamp" = ${ms}`, kept: 'kept_headers' },
      aligned_1s: {
        table: 'canonical_aligned_1s_aggregates',
        where: `dataset_id = ${world.dataset.number} and aligned_at_utc = to_timestamp(${Math.floor(ms / 1000)})`,
        kept: 'kept_seconds',
      },
    } as const;
    const windows = [
      {},
      { time_range: [iso(ms - 7_200_000), iso(ms + 7_200_000)] },
      { n_rows: 50 },
      { n_rows: 10_000 },
      { n_random: 10_000 },
    ];
    for (const [mode, { table, where, kept }] of Object.entries(rowsOf)) {
      for (const window of windows) {
        const body = { sources: [world.dataset.key], mode, ...window };
        const before = await history.serving.query(body);
        expect(before.status, before.text).toBe(200);
        const { rowCount } = await execute(
          history.env.databaseUrl,
          `with lost as (delete from ${table} where ${where} returning *) insert into ${kept} select * from lost`,
        );
        expect(rowCount).toBeGreaterThan(0);
        const answer = await history.serving.query(body);
        expect([mode, window, answer.status, answer.json.code]).toEqual([mode, window, 503, 'QUERY_RUNTIME_ERROR']);
        expect((await requests()).map((row) => row.partition_key)).toContain(partition.key);
        await execute(
          history.env.databaseUrl,
          `insert into ${table} select * from ${kept}; truncate ${kept}, recount_requests`,
        );
      }
    }
  });

  test('a row added between heights that the window holds whole is refused as well', async () => {
    const world = chainWorlds(3).find(({ dataset }) => dataset.key === 'bitcoin_block_headers')!;
    const proved = world.partitions.filter(({ state }) => state === 'proved');
    const timesOf = (of: (typeof proved)[number]) =>
      world.rows.filter(({ partition }) => partition === of).map(({ ms }) => ms);
    // A window inside the history of which no partition straddles a border.
    const spans = proved.map((of) => [Math.min(...timesOf(of)), Math.max(...timesOf(of)) + 1] as const);
    const isApart = (from: number, to: number) =>
      spans.some(([, t]) => t <= from) &&
      spans.some(([f]) => f >= to) &&
      spans.every(([f, t]) => t <= from || f >= to || (f >= from && t <= to));
    const apart = spans
      .flatMap(([from]) => spans.map(([, to]) => [from, to] as const))
      .find(([from, to]) => from < to && isApart(from, to))!;
    const body = {
      sources: [world.dataset.key],
      time_range: apart.map((at) => new Date(at).toISOString()) as [string, string],
    };
    expect((await history.serving.query(body)).status).toBe(200);
    await execute(
      history.env.databaseUrl,
      `insert into kept_headers select * from bitcoin_block_headers where "timestamp" = ${apart[0]} limit 1;
       update kept_headers set block_hash = 'added', "timestamp" = "timestamp" + 1;
       insert into bitcoin_block_headers select * from kept_headers`,
    );
    const answer = await history.serving.query(body);
    expect([answer.status, answer.json.code]).toEqual([503, 'QUERY_RUNTIME_ERROR']);
    await execute(
      history.env.databaseUrl,
      `delete from bitcoin_block_headers where block_hash = 'added'; truncate kept_headers, recount_requests`,
    );
  });

  test.each<[string, Record<string, unknown>]>([
    ['a day', { start_date: '2024-03-02', end_date: '2024-03-02' }],
    ['the whole history', {}],
    ['the newest klines', { n_latest_rows: 5 }],
  ])('klines of %s were made of the rows that were left', async (_, window) => {
    for (const mode of ['native', 'aligned_1s'] as const) {
      for (const fields of [undefined, ['datetime', 'close']]) {
        const body = JSON.stringify({ mode, kline_size: '1d', ...window, ...(fields && { fields }) });
        const klines = () => history.serving.send({ path: '/v1/historical/exchange_a/spot/klines', body });
        const before = await klines();
        expect(before.status, before.text).toBe(200);
        await lose();
        const answer = await klines();
        expect([mode, answer.status, answer.json.code]).toEqual([mode, 503, 'HISTORICAL_RUNTIME_ERROR']);
        expect((await requests()).map((row) => row.partition_key)).toContain('2024-03-02');
        await restore();
        await execute(history.env.databaseUrl, 'delete from recount_requests');
        expect((await klines()).text).toBe(before.text);
      }
    }
  });

  test('an answer whose first bytes have left is broken off', async () => {
    await loadBulk(history.env.databaseUrl, { fromDay: '2024-03-07', days: 1, rowsPerDay: 40_000, firstId: 5000 });
    await execute(
      history.env.databaseUrl,
      `delete from ${DATASET} where trade_id = (select max(trade_id) from ${DATASET})`,
    );
    const body = JSON.stringify({
      sources: [DATASET],
      time_range: ['2024-03-07T00:00:00Z', '2024-03-08T00:00:00Z'],
    });
    const response = await history.serving.open({ body });
    expect(response.statusCode).toBe(200);
    const drained = (async () => {
      for await (const _ of response);
    })();
    await expect(drained).rejects.toMatchObject({ code: 'ECONNRESET' });
    expect((await requests()).map((row) => row.partition_key)).toEqual(['2024-03-07']);
  });
});
