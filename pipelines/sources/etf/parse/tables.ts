/** Reads an issuer's pages as text lines, its CSV tables, and its JSON documents. */

import { createRequire } from 'node:module';
import Big from 'big.js';
import { parse } from 'csv-parse/sync';
import { MAX_HOLDINGS } from './facts.ts';
import { boundedDecimal, parseNumber, shown, unreadable } from './fields.ts';

/** Loaded with the first page: it takes 140 ms, and every command and every projector imports this module. */
const cheerio = () => createRequire(import.meta.url)('cheerio') as typeof import('cheerio');

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

interface PageNode {
  readonly type: string;
  readonly data?: string;
  readonly children?: readonly PageNode[];
}

const isShown = ({ type }: PageNode) => type === 'text' || type === 'tag';

/**
 * The page's text in the order of the page: every tag ends a line, blank lines are dropped. Scripts and styles are left out,
 * and what is raised: the number of a footnote beside a label would be taken for the value of the label.
 */
export function linesOf(html: string): string[] {
  requirePage(html);
  const page = cheerio().load(html);
  page('script, style, noscript, template, sup').remove();
  const texts: string[] = [];
  // Done by hand: a selection that grows by concatenation takes seconds for a page of several thousand rows.
  const pending: PageNode[] = page.root().toArray();
  for (let node = pending.pop(); node; node = pending.pop()) {
    const { type, data = '', children = [] } = node;
    if (type === 'text') texts.push(data);
    for (const child of children.toReversed()) if (isShown(child)) pending.push(child);
  }
  return texts
    .join('\n')
    .replaceAll('\u00a0', ' ')
    .split('\n')
    .map((line) => line.trim().replaceAll(/\s+/g, ' '))
    .filter((line) => line !== '');
}

const SCALE = /^(?:[KMBT]|thousand|million|billion|trillion)$/i;

/** Text lines of a page, read relative to labels. */
export class Lines {
  readonly #lines: readonly string[];

  constructor(lines: readonly string[]) {
    this.#lines = lines;
  }

  /**
   * Index of the first line from `from` on that is the label.
   * @throws TidemarkError if there is none; its message names the label.
   */
  find(label: string, from = 0): number {
    const index = this.#lines.indexOf(label, from);
    if (index < 0) throw unreadable(`the page has no label "${label}"`);
    return index;
  }

  /** Index of the only line that is the label and is followed by what fits. @throws TidemarkError for none or several. */
  only(label: string, from: number, next: (line: string) => boolean = () => true): number {
    const fitting = this.#lines.flatMap((line, at) =>
      at >= from && line === label && next(this.#lines[at + 1] ?? '') ? [at] : [],
    );
    if (fitting.length !== 1) throw unreadable(`the page has "${label}" ${fitting.length} times, not once`);
    return fitting[0];
  }

  /**
   * The first of the `within` lines after `at` that fits. @throws TidemarkError; its message names the label. A scale on a line
   * of its own is refused: without it the value would be another one.
   */
  after(at: number, within: number, label: string, fits: (line: string) => boolean): string {
    const index = this.#lines.findIndex((line, place) => place > at && place <= at + within && fits(line));
    if (index < 0) throw unreadable(`"${label}" is not followed by a value within ${within} lines`);
    const next = this.#lines[index + 1] ?? '';
    if (SCALE.test(next))
      throw unreadable(`the value of "${label}" is followed by ${shown(next)} on a line of its own`);
    return this.#lines[index];
  }

  line(at: number): string | undefined {
    return this.#lines[at];
  }
}

export interface HtmlTable {
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
export function parseTable(text: string, firstLine: number): HtmlTable {
  let records: string[][];
  try {
    records = parse(text, { relax_column_count: true, skip_empty_lines: false, max_record_size: 64 * 1024 });
  } catch (cause) {
    throw unreadable('the table is damaged', cause);
  }
  const [header = [], ...all] = records;
  const body = withoutDisclaimers(all);
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
  number(): Big | null {
    const value = this.#known();
    if (value === null || value instanceof Big) return value;
    if (typeof value !== 'string') throw unreadable(`${this.path} is not a number: ${shown(value)}`);
    return parseNumber(value, this.path);
  }

  #known(): Exact {
    if (this.value === undefined) throw unreadable(`the document has no ${this.path}`);
    return this.value;
  }
}
