/** The reference at /docs in a real Chromium: it changes with the documents it is made of, hardly with the code. */
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  brokenRules,
  CHROMIUM,
  CONTRAST,
  lowContrast,
  nameless,
  openBrowser,
  openPage,
  tooWide,
} from '../support/browser.ts';
import { givenTool } from '../support/given.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';

givenTool(CHROMIUM).describe('/docs', () => {
  let env: TestEnv;
  let serving: Serving;
  let browser: Browser;
  beforeAll(async () => {
    env = await createMigratedEnv();
    serving = await startServing({ databaseUrl: env.databaseUrl });
    browser = await openBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    await serving?.[Symbol.asyncDispose]();
    await env?.[Symbol.asyncDispose]();
  });

  test.each([
    ['light', 1366, []],
    ['dark', 390, [CONTRAST]],
  ] as const)(
    'can be read in %s at every width, copies its commands, loads nothing; axe-core finds no rule broken by it at %i px',
    async (colorScheme, axeWidth, without) => {
      await using watched = await openPage(browser, serving.url, {
        colorScheme,
        viewport: { width: 1366, height: 800 },
        permissions: ['clipboard-read', 'clipboard-write'],
      });
      const { page, faults } = watched;
      await page.goto(`${serving.url}/docs`);
      await page.getByRole('heading', { level: 1, name: /Tidemark/ }).waitFor();
      expect(await page.locator('[data-origin]').first().textContent()).toBe(serving.url);
      // Folded, it is a list of routes; it was 165,113 px on a phone.
      for (const width of [390, 1366]) {
        await page.setViewportSize({ width, height: 800 });
        await expect.poll(() => tooWide(page), { message: `${width} px` }).toEqual([]);
        expect(await page.evaluate('document.documentElement.scrollHeight')).toBeLessThan(15_000);
      }
      // A link opens what it leads to.
      await page.getByRole('link', { name: /POST raw\/query/ }).click();
      const route = page.locator('#post-v1-raw-query');
      await route.locator('.command button').first().click();
      const command = await route.locator('.command code').first().textContent();
      await expect.poll(() => page.evaluate('navigator.clipboard.readText()')).toBe(command);
      await page.getByRole('searchbox').fill('what COVERAGE/{dataset}');
      await page.getByText(/^\d+ of \d+ parts$/).waitFor();
      expect(await route.isVisible()).toBe(false);
      expect(await page.locator('#get-v1-coverage-dataset').isVisible()).toBe(true);
      // A heading of routes stood over none.
      expect(await page.locator('#discovery, #lake').filter({ visible: true }).count()).toBe(1);
      await page.getByRole('searchbox').fill('');
      await route.waitFor();
      expect(await nameless(page)).toEqual([]);
      expect(await lowContrast(page)).toEqual([]);
      await page.setViewportSize({ width: axeWidth, height: 800 });
      // What is folded is not looked at until it is open.
      await page.evaluate('for (const one of document.querySelectorAll("details")) one.open = true');
      expect(await brokenRules(page, without)).toEqual([]);
      expect(faults).toEqual([]);
    },
  );
});
