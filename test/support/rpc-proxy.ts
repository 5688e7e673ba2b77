/** A proxy in front of a real node that spoils its answers as told. */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** What happens to an answer; `rewrite` gets its text. */
export type Spoiling =
  | { readonly kind: 'cut'; readonly afterBytes: number; readonly honest?: boolean }
  | { readonly kind: 'delay'; readonly ms: number }
  | { readonly kind: 'drip'; readonly everyMs: number }
  | { readonly kind: 'status'; readonly status: number; readonly body: string }
  /** The whole answer in pieces, without its size. */
  | { readonly kind: 'pieces'; readonly bytes: number }
  | { readonly kind: 'reset' }
  | { readonly kind: 'rewrite'; readonly rewrite: (text: string) => string }
  /** Something that happens before the node is asked. */
  | { readonly kind: 'after'; readonly work: () => Promise<void> };

export interface RpcProxy extends AsyncDisposable {
  readonly url: string;
  /** Bodies of the requests since the last look. */
  requests(): string[];
  /** Most requests that were being answered at once. */
  readonly most: number;
  /** Spoils answers to requests whose body contains the text; `times` of them. */
  spoil(containing: string, spoiling: Spoiling, times?: number): void;
  mend(): void;
}

export async function startRpcProxy(target: string): Promise<RpcProxy> {
  let seen: string[] = [];
  let faults: { containing: string; spoiling: Spoiling; left: number }[] = [];
  let now = 0;
  let most = 0;
  const server = createServer(async (request, response) => {
    most = Math.max(most, ++now);
    response.once('close', () => now--);
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece as Buffer);
    const body = Buffer.concat(pieces).toString();
    seen.push(body);
    const fault = faults.find(({ containing, left }) => left > 0 && body.includes(containing));
    if (fault) fault.left--;
    const { authorization = '' } = request.headers;
    try {
      if (fault?.spoiling.kind === 'after') await fault.spoiling.work();
      const answer = await fetch(target, { method: 'POST', headers: { authorization }, body });
      await send(response, answer.status, await answer.text(), fault?.spoiling);
    } catch {
      response.destroy();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests: () => {
      const taken = seen;
      seen = [];
      return taken;
    },
    get most() {
      return most;
    },
    spoil: (containing, spoiling, times = Number.POSITIVE_INFINITY) =>
      faults.push({ containing, spoiling, left: times }),
    mend: () => {
      faults = [];
      most = 0;
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

async function send(response: ServerResponse, status: number, text: string, spoiling?: Spoiling): Promise<void> {
  const whole = spoiling?.kind === 'rewrite' ? spoiling.rewrite(text) : text;
  const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(whole) };
  switch (spoiling?.kind) {
    case 'reset':
      response.destroy();
      return;
    case 'status':
      response.writeHead(spoiling.status, { 'content-type': 'text/html' }).end(spoiling.body);
      return;
    case 'cut': {
      const part = Buffer.from(whole).subarray(0, spoiling.afterBytes);
      // Honest: the length announced is that of the part, as after a proxy that gave up quietly.
      response.writeHead(status, {
        ...headers,
        'content-length': spoiling.honest ? part.length : headers['content-length'],
      });
      response.write(part, () => (spoiling.honest ? response.end() : response.destroy()));
      return;
    }
    case 'delay':
      await new Promise((resolve) => setTimeout(resolve, spoiling.ms));
      break;
    case 'pieces': {
      response.writeHead(status, { 'content-type': 'application/json' });
      const bytes = Buffer.from(text);
      for (let at = 0; at < bytes.length; at += spoiling.bytes) response.write(bytes.subarray(at, at + spoiling.bytes));
      response.end();
      return;
    }
    case 'drip': {
      response.writeHead(status, headers);
      for (const byte of Buffer.from(whole)) {
        if (response.destroyed) return;
        response.write(Buffer.of(byte));
        await new Promise((resolve) => setTimeout(resolve, spoiling.everyMs));
      }
      response.end();
      return;
    }
  }
  if (!response.destroyed) response.writeHead(status, headers).end(whole);
}
