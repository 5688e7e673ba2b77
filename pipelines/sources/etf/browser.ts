/** Pages that build themselves: a real Chromium opens them, and what it then has is the document. */
import type { Browser, Page, Response } from 'playwright-core';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import { displayUrl } from '../documents/locations.ts';
import type { IssuerDocument } from './issuers/types.ts';

export interface PageBrowser extends AsyncDisposable {
  /** The page as it stands when the network is quiet, or the answers it asked for. */
  document(url: URL, answers?: IssuerDocument['answers']): Promise<Buffer>;
}

export interface BrowserOptions {
  /** Of the Chromium to run; undefined: there is none. */
  readonly path?: string;
  readonly timeoutMs: number;
  /** How long a loaded page may take to request its answers; default `timeoutMs`. */
  readonly answersMs?: number;
  readonly signal: AbortSignal;
}

/** Starts with the first page. Each page has a profile of its own, so that no visit knows of another. */
export function pageBrowser({ path, timeoutMs, answersMs = timeoutMs, signal }: BrowserOptions): PageBrowser {
  let started: Promise<Browser> | undefined;
  const launch = async () => {
    if (path === undefined) {
      throw new TidemarkError(
        'CONFIGURATION_INVALID',
        'The page builds itself in a browser: SVC_BROWSER_PATH has to name a Chromium, or the base URL a folder of archived documents',
      );
    }
    const { chromium } = await import('playwright-core');
    // Chromium refuses to sandbox what root starts.
    return await chromium.launch({
      executablePath: path,
      chromiumSandbox: process.getuid?.() !== 0,
      timeout: timeoutMs,
    });
  };
  return {
    async document(url, answers) {
      started ??= launch();
      const browser = await started.catch((cause) => {
        started = undefined;
        if (cause instanceof TidemarkError) throw cause;
        throw new TidemarkError('CONFIGURATION_INVALID', `SVC_BROWSER_PATH: ${path} does not start: ${first(cause)}`, {
          cause,
        });
      });
      const context = await browser.newContext();
      const close = () => void context.close().catch(() => {});
      signal.addEventListener('abort', close, { once: true });
      try {
        const page = await context.newPage();
        page.setDefaultTimeout(timeoutMs);
        return answers ? await answersOf(page, url, answers, answersMs) : await contentOf(page, url);
      } catch (cause) {
        signal.throwIfAborted();
        if (cause instanceof TidemarkError) throw cause;
        throw new TidemarkError('SOURCE_UNREACHABLE', `${displayUrl(url)} cannot be opened: ${first(cause)}`, {
          cause,
        });
      } finally {
        signal.removeEventListener('abort', close);
        await context.close().catch(() => {});
      }
    },
    async [Symbol.asyncDispose]() {
      const browser = await started?.catch(() => undefined);
      await browser?.close().catch(() => {});
    },
  };
}

/** A page whose network is never quiet is taken as it stands in the end: its parser knows whether that is all of it. */
async function contentOf(page: Page, url: URL): Promise<Buffer> {
  await visit(page, url);
  await page.waitForLoadState('networkidle').catch(() => {});
  return Buffer.from(await page.content());
}

/** `{final_url, operations: {<name>: answer}}`, with sorted keys. */
async function answersOf(
  page: Page,
  url: URL,
  { path, parameter, names }: NonNullable<IssuerDocument['answers']>,
  withinMs: number,
): Promise<Buffer> {
  const found = new Map<string, unknown>();
  const done = Promise.withResolvers<void>();
  const take = async (response: Response) => {
    const at = new URL(response.url());
    const name = at.searchParams.get(parameter) ?? '';
    if (!at.href.includes(path) || !names.includes(name) || !response.ok()) return;
    found.set(name, await response.json());
    if (found.size === names.length) done.resolve();
  };
  // What is no JSON is missing in the end, and named then.
  page.on('response', (response) => void take(response).catch(() => {}));
  await visit(page, url);
  const timer = setTimeout(done.resolve, withinMs);
  await done.promise.finally(() => clearTimeout(timer));
  const missing = names.filter((name) => !found.has(name));
  if (missing.length > 0) {
    const wanted = `answers of ${path} with ${parameter} ${missing.join(', ')}`;
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `${displayUrl(url)} brought no ${wanted}`);
  }
  const operations = Object.fromEntries([...names].sort().map((name) => [name, found.get(name)]));
  return Buffer.from(JSON.stringify({ final_url: page.url(), operations }));
}

async function visit(page: Page, url: URL): Promise<void> {
  const response = await page.goto(url.href, { waitUntil: 'load' });
  const status = response?.status() ?? 0;
  if (status === 404 || status === 410) {
    throw new TidemarkError('SOURCE_NOT_FOUND', `${displayUrl(url)} answered ${status}`);
  }
  if (status >= 400) throw new TidemarkError('SOURCE_UNREACHABLE', `${displayUrl(url)} answered ${status}`);
}

/** Its messages go on with a call log. */
const first = (cause: unknown): string => explain(cause).split('\n')[0];
