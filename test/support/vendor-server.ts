/**
 * A real http server on loopback that serves a folder as a vendor's archive does, with faults that can be set per path:
 * each fault is used for its number of requests, then the next one, then the file as it is.
 */
import { createHash } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join, normalize } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

export type Fault = {
  /** Requests it is used for; default all. */
  readonly times?: number;
} & (
  | { readonly kind: 'status'; readonly status: number; readonly headers?: Record<string, string> }
  /** Announces the whole length (or, chunked, none) and closes the connection early. */
  | { readonly kind: 'cut'; readonly afterBytes: number; readonly chunked?: boolean }
  /** Sends a piece, waits, sends the next. */
  | { readonly kind: 'drip'; readonly pieceBytes: number; readonly everyMs: number }
  /** Sends this many bytes, then nothing, and keeps the connection; undefined: not even headers. */
  | { readonly kind: 'stall'; readonly afterBytes?: number }
  | { readonly kind: 'body'; readonly body: string | Buffer }
  /** Whole and right, but without a Content-Length. */
  | { readonly kind: 'chunked'; readonly pieceBytes: number }
  /** Whole and right, with headers of its own. */
  | { readonly kind: 'headers'; readonly headers: Record<string, string> }
  | { readonly kind: 'redirect'; readonly location: string; readonly status?: number }
);

/** By what the server tells whether a document is still the same: a digest as ETag, the file's time, or not at all. */
export type Stated = 'etag' | 'time' | 'nothing';

export interface SeenRequest {
  readonly path: string;
  /** Of the answer, once it is sent. */
  status?: number;
  readonly headers: IncomingHttpHeaders;
  readonly atMs: number;
}

export interface VendorServer extends AsyncDisposable {
  /** Base URL, ending in a slash. */
  readonly url: URL;
  /** All requests so far, or those of one path. */
  requests(path?: string): readonly SeenRequest[];
  /** Adds a fault after those the path already has. */
  fail(path: string, fault: Fault): void;
  /** Connections open now, idle ones included. */
  openConnections(): Promise<number>;
  /** Forgets faults and requests. */
  reset(): void;
}

export async function startVendorServer(directory: string, stated: Stated = 'nothing'): Promise<VendorServer> {
  const faults = new Map<string, { fault: Fault; left: number }[]>();
  const seen: SeenRequest[] = [];
  const closing = new AbortController();

  const takeFault = (path: string): Fault | undefined => {
    const planned = faults.get(path)?.find((each) => each.left > 0);
    if (planned !== undefined) planned.left--;
    return planned?.fault;
  };
  const server = createServer((request, response) => {
    const path = pathOf(request);
    const one: SeenRequest = { path, headers: request.headers, atMs: Date.now() };
    seen.push(one);
    response.once('finish', () => {
      one.status = response.statusCode;
    });
    const file = join(directory, normalize(join('/', path)));
    answer(file, { fault: takeFault(path), stated, asked: request.headers }, response, closing.signal).catch(() =>
      response.destroy(),
    );
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));

  return {
    url: new URL(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`),
    requests: (path) => (path === undefined ? seen : seen.filter((each) => each.path === path)),
    fail: (path, fault) => {
      const list = faults.get(path) ?? [];
      list.push({ fault, left: fault.times ?? Number.POSITIVE_INFINITY });
      faults.set(path, list);
    },
    openConnections: () =>
      new Promise((resolve, reject) => server.getConnections((error, open) => (error ? reject(error) : resolve(open)))),
    reset: () => {
      faults.clear();
      seen.length = 0;
    },
    [Symbol.asyncDispose]: async () => {
      closing.abort();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

const pathOf = (request: IncomingMessage) =>
  decodeURIComponent(new URL(request.url ?? '/', 'http://localhost').pathname).slice(1);

/** The file's validators as headers, and whether the request has the same ones. */
async function conditionOf(
  file: string,
  body: Buffer,
  stated: Stated,
  asked: IncomingHttpHeaders,
): Promise<{ headers: Record<string, string>; isSame: boolean }> {
  switch (stated) {
    case 'nothing':
      return { headers: {}, isSame: false };
    case 'etag': {
      const etag = `"${createHash('sha256').update(body).digest('hex').slice(0, 16)}"`;
      return { headers: { etag }, isSame: asked['if-none-match'] === etag };
    }
    case 'time': {
      const time = (await stat(file)).mtime.toUTCString();
      return { headers: { 'last-modified': time }, isSame: asked['if-modified-since'] === time };
    }
  }
}

async function answer(
  file: string,
  { fault, stated, asked }: { fault: Fault | undefined; stated: Stated; asked: IncomingHttpHeaders },
  response: ServerResponse,
  closing: AbortSignal,
): Promise<void> {
  switch (fault?.kind) {
    case 'status':
      response.writeHead(fault.status, fault.headers).end(`status ${fault.status}\n`);
      return;
    case 'redirect':
      response.writeHead(fault.status ?? 302, { location: fault.location }).end();
      return;
    case 'body':
      sendWhole(response, Buffer.from(fault.body));
      return;
  }
  if (fault?.kind === 'stall' && fault.afterBytes === undefined) return;
  const body = await readFile(file).catch(() => undefined);
  if (body === undefined) {
    response.writeHead(404).end('no such document\n');
    return;
  }
  switch (fault?.kind) {
    case 'cut':
      response.writeHead(200, fault.chunked ? {} : { 'content-length': body.length });
      response.write(body.subarray(0, fault.afterBytes), () => response.socket?.destroy());
      return;
    case 'stall':
      response.writeHead(200, { 'content-length': body.length });
      response.write(body.subarray(0, fault.afterBytes));
      return;
    case 'drip':
      response.writeHead(200, { 'content-length': body.length });
      await sendPieces(response, body, fault.pieceBytes, fault.everyMs, closing);
      return;
    case 'headers':
      sendWhole(response, body, fault.headers);
      return;
    case 'chunked':
      await sendPieces(response, body, fault.pieceBytes, 0, closing);
      return;
    default: {
      const { headers, isSame } = await conditionOf(file, body, stated, asked);
      if (isSame) response.writeHead(304, headers).end();
      else sendWhole(response, body, headers);
    }
  }
}

function sendWhole(response: ServerResponse, body: Buffer, headers: Record<string, string> = {}): void {
  const usual = { 'content-type': 'application/octet-stream', 'content-length': body.length };
  response.writeHead(200, { ...usual, ...headers }).end(body);
}

async function sendPieces(
  response: ServerResponse,
  body: Buffer,
  pieceBytes: number,
  everyMs: number,
  closing: AbortSignal,
): Promise<void> {
  for (let at = 0; at < body.length && !response.destroyed; at += pieceBytes) {
    if (at > 0 && everyMs > 0) await sleep(everyMs, undefined, { signal: closing });
    response.write(body.subarray(at, at + pieceBytes));
  }
  response.end();
}
