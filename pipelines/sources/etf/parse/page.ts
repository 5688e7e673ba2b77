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
  /** The same, with a ROW_END where a row of a table or a definition ends: no value belongs to a label before it. */
  readonly rows: readonly string[];
}

/** A sign for the end of a record, which no page has reason to show. */
const ROW_END = '\u241e';

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
    .not('nav *, header nav *, footer *, aside *, [role="navigation"] *')
    .toArray()
    .map((element) => page(element).text().trim())
    .filter((text) => text !== '');
  page('head').remove();
  page('tr').append(ROW_END);
  page('dt').before(ROW_END);
  const rows = linesBelow(page.root().toArray());
  return { headings, lines: rows.filter((line) => line !== ROW_END), rows };
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

/** A ticker in a heading that is not all capitals: in parentheses anywhere, or as its first word. */
const OTHER_TICKER = /\(([A-Z]{3,5})\)|^([A-Z]{4,5})\b/g;
const NO_TICKER = new Set(['ETF', 'ETP', 'USD', 'NYSE', 'CBOE', 'ETFS']);

/** @throws TidemarkError unless title or main heading name the fund, and none is about another one. */
export function requireHeading({ headings }: Page, name: RegExp, ticker: string): void {
  const others = headings
    .filter((text) => /\p{Ll}/u.test(text))
    .flatMap((text) => [...text.matchAll(OTHER_TICKER)].map(([, enclosed, first]) => enclosed ?? first))
    .filter((found) => found !== ticker && !NO_TICKER.has(found));
  if (others.length === 0 && headings.some((text) => name.test(text))) return;
  const what =
    others.length > 0
      ? `the page is about ${others[0]}, not ${ticker}`
      : `neither title nor heading of the page names ${ticker}`;
  throw unreadable(`${what}: ${shown(headings.join(' / '))}`);
}

const AS_OF = /^As of (.+)$/i;
const SCALE = /^(?:[KMBT]|thousand|million|billion|trillion|%)$/i;
const VALUE = /^[+\-\u2212(]?\$?[+\-\u2212(]?[\d.,]*\d[\d.,]*(?:e[+-]?\d+)?\)?[KMBT%]?$/i;
const NO_VALUE = /^[-\u2010-\u2015\u2212]+$/;
/** Most lines from a label to its value: with its explanation and its date. */
const WITHIN = 6;

export const isValue = (line: string | undefined): boolean =>
  line !== undefined && (VALUE.test(line) || NO_VALUE.test(line));

export interface Labelled {
  readonly text: string;
  /** `YYYY-MM-DD`; undefined if there is no date beside the value. */
  readonly date?: string;
}

const BUTTON = /^(?:close|info|more info|learn more|help)$/i;
/** A shorter line is another label. */
const EXPLAINING_WORDS = 5;

/** What a page says about a label between it and its value: the text of a tooltip and its button. */
const explains = (line: string): boolean =>
  BUTTON.test(line) || /^\p{Ll}/u.test(line) || line.split(' ').length >= EXPLAINING_WORDS;

/** The labels of a page. A label ends where the next one begins, be it known or not: its value is before that or nowhere. */
export class Labels {
  readonly #lines: readonly string[];
  readonly #labels: ReadonlySet<string>;

  constructor({ rows }: Page, labels: readonly string[]) {
    this.#lines = rows;
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
      if (line === undefined || line === ROW_END || this.#labels.has(line)) return undefined;
      const date = AS_OF.exec(line)?.[1];
      const after = AS_OF.exec(this.#lines[at + (date === undefined ? 1 : 2)] ?? '')?.[1];
      if (date !== undefined) {
        if (!isValue(this.#lines[at + 1])) return undefined;
        if (after !== undefined) throw unreadable(`"${name}" has two dates: ${shown(date)} and ${shown(after)}`);
        return { text: this.#whole(at + 1, name), date: parseAsOf(date, name) };
      }
      const hasDigits = /\d/.test(line);
      if (!isDated && isValue(line)) {
        return { text: this.#whole(at, name), date: after === undefined ? undefined : parseAsOf(after, name) };
      }
      if (!isDated && hasDigits) throw unreadable(`the value of "${name}" is not a number: ${shown(line)}`);
      if (!hasDigits && !explains(line)) return undefined;
    }
    return undefined;
  }

  /** @throws TidemarkError if the next line could be the value as well, or belong to it: its scale or its other digits. */
  #whole(at: number, name: string): string {
    for (let next = at + 1; next <= at + WITHIN; next++) {
      const line = this.#lines[next];
      if (line === undefined || line === ROW_END || this.#labels.has(line)) break;
      if ((next === at + 1 && SCALE.test(line)) || isValue(line))
        throw unreadable(
          `the value of "${name}", ${shown(this.#lines[at])}, is followed by ${shown(line)} on a line of its own`,
        );
      if (!AS_OF.test(line) && !explains(line)) break;
    }
    return this.#lines[at];
  }
}
