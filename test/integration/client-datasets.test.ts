/** Every method of the client over rows of every dataset: the same, whichever way they are taken. */
import { tableFromIPC } from 'apache-arrow';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { HistoricalData, type Rows } from '../../client/index.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { API_KEY, type Serving, startServing } from '../support/serving.ts';
import type { TestEnv } from '../support/stack.ts';
import { expected, iso, type Served } from '../support/world-oracle.ts';
import { createWorldsEnv, TRADE_DAYS, WORLDS } from '../support/worlds-env.ts';

const TRADES = TRADE_DAYS.reduce((sum, { trades }) => sum + trades.length, 0);
const WINDOW = { start_date: '1960-01-01', end_date: '2030-01-01' };
const MODES: readonly Mode[] = ['native', 'aligned_1s'];
let env: TestEnv;
let serving: Serving;
let data: Readonly<Record<string, (request: object) => Rows<Served>>>;

beforeAll(async () => {
  env = await createWorldsEnv();
  serving = await startServing({ databaseUrl: env.databaseUrl });
  data = new HistoricalData({ baseUrl: serving.url, apiKey: API_KEY }) as unknown as typeof data;
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

/** As a reader of Arrow has them, back to what JSON shows. */
function arrowRows(bytes: Uint8Array, schema: readonly { readonly name: string; readonly dtype: string }[]) {
  const table = tableFromIPC(bytes);
  return Array.from({ length: table.numRows }, (_, at) =>
    Object.fromEntries(
      schema.map(({ name, dtype }) => {
        const cell = table.getChild(name)!.get(at);
        if (dtype === 'timestamp_utc' && cell !== null) return [name, iso(cell)];
        return [name, typeof cell === 'bigint' ? Number(cell) : cell];
      }),
    ),
  );
}

const METHODS = [...DATASETS.values()].flatMap(({ key, trades }) => [
  { method: `get_${key}`, key },
  ...(trades ? [{ method: `get_${key.replace('_trades', '_klines')}`, key }] : []),
]);

describe.for(METHODS)('$method', ({ method, key }) => {
  test.for(MODES)('%s: rows at once, one by one, as a stream and as Arrow are the same', async (mode) => {
    const ofKlines = method.endsWith('_klines');
    const request = () => data[method]({ ...WINDOW, mode, ...(ofKlines && { kline_size: '1h' }) });
    const { rows, row_count, schema, source } = await request();
    expect(rows.length).toBeGreaterThan(0);
    expect([row_count, source]).toEqual([rows.length, key]);
    expect(await Array.fromAsync(request())).toEqual(rows);
    const streamed = await request().stream();
    expect(streamed.schema).toEqual(schema);
    expect(await Array.fromAsync(streamed.rows)).toEqual(rows);
    expect(arrowRows(await request().arrow(), schema)).toEqual(rows);

    const names = schema.map(({ name }) => name);
    expect(Object.keys(rows[0])).toEqual(names);
    const world = WORLDS.find(({ dataset }) => dataset.key === key);
    if (world) {
      const fields = names.filter((name) => name !== 'datetime');
      const shown = rows.map((row) => Object.fromEntries(fields.map((name) => [name, row[name]])));
      expect(shown).toEqual(
        expected(world, { mode, fields, time_range: ['1960-01-01T00:00:00Z', '2030-01-02T00:00:00Z'] }),
      );
    } else {
      const sum = (name: string) => rows.reduce((total, row) => total + Number(row[name]), 0);
      const trades = ofKlines ? sum('no_of_trades') : mode === 'native' ? rows.length : sum('trade_count');
      expect(trades).toBe(TRADES);
    }
  });
});
