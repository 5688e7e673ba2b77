/** Stands between a client and nats-server: loses what the server says, and breaks connections, when told to. */

import type { AddressInfo } from 'node:net';
import { connect, createServer, type Socket } from 'node:net';

export interface NatsProxy extends AsyncDisposable {
  /** The server's, by way of here. */
  readonly url: string;
  /** What the server sends from now on is lost, and its clients know nothing of it. */
  mute(): void;
  /** The same from when a client has said this. */
  muteAt(words: string): void;
  unmute(): void;
  /** Breaks the connections there are; new ones are as good as any, and heard. */
  cut(): void;
}

export async function startNatsProxy(natsUrl: string): Promise<NatsProxy> {
  const target = new URL(natsUrl);
  const sockets = new Set<Socket>();
  let muted = false;
  let cue: string | undefined;
  const cut = () => {
    for (const socket of sockets) socket.destroy();
    muted = false;
  };
  const server = createServer((client) => {
    const upstream = connect({ host: target.hostname, port: Number(target.port) });
    for (const [socket, other] of [
      [client, upstream],
      [upstream, client],
    ]) {
      sockets.add(socket);
      socket.on('error', () => {});
      socket.on('close', () => {
        sockets.delete(socket);
        other.destroy();
      });
    }
    client.on('data', (bytes) => {
      if (cue !== undefined && bytes.includes(cue)) {
        muted = true;
        cue = undefined;
      }
      upstream.write(bytes);
    });
    upstream.on('data', (bytes) => {
      if (!muted) client.write(bytes);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = new URL(natsUrl);
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    url: url.href,
    mute: () => {
      muted = true;
    },
    muteAt: (words) => {
      cue = words;
    },
    unmute: () => {
      muted = false;
    },
    cut,
    async [Symbol.asyncDispose]() {
      cut();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
