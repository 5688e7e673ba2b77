import { createServer } from 'node:net';
import { TidemarkError } from '../errors.ts';

// Below the range from which systems take ports for outgoing connections (32768 on Linux), so that a remembered
// port is not lost to one of those while the stack is down.
const FIRST_PORT = 21_000;
const LAST_PORT = 31_999;

export function isPortFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(false));
    server.listen({ port, host: '127.0.0.1', exclusive: true }, () => server.close(() => resolve(true)));
  });
}

/** A free loopback port; the search starts anywhere, so that two starters seldom meet. */
export async function freePort(): Promise<number> {
  const span = LAST_PORT - FIRST_PORT + 1;
  const start = Math.floor(Math.random() * span);
  for (let i = 0; i < 200; i++) {
    const port = FIRST_PORT + ((start + i * 7) % span);
    if (await isPortFree(port)) return port;
  }
  throw new TidemarkError('STACK_START_FAILED', `No free port between ${FIRST_PORT} and ${LAST_PORT}`);
}
