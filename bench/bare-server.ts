/**
 * The least server that answers the latest rows over HTTP: Node's, one statement through `pg`, and `JSON.stringify`. It checks no key,
 * reads no coverage and proves nothing, so its times are the floor of a Node service beside the same SQL without one.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import { NODE_OPTIONS, type Service, serviceOf } from './service.ts';

interface BareOptions {
  readonly databaseUrl: string;
  /** The statement of every request. */
  readonly sql: string;
  /** Connections to the database: the reads that the service runs at once. */
  readonly connections: number;
}

/** Starts the server in a process of its own. */
export async function startBareServer(options: BareOptions): Promise<Service> {
  const child = spawn(process.execPath, [...NODE_OPTIONS, fileURLToPath(import.meta.url), JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(child, 'exit').then(() => Promise.reject(new Error('the bare server ended before it listened')));
  ended.catch(() => {});
  const [url] = await Promise.race([once(child.stdout, 'data'), ended]);
  return serviceOf(child, String(url).trim());
}

async function serve({ databaseUrl, sql, connections }: BareOptions): Promise<void> {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: connections });
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
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await serve(JSON.parse(process.argv[2]) as BareOptions);
