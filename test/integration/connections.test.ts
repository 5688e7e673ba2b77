/** What reaches the service before a route does: connections that say nothing or too much, and requests that are none. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import Koa from 'koa';
import pino from 'pino';
import { describe, expect, onTestFinished, test } from 'vitest';
import { RefusalLog } from '../../serving/http/access.ts';
import { parseTarget } from '../../serving/http/request.ts';
import { type ConnectionLimits, listen } from '../../serving/server.ts';
import { verifyAudit } from '../../shared/audit/verify.ts';
import { API_KEY, eventually, startServing } from '../support/serving.ts';

interface Front extends AsyncDisposable {
  readonly port: number;
  /** Requests to /hold that are being answered. */
  readonly held: () => number;
  /** Ends all of them. */
  release(): void;
}

/** The front of the service around a few answers; it needs neither database nor broker. */
async function startFront(limits: ConnectionLimits = {}): Promise<Front> {
  const holding = new Set<() => void>();
  const koa = new Koa();
  koa.silent = true;
  koa.use(async (context) => {
    if (context.path === '/hold') {
      await new Promise<void>((resolve) => {
        holding.add(resolve);
        context.res.once('close', resolve);
      });
    }
    if (context.path === '/body') for await (const _ of context.req);
    if (context.path === '/stream') {
      context.respond = false;
      context.res.write('the first half,');
      await new Promise<void>((resolve) => {
        holding.add(resolve);
        context.res.once('close', resolve);
      });
      context.res.end('the second half');
      return;
    }
    context.body = `answered ${context.path}`;
  });
  const server = await listen(koa, '127.0.0.1', 0, limits);
  return {
    port: Number(new URL(server.url).port),
    held: () => holding.size,
    release: () => {
      for (const resolve of holding) resolve();
      holding.clear();
    },
    [Symbol.asyncDispose]: () => server.close(0),
  };
}

/** Half open: it does not hang up because the service does. Closes are seen by writing. */
function socketTo(port: number): Socket {
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  socket.on('error', () => {});
  socket.resume();
  return socket;
}

async function openSockets(count: number, port: number, first = ''): Promise<Socket[]> {
  const sockets = Array.from({ length: count }, () => socketTo(port));
  await Promise.all(sockets.map((socket) => once(socket, 'connect')));
  for (const socket of sockets) if (first !== '') socket.write(first);
  return sockets;
}

/** The service gave the connection up: what is sent on it is refused by the kernel. */
const isClosed = (socket: Socket, sends: string) =>
  eventually(
    () => {
      if (!socket.destroyed) socket.write(sends);
      return socket.destroyed;
    },
    'the connection is closed',
    30_000,
  );

const get = (path: string, more = '') => `GET ${path} HTTP/1.1\r\nHost: x\r\n${more}\r\n`;

/** All that comes back over a connection of its own; the name of the error where it breaks. */
async function answerOf(port: number, sends: string): Promise<string> {
  const socket = connect({ port, host: '127.0.0.1' });
  socket.write(sends);
  return await text(socket).catch((error: NodeJS.ErrnoException) => error.code ?? error.message);
}

/** The first line of an answer. */
async function ask(port: number, path: string): Promise<string> {
  return (await answerOf(port, get(path, 'Connection: close\r\n'))).split('\r\n')[0];
}

const OK = 'HTTP/1.1 200 OK';

describe('silent connections', () => {
  /** Looked at as soon as their time is over. */
  const AT_ONCE = { checkIntervalMs: 20 };

  test('more of them than the limit do not keep health from being answered: the oldest are closed', async () => {
    await using front = await startFront({ maxConnections: 5 });
    const silent = await openSockets(40, front.port);
    expect(await ask(front.port, '/healthz')).toBe(OK);
    expect(await ask(front.port, '/v1/raw/query')).toBe(OK);
    await isClosed(silent[0], 'x');
    // The newest one still has its say.
    const youngest = silent.at(-1)!;
    youngest.write(get('/healthz'));
    expect(String((await once(youngest, 'data'))[0])).toMatch(OK);
    for (const socket of silent) socket.destroy();
  });

  test('one that never sends a byte, or the half of a request, is told so and closed, though it stays half open', async () => {
    await using front = await startFront({ headersTimeoutMs: 200, ...AT_ONCE, lingerMs: 100 });
    for (const first of ['', 'GET /healthz HTTP/1.1\r\nHost']) {
      const [socket] = await openSockets(1, front.port, first);
      const [answer] = await once(socket, 'data');
      expect(String(answer)).toMatch(/^HTTP\/1\.1 408 /);
      await isClosed(socket, 'x');
    }
  });

  test('one that sends line ends and nothing else after its answer is closed', async () => {
    await using front = await startFront({ idleTimeoutMs: 200, headersTimeoutMs: 100, ...AT_ONCE });
    const [socket] = await openSockets(1, front.port, get('/healthz'));
    await once(socket, 'data');
    await isClosed(socket, '\r\n');
  });
});

describe('more requests at once than the limit', () => {
  test('are 503, while health and metrics are answered; a place that is given up is free', async () => {
    await using front = await startFront({ maxConnections: 3 });
    const held = await openSockets(3, front.port, get('/hold'));
    await eventually(() => front.held() === 3, 'three requests are under way');
    for (const path of ['/healthz', '/readyz', '/metrics', '/metrics?x=1']) {
      expect(await ask(front.port, path)).toBe(OK);
    }
    const refused = await answerOf(front.port, get('/v1/raw/query'));
    expect(refused).toMatch(/^HTTP\/1\.1 503 [\s\S]*\r\nRetry-After: 1\r\n/);
    expect(JSON.parse(refused.split('\r\n\r\n')[1]).code).toBe('HTTP_CONNECTION_LIMIT_REACHED');
    held[0].destroy();
    await eventually(async () => (await ask(front.port, '/v1/raw/query')) === OK, 'a place is free');
    // What is silent beside them takes no place of theirs.
    const silent = await openSockets(40, front.port);
    expect(await ask(front.port, '/healthz')).toBe(OK);
    expect(held.slice(1).some((socket) => socket.destroyed)).toBe(false);
    for (const socket of [...held, ...silent]) socket.destroy();
  });

  test('are told so while they still send a body: a reset took the 503 away', async () => {
    await using front = await startFront({ maxConnections: 3 });
    const held = await openSockets(3, front.port, get('/hold'));
    await eventually(() => front.held() === 3, 'three requests are under way');
    const body = 'x'.repeat(1024 * 1024);
    const post = (hosts: string) => `POST /body HTTP/1.1\r\n${hosts}Content-Length: ${body.length}\r\n\r\n`;
    for (const [hosts, status] of [
      ['Host: x\r\n', 503],
      ['Host: x\r\nHost: y\r\n', 400],
    ] as const) {
      const answer = await answerOf(front.port, post(hosts) + body);
      expect(answer).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
      expect(/\r\nRetry-After: 1\r\n/.test(answer)).toBe(status === 503);
      // The service does not hang up before the body has come.
      const [slow] = await openSockets(1, front.port, post(hosts));
      let hasEnded = false;
      slow.once('end', () => {
        hasEnded = true;
      });
      expect(String((await once(slow, 'data'))[0])).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
      expect(await ask(front.port, '/healthz')).toBe(OK);
      expect(hasEnded).toBe(false);
      slow.write(body);
      await once(slow, 'end');
      slow.destroy();
    }
    // One that never sends its body takes no place, neither while it is read on nor by being closed for the next one.
    const [refused] = await openSockets(1, front.port, post('Host: x\r\n'));
    expect(String((await once(refused, 'data'))[0])).toMatch(/^HTTP\/1\.1 503 /);
    expect(await ask(front.port, '/v1/raw/query')).toMatch(/^HTTP\/1\.1 503 /);
    held[0].destroy();
    await eventually(async () => (await ask(front.port, '/v1/raw/query')) === OK, 'a place is free');
    for (const socket of [...held, refused]) socket.destroy();
  });

  test('give their place to others while they send no body', async () => {
    await using front = await startFront({ maxConnections: 3 });
    const head = 'POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n';
    const slow = await openSockets(6, front.port, head);
    let closed = 0;
    for (const socket of slow) socket.once('end', () => closed++);
    expect(await ask(front.port, '/v1/raw/query')).toBe(OK);
    await eventually(() => closed > 3, 'they made room for each other and for the one that was answered');
    for (const socket of slow) socket.destroy();
  });
});

describe('what is no request', () => {
  test.each(['1.1', '1.0'])('two Host headers in HTTP/%s are 400, be they equal or not', async (version) => {
    await using front = await startFront();
    for (const hosts of [
      ['a', 'b'],
      ['x', 'x'],
    ]) {
      const [host, HOST] = hosts;
      const answer = await answerOf(
        front.port,
        `GET /healthz HTTP/${version}\r\nHost: ${host}\r\nX-A: b\r\nHOST: ${HOST}\r\n\r\n`,
      );
      expect(answer).toMatch(/^HTTP\/1\.1 400 /);
      expect(JSON.parse(answer.split('\r\n\r\n')[1])).toMatchObject({
        code: 'HTTP_REQUEST_MALFORMED',
        detail: expect.stringContaining('Host'),
      });
    }
  });

  test('a second Host header behind a thousand other header lines is 400 too', async () => {
    await using front = await startFront();
    const answer = await answerOf(
      front.port,
      `GET /healthz HTTP/1.1\r\nHost: a\r\n${'a:\r\n'.repeat(1000)}Host: b\r\nConnection: close\r\n\r\n`,
    );
    expect(answer).toMatch(/^HTTP\/1\.1 400 /);
    expect(JSON.parse(answer.split('\r\n\r\n')[1]).detail).toContain('has 2 Host headers');
  });

  test.each(['GET /stream HTTP/1.0\r\n\r\n', get('/stream'), get('/stream', 'Connection: close\r\n')])(
    'garbage after a request breaks its running answer, instead of being answered in the middle of it: %j',
    async (first) => {
      await using front = await startFront();
      const socket = connect({ port: front.port, host: '127.0.0.1' });
      socket.write(first);
      let received = '';
      const failed = once(socket, 'error');
      for await (const chunk of socket.iterator({ destroyOnReturn: false })) {
        received += chunk;
        if (received.includes('the first half')) break;
      }
      socket.on('data', (chunk) => {
        received += chunk;
      });
      socket.write('no request\r\n\r\n');
      expect((await failed)[0].code).toBe('ECONNRESET');
      expect(received).not.toContain('400');
    },
  );

  test('garbage after a request that is not answered yet breaks the connection: its 400 would be taken for the answer', async () => {
    await using front = await startFront();
    expect(await answerOf(front.port, `${get('/hold')}no request\r\n\r\n`)).toBe('ECONNRESET');
  });

  test('more bytes behind the last request of a refused connection left the service with an open descriptor', async () => {
    let closed = 0;
    const onConnection = (message: unknown) => (message as { socket: Socket }).socket.once('close', () => closed++);
    subscribe('net.server.socket', onConnection);
    onTestFinished(() => void unsubscribe('net.server.socket', onConnection));
    await using front = await startFront();
    const last = 'POST /x HTTP/2.0\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi';
    expect(await answerOf(front.port, `GET / HTTP/1.1\r\n\r\n${last}${get('/x')}`)).toMatch(/^HTTP\/1\.1 400 /);
    await eventually(() => closed === 1, 'the socket is closed');
  });

  test('a faulty request behind one that is being answered does not get into its answer', async () => {
    await using front = await startFront();
    const socket = connect({ port: front.port, host: '127.0.0.1' });
    socket.write(`${get('/stream')}GET /healthz HTTP/1.1\r\n\r\n`);
    await eventually(() => front.held() === 1, 'the first is being answered');
    front.release();
    const answer = await text(socket);
    expect(answer).toMatch(/the first half,\r\nf\r\nthe second half\r\n0\r\n\r\nHTTP\/1\.1 400 /);
  });
});

describe('one request has one final answer, and what cannot be told from the next request is not taken for one', () => {
  const NO_DATABASE = { databaseUrl: 'postgres://none@127.0.0.1:1/none' };
  const post = (path: string, more: string) => `POST ${path} HTTP/1.1\r\nHost: x\r\n${more}\r\n`;
  const TEN = 'Content-Length: 10\r\n';

  test('an answer before the body was followed by a 408 that nobody asked for', async () => {
    const limits = { headersTimeoutMs: 1300, requestTimeoutMs: 1300, checkIntervalMs: 20 };
    await using serving = await startServing({ ...NO_DATABASE, connections: limits });
    const port = Number(new URL(serving.url).port);
    const silent = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    silent.write('GET');
    const timedOut = once(silent, 'data');
    const cases: readonly (readonly [number, string, string])[] = [
      [409, post('/v1/raw/query', TEN), 'x'.repeat(10)],
      [409, post('/v1/raw/export', `${TEN}Expect: 100-continue\r\n`), 'x'.repeat(10)],
      [404, post('/nowhere', `${TEN}Expect: 100-continue\r\n`), 'x'.repeat(10)],
      [405, post('/healthz', 'Transfer-Encoding: chunked\r\n'), '0\r\n\r\n'],
      [405, get('/v1/raw/query', `${TEN}Expect: 100-continue\r\n`), 'x'.repeat(10)],
      [400, post('/v1/raw/query', `${TEN}Host: y\r\n`), 'x'.repeat(10)],
      // Faulty chunks after the refusal had a second one for an answer.
      [400, post('/v1/raw/query', 'Transfer-Encoding: chunked\r\nHost: y\r\n'), 'no chunk\r\n\r\n'],
      [200, get('/healthz', TEN), ''],
    ];
    await Promise.all(
      cases.map(async ([status, head, rest]) => {
        const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
        socket.write(head);
        let received = '';
        socket.on('data', (chunk) => {
          received += chunk;
        });
        await once(socket, 'data');
        expect(received).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
        expect(received).toMatch(/\r\nConnection: close\r\n/i);
        const ended = socket.readableEnded ? undefined : once(socket, 'end');
        expect(String((await timedOut)[0])).toMatch(/^HTTP\/1\.1 408 /);
        if (rest !== '' && !socket.readableEnded) socket.write(rest);
        await ended;
        expect(received.match(/HTTP\/1\.1 /g)).toHaveLength(1);
        socket.destroy();
      }),
    );
    silent.destroy();
  });

  test('a body that comes with the refusal, or with a request that takes none, leaves the connection open', async () => {
    await using serving = await startServing(NO_DATABASE);
    const ten = 'x'.repeat(10);
    const sent = [post('/v1/raw/query', TEN), ten, get('/healthz', TEN), ten, get('/healthz', 'Connection: close\r\n')];
    const answers = await answerOf(Number(new URL(serving.url).port), sent.join(''));
    expect(answers.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 409', 'HTTP/1.1 200', 'HTTP/1.1 200']);
  });

  test('a POST without a length was reset when its body came', async () => {
    await using serving = await startServing(NO_DATABASE);
    const port = Number(new URL(serving.url).port);
    const { json } = await serving.send({ method: 'GET', path: '/openapi.json', key: null });
    const paths = Object.keys(json.paths).filter((path) => json.paths[path].post);
    expect(paths).toContain('/v1/raw/query');
    const body = '{"sources":["exchange_a_spot_trades"]}';
    for (const path of paths) {
      // The last body would pass for another request.
      for (const [key, rest] of [
        [API_KEY, body],
        [API_KEY, ''],
        ['wrong', body],
        [API_KEY, get('/healthz')],
      ]) {
        const answer = await answerOf(port, post(path, `X-API-Key: ${key}\r\n`) + rest);
        expect(answer).toMatch(/^HTTP\/1\.1 411 Length Required\r\n/);
        expect(answer).toMatch(/\r\nConnection: close\r\n/i);
        expect(JSON.parse(answer.split('\r\n\r\n')[1])).toMatchObject({ code: 'HTTP_LENGTH_REQUIRED', status: 411 });
      }
    }
    expect(await answerOf(port, `${post('/nowhere', '')}${body}`)).toMatch(/^HTTP\/1\.1 404 /);
    for (const method of ['POST', 'PUT', 'PATCH']) {
      const sent = `${post('/healthz', '')}${body}`.replace('POST', method);
      expect(await answerOf(port, sent), method).toMatch(/^HTTP\/1\.1 405 /);
    }
  });
});

describe('request targets', () => {
  const UNPARSEABLE = ['http://a:99999/healthz', 'http://[::1/', 'http://a b/', 'http://:1/x', 'http://a:-1/healthz'];

  test.each(UNPARSEABLE)('%s is no target', (target) => {
    expect(() => parseTarget(target)).toThrow(expect.objectContaining({ code: 'HTTP_REQUEST_MALFORMED', status: 400 }));
  });

  test.each([
    ['/healthz?x=1', '/healthz', '?x=1'],
    ['http://elsewhere:1/healthz', '/healthz', ''],
    ['http://elsewhere', '/', ''],
    ['//a:99999/healthz', '//a:99999/healthz', ''],
    ['//[', '//[', ''],
    ['*', '/*', ''],
  ])('%s is one', (target, pathname, search) => {
    expect(parseTarget(target)).toMatchObject({ pathname, search });
  });

  /** Each was answered as the path that it resolves to, past a proxy's rule for that path. */
  const RESOLVED = [
    ['/v1\\raw\\query', '\\v1\\raw\\query', '/v1/raw\\query', '/v1\\/raw/query', '/v1/raw/query\\..\\query'],
    [
      '/v1/x/../raw/query',
      '/v1/./raw/query',
      '/v1/raw/query/.',
      '/v1/raw/x/..',
      '/../v1/raw/query',
      '/v1/raw/query/x/..',
    ],
    [
      '/v1/%2e/raw/query',
      '/v1/x/%2e%2e/raw/query',
      '/v1/x/%2E./raw/query',
      '/v1/x/.%2e/raw/query',
      '/%2e/v1/raw/query',
    ],
    ['/v1%2fraw%2fquery', '/v1/raw%2Fquery', '/v1%5craw/query', '/v1/raw%5Cquery', '/v1/x%2f..%2fraw/query'],
    ['/v1/raw/query#', '/v1/raw/query#x', '/v1/raw/query#?x', '/v1/raw/q\tuery', '/v1/raw/query\t', '/v1/raw/\fquery'],
    ['/v1/r%61w/query', '//v1/raw/query', '/v1//raw/query', '/V1/raw/query'],
    ['http://a/v1\\raw\\query', 'http://a\\v1/raw/query', 'http://a/v1/x/../raw/query', 'http://a/v1/raw/%2e/query'],
    ['http:\\\\a/v1/raw/query', 'http:/v1/raw/query', 'http:///v1/raw/query', 'x://a/v1/./raw/query'],
  ].flat();

  test.each(RESOLVED)('%j is no other path', async (target) => {
    await using serving = await startServing({ databaseUrl: 'postgres://none@127.0.0.1:1/none' });
    const port = Number(new URL(serving.url).port);
    const head = `POST ${target} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nX-API-Key: ${API_KEY}\r\n`;
    const answer = await answerOf(port, `${head}Connection: close\r\n\r\n{}`);
    // What Node's parser takes for no target, or for one without a host, is no request at all.
    expect(answer).toMatch(/^HTTP\/1\.1 40[04] /);
    expect(JSON.parse(answer.split('\r\n\r\n')[1]).code).toMatch(/^(ROUTE_NOT_FOUND|HTTP_REQUEST_MALFORMED)$/);
  });

  test('an encoded slash parts no segments, and the index of a tile is no exception', async () => {
    await using serving = await startServing({ databaseUrl: 'postgres://none@127.0.0.1:1/none' });
    for (const path of [
      '/v1/proofs/tile/0/000.p%2f1',
      '/v1/proofs/tile/0/x001%2F067',
      '/page/%2e%2e%2fmain.js',
      '/page/x%5cmain.js',
    ]) {
      const { status, json } = await serving.send({ method: 'GET', path, key: null });
      expect([status, json.code]).toEqual([404, 'ROUTE_NOT_FOUND']);
    }
    const query = await serving.send({ method: 'GET', path: '/healthz?a=..%2f..\\', key: null });
    expect(query.status).toBe(200);
  });

  test('one that cannot be parsed is 400 before the key is looked at, not 500', async () => {
    // Nothing of this asks the database.
    await using serving = await startServing({ databaseUrl: 'postgres://none@127.0.0.1:1/none' });
    const port = Number(new URL(serving.url).port);
    for (const target of UNPARSEABLE.filter((one) => !one.includes(' '))) {
      const answer = await answerOf(port, `POST ${target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
      expect(answer, target).toMatch(/^HTTP\/1\.1 400 /);
      expect(JSON.parse(answer.split('\r\n\r\n')[1]).code).toBe('HTTP_REQUEST_MALFORMED');
    }
    expect(await ask(port, 'http://elsewhere:1/healthz')).toBe(OK);
    expect(await ask(port, '//elsewhere:1/healthz')).toBe('HTTP/1.1 404 Not Found');
  });
});

test('wrong keys and contract faults of exports do not make the audit log longer with each', async () => {
  const directory = await mkdtemp(join(tmpdir(), 'tidemark-refused-'));
  const settings = { SVC_EXPORT_AUDIT_LOG_PATH: directory };
  {
    await using serving = await startServing({ databaseUrl: 'postgres://none@127.0.0.1:1/none', settings });
    for (let sent = 0; sent < 50; sent++) {
      for (const key of ['wrong', undefined]) {
        expect((await serving.send({ path: '/v1/raw/export', key, body: '{' })).status).toBe(409);
      }
    }
  }
  const report = await verifyAudit(directory);
  expect(report.findings).toEqual([]);
  // Each of the two: the first, and how many there were; again for each minute that the hundred may take.
  expect(report.records).toBeLessThan(30);
  await rm(directory, { recursive: true });
});

describe('refused requests in the log', () => {
  type Line = { code?: string; key?: string; refused?: number; msg: string };
  const logInto = (lines: Line[]) =>
    pino({ base: null }, { write: (line: string) => void lines.push(JSON.parse(line)) });

  test('a thousand of a kind are one line and a count', () => {
    const lines: Line[] = [];
    const refusals = new RefusalLog(logInto(lines));
    for (let refused = 0; refused < 1000; refused++) {
      refusals.note('HTTP_REQUEST_MALFORMED', 'The connection is closed.', { requestId: 'x', clientAddress: '::1' });
    }
    refusals.note('QUERY_CONTRACT_ERROR', 'Not of this log.', { requestId: 'x', clientAddress: '::1' });
    refusals[Symbol.dispose]();
    expect(lines.map(({ code, refused }) => [code, refused])).toEqual([
      ['HTTP_REQUEST_MALFORMED', undefined],
      ['HTTP_REQUEST_MALFORMED', 999],
    ]);
  });

  test('of known keys are counted by key, and named', () => {
    const lines: Line[] = [];
    const refusals = new RefusalLog(logInto(lines));
    const from = { requestId: 'x', clientAddress: '::1' };
    for (const key of ['one', 'other', 'one', null, 'one']) {
      refusals.note('RATE_LIMITED', 'Too many.', { ...from, key });
    }
    refusals[Symbol.dispose]();
    expect(lines.map(({ key, refused }) => [key, refused])).toEqual([
      ['one', undefined],
      ['other', undefined],
      [undefined, undefined],
      ['one', 2],
    ]);
  });

  test('what is no request, and what the application refuses, are in it, without a stack', async () => {
    const lines: Line[] = [];
    const refusals = new RefusalLog(logInto(lines));
    await using front = await startFront({ refusals });
    for (const first of ['no request\r\n\r\n', 'GET / HTTP/1.1\r\n\r\n', 'no request\r\n\r\n']) {
      expect(await answerOf(front.port, first)).toMatch(/^HTTP\/1\.1 400 /);
    }
    expect(lines.length).toBe(1);
    expect(lines[0]).toMatchObject({ code: 'HTTP_REQUEST_MALFORMED', clientAddress: '127.0.0.1' });
    expect(lines[0]).not.toHaveProperty('err');
  });
});
