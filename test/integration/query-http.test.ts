/** The HTTP side of the contract: routes, key, body, envelope, and every way to ask wrongly. */
import { connect as connectSocket } from 'node:net';
import { buffer, text } from 'node:stream/consumers';
import { gunzipSync, zstdDecompressSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PROBLEMS } from '../../serving/contract/problems.ts';
import { DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { type Answer, API_KEY, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, execute, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let serving: Serving;

beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 200, 1000, 1)]);
  serving = await startServing({
    databaseUrl: env.databaseUrl,
    settings: { SVC_INTERNAL_API_KEY_PREVIOUS: 'older-kéy' },
  });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const OK = { sources: [DATASET], n_rows: 3 };

/** Every answer that is not 2xx is one of these, and gives nothing away. */
function expectProblem(answer: Answer, status: number, code: string): void {
  expect([answer.status, answer.json?.code], answer.text.slice(0, 300)).toEqual([status, code]);
  expect(answer.headers['content-type']).toBe('application/problem+json');
  const { type, title, detail, request_id } = answer.json;
  expect(type).toBe(`urn:tidemark:problem:${code}`);
  expect(title).toBe(PROBLEMS[code as keyof typeof PROBLEMS].title);
  expect(answer.json.status).toBe(status);
  expect(detail).not.toBe('');
  expect(request_id).toBe(answer.headers['x-request-id']);
  expect(answer.headers['retry-after'] !== undefined).toBe(status === 503);
  expectDiscreet(answer.text);
}

/** No stack, statement, path or credential. */
function expectDiscreet(body: string): void {
  expect(body).not.toMatch(/\bat .*\.ts:\d|node_modules|\/work\/|\/tmp\/|\bselect\b .* from |pg_|postgres:\/\//i);
  expect(body).not.toContain(API_KEY);
}

const pointers = (answer: Answer) => answer.json.errors.map((fault: { pointer: string }) => fault.pointer);

describe('routes', () => {
  test('a path that is nearly one is told which; any other, all there are', async () => {
    for (const path of ['/v1/raw/query/', '/v1//raw/query', '/V1/raw/query', '/v1/raw/querry', '/v1/row/qeury']) {
      const { json } = await serving.send({ path, key: null });
      expect(json.detail).toBe('Did you mean POST /v1/raw/query?');
    }
    const coverage = await serving.send({ path: `/v1/covrage/${DATASET}/`, key: null });
    expect(coverage.json.detail).toBe('Did you mean GET /v1/coverage/:dataset?');
    expect((await serving.send({ path: '/v1/raw', key: null })).json.detail).toMatch(
      /^The paths are .*POST \/v1\/raw\/query,/,
    );
  });

  test('a wrong method is 405 and names the right ones, before the key is looked at', async () => {
    for (const method of ['GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']) {
      const answer = await serving.send({ method, key: null });
      expectProblem(answer, 405, 'METHOD_NOT_ALLOWED');
      expect(answer.headers.allow).toBe('POST');
    }
    const health = await serving.send({ method: 'POST', path: '/healthz', key: null });
    expect(health.headers.allow).toBe('GET, HEAD');
    expect((await serving.send({ method: 'HEAD', key: null })).status).toBe(405);
  });

  test('health and readiness need no key', async () => {
    expect((await serving.send({ method: 'GET', path: '/healthz', key: null })).json).toEqual({ status: 'ok' });
    const ready = await serving.send({ method: 'GET', path: '/readyz', key: null });
    expect(ready.json).toEqual({
      status: 'ready',
      checks: { rights: 'ok', database: 'ok', migrations: 'ok', aligned_storage: 'ok', following: 'ok' },
    });
    expect((await serving.send({ method: 'HEAD', path: '/healthz', key: null })).text).toBe('');
  });

  test('a caller may name the request; nonsense is replaced', async () => {
    expect((await serving.query(OK, { 'X-Request-Id': 'my-id.1' })).headers['x-request-id']).toBe('my-id.1');
    const long = await serving.query(OK, { 'X-Request-Id': 'x'.repeat(200) });
    expect(long.headers['x-request-id']).toMatch(/^[0-9a-f-]{36}$/);
  });
});

describe('long texts were sent as they are, to each who had them already', () => {
  const DECODE = { zstd: zstdDecompressSync, gzip: gunzipSync } as const;
  const ask = async (path: string, headers: Record<string, string>, method = 'GET') => {
    const answer = await serving.open({ method, path, headers });
    return { status: answer.statusCode, headers: answer.headers, body: await buffer(answer) };
  };

  test.each(['/openapi.json', '/docs', '/docs/docs.css', '/v1/datasets', '/', '/page/main.js'])('%s', async (path) => {
    const plain = await ask(path, {});
    expect(plain.headers['content-encoding']).toBeUndefined();
    const tags = new Set([plain.headers.etag]);
    for (const coding of ['zstd', 'gzip'] as const) {
      const { status, headers, body } = await ask(path, { 'Accept-Encoding': coding });
      expect([status, headers['content-encoding'], headers.vary]).toEqual([200, coding, 'Accept-Encoding']);
      expect(DECODE[coding](body).equals(plain.body)).toBe(true);
      tags.add(headers.etag);
      expect((await ask(path, { 'Accept-Encoding': coding }, 'HEAD')).headers.etag).toBe(headers.etag);
      const again = await ask(path, { 'Accept-Encoding': coding, 'If-None-Match': headers.etag! });
      expect([again.status, again.body.length, again.headers.etag]).toEqual([304, 0, headers.etag]);
      expect([again.headers.vary, again.headers['cache-control']]).toEqual([headers.vary, headers['cache-control']]);
    }
    // Other bytes have another tag.
    expect([tags.size, tags.has(undefined)]).toEqual([3, false]);
    expectProblem(
      await serving.send({ method: 'GET', path, headers: { 'Accept-Encoding': 'identity;q=0, br' } }),
      406,
      'NOT_ACCEPTABLE',
    );
  });

  test('/metrics, whose numbers change with each look, has no tag', async () => {
    const { headers, body } = await ask('/metrics', { 'Accept-Encoding': 'gzip' });
    expect([headers['content-encoding'], headers.vary, headers.etag]).toEqual(['gzip', 'Accept-Encoding', undefined]);
    expect(gunzipSync(body).toString()).toContain('# HELP tidemark_');
  });
});

describe('the key', () => {
  test('missing, wrong, nearly right, twice: 409; the one before it is accepted', async () => {
    for (const key of [
      null,
      '',
      'wrong',
      `${API_KEY}x`,
      API_KEY.slice(0, -1),
      API_KEY.toUpperCase(),
      `${API_KEY}, ${API_KEY}`,
    ]) {
      expectProblem(await serving.send({ key, body: JSON.stringify(OK) }), 409, 'AUTH_INVALID_API_KEY');
    }
    const previous = Buffer.from('older-kéy').toString('latin1');
    expect((await serving.send({ key: previous, body: JSON.stringify(OK) })).status).toBe(200);
  });

  test('it is looked at before the body', async () => {
    expectProblem(await serving.send({ key: 'wrong', body: '{' }), 409, 'AUTH_INVALID_API_KEY');
    expectProblem(await serving.send({ key: 'wrong', body: Buffer.alloc(2 ** 21) }), 409, 'AUTH_INVALID_API_KEY');
  });
});

describe('the body', () => {
  test('JSON past the limits was said to be no JSON', async () => {
    for (const [body, detail] of [
      [`{${Array.from({ length: 1001 }, (_, n) => `"k${n}":1`).join(',')}}`, 'more than 1000 keys, at offset 8891'],
      [`${'['.repeat(40)}${']'.repeat(40)}`, 'nesting deeper than 32 levels, at offset 33'],
    ]) {
      const answer = await serving.query(body);
      expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
      expect(answer.json.detail).toBe(`The body has ${detail}.`);
      expect(answer.json.errors).toEqual([{ pointer: '', message: `the body has ${detail}` }]);
    }
  });

  test('what is no JSON is named with its place', async () => {
    const answer = await serving.query('{"sources": ["exchange_a_spot_trades"],}');
    expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
    expect(answer.json.errors).toEqual([{ pointer: '', message: 'the body is not JSON: unexpected "}" at offset 39' }]);
    for (const body of [
      '',
      ' ',
      '{',
      'null x',
      "{'a':1}",
      '{"a":1}{"b":2}',
      '{"sources":["a"],"sources":["b"]}',
      'NaN',
    ]) {
      expectProblem(await serving.query(body), 409, 'QUERY_CONTRACT_ERROR');
    }
    expectProblem(await serving.send({ body: Buffer.from([0x7b, 0xff, 0x7d]) }), 409, 'QUERY_CONTRACT_ERROR');
    expectProblem(await serving.send({ body: '[['.repeat(200_000) }), 409, 'QUERY_CONTRACT_ERROR');
  });

  test('it is JSON whatever its Content-Type says, and may begin with a byte order mark', async () => {
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'application/xml']) {
      expect((await serving.query(OK, { 'Content-Type': type })).status).toBe(200);
    }
    expect((await serving.query(`\uFEFF${JSON.stringify(OK)}`)).status).toBe(200);
    expectProblem(await serving.query(OK, { 'Content-Encoding': 'gzip' }), 409, 'QUERY_CONTRACT_ERROR');
  });

  test('csv_formulas is of CSV alone', async () => {
    const body = { ...OK, csv_formulas: 'escape' };
    expect((await serving.query(body, { Accept: 'text/csv' })).text.split('\n')).toHaveLength(5);
    for (const accept of ['application/json', 'application/x-ndjson', 'application/vnd.apache.arrow.stream']) {
      const refused = await serving.query(body, { Accept: accept });
      expectProblem(refused, 409, 'QUERY_CONTRACT_ERROR');
      expect(pointers(refused)).toEqual(['/csv_formulas']);
    }
    expect((await serving.send({ path: '/v1/raw/estimate', body: JSON.stringify(body) })).status).toBe(200);
    const path = '/v1/historical/exchange_a/spot/trades';
    const rows = { n_latest_rows: 3, csv_formulas: 'escape' };
    expect((await serving.send({ path, body: JSON.stringify(rows), headers: { Accept: 'text/csv' } })).status).toBe(
      200,
    );
    expectProblem(await serving.send({ path, body: JSON.stringify(rows) }), 409, 'HISTORICAL_CONTRACT_ERROR');
  });

  test('5 MB are refused and the connection goes on', async () => {
    const body = Buffer.alloc(5_000_000, 0x20);
    for (let i = 0; i < 3; i++) {
      const answer = await serving.send({ body });
      expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
      expect(answer.json.detail).toContain('1048576 bytes');
      expect((await serving.query(OK)).status).toBe(200);
    }
  });

  test('so are 5 MB of unknown length', async () => {
    const { port } = new URL(serving.url);
    const socket = connectSocket(Number(port), '127.0.0.1');
    socket.write(
      `POST /v1/raw/query HTTP/1.1\r\nHost: x\r\nX-API-Key: ${API_KEY}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n`,
    );
    const chunk = Buffer.concat([Buffer.from('100000\r\n'), Buffer.alloc(2 ** 20, 0x20), Buffer.from('\r\n')]);
    for (let i = 0; i < 5; i++) socket.write(chunk);
    socket.end('0\r\n\r\n');
    expect(await text(socket)).toContain('is larger than 1048576 bytes');
  });

  test('a client that asks first is told before it sends', async () => {
    const { port } = new URL(serving.url);
    const ask = async (length: number, key: string) => {
      const socket = connectSocket(Number(port), '127.0.0.1');
      socket.write(
        `POST /v1/raw/query HTTP/1.1\r\nHost: x\r\nX-API-Key: ${key}\r\nContent-Length: ${length}\r\nExpect: 100-continue\r\n\r\n`,
      );
      const first = await new Promise<string>((resolve) => socket.once('data', (data) => resolve(String(data))));
      socket.destroy();
      return first.split('\r\n')[0];
    };
    expect(await ask(20_000_000, API_KEY)).toBe('HTTP/1.1 409 Conflict');
    expect(await ask(10, 'wrong')).toBe('HTTP/1.1 409 Conflict');
    expect(await ask(10, API_KEY)).toBe('HTTP/1.1 100 Continue');
  });

  test('what HTTP itself refuses has the same envelope: no host, and what else is expected is no matter', async () => {
    const { port } = new URL(serving.url);
    const send = async (head: string) => {
      const socket = connectSocket(Number(port), '127.0.0.1');
      socket.write(`GET /v1/nope HTTP/1.1\r\n${head}Connection: close\r\n\r\n`);
      const [first, body] = (await text(socket)).split('\r\n\r\n');
      const { code, request_id } = JSON.parse(body);
      expect(request_id).toMatch(/^[0-9a-f-]{36}$/);
      expect(first.toLowerCase()).toContain(`x-request-id: ${request_id}`);
      return [first.split('\r\n')[0], code];
    };
    expect(await send('')).toEqual(['HTTP/1.1 400 Bad Request', 'HTTP_REQUEST_MALFORMED']);
    expect(await send('Host: x\r\nExpect: miracles\r\n')).toEqual(['HTTP/1.1 404 Not Found', 'ROUTE_NOT_FOUND']);
  });

  test('a parameter in the URL is a fault, not something ignored', async () => {
    const answer = await serving.send({ path: '/v1/raw/query?mode=aligned_1s&x=1', body: JSON.stringify(OK) });
    expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
    expect(pointers(answer)).toEqual(['?mode', '?x']);
  });
});

describe('contract faults', () => {
  const S = [DATASET];
  const T = ['2024-03-01T00:00:00Z', '2024-03-02T00:00:00Z'];
  const clause = (field: unknown, op: unknown, value: unknown) => ({ sources: S, filters: [{ field, op, value }] });

  const CASES: readonly [string, unknown, readonly string[]][] = [
    ['no object', [], ['']],
    ['nothing', {}, ['/sources']],
    ['no source', { sources: [] }, ['/sources']],
    ['two sources', { sources: [DATASET, 'exchange_b_spot_trades'] }, ['/sources']],
    ['sources as text', { sources: DATASET }, ['/sources']],
    ['unknown source', { sources: ['exchange_d'] }, ['/sources/0']],
    ['unknown mode', { sources: S, mode: 'raw' }, ['/mode']],
    ['unknown keys', { sources: S, limit: 5, 'a/b~c': 1 }, ['/limit', '/a~1b~0c']],
    ['a null', { sources: S, n_rows: null }, ['/n_rows']],
    ['n_rows zero', { sources: S, n_rows: 0 }, ['/n_rows']],
    ['strict as text', { sources: S, strict: 'true' }, ['/strict']],
    ['seed alone', { sources: S, random_seed: 1 }, ['/random_seed']],
    ['two windows', { sources: S, n_rows: 1, n_random: 1 }, ['/n_rows', '/n_random']],
    ['range reversed', { sources: S, time_range: T.toReversed() }, ['/time_range']],
    ['range empty', { sources: S, time_range: [T[0], T[0]] }, ['/time_range']],
    ['range empty by offset', { sources: S, time_range: [T[0], '2024-03-01T02:00:00+02:00'] }, ['/time_range']],
    ['range of one', { sources: S, time_range: [T[0]] }, ['/time_range']],
    [
      'range of numbers',
      { sources: S, time_range: [1709251200000, 1709337600000] },
      ['/time_range/0', '/time_range/1'],
    ],
    ['range without offset', { sources: S, time_range: ['2024-03-01T00:00:00', T[1]] }, ['/time_range/0']],
    ['range of no day', { sources: S, time_range: ['2024-02-30T00:00:00Z', T[1]] }, ['/time_range/0']],
    ['fields empty', { sources: S, fields: [] }, ['/fields']],
    ['field unknown', { sources: S, fields: ['price', 'prize'] }, ['/fields/1']],
    ['field of the other mode', { sources: S, fields: ['open_price'] }, ['/fields/0']],
    ['field repeated', { sources: S, fields: ['price', 'quantity', 'price'] }, ['/fields/2']],
    ['view alone', { sources: S, view_id: 'x' }, ['/view_id']],
    ['version alone', { sources: S, view_version: 1 }, ['/view_version']],
    ['version zero', { sources: S, view_id: `${DATASET}_native`, view_version: 0 }, ['/view_version', '/view_version']],
    ['filters as object', { sources: S, filters: {} }, ['/filters']],
    ['clause as text', { sources: S, filters: ['price > 5'] }, ['/filters/0']],
    ['clause empty', { sources: S, filters: [{}] }, ['/filters/0/field', '/filters/0/op', '/filters/0/value']],
    ['clause with more', { sources: S, filters: [{ field: 'price', op: 'eq', value: 1, or: 2 }] }, ['/filters/0/or']],
    ['operator unknown', clause('price', '>', 1), ['/filters/0/op']],
    ['operator not for bool01', clause('is_buyer_maker', 'gt', 0), ['/filters/0/op']],
    ['filter field unknown', clause('prize', 'eq', 1), ['/filters/0/field']],
    ['value as text', clause('price', 'eq', '5'), ['/filters/0/value']],
    ['value true for 1', clause('is_buyer_maker', 'eq', true), ['/filters/0/value']],
    ['value 2 for bool01', clause('is_buyer_maker', 'eq', 2), ['/filters/0/value']],
    ['null with gt', clause('price', 'gt', null), ['/filters/0/value']],
    ['null in a list', clause('price', 'in', [1, null]), ['/filters/0/value/1']],
    ['list empty', clause('price', 'in', []), ['/filters/0/value']],
    ['list for eq', clause('price', 'eq', [1]), ['/filters/0/value']],
    ['scalar for in', clause('price', 'in', 1), ['/filters/0/value']],
    ['time as number', clause('datetime', 'gt', 1709251200000), ['/filters/0/value']],
    [
      '65 clauses',
      { sources: S, filters: Array.from({ length: 65 }, () => clause('price', 'gt', 1).filters[0]) },
      ['/filters'],
    ],
    [
      '10,001 values',
      clause(
        'price',
        'in',
        Array.from({ length: 10_001 }, (_, i) => i),
      ),
      ['/filters/0/value'],
    ],
  ];

  test.each(CASES)('%s', async (_, body, places) => {
    const answer = await serving.query(JSON.stringify(body));
    expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
    expect(pointers(answer).sort()).toEqual([...places].sort());
  });

  test('an infinite number is a fault', async () => {
    const answer = await serving.query(
      `{"sources":["${DATASET}"],"filters":[{"field":"price","op":"lt","value":1e400}]}`,
    );
    expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
  });

  test('all faults at once', async () => {
    const answer = await serving.query({
      sources: S,
      mode: 'aligned_1s',
      fields: ['price', 'open_price', 'open_price'],
      n_rows: 0,
      n_random: '5',
      strict: 2,
      view_version: 1,
      filters: [{ field: 'trade_count', op: 'gt', value: 'x' }],
      extra: true,
    });
    expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
    expect(new Set(pointers(answer))).toEqual(
      new Set([
        '/extra',
        '/fields/0',
        '/fields/2',
        '/filters/0/value',
        '/n_random',
        '/n_rows',
        '/strict',
        '/view_version',
      ]),
    );
  });

  test('a hundred thousand faults make a small answer', async () => {
    const fields = Array.from({ length: 90_000 }, (_, i) => `f${i}`);
    const before = process.cpuUsage();
    const answer = await serving.query({ sources: S, fields });
    expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
    expect(answer.text.length).toBeLessThan(100_000);
    // What is quadratic in the faults takes minutes of the processor, however busy the machine.
    expect(process.cpuUsage(before).user / 1e6).toBeLessThan(20);
  });

  test('prototype keys are unknown keys', async () => {
    for (const key of ['__proto__', 'constructor', 'toString', 'hasOwnProperty']) {
      const answer = await serving.query(`{"sources":["${DATASET}"],"${key}":{"n_rows":1}}`);
      expectProblem(answer, 409, 'QUERY_CONTRACT_ERROR');
      expect(pointers(answer)).toEqual([`/${key}`]);
      expectProblem(await serving.query({ sources: [key] }), 409, 'QUERY_CONTRACT_ERROR');
      expectProblem(await serving.query({ sources: S, fields: [key] }), 409, 'QUERY_CONTRACT_ERROR');
    }
  });
});

describe('hostile text', () => {
  const SQL = [
    "'; drop table exchange_a_spot_trades; --",
    '1) or 1=1 --',
    '") union select usename, passwd from pg_shadow --',
    "$1::text'); select pg_sleep(10); --",
    '\\',
    "\u0000'",
    '\ud800',
    '😀',
    'x'.repeat(500_000),
  ];
  const places: readonly ((text: string) => unknown)[] = [
    (value) => ({ sources: [value] }),
    (value) => ({ sources: [DATASET], mode: value }),
    (value) => ({ sources: [DATASET], view_id: value, view_version: 1 }),
    (value) => ({ sources: [DATASET], fields: [value] }),
    (value) => ({ sources: [DATASET], time_range: [value, '2024-03-02T00:00:00Z'] }),
    (value) => ({ sources: [DATASET], filters: [{ field: value, op: 'eq', value: 1 }] }),
    (value) => ({ sources: [DATASET], filters: [{ field: 'price', op: value, value: 1 }] }),
    (value) => ({ sources: [DATASET], filters: [{ field: 'price', op: 'eq', value }] }),
    (value) => ({ sources: [DATASET], filters: [{ field: 'datetime', op: 'in', value: [value] }] }),
    (value) => ({ sources: [DATASET], n_rows: value }),
    (value) => ({ sources: [DATASET], [value]: 1 }),
  ];

  test('is refused wherever it stands, and does nothing', async () => {
    for (const value of SQL) {
      for (const place of places) {
        const answer = await serving.query(place(value));
        expect([answer.status, answer.json.code], value.slice(0, 50)).toEqual([409, 'QUERY_CONTRACT_ERROR']);
      }
    }
    const rows = await execute(env.databaseUrl, 'select count(*) from exchange_a_spot_trades');
    expect(Number(rows.rows[0].count)).toBe(200);
  });
});
