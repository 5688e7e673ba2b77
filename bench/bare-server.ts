/**
 * The least server that answers with the rows of a statement over HTTP: Node's, `pg`, and `JSON.stringify`. It checks no key, reads no
 * coverage and proves nothing, so its times are the floor of a Node service: `node bench/bare-server.ts DATABASE_URL SQL CONNECTIONS`.
 */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import pg from 'pg';

const [connectionString, sql, connections] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString, max: Number(connections) });
const server = createServer(async (request, response) => {
  JSON.parse(await text(request));
  const { rows } = await pool.query({ name: 'rows', text: sql });
  const body = Buffer.from(`{"rows":${JSON.stringify(rows)},"row_count":${rows.length}}`);
  response.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': body.length });
  response.end(body);
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`);
