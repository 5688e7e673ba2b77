/** Answers that break off or are cut, as the page reads them. */
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { ask, Fault, readRows } from '../../serving/page/static/api.js';

let answer: (response: ServerResponse) => void;
const asked: string[] = [];
const server = createServer(({ url }, response) => {
  asked.push(url!);
  answer(response);
});

beforeAll(async () => {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const { port } = server.address() as AddressInfo;
  const send = fetch;
  vi.stubGlobal('sessionStorage', { getItem: () => 'key' });
  // As a browser does whose page is behind a path prefix.
  const base = `http://127.0.0.1:${port}/prefix/`;
  vi.stubGlobal('fetch', (path: string, init: RequestInit) => send(new URL(path, base), init));
});
afterAll(() => {
  vi.unstubAllGlobals();
  server.closeAllConnections();
  server.close();
});

const breakOff = (response: ServerResponse) =>
  response.write('{"a":1}\n', () => setImmediate(() => response.socket!.destroy()));
const read = () => readRows({ path: '/v1/rows', body: {} }, new AbortController().signal);
const BROKEN = { message: 'The answer broke off.', cause: expect.any(Error) };

test.each<[string, typeof answer]>([
  ['breaks off', breakOff],
  ['ends in the middle of a row', (response) => response.end('{"a":1}\n{"a":')],
])('an answer that %s was shown to nobody, or as if it were whole', async (_, given) => {
  answer = given;
  await expect(read()).rejects.toMatchObject(BROKEN);
});

test('an answer of one document that broke off was said to be 200', async () => {
  answer = breakOff;
  await expect(ask('/')).rejects.toMatchObject(BROKEN);
  const giving = new AbortController();
  answer = (response) => response.write('{"a":1', () => giving.abort());
  await expect(ask('/', { signal: giving.signal })).rejects.toMatchObject({ name: 'AbortError' });
});

test.each([
  [10_000, false],
  [10_001, true],
])(
  'an answer of %i rows has more: %s; one of exactly as many as the page shows was said to have more',
  async (count, isCut) => {
    answer = (response) => response.end('{"a":1}\n'.repeat(count));
    const { rows, isCut: isSaid } = await read();
    expect([rows.length, isSaid]).toEqual([10_000, isCut]);
  },
);

test('an answer that the page gave up is no fault', async () => {
  const giving = new AbortController();
  answer = (response) => response.write('{"a":1}\n', () => giving.abort());
  await expect(readRows({ path: '/', body: {} }, giving.signal)).rejects.toMatchObject({ name: 'AbortError' });
});

test('a refusal has the code, the detail and the faults that the service states; a page behind a prefix asked without it', async () => {
  const problem = { code: 'X', detail: 'Why.', errors: [{ pointer: '/a', message: 'is wrong' }], request_id: 'r' };
  answer = (response) => response.writeHead(409).end(JSON.stringify(problem));
  const fault = await read().catch((error: unknown) => error);
  expect(fault).toBeInstanceOf(Fault);
  expect(fault).toMatchObject({ message: 'Why.', code: 'X', errors: problem.errors, requestId: 'r', status: 409 });
  expect(asked.at(-1)).toBe('/prefix/v1/rows');
});
