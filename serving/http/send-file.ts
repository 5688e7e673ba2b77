/**
 * Answers with a file or a part of it, from an open handle. The file never changes under its name, so conditional and
 * partial requests (RFC 9110, 13 and 14) need only its tag, size and time.
 */
import type { FileHandle } from 'node:fs/promises';
import type { IncomingHttpHeaders } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { Problem } from '../contract/problems.ts';
import { breakOff } from '../render/response.ts';
import { ClientGone } from './answer.ts';
import type { Exchange } from './routes.ts';

/** A file's strong entity tag, size and time of modification. */
interface FileState {
  readonly etag: string;
  readonly bytes: number;
  readonly modifiedMs: number;
}

export type RequestedPart =
  | { readonly kind: 'whole' }
  /** Both ends are inclusive. */
  | { readonly kind: 'part'; readonly first: number; readonly last: number }
  | { readonly kind: 'not_modified' }
  /** The file is not the one that the client requires. */
  | { readonly kind: 'precondition_failed' }
  | { readonly kind: 'unsatisfiable' };

const WHOLE: RequestedPart = { kind: 'whole' };

/** What a GET or HEAD asks for. It evaluates the conditions in the order of RFC 9110, 13.2.2. */
export function wantedOf(headers: IncomingHttpHeaders, state: FileState): RequestedPart {
  if (!isWanted(headers, state)) return { kind: 'precondition_failed' };
  if (isKnown(headers, state)) return { kind: 'not_modified' };
  const { range } = headers;
  // A client that resumes a download names its file in If-Range; if the file is another one, it gets the whole file.
  if (range === undefined || !isSame(headers['if-range'] as string | undefined, state)) return WHOLE;
  return partOf(range, state.bytes);
}

function isWanted(headers: IncomingHttpHeaders, { etag, modifiedMs }: FileState): boolean {
  const tags = headers['if-match'];
  if (tags !== undefined) return tags.trim() === '*' || tagsOf(tags).includes(etag);
  const since = headers['if-unmodified-since'];
  // An unreadable date sets no condition: comparisons with NaN are false.
  return since === undefined || !(wholeSeconds(modifiedMs) > Date.parse(since));
}

function isKnown(headers: IncomingHttpHeaders, { etag, modifiedMs }: FileState): boolean {
  const tags = headers['if-none-match'];
  if (tags !== undefined) return isTagged(tags, etag);
  const since = headers['if-modified-since'];
  return since !== undefined && wholeSeconds(modifiedMs) <= Date.parse(since);
}

/** Whether an If-None-Match header holds the tag. It compares weak tags like strong ones. */
export const isTagged = (tags: string, etag: string): boolean =>
  tags.trim() === '*' || tagsOf(tags).some((tag) => tag.replace(/^W\//, '') === etag);

const tagsOf = (tags: string): string[] => tags.split(',').map((tag) => tag.trim());

/** HTTP dates have no fractions of a second. */
const wholeSeconds = (ms: number): number => Math.floor(ms / 1000) * 1000;

function isSame(condition: string | undefined, { etag, modifiedMs }: FileState): boolean {
  if (condition === undefined) return true;
  // A weak tag promises nothing about bytes.
  if (condition.includes('"')) return condition.trim() === etag;
  return Date.parse(condition) === wholeSeconds(modifiedMs);
}

/** Several ranges, or one that cannot be read, yield the whole file, as the standard allows. */
function partOf(range: string, bytes: number): RequestedPart {
  const match = /^bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*$/i.exec(range);
  if (!match || (match[1] === '' && match[2] === '')) return WHOLE;
  const [, from, to] = match;
  if (from === '') {
    const length = Math.min(Number(to), bytes);
    return length === 0 ? { kind: 'unsatisfiable' } : { kind: 'part', first: bytes - length, last: bytes - 1 };
  }
  const first = Number(from);
  const last = to === '' ? bytes - 1 : Math.min(Number(to), bytes - 1);
  if (to !== '' && Number(to) < first) return WHOLE;
  return first >= bytes ? { kind: 'unsatisfiable' } : { kind: 'part', first, last };
}

interface SentFile extends FileState {
  readonly handle: FileHandle;
  readonly headers: Readonly<Record<string, string>>;
  /** A client that reads nothing for this long is cut off. */
  readonly stallTimeoutMs: number;
  /** Called once when bytes of the file were sent, all or until the client left, with their number. */
  readonly onSent?: (bytes: number) => void;
}

const CHUNK_BYTES = 256 * 1024;

/** @throws Problem EXPORT_PRECONDITION_FAILED, EXPORT_RANGE_NOT_SATISFIABLE, ClientGone */
export async function sendFile({ request, response, signal }: Exchange, file: SentFile): Promise<void> {
  const { bytes, etag, modifiedMs } = file;
  // Range is defined for GET alone (RFC 9110, 14.2).
  const conditions = request.method === 'HEAD' ? { ...request.headers, range: undefined } : request.headers;
  const wanted = wantedOf(conditions, file);
  const common = { ETag: etag, 'Last-Modified': new Date(modifiedMs).toUTCString(), 'Accept-Ranges': 'bytes' };
  if (wanted.kind === 'precondition_failed') {
    throw new Problem(
      'EXPORT_PRECONDITION_FAILED',
      `The file is now ${etag}, last modified ${common['Last-Modified']}. Request it without the condition.`,
      {
        headers: { ETag: etag },
      },
    );
  }
  if (wanted.kind === 'unsatisfiable') {
    throw new Problem('EXPORT_RANGE_NOT_SATISFIABLE', `The range lies outside the file. The file has ${bytes} bytes.`, {
      headers: { 'Content-Range': `bytes */${bytes}` },
    });
  }
  if (wanted.kind === 'not_modified') {
    const cache = file.headers['Cache-Control'];
    response.writeHead(304, { ...common, ...(cache !== undefined && { 'Cache-Control': cache }) }).end();
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
    if (request.method !== 'HEAD') file.onSent?.(0);
    response.end();
    return;
  }
  response.setTimeout(file.stallTimeoutMs, () => breakOff(response));
  const stream = file.handle.createReadStream({
    start: first,
    end: last,
    autoClose: false,
    highWaterMark: CHUNK_BYTES,
  });
  try {
    await pipeline(stream, response, { signal });
  } catch (cause) {
    // The client left or stalled, or the disk failed; the client sees that the answer is shorter than its Content-Length.
    breakOff(response);
    throw new ClientGone({ cause });
  } finally {
    file.onSent?.(stream.bytesRead);
  }
}
