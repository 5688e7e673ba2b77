/** Reads an issuer's page as text lines, and the values of its labels. */

import { createRequire } from 'node:module';
import { parseAsOf, shown, unreadable } from './fields.ts';
import { requirePage } from './tables.ts';

/** Loaded with the first page: it takes 140 ms, and every command and every projector imports this module. */
const cheerio = () => createRequire(import.meta.url)('cheerio') as typeof import('cheerio');

/** What a visitor does not see as text of the page. A raised number is that of a footnote. */
const UNSEEN = [
  'script, style, noscript, template, sup, [hidden], [aria-hidden="true"], [role="tooltip"], [popover], dialog:not([open])',
  '[style*="display:none"], [style*="display: none"], [style*="visibility:hidden"], [style*="visibility: hidden"]',
].join(', ');
/** A class of what is shown on demand; not of the element that shows it. */
const TOOLTIP = /tooltip|popover/i;
const SHOWS_TOOLTIP = /^(?:has|with)|trigger|target|host|wrapper|container|label|icon/i;

export interface Page {
  /** Title and main headings: what the page says that it is about. */
  readonly headings: readonly string[];
  /** The page's text in the order of the page: every tag ends a line, blank lines are dropped. */
  readonly lines: readonly string[];
}

interface PageNode {
  readonly type: string;
  readonly data?: string;
  readonly children?: readonly PageNode[];
}

/** @throws TidemarkError if the page is foreign or truncated. */
export function readPage(html: string): Page {
  requirePage(html);
  const page = cheerio().load(html);
  page(UNSEEN).remove();
  for (const element of page('[class*="tooltip" i], [class*="popover" i]').toArray()) {
    const classes = (page(element).attr('class') ?? '').split(/\s+/);
    if (classes.some((name) => TOOLTIP.test(name) && !SHOWS_TOOLTIP.test(name))) page(element).remove();
  }
  const headings = page('title, h1')
    .toArray()
    .map((element) => page(element).text().trim())
    .filter((text) => text !== '');
  page('head').remove();
  return { headings, lines: linesBelow(page.root().toArray()) };
}

const isShown = ({ type }: PageNode) => type === 'text' || type === 'tag';

/** Done by hand: a selection that grows by concatenation takes seconds for a page of several thousand rows. */
function linesBelow(nodes: readonly PageNode[]): string[] {
  const texts: string[] = [];
  const pending = [...nodes];
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

/** @throws TidemarkError unless title or main heading name the fund. */
export function requireHeading({ headings }: Page, name: RegExp, ticker: string): void {
  if (headings.some((text) => name.test(text))) return;
  throw unreadable(`neither title nor heading of the page names ${ticker}: ${shown(headings.join(' / '))}`);
}

const AS_OF = /^As of (.+)$/i;
const SCALE = /^(?:[KMBT]|thousand|million|billion|trillion|%)$/i;
const VALUE = /^[+\-\u2212(]?\$?[+\-\u2212(]?[\d.,]*\d[\d.,]*(?:e[+-]?\d+)?\)?[KMBT%]?$/i;
const NO_VALUE = /^[-\u2010-\u2015\u2212]+$/;
/** Most lines between a label and its value: its explanation, its date. */
const WITHIN = 6;

export const isValue = (line: string | undefined): boolean =>
  line !== undefined && (VALUE.test(line) || NO_VALUE.test(line));

export interface Labelled {
  readonly text: string;
  /** `YYYY-MM-DD`; undefined if there is no date between label and value. */
  readonly date?: string;
}

/** The labels of a page. A label's text ends where the next label begins. */
export class Labels {
  readonly #lines: readonly string[];
  readonly #labels: ReadonlySet<string>;

  constructor({ lines }: Page, labels: readonly string[]) {
    this.#lines = lines;
    this.#labels = new Set(labels);
  }

  /** The value of a label that has a date: it follows the date, and a number before the date is not the value. */
  dated(label: string): Labelled & { readonly date: string } {
    const { text, date } = this.#only(label, true);
    return { text, date: date! };
  }

  /** The value of a label, and its date if it has one. */
  value(label: string): Labelled {
    return this.#only(label, false);
  }

  /** The same; undefined if the page has no such label. */
  optional(label: string): Labelled | undefined {
    return this.#lines.includes(label) ? this.value(label) : undefined;
  }

  /** Places of the label. @throws TidemarkError if there is none. */
  places(label: string): number[] {
    const places = this.#lines.flatMap((line, at) => (line === label ? [at] : []));
    if (places.length === 0) throw unreadable(`the page has no label "${label}"`);
    return places;
  }

  /**
   * A label may be repeated, in a menu or above a table. @throws TidemarkError if none of its places has a value, or if two
   * have different ones.
   */
  #only(label: string, isDated: boolean): Labelled {
    const found = this.places(label).map((at) => this.#valueAfter(at, label, isDated));
    const [first, ...more] = found.filter((one) => one !== undefined);
    if (first === undefined) {
      const what = isDated ? 'a date and its value' : 'a value';
      throw unreadable(`"${label}" is not followed by ${what} within ${WITHIN} lines`);
    }
    const other = more.find(({ text, date }) => text !== first.text || date !== first.date);
    if (other) throw unreadable(`"${label}" has two values: ${shown(first.text)} and ${shown(other.text)}`);
    return first;
  }

  #valueAfter(label: number, name: string, isDated: boolean): Labelled | undefined {
    for (let at = label + 1; at <= label + WITHIN; at++) {
      const line = this.#lines[at];
      if (line === undefined || this.#labels.has(line)) return undefined;
      const date = AS_OF.exec(line)?.[1];
      if (date !== undefined) {
        if (!isValue(this.#lines[at + 1])) return undefined;
        return { text: this.#whole(at + 1, name), date: parseAsOf(date, name) };
      }
      if (isDated || !/\d/.test(line)) continue;
      if (!isValue(line)) throw unreadable(`the value of "${name}" is not a number: ${shown(line)}`);
      const after = AS_OF.exec(this.#lines[at + 1] ?? '')?.[1];
      return { text: this.#whole(at, name), date: after === undefined ? undefined : parseAsOf(after, name) };
    }
    return undefined;
  }

  /** @throws TidemarkError if the next line could be the value as well, or belong to it: its scale or its other digits. */
  #whole(at: number, name: string): string {
    const next = this.#lines[at + 1] ?? '';
    if (SCALE.test(next) || isValue(next))
      throw unreadable(
        `the value of "${name}", ${shown(this.#lines[at])}, is followed by ${shown(next)} on a line of its own`,
      );
    return this.#lines[at];
  }
}
