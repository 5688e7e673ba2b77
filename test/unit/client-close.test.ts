/** A stream of rows that is closed lets go of its connection, so that the service ends the read. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { HistoricalData } from '../../client/index.ts';

const TRADE = '{"trade_id":1}\n';

test.each([0, 1, 5])('closed after %i rows', async (taken) => {
  const gone = Promise.withResolvers<void>();
  // Answers without an end.
  const server = createServer((_, response) => {
    response.writeHead(200, { 'X-Svc-Schema': '[{"name":"trade_id","dtype":"int64"}]', 'X-Svc-Warnings': '[]' });
    response.write(TRADE.repeat(10));
    response.on('close', gone.resolve);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const data = new HistoricalData({ baseUrl: `http://127.0.0.1:${port}`, apiKey: 'any' });
  const { rows, close } = await data.get_exchange_a_spot_trades({ fields: ['trade_id'] }).stream();
  for (let row = 0; row < taken; row++) expect((await rows.next()).value).toEqual({ trade_id: 1 });
  await close();
  await close();
  expect((await rows.next()).done).toBe(true);
  await gone.promise;
  await new Promise((resolve) => server.close(resolve));
});
