/** The pages behind nginx, which gives the service a path of its own host: they were blank. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CHROMIUM, openBrowser, openPage } from '../support/browser.ts';
import { givenTool } from '../support/given.ts';
import { freePort, NGINX, startNginx } from '../support/nginx.ts';
import { enter } from '../support/operator-page.ts';
import { eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

const TOOL = CHROMIUM.missing === undefined ? NGINX : CHROMIUM;

givenTool(TOOL).describe('behind a path prefix', () => {
  let env: TestEnv;
  let serving: Serving;
  let browser: Browser;
  let front: AsyncDisposable;
  let origin: string;
  beforeAll(async () => {
    env = await createMigratedEnv();
    serving = await startServing({ databaseUrl: env.databaseUrl });
    browser = await openBrowser();
    const port = await freePort();
    origin = `http://127.0.0.1:${port}`;
    const location = `location /data/ { proxy_pass ${serving.url}/; proxy_http_version 1.1; }`;
    front = await startNginx([`server { listen 127.0.0.1:${port}; ${location} }`]);
    const isUp = async () => (await fetch(`${origin}/data/healthz`).catch(() => undefined))?.status === 200;
    await eventually(isUp, 'nginx answers');
  });
  afterAll(async () => {
    await front?.[Symbol.asyncDispose]();
    await browser?.close();
    await serving?.[Symbol.asyncDispose]();
    await env?.[Symbol.asyncDispose]();
  });

  test('the page loads, signs in and asks there, and its commands name that address', async () => {
    const asked: string[] = [];
    await using watched = await enter(
      browser,
      { url: `${origin}/data` },
      {
        prepare: async (page) => {
          page.on('request', (request) => asked.push(new URL(request.url()).pathname));
        },
      },
    );
    const { page } = watched;
    await page.locator('.datasets tbody tr').first().waitFor();
    await page.getByRole('link', { name: 'Explore' }).click();
    await page.getByText(`TIDEMARK_URL=${origin}/data`).waitFor();
    expect(asked).toContain('/data/v1/ops/status');
    expect(asked.filter((path) => !path.startsWith('/data/'))).toEqual([]);
    // The watcher knows the whole address as the origin.
    expect(watched.faults.filter((fault) => !fault.startsWith('outside: '))).toEqual([]);
    await page.getByRole('link', { name: 'Reference' }).click();
    await page.getByRole('heading', { level: 1 }).waitFor();
    expect(page.url()).toBe(`${origin}/data/docs`);
  });

  test('the reference loads what it consists of, and names that address', async () => {
    await using watched = await openPage(browser, origin);
    const { page } = watched;
    await page.goto(`${origin}/data/docs`);
    await page.getByRole('searchbox').waitFor();
    expect(await page.locator('[data-origin]').first().textContent()).toBe(`${origin}/data`);
    expect(await page.locator('a[href="openapi.json"]').count()).toBe(1);
    expect(watched.faults).toEqual([]);
  });
});
