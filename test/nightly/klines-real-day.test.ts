/**
 * Trades and klines of a real day, from the vendor's document through ingest to the routes, beside DuckDB over the file;
 * and the same rows whichever way they are asked for.
 */
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { HistoricalData } from '../../client/index.ts';
import { datasetOf, shapeOf } from '../../shared/registry/index.ts';
import { ROOT } from '../support/command.ts';
import { givenData } from '../support/given.ts';
import { DATASET, documentPath, memberName, System, unzip } from '../support/pipeline.ts';
import { READERS, type ReadBack } from '../support/read-back.ts';
import { API_KEY, type Serving, startServing } from '../support/serving.ts';
import { duckdb, tradesOf } from '../support/trade-oracle.ts';

const REAL = join(ROOT, '..', 'shared', 'data', 'exchange_a');
const DAY = '2019-04-01';

givenData('exchange_a').describe(`the real ${DAY}`, () => {
  let system: System;
  let serving: Serving;
  let trades: string;

  beforeAll(async () => {
    system = await System.create();
    const { exit } = await system.backfill(DAY, DAY, { SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${REAL}/`).href });
    expect(exit).toBe(0);
    const csv = await unzip(join(REAL, documentPath(DAY)), memberName(DAY), system.env.dir);
    trades = tradesOf([csv]);
    serving = await startServing({ databaseUrl: system.env.databaseUrl });
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  const ask = async (kind: string, body: object) => {
    const request = { start_date: DAY, end_date: DAY, strict: true, ...body };
    const answer = await serving.send({
      path: `/v1/historical/exchange_a/spot/${kind}`,
      body: JSON.stringify(request),
    });
    expect(answer.status, answer.text.slice(0, 500)).toBe(200);
    return answer.json;
  };

  test('every trade', async () => {
    const { rows } = await ask('trades', {});
    const file = await duckdb(`select id, ms, price::double, qty::double, maker::int from ${trades} order by ms, id`);
    expect(rows.length).toBe(183_355);
    const differing = rows.filter((row: Record<string, unknown>, index: number) => {
      const [id, ms, price, quantity, maker] = file[index].map(Number);
      const expected = [id, ms, price, quantity, maker, new Date(ms).toISOString()];
      return Object.values(row).some((cell, column) => cell !== expected[column]);
    });
    expect(differing).toEqual([]);
  });

  /** Sums as exact decimal text, rounded here; halves go up. */
  const oracle = (seconds: number) =>
    duckdb(`select (ms // ${seconds * 1000})::bigint * ${seconds * 1000}, arg_min(price, id)::double, max(price)::double,
      min(price)::double, arg_max(price, id)::double, sum(price)::varchar, stddev_pop(price::double),
      quantile_disc(price, 0.5)::double, (quantile_disc(price, 0.75) - quantile_disc(price, 0.25))::double,
      sum(qty)::varchar, count(*) filter (where maker), count(*), arg_min(price::double * qty::double, id),
      max(price::double * qty::double), min(price::double * qty::double), arg_max(price::double * qty::double, id),
      sum(price::decimal(19,8) * qty::decimal(19,8))::varchar, coalesce(sum(qty) filter (where maker), 0)::varchar,
      coalesce(sum(price::decimal(19,8) * qty::decimal(19,8)) filter (where maker), 0)::varchar, sum(quote)::varchar
      from ${trades} group by 1 order by 1`);

  const units = (text: string) => BigInt(text.replace('.', ''));
  const decimals = (text: string) => text.split('.')[1]?.length ?? 0;
  const tenths = (text: string) => {
    const one = 10n ** BigInt(decimals(text));
    return Number(`${(20n * units(text) + one) / (2n * one)}e-1`);
  };

  test.each([1, 60, 3600, 14_400, 86_400, 604_800])('native klines of %i s', async (seconds) => {
    const { rows } = await ask('klines', { kline_size: seconds });
    const expected = (await oracle(seconds)).map((cells) => {
      const number = (column: number) => Number(cells[column]);
      const count = BigInt(cells[11]!);
      const mean = (2n * units(cells[5]!) + count * 1000n) / (2n * count * 1000n);
      return {
        datetime: new Date(number(0)).toISOString(),
        open: number(1),
        high: number(2),
        low: number(3),
        close: number(4),
        mean: Number(`${mean}e-5`),
        std: expect.closeTo(number(6), 5),
        median: number(7),
        iqr: number(8),
        volume: number(9),
        maker_ratio: number(10) / number(11),
        no_of_trades: number(11),
        open_liquidity: number(12),
        high_liquidity: number(13),
        low_liquidity: number(14),
        close_liquidity: number(15),
        liquidity_sum: tenths(cells[16]!),
        maker_volume: number(17),
        maker_liquidity: tenths(cells[18]!),
      };
    });
    expect(rows.length).toBe(expected.length);
    expect(rows).toEqual(expected);
  });

  test.each([1, 60, 3600, 86_400])('aligned klines of %i s', async (seconds) => {
    const { rows } = await ask('klines', { kline_size: seconds, mode: 'aligned_1s' });
    const expected = (await oracle(seconds)).map((cells) => ({
      datetime: new Date(Number(cells[0])).toISOString(),
      open: Number(cells[1]),
      high: Number(cells[2]),
      low: Number(cells[3]),
      close: Number(cells[4]),
      volume: Number(cells[9]),
      no_of_trades: Number(cells[11]),
      liquidity_sum: tenths(cells[19]!),
    }));
    expect(rows).toEqual(expected);
  });

  const ROUTE = '/v1/historical/exchange_a/spot';
  const ROWS_ONLY = Object.keys(READERS).filter((mediaType) => mediaType !== 'application/json');

  /** The body of each representation of a route, read by parsers that are not ours. */
  const readOf = async (path: string, body: object, rowsOnly = ROWS_ONLY): Promise<Record<string, ReadBack>> => {
    const json = await serving.send({ path, body: JSON.stringify(body) });
    expect(json.status, json.text.slice(0, 500)).toBe(200);
    const schema: { name: string; dtype: string }[] = json.json.schema;
    const dtypes = new Map(schema.map(({ name, dtype }) => [name, dtype]));
    const read: Record<string, ReadBack> = { JSON: READERS['application/json'](Buffer.from(json.text), dtypes) };
    for (const mediaType of rowsOnly) {
      const response = await serving.open({ path, body: JSON.stringify(body), headers: { Accept: mediaType } });
      const bytes = await buffer(response);
      expect(response.statusCode, mediaType).toBe(200);
      read[mediaType] = READERS[mediaType](bytes, dtypes);
    }
    return read;
  };

  const ofObjects = (rows: readonly object[]): ReadBack => ({
    names: Object.keys(rows[0]),
    rows: rows.map((row) => Object.values(row).map((cell) => (typeof cell === 'string' ? cell : JSON.stringify(cell)))),
  });

  /** A difference of two hundred thousand rows would be no help: the first row that differs is. */
  const expectSame = (ways: Record<string, ReadBack>) => {
    const [[first, expected], ...others] = Object.entries(ways);
    for (const [way, { names, rows }] of others) {
      expect([way, names, rows.length]).toEqual([way, expected.names, expected.rows.length]);
      const at = rows.findIndex((row, index) => row.join('\n') !== expected.rows[index].join('\n'));
      expect({ way, at, row: rows[at] }, `as ${first} has it`).toEqual({ way, at: -1, row: expected.rows[at] });
    }
  };

  test.each([
    ['native', 'count(*)'],
    ['aligned_1s', 'count(distinct ms // 1000)'],
  ] as const)(
    '%s: the query, the historical route, the client, NDJSON, CSV and Arrow say the same',
    async (mode, count) => {
      const fields = shapeOf(datasetOf(DATASET), mode).fields.map(({ name }) => name) as 'datetime'[];
      const day = { start_date: DAY, end_date: DAY };
      const window = ['2019-04-01T00:00:00Z', '2019-04-02T00:00:00Z'];
      const query = await readOf('/v1/raw/query', { sources: [DATASET], mode, fields, time_range: window });
      // Its other forms are the writers that the query has shown; of every second of the day they are seen as well.
      const forms = mode === 'native' ? [] : ROWS_ONLY;
      const historical = await readOf(`${ROUTE}/trades`, { ...day, mode, fields }, forms);
      const data = new HistoricalData({ baseUrl: serving.url, apiKey: API_KEY });
      const asked = data.get_exchange_a_spot_trades({ ...day, mode: mode as 'native', fields });
      const { JSON: json, ...others } = query;
      expect(json.names).toEqual(fields);
      const [[rows]] = await duckdb(`select ${count} from ${trades}`);
      expect(json.rows).toHaveLength(Number(rows));
      expectSame({
        'the query': json,
        ...others,
        ...Object.fromEntries(Object.entries(historical).map(([form, read]) => [`historical ${form}`, read])),
        client: ofObjects((await asked).rows),
        'client, row by row': ofObjects(await Array.fromAsync(asked)),
      });
    },
  );

  test.each(['native', 'aligned_1s'] as const)(
    'klines, %s: all representations and the client say the same',
    async (mode) => {
      const body = { start_date: DAY, end_date: DAY, mode: mode as 'native', kline_size: '1m' } as const;
      const data = new HistoricalData({ baseUrl: serving.url, apiKey: API_KEY });
      const read = await readOf(`${ROUTE}/klines`, body);
      const [[rows]] = await duckdb(`select count(distinct ms // 60000) from ${trades}`);
      expect(read.JSON.rows).toHaveLength(Number(rows));
      expectSame({ ...read, client: ofObjects((await data.get_exchange_a_spot_klines(body)).rows) });
    },
  );

  test('the whole day as one kline, against the totals known of its document', async () => {
    const [kline] = (await ask('klines', { kline_size: '1d' })).rows;
    expect(kline).toMatchObject({ no_of_trades: 183_355, volume: 25_421.026169, maker_ratio: 82_054 / 183_355 });
    const [aligned] = (await ask('klines', { kline_size: '1d', mode: 'aligned_1s' })).rows;
    expect(aligned).toMatchObject({ no_of_trades: 183_355, volume: 25_421.026169, liquidity_sum: 105_031_634 });
  });
});
