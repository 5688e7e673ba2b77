/** Stands between a client and a store: loses what the server says, and breaks connections, when told to. */

import type { AddressInfo } from 'node:net';
import { connect, createServer, type Socket } from 'node:net';

export interface StoreProxy extends AsyncDisposable {
  /** The server's, by way of here. */
  readonly url: string;
  /** What the server sends from now on is lost, and its clients know nothing of it. */
  mute(): void;
  /** The same from when a client has said this. */
  muteAt(words: string): void;
  isMuted(): boolean;
  unmute(): void;
  /** When a client has said this, the store dies: connections break, and the next `refusals` ones are refused. */
  dieAt(words: string, refusals: number): void;
  hasDied(): boolean;
  /** Breaks the connections there are and refuses others, until it is back. */
  goAway(): void;
  comeBack(): void;
  /** Breaks the connections there are; new ones are as good as any, and heard. */
  cut(): void;
  /** Breaks the connection that first sends so many bytes, in the middle of them. */
  cutAfter(sentBytes: number): void;
  /** Whether `cutAfter` has broken one. */
  hasCut(): boolean;
  /** Connections of clients: all that there were, and those that are open. */
  connections(): { readonly accepted: number; readonly open: number };
}

export async function startStoreProxy(storeUrl: string): Promise<StoreProxy> {
  const target = new URL(storeUrl);
  const sockets = new Set<Socket>();
  let muted = false;
  let cue: string | undefined;
  let death: { readonly words: string; readonly refusals: number } | undefined;
  let refusals = 0;
  let accepted = 0;
  let mostSent = Number.POSITIVE_INFINITY;
  const cut = () => {
    for (const socket of sockets) socket.destroy();
    muted = false;
  };
  const server = createServer((client) => {
    if (refusals > 0) {
      refusals--;
      client.destroy();
      return;
    }
    accepted++;
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
    let sent = 0;
    client.on('data', (bytes) => {
      sent += bytes.length;
      if (sent > mostSent) {
        mostSent = Number.POSITIVE_INFINITY;
        upstream.write(bytes.subarray(0, bytes.length >> 1));
        upstream.end();
        client.destroy();
        return;
      }
      if (cue !== undefined && bytes.includes(cue)) {
        muted = true;
        cue = undefined;
      }
      if (death !== undefined && bytes.includes(death.words)) {
        refusals = death.refusals;
        death = undefined;
        cut();
        return;
      }
      upstream.write(bytes);
    });
    upstream.on('data', (bytes) => {
      if (!muted) client.write(bytes);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = new URL(storeUrl);
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    url: url.href,
    mute: () => {
      muted = true;
    },
    muteAt: (words) => {
      cue = words;
    },
    dieAt: (words, count) => {
      death = { words, refusals: count };
    },
    hasDied: () => death === undefined,
    cutAfter: (sentBytes) => {
      mostSent = sentBytes;
    },
    hasCut: () => mostSent === Number.POSITIVE_INFINITY,
    isMuted: () => muted,
    unmute: () => {
      muted = false;
    },
    goAway: () => {
      refusals = Number.POSITIVE_INFINITY;
      cut();
    },
    comeBack: () => {
      refusals = 0;
    },
    cut,
    // Each has a socket to its client and one to the server.
    connections: () => ({ accepted, open: Math.ceil(sockets.size / 2) }),
    async [Symbol.asyncDispose]() {
      cut();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
