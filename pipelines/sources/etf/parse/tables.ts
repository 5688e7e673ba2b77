/** Reads an issuer's CSV tables and its JSON documents. */

import Big from 'big.js';
import { parse } from 'csv-parse/sync';
import { MAX_HOLDINGS } from './facts.ts';
import { boundedDecimal, parseAsOf, parseNumber, shown, unreadable } from './fields.ts';
import { Printed } from './printed.ts';

/** Phrases of pages that are not the issuer's: a bot check, a block, an error. */
const FOREIGN = [
  /security checkpoint/i,
  /verify (?:that )?you are (?:a )?human/i,
  /access denied/i,
  /enable javascript and cookies/i,
  /attention required/i,
  /request unsuccessful/i,
];

/** @throws TidemarkError if the page is a bot check or a block. */
export function refuseForeign(html: string): void {
  const found = FOREIGN.map((pattern) => pattern.exec(html)?.[0]).find((text) => text !== undefined);
  if (found) throw unreadable(`the page is not the issuer's: it contains "${found}"`);
}

/** @throws TidemarkError if the page is foreign or truncated. */
export function requirePage(html: string): void {
  refuseForeign(html);
  if (!/<\/html>\s*$/i.test(html)) throw unreadable('the page has no </html>: it is truncated, or not a page');
}

export interface Table {
  readonly rows: readonly TableRow[];
}

export interface TableRow {
  /** Line in the document, counted from 1; for messages. */
  readonly line: number;
  /** The cell of the first of these columns that the table has. @throws TidemarkError if it has none. */
  cell(...names: readonly string[]): string;
  /** The same, but undefined if the table has none of the columns. */
  optional(...names: readonly string[]): string | undefined;
}

const MAX_COLUMNS = 100;
/** A longer line of a single text after the table is a disclaimer; a truncated row is shorter. */
const DISCLAIMER_CHARACTERS = 60;

const plain = (name: string) => name.toLowerCase().replaceAll(/[^a-z0-9]/g, '');

/**
 * Parses a CSV table and finds its columns by name, ignoring case, punctuation and order.
 * @param text the header line and the rows.
 * @param firstLine the header's line in the document.
 */
export function parseTable(text: string, firstLine: number): Table {
  let records: string[][];
  try {
    records = parse(text, { relax_column_count: true, skip_empty_lines: false, max_record_size: 64 * 1024 });
  } catch (cause) {
    throw unreadable('the table is damaged', cause);
  }
  const [first = [], ...all] = records;
  const header = first.slice(0, first.findLastIndex((cell) => cell.trim() !== '') + 1);
  const body = withoutDisclaimers(all).map((cells) => withoutPadding(cells, header.length));
  if (header.length > MAX_COLUMNS) throw unreadable(`the table has ${header.length} columns`);
  if (body.length > MAX_HOLDINGS) throw unreadable(`the table has ${body.length} rows, more than ${MAX_HOLDINGS}`);
  const uneven = body.findIndex((cells) => !isBlank(cells) && cells.length !== header.length);
  if (uneven >= 0) {
    const at = `line ${firstLine + 1 + uneven}`;
    throw unreadable(`the table is damaged: ${at} has ${body[uneven].length} cells, not ${header.length}`);
  }
  const columns = header.map(plain);
  const rows = body.map((cells, index): TableRow => {
    const line = firstLine + 1 + index;
    const optional = (...names: readonly string[]) => {
      const column = names.map((name) => columns.indexOf(plain(name))).find((found) => found >= 0);
      return column === undefined ? undefined : cells[column];
    };
    return {
      line,
      optional,
      cell: (...names) => {
        const found = optional(...names);
        if (found === undefined) throw unreadable(`the table has no column ${names.join(' or ')}`);
        return found;
      },
    };
  });
  return { rows: rows.filter((_, index) => !isBlank(body[index])) };
}

/** A spreadsheet that saves the table again pads each line with empty cells to the width of the widest. */
const withoutPadding = (cells: readonly string[], width: number) =>
  isBlank(cells.slice(width)) ? cells.slice(0, width) : cells;

const isBlank = (cells: readonly string[]) => cells.every((cell) => cell.trim() === '');

function withoutDisclaimers(rows: readonly string[][]): readonly string[][] {
  const isDisclaimer = ([text, ...rest]: readonly string[]) => isBlank(rest) && text.length >= DISCLAIMER_CHARACTERS;
  return rows.slice(0, rows.findLastIndex((cells) => !isBlank(cells) && !isDisclaimer(cells)) + 1);
}

/** A number with too many digits or too large an exponent. The document is refused only if a fact reads it. */
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

/** A parsed JSON document; numbers are exact decimals and keep their digits. */
export type Exact = null | boolean | string | Big | Oversized | readonly Exact[] | { readonly [name: string]: Exact };

/** @throws TidemarkError if the text is not JSON; the message says so if it is a page instead. */
export function parseJson(text: string): Exact {
  if (/^\s*</.test(text)) throw unreadable(`the document is a page where JSON was expected: ${shown(text.trim())}`);
  try {
    // The third argument has the digits as written; TypeScript does not know it yet.
    const exact = (_name: string, value: unknown, context?: { readonly source?: string }) => {
      if (typeof value !== 'number') return value;
      const source = context!.source!;
      return boundedDecimal(source) ?? new Oversized(source);
    };
    return JSON.parse(text, exact) as Exact;
  } catch (cause) {
    throw unreadable(`the document is not complete JSON`, cause);
  }
}

const NAMES_FUND = /^(?:fund|etf|product)?_?(?:ticker|symbol)$/i;
const TITLES_FUND = /^(?:fund|etf|product)_?(?:name|title)$/i;

/**
 * For layouts that may state the fund's ticker or name. Of the funds of an issuer, one is of Bitcoin.
 * @throws TidemarkError if one of these objects has a ticker, and it is not this one, or a name without Bitcoin.
 */
export function refuseOther(ticker: string, ...objects: readonly JsonPath[]): void {
  for (const one of objects) {
    for (const name of Object.keys(Object(one.value))) {
      const { value, path } = one.at(name);
      if (typeof value !== 'string' || value.trim() === '') continue;
      const isOther =
        (NAMES_FUND.test(name) && !value.split(/[^A-Za-z0-9]+/).includes(ticker)) ||
        (TITLES_FUND.test(name) && !/bitcoin/i.test(value));
      if (isOther) throw unreadable(`the fund is ${shown(value)} (${path}), not ${ticker}`);
    }
  }
}

/**
 * The day that these paths state: `YYYY-MM-DD`. Some may be missing or null.
 * @throws TidemarkError if none states a day, or if they state several: then their values are not of one day.
 */
export function oneDay(...paths: readonly JsonPath[]): string {
  const first = parseAsOf(firstText(...paths), paths[0].path);
  for (const one of paths) {
    const text = one.exists ? one.text() : null;
    const day = text === null ? first : parseAsOf(text, one.path);
    if (day !== first)
      throw unreadable(`the document is of two days: ${paths[0].path} is ${first}, ${one.path} ${day}`);
  }
  return first;
}

/** The text of the first of these paths that has one. @throws TidemarkError if none has. */
export function firstText(...paths: readonly JsonPath[]): string {
  const found = paths.find((one) => one.exists && one.text() !== null)?.text();
  if (!found) throw unreadable(`${paths.map(({ path }) => path).join(' and ')} ${MISSING[paths.length]}`);
  return found;
}

const MISSING: Readonly<Record<number, string>> = { 1: 'is missing', 2: 'are missing' };

/** A value in a document and its path, which the errors name. */
export class JsonPath {
  readonly value: Exact | undefined;
  readonly path: string;

  constructor(value: Exact | undefined, path: string) {
    this.value = value;
    this.path = path;
  }

  at(...names: readonly (string | number)[]): JsonPath {
    let found: JsonPath = this;
    for (const name of names) {
      const { value } = found;
      const isBranch = typeof value === 'object' && value !== null && !(value instanceof Big);
      const next = isBranch && Object.hasOwn(value, name) ? (value as Record<string | number, Exact>)[name] : undefined;
      found = new JsonPath(next, found.path === '' ? `${name}` : `${found.path}.${name}`);
    }
    return found;
  }

  /** The entries of a list. @throws TidemarkError if it is not a list. */
  list(max: number): JsonPath[] {
    if (!Array.isArray(this.value)) throw unreadable(`${this.path} is not a list: ${shown(this.value)}`);
    if (this.value.length > max) throw unreadable(`${this.path} has ${this.value.length} entries, more than ${max}`);
    return this.value.map((value, index) => new JsonPath(value, `${this.path}[${index}]`));
  }

  /** Whether the document has the path, whatever its value. */
  get exists(): boolean {
    return this.value !== undefined;
  }

  /**
   * The text, or null if the document states null.
   * @throws TidemarkError if it is not a text, or missing because it was renamed.
   */
  text(): string | null {
    const value = this.#known();
    if (value === null) return null;
    if (typeof value !== 'string') throw unreadable(`${this.path} is not a text: ${shown(value)}`);
    return value.trim() === '' ? null : value.trim();
  }

  /** The number, written as number or text, or null if the document states null. @throws like `text`. */
  number(): Printed | null {
    const value = this.#known();
    if (value === null) return null;
    if (value instanceof Big) return Printed.ofJson(value);
    if (typeof value !== 'string') throw unreadable(`${this.path} is not a number: ${shown(value)}`);
    return parseNumber(value, this.path);
  }

  /** The number; null also where the document does not have the path. */
  optional(): Printed | null {
    return this.exists ? this.number() : null;
  }

  #known(): Exact {
    if (this.value === undefined) throw unreadable(`the document has no ${this.path}`);
    return this.value;
  }
}
