/** Connections with bytes that are hardly requests; the service answers them or closes, and goes on serving others. */
import { readdirSync, readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { below, mutated, oneOf, type Random } from './mutate.ts';
import type { ServiceUnderTest } from './requests.ts';

export interface ConnectionsReport {
  readonly connections: number;
  /** By the first status of each, or how it ended. */
  readonly outcomes: Readonly<Record<string, number>>;
  readonly findings: readonly string[];
  readonly seconds: number;
  /** Of the process of the service, before and after. */
  readonly sockets: readonly [before: number, after: number];
  readonly rssMiB: readonly [before: number, after: number];
}

/** What is sent, in pieces, and how the connection goes on. */
interface Script {
  readonly pieces: readonly Buffer[];
  readonly pauseMs: number;
  /** The client says that it sends nothing more, though it still reads. */
  readonly ends: boolean;
  /** The client is gone at once. */
  readonly resets: boolean;
}

const PARALLEL = 24;
/** After it, the client of a connection that is kept open leaves. */
const LISTENED_MS = 350;
const MAX_FINDINGS = 20;
const GROWTH_MIB = 200;

const TARGETS = [
  '/healthz',
  '/v1/datasets',
  '/v1/raw/query',
  '/',
  '/openapi.json',
  '/metrics',
  '/docs',
  '/v1/changes',
  '/v1/proofs/checkpoint',
  '/page/main.js',
];
const MORE_TARGETS = [
  '*',
  'http://elsewhere.example/healthz',
  'https://x:99999/',
  '//',
  '/%',
  '/%00',
  '/%2e%2e/%2e%2e/etc/passwd',
  '/..%2f..',
  '/\xff',
  '/?',
  '/#x',
];
const METHODS = [
  'GET',
  'POST',
  'HEAD',
  'PUT',
  'DELETE',
  'OPTIONS',
  'PATCH',
  'TRACE',
  'CONNECT',
  'PROPFIND',
  'get',
  'G\0T',
  '',
  'X'.repeat(200),
  'GET\t',
];
const VERSIONS = [
  'HTTP/1.1',
  'HTTP/1.0',
  'HTTP/0.9',
  'HTTP/2.0',
  'HTTP/1.1 ',
  'http/1.1',
  'HTTP/9.9',
  '',
  'HTTP/1.1\0',
];
const ENDS = ['\r\n', '\r\n', '\r\n', '\r\n', '\n', '\r', '\n\r'];

const HEADERS: readonly string[] = [
  ...[
    'Host: a',
    'Host: a',
    'Host: b\r\nHost: c',
    'Host:',
    'Host: \0',
    'Content-Length: 5',
    'Content-Length: 5\r\nContent-Length: 6',
  ],
  ...[
    'Content-Length: 5, 5',
    'Content-Length: -1',
    'Content-Length: 1e3',
    'Content-Length: 99999999999999999999',
    'Content-Length: +5',
    'Content-Length: 0x5',
  ],
  ...[
    'Transfer-Encoding: chunked',
    'Transfer-Encoding: chunked\r\nContent-Length: 4',
    'Transfer-Encoding: gzip, chunked',
    'Transfer-Encoding: chunked, identity',
  ],
  ...[
    'Transfer-Encoding : chunked',
    'Transfer-Encoding: \x0bchunked',
    'Expect: 100-continue',
    'Expect: x',
    'Connection: close',
    'Connection: keep-alive, Upgrade',
  ],
  ...[
    'Upgrade: websocket\r\nConnection: Upgrade',
    'Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nConnection: Upgrade, HTTP2-Settings',
    'X-Folded: a\r\n b\r\n\tc',
  ],
  ...[
    'X: \0',
    'X\0: y',
    ': empty',
    'no colon',
    'X y: z',
    `X: ${'y'.repeat(20_000)}`,
    `X: ${'y'.repeat(80_000)}`,
    `${'x'.repeat(5000)}: y`,
    'X: \xff\xfe',
    'X: \r',
  ],
  ...[
    'Range: bytes=0-',
    'Range: bytes=99999999999999999999-',
    'Range: x',
    'If-Range: "',
    'If-None-Match: *, "',
    'If-Modified-Since: never',
    'Last-Event-ID: -1',
    'Last-Event-ID: 1e9',
  ],
  ...[
    'Accept: */*;q=9',
    `Accept: ${'a/b,'.repeat(2000)}`,
    'Accept-Encoding: zstd, gzip, x;q=2',
    'Accept: text/event-stream',
    'Content-Type: \x80',
    'Origin: null',
    'Cookie: a',
  ],
  ...[
    'X-Request-Id: ../..',
    'X-API-Key: \x80',
    'Authorization: Bearer',
    'Authorization: Basic \xff',
    'Content-Encoding: gzip',
    'Content-Encoding: br',
    'Trailer: X',
    'TE: trailers',
    'Proxy-Connection: close',
  ],
];
const BODIES = [
  '',
  'hello',
  '{}',
  '5\r\nhello\r\n0\r\n\r\n',
  '5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n',
  'g\r\n',
  'ffffffffffffffff\r\nx',
  '-5\r\nhello\r\n',
  '5\r\nhelloX0\r\n\r\n',
  '0\r\n\r\n',
  '{"sources":["x"]}',
  '\xff\xfe{\0}\0',
  '[[[[',
  '\x1f\x8b\x08\0\0\0\0\0\0\x03',
];

const CONNECT_CRLF = '\r\n';

function requestText(random: Random, key: string): string {
  const method = random() < 0.6 ? oneOf(random, METHODS.slice(0, 3)) : oneOf(random, METHODS);
  const target =
    random() < 0.6
      ? oneOf(random, TARGETS)
      : random() < 0.9
        ? oneOf(random, MORE_TARGETS)
        : `/${'u'.repeat(oneOf(random, [7000, 20_000, 90_000]))}`;
  const version = random() < 0.8 ? 'HTTP/1.1' : oneOf(random, VERSIONS);
  const headers = Array.from({ length: below(random, random() < 0.02 ? 1500 : 4) }, () => oneOf(random, HEADERS));
  if (random() < 0.8) headers.push('Host: localhost');
  if (random() < 0.5) headers.push(`X-API-Key: ${key}`);
  const end = random() < 0.9 ? CONNECT_CRLF : oneOf(random, ENDS);
  const body = random() < 0.6 ? oneOf(random, BODIES) : '';
  if (random() < 0.3) headers.push(`Content-Length: ${body.length + oneOf(random, [0, 0, 0, -1, 1, 1000])}`);
  return `${method} ${target} ${version}${end}${headers.map((line) => line + end).join('')}${random() < 0.95 ? end : ''}${body}`;
}

function scriptOf(random: Random, key: string): Script {
  const requests = Array.from({ length: random() < 0.7 ? 1 : 1 + below(random, 12) }, () => requestText(random, key));
  if (random() < 0.05)
    requests.unshift(
      oneOf(random, [
        '\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03',
        'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
        'SSH-2.0-x\r\n',
        '\r\n'.repeat(50),
        '\0'.repeat(100),
      ]),
    );
  const whole = Buffer.from(requests.join(''), 'latin1');
  const bytes =
    random() < 0.3
      ? mutated(whole, random, {
          form: 'text',
          others: [whole],
          words: ['\r\n\r\n', ' HTTP/1.1\r\n', 'Content-Length: ', '\0'],
        })
      : whole;
  const cuts = random() < 0.3 ? 1 + below(random, 5) : 0;
  const places = [
    0,
    ...Array.from({ length: cuts }, () => below(random, bytes.length + 1)).sort((a, b) => a - b),
    bytes.length,
  ];
  return {
    pieces: places.slice(1).map((to, index) => bytes.subarray(places[index], to)),
    pauseMs: random() < 0.2 ? below(random, 40) : 0,
    ends: random() < 0.4,
    resets: random() < 0.05,
  };
}

const socketsOf = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
const rssOf = (pid: number): number =>
  Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;

const INTERNALS = /\bat \S+ \(|\.ts:\d|node_modules|\/(?:tmp|work|home)\/|postgres:\/\/|nats:\/\//;

/** @param pid of the process that serves */
export async function fuzzConnections(
  service: ServiceUnderTest & { readonly pid: number },
  options: {
    readonly seed: number;
    readonly count: number;
    readonly only?: number;
    readonly note?: (line: string) => void;
  },
): Promise<ConnectionsReport> {
  const { seed, count, only, note } = options;
  const { hostname, port } = new URL(service.url);
  const outcomes = new Map<string, number>();
  const findings = new Map<string, string>();
  const find = (number: number, what: string, script: Script, answer = '') => {
    const kind = what.replaceAll(/\d+/g, '0').slice(0, 80);
    if (findings.has(kind)) return;
    const sent = JSON.stringify(Buffer.concat(script.pieces).toString('latin1').slice(0, 1500));
    const line = `FOUND  seed ${seed}, connection ${number}: ${what}\n  npm run fuzz -- http --seed ${seed} --only ${number}\n  ${sent}\n  ${answer.slice(0, 600)}`;
    findings.set(kind, line);
    note?.(line);
  };
  const scriptAt = (number: number) =>
    scriptOf(seededRandom((Math.imul(seed, 0x9e3779b1) ^ Math.imul(number + 1, 0xc2b2ae35)) >>> 0), service.key);

  // The first requests make what stays: compiled code, pooled connections.
  for (let index = 0; index < 50; index++) await isServed(hostname, Number(port));
  const before = [socketsOf(service.pid), rssOf(service.pid)] as const;
  const startedAt = performance.now();
  let next = only ?? 0;
  const last = only === undefined ? count : only + 1;
  let done = 0;
  const work = async () => {
    while (next < last && findings.size < MAX_FINDINGS) {
      const number = next++;
      const script = scriptAt(number);
      const { text, ended } = await converse(connect(Number(port), hostname), script);
      done++;
      const statuses = [...text.matchAll(/^HTTP\/1\.1 (\d{3})/gm)].map(([, status]) => Number(status));
      const first = statuses.length > 0 ? String(statuses[0]) : ended;
      outcomes.set(first, (outcomes.get(first) ?? 0) + 1);
      if (text !== '' && !text.startsWith('HTTP/1.')) find(number, 'an answer that is none', script, text);
      if (statuses.includes(500)) find(number, '500', script, text);
      const leak = INTERNALS.exec(text)?.[0] ?? service.secrets.find((secret) => text.includes(secret));
      if (leak !== undefined) find(number, `shows internals: ${leak}`, script, text);
      if (number % 40 === 0 && !(await isServed(hostname, Number(port)))) find(number, 'others are not served', script);
      if (done % 1000 === 0) note?.(`${done} connections`);
    }
  };
  await Promise.all(Array.from({ length: only === undefined ? PARALLEL : 1 }, work));
  const after = await settled(service.pid, before[0]);
  const last0 = scriptAt(0);
  if (after[0] > before[0] + 5) find(count, `${after[0] - before[0]} sockets are left open`, last0);
  if (after[1] > before[1] + GROWTH_MIB)
    find(count, `the process grew by ${Math.round(after[1] - before[1])} MiB`, last0);
  if (!(await isServed(hostname, Number(port)))) find(count, 'nothing is served after the last connection', last0);
  return {
    connections: done,
    outcomes: Object.fromEntries([...outcomes].sort(([a], [b]) => (a < b ? -1 : 1))),
    findings: [...findings.values()],
    seconds: (performance.now() - startedAt) / 1000,
    sockets: [before[0], after[0]],
    rssMiB: [Math.round(before[1]), Math.round(after[1])],
  };
}

/** Once the sockets of clients that left are closed: the service reads on for two seconds after a refusal. */
async function settled(pid: number, wanted: number): Promise<readonly [number, number]> {
  for (let turn = 0; turn < 100 && socketsOf(pid) > wanted; turn++) await delay(200);
  return [socketsOf(pid), rssOf(pid)];
}

async function converse(
  socket: Socket,
  { pieces, pauseMs, ends, resets }: Script,
): Promise<{ readonly text: string; readonly ended: string }> {
  const chunks: Buffer[] = [];
  const { promise, resolve } = Promise.withResolvers<string>();
  socket.on('data', (chunk) => chunks.push(chunk));
  socket.on('end', () => resolve('closed'));
  socket.on('close', () => resolve('closed'));
  socket.on('error', () => resolve('reset'));
  const send = async () => {
    for (const piece of pieces) {
      if (socket.destroyed || !socket.writable) break;
      socket.write(piece);
      if (pauseMs > 0) await delay(pauseMs);
    }
    if (ends && socket.writable) socket.end();
    if (resets) socket.resetAndDestroy();
  };
  await send();
  const ended = await Promise.race([promise, delay(LISTENED_MS, 'kept open')]);
  socket.destroy();
  return { text: Buffer.concat(chunks).toString('latin1'), ended };
}

async function isServed(host: string, port: number): Promise<boolean> {
  const socket = connect(port, host);
  try {
    socket.write('GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n');
    const timer = setTimeout(() => socket.destroy(), 20_000);
    const text = Buffer.concat(await socket.toArray()).toString();
    clearTimeout(timer);
    return text.startsWith('HTTP/1.1 200');
  } catch {
    return false;
  }
}
