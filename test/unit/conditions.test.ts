/** Conditional requests for a file, by the order that RFC 9110, 13.2.2 gives their conditions. */

import { once } from 'node:events';
import { open } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, expect, test } from 'vitest';
import type { Exchange } from '../../serving/http/routes.ts';
import { sendFile, wantedOf } from '../../serving/http/send-file.ts';

const ETAG = '"abc"';
const MODIFIED = 'Wed, 01 May 2024 12:00:00 GMT';
const BEFORE = 'Wed, 01 May 2024 11:59:59 GMT';
const AFTER = 'Wed, 01 May 2024 12:00:01 GMT';
/** The file changed half a second after the time that HTTP can tell. */
const STATE = { etag: ETAG, bytes: 10, modifiedMs: Date.parse(MODIFIED) + 500 };

const kindOf = (headers: IncomingHttpHeaders) => wantedOf(headers, STATE).kind;

describe('If-Match was ignored: a client that asked for one file could get another', () => {
  test.each([
    [{ 'if-match': ETAG }, 'whole'],
    [{ 'if-match': '*' }, 'whole'],
    [{ 'if-match': `"x", ${ETAG}` }, 'whole'],
    [{ 'if-match': '"x"' }, 'precondition_failed'],
    [{ 'if-match': '"x", "y"' }, 'precondition_failed'],
    // A weak tag is no promise about bytes.
    [{ 'if-match': `W/${ETAG}` }, 'precondition_failed'],
    [{ 'if-match': '' }, 'precondition_failed'],
    [{ 'if-unmodified-since': MODIFIED }, 'whole'],
    [{ 'if-unmodified-since': AFTER }, 'whole'],
    [{ 'if-unmodified-since': BEFORE }, 'precondition_failed'],
    // What is no date is no condition.
    [{ 'if-unmodified-since': 'yesterday' }, 'whole'],
    // If-Match is asked first, and alone.
    [{ 'if-match': ETAG, 'if-unmodified-since': BEFORE }, 'whole'],
    [{ 'if-match': '"x"', 'if-none-match': ETAG }, 'precondition_failed'],
    [{ 'if-match': ETAG, 'if-none-match': ETAG }, 'not_modified'],
    [{ 'if-match': ETAG, range: 'bytes=0-4' }, 'part'],
    [{ 'if-match': '"x"', range: 'bytes=0-4' }, 'precondition_failed'],
    [{ 'if-match': '"x"', range: 'bytes=99-' }, 'precondition_failed'],
  ])('%o: %s', (headers, kind) => expect(kindOf(headers)).toBe(kind));
});

test('what a client has already is not sent again, whatever the form of its tag', () => {
  for (const tags of [ETAG, `W/${ETAG}`, `"x", ${ETAG}`, '*'])
    expect(kindOf({ 'if-none-match': tags })).toBe('not_modified');
  expect(kindOf({ 'if-none-match': '"x"', 'if-modified-since': AFTER })).toBe('whole');
  expect(kindOf({ 'if-modified-since': MODIFIED })).toBe('not_modified');
});

test('HEAD was 206 with Range, which is defined for GET alone; 304 lacked the Cache-Control of its 200', async () => {
  await using handle = await open(new URL(import.meta.url));
  const signal = new AbortController().signal;
  const sent: number[] = [];
  const server = createServer((request, response) => {
    const headers = { 'Cache-Control': 'private, no-cache' };
    const file = { ...STATE, handle, headers, stallTimeoutMs: 10_000, onSent: (bytes: number) => sent.push(bytes) };
    void sendFile({ request, response, signal } as Exchange, file);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const ask = async (method: string, headers: Record<string, string>) => {
    const answer = await fetch(url, { method, headers: { Connection: 'close', ...headers } });
    await answer.arrayBuffer();
    const of = (name: string) => answer.headers.get(name);
    return [answer.status, of('content-length'), of('content-range'), of('cache-control')];
  };
  const cache = 'private, no-cache';
  expect(await ask('GET', { Range: 'bytes=2-4' })).toEqual([206, '3', 'bytes 2-4/10', cache]);
  for (const range of ['bytes=2-4', 'bytes=99-']) {
    expect(await ask('HEAD', { Range: range, 'If-Range': ETAG })).toEqual([200, '10', null, cache]);
  }
  for (const method of ['GET', 'HEAD']) {
    expect(await ask(method, { 'If-None-Match': ETAG })).toEqual([304, null, null, cache]);
  }
  // Of the file's bytes only the first request was sent any; it alone is a download.
  expect(sent).toEqual([3]);
  server.close();
});
