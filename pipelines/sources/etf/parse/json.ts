/** JSON documents: numbers keep the digits they were written with, and what is missing is named by its path. */
import Big from 'big.js';
import { shown, unreadable } from './fault.ts';
import { boundedDecimal, parseNumber } from './numbers.ts';

/** A number of too many digits or too large an exponent. It is no fault of a document unless a fact is read from it. */
class Oversized {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  /** For messages. */
  toJSON(): string {
    return this.#text.slice(0, 100);
  }
}

/** A parsed document; numbers are exact decimals. */
export type Exact = null | boolean | string | Big | Oversized | readonly Exact[] | { readonly [name: string]: Exact };

/** @throws TidemarkError when the text is no JSON; a page in its place is named as such. */
export function parseJson(text: string): Exact {
  if (/^\s*</.test(text)) throw unreadable(`the document is a page where JSON was expected: ${shown(text.trim())}`);
  try {
    // The third argument holds the digits as written; TypeScript does not know it yet.
    const exact = (_name: string, value: unknown, context?: { readonly source?: string }) => {
      if (typeof value !== 'number') return value;
      const source = context!.source!;
      return boundedDecimal(source) ?? new Oversized(source);
    };
    return JSON.parse(text, exact) as Exact;
  } catch (cause) {
    throw unreadable(`the document is no JSON, or not all of it`, cause);
  }
}

/** The text of the first of these places that has one. @throws TidemarkError when none has. */
export function firstText(...places: readonly Place[]): string {
  const found = places.find((place) => place.exists && place.text() !== null)?.text();
  if (!found) throw unreadable(`${places.map((place) => place.path).join(' and ')} ${MISSING[places.length]}`);
  return found;
}

const MISSING: Readonly<Record<number, string>> = { 1: 'is missing', 2: 'are missing' };

/** A place in a document, and the way to it. */
export class Place {
  readonly value: Exact | undefined;
  readonly path: string;

  constructor(value: Exact | undefined, path: string) {
    this.value = value;
    this.path = path;
  }

  at(...names: readonly (string | number)[]): Place {
    let place: Place = this;
    for (const name of names) {
      const { value } = place;
      const isBranch = typeof value === 'object' && value !== null && !(value instanceof Big);
      const next = isBranch && Object.hasOwn(value, name) ? (value as Record<string | number, Exact>)[name] : undefined;
      place = new Place(next, place.path === '' ? `${name}` : `${place.path}.${name}`);
    }
    return place;
  }

  /** Entries of a list. @throws TidemarkError where there is none. */
  list(max: number): Place[] {
    if (!Array.isArray(this.value)) throw unreadable(`${this.path} is no list: ${shown(this.value)}`);
    if (this.value.length > max) throw unreadable(`${this.path} has ${this.value.length} entries, more than ${max}`);
    return this.value.map((value, index) => new Place(value, `${this.path}[${index}]`));
  }

  /** Whether the document has such a place, whatever it holds. */
  get exists(): boolean {
    return this.value !== undefined;
  }

  /** Text; null where the document says nothing. @throws TidemarkError for what is no text, or not there: renamed. */
  text(): string | null {
    const value = this.#said();
    if (value === null) return null;
    if (typeof value !== 'string') throw unreadable(`${this.path} is no text: ${shown(value)}`);
    return value.trim() === '' ? null : value.trim();
  }

  /** A number, as such or written out; null where the document says nothing. @throws like `text`. */
  number(): Big | null {
    const value = this.#said();
    if (value === null || value instanceof Big) return value;
    if (typeof value !== 'string') throw unreadable(`${this.path} is no number: ${shown(value)}`);
    return parseNumber(value, this.path);
  }

  #said(): Exact {
    if (this.value === undefined) throw unreadable(`the document has no ${this.path}`);
    return this.value;
  }
}
