/** The client against the running service, over real sockets, and through a proxy that spoils answers. */
import { tableFromIPC } from 'apache-arrow';
import { afterAll, beforeAll, beforeEach, describe, expect, expectTypeOf, test } from 'vitest';
import {
  ConnectionError,
  ContractError,
  HistoricalData,
  IncompleteAnswerError,
  KeyError,
  NoRowsError,
  StrictWarningError,
  serviceError,
  UnavailableError,
} from '../../client/index.ts';
import { type HttpFaultProxy, startHttpFaultProxy } from '../support/http-fault-proxy.ts';
import { loadDays, randomDay } from '../support/load-rows.ts';
import { API_KEY, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const ROWS = 20_000;
let env: TestEnv;
let serving: Serving;
let proxy: HttpFaultProxy;
let data: HistoricalData;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-01-01', ROWS, 1, 1), randomDay('2024-01-02', ROWS, ROWS + 1, 2)]);
  serving = await startServing({ databaseUrl: env.databaseUrl });
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await proxy?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});
beforeEach(async () => {
  await proxy?.[Symbol.asyncDispose]();
  proxy = await startHttpFaultProxy(serving.url);
  data = new HistoricalData({ baseUrl: proxy.url, apiKey: API_KEY });
});

const DAY = { start_date: '2024-01-01', end_date: '2024-01-01' } as const;

async function collected<Row>(rows: AsyncIterable<Row>): Promise<Row[]> {
  const all: Row[] = [];
  for await (const row of rows) all.push(row);
  return all;
}

describe('rows', () => {
  test('their type follows the mode and the fields that are asked for', async () => {
    const trades = await data.get_exchange_a_spot_trades({ n_latest_rows: 3, fields: ['price', 'quote_quantity'] });
    expectTypeOf(trades.rows[0]).toEqualTypeOf<{ readonly price: number; readonly quote_quantity: number }>();
    expect(trades.rows.map((row) => Object.keys(row))).toEqual(Array(3).fill(['price', 'quote_quantity']));
    const seconds = await data.get_exchange_a_spot_trades({ mode: 'aligned_1s', n_latest_rows: 2 });
    expectTypeOf(seconds.rows[0].valid_to_utc_exclusive).toEqualTypeOf<string>();
    expect(seconds.rows[1].valid_from_utc).toBe(seconds.rows[1].aligned_at_utc);
    const candles = await data.get_exchange_a_spot_klines({ ...DAY, kline_size: '1h' });
    expectTypeOf(candles.rows[0].median).toEqualTypeOf<number>();
    expect(candles.rows).toHaveLength(24);
    expect(candles.rows.reduce((sum, row) => sum + row.no_of_trades, 0)).toBe(ROWS);
    // @ts-expect-error no such field
    const wrong = data.get_exchange_a_spot_trades({ fields: ['prize'] });
    const prize = await wrong.then(undefined, (error: unknown) => error as Error);
    expect(prize).toBeInstanceOf(ContractError);
    // Of one fault it is said once.
    expect((prize as Error).message).toMatch(/^HISTORICAL_CONTRACT_ERROR: \/fields\/0 must be [^\n]*$/);
  });

  test('leaving the loop ends the read at the service', async () => {
    let seen = 0;
    for await (const row of data.get_exchange_a_spot_trades({ ...DAY, fields: ['trade_id'] })) {
      seen = row.trade_id;
      if (seen === 5) break;
    }
    expect(seen).toBe(5);
    await expect.poll(() => serving.app.limiters.plain.load.running).toBe(0);
  });
});

describe('errors', () => {
  test('are classes that carry the service’s own answer', async () => {
    const asked = data.get_exchange_a_spot_trades({ ...DAY, n_latest_rows: 0 });
    const twoWindows = (await asked.then(undefined, (error: unknown) => error)) as ContractError;
    expect(twoWindows).toBeInstanceOf(ContractError);
    expect(twoWindows).toMatchObject({ status: 409, code: 'HISTORICAL_CONTRACT_ERROR' });
    expect(twoWindows.problem.errors?.map(({ pointer }) => pointer)).toContain('/n_latest_rows');
    expect(twoWindows.message).toContain('/n_latest_rows');
    expect(twoWindows.requestId).toMatch(/^[0-9a-f-]{36}$/);
    const stranger = new HistoricalData({ baseUrl: serving.url, apiKey: 'wrong' });
    await expect(stranger.get_exchange_a_spot_trades(DAY)).rejects.toThrow(KeyError);
    const strict = data.get_exchange_a_spot_trades({ n_latest_rows: 1, strict: true });
    await expect(strict).rejects.toThrow(StrictWarningError);
    const future = data.get_exchange_a_spot_trades({ start_date: '2030-01-01' });
    await expect(collected(future)).rejects.toThrow(NoRowsError);
    expect(proxy.seen).toBe(3);
  });

  // A key that asked too often, or that could not be looked up, was called missing or wrong.
  test.each([
    ['AUTH_INVALID_API_KEY', 409, KeyError],
    ['AUTH_KEY_EXPIRED', 409, KeyError],
    ['AUTH_SCOPE_MISSING', 409, KeyError],
    ['RATE_LIMITED', 429, UnavailableError],
    ['AUTH_CONCURRENCY_LIMITED', 429, UnavailableError],
    ['AUTH_KEYS_UNAVAILABLE', 503, UnavailableError],
    ['QUERY_RIGHTS_RESOLUTION_ERROR', 503, UnavailableError],
  ] as const)('%s is of the class that says what to do', (code, status, type) => {
    const more = { type: '', title: '', detail: '', request_id: '' };
    expect(serviceError({ ...more, code, status })).toBeInstanceOf(type);
  });

  test('of options are told before anything is sent', () => {
    expect(() => new HistoricalData({ baseUrl: 'ftp://x', apiKey: 'k' })).toThrow(TypeError);
    expect(() => new HistoricalData({ baseUrl: 'http://x', apiKey: '' })).toThrow('TIDEMARK_KEY');
    for (const key of ['a\nb', ' a', 'a ', '\0']) {
      expect(() => new HistoricalData({ baseUrl: 'http://x', apiKey: key }), JSON.stringify(key)).toThrow(TypeError);
      expect(() => new HistoricalData({ baseUrl: 'http://x', apiKey: 'k', backendToken: key })).toThrow('backendToken');
    }
  });

  test('a key of any text is sent as it is', async () => {
    for (const apiKey of ['schlüssel', 'ключ-€-🔑']) {
      await using own = await startServing({ databaseUrl: env.databaseUrl, apiKey });
      const rows = (key: string) =>
        new HistoricalData({ baseUrl: own.url, apiKey: key }).get_exchange_a_spot_trades({ n_latest_rows: 1 });
      expect((await rows(apiKey)).row_count).toBe(1);
      await expect(rows(`${apiKey}é`)).rejects.toThrow(KeyError);
    }
  });

  test('an aborted request throws the reason of its signal', async () => {
    const reason = new Error('enough');
    const before = data.get_exchange_a_spot_trades(DAY, { signal: AbortSignal.abort(reason) });
    await expect(before).rejects.toBe(reason);
    const stop = new AbortController();
    const during = (async () => {
      for await (const _row of data.get_exchange_a_spot_trades({}, { signal: stop.signal })) stop.abort(reason);
    })();
    await expect(during).rejects.toBe(reason);
    await expect.poll(() => serving.app.limiters.plain.load.running).toBe(0);
  });
});

describe('attempts', () => {
  const busy = {
    status: 503,
    headers: { 'Retry-After': '0', 'Content-Type': 'application/problem+json' },
    body: JSON.stringify({ code: 'QUERY_QUEUE_LIMIT_REACHED', status: 503, title: '', detail: '', request_id: '1' }),
  };

  test('go on after a lost connection, a busy service and a proxy’s page', async () => {
    proxy.spoil('reset', busy, { status: 502, body: '<html>Bad gateway</html>' });
    const { row_count } = await data.get_exchange_a_spot_trades(DAY);
    expect({ row_count, seen: proxy.seen }).toEqual({ row_count: ROWS, seen: 4 });
  });

  test('end after maxAttempts with the last error', async () => {
    const impatient = new HistoricalData({ baseUrl: proxy.url, apiKey: API_KEY, maxAttempts: 2 });
    proxy.spoil(busy, busy, busy);
    await expect(impatient.get_exchange_a_spot_trades(DAY)).rejects.toThrow(UnavailableError);
    expect(proxy.seen).toBe(2);
  });

  test.each([
    'QUERY_TIMEOUT',
    'ALIGNED_STORAGE_CONTRACT_VIOLATION',
    'HISTORICAL_RUNTIME_ERROR',
    'QUERY_RIGHTS_RESOLUTION_ERROR',
  ])('are not made after %s, which does not pass by itself', async (code) => {
    const lasting = { ...busy, body: JSON.stringify({ ...JSON.parse(busy.body), code }) };
    proxy.spoil(lasting, lasting);
    await expect(data.get_exchange_a_spot_trades(DAY)).rejects.toThrow(UnavailableError);
    expect(proxy.seen).toBe(1);
  });

  test('are not made when the service asks for a longer pause than is allowed', async () => {
    const impatient = new HistoricalData({ baseUrl: proxy.url, apiKey: API_KEY, maxRetryWaitMs: 1000 });
    proxy.spoil({ ...busy, headers: { ...busy.headers, 'Retry-After': '60' } });
    await expect(impatient.get_exchange_a_spot_trades(DAY)).rejects.toThrow(UnavailableError);
    expect(proxy.seen).toBe(1);
  });

  test('a service that is not there is told as such', async () => {
    const nobody = new HistoricalData({ baseUrl: 'http://127.0.0.1:9', apiKey: 'k', maxAttempts: 1 });
    await expect(nobody.get_exchange_a_spot_trades(DAY)).rejects.toThrow(ConnectionError);
  });
});

describe('a broken answer', () => {
  // As Arrow it was not asked for again.
  test.each([
    ['rows', async () => (await data.get_exchange_a_spot_trades(DAY)).row_count],
    ['Arrow', async () => tableFromIPC(await data.get_exchange_a_spot_trades(DAY).arrow()).numRows],
  ])('is asked for again when all of it is awaited as %s; broken again, it is an error', async (_, read) => {
    proxy.spoil({ cutAfterBytes: 50_000 });
    expect(await read()).toBe(ROWS);
    expect(proxy.seen).toBe(2);
    proxy.spoil({ cutAfterBytes: 50_000 }, { cutAfterBytes: 50_000 });
    await expect(read()).rejects.toThrow(IncompleteAnswerError);
  });

  test('never looks whole to a loop, wherever it is cut', async () => {
    for (const cutAfterBytes of [1, 50_000, 50_001, 100_000]) {
      proxy.spoil({ cutAfterBytes });
      const ids: number[] = [];
      const reading = (async () => {
        for await (const row of data.get_exchange_a_spot_trades(DAY)) ids.push(row.trade_id);
      })();
      await expect(reading).rejects.toThrow(IncompleteAnswerError);
      expect(ids).toEqual(ids.map((_, index) => index + 1));
      expect(ids.length).toBeLessThan(ROWS);
    }
  });

  test('that goes silent with its connection open is one, once patience ends; a slow reader has time', {
    tags: ['nightly'],
  }, async () => {
    const impatient = new HistoricalData({ baseUrl: proxy.url, apiKey: API_KEY, stallTimeoutMs: 200 });
    const stall = { stallAfterBytes: 50_000 };
    for (const [read, ...faults] of [
      [() => impatient.get_exchange_a_spot_trades(DAY).arrow(), stall, stall],
      [
        async () => {
          for await (const _row of impatient.get_exchange_a_spot_trades(DAY));
        },
        stall,
      ],
    ] as const) {
      proxy.spoil(...faults);
      await expect(read()).rejects.toThrow(new IncompleteAnswerError('The answer broke off: no bytes came for 200 ms'));
    }
    // A busy machine may send nothing for seconds.
    const patient = new HistoricalData({ baseUrl: proxy.url, apiKey: API_KEY, stallTimeoutMs: 5000 });
    let rows = 0;
    for await (const _row of patient.get_exchange_a_spot_trades(DAY)) {
      if (rows++ === 0) await new Promise((resolve) => setTimeout(resolve, 5500));
    }
    expect(rows).toBe(ROWS);
  });
});
