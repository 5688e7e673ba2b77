/** Stands between a client and the real service, and spoils answers on the way. */
import { createServer, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

export type HttpFault =
  /** This status instead of the service's answer. */
  | { readonly status: number; readonly headers?: Record<string, string>; readonly body?: string }
  /** The connection ends after so many bytes of the body. */
  | { readonly cutAfterBytes: number }
  /** Nothing more comes after so many bytes of the body, and the connection stays. */
  | { readonly stallAfterBytes: number }
  /** The connection ends before an answer. */
  | 'reset';

export interface HttpFaultProxy extends AsyncDisposable {
  readonly url: string;
  /** Requests seen. */
  readonly seen: number;
  /** Spoils the next requests, one fault each. */
  spoil(...faults: readonly HttpFault[]): void;
}

export async function startHttpFaultProxy(target: string): Promise<HttpFaultProxy> {
  const faults: HttpFault[] = [];
  let seen = 0;
  const server = createServer((incoming, outgoing) => {
    seen++;
    const fault = faults.shift();
    if (fault === 'reset') return void incoming.socket.destroy();
    if (fault && 'status' in fault) return void answer(outgoing, fault);
    const upstream = request(target + incoming.url, { method: incoming.method, headers: incoming.headers }, (from) => {
      outgoing.writeHead(from.statusCode!, from.headers);
      const cut = fault && 'cutAfterBytes' in fault;
      let left = fault ? (cut ? fault.cutAfterBytes : fault.stallAfterBytes) : Number.POSITIVE_INFINITY;
      from.on('data', (bytes: Buffer) => {
        const part = bytes.subarray(0, left);
        left -= part.length;
        outgoing.write(part, () => {
          if (left <= 0 && cut) outgoing.socket?.destroy();
        });
      });
      from.on('end', () => {
        if (left > 0) outgoing.end();
      });
      outgoing.on('close', () => from.destroy());
    });
    upstream.on('error', () => outgoing.destroy());
    incoming.pipe(upstream);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    get seen() {
      return seen;
    },
    spoil: (...more) => void faults.push(...more),
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function answer(outgoing: ServerResponse, { status, headers, body }: Extract<HttpFault, { status: number }>): void {
  outgoing.writeHead(status, headers);
  outgoing.end(body ?? '');
}
