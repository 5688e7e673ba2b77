/** The user's proxy reaches vendors, and nothing else does. */
import { createServer, type Server } from 'node:http';
import { Agent } from 'node:https';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { requestDocument } from '../../pipelines/sources/documents/http.ts';
import { proxyFor } from '../../pipelines/sources/documents/proxy.ts';

const listening = async (server: { listen: Server['listen'] } & Pick<Server, 'address' | 'once'>) => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return (server.address() as AddressInfo).port;
};
/** The text of a document. */
const fetched = (url: string) =>
  requestDocument(
    {
      url: new URL(url),
      timeoutMs: 5000,
      minBytesPerSecond: 1,
      maxBytes: 1000,
    } as Parameters<typeof requestDocument>[0],
    async ({ body }) => Buffer.concat(await Array.fromAsync(body)).toString(),
  );

describe('a fetch', () => {
  const asked: string[] = [];
  let proxy: Server;
  beforeEach(async () => {
    asked.length = 0;
    proxy = createServer((from, to) => {
      asked.push(`${from.method} ${from.url}`);
      if (from.url?.endsWith('/moved')) to.writeHead(302, { Location: 'http://10.0.0.1/inside' }).end();
      else to.end('by the proxy');
    });
    proxy.on('connect', (from, socket) => {
      asked.push(`CONNECT ${from.url}`);
      socket.end('HTTP/1.1 502 Bad Gateway\r\n\r\n');
    });
    const url = `http://127.0.0.1:${await listening(proxy)}`;
    vi.stubEnv('HTTP_PROXY', url);
    vi.stubEnv('HTTPS_PROXY', url);
  });
  afterEach(() => {
    vi.unstubAllEnvs();
    proxy.closeAllConnections();
    proxy.close();
  });

  test('of a vendor goes through HTTP_PROXY and HTTPS_PROXY', async () => {
    expect(await fetched('http://vendor.example/day.csv')).toBe('by the proxy');
    await expect(fetched('https://vendor.example/day.csv')).rejects.toThrow();
    expect(asked).toEqual(['GET http://vendor.example/day.csv', 'CONNECT vendor.example:443']);
  });

  test('is not led inside by a redirect that came through it', async () => {
    await expect(fetched('http://vendor.example/moved')).rejects.toThrow(/10[.]0[.]0[.]1, a private address/);
    expect(asked).toEqual(['GET http://vendor.example/moved']);
  });

  test('of this machine never does', async () => {
    const own = createServer((_, to) => void to.end('directly'));
    const port = await listening(own);
    for (const host of ['127.0.0.1', 'localhost']) expect(await fetched(`http://${host}:${port}/`)).toBe('directly');
    expect(asked).toEqual([]);
    own.closeAllConnections();
    own.close();
  });
});

test.each([
  ['', true],
  ['other.example', true],
  ['vendor.example', false],
  ['.example', false],
  ['*.example', false],
  ['other.example, vendor.example:443', false],
  ['vendor.example:8443', true],
  ['endor.example', true],
  ['*', false],
])('with NO_PROXY %j a vendor is asked through the proxy: %j', (no_proxy, isProxied) => {
  const env = { https_proxy: 'http://proxy.example:3128', no_proxy };
  expect(proxyFor(new URL('https://vendor.example/a'), Agent, env) !== undefined).toBe(isProxied);
});
