/** A vendor that leads to addresses inside, by redirects, by links and by names that resolve there. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type AddressKind, checkedLookup, kindOfAddress } from '../../pipelines/sources/documents/addresses.ts';
import { requestDocument } from '../../pipelines/sources/documents/http.ts';
import { faultOf } from '../support/faults.ts';

const KINDS: Readonly<Record<AddressKind, readonly string[]>> = {
  loopback: ['127.0.0.1', '127.255.255.254', '0.0.0.0', '::1', '::', '[::1]', '::ffff:127.0.0.1', '::ffff:7f00:1'],
  private: ['10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.1.1', '100.64.0.1', 'fd00::1', 'fc00::1', 'fec0::1'],
  'link-local': ['169.254.169.254', 'fe80::1', 'fe80::1%eth0', '::ffff:169.254.169.254', '64:ff9b::a9fe:a9fe'],
  reserved: ['224.0.0.1', '255.255.255.255', '198.18.0.1', '2001:db8::1', 'ff02::1', '2001:0:1::1', 'no address'],
  public: [
    '8.8.8.8',
    '172.32.0.1',
    '100.128.0.1',
    '2606:4700::1111',
    '::ffff:8.8.8.8',
    '64:ff9b::808:808',
    '2002:808:808::1',
  ],
};
test.each(Object.entries(KINDS))('%s addresses', (kind, addresses) => {
  expect(addresses.map((address) => [address, kindOfAddress(address)])).toEqual(addresses.map((one) => [one, kind]));
});
test('an address in 6to4 or a compatible one is what it embeds', () => {
  expect(['2002:7f00:1::', '2002:a00:1::', '::10.0.0.1'].map(kindOfAddress)).toEqual([
    'loopback',
    'private',
    'private',
  ]);
});

describe('fetching', () => {
  let server: Server;
  let port: number;
  let asked: string[] = [];
  beforeAll(async () => {
    server = createServer((request, response) => {
      asked.push(request.url!);
      const to = new URL(request.url!, 'http://vendor').searchParams.get('to');
      if (to === null) response.end('inside');
      else response.writeHead(302, { location: to }).end();
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    port = (server.address() as AddressInfo).port;
  });
  afterAll(() => {
    server.close();
    server.closeAllConnections();
  });
  const fetched = async (url: string, linkedFrom?: string) => {
    asked = [];
    const limits = { timeoutMs: 2000, minBytesPerSecond: 1, maxBytes: 1000, limitName: 'test' };
    const linked = linkedFrom === undefined ? {} : { linkedFrom: { address: linkedFrom } };
    return await requestDocument({ url: new URL(url), ...limits, ...linked }, async ({ body, base }) => {
      const pieces: Buffer[] = [];
      for await (const piece of body) pieces.push(piece);
      return [Buffer.concat(pieces).toString(), base.address];
    });
  };
  const HERE = [
    '127.0.0.1',
    '2130706433',
    '0x7f000001',
    '0177.0.0.1',
    '127.1',
    '[::ffff:127.0.0.1]',
    'localhost',
    '0.0.0.0',
  ];

  test.each(HERE)('a link of a vendor in the internet to %s: no request', async (host) => {
    for (const base of ['8.8.8.8', '2606:4700::1111', '10.0.0.1', '169.254.1.1']) {
      const fault = await faultOf(fetched(`http://${host}:${port}/`, base), 'SOURCE_UNREACHABLE');
      expect(fault.message).toContain('a loopback address');
    }
    expect(asked).toEqual([]);
  });

  test.each(HERE.slice(0, 5))('a link of a vendor at a loopback address to %s: followed', async (host) => {
    expect(await fetched(`http://${host}:${port}/`, '127.0.0.1')).toEqual(['inside', '127.0.0.1']);
  });

  test.each([
    ['http://10.255.255.1/', 'private'],
    ['http://169.254.169.254/latest/meta-data', 'link-local'],
    ['http://[fd00::1]/', 'private'],
    ['http://[fe80::1]/', 'link-local'],
    ['http://[::ffff:192.168.0.1]/', 'private'],
  ])('a redirect of a vendor at a loopback address to %s: refused', async (to, kind) => {
    const fault = await faultOf(
      fetched(`http://127.0.0.1:${port}/?to=${encodeURIComponent(to)}`),
      'SOURCE_UNREACHABLE',
    );
    expect(fault.message).toContain(`a ${kind} address`);
    expect(asked).toHaveLength(1);
  });

  test('a redirect stays below the base that the link came from', async () => {
    const url = `http://127.0.0.1:${port}/?to=${encodeURIComponent(`http://localhost:${port}/`)}`;
    expect(await fetched(url)).toEqual(['inside', '127.0.0.1']);
    await faultOf(fetched(url, '8.8.8.8'), 'SOURCE_UNREACHABLE');
    expect(asked).toEqual([]);
  });

  test('a name is refused when any of its addresses is inside, at the time of the connection', async () => {
    const answers = [
      [{ address: '8.8.8.8', family: 4 }],
      [
        { address: '8.8.8.8', family: 4 },
        { address: '::ffff:10.0.0.1', family: 6 },
      ],
    ];
    const lookup = checkedLookup('1.1.1.1', (_host, _options, done) => done(null, answers.shift()!));
    const found = () =>
      new Promise((resolve) => lookup('vendor.example', { all: true }, (error) => resolve(error?.message)));
    expect(await found()).toBeUndefined();
    expect(await found()).toContain('leads to vendor.example, which is ::ffff:10.0.0.1, a private address');
  });
});
