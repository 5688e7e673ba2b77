import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { ConnectionError } from '../../client/errors.ts';
import { HistoricalData } from '../../client/index.ts';

async function listening(answer: RequestListener) {
  const server = createServer(answer);
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, [Symbol.dispose]: close };
}

test.each([301, 302, 303, 307, 308])('a redirect with %i sent the keys to another host', async (status) => {
  const keys: unknown[] = [];
  using other = await listening(({ headers }, response) => {
    keys.push(headers['x-api-key'], headers['x-backend-token']);
    response.end('{"rows":[],"schema":[]}');
  });
  let asked = 0;
  using service = await listening((_, response) => {
    asked++;
    response.writeHead(status, { Location: `${other.url}/there` }).end();
  });
  const data = new HistoricalData({ baseUrl: service.url, apiKey: 'secret', backendToken: 'password' });
  const error = await Promise.resolve(data.get_exchange_a_spot_trades({ n_latest_rows: 1 })).catch(
    (thrown: unknown) => thrown,
  );
  expect(keys).toEqual([]);
  expect(error).toBeInstanceOf(ConnectionError);
  expect((error as Error).message).toContain(`redirects to ${other.url}/there`);
  expect(asked).toBe(1);
});
