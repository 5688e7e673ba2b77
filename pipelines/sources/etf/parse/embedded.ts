/** JSON that a page's scripts hold inside of strings: `self.__next_f.push([1,"{\"ticker\":..."])`. */
import Big from 'big.js';
import { unreadable } from './fields.ts';
import { type Exact, JsonPath, parseJson, requirePage } from './tables.ts';

export type ExactObject = { readonly [name: string]: Exact };

export const isObject = (entry: Exact | undefined): entry is ExactObject =>
  typeof entry === 'object' &&
  entry !== null &&
  !Array.isArray(entry) &&
  !(entry instanceof Big) &&
  Object.getPrototypeOf(entry) === Object.prototype;

/** A fund's object is not longer. */
const MAX_CHARACTERS = 300_000;
/** Most braces before a key that may open an object around it, and most places of the key: more is no page of a fund. */
const MAX_TRIED = 50;

/**
 * The objects that have the key `key`, each with the objects that it is a member of, the innermost first; not beyond a list,
 * whose entries are objects of their own.
 * @throws TidemarkError if the page is foreign or truncated, or if no string of its scripts has such an object.
 */
export function objectsWith(page: string, key: string): ExactObject[][] {
  requirePage(page);
  const [text, marker] = [textOf(page), `"${key}":`];
  const places = [...text.matchAll(new RegExp(marker, 'g'))].map(({ index }) => index);
  if (places.length === 0) throw unreadable(`the page has no ${key}`);
  if (places.length > MAX_TRIED) throw unreadable(`the page has ${key} ${places.length} times, more than ${MAX_TRIED}`);
  return places.map((place) => around(text, place, key));
}

/** A page that passes its data on in pieces: a piece is the string after this, and they are one text. */
const PIECE = '[1,';

/** The data of the page's pieces; of all strings of its scripts if it has none. */
function textOf(page: string): string {
  const [pieces, strings]: [string[], string[]] = [[], []];
  for (const [, script] of page.matchAll(/<script\b[^>]*>([\s\S]*?)<\/script>/gi)) {
    for (let at = script.indexOf('"'); at >= 0; at = script.indexOf('"', at + 1)) {
      const start = at;
      at++;
      while (at < script.length && script[at] !== '"') at += script[at] === '\\' ? 2 : 1;
      const text = stringOf(script.slice(start, at + 1));
      if (text === undefined) continue;
      strings.push(text);
      if (script.startsWith(PIECE, start - PIECE.length)) pieces.push(text);
    }
  }
  return (pieces.length > 0 ? pieces : strings).join('');
}

function stringOf(literal: string): string | undefined {
  try {
    return JSON.parse(literal) as string;
  } catch {
    return undefined;
  }
}

/** The objects around a place, the innermost first. */
function around(text: string, place: number, key: string): ExactObject[] {
  const chain: ExactObject[] = [];
  let tried = 0;
  for (let at = text.lastIndexOf('{', place); at >= 0; at = at === 0 ? -1 : text.lastIndexOf('{', at - 1)) {
    if (place - at > MAX_CHARACTERS || tried > MAX_TRIED) break;
    const end = endOf(text, at);
    if (end >= 0 && end <= place) continue;
    tried++;
    // What is not JSON has no members that could be read, and neither have the objects around it.
    const object = end < 0 ? undefined : objectOf(text.slice(at, end));
    const inner = chain.at(-1);
    if (object === undefined || !(inner ? hasMember(object, inner) : Object.hasOwn(object, key))) break;
    chain.push(object);
  }
  if (chain.length === 0) throw unreadable(`${key} is not the key of an object`);
  return chain;
}

/** Whether a value of the object is this object, by what it says. */
const hasMember = (object: ExactObject, inner: ExactObject): boolean => {
  const wanted = JSON.stringify(inner);
  return Object.values(object).some((value) => isObject(value) && JSON.stringify(value) === wanted);
};

/** After the brace that closes the one at `start`; -1 if none does within the length of an object. */
function endOf(text: string, start: number): number {
  let depth = 0;
  for (let at = start; at < Math.min(text.length, start + MAX_CHARACTERS); at++) {
    const sign = text[at];
    if (sign === '"') {
      at++;
      while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
    } else if (sign === '{') depth++;
    else if (sign === '}' && --depth === 0) return at + 1;
  }
  return -1;
}

function objectOf(text: string): ExactObject | undefined {
  try {
    const value = parseJson(text);
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** The members of an object and of the objects in it, except of those that are another thing of its kind: they have `own`. */
export function membersOf(object: ExactObject, own: string): Map<string, JsonPath[]> {
  const members = new Map<string, JsonPath[]>();
  const pending: ExactObject[] = [object];
  for (let one = pending.pop(); one; one = pending.pop()) {
    for (const [name, value] of Object.entries(one)) {
      if (!isObject(value)) members.set(name, [...(members.get(name) ?? []), new JsonPath(value, name)]);
      else if (!Object.hasOwn(value, own)) pending.push(value);
    }
  }
  return members;
}
