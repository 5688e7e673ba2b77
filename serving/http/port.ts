/** The port of the service. */
import { once } from 'node:events';
import type { AddressInfo, Server } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { TidemarkError } from '../../shared/errors.ts';

const DEFAULT_PORT = 8080;
const PORTS_TRIED = 100;
/** The processes of a `./tidemark up` that was killed a moment ago still have to leave the port. */
const LEAVE_MS = 2000;
const RETRY_MS = 50;

/**
 * Listens on the port, or on the first free one from 8080 on.
 * @throws TidemarkError CONFIGURATION_INVALID where another program has the port
 */
export async function listenOnFree(server: Server, host: string, port: number | undefined): Promise<void> {
  const last = port ?? DEFAULT_PORT + PORTS_TRIED;
  const begunAt = performance.now();
  for (let candidate = port ?? DEFAULT_PORT; ; ) {
    try {
      server.listen(candidate, host);
      // Rejects at `error`.
      await once(server, 'listening');
      return;
    } catch (cause) {
      const isTaken = (cause as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (isTaken && candidate < last) candidate++;
      else if (isTaken && port !== undefined && performance.now() - begunAt < LEAVE_MS) await delay(RETRY_MS);
      else {
        const other = isTaken ? '; another program does: choose another SVC_HTTP_PORT' : '';
        const message = `The service cannot listen on ${host}, port ${candidate}${other}`;
        throw new TidemarkError('CONFIGURATION_INVALID', message, { cause });
      }
    }
  }
}

export function urlOf(server: Server): string {
  const { address, family, port } = server.address() as AddressInfo;
  return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`;
}
