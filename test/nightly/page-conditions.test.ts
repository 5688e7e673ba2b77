/** The operator's page on what a day is worth: the calendar by condition, a day's silences on its candles, revisions with their diffs. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { brokenRules, CHROMIUM, lowContrast, nameless, openBrowser, tooWide } from '../support/browser.ts';
import { givenTool } from '../support/given.ts';
import { dayOf, enter, loaded } from '../support/operator-page.ts';
import { System } from '../support/pipeline.ts';
import { sequence } from '../support/proof-log.ts';
import { SAMPLE_MATRIX, type Serving, startServing } from '../support/serving.ts';
import { VENDOR_A, VENDOR_B, type Vendor } from '../support/vendors.ts';

const MINUTE = 60_000;
const day = (number: number) => `2024-03-${String(number).padStart(2, '0')}`;
const OTHER = 'ETHUSDT';

type Trade = readonly [id: number, minute: number, price?: number];
const at = (number: number, minute: number) => Date.parse(day(number)) + minute * MINUTE;
/** A trade a minute, from one minute to another. */
const every = (firstId: number, from: number, to: number): Trade[] =>
  Array.from({ length: to - from }, (_, index) => [firstId + index, from + index]);
const priceOf = ([id, , price]: Trade) => (price ?? 42_000 + (id % 40) * 2.5).toFixed(8);
const ofA = (number: number, trades: readonly Trade[]) =>
  trades.map((trade) => `${trade[0]},${priceOf(trade)},0.50000000,1,${at(number, trade[1])},True,True\n`).join('');
/** Its file days begin at 16:00 UTC of the day before. */
const ofB = (number: number, trades: readonly Trade[]) =>
  `instrument_name,trade_id,side,price,size,created_time\n${trades
    .map((trade) => `BTC-USDT,${trade[0]},buy,${priceOf(trade)},0.5,${at(number, trade[1]) - 480 * MINUTE}\n`)
    .join('')}`;

/** 90 minutes of silence that the ids prove, and others over midnight. */
const FIRST = [...every(1, 0, 600), ...every(601, 690, 1439)];
/** The same rows, with another price, one less, and one more. */
const REPAIRED: Trade[] = [[1351, 1, 1], ...every(1352, 2, 1439), [2789, 1439]];

givenTool(CHROMIUM).describe('the page', () => {
  let system: System;
  let serving: Serving;
  let browser: Browser;
  let page: Page;
  let faults: readonly string[];

  const put = (vendor: Vendor, number: number, text: string) =>
    vendor.put(system.vendor, day(number), vendor.pack(day(number), text));
  async function run(vendor: Vendor, command: string, from: number, to: number, ...more: string[]): Promise<void> {
    const settings = { ...vendor.settings(system.vendor), SVC_EXCHANGE_A_ALSO: `${OTHER}:${day(2)}..` };
    await system.run([command, vendor.dataset, '--from', day(from), '--to', day(to), ...more], settings);
  }
  const serve = (more: object = {}) =>
    startServing({
      databaseUrl: system.env.databaseUrl,
      settings: {
        SVC_KEEP_DIR: join(system.env.dir, 'state', 'kept'),
        SVC_NATS_READER_URL: system.env.natsReaderUrl,
        SVC_EXCHANGE_A_ALSO: `${OTHER}:${day(2)}..`,
      },
      ...more,
    });

  beforeAll(async () => {
    system = await System.create();
    await put(VENDOR_A, 1, ofA(1, FIRST));
    await put(VENDOR_A, 2, ofA(2, every(1350, 0, 1439)));
    // The third day is not published; the fourth stands up to its proof no more.
    await put(VENDOR_A, 4, ofA(4, every(4001, 0, 1439)));
    await put(VENDOR_A, 5, ofA(5, every(5501, 0, 1439)));
    await run(VENDOR_A, 'backfill', 1, 5);
    await put(VENDOR_A, 2, ofA(2, REPAIRED));
    await run(VENDOR_A, 'backfill', 2, 2, '--compare');
    await system.rows(`update ${VENDOR_A.dataset} set price = price + 1 where trade_id = 4100`);
    await system.run(['verify', VENDOR_A.dataset], VENDOR_A.settings(system.vendor));
    // Its ids do not follow each other over the silence.
    await put(VENDOR_B, 2, ofB(2, [...every(1, 0, 300), ...every(501, 420, 1439)]));
    await run(VENDOR_B, 'backfill', 2, 2);
    await sequence(system.env);
    serving = await serve();
    browser = await openBrowser();
    ({ page, faults } = await enter(browser, serving));
  }, 180_000);
  afterAll(async () => {
    await browser?.close();
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  async function go(hash: string, by = page, to = serving): Promise<void> {
    await by.goto('about:blank');
    await by.goto(`${to.url}/${hash}`);
    await loaded(by);
  }
  const hash = () => decodeURIComponent(new URL(page.url()).hash);
  const panel = () => page.locator('#proof');
  const factOf = (name: string) =>
    panel().locator('.worth dt', { hasText: name }).first().locator('+ dd').textContent();

  /** Which of the two colours the drawn candles have. */
  const coloursOf = () =>
    page.evaluate(`(() => {
      const ink = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      const pixels = (width, height) => {
        const { data } = ink.getImageData(0, 0, width, height);
        const found = new Set();
        for (let at = 0; at < data.length; at += 4) found.add(data.slice(at, at + 3).join());
        return found;
      };
      const drawn = [...document.querySelectorAll('.worth canvas')].flatMap((canvas) => {
        Object.assign(ink.canvas, { width: canvas.width, height: canvas.height });
        ink.drawImage(canvas, 0, 0);
        return [...pixels(canvas.width, canvas.height)];
      });
      const isDrawn = (name) => {
        ink.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
        ink.fillRect(0, 0, 1, 1);
        return drawn.includes([...pixels(1, 1)][0]);
      };
      return { silence: isDrawn('--silence'), unknown: isDrawn('--unknown') };
    })()`);

  test('the calendar is coloured by condition, and its legend names the colours', async () => {
    await go(`#coverage?dataset=${VENDOR_A.dataset}`);
    const states = () =>
      page
        .locator('.grid button')
        .evaluateAll((all) => all.map((one) => `${one.getAttribute('aria-label')} ${one.className}`));
    await page.locator('.grid .degraded').waitFor();
    expect((await states()).slice(0, 7)).toEqual([
      `${day(1)}, available available`,
      `${day(2)}, degraded degraded`,
      `${day(3)}, missing missing`,
      `${day(4)}, missing: quarantined quarantined`,
      `${day(5)}, available available`,
      `${day(6)}, pending pending`,
      `${day(7)}, pending pending`,
    ]);
    expect(await dayOf(page, day(2)).getAttribute('title')).toContain('The vendor publishes another document');
    const legend = await page.locator('.grid-legend span').allInnerTexts();
    expect(legend.slice(0, 4)).toEqual(['available', 'degraded', 'pending', 'missing']);
    // Another instrument begins a day later, and has nothing yet.
    await page.locator('main [name=instrument]').selectOption(OTHER);
    await page.getByText('Nothing of it is proved yet.').waitFor();
  });

  test('a day shows its facts, and its silences on its candles: proved ones of A, unknown ones of B', async () => {
    await go(`#coverage?dataset=${VENDOR_A.dataset}&day=${day(1)}`);
    await panel()
      .getByRole('img', { name: `1,349 candles of 1 minute of ${VENDOR_A.dataset} on ${day(1)}, with 2 silences` })
      .waitFor();
    expect(await factOf('Price')).toBe('multiples of 2.5');
    expect(await factOf('Quantity')).toBe('multiples of 0.5');
    expect(await factOf('Silences')).toBe('2 above a minute, the longest 1 h 31 min, all proved');
    expect([await factOf('Ids missing'), await factOf('Repeats dropped')]).toEqual(['0', '0']);
    expect(await factOf('Document')).toBe(VENDOR_A.document(day(1)));
    expect([await factOf('First event'), await factOf('Last event')]).toEqual([
      `${day(1)} 00:00:00.000`,
      `${day(1)} 23:58:00.000`,
    ]);
    expect(await coloursOf()).toEqual({ silence: true, unknown: false });
    await panel().locator('.worth summary', { hasText: '2 silences' }).click();
    const rows = panel().locator('.worth tbody tr');
    expect(await rows.allInnerTexts()).toEqual([
      '09:59:00\t11:30:00\t1 h 31 min\tproved',
      '23:58:00\t00:00:00\t2 min\tproved',
    ]);
    await rows.first().getByRole('link').click();
    await page.getByRole('img', { name: /candles of .* of exchange_a_spot_trades$/ }).waitFor();
    expect(hash()).toContain(`from=${day(1)}T09:54:00.000Z&to=${day(1)}T11:35:00.000Z`);

    await go(`#coverage?dataset=${VENDOR_B.dataset}&day=${day(2)}`);
    await panel()
      .getByRole('img', { name: /with 1 silence$/ })
      .waitFor();
    expect(await factOf('Silences')).toBe('1 above a minute, the longest 2 h 1 min, none proved');
    expect(await factOf('Ids missing')).toBe('200');
    expect(await panel().locator('.worth li').allInnerTexts()).toEqual([
      'ids_missing: Ids between the first and the last have no row.',
      'silence_unknown: More than an hour is without a trade, and nobody can prove that there was none.',
    ]);
    expect(await coloursOf()).toEqual({ silence: false, unknown: true });
  });

  test('the differences of a revision can be read, linked to and downloaded', async () => {
    await go(`#coverage?dataset=${VENDOR_A.dataset}&day=${day(2)}`);
    await panel().getByText('The vendor publishes another document').waitFor();
    const [served, found] = [panel().locator('.revision').first(), panel().locator('.revision').last()];
    await served.getByText('It is served.').waitFor();
    await found.getByText('It adds 1 row, removes 1 and alters 1.').waitFor();
    await found.getByRole('button', { name: 'Read the differences' }).click();
    const rows = found.locator('tbody tr');
    await rows.first().waitFor();
    const read = await rows.allInnerTexts();
    expect(read.map((text) => text.split('\t').slice(0, 2))).toEqual([
      ['1350', 'removed'],
      ['1351', 'altered'],
      ['2789', 'added'],
    ]);
    expect(read[1]).toContain('price 42077.5 → 1');
    expect(hash()).toMatch(new RegExp(`&day=${day(2)}&revision=\\d+$`));
    await go(hash());
    await rows.first().waitFor();
    expect(await rows.allInnerTexts()).toEqual(read);
    const asked = found.getByRole('button', { name: 'Download them' }).click();
    const download = await page.waitForEvent('download');
    await asked;
    expect(download.suggestedFilename()).toMatch(/^revision-\d+\.ndjson$/);
    const [head, ...lines] = (await readFile(await download.path(), 'utf8')).trimEnd().split('\n');
    expect(JSON.parse(head)).toMatchObject({ proved: false, partition: day(2), added: 1, removed: 1, altered: 1 });
    expect(lines).toHaveLength(3);
    expect(faults).toEqual([]);
  });

  test('a key without the rights to the rows sees that there are differences, and why not which', async () => {
    await using refusing = await serve({ rightsMatrixPath: SAMPLE_MATRIX });
    await using watched = await enter(browser, refusing, {
      hash: `#coverage?dataset=${VENDOR_A.dataset}&day=${day(2)}`,
    });
    const found = watched.page.locator('.revision').last();
    await found.getByText('the rights of the dataset keep its rows from this key').waitFor();
    expect(await found.getByRole('button').count()).toBe(0);
    expect(await watched.page.locator('.worth .chart').count()).toBe(0);
  });

  test.each([
    [`#coverage?dataset=${VENDOR_A.dataset}&day=${day(4)}`, 'quarantined: Its rows were refused'],
    [`#coverage?dataset=${VENDOR_A.dataset}&day=${day(3)}`, 'not_proved: Nothing of it is proved.'],
    [`#coverage?dataset=${VENDOR_A.dataset}&day=${day(6)}`, 'It is expected, and not proved yet.'],
  ])('%s says why there is nothing', async (address, said) => {
    await go(address);
    await panel().locator('.worth').getByText(said).waitFor();
    expect(faults).toEqual([]);
  });

  test('an address names the months, too', async () => {
    await go(`#coverage?dataset=${VENDOR_A.dataset}&month=2023-01&day=${day(1)}`);
    await page.getByText('2023', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'Later' }).click();
    expect(hash()).toBe(`#coverage?dataset=${VENDOR_A.dataset}&month=2024-01&day=${day(1)}`);
    await go(`#coverage?dataset=${VENDOR_A.dataset}&source=nobody`);
    await page.getByText('The address holds choices that are not known here.').waitFor();
  });

  test.each(['light', 'dark'] as const)('can be read and named in %s, at every width', async (colorScheme) => {
    await using watched = await enter(browser, serving, { context: { colorScheme } });
    const own = watched.page;
    const { json } = await serving.send({ method: 'GET', path: `/v1/revisions?dataset=${VENDOR_A.dataset}` });
    const { id } = json.revisions.find(({ state }: { state: string }) => state === 'refused');
    for (const choices of [`day=${day(1)}`, `day=${day(2)}&revision=${id}`, `day=${day(4)}`]) {
      await go(`#coverage?dataset=${VENDOR_A.dataset}&${choices}`, own);
      await own
        .locator(choices.includes('revision') ? '.revision tbody tr' : '.revision')
        .first()
        .waitFor();
      const details = own.locator('.worth summary');
      if ((await details.count()) > 0) await details.click();
      expect(await brokenRules(own), choices).toEqual([]);
      expect(await lowContrast(own), choices).toEqual([]);
      expect(await nameless(own), choices).toEqual([]);
      for (const width of [1280, 390, 320]) {
        await own.setViewportSize({ width, height: 800 });
        await expect.poll(() => tooWide(own), { message: `${choices}, ${width} px` }).toEqual([]);
      }
    }
    expect(watched.faults).toEqual([]);
  });
});
