/** Pages in browsers: which may ask, what they may read, and that the others get nothing. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DATASET, loadDays, randomDay } from '../support/load-rows.ts';
import { type Answer, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const APP = 'https://app.example.org';
const LOCAL = 'http://localhost:5173';

let env: TestEnv;
let serving: Serving;
beforeAll(async () => {
  env = await createMigratedEnv();
  await loadDays(env.databaseUrl, [randomDay('2024-03-01', 50, 1000, 1)]);
  serving = await startServing({
    databaseUrl: env.databaseUrl,
    settings: { SVC_HTTP_CORS_ORIGINS: `${APP}, ${LOCAL}` },
  });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const OK = { sources: [DATASET], n_rows: 3 };
const corsOf = ({ headers }: Answer) => Object.keys(headers).filter((name) => name.startsWith('access-control-'));

function preflight(to: Serving, origin: string, more: { path?: string; method?: string } = {}): Promise<Answer> {
  return to.send({
    method: 'OPTIONS',
    path: more.path,
    key: null,
    headers: {
      Origin: origin,
      'Access-Control-Request-Method': more.method ?? 'POST',
      'Access-Control-Request-Headers': 'content-type,x-api-key',
    },
  });
}

describe('a page of a configured origin', () => {
  test.each([APP, LOCAL])('%s may ask, and read every header', async (origin) => {
    const answer = await serving.query(OK, { Origin: origin });
    expect(answer.status).toBe(200);
    expect(answer.headers).toMatchObject({
      'access-control-allow-origin': origin,
      'access-control-expose-headers': '*',
      vary: expect.stringMatching(/\bOrigin\b/i),
    });
    expect(answer.headers['access-control-allow-credentials']).toBeUndefined();
  });

  test('reads errors too', async () => {
    const Origin = APP;
    const answers = [
      await serving.query({ ...OK, n_rows: 0 }, { Origin }),
      await serving.query(OK, { Origin, 'X-API-Key': 'wrong' }),
      await serving.query(OK, { Origin, Accept: 'image/png' }),
      await serving.send({ path: '/nowhere', headers: { Origin } }),
      await serving.send({ method: 'GET', headers: { Origin } }),
      await serving.send({ body: Buffer.alloc(2 ** 21), headers: { Origin } }),
    ];
    expect(answers.map((answer) => answer.status)).toEqual([409, 409, 406, 404, 405, 409]);
    for (const answer of answers) expect(answer.headers['access-control-allow-origin']).toBe(APP);
  });

  test('is told by a preflight what it may send, without a key', async () => {
    const answer = await preflight(serving, APP);
    expect([answer.status, answer.text]).toEqual([204, '']);
    expect(answer.headers).toMatchObject({
      'access-control-allow-origin': APP,
      'access-control-allow-methods': 'POST',
      'access-control-max-age': expect.stringMatching(/^\d+$/),
    });
    const headers = answer.headers['access-control-allow-headers']!.toLowerCase().split(', ');
    expect(headers).toEqual(expect.arrayContaining(['x-api-key', 'x-backend-token', 'content-type', 'x-request-id']));
    const health = await preflight(serving, APP, { path: '/healthz', method: 'GET' });
    expect([health.status, health.headers['access-control-allow-methods']]).toEqual([204, 'GET, HEAD']);
    expect((await preflight(serving, APP, { path: '/nowhere' })).status).toBe(404);
  });

  test('asks a plain OPTIONS in vain', async () => {
    const answer = await serving.send({ method: 'OPTIONS', key: null, headers: { Origin: APP } });
    expect([answer.status, answer.json.code]).toEqual([405, 'METHOD_NOT_ALLOWED']);
  });
});

describe('a page of any other origin', () => {
  test.each([
    'https://evil.example.org',
    'https://app.example.org.evil.test',
    'http://app.example.org',
    'https://app.example.org:8443',
    'https://APP.example.org',
    'null',
    '*',
    '',
    `${APP}, ${LOCAL}`,
  ])('%j gets no header that lets it read', async (origin) => {
    const answer = await serving.query(OK, { Origin: origin });
    expect([answer.status, corsOf(answer)]).toEqual([200, []]);
    expect(answer.headers.vary).toMatch(/\bOrigin\b/i);
    const asked = await preflight(serving, origin);
    expect([asked.status, asked.json.code, corsOf(asked)]).toEqual([405, 'METHOD_NOT_ALLOWED', []]);
  });
});

test('by default there is none', async () => {
  await using closed = await startServing({ databaseUrl: env.databaseUrl });
  const answer = await closed.query(OK, { Origin: APP });
  expect([answer.status, corsOf(answer), /\bOrigin\b/i.test(answer.headers.vary ?? '')]).toEqual([200, [], false]);
  expect((await preflight(closed, APP)).status).toBe(405);
});

test('* is any origin, still without credentials', async () => {
  await using open = await startServing({ databaseUrl: env.databaseUrl, settings: { SVC_HTTP_CORS_ORIGINS: '*' } });
  const answer = await open.query(OK, { Origin: 'https://anyone.example.org' });
  expect(answer.headers['access-control-allow-origin']).toBe('*');
  expect((await preflight(open, 'https://anyone.example.org')).status).toBe(204);
  expect(corsOf(await open.query(OK))).toEqual([]);
});
