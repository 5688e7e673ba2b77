/** Pages: what a reader sees, line by line. */
import { createRequire } from 'node:module';
import { unreadable } from './fault.ts';

/** Loaded with the first page: it takes 140 ms, and every command and every projector starts with this module. */
const cheerio = () => createRequire(import.meta.url)('cheerio') as typeof import('cheerio');

/** What stands on pages that are not the issuer's: a bot check, a block, an error. */
const FOREIGN = [
  /security checkpoint/i,
  /verify (?:that )?you are (?:a )?human/i,
  /access denied/i,
  /enable javascript and cookies/i,
  /attention required/i,
  /request unsuccessful/i,
];

/** @throws TidemarkError when the page is a bot check or a block. */
export function refuseForeign(html: string): void {
  const found = FOREIGN.map((pattern) => pattern.exec(html)?.[0]).find((text) => text !== undefined);
  if (found) throw unreadable(`the page is not the issuer's: it says "${found}"`);
}

/** @throws TidemarkError when the page is another's, or does not come to its end. */
export function requirePage(html: string): void {
  refuseForeign(html);
  if (!/<\/html>\s*$/i.test(html)) throw unreadable('the page does not end: it is truncated, or no page');
}

interface PageNode {
  readonly type: string;
  readonly data?: string;
  readonly children?: readonly PageNode[];
}

const isElement = ({ type }: PageNode) => type === 'tag' || type === 'script' || type === 'style';

/** Every tag ends a line; scripts and styles are no text; blank lines are dropped. */
export function linesOf(html: string): string[] {
  requirePage(html);
  const page = cheerio().load(html);
  page('script, style, noscript, template').remove();
  const texts: string[] = [];
  // By hand: a selection that grows by concatenation takes seconds on a page of some thousand rows.
  const pending: PageNode[] = page.root().toArray();
  for (let node = pending.pop(); node; node = pending.pop()) {
    const { children = [] } = node;
    for (const { type, data = '' } of children) if (type === 'text') texts.push(data);
    for (const child of children.toReversed()) if (isElement(child)) pending.push(child);
  }
  return texts
    .join('\n')
    .replaceAll('\u00a0', ' ')
    .split('\n')
    .map((line) => line.trim().replaceAll(/\s+/g, ' '))
    .filter((line) => line !== '');
}

/** Lines of a page, read from a label on. */
export class Lines {
  readonly #lines: readonly string[];

  constructor(lines: readonly string[]) {
    this.#lines = lines;
  }

  /** Index of the first line from `from` on that is the label. @throws TidemarkError naming it when there is none. */
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
    if (fitting.length !== 1) throw unreadable(`the page has ${fitting.length} places "${label}", not 1`);
    return fitting[0];
  }

  /** The first of the `within` lines after `at` that fits. @throws TidemarkError naming the label. */
  after(at: number, within: number, label: string, fits: (line: string) => boolean): string {
    const found = this.#lines.slice(at + 1, at + 1 + within).find(fits);
    if (found === undefined) throw unreadable(`"${label}" is not followed by a value within ${within} lines`);
    return found;
  }

  line(at: number): string | undefined {
    return this.#lines[at];
  }
}
