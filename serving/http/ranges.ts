/** Conditional and partial requests for a file that never changes under its name (RFC 9110, 13 and 14). */
import type { IncomingHttpHeaders } from 'node:http';

/** Of a file: its strong entity tag, size and time of change. */
export interface FileState {
  readonly etag: string;
  readonly bytes: number;
  readonly modifiedMs: number;
}

export type Wanted =
  | { readonly kind: 'whole' }
  /** Both ends included. */
  | { readonly kind: 'part'; readonly first: number; readonly last: number }
  | { readonly kind: 'not_modified' }
  | { readonly kind: 'unsatisfiable' };

const WHOLE: Wanted = { kind: 'whole' };

/** What a GET or HEAD asks for. */
export function wantedOf(headers: IncomingHttpHeaders, state: FileState): Wanted {
  if (isKnown(headers, state)) return { kind: 'not_modified' };
  const { range } = headers;
  // A client that goes on where it stopped, and says of what: of another file it gets the whole.
  if (range === undefined || !isSame(headers['if-range'] as string | undefined, state)) return WHOLE;
  return partOf(range, state.bytes);
}

function isKnown(headers: IncomingHttpHeaders, { etag, modifiedMs }: FileState): boolean {
  const tags = headers['if-none-match'];
  if (tags !== undefined) {
    return tags.trim() === '*' || tags.split(',').some((tag) => tag.trim().replace(/^W\//, '') === etag);
  }
  const since = headers['if-modified-since'];
  return since !== undefined && Math.floor(modifiedMs / 1000) * 1000 <= Date.parse(since);
}

function isSame(condition: string | undefined, { etag, modifiedMs }: FileState): boolean {
  if (condition === undefined) return true;
  // A weak tag is no promise about bytes.
  if (condition.includes('"')) return condition.trim() === etag;
  return Date.parse(condition) === Math.floor(modifiedMs / 1000) * 1000;
}

/** Several ranges, or none that is understood: the whole, as the standard allows. */
function partOf(range: string, bytes: number): Wanted {
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
