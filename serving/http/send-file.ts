/** Answers with a file or a part of it, from an open handle. */
import type { FileHandle } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { Problem } from '../contract/problems.ts';
import { breakOff } from '../rendering/response.ts';
import { ClientGone } from './client-gone.ts';
import { type FileState, wantedOf } from './ranges.ts';
import type { Exchange } from './routes.ts';

export interface SentFile extends FileState {
  readonly handle: FileHandle;
  readonly headers: Readonly<Record<string, string>>;
  /** A reader that takes nothing for this long is cut off. */
  readonly stallTimeoutMs: number;
}

const PIECE_BYTES = 256 * 1024;

/** @throws Problem EXPORT_PRECONDITION_FAILED, EXPORT_RANGE_NOT_SATISFIABLE, ClientGone */
export async function sendFile({ request, response, signal }: Exchange, file: SentFile): Promise<void> {
  const { bytes, etag, modifiedMs } = file;
  const wanted = wantedOf(request.headers, file);
  const common = { ETag: etag, 'Last-Modified': new Date(modifiedMs).toUTCString(), 'Accept-Ranges': 'bytes' };
  if (wanted.kind === 'precondition_failed') {
    throw new Problem('EXPORT_PRECONDITION_FAILED', `The file is ${etag}, last changed ${common['Last-Modified']}.`, {
      headers: { ETag: etag },
    });
  }
  if (wanted.kind === 'unsatisfiable') {
    throw new Problem('EXPORT_RANGE_NOT_SATISFIABLE', `The file has ${bytes} bytes.`, {
      headers: { 'Content-Range': `bytes */${bytes}` },
    });
  }
  if (wanted.kind === 'not_modified') {
    response.writeHead(304, common).end();
    return;
  }
  const [first, last] = wanted.kind === 'part' ? [wanted.first, wanted.last] : [0, bytes - 1];
  response.writeHead(wanted.kind === 'part' ? 206 : 200, {
    ...file.headers,
    ...common,
    'Content-Length': String(last - first + 1),
    ...(wanted.kind === 'part' && { 'Content-Range': `bytes ${first}-${last}/${bytes}` }),
  });
  if (request.method === 'HEAD' || last < first) {
    response.end();
    return;
  }
  response.setTimeout(file.stallTimeoutMs, () => breakOff(response));
  const stream = file.handle.createReadStream({
    start: first,
    end: last,
    autoClose: false,
    highWaterMark: PIECE_BYTES,
  });
  try {
    await pipeline(stream, response, { signal });
  } catch (cause) {
    // The reader left, or stalled; a disk that fails breaks the answer off, and its length tells that it did.
    breakOff(response);
    throw new ClientGone({ cause });
  }
}
