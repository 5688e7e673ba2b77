/** The distribution's nginx before something. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { nginx } from './tools.ts';

export const NGINX = await nginx();

/** @param servers blocks of its configuration */
export async function startNginx(servers: readonly string[]): Promise<AsyncDisposable> {
  const folder = await mkdtemp(join(tmpdir(), 'nginx-'));
  // The workers of an nginx that root starts are another user's, and keep there what a client does not read yet.
  await chmod(folder, 0o755);
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `${name}_temp_path ${join(folder, name)};`,
  );
  await writeFile(
    join(folder, 'nginx.conf'),
    `daemon off; pid ${join(folder, 'pid')}; error_log stderr crit; events {}
      http { access_log off; ${temporary.join(' ')} ${servers.join(' ')} }`,
  );
  const front = spawn(NGINX.path, ['-e', 'stderr', '-p', folder, '-c', join(folder, 'nginx.conf')], {
    stdio: 'inherit',
  });
  return {
    async [Symbol.asyncDispose]() {
      if (front.exitCode === null && front.signalCode === null) {
        front.kill('SIGTERM');
        await once(front, 'exit');
      }
      await rm(folder, { recursive: true, force: true });
    },
  };
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  return port;
}
