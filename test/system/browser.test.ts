/** What is meant for browsers, in a real Chromium: the reference at /docs, and the client on a page of another origin. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { brokenRules, CHROMIUM, lowContrast, nameless, openBrowser, openPage, tooWide } from '../support/browser.ts';
import { ROOT } from '../support/command.ts';
import { given } from '../support/given.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { API_KEY, type Serving, startServing } from '../support/serving.ts';

const DAY = '2024-01-01';
const ROWS = 3000;

given(CHROMIUM !== undefined, 'there is no Chromium').describe('in a browser', () => {
  let system: System;
  let serving: Serving;
  let browser: Browser;
  /** Another origin, with the client as `npm run client` writes it. */
  let site: Server;
  let origin: string;
  beforeAll(async () => {
    system = await System.create();
    await writeDocument(system.vendor, DAY, csvOf({ day: DAY, rows: ROWS, firstId: 1, seed: 1, timeUnit: 'ms' }));
    expect((await system.backfill(DAY, DAY)).exit).toBe(0);
    const dist = join(system.env.dir, 'client');
    execFileSync(join(ROOT, 'node_modules/.bin/tsc'), ['-p', join(ROOT, 'client'), '--outDir', dist]);
    site = createServer(({ url }, response) => {
      const isScript = url!.endsWith('.js');
      response.writeHead(200, { 'Content-Type': isScript ? 'text/javascript' : 'text/html' });
      response.end(isScript ? readFileSync(join(dist, url!)) : '<!doctype html><link rel="icon" href="data:,">');
    });
    await new Promise<void>((resolve) => site.listen(0, '127.0.0.1', resolve));
    origin = `http://127.0.0.1:${(site.address() as AddressInfo).port}`;
    serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl, SVC_HTTP_CORS_ORIGINS: origin },
    });
    browser = await openBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    site?.close();
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  test.each(['light', 'dark'] as const)(
    '/docs can be read in %s at every width, copies its commands, and loads nothing',
    async (colorScheme) => {
      await using watched = await openPage(browser, serving.url, {
        colorScheme,
        permissions: ['clipboard-read', 'clipboard-write'],
      });
      const { page, faults } = watched;
      await page.goto(`${serving.url}/docs`);
      await page.getByRole('heading', { level: 1, name: /Tidemark/ }).waitFor();
      expect(await page.locator('[data-origin]').first().textContent()).toBe(serving.url);
      const copy = page.locator('.command button').nth(1);
      await copy.scrollIntoViewIfNeeded();
      await copy.click();
      const command = await page.locator('.command code').nth(1).textContent();
      await expect.poll(() => page.evaluate('navigator.clipboard.readText()')).toBe(command);
      await page.getByRole('link', { name: /POST raw\/query/ }).click();
      await expect.poll(() => page.url()).toContain('#');
      for (const width of [1366, 390]) {
        await page.setViewportSize({ width, height: 800 });
        await expect.poll(() => tooWide(page), { message: `${width} px` }).toEqual([]);
      }
      await page.setViewportSize({ width: 1366, height: 800 });
      expect(await nameless(page)).toEqual([]);
      expect(await lowContrast(page)).toEqual([]);
      expect(faults).toEqual([]);
    },
  );

  test.each([1366, 390])('axe-core finds no rule broken by /docs at %i px', async (width) => {
    await using watched = await openPage(browser, serving.url, { viewport: { width, height: 800 } });
    const { page } = watched;
    await page.goto(`${serving.url}/docs`);
    await page.locator('.command button').first().waitFor();
    expect(await brokenRules(page)).toEqual([]);
    // What is folded is not looked at until it is open.
    await page.evaluate('for (const one of document.querySelectorAll("details")) one.open = true');
    expect(await brokenRules(page)).toEqual([]);
  });

  /** Runs a module on the other origin's page. @returns what it leaves in `result`. */
  async function onSite(body: string): Promise<{ readonly result: unknown; readonly faults: readonly string[] }> {
    await using watched = await openPage(browser, origin);
    const { page, faults } = watched;
    await page.goto(origin);
    const result = await page.evaluate(`(async () => {
      const { HistoricalData, ...errors } = await import('/index.js');
      const data = new HistoricalData({ baseUrl: ${JSON.stringify(serving.url)}, apiKey: ${JSON.stringify(API_KEY)}, maxAttempts: 1 });
      ${body}
    })()`);
    return { result, faults: faults.filter((fault) => !fault.startsWith(`outside: ${serving.url}`)) };
  }

  test('the client reads rows at once, one by one and as Arrow, from another origin', async () => {
    const { result, faults } = await onSite(`
      const { rows, row_count, warnings } = await data.get_${DATASET}({ start_date: '${DAY}', end_date: '${DAY}' });
      let counted = 0;
      for await (const { trade_id } of data.get_${DATASET}({ fields: ['trade_id'] })) {
        counted++;
        if (trade_id === 2500) break;
      }
      const bytes = await data.get_${DATASET}({ n_latest_rows: 10 }).arrow();
      return [rows.length, row_count, rows[0].trade_id, warnings.length, counted, bytes.byteLength > 500];`);
    expect(result).toEqual([ROWS, ROWS, 1, 0, 2500, true]);
    expect(faults).toEqual([]);
  });

  test('the client tells faults by class and code there, too', async () => {
    const { result } = await onSite(`
      const caught = async (promise) => promise.then(() => 'none', (error) => [error.constructor.name, error.code]);
      const none = new HistoricalData({ baseUrl: ${JSON.stringify(serving.url)}, apiKey: 'wrong', maxAttempts: 1 });
      const away = new HistoricalData({ baseUrl: 'http://127.0.0.1:1', apiKey: 'x', maxAttempts: 1 });
      return [
        await caught(data.get_${DATASET}({ start_date: '2024-01-09', end_date: '2024-01-02' })),
        await caught(none.get_${DATASET}({ n_latest_rows: 1 })),
        (await caught(away.get_${DATASET}({ n_latest_rows: 1 })))[0],
      ];`);
    expect(result).toEqual([
      ['ContractError', 'HISTORICAL_CONTRACT_ERROR'],
      ['KeyError', 'AUTH_INVALID_API_KEY'],
      'ConnectionError',
    ]);
  });

  test('a page whose origin is not allowed gets no rows', async () => {
    await using other = await startServing({ databaseUrl: system.env.databaseUrl });
    await using watched = await openPage(browser, origin);
    await watched.page.goto(origin);
    const outcome = await watched.page.evaluate(
      `fetch('${other.url}/v1/datasets', { headers: { 'X-API-Key': '${API_KEY}' } }).then(() => 'read', (error) => error.name)`,
    );
    expect(outcome).toBe('TypeError');
    expect(watched.faults.join()).toContain('blocked by CORS policy');
  });
});
