/** Exchange B's link endpoint: what it is asked, what is believed of its answers, and how seldom it is called. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { rateLimitFolder, waitForRateLimit } from '../../pipelines/sources/documents/http.ts';
import { writeDay } from '../../pipelines/sources/exchange_b/sample.ts';
import { exchangeBSource } from '../../pipelines/sources/exchange_b/source.ts';
import { exchangeBSpotTrades as dataset } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import type { Json } from '../support/command.ts';
import { faultOf } from '../support/faults.ts';
import { dayNames, System } from '../support/pipeline.ts';
import { VENDOR_B } from '../support/vendors.ts';

const name = (day: string) => `BTC-USDT-trades-${day}`;

describe('the link endpoint', () => {
  const DAY = '2024-06-01';
  let server: Server;
  let base: string;
  let directory: string;
  let zip: Buffer;
  const calls: { at: number; url: URL; body: Json; method: string | undefined }[] = [];
  /** What the endpoint answers next; the last one stays. */
  let answers: ((response: ServerResponse) => void)[] = [];
  let md5: string | undefined;
  const json = (value: unknown) => (response: ServerResponse) => response.end(JSON.stringify(value));
  const file = (more: object = {}) => ({
    filename: `${name(DAY)}.zip`,
    url: `${base}zip/${name(DAY)}.zip?sign=x`,
    ...more,
  });
  const link = (...groups: object[]) => json({ code: '0', data: { details: [{ groupDetails: groups }] } });

  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'exchange-b-'));
    await writeDay({ directory, day: DAY, rows: 2000, seed: 3 });
    zip = await readFile(join(directory, VENDOR_B.path(DAY)));
    server = createServer(async (request: IncomingMessage, response) => {
      if (request.url?.startsWith('/zip/')) {
        response.writeHead(200, { 'content-length': zip.length, ...(md5 === undefined ? {} : { 'content-md5': md5 }) });
        response.end(zip);
        return;
      }
      const pieces: Buffer[] = [];
      for await (const piece of request) pieces.push(piece as Buffer);
      const sent = Buffer.concat(pieces).toString();
      const url = new URL(request.url!, base);
      calls.push({ at: Date.now(), url, body: sent && JSON.parse(sent), method: request.method });
      (answers.length > 1 ? answers.shift()! : answers[0])(response);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    base = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  });
  afterAll(async () => {
    server.closeAllConnections();
    server.close();
    await rm(directory, { recursive: true, force: true });
  });

  const INDEX = 'api/v5/public/market-data-history';
  const source = (path: string) =>
    exchangeBSource({
      location: new URL(`${base}${path}`),
      resolve: 'link',
      instrument: 'BTC-USDT',
      spoolDir: join(directory, 'spool'),
      timeoutMs: 60_000,
      maxAttempts: 2,
      backoff: { firstMs: 1 },
      linkSpacingMs: 1,
      maxDocumentBytes: 1e9,
      maxUnpackedBytes: 1e9,
    });
  const [request] = exchangeBSource({} as never).plan(DAY, DAY, 'daily');
  const open = (path = 'link') => source(path).open(request);

  test('is asked by POST for the day and believed when it names the file; an md5 is checked where stated', async () => {
    answers = [link(file())];
    md5 = createHash('md5').update(zip).digest('base64');
    await using stated = await open();
    expect(stated.facts).toMatchObject({ name: `${name(DAY)}.zip`, bytes: zip.length, content_md5: md5 });
    const begin = String(Date.parse('2024-05-31T16:00:00Z'));
    expect(calls.at(-1)).toMatchObject({
      method: 'POST',
      body: {
        module: '1',
        instType: 'SPOT',
        instQueryParam: { instIdList: ['BTC-USDT'] },
        dateQuery: { dateAggrType: 'daily', begin, end: begin },
      },
    });
    md5 = undefined;
    await using silent = await open();
    expect(silent.facts.content_md5).toBeUndefined();
  });

  describe('as the public index', () => {
    /** What the index answers: one entry for each day, each with a list of groups of files. */
    const index = (...days: object[][]) =>
      json({ code: '0', msg: '', data: days.map((files) => ({ details: [{ groupDetails: files }] })) });
    const other = (day: string) => file({ filename: `${name(day)}.zip`, url: `${base}zip/other.zip` });

    test.each([INDEX, `${INDEX}/`, `mirror/${INDEX}?module=2&begin=1`])('is asked by GET: %s', async (path) => {
      answers = [index([file()])];
      await using document = await open(path);
      expect(document.facts).toMatchObject({ name: `${name(DAY)}.zip`, bytes: zip.length });
      const { method, body, url } = calls.at(-1)!;
      expect([method, body, url.pathname]).toEqual(['GET', '', new URL(path, base).pathname]);
      expect(Object.fromEntries(url.searchParams)).toEqual({
        module: '1',
        instType: 'SPOT',
        instIdList: 'BTC-USDT',
        dateAggrType: 'daily',
        begin: String(Date.parse('2024-05-31T16:00:00Z')),
        end: String(Date.parse('2024-06-01T16:00:00Z') - 1),
      });
    });

    test.each<[string, () => object[][]]>([
      ['days around it', () => [[other('2024-05-31')], [file()], [other('2024-06-02')]]],
      ['a list with them', () => [[other('2024-05-31'), file()]]],
      ['a day without files', () => [[], [file()]]],
    ])('is believed for the one file of the name among %s', async (_, days) => {
      answers = [index(...days())];
      await using document = await open(INDEX);
      expect(document.facts.bytes).toBe(zip.length);
    });

    test.each<[string, () => (response: ServerResponse) => void, RegExp]>([
      ['the object of the other form', () => link(file()), /no list/],
      ['null', () => json({ code: '0', data: null }), /no list/],
      ['entries that are none', () => json({ code: '0', data: [{ details: [null] }] }), /no list/],
      ['an error code', () => json({ code: '50011', data: [] }), /code "50011"/],
      ['nothing', () => json({ code: '0', data: [] }), /0 files/],
      ['the file twice', () => index([file()], [file()]), /2 files/],
      ['another day only', () => index([other('2024-06-02')]), /named the file/],
      ['a local path', () => index([file({ url: 'file:///etc/passwd' })]), /file:/],
    ])('answering with %s: refused', async (_, answer, message) => {
      answers = [answer()];
      expect((await faultOf(open(INDEX), 'SOURCE_LAYOUT_UNKNOWN')).message).toMatch(message);
    });
  });

  test.each(['AAAAAAAAAAAAAAAAAAAAAA==', 'nonsense'])(
    'whose file has another md5 than stated (%s): refused',
    async (wrong) => {
      answers = [link(file())];
      md5 = wrong;
      const fault = await faultOf(open(), 'SOURCE_CHECKSUM_MISMATCH');
      expect(fault.details).toMatchObject({ document: `${name(DAY)}.zip`, expected: wrong });
      md5 = undefined;
    },
  );

  test('answering 429 is asked again after the time it names; 429 for ever fails', async () => {
    const limited = (response: ServerResponse) => response.writeHead(429, { 'retry-after': '1' }).end();
    answers = [limited, link(file())];
    const before = calls.length;
    await using document = await open();
    expect(document.facts.bytes).toBe(zip.length);
    expect(calls[before + 1].at - calls[before].at).toBeGreaterThanOrEqual(900);
    answers = [(response) => response.writeHead(429).end()];
    expect((await faultOf(open(), 'SOURCE_UNREACHABLE')).message).toMatch(/429.*after 2 attempts/);
  });

  test.each<[string, () => (response: ServerResponse) => void, RegExp]>([
    ['text that is not JSON', () => (response) => response.end('<html>'), /not JSON/],
    ['null', () => json(null), /code/],
    ['an error code', () => json({ code: '51000', data: null }), /code "51000"/],
    ['no files', () => link(), /0 files/],
    ['two files', () => link(file(), file()), /2 files/],
    ['no list', () => json({ code: '0', data: {} }), /no list/],
    ["another file's name", () => link(file({ filename: `${name('2024-06-02')}.zip` })), /named the file/],
    ['no address', () => link(file({ url: 'x' })), /no address/],
    ['a local path', () => link(file({ url: 'file:///etc/passwd' })), /file:/],
    ['a megabyte', () => json({ code: '0', more: 'x'.repeat(1 << 20) }), /too long an answer/],
  ])('answering with %s: refused', async (_, answer, message) => {
    answers = [answer()];
    const fault = await faultOf(open(), 'SOURCE_LAYOUT_UNKNOWN');
    expect(fault.message).toMatch(message);
    expect(fault.details).toMatchObject({ document: `${name(DAY)}.zip` });
  });

  test('gives every caller a slot of its own, a spacing after the one before', async () => {
    const spacingMs = 20;
    const paced = join(directory, 'paced');
    const startedAt = Date.now();
    const times = await Promise.all(
      Array.from({ length: 8 }, async () => {
        await waitForRateLimit({ name: 'any', spacingMs, directory: paced });
        return Date.now();
      }),
    );
    for (const [index, at] of times.toSorted((a, b) => a - b).entries()) {
      // A timer may fire some milliseconds early.
      expect(at - startedAt).toBeGreaterThanOrEqual((index - 0.5) * spacingMs);
    }
  });

  test('is called at most once in 750 ms, by all commands of the host together', { tags: ['nightly'] }, async () => {
    const [one, other] = await Promise.all([System.create(), System.create()]);
    await using systems = new AsyncDisposableStack();
    for (const system of [one, other]) systems.use(system);
    // Two calls of one command, and one of another.
    const days = dayNames(DAY, 2);
    // Asks for no zip: what is paced is the asking. Every call is told that there is no such file.
    answers = [json({ code: '0', data: { details: [] } })];
    const before = calls.length;
    const startedAt = Date.now();
    const run = (system: System, of: readonly string[]) =>
      system.run(['backfill', dataset.key, '--from', of[0], '--to', of[of.length - 1]], {
        SVC_EXCHANGE_B_LINK_URL: `${base}paced`,
      });
    const ended = await Promise.all([run(one, days), run(other, days.slice(0, 1))]);
    for (const [index, { exit, json: report }] of ended.entries()) {
      const codes = report.units.map(({ code }: Json) => code);
      expect([exit, codes]).toEqual([1, days.slice(index).map(() => 'SOURCE_LAYOUT_UNKNOWN')]);
    }
    const times = calls.slice(before).map(({ at }) => at);
    // Each call has a slot of 750 ms and 50 of tolerance that all of the host know of; one that wakes up late takes another.
    const slots = (await readdir(rateLimitFolder(`${base}paced`))).map((slot) => Number(slot) * 800).sort();
    expect(slots.length).toBeGreaterThanOrEqual(3);
    expect(slots[0]).toBeGreaterThanOrEqual(startedAt);
    // On a busy machine any call may arrive late, and the next close behind it. None is early.
    for (const [index, at] of times.entries()) expect(at).toBeGreaterThanOrEqual(slots[index]);
    expect(times).toHaveLength(3);
  });
});
