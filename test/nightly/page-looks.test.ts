/** The operator's page in both colour schemes and in each of its states: what is asked, refused, found, and the key's dialog. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { brokenRules, CHROMIUM, CONTRAST, lowContrast, nameless, tooWide } from '../support/browser.ts';
import { givenTool } from '../support/given.ts';
import { dayOf, enter, makePageWorld, type PageWorld } from '../support/operator-page.ts';

const TOP_OF_RESULT = 'document.getElementById("frame-result").getBoundingClientRect().top / innerHeight';

givenTool(CHROMIUM).describe('the page', () => {
  let world: PageWorld;
  beforeAll(async () => {
    world = await makePageWorld();
  });
  afterAll(() => world?.[Symbol.asyncDispose]());

  test.each([
    ['light', 1366, []],
    ['dark', 390, [CONTRAST]],
  ] as const)(
    'can be read and named in %s, at every width, loads nothing from elsewhere; axe-core finds no rule broken by it at %i px',
    async (colorScheme, axeWidth, without) => {
      const context = { colorScheme, viewport: { width: axeWidth, height: 800 } };
      await using watched = await enter(world.browser, world.serving, { context, hash: '#coverage' });
      const { page } = watched;
      await dayOf(page, '2024-01-05').click();
      await page.locator('#proof .notice').waitFor();
      expect(await brokenRules(page, without)).toEqual([]);
      await page.goto(`${world.serving.url}/#explore`);
      await page.getByRole('button', { name: 'Run it' }).click();
      await page.locator('#explore-result .scroll table').waitFor();
      for (const width of [1366, 768, 390, 320]) {
        await page.setViewportSize({ width, height: 800 });
        // Charts follow the width a moment later.
        await expect.poll(() => tooWide(page), { message: `${width} px` }).toEqual([]);
      }
      expect(await nameless(page)).toEqual([]);
      expect(await lowContrast(page)).toEqual([]);
      await page.setViewportSize({ width: axeWidth, height: 800 });
      await page.locator('#explore-form [name=what]').selectOption('rows');
      await page.getByRole('button', { name: 'Add a filter' }).click();
      await page.getByRole('button', { name: 'Run it' }).click();
      await page.locator('#explore-result [role=alert]').waitFor();
      expect(await brokenRules(page, without)).toEqual([]);
      await page.getByRole('button', { name: 'Take this filter away' }).click();
      await page.getByRole('button', { name: 'Run it' }).click();
      await page.locator('#explore-result .scroll table').waitFor();
      expect(await brokenRules(page, without)).toEqual([]);
      for (const [view, ready] of [
        ['data', '.datasets .spark'],
        ['frame', '.legend.lines'],
        ['candles', '#candles-said:not(:empty)'],
        ['work', '#queues table'],
      ]) {
        await page.goto(`${world.serving.url}/#${view}`);
        if (view === 'data') await page.getByRole('button', { name: 'Take it: exchange_a_spot_trades' }).click();
        if (view === 'frame') await page.getByRole('button', { name: 'Build it' }).click();
        await page.locator(ready).first().waitFor();
        // An answer below the form was not seen on a phone.
        if (view === 'frame') await expect.poll(() => page.evaluate(TOP_OF_RESULT)).toBeLessThan(0.9);
        expect(await brokenRules(page, without), view).toEqual([]);
        expect(await lowContrast(page), view).toEqual([]);
        for (const width of [1366, 768, 390, 320, axeWidth]) {
          await page.setViewportSize({ width, height: 800 });
          await expect.poll(() => tooWide(page), { message: `${view}, ${width} px` }).toEqual([]);
        }
      }
      await page.locator('#key-button').click();
      expect(await nameless(page)).toEqual([]);
      expect(await brokenRules(page, without)).toEqual([]);
      // The browser reports the refused request; nothing else went wrong.
      expect(watched.faults.filter((fault) => !fault.includes('status of 409'))).toEqual([]);
    },
  );
});
