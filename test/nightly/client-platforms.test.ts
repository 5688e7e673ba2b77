/**
 * The client as `npm run client` writes it: in the oldest Node it supports, in this one, and in Chromium on a page of
 * another origin.
 */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CHROMIUM, openBrowser, openPage } from '../support/browser.ts';
import { type ClientSite, EXPECTED, noNode, openClientSite, SCRIPT } from '../support/client-site.ts';
import { givenTool } from '../support/given.ts';
import { csvOf, DATASET, System, writeDocument } from '../support/pipeline.ts';
import { API_KEY, type Serving, startServing } from '../support/serving.ts';

const DAY = '2024-01-01';
const ROWS = 3000;

let site: ClientSite;
beforeAll(async () => {
  site = await openClientSite();
});
afterAll(() => site?.[Symbol.dispose]());

describe('answers that come whole, stop coming or break off', () => {
  test.for([20, 24])('in Node %i', async (major, context) => {
    const outcomes = await site.outcomesInNode(major);
    if (!outcomes) return context.skip(noNode(major));
    expect(outcomes).toEqual(EXPECTED);
  });
});

givenTool(CHROMIUM).describe('in a browser', () => {
  let system: System;
  let serving: Serving;
  let browser: Browser;
  /** Another origin than the service's. */
  let origin: string;
  beforeAll(async () => {
    origin = site.url;
    system = await System.create();
    await writeDocument(system.vendor, DAY, csvOf({ day: DAY, rows: ROWS, firstId: 1, seed: 1, timeUnit: 'ms' }));
    expect((await system.backfill(DAY, DAY)).exit).toBe(0);
    serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl, SVC_HTTP_CORS_ORIGINS: origin },
    });
    browser = await openBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  test('answers come whole, stop coming or break off there as they do in Node', async () => {
    await using watched = await openPage(browser, origin);
    await watched.page.goto(origin);
    const outcomes = await watched.page.evaluate(`import('/${SCRIPT}').then((checks) => checks.outcomes('${origin}'))`);
    expect(outcomes).toEqual(EXPECTED);
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
