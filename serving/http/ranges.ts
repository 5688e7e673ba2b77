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
  /** The client asked for another file than this one is. */
  | { readonly kind: 'precondition_failed' }
  | { readonly kind: 'unsatisfiable' };

const WHOLE: Wanted = { kind: 'whole' };

/** What a GET or HEAD asks for. The conditions are evaluated in the order of RFC 9110, 13.2.2. */
export function wantedOf(headers: IncomingHttpHeaders, state: FileState): Wanted {
  if (!isWanted(headers, state)) return { kind: 'precondition_failed' };
  if (isKnown(headers, state)) return { kind: 'not_modified' };
  const { range } = headers;
  // A client that goes on where it stopped, and says of what: of another file it gets the whole.
  if (range === undefined || !isSame(headers['if-range'] as string | undefined, state)) return WHOLE;
  return partOf(range, state.bytes);
}

function isWanted(headers: IncomingHttpHeaders, { etag, modifiedMs }: FileState): boolean {
  const tags = headers['if-match'];
  if (tags !== undefined) return tags.trim() === '*' || tagsOf(tags).includes(etag);
  const since = headers['if-unmodified-since'];
  // What is no date is no condition: nothing is after it.
  return since === undefined || !(wholeSeconds(modifiedMs) > Date.parse(since));
}

function isKnown(headers: IncomingHttpHeaders, { etag, modifiedMs }: FileState): boolean {
  const tags = headers['if-none-match'];
  if (tags !== undefined) return isTagged(tags, etag);
  const since = headers['if-modified-since'];
  return since !== undefined && wholeSeconds(modifiedMs) <= Date.parse(since);
}

/** Whether an If-None-Match names the tag; weak tags are compared as strong ones are. */
export const isTagged = (tags: string, etag: string): boolean =>
  tags.trim() === '*' || tagsOf(tags).some((tag) => tag.replace(/^W\//, '') === etag);

const tagsOf = (tags: string): string[] => tags.split(',').map((tag) => tag.trim());

/** HTTP's dates have no fractions. */
const wholeSeconds = (ms: number): number => Math.floor(ms / 1000) * 1000;

function isSame(condition: string | undefined, { etag, modifiedMs }: FileState): boolean {
  if (condition === undefined) return true;
  // A weak tag is no promise about bytes.
  if (condition.includes('"')) return condition.trim() === etag;
  return Date.parse(condition) === wholeSeconds(modifiedMs);
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
