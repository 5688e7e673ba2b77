/** The exchange of a link's token for the key: once, for ten minutes, by the page of this machine alone. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { SignIn } from '../../serving/routes/sign-in.ts';
import { API_KEY, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const MINUTE = 60_000;
let env: TestEnv;
let serving: Serving;
let nowMs = 0;
const signIn = new SignIn(API_KEY, () => nowMs);

beforeAll(async () => {
  env = await createMigratedEnv();
  serving = await startServing({ databaseUrl: env.databaseUrl, signIn });
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

const exchange = (token: unknown = signIn.token, headers: Record<string, string> = {}) =>
  serving.send({ path: '/page/sign-in', key: null, body: JSON.stringify({ token }), headers });

test.each<Record<string, string>>([
  { Origin: 'https://elsewhere.example' },
  { Origin: 'null' },
  { 'Sec-Fetch-Site': 'cross-site' },
  { 'Sec-Fetch-Site': 'same-site' },
  // A name of another site that leads to this machine.
  { Host: 'elsewhere.example' },
  { 'X-Forwarded-For': '203.0.113.1' },
  { Forwarded: 'for=203.0.113.1' },
])('a request with %o has no key, and leaves the link as it is', async (headers) => {
  const { status, json } = await exchange(signIn.token, headers);
  expect([status, json.code]).toEqual([409, 'AUTH_INVALID_API_KEY']);
});

test('another token has no key, and leaves the link as it is', async () => {
  for (const token of ['', 'x', 'x'.repeat(signIn.token.length), `${signIn.token}x`])
    expect((await exchange(token)).json.code).toBe('AUTH_INVALID_API_KEY');
  expect((await exchange(1)).json.code).toBe('QUERY_CONTRACT_ERROR');
});

test('the token has the key once, which nothing stores; the document of the API does not list it', async () => {
  nowMs = 10 * MINUTE;
  const { status, json, headers } = await exchange(signIn.token, {
    Origin: serving.url,
    'Sec-Fetch-Site': 'same-origin',
  });
  expect([status, json, headers['cache-control']]).toEqual([200, { key: API_KEY }, 'no-store']);
  expect((await exchange()).json.code).toBe('AUTH_INVALID_API_KEY');
  const { paths } = (await serving.send({ method: 'GET', path: '/openapi.json' })).json;
  expect(Object.keys(paths)).not.toContain('/page/sign-in');
});

test('after ten minutes the token has no key', () => {
  nowMs = 0;
  const late = new SignIn(API_KEY, () => nowMs);
  nowMs = 10 * MINUTE + 1;
  expect(late.exchange(late.token)).toBe(undefined);
});

test('without a link there is no such route', async () => {
  await using plain = await startServing({ databaseUrl: env.databaseUrl });
  const { status } = await plain.send({ path: '/page/sign-in', key: null, body: '{}' });
  // The path is that of a part of the page, which is only read.
  expect(status).toBe(405);
});
