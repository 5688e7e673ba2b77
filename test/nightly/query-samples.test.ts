/**
 * Samples of histories too long to be scanned for them: rows that pass a filter are found by drawing, in every kind of
 * partition. What comes must pass, once each, in order, again with the same seed, and from everywhere alike.
 */
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { PgConnection } from '../../serving/db/pg-connection.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { loadDays, randomDay, type Trade } from '../support/load-rows.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';
import { DAY, SECOND, type World, type WorldAligned, type WorldPartition, type WorldRow } from '../support/worlds.ts';

/** More than are scanned for the sizes of sample asked for below. */
const ROWS = 24_000;

let env: TestEnv;
let serving: Serving;
let trades: readonly Trade[];
const world = headers();

beforeAll(async () => {
  env = await createMigratedEnv();
  const days = ['2024-05-01', '2024-05-02', '2024-05-04'].map((day, index) =>
    randomDay(day, ROWS / 3 + index, 1 + index * ROWS, index),
  );
  trades = days.flatMap((day) => day.trades);
  await loadDays(env.databaseUrl, days, { rowsPerFrame: 700 });
  await loadExchangeB(trades);
  await loadWorld(env.databaseUrl, world);
  serving = await startServing({ databaseUrl: env.databaseUrl });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

/** The same trades as exchange B would have them: ids with gaps, file days that begin at 16:00 of the day before. */
async function loadExchangeB(list: readonly Trade[]): Promise<void> {
  const client = new pg.Client({ connectionString: env.databaseUrl });
  await client.connect();
  const rows = list.map((trade, index) => ({
    timestamp: trade.timestamp,
    trade_id: 10 + index * 3 + (index % 2),
    price: trade.price,
    size: trade.quantity,
    quote_quantity: trade.quote_quantity,
    side: trade.is_buyer_maker === 1 ? 'sell' : 'buy',
    instrument_name: 'BTC-USDT',
  }));
  const { number } = datasetOf('exchange_b_spot_trades');
  await client.query(
    'insert into exchange_b_spot_trades select * from jsonb_populate_recordset(null::exchange_b_spot_trades, $1)',
    [JSON.stringify(rows)],
  );
  const windows = Map.groupBy(rows, ({ timestamp }) => Math.floor((timestamp + 8 * 3_600_000) / DAY));
  let sequence = 0;
  for (const [day, own] of windows) {
    const from = day * DAY - 8 * 3_600_000;
    const key = new Date(day * DAY).toISOString().slice(0, 10);
    await client.query(
      `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows, aligned_rows,
         offsets, ingested_at, proved_at) values ($1, $2, 'proved', 1, 1, $3, $4, false, $5, 0, int8range($6, $7, '[]'), now(), now())`,
      [number, key, from, from + DAY, own.length, own[0].trade_id, own[own.length - 1].trade_id],
    );
    await client.query(
      'update coverage set proved = proved + int8multirange(int8range($2, $3)), version = version + 1 where dataset_id = $1',
      [number, from, from + DAY],
    );
    for (let base = 0; base < own.length; base += 900) {
      const frame = own.slice(base, base + 900);
      const last = frame[frame.length - 1];
      await client.query('insert into frames values ($1, $2, $3, $4, $5, $6, $7, $8, $9)', [
        number,
        ++sequence,
        key,
        frame[0].trade_id,
        last.trade_id,
        frame[0].timestamp,
        last.timestamp,
        frame.length,
        base,
      ]);
    }
  }
  await client.end();
}

/** A chain whose blocks share seconds now and then, all of it proved, in partitions of any length. */
function headers(): World {
  const dataset = datasetOf('bitcoin_block_headers');
  const random = seededRandom(7);
  const partitions: WorldPartition[] = [];
  const rows: WorldRow[] = [];
  let ms = Date.parse('2022-01-01T00:00:00Z');
  for (let height = 0; height < ROWS; height++) {
    if (random() > 0.2) ms += Math.floor(random() * 1200) * SECOND;
    let partition = partitions.at(-1);
    if (!partition || random() < 0.01) {
      const length = Math.min(ROWS - height, 1 + Math.floor(random() * 400));
      if (!partition || height >= partition.span[1]) {
        partition = {
          key: `${height}-${height + length - 1}`,
          state: 'proved',
          sourceId: 'bitcoin_core',
          span: [height, height + length],
          ingestedMs: 0,
        };
        partitions.push(partition);
      }
    } else if (height >= partition.span[1]) {
      partition = { ...partition, key: String(height), span: [height, height + 1] };
      partitions.push(partition);
    }
    const texts = { block_hash: 'h', prev_hash: 'p', merkle_root: 'm', source_chain: 'main', payload_sha256: 's' };
    rows.push({
      ms,
      partition,
      cells: { timestamp: ms, height, version: 1, nonce: height % 7, difficulty: 1, ...texts },
    });
  }
  const aligned = [...Map.groupBy(rows, (row) => row.ms)].map(([second, group]): WorldAligned => {
    const { height, nonce } = group[group.length - 1].cells;
    const cells = { records_in_bucket: group.length, latest_height: height, latest_nonce: nonce };
    return { ms: second, sourceId: 'bitcoin_core', series: [], cells };
  });
  const run = { sourceId: 'bitcoin_core', span: [0, ROWS] as const, fromMs: rows[0].ms, toMs: ms + 1, throughMs: ms };
  return { dataset, partitions, rows, aligned, runs: [run] };
}

interface Case {
  readonly dataset: string;
  readonly mode: 'native' | 'aligned_1s';
  readonly filters?: readonly { readonly field: string; readonly op: string; readonly value: unknown }[];
  /** What identifies a row, and all of those that pass, in order. */
  readonly key: string;
  readonly all: () => readonly (string | number)[];
}

const seconds = (list: readonly number[]) => [
  ...new Set(list.map((ms) => new Date(Math.floor(ms / 1000) * 1000).toISOString())),
];

const CASES: readonly Case[] = [
  {
    dataset: 'exchange_a_spot_trades',
    mode: 'native',
    filters: [{ field: 'is_buyer_maker', op: 'eq', value: 1 }],
    key: 'trade_id',
    all: () => trades.filter((trade) => trade.is_buyer_maker === 1).map((trade) => trade.trade_id),
  },
  {
    dataset: 'exchange_b_spot_trades',
    mode: 'native',
    filters: [{ field: 'side', op: 'eq', value: 'buy' }],
    key: 'trade_id',
    all: () => trades.flatMap((trade, index) => (trade.is_buyer_maker === 0 ? [10 + index * 3 + (index % 2)] : [])),
  },
  {
    dataset: 'exchange_a_spot_trades',
    mode: 'aligned_1s',
    filters: [{ field: 'trade_count', op: 'gte', value: 1 }],
    key: 'aligned_at_utc',
    all: () => seconds(trades.map((trade) => trade.timestamp)),
  },
  {
    dataset: 'bitcoin_block_headers',
    mode: 'native',
    filters: [{ field: 'nonce', op: 'in', value: [2, 3] }],
    key: 'height',
    all: () =>
      world.rows.flatMap(({ cells }) => (cells.nonce === 2 || cells.nonce === 3 ? [Number(cells.height)] : [])),
  },
  {
    dataset: 'bitcoin_block_headers',
    mode: 'native',
    key: 'height',
    all: () => world.rows.map(({ cells }) => Number(cells.height)),
  },
  {
    dataset: 'bitcoin_block_headers',
    mode: 'aligned_1s',
    filters: [{ field: 'latest_nonce', op: 'ne', value: 5 }],
    key: 'aligned_at_utc',
    all: () => world.aligned.flatMap(({ ms, cells }) => (cells.latest_nonce === 5 ? [] : [new Date(ms).toISOString()])),
  },
];

describe.each(CASES)('$dataset, $mode, $filters', ({ dataset, mode, filters, key, all }) => {
  const draw = async (n_random: number, random_seed: number): Promise<(string | number)[]> => {
    const { json } = await serving.query({ sources: [dataset], mode, n_random, random_seed, filters, fields: [key] });
    return json.rows.map((row: Record<string, string | number>) => row[key]);
  };

  test('rows that pass, once each, in order, again with the seed, from everywhere alike', async () => {
    const rows = all();
    const place = new Map(rows.map((row, index) => [row, index]));
    // 600 rows: shares that are off by three tenths (their root mean square) are found nine times in ten.
    const [draws, n_random, classes] = [20, 30, 25];
    const counts = new Array<number>(classes).fill(0);
    for (let seed = 1; seed <= draws; seed++) {
      const drawn = await draw(n_random, seed);
      const places = drawn.map((row) => place.get(row) ?? -1);
      expect(places.length).toBe(n_random);
      expect(places).toEqual([...new Set(places)].sort((a, b) => a - b));
      expect(places[0]).toBeGreaterThanOrEqual(0);
      for (const one of places) counts[Math.floor((one * classes) / rows.length)]++;
    }
    expect(await draw(n_random, 1)).toEqual(await draw(n_random, 1));
    const mean = (draws * n_random) / classes;
    const chi = counts.reduce((sum, count) => sum + (count - mean) ** 2 / mean, 0);
    // 24 degrees of freedom: 99.99 % of samples lie below 59. Seeds are fixed.
    expect(chi).toBeLessThan(59);
  });

  test('more than there are: all of them', async () => {
    const rows = all();
    expect((await draw(rows.length + 1, 1)).length).toBe(rows.length);
  });

  test('whole rows are those of the history, validity included', async () => {
    const sample = await serving.query({ sources: [dataset], mode, n_random: 20, random_seed: 9, filters });
    const whole = await serving.query({ sources: [dataset], mode, filters });
    const texts = new Set(whole.json.rows.map((row: object) => JSON.stringify(row)));
    for (const row of sample.json.rows) expect(texts).toContain(JSON.stringify(row));
  });
});

test('a filter that next to nothing passes: the history is scanned, and what there is comes', async () => {
  const { json } = await serving.query({
    sources: ['exchange_a_spot_trades'],
    n_random: 5,
    filters: [{ field: 'price', op: 'eq', value: trades[777].price }],
  });
  expect(json.rows.map((row: Trade) => row.price)).toContain(trades[777].price);
});

test.each([
  ['exchange_a_spot_trades', 'native', { field: 'price', op: 'lt', value: 0 }],
  ['exchange_a_spot_trades', 'aligned_1s', { field: 'trade_count', op: 'lt', value: 0 }],
  [
    'exchange_a_spot_trades',
    'aligned_1s',
    { field: 'valid_to_utc_exclusive', op: 'lt', value: '2001-01-01T00:00:00Z' },
  ],
  ['bitcoin_block_headers', 'native', { field: 'nonce', op: 'lt', value: 0 }],
])('%s, %s: a filter that nothing passes cost a hundred statements of draws', async (dataset, mode, filter) => {
  const run = vi.spyOn(PgConnection.prototype, 'run');
  try {
    for (const n_random of [1, 5, 500]) {
      run.mockClear();
      const answer = await serving.query({ sources: [dataset], mode, n_random, filters: [filter] });
      expect(answer.status, answer.text).toBe(404);
      expect(run.mock.calls.length, `statements for ${n_random}`).toBeLessThan(20);
    }
  } finally {
    run.mockRestore();
  }
});

test('a filter that one row passes had the history scanned two and three times', async () => {
  // Days so far apart that each is read by a statement of its own.
  const days = Array.from({ length: 30 }, (_, index) => {
    const day = new Date(Date.parse('2024-08-01') + index * 40 * DAY).toISOString().slice(0, 10);
    return randomDay(day, 10, 1_000_000 + index * 100, 50 + index);
  });
  const [first, ...others] = days[12].trades;
  await loadDays(env.databaseUrl, days.with(12, { ...days[12], trades: [{ ...first, price: 1 }, ...others] }));
  const sources = ['exchange_a_spot_trades'];
  const least = (field: string) => [{ field, op: 'lt', value: 2 }];
  const klines = (body: object) =>
    serving.send({
      path: '/v1/historical/exchange_a/spot/klines',
      body: JSON.stringify({ kline_size: '1d', filters: least('low'), ...body }),
    });
  const run = vi.spyOn(PgConnection.prototype, 'run');
  try {
    for (const [what, ask] of Object.entries({
      'native n_rows': () => serving.query({ sources, n_rows: 5, filters: least('price') }),
      'aligned n_rows': () => serving.query({ sources, mode: 'aligned_1s', n_rows: 5, filters: least('low_price') }),
      'native n_random 1': () => serving.query({ sources, n_random: 1, filters: least('price') }),
      'native n_random 500': () => serving.query({ sources, n_random: 500, filters: least('price') }),
      'aligned n_random 1': () =>
        serving.query({ sources, mode: 'aligned_1s', n_random: 1, filters: least('low_price') }),
      'newest klines': () => klines({ n_latest_rows: 5 }),
      'random klines': () => klines({ n_random_rows: 5 }),
    })) {
      run.mockClear();
      const { status, json, text } = await ask();
      expect([what, status, json.rows?.length], text).toEqual([what, 200, 1]);
      expect(run.mock.calls.length, `statements for ${what}`).toBeLessThan(days.length + 25);
    }
  } finally {
    run.mockRestore();
  }
});
