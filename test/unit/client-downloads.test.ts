import { expect, test } from 'vitest';
import { HistoricalDataError } from '../../client/errors.ts';
import { type ArtifactFile, Exports } from '../../client/exports.ts';

const FILE: ArtifactFile = {
  name: 'rows.parquet',
  uri: '/v1/raw/export/1/artifact',
  day: null,
  row_count: 1,
  bytes: 1000,
  checksum_sha256: 'a'.repeat(64),
};

// It ended as if all bytes had arrived, without a request, and a longer file of another export stayed.
test('a download that goes on behind the end of its file fails: what was there is another file', async () => {
  // Nobody answers there: neither download needs a request.
  const exports = new Exports({ baseUrl: 'http://127.0.0.1:1', apiKey: 'k', maxAttempts: 1 });
  const next = (from: number) => exports.download(FILE, { from }).next();
  expect(await next(1000)).toEqual({ done: true, value: undefined });
  const error = await next(1001).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(HistoricalDataError);
  expect((error as Error).message).toContain('has 1000 bytes and cannot be continued from byte 1001');
});

test('a filter of exports that is undefined was sent as the text undefined, which the service refuses', async () => {
  const asked: string[] = [];
  const answers = [
    { exports: [1], next_cursor: 'next' },
    { exports: [2], next_cursor: null },
  ];
  const exports = new Exports({
    baseUrl: 'http://127.0.0.1:1',
    apiKey: 'k',
    fetch: async (url) => Response.json(answers[asked.push(new URL(String(url)).search) - 1]),
  });
  const found: unknown[] = [];
  for await (const one of exports.list({ dataset: undefined, status: 'succeeded' })) found.push(one);
  expect([found, asked]).toEqual([
    [1, 2],
    ['?status=succeeded', '?status=succeeded&cursor=next'],
  ]);
});

test.each([
  ['another range than was asked for', 'bytes 0-999/1000', 500],
  ['more bytes than the file has', 'bytes 500-1099/1000', 600],
])('a proxy that sends %s under the tag of the file spoilt it without a word', async (_, range, bytes) => {
  const headers = { 'Content-Range': range, ETag: `"${FILE.checksum_sha256}"` };
  const answer = async () => new Response(new Uint8Array(bytes), { status: 206, headers });
  const exports = new Exports({ baseUrl: 'http://127.0.0.1:1', apiKey: 'k', maxAttempts: 1, fetch: answer });
  const download = async () => {
    let size = 500;
    for await (const part of exports.download(FILE, { from: size })) size += part.length;
    return size;
  };
  await expect(download()).rejects.toThrow('a proxy does not support ranges');
});
