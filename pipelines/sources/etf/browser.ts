/**
 * Opens pages that are built by scripts in a real Chromium. The document is the resulting page, or the answers that it
 * requested.
 */
import type { Browser, Page, Response } from 'playwright-core';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import { checkAddress } from '../documents/addresses.ts';
import { displayUrl, isFollowed } from '../documents/locations.ts';
import type { IssuerDocument } from './issuers/issuer.ts';

export interface PageBrowser extends AsyncDisposable {
  /** Returns the page once its network is idle, or the answers that it requested. */
  document(url: URL, answers?: IssuerDocument['answers']): Promise<Buffer>;
}

export interface BrowserOptions {
  /** Path of the Chromium; undefined if none is configured. */
  readonly path?: string;
  readonly timeoutMs: number;
  /** How long a loaded page may take to request its answers. Default `timeoutMs`. */
  readonly answersMs?: number;
  readonly signal: AbortSignal;
}

/** Starts with the first page. Each page has its own profile, so visits share no state. */
export function pageBrowser({ path, timeoutMs, answersMs = timeoutMs, signal }: BrowserOptions): PageBrowser {
  let started: Promise<Browser> | undefined;
  const launch = async () => {
    if (path === undefined) {
      throw new TidemarkError(
        'CONFIGURATION_INVALID',
        'Only a browser can build this page: set SVC_BROWSER_PATH to a Chromium, or the base URL to a folder of archived documents',
      );
    }
    const { chromium } = await import('playwright-core');
    // Chromium cannot sandbox when it is started by root.
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

/** Takes a page whose network never becomes idle as it is at the timeout; its parser detects whether it is complete. */
async function contentOf(page: Page, url: URL): Promise<Buffer> {
  await visit(page, url);
  await page.waitForLoadState('networkidle').catch(() => {});
  return Buffer.from(await page.content());
}

/** Returns `{final_url, operations: {<name>: answer}}` with sorted keys. */
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
    await checkWay(response);
    found.set(name, await response.json());
    if (found.size === names.length) done.resolve();
  };
  // An answer that is not JSON stays missing, and the error below names it.
  page.on('response', (response) => void take(response).catch(() => {}));
  await visit(page, url);
  const timer = setTimeout(done.resolve, withinMs);
  await done.promise.finally(() => clearTimeout(timer));
  const missing = names.filter((name) => !found.has(name));
  if (missing.length > 0) {
    const wanted = `answers of ${path} with ${parameter} ${missing.join(', ')}`;
    throw new TidemarkError('SOURCE_LAYOUT_UNKNOWN', `${displayUrl(url)} did not request ${wanted}`);
  }
  const operations = Object.fromEntries([...names].sort().map((name) => [name, found.get(name)]));
  return Buffer.from(JSON.stringify({ final_url: page.url(), operations }));
}

/**
 * Holds the redirects that led to a response to the rule of all documents. Chromium has sent the requests by then; what they answer
 * is not taken. @throws AddressRefused
 */
async function checkWay(response: Response): Promise<void> {
  const way: Response[] = [];
  for (let request = response.request() as ReturnType<Response['request']> | null; request; ) {
    const answer = await request.response();
    if (answer) way.unshift(answer);
    request = request.redirectedFrom();
  }
  const base = (await way[0].serverAddr())?.ipAddress;
  for (const [at, next] of way.entries()) {
    if (at === 0) continue;
    const [from, to] = [new URL(way[at - 1].url()), new URL(next.url())];
    const found = (await next.serverAddr())?.ipAddress;
    if (!isFollowed(from, to)) throw new Error(`redirects to ${to.protocol}//, which is not followed`);
    if (found !== undefined) checkAddress(to.hostname, found, base);
  }
}

async function visit(page: Page, url: URL): Promise<void> {
  const response = await page.goto(url.href, { waitUntil: 'load' });
  if (response) await checkWay(response);
  const status = response?.status() ?? 0;
  if (status === 404 || status === 410) {
    throw new TidemarkError('SOURCE_NOT_FOUND', `${displayUrl(url)} answered ${status}`);
  }
  if (status >= 400) throw new TidemarkError('SOURCE_UNREACHABLE', `${displayUrl(url)} answered ${status}`);
}

/** The first line of a message; playwright appends a call log. */
const first = (cause: unknown): string => explain(cause).split('\n')[0];
