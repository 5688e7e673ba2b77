/** The operator's page where an exchange has several instruments: each view chooses between them, and its address names the choice. */
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { writeDay } from '../../pipelines/sources/exchange_a/sample.ts';
import { addKey } from '../../shared/keys/store.ts';
import { brokenRules, CHROMIUM, lowContrast, nameless, openBrowser, tooWide } from '../support/browser.ts';
import { ROOT } from '../support/command.ts';
import { givenTool } from '../support/given.ts';
import { enter, loaded } from '../support/operator-page.ts';
import { DATASET, System } from '../support/pipeline.ts';
import { API_KEY, type Serving, startServing } from '../support/serving.ts';
import { natsSettings } from '../support/stack.ts';

const DAYS = ['2024-01-01', '2024-01-02'];
const ROWS = { BTCUSDT: 400, ETHUSDT: 100 };
const OTHER = 'ETHUSDT';

givenTool(CHROMIUM).describe('the page', () => {
  let system: System;
  let serving: Serving;
  let browser: Browser;
  let page: Page;
  let faults: readonly string[];

  beforeAll(async () => {
    system = await System.create();
    for (const [symbol, rows] of Object.entries(ROWS)) {
      for (const [index, day] of DAYS.entries()) {
        // The other begins a day later.
        if (symbol === OTHER && index === 0) continue;
        const facts = { symbol, day, rows, firstId: 1 + index * rows, seed: index, timeUnit: 'ms' as const };
        await writeDay({ directory: system.vendor, startPrice: symbol === OTHER ? 2500 : 42_000, ...facts });
      }
    }
    const settings = {
      SVC_EXCHANGE_A_BASE_URL: pathToFileURL(`${system.vendor}/`).href,
      SVC_EXCHANGE_A_ALSO: `${OTHER}:${DAYS[1]}..,SOLUSDT`,
    };
    for (const [from, ...more] of [[DAYS[0]], [DAYS[1], '--instrument', OTHER]]) {
      const { exit, stderr } = await system.run(
        ['backfill', DATASET, '--from', from, '--to', DAYS[1], ...more],
        settings,
      );
      expect(exit, stderr).toBe(0);
    }
    serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { ...natsSettings(system.env), SVC_EXCHANGE_A_ALSO: settings.SVC_EXCHANGE_A_ALSO },
    });
    browser = await openBrowser();
    ({ page, faults } = await enter(browser, serving));
  });
  afterAll(async () => {
    await browser?.close();
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  async function go(hash: string): Promise<void> {
    await page.goto('about:blank');
    await page.goto(`${serving.url}/${hash}`);
    await loaded(page);
  }
  const hash = () => decodeURIComponent(new URL(page.url()).hash);
  const chooser = (place = 'main') => page.locator(`${place} [name=instrument]`);

  test('Data shows an instrument, gives it away, and leads to its views', async () => {
    await go('#data');
    const row = page.locator('.datasets tbody tr').first();
    const select = row.getByRole('combobox', { name: `Instrument of ${DATASET}` });
    expect(await select.locator('option').allInnerTexts()).toEqual(['BTCUSDT', OTHER, 'SOLUSDT (nothing yet)']);
    expect(await row.locator('[data-name=Rows]').textContent()).toBe('800');
    await select.selectOption(OTHER);
    expect(hash()).toBe(`#data?${DATASET}=${OTHER}`);
    expect(await row.locator('[data-name=Rows]').textContent()).toBe('100');
    expect(await row.locator('[data-name=Proved]').textContent()).toBe(DAYS[1]);
    await row.getByRole('img', { name: `price of ${DATASET}:${OTHER}, the newest values by the hour` }).waitFor();
    const link = await row.getByRole('link', { name: `Candles of ${DATASET}` }).getAttribute('href');
    expect(link).toBe(`#candles?dataset=${DATASET}&instrument=${OTHER}`);
    await row.getByRole('button', { name: `Take it: ${DATASET}` }).click();
    const asked = page.getByRole('button', { name: /^Download all 100 rows/ }).click();
    const download = await page.waitForEvent('download');
    await asked;
    expect(download.suggestedFilename()).toBe(`${DATASET}.${OTHER}.csv`);
    expect((await readFile(await download.path(), 'utf8')).trimEnd().split('\n')).toHaveLength(101);
    const env = { ...process.env, TIDEMARK_URL: serving.url, TIDEMARK_KEY: API_KEY };
    const said = page.locator('.said pre code');
    const curl = await promisify(execFile)('sh', ['-c', (await said.textContent())!], { env });
    expect(JSON.parse(curl.stdout)).toMatchObject({ instrument: OTHER, row_count: 100 });
    await page.getByRole('button', { name: 'TypeScript' }).first().click();
    const program = ['--input-type=module-typescript', '--eval', (await said.textContent())!];
    const client = await promisify(execFile)(process.execPath, program, { env, cwd: ROOT });
    expect(client.stdout).toContain('trade_id: 101');
    // The default's address is what it was.
    await select.selectOption('BTCUSDT');
    expect(hash()).toBe('#data');
  });

  test('Explore, Candles, Coverage and Frame ask for the instrument, and their addresses show it again', async () => {
    await go(`#explore?dataset=${DATASET}`);
    await chooser('#explore-form').selectOption(OTHER);
    await page.locator('#explore-form [name=what]').selectOption('rows');
    await page.getByRole('button', { name: 'Run it' }).click();
    const drawn = page.getByRole('img', { name: `price of ${DATASET}:${OTHER} over time` });
    await drawn.waitFor();
    await go(hash());
    await drawn.waitFor();
    expect(await page.locator('#explore-result .result-head b').textContent()).toBe('100 rows');

    await go(`#candles?dataset=${DATASET}`);
    await page.getByRole('img', { name: new RegExp(`of ${DATASET}$`) }).waitFor();
    expect(hash()).toMatch(new RegExp(`^#candles\\?dataset=${DATASET}&from=2024-01-01T`));
    await chooser().selectOption(OTHER);
    await page.getByRole('img', { name: new RegExp(`[1-9].* candles of .* of ${DATASET}:${OTHER}$`) }).waitFor();
    expect(hash()).toContain(`&instrument=${OTHER}&from=2024-01-02T`);

    await go(`#coverage?dataset=${DATASET}&day=${DAYS[1]}`);
    await chooser().selectOption(OTHER);
    await page.locator('#proof').getByText(`${OTHER}:${DAYS[1]}`).waitFor();
    expect(hash()).toBe(`#coverage?dataset=${DATASET}&day=${DAYS[1]}&instrument=${OTHER}`);
    // It was not listed yet: the day is not missing.
    expect(await page.getByRole('button', { name: new RegExp(`^${DAYS[0]}`) }).getAttribute('class')).toBe('none');
    await page.getByRole('button', { name: 'Its first event, from the log' }).click();
    await page.getByText(/^101,/).waitFor();

    await go('#frame');
    await page.getByRole('button', { name: 'Add a column' }).click();
    await page.locator('#frame-form .column').last().getByLabel('Instrument').selectOption(OTHER);
    await page.getByRole('button', { name: 'Build it' }).click();
    const frame = page.getByRole('img', { name: 'a_close, a_ethusdt_close over time' });
    await frame.waitFor();
    // What base and quote are depends on the instrument.
    await page.getByText(`a_ethusdt_close (quote of ${OTHER})`).waitFor();
    await go(hash());
    await frame.waitFor();
    const [last] = (await page.locator('#frame-result tbody tr').allInnerTexts()).slice(-1);
    const [btc, eth] = last.split('\t').slice(-2).map(Number);
    expect([btc > 10_000, eth > 1000 && eth < 10_000]).toEqual([true, true]);
    expect(faults).toEqual([]);
  });

  test('nobody chooses where there is one: of another dataset, or with a key that covers one', async () => {
    await go('#explore?dataset=macro_series_metrics');
    expect(await chooser().count()).toBe(0);
    const terms = { requestsPerMinute: null, concurrentReads: null, expiresAt: null };
    const { text } = await addKey(system.client, 'eth', {
      ...{ ...terms, scopes: ['read', 'operate'] },
      datasets: [`${DATASET}:${OTHER}`],
    });
    await using context = await browser.newContext();
    const own = await context.newPage();
    await own.goto(`${serving.url}/#explore`);
    await own.locator('#key-input').fill(text);
    await own.keyboard.press('Enter');
    await loaded(own);
    expect(await own.locator('[name=instrument]').count()).toBe(0);
    await own.locator('#explore-form [name=what]').selectOption('rows');
    await own.getByRole('button', { name: 'Run it' }).click();
    await own.getByRole('img', { name: `price of ${DATASET}:${OTHER} over time` }).waitFor();
  });

  test('a link to an instrument that is not listed does not show the default in its place', async () => {
    await go(`#candles?dataset=${DATASET}&instrument=ETHUSD`);
    await page.getByText('The address holds choices that are not known here.').waitFor();
  });

  test.each(['light', 'dark'] as const)('can be read and named in %s, at every width', async (colorScheme) => {
    await using watched = await enter(browser, serving, { context: { colorScheme } });
    for (const view of ['data', 'explore', 'candles', 'coverage', 'frame']) {
      await watched.page.goto(`${serving.url}/#${view}`);
      await watched.page.locator('select[name$=instrument]').first().waitFor();
      if (view === 'candles') await watched.page.locator('#candles-said:not(:empty)').waitFor();
      expect(await brokenRules(watched.page), view).toEqual([]);
      expect(await lowContrast(watched.page), view).toEqual([]);
      expect(await nameless(watched.page), view).toEqual([]);
      for (const width of [1280, 390, 320]) {
        await watched.page.setViewportSize({ width, height: 800 });
        await expect.poll(() => tooWide(watched.page), { message: `${view}, ${width} px` }).toEqual([]);
      }
    }
  });
});
