/** GET /v1/changes in both forms, the client that follows it, and the stream of changes inside. */
import { once } from 'node:events';
import type { IncomingMessage } from 'node:http';
import { connect as connectSocket } from 'node:net';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type Change, Changes } from '../../client/index.ts';
import { changeFault, publishChanges, rewriteChanges } from '../../pipelines/proof-log/change-publisher.ts';
import { indexedLeaves } from '../../pipelines/proof-log/sequencer.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { addKey } from '../../shared/keys/store.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { CHANGES_STREAM, ensureStream } from '../../shared/nats/stream.ts';
import { changeText, commitTo, encodeLeaf, type Leaf, type LeafKind, logLeaf } from '../../shared/proof-log/leaf.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { sequence } from '../support/proof-log.ts';
import { type Answer, API_KEY, eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';
import { startStoreProxy } from '../support/store-proxy.ts';

const A = 'exchange_a_spot_trades';
const B = 'exchange_b_spot_trades';
const LIMITS = { heartbeatMs: 1000 };

let env: TestEnv;
let client: Client;
let serving: Serving;

beforeEach(async () => {
  env = await createMigratedEnv();
  client = await connect({ url: env.databaseUrl, name: 'test' });
  serving = await startServing({ databaseUrl: env.databaseUrl, limits: LIMITS });
});
afterEach(async () => {
  await serving[Symbol.asyncDispose]();
  await client[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

const SALT = Buffer.alloc(32, 7);

const leaf = (kind: LeafKind, dataset: string | null, partition: string): Leaf => ({
  ...logLeaf({ kind, reason: null }),
  ...{ dataset, partition, revision: 1, attempt: 1, document: `${partition}.zip – “é”`, rows: 3 },
  ...commitTo(SALT, { document_sha256: 'a'.repeat(64), rows_hash: '7', offsets: '1 3' }),
  ...{ at: '2026-01-01T00:00:00.000Z' },
});

/** Leaves as a transaction writes them, without an index. */
async function write(...leaves: readonly Leaf[]): Promise<void> {
  for (const one of leaves) {
    await client.query(
      'insert into proof_leaves (dataset_id, partition_key, kind, body, salt) values ($1, $2, $3, $4, $5)',
      [
        one.dataset === null ? null : DATASETS.get(one.dataset)!.number,
        one.partition,
        one.kind,
        encodeLeaf(one),
        one.dataset && SALT,
      ],
    );
  }
}

/** So many changes of A in one go, sequenced. */
async function grow(count: number, dataset = A): Promise<void> {
  await write(...Array.from({ length: count }, (_, at) => leaf('proved', dataset, `p${at}`)));
  await sequence(env);
}

/** More changes than the kernel's buffers of a connection take. */
async function fill(): Promise<void> {
  await client.query(
    `insert into proof_leaves (dataset_id, kind, body) select $1, 'proved', $2 from generate_series(1, 24000)`,
    [DATASETS.get(A)!.number, encodeLeaf({ ...leaf('proved', A, 'p'), reason: 'x'.repeat(160) })],
  );
  await sequence(env);
}

/** @returns the secret of a new key that may read */
async function addNamed(name: string, concurrentReads: number | null = null): Promise<string> {
  const terms = { datasets: null, requestsPerMinute: null, concurrentReads, expiresAt: null };
  return (await addKey(client, name, { scopes: ['read'], ...terms })).text;
}

const EVENTS = { Accept: 'text/event-stream' };
const get = (path: string, headers: Record<string, string> = {}): Promise<Answer> =>
  serving.send({ method: 'GET', path, headers });
const numbers = (changes: readonly { number: number }[]) => changes.map(({ number }) => number);
const upTo = (count: number, from = 1) => Array.from({ length: count - from + 1 }, (_, at) => from + at);

/** An event stream as the test reads it: raw text, and the numbers in it. */
interface Heard {
  readonly response: IncomingMessage;
  text: string;
  numbers(): number[];
}

/** The head of an event stream, or of its refusal. Each has a connection of its own, which closes with it. */
const open = (from = serving, key?: string, path = '/v1/changes', headers: Record<string, string> = {}) =>
  from.open({ method: 'GET', path, key, headers: { ...EVENTS, ...headers } });

async function hear(path = '/v1/changes', headers: Record<string, string> = {}, from = serving): Promise<Heard> {
  const response = await open(from, undefined, path, headers);
  const heard: Heard = {
    response,
    text: '',
    numbers: () => [...heard.text.matchAll(/^id: (\d+)\ndata: \{"number":(\d+),.*\}$/gm)].map(([, , n]) => Number(n)),
  };
  response.setEncoding('utf8');
  response.on('data', (chunk: string) => {
    heard.text += chunk;
  });
  response.on('error', () => {});
  return heard;
}

describe('pages', () => {
  test('hold each change once, in order, with exactly the members of its leaf', async () => {
    const kinds = ['proved', 'revised', 'retracted', 'quarantined', 'refused'] as const;
    const leaves = [
      ...kinds.map((kind, at) => leaf(kind, at % 2 ? B : A, `p${at}`)),
      { ...leaf('restored', null, 'x'), partition: null },
    ];
    await write(...leaves);
    await sequence(env);
    const { json, text } = await get('/v1/changes');
    expect(numbers(json.changes)).toEqual(upTo(6));
    expect(json.next).toBe(6);
    leaves.forEach((one, at) => {
      const { number, salt, ...members } = json.changes[at];
      expect(Buffer.from(JSON.stringify(members)).equals(encodeLeaf(one)), one.kind).toBe(true);
      expect(number).toBe(at + 1);
      expect(salt).toBe(one.dataset && SALT.toString('hex'));
      expect(text).toContain(
        `{"number":${number},"salt":${JSON.stringify(salt)},${encodeLeaf(one).toString().slice(1)}`,
      );
    });
  });

  test('begin after `since`, end at `limit`, and go on from `next`', async () => {
    await grow(700);
    const found: number[] = [];
    for (let since = 0, pages = 0; ; pages++) {
      const { json } = await get(`/v1/changes?since=${since}&limit=150`);
      found.push(...numbers(json.changes));
      if (json.next === since) {
        expect(pages).toBe(5);
        break;
      }
      since = json.next;
    }
    expect(found).toEqual(upTo(700));
    expect((await get('/v1/changes?since=latest')).json).toEqual({ changes: [], next: 700 });
    await grow(1);
    // The block that was read before has grown.
    expect(numbers((await get('/v1/changes?since=699')).json.changes)).toEqual([700, 701]);
  });

  test('of one dataset pass over the others and keep the changes of the log itself', async () => {
    await grow(3);
    await grow(2, B);
    await write({ ...leaf('restored', null, 'x'), partition: null });
    await sequence(env);
    const { json } = await get(`/v1/changes?dataset=${B}`);
    expect(numbers(json.changes)).toEqual([4, 5, 6]);
    expect((await get(`/v1/changes?dataset=${B}&limit=1`)).json.next).toBe(4);
    expect((await get(`/v1/changes?dataset=${A}&since=3`)).json).toMatchObject({ changes: [{ number: 6 }], next: 6 });
    // Nothing but changes of others is left: the reader goes on behind them.
    await grow(2);
    expect((await get(`/v1/changes?dataset=${B}&since=6`)).json).toMatchObject({ changes: [], next: 8 });
  });

  test('show nothing before its commit and before its index', async () => {
    await using open = await connect({ url: env.databaseUrl, name: 'test' });
    await open.query('begin');
    await open.query(`insert into proof_leaves (kind, body) values ('proved', $1)`, [
      encodeLeaf(leaf('proved', A, 'p')),
    ]);
    await sequence(env);
    expect((await get('/v1/changes')).json).toEqual({ changes: [], next: 0 });
    await open.query('commit');
    expect((await get('/v1/changes')).json).toEqual({ changes: [], next: 0 });
    await sequence(env);
    expect((await get('/v1/changes')).json.next).toBe(1);
  });

  test.each([
    ['since=3', '?since', 'the last change is 2'],
    ['since=-1', '?since', 'must be the number of a change'],
    ['since=1e3', '?since', 'must be the number of a change'],
    ['limit=0', '?limit', 'from 1 to 10000'],
    ['dataset=nothing', '?dataset', 'must be one of'],
    ['dataset=exchange_a_spot_trade', '?dataset', 'did you mean exchange_a_spot_trades?'],
    ['from=1', '?from', 'is not a parameter; the parameters are since, dataset, limit'],
  ])('refuse ?%s', async (query, pointer, message) => {
    await grow(2);
    for (const accept of ['application/json', 'text/event-stream']) {
      const { status, json } = await get(`/v1/changes?${query}`, { Accept: accept });
      expect([status, json.code, json.errors[0].pointer]).toEqual([409, 'QUERY_CONTRACT_ERROR', pointer]);
      expect(json.errors[0].message).toContain(message);
    }
  });
});

describe('event streams', () => {
  test('send what there is, and then each change as it comes', async () => {
    await grow(600);
    const heard = await hear();
    await eventually(() => heard.numbers().length === 600, 'all changes');
    await grow(2);
    await eventually(() => heard.numbers().length === 602, 'the new ones');
    expect(heard.numbers()).toEqual(upTo(602));
    expect(heard.text.startsWith('retry: 1000\nid: 0\n\n')).toBe(true);
    heard.response.destroy();
  });

  test('send a change that a page has shown before the stream asked', { tags: ['nightly'] }, async () => {
    const heard = await hear();
    for (let count = 1; count <= 12; count++) {
      await grow(1);
      expect((await get('/v1/changes?since=latest')).json.next).toBe(count);
      await eventually(() => heard.numbers().length === count, 'the change on the stream', 5000);
    }
    heard.response.destroy();
  });

  test('that begin while the service stops end without a fault', async () => {
    await grow(3);
    const stopped = await startServing({ databaseUrl: env.databaseUrl, limits: LIMITS });
    const opening = Array.from({ length: 30 }, () => hear('/v1/changes', {}, stopped).catch(() => undefined));
    await delay(5);
    await stopped[Symbol.asyncDispose]();
    await Promise.all(opening);
  });

  test('continue after `Last-Event-ID`, which outranks `since`', async () => {
    await grow(5);
    const heard = await hear('/v1/changes?since=0', { 'Last-Event-ID': '3' });
    await eventually(() => heard.numbers().length > 0, 'a change');
    expect(heard.numbers()).toEqual([4, 5]);
    heard.response.destroy();
    expect((await get('/v1/changes', { Accept: 'text/event-stream', 'Last-Event-ID': '6' })).json.errors[0]).toEqual({
      pointer: 'Last-Event-ID',
      message: expect.stringContaining('the last change is 5'),
    });
    expect((await get('/v1/changes', { Accept: 'text/event-stream', 'Last-Event-ID': 'x' })).status).toBe(409);
  });

  test('are refused over HTTP/1.0, which cannot show where they end; pages are not', async () => {
    const speak = async (accept: string) => {
      const { hostname, port } = new URL(serving.url);
      const socket = connectSocket(Number(port), hostname);
      socket.write(`GET /v1/changes HTTP/1.0\r\nX-API-Key: ${API_KEY}\r\nAccept: ${accept}\r\n\r\n`);
      const [head, body] = (await text(socket)).split('\r\n\r\n');
      return { head, json: JSON.parse(body) };
    };
    const refused = await speak('text/event-stream');
    expect(refused.head).toMatch(/^HTTP\/1\.1 505 /);
    expect(refused.json).toMatchObject({
      code: 'HTTP_VERSION_UNSUPPORTED',
      detail: expect.stringMatching(/HTTP\/1\.1.*proxy_http_version 1\.1/),
    });
    const page = await speak('application/json');
    expect([page.head.split('\r\n')[0], page.json]).toEqual(['HTTP/1.1 200 OK', { changes: [], next: 0 }]);
  });

  test('of one dataset move the place of a client past the changes of others', { tags: ['nightly'] }, async () => {
    await grow(4);
    const heard = await hear(`/v1/changes?dataset=${B}`);
    await eventually(() => /^id: 4$/m.test(heard.text), 'the place');
    expect(heard.numbers()).toEqual([]);
    await eventually(() => heard.text.includes(': heartbeat\n\n'), 'a heartbeat');
    await grow(1, B);
    await eventually(() => heard.numbers().length > 0, 'the change');
    expect(heard.numbers()).toEqual([5]);
    heard.response.destroy();
  });

  test('answer HEAD with the head alone', async () => {
    const { status, headers, text } = await serving.send({
      ...{ method: 'HEAD', path: '/v1/changes' },
      headers: { Accept: 'text/event-stream' },
    });
    expect([status, headers['content-type'], text]).toEqual([200, 'text/event-stream', '']);
    expect(serving.app.changes.load.listeners).toBe(0);
  });

  test('take no slot of a reader and no connection of other requests, and are not closed as idle', async () => {
    await using small = await startServing({
      databaseUrl: env.databaseUrl,
      limits: { discoveryRunning: 1, discoveryWaiting: 0 },
      connections: {
        maxConnections: 1,
        maxEventStreams: 40,
        idleTimeoutMs: 20,
        headersTimeoutMs: 100,
        checkIntervalMs: 20,
      },
    });
    const streams: Heard[] = [];
    // More than the connections and those in reserve.
    for (let at = 0; at < 40; at++) streams.push(await hear('/v1/changes', {}, small));
    await delay(400);
    for (const path of ['/v1/changes', '/v1/datasets']) {
      // A connection that is kept would be closed as idle about now.
      const { status } = await small.send({ method: 'GET', path, headers: { Connection: 'close' } });
      expect([path, status]).toEqual([path, 200]);
    }
    await grow(1);
    await eventually(() => streams.every((heard) => heard.numbers().length === 1), 'the change on every stream');
    expect(small.app.changes.load.listeners).toBe(40);
    for (const { response } of streams) response.destroy();
    await eventually(() => small.app.changes.load.listeners === 0, 'the end of the streams');
  });

  test('of one key that takes every place and every connection lock out no other key and not the owner', async () => {
    await using small = await startServing({
      databaseUrl: env.databaseUrl,
      settings: { SVC_CHANGES_MAX_LISTENERS: '20' },
      limits: LIMITS,
      connections: { maxConnections: 2, maxEventStreams: 20 },
    });
    const [greedy, other] = [await addNamed('greedy'), await addNamed('other')];
    const held: IncomingMessage[] = [];
    for (let at = 0; at < 20; at++) held.push(await open(small, greedy));
    for (const response of held) response.on('error', () => {}).resume();
    const refused = await small.send({ key: greedy, method: 'GET', path: '/v1/changes', headers: EVENTS });
    expect([refused.status, refused.json.code]).toEqual([503, 'CHANGES_LISTENER_LIMIT_REACHED']);
    expect(refused.headers['retry-after']).toBe('5');
    for (const [key, newest] of [
      [other, 19],
      [API_KEY, 18],
    ] as const) {
      const { statusCode } = await open(small, key);
      expect(statusCode).toBe(200);
      await eventually(() => held[newest].complete, 'the end of the newest');
      expect(held.filter(({ complete }) => complete)).toHaveLength(20 - newest);
      // No place is left, and pages need none.
      expect((await small.send({ key, method: 'GET', path: '/v1/changes' })).status).toBe(200);
    }
    expect((await open(small, greedy)).statusCode).toBe(503);
    const { json } = await small.send({ method: 'GET', path: '/v1/ops/status' });
    expect(json.changes).toEqual({ last: 0, listeners: 20, max_listeners: 20 });
  });

  test('count among the reads at once of their key', async () => {
    const key = await addNamed('limited', 2);
    const held = [await open(serving, key), await open(serving, key)];
    expect((await open(serving, key)).statusCode).toBe(429);
    for (const path of ['/v1/changes', '/v1/datasets']) {
      const refused = await serving.send({ key, method: 'GET', path, headers: EVENTS });
      expect([refused.status, refused.json.code]).toEqual([429, 'AUTH_CONCURRENCY_LIMITED']);
    }
    held[0].destroy();
    await eventually(async () => (await open(serving, key)).statusCode === 200, 'the place of the one that ended');
  });

  test('whose client does not read make room as well', async () => {
    await using small = await startServing({
      databaseUrl: env.databaseUrl,
      settings: { SVC_CHANGES_MAX_LISTENERS: '1' },
      limits: { ...LIMITS, stallMs: 600_000 },
    });
    const key = await addNamed('stuck');
    const { port } = new URL(small.url);
    const stuck = connectSocket(Number(port), '127.0.0.1').pause();
    stuck.on('error', () => {});
    stuck.write(`GET /v1/changes HTTP/1.1\r\nHost: a\r\nX-API-Key: ${key}\r\nAccept: text/event-stream\r\n\r\n`);
    await eventually(() => small.app.changes.load.listeners === 1, 'the stream');
    await fill();
    await eventually(async () => (await open(small)).statusCode === 200, 'a place for the owner');
    await eventually(() => small.app.changes.load.listeners === 1, 'the end of the stuck stream');
    stuck.destroy();
  });

  test('of a client that does not read are ended, and hold no others up', async () => {
    await using small = await startServing({
      databaseUrl: env.databaseUrl,
      limits: { ...LIMITS, stallMs: 1000 },
    });
    const { port } = new URL(small.url);
    const stuck = connectSocket(Number(port), '127.0.0.1');
    await once(stuck, 'connect');
    stuck.pause();
    stuck.on('error', () => {});
    stuck.write(`GET /v1/changes HTTP/1.1\r\nHost: a\r\nX-API-Key: ${API_KEY}\r\nAccept: text/event-stream\r\n\r\n`);
    const reading = await hear('/v1/changes', {}, small);
    await eventually(() => small.app.changes.load.listeners === 2, 'both streams');
    await fill();
    await eventually(() => small.app.changes.load.evicted === 1, 'the end of the stuck stream');
    await eventually(() => reading.numbers().length === 24_000, 'everything on the other');
    await eventually(() => small.app.changes.load.listeners === 1, 'the place of the stuck stream');
    stuck.destroy();
  });

  test('end when the database was restored to an earlier state', async () => {
    await grow(3);
    const heard = await hear();
    await eventually(() => heard.numbers().length === 3, 'the changes');
    const ended = once(heard.response, 'end');
    await client.query('update proof_head set size = 1');
    await ended;
    const again = await get('/v1/changes', { Accept: 'text/event-stream', 'Last-Event-ID': '3' });
    expect(again.json.errors[0].message).toContain('its database was restored to an earlier state');
    // The second change is another one now, and nothing of the first one is kept.
    await client.query('delete from proof_leaves where leaf_index > 0');
    await client.query(`insert into proof_leaves (leaf_index, dataset_id, kind, body) values (1, $1, 'refused', $2)`, [
      DATASETS.get(B)!.number,
      encodeLeaf(leaf('refused', B, 'p')),
    ]);
    await client.query('update proof_head set size = 2');
    expect((await get('/v1/changes?since=1')).json).toMatchObject({ changes: [{ number: 2, dataset: B }], next: 2 });
  });
});

describe('the client', () => {
  test('follows through any number of restarts and loses and repeats nothing', async () => {
    const plan = fc.array(fc.constantFrom('grow', 'restart', 'both'), { minLength: 4, maxLength: 12 });
    const [steps] = fc.sample(plan, { numRuns: 1, seed: 7 });
    let front = serving;
    const changes = new Changes({
      baseUrl: 'http://service',
      apiKey: API_KEY,
      maxAttempts: 1,
      // The service comes back on another port.
      fetch: (url, init) => fetch(String(url).replace('http://service', front.url), init),
    });
    const stop = new AbortController();
    const found: Change[] = [];
    const following = (async () => {
      for await (const change of changes.follow({ since: 0 }, { signal: stop.signal })) found.push(change);
    })().catch(() => {});
    let total = 0;
    for (const step of steps) {
      const growing = step === 'restart' ? undefined : grow(300);
      if (step !== 'grow') {
        const old = front;
        front = await startServing({ databaseUrl: env.databaseUrl, limits: LIMITS });
        if (old !== serving) await old[Symbol.asyncDispose]();
        else serving.app.changes.end();
      }
      await growing;
      total += growing ? 300 : 0;
    }
    await eventually(() => found.length >= total, 'every change');
    stop.abort();
    await following;
    if (front !== serving) await front[Symbol.asyncDispose]();
    expect(numbers(found)).toEqual(upTo(total));
    expect(total).toBeGreaterThan(300);
  });

  // Heartbeats come each second: without any for two the connection is taken for lost, although nothing broke it.
  test('follows on when the network swallows what the service sends and no connection breaks', {
    tags: ['nightly'],
  }, async () => {
    await using proxy = await startStoreProxy(serving.url);
    const baseUrl = proxy.url.replace(/\/$/, '');
    let asked = 0;
    const changes = new Changes({
      ...{ baseUrl, apiKey: API_KEY, timeoutMs: 2000, stallTimeoutMs: 2000 },
      fetch: (url, init) => {
        asked++;
        return fetch(url, init);
      },
    });
    const stop = new AbortController();
    const found: Change[] = [];
    const following = (async () => {
      for await (const change of changes.follow({ since: 0 }, { signal: stop.signal })) found.push(change);
    })().catch(() => {});
    await grow(2);
    await eventually(() => found.length === 2, 'the first changes');
    proxy.mute();
    await grow(3);
    await eventually(() => asked > 1, 'the client connects again');
    proxy.unmute();
    await eventually(() => found.length >= 5, 'every change');
    stop.abort();
    await following;
    expect(numbers(found)).toEqual(upTo(5));
  });

  test('reads pages, and throws what the service refuses', async () => {
    await grow(3);
    const changes = new Changes({ baseUrl: serving.url, apiKey: API_KEY });
    expect(numbers((await changes.page({ since: 1, limit: 1 })).changes)).toEqual([2]);
    const refused = changes.follow({ since: 9 }).next();
    await expect(refused).rejects.toMatchObject({ name: 'ContractError', code: 'QUERY_CONTRACT_ERROR' });
  });
});

describe('the stream of changes inside', () => {
  const opened = async () => {
    const operator = await connectNats(env.natsOperatorUrl, 'test');
    const projector = await connectNats(env.natsProjectorUrl, 'test');
    await ensureStream(operator, CHANGES_STREAM, { maxBytes: 1 << 26 });
    const manager = await jetstreamManager(projector, { checkAPI: false });
    return {
      operator,
      needs: { client, manager, jetstream: jetstream(projector) },
      manager: await jetstreamManager(operator),
      async [Symbol.asyncDispose]() {
        await projector[Symbol.asyncDispose]();
        await operator[Symbol.asyncDispose]();
      },
    };
  };
  type Opened = Awaited<ReturnType<typeof opened>>;
  /** Another program writes a message; without a text, that of the change. */
  const forge = async ({ needs }: Opened, subject: string, text: string | undefined, lastSequence: number) => {
    const [body] = text === undefined ? await indexedLeaves(client, lastSequence, lastSequence + 1) : [];
    await needs.jetstream.publish(subject, text ?? changeText(lastSequence, body), { expect: { lastSequence } });
  };

  const drain = async ({ needs }: Opened) => {
    let written = 0;
    for (let some = -1; some !== 0; written += some) some = await publishChanges(needs);
    return written;
  };
  const stored = async ({ manager }: Opened) => {
    const { state } = await manager.streams.info(CHANGES_STREAM);
    const messages = [];
    for (let seq = 1; seq <= state.last_seq; seq++) {
      const { subject, data } = (await manager.streams.getMessage(CHANGES_STREAM, { seq }))!;
      messages.push([subject, JSON.parse(Buffer.from(data).toString()).number]);
    }
    return messages;
  };

  test('holds each change at the sequence of its number, whoever writes and whatever is lost', async () => {
    await using log = await opened();
    await grow(300);
    await write(leaf('quarantined', B, 'p'), { ...leaf('restored', null, 'x'), partition: null });
    await sequence(env);
    // Two writers at once: one is refused wherever both are.
    await Promise.all([publishChanges(log.needs), publishChanges(log.needs)]);
    await drain(log);
    const expected = [
      ...upTo(300).map((number) => [`changes.${A}.proved`, number]),
      [`changes.${B}.quarantined`, 301],
      ['changes.proof_log.restored', 302],
    ];
    expect(await stored(log)).toEqual(expected);
    expect(await drain(log)).toBe(0);
    // The server lost the stream with its disk.
    await log.manager.streams.delete(CHANGES_STREAM);
    await expect(publishChanges(log.needs)).rejects.toMatchObject({ code: 'LOG_UNAVAILABLE' });
    await ensureStream(log.operator, CHANGES_STREAM, { maxBytes: 1 << 26 });
    expect(await drain(log)).toBe(302);
    expect(await stored(log)).toEqual(expected);
  });

  test.each([
    [
      'before the change of its number',
      (log: Opened) => forge(log, `changes.${A}.proved`, '{"number":3}', 2),
      2,
      /its message 3 is not/,
    ],
    [
      'under another kind',
      (log: Opened) => forge(log, `changes.${A}.retracted`, undefined, 2),
      2,
      /its message 3 is not/,
    ],
    [
      'after all changes',
      (log: Opened) => forge(log, `changes.${A}.proved`, '{"number":301}', 300),
      300,
      /holds 301 changes, and the catalog 300/,
    ],
  ] as const)('that holds a forged message %s is found, and filled again', async (_, write, drained, found) => {
    await using log = await opened();
    await grow(drained);
    await drain(log);
    expect(await changeFault(log.needs)).toBeUndefined();
    await grow(300 - drained);
    await write(log);
    await drain(log).catch(() => {});
    expect(await changeFault(log.needs)).toMatch(found);
    const all = { ...log.needs, manager: log.manager, jetstream: jetstream(log.operator) };
    expect(await rewriteChanges(log.operator, all, { maxBytes: 1 << 26 })).toBe(300);
    expect(await changeFault(log.needs)).toBeUndefined();
    expect(await stored(log)).toEqual(upTo(300).map((number) => [`changes.${A}.proved`, number]));
  });

  test('refuses to go on when it holds more than the catalog', { tags: ['nightly'] }, async () => {
    await using log = await opened();
    await grow(2);
    await drain(log);
    await client.query('update proof_head set size = 1');
    await expect(publishChanges(log.needs)).rejects.toMatchObject({ code: 'LOG_REWOUND' });
  });
});
