/** A real Chromium. */

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { type Browser, type BrowserContextOptions, type Page, chromium as playwright } from 'playwright-core';
import { PATIENCE_MS } from './patience.ts';
import { chromium } from './tools.ts';

export const CHROMIUM = await chromium();

/** Quiet: it asks nobody for anything. */
const ARGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** With a fresh profile of its own. */
export const openBrowser = (): Promise<Browser> => playwright.launch({ executablePath: CHROMIUM.path, args: ARGS });

export interface Watched extends AsyncDisposable {
  readonly page: Page;
  /** What it complained about, and what it asked of others than `origin`. */
  readonly faults: readonly string[];
}

export async function openPage(
  browser: Browser,
  origin: string,
  options: BrowserContextOptions = {},
): Promise<Watched> {
  const context = await browser.newContext({ viewport: { width: 1366, height: 900 }, ...options });
  const page = await context.newPage();
  const faults: string[] = [];
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) faults.push(`${message.type()}: ${message.text()}`);
  });
  page.on('pageerror', (error) => faults.push(`exception: ${error.stack ?? error.message}`));
  page.on('request', (request) => {
    const { protocol, origin: asked } = new URL(request.url());
    if (protocol !== 'data:' && protocol !== 'blob:' && asked !== origin) faults.push(`outside: ${request.url()}`);
  });
  page.setDefaultTimeout(PATIENCE_MS);
  return { page, faults, [Symbol.asyncDispose]: () => context.close() };
}

const CHECKS = readFileSync(new URL('./page-checks.js', import.meta.url), 'utf8');

/** Texts that are harder to read on their ground than WCAG's AA asks for. */
export const lowContrast = (page: Page): Promise<string[]> => page.evaluate(`${CHECKS}; lowContrast()`);

/** Controls that a screen reader could not name. */
export const nameless = (page: Page): Promise<string[]> => page.evaluate(`${CHECKS}; nameless()`);

/** What makes the page scroll sideways. */
export const tooWide = (page: Page): Promise<string[]> => page.evaluate(`${CHECKS}; tooWide()`);

/** WCAG to level AA, what is good practice beside it, and rules that axe-core still calls experimental. */
const AXE_TAGS = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice', 'experimental'];

interface AxeResults {
  readonly violations: readonly { readonly id: string; readonly nodes: readonly { readonly html: string }[] }[];
}

/** Half of axe-core's work. What it finds at one width it finds at every other; `lowContrast` looks at the other colours. */
export const CONTRAST = 'color-contrast';

/** Rules of axe-core that the page breaks in the state it is in, each with the first elements that break it. */
export async function brokenRules(page: Page, without: readonly string[] = []): Promise<string[]> {
  const rules = Object.fromEntries(without.map((rule) => [rule, { enabled: false }]));
  const options = { runOnly: AXE_TAGS, rules, resultTypes: ['violations'] };
  const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  const results: AxeResults = await page.evaluate(`${axe}; axe.run(document, ${JSON.stringify(options)})`);
  return results.violations.map(({ id, nodes }) => {
    const elements = nodes.slice(0, 5).map(({ html }) => html.slice(0, 200));
    return `${id}, ${nodes.length} times: ${elements.join(' | ')}`;
  });
}
