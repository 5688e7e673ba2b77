/** The operator's page in a real Chromium, over a real system with a proved, a missing and a quarantined day. */
import type { Browser, BrowserContextOptions, Page } from 'playwright-core';
import { SignIn } from '../../serving/routes/sign-in.ts';
import { openBrowser, openPage, type Watched } from './browser.ts';
import { exportSettings } from './exports.ts';
import { csvOf, System, writeDocument } from './pipeline.ts';
import { API_KEY, type Serving, startServing } from './serving.ts';

/** Proved, proved, missing, proved, quarantined: its ids are taken. */
export const DAYS = ['2024-01-01', '2024-01-02', '2024-01-04', '2024-01-05'];
export const ROWS = 400;

export interface PageWorld extends AsyncDisposable {
  readonly system: System;
  /** Of a link that signs in once. */
  readonly signIn: SignIn;
  readonly serving: Serving;
  readonly browser: Browser;
}

export async function makePageWorld(): Promise<PageWorld> {
  await using parts = new AsyncDisposableStack();
  const system = parts.use(await System.create());
  for (const [index, day] of DAYS.entries()) {
    const firstId = index === 3 ? 1 : 1 + index * ROWS;
    await writeDocument(system.vendor, day, csvOf({ day, rows: ROWS, firstId, seed: index, timeUnit: 'ms' }));
  }
  for (const [from, to] of [DAYS.slice(0, 2), [DAYS[2], DAYS[2]], [DAYS[3], DAYS[3]]]) await system.backfill(from, to);
  const settings = exportSettings(system.env, { SVC_NATS_READER_URL: system.env.natsReaderUrl });
  const signIn = new SignIn(API_KEY);
  const serving = parts.use(await startServing({ databaseUrl: system.env.databaseUrl, settings, signIn }));
  serving.app.exports.work();
  const browser = parts.adopt(await openBrowser(), (opened) => opened.close());
  const kept = parts.move();
  return { system, signIn, serving, browser, [Symbol.asyncDispose]: () => kept.disposeAsync() };
}

export interface EnterOptions {
  readonly context?: BrowserContextOptions;
  /** The view, as the address's fragment names it. */
  readonly hash?: string;
  /** Before the page is loaded. */
  readonly prepare?: (page: Page) => Promise<void>;
}

/** Opened with the key entered as a reader does. */
export async function enter(
  browser: Browser,
  { url }: { readonly url: string },
  { context, hash = '', prepare }: EnterOptions = {},
): Promise<Watched> {
  const watched = await openPage(browser, url, context);
  const { page } = watched;
  await prepare?.(page);
  await page.goto(`${url}/${hash}`);
  await page.locator('#key-input').fill(API_KEY);
  await page.keyboard.press('Enter');
  await loaded(page);
  return watched;
}

/** What the page shows of every system is there. */
export async function loaded(page: Page): Promise<void> {
  await page.locator('main h1').first().waitFor();
}

/** The button of a day in the calendar. */
export const dayOf = (page: Page, name: string) => page.getByRole('button', { name: new RegExp(`^${name},`) });
