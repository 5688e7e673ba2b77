/** The operator's page in a real Chromium: what it shows, asks and draws. Each of its looks: nightly/page-looks.test.ts. */
import { execFile, execFileSync } from 'node:child_process';
import { copyFile, mkdtempDisposable, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import type { Locator } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  brokenRules,
  CHROMIUM,
  CONTRAST,
  lowContrast,
  nameless,
  openPage,
  tooWide,
  type Watched,
} from '../support/browser.ts';
import { ROOT } from '../support/command.ts';
import { givenTool } from '../support/given.ts';
import { DAYS, dayOf, enter, loaded, makePageWorld, type PageWorld, ROWS } from '../support/operator-page.ts';
import { csvOf, DATASET, type System, writeDocument } from '../support/pipeline.ts';
import { checkpointOf, sequence } from '../support/proof-log.ts';
import { OWN_MATRIX } from '../support/rights.ts';
import { API_KEY, eventually, type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv } from '../support/stack.ts';

/** As often as the page looks. */
const POLL_MS = 5000;

givenTool(CHROMIUM).describe('the page', () => {
  let world: PageWorld;
  let system: System;
  let serving: Serving;
  /** For the tests that leave it as it is, or load it again: a page of its own costs a test a second of work. */
  let looked: Watched;
  beforeAll(async () => {
    world = await makePageWorld();
    ({ system, serving } = world);
    looked = await enter(world.browser, serving);
  });
  afterAll(() => world?.[Symbol.asyncDispose]());

  /** The page as it is for who comes to it, and what it complains about from now on. */
  async function afresh(hash = '') {
    const { page, faults } = looked;
    const before = faults.length;
    await page.goto(`${serving.url}/${hash}`);
    await page.reload();
    await loaded(page);
    return { page, faults: () => faults.slice(before) };
  }

  const textOf = async (place: Locator): Promise<string> => (await place.textContent()) ?? '';

  test('shows work and exports: what ran and how it ended', async () => {
    const submitted = await serving.send({
      path: '/v1/raw/export',
      body: JSON.stringify({ dataset: DATASET, format: 'csv', n_rows: 7 }),
    });
    expect(submitted.status, submitted.text).toBe(202);
    const { export_id: id } = submitted.json;
    await eventually(
      async () => (await serving.send({ method: 'GET', path: `/v1/raw/export/${id}` })).json.status === 'succeeded',
      'the export is made',
    );
    const { page, faults } = await afresh('#work');
    const made = page.locator('#exports tbody tr').first();
    await made.waitFor();
    expect(await made.locator('td').allTextContents()).toEqual([
      `${DATASET} csv`,
      'succeeded',
      '7',
      expect.stringMatching(/^\d+ B$/),
      expect.stringMatching(/^20\d\d-/),
    ]);
    // The newest of the three backfills: its one day was quarantined.
    const run = page.locator('#runs tbody tr').first();
    expect((await run.locator('td').allTextContents()).slice(0, 3)).toEqual([
      `backfill ${DATASET}`,
      'failed',
      '1 of 1, 1 fault',
    ]);
    expect(faults()).toEqual([]);
  });

  test('shows the proof log: what waits for a checkpoint, then size, root and time of the last one', async () => {
    const { page, faults } = await afresh('#work');
    const log = page.locator('#proof-log');
    expect(await textOf(log)).toBe('No checkpoint is signed yet.');
    const size = await sequence(system.env);
    const { root } = await checkpointOf(system.env);
    await log.locator('tbody tr').waitFor({ timeout: 2 * POLL_MS });
    expect(await log.locator('tbody td').allTextContents()).toEqual([
      String(size),
      `${Buffer.from(root).toString('base64').slice(0, 12)}…`,
      expect.stringMatching(/ ago$/),
      '0',
    ]);
    expect(
      await (await fetch(new URL(String(await log.locator('a').getAttribute('href')), serving.url))).text(),
    ).toContain(`\n${size}\n`);
    expect(faults()).toEqual([]);
  });

  test('shows the last changes, the newest first, and how many listen', async () => {
    await sequence(system.env);
    const { page, faults } = await afresh('#work');
    const rows = page.locator('#changes-list tbody tr');
    await rows.first().waitFor();
    const { changes } = (await serving.send({ method: 'GET', path: '/v1/changes' })).json;
    expect(changes.length).toBeGreaterThan(2);
    const shown = await rows.locator('td:first-child').allTextContents();
    expect(shown).toEqual(
      changes
        .map(({ number }: { number: number }) => String(number))
        .reverse()
        .slice(0, 12),
    );
    const [newest] = changes.toReversed();
    const [, what, where] = await rows.first().locator('td').allTextContents();
    expect(what).toBe(`${newest.kind}${newest.reason === null ? '' : ` ${newest.reason}`}`);
    expect(where).toBe(`${newest.dataset} ${newest.partition}`);
    expect(await textOf(page.locator('#changes-said'))).toBe('0 listeners of 10K');
    expect(faults()).toEqual([]);
  });

  test('shows lakes: how far each is, or why it failed', async () => {
    const lake = (more: string) =>
      `insert into lakes (folder, host, pid, synthetic, files, rows, bytes, change, fault, written_at) values (${more}, now())`;
    await system.client.query(lake(`'/srv/behind', 'a', 1, false, 3, 12345678, 2000000, 1, null`));
    await system.client.query(lake(`'/srv/failed', 'a', 1, false, 3, 7, 2000, 2, 'the disk is full'`));
    const { page, faults } = await afresh('#work');
    const rows = page.locator('#lakes tbody tr');
    await rows.nth(1).waitFor({ timeout: 3 * POLL_MS });
    const cells = await Promise.all([0, 1].map((at) => rows.nth(at).locator('td').allTextContents()));
    expect(cells.toSorted()).toEqual([
      [
        '/srv/behind',
        expect.stringMatching(/^\d+ changes? behind to change 1$/),
        '3',
        '12.3M',
        '2.0 MB',
        expect.stringMatching(/ ago$/),
      ],
      ['/srv/failed', 'failed the disk is full', '3', '7', '2.0 kB', expect.stringMatching(/ ago$/)],
    ]);
    expect(faults()).toEqual([]);
  });

  test('asks for the key, says when it is wrong, and keeps the right one for this tab alone', async () => {
    await using watched = await openPage(world.browser, serving.url);
    const { page } = watched;
    await page.goto(serving.url);
    await page.locator('#key-input').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByText('The service does not know that key').waitFor();
    await page.locator('#key-input').fill(API_KEY);
    await page.getByRole('button', { name: 'Use it' }).click();
    await page.locator('.datasets tbody tr').first().waitFor();
    expect(
      await page.evaluate('[sessionStorage.getItem("tidemark-key"), localStorage.length, document.cookie]'),
    ).toEqual([API_KEY, 0, '']);
    await page.reload();
    await page.locator('.datasets tbody tr').first().waitFor();
    expect(await page.locator('dialog[open]').count()).toBe(0);
  });

  test('a link signs in once, and neither the address nor the history keeps its token', async () => {
    const link = `${serving.url}/#sign-in=${world.signIn.token}`;
    await using first = await openPage(world.browser, serving.url);
    await first.page.goto(link);
    await first.page.locator('.datasets tbody tr').first().waitFor();
    expect(
      await first.page.evaluate('[sessionStorage.getItem("tidemark-key"), location.hash, history.length]'),
    ).toEqual([
      API_KEY,
      '',
      // The empty page that the browser begins with, and this one.
      2,
    ]);
    expect(first.faults).toEqual([]);
    await using second = await openPage(world.browser, serving.url);
    await second.page.goto(link);
    await second.page.getByText('The link was used').waitFor();
    await second.page.locator('#key-input').fill(API_KEY);
    await second.page.keyboard.press('Enter');
    await second.page.locator('.datasets tbody tr').first().waitFor();
  });

  test('says which scope a named key lacks, shows the datasets that it covers, and asks anew when it was revoked', async () => {
    const add = async (name: string, ...terms: string[]) => {
      const { exit, json, stdout } = await system.run(['keys', 'add', name, ...terms]);
      expect(exit, stdout).toBe(0);
      return json.secret as string;
    };
    await using watched = await openPage(world.browser, serving.url);
    const { page } = watched;
    const use = async (key: string) => {
      await page.evaluate(`sessionStorage.setItem("tidemark-key", ${JSON.stringify(key)})`);
      await page.reload();
    };
    await page.goto(serving.url);
    await use(await add('reader', '--scopes', 'read'));
    const updated = page.locator('#updated.fault');
    await updated.waitFor();
    expect(await textOf(updated)).toMatch(/needs the scope operate, and the key reader has read\. [^.]+\.$/);
    await use(await add('looker', '--scopes', 'read,operate', '--datasets', DATASET));
    await page.locator('.datasets tbody tr').first().waitFor();
    expect(await page.locator('.datasets tbody tr').count()).toBe(1);
    expect((await system.run(['keys', 'revoke', 'looker'])).exit).toBe(0);
    await page.getByText('The key looker was revoked at').waitFor({ timeout: 3 * POLL_MS });
  });

  test('says what needs somebody, with the numbers of /v1/ops/status', async () => {
    const { page, faults } = await afresh();
    const { json } = await serving.send({ method: 'GET', path: '/v1/ops/status' });
    await page.getByRole('heading', { name: '1 thing needs you' }).waitFor();
    const findings = await page.locator('.findings li').allInnerTexts();
    expect(findings).toHaveLength(2);
    expect(findings[0]).toContain(`1 partition of ${DATASET} is quarantined`);
    expect(findings[1]).toContain(`1 partition of ${DATASET} is missing`);
    const [first] = json.datasets;
    const row = page.locator('.datasets tbody tr').first();
    expect(await textOf(row.locator('td[data-name="Rows"]'))).toBe(new Intl.NumberFormat('en-US').format(first.rows));
    expect(await textOf(row.locator('td[data-name="Proved"]'))).toMatch(/^2024-01-01 to 2024-01-04ended .+ ago$/);
    expect(first.proved_through_utc).toBe('2024-01-05T00:00:00.000Z');
    await row.getByRole('img', { name: `price of ${DATASET}, the newest values by the hour` }).waitFor();
    expect(await textOf(row.locator('td[data-name="Waiting"]'))).toBe(String(first.log.lag.frames));
    expect(await page.locator('.datasets tbody tr').count()).toBe(json.datasets.length);
    expect(faults()).toEqual([]);
  });

  test('gives a dataset away on the first screen: as a file, and as commands', async () => {
    const { page, faults } = await afresh();
    await page.getByRole('button', { name: `Take it: ${DATASET}` }).click();
    const asked = page.getByRole('button', { name: /^Download all 1,200 rows/ }).click();
    const download = await page.waitForEvent('download');
    await asked;
    expect(download.suggestedFilename()).toBe(`${DATASET}.csv`);
    const [header, ...lines] = (await readFile(await download.path(), 'utf8')).trimEnd().split('\n');
    expect(header).toContain('trade_id,');
    expect(lines).toHaveLength(3 * ROWS);
    const env = { ...process.env, TIDEMARK_URL: serving.url, TIDEMARK_KEY: API_KEY };
    const said = await textOf(page.locator('.said pre code'));
    const { stdout } = await promisify(execFile)('sh', ['-c', said], { env, maxBuffer: 1e8 });
    expect(JSON.parse(stdout).rows).toHaveLength(3 * ROWS);
    expect(faults()).toEqual([]);
  });

  test('shows each day by its state, and the proof of the one chosen, by keyboard alone', async () => {
    const { page, faults } = await afresh(`#coverage?dataset=${DATASET}`);
    // The rest of the month is expected.
    await page.getByRole('button', { name: '2024-01-06, pending' }).waitFor();
    const states = await page
      .locator('.grid button:not(.none, .pending)')
      .evaluateAll((all) => all.map((one) => one.getAttribute('aria-label')));
    expect(states).toEqual([
      '2024-01-01, available',
      '2024-01-02, available',
      '2024-01-03, missing',
      '2024-01-04, available',
      '2024-01-05, missing: quarantined',
    ]);
    const proof = page.locator('#proof');
    const { partitions } = (await serving.send({ method: 'GET', path: `/v1/coverage/${DATASET}` })).json;

    await dayOf(page, '2024-01-05').focus();
    await page.keyboard.press('Enter');
    await proof.getByText(partitions.find(({ state }: { state: string }) => state === 'quarantined').reason).waitFor();
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('Enter');
    const digest: string = partitions[2].events_sha256;
    await proof.locator(`code[title="${digest}"]`).waitFor();
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('Space');
    await proof.getByText('No partition of this day is known').waitFor();
    expect(await page.evaluate('document.activeElement.getAttribute("aria-label")')).toBe('2024-01-03, missing');
    expect(faults()).toEqual([]);
  });

  test('leads from a proof down to the bytes of the source', async () => {
    const { page, faults } = await afresh(`#coverage?dataset=${DATASET}`);
    await dayOf(page, '2024-01-02').click();
    await page.getByRole('button', { name: 'Its first event, from the log' }).click();
    const line = csvOf({ day: DAYS[1], rows: ROWS, firstId: 1 + ROWS, seed: 1, timeUnit: 'ms' }).split('\n')[0];
    await expect.poll(() => textOf(page.locator('#proof pre'))).toBe(line);
    expect(faults()).toEqual([]);
  });

  test('puts a request together, runs it, and says the same in commands that do', async () => {
    const { page, faults } = await afresh('#explore');
    const form = page.locator('#explore-form');
    await form.locator('[name=what]').selectOption('rows');
    await form.locator('[name=count]').fill('5');
    await form.locator('summary').click();
    for (const name of ['trade_id', 'price']) await form.locator(`[data-field="${name}"]`).check();
    await form.getByRole('button', { name: 'Add a filter' }).click();
    await form.getByRole('combobox', { name: 'Field' }).selectOption('trade_id');
    await form.getByRole('combobox', { name: 'Operator' }).selectOption('lte');
    await form.getByLabel('Value').fill('100');
    await form.getByRole('button', { name: 'Run it' }).click();
    await page.locator('#explore-result .scroll table').waitFor();
    const link = page.url();
    const ids = await page.locator('#explore-result .scroll tbody tr td:first-child').allInnerTexts();
    expect(ids).toEqual(['96', '97', '98', '99', '100']);

    const said = page.locator('.said pre code');
    const env = { ...process.env, TIDEMARK_URL: serving.url, TIDEMARK_KEY: API_KEY };
    const curl = await promisify(execFile)('sh', ['-c', await textOf(said)], { env });
    expect(JSON.parse(curl.stdout).rows.map(({ trade_id }: { trade_id: number }) => String(trade_id))).toEqual(ids);
    await page.getByRole('button', { name: 'TypeScript' }).first().click();
    const client = await promisify(execFile)(
      process.execPath,
      ['--input-type=module-typescript', '--eval', await textOf(said)],
      { env, cwd: ROOT },
    );
    expect(client.stdout.match(/trade_id: \d+/g)).toEqual(ids.map((id) => `trade_id: ${id}`));
    await page.getByRole('button', { name: 'Python' }).first().click();
    expect(
      execFileSync('python3', ['-c', 'import ast, sys; print(len(ast.parse(sys.stdin.read()).body))'], {
        input: await textOf(said),
        encoding: 'utf8',
      }).trim(),
    ).toBe('4');

    // The address is a link to the result.
    await page.goto('about:blank');
    await page.goto(link);
    await page.locator('#explore-result .scroll table').waitFor();
    expect(await page.locator('#explore-result .scroll tbody tr td:first-child').allInnerTexts()).toEqual(ids);
    expect(faults()).toEqual([]);
  });

  test('builds a frame by choosing columns, draws them on one axis, and gives the command', async () => {
    const { page, faults } = await afresh('#frame');
    const form = page.locator('#frame-form');
    await form.getByRole('button', { name: 'Add a column' }).click();
    const added = form.locator('.column').last();
    await added.getByRole('combobox', { name: 'Field' }).selectOption('quantity');
    await added.getByRole('combobox', { name: 'Aggregate' }).selectOption('sum');
    await form.locator('[name=window]').selectOption('days');
    await form.locator('[name=from]').fill('2024-01-01');
    await form.locator('[name=to]').fill('2024-01-02');
    await form.getByRole('button', { name: 'Build it' }).click();
    await page.getByRole('img', { name: 'a_close, a_quantity over time' }).waitFor();
    const table = page.locator('#frame-result table');
    expect(await table.locator('thead th').allInnerTexts()).toEqual([
      'datetime',
      'known_at_utc',
      'a_close',
      'a_quantity',
    ]);
    expect(await textOf(page.locator('#frame-result .result-head'))).toMatch(/^48 rows/);
    const said = page.locator('.said pre code');
    const env = { ...process.env, TIDEMARK_URL: serving.url, TIDEMARK_KEY: API_KEY };
    const curl = await promisify(execFile)('sh', ['-c', await textOf(said)], { env });
    const { rows } = JSON.parse(curl.stdout);
    expect(rows).toHaveLength(48);
    const last = await table.locator('tbody tr').last().locator('td').allInnerTexts();
    expect(last).toEqual(Object.values(rows[47]).map(String));
    await page.getByRole('button', { name: 'TypeScript' }).first().click();
    const client = await promisify(execFile)(
      process.execPath,
      ['--input-type=module-typescript', '--eval', await textOf(said)],
      { env, cwd: ROOT },
    );
    expect(client.stdout.match(/a_close: /g)).toHaveLength(48);
    expect(faults()).toEqual([]);
  });

  test('draws candles and lines, and tells a refusal with its code and every fault', async () => {
    const { page, faults } = await afresh('#explore');
    const run = () => page.getByRole('button', { name: 'Run it' }).click();
    /** Colours on the chart that are not its ground. */
    const painted = () =>
      page.locator('#explore-result canvas').evaluateAll((all) => {
        const seen = new Set<string>();
        // Of a copy that says it is read often: the browser warns on the console of a chart that is read a second time.
        type Copy = { drawImage(...from: unknown[]): void; getImageData(...box: number[]): { data: Uint8Array } };
        const { OffscreenCanvas } = globalThis as unknown as {
          OffscreenCanvas: new (...size: number[]) => { getContext(kind: string, options: object): Copy };
        };
        for (const canvas of all as unknown as { width: number; height: number }[]) {
          const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d', { willReadFrequently: true });
          copy.drawImage(canvas, 0, 0);
          const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
          for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] === 255) seen.add(`${data[at]},${data[at + 1]},${data[at + 2]}`);
        }
        return [...seen];
      });
    await page.locator('#explore-form [name=size]').selectOption('1h');
    await run();
    await page.getByRole('img', { name: /\d+ candles of exchange_a_spot_trades/ }).waitFor();
    // Up and down, as --proved and --bad are in light.
    await expect.poll(painted).toEqual(expect.arrayContaining(['31,125,92', '179,38,30']));
    await page.locator('.draw select').selectOption('close');
    await page.getByRole('img', { name: 'close of exchange_a_spot_trades over time' }).waitFor();
    await expect.poll(painted).toEqual(expect.arrayContaining(['42,143,168']));
    expect(faults()).toEqual([]);

    await page.locator('#explore-form [name=window]').selectOption('days');
    await page.locator('#explore-form [name=from]').fill('2024-01-09');
    await page.locator('#explore-form [name=to]').fill('2024-01-02');
    await run();
    const refusal = page.locator('#explore-result [role=alert]');
    await refusal.waitFor();
    expect(await textOf(refusal)).toMatch(
      /HISTORICAL_CONTRACT_ERROR[\s\S]*\/start_date[\s\S]*must not be after end_date/,
    );
  });

  test('draws all candles at the size that fits, zooms to a minute of one-second candles, and follows drags and keys', async () => {
    const { page, faults } = await afresh('#candles');
    const asked: string[] = [];
    page.on('request', (request) => {
      if (request.method() === 'POST') asked.push(JSON.parse(request.postData()!).kline_size ?? '1s');
    });
    const said = page.locator('#candles-said');
    const rowsOf = async (path: string, body: object) =>
      (await serving.send({ path, body: JSON.stringify(body) })).json.rows;
    const klines = (kline_size: string) =>
      rowsOf('/v1/historical/exchange_a/spot/klines', { kline_size, start_date: DAYS[0], end_date: DAYS[2] });
    /** What is drawn, once it is of this size. */
    const drawn = async (size: string, place: RegExp) => {
      await expect.poll(() => textOf(said)).toMatch(new RegExp(`^\\d+ candles? of ${size}, ${place.source}`));
      const [, count, from, to = from, unproved] =
        /^(\d+) .*, (2.+?)(?: to (.+))? UTC(?:, (.+) not proved)?, \d+ ms$/.exec(await textOf(said))!;
      const msOf = (text: string) => Date.parse(`${text.replace(' ', 'T')}Z`);
      // A day alone is a whole one.
      const [fromMs, toMs] = [msOf(from), msOf(to) + (to.includes(':') ? 0 : 86_400_000)];
      await page
        .getByRole('img', { name: `${count} candle${count === '1' ? '' : 's'} of ${size} of ${DATASET}` })
        .waitFor();
      return { count: Number(count), fromMs, toMs, unproved };
    };
    const pressed = () => page.locator('#candles-spans [aria-pressed=true]').allInnerTexts();
    const starts = ({ datetime }: { datetime: string }) => Date.parse(datetime);
    const within = (times: readonly number[], { fromMs, toMs }: { fromMs: number; toMs: number }) =>
      times.filter((ms) => ms >= fromMs && ms < toMs);

    // Four days, one of them missing.
    const all = await drawn('5 minutes', /2024-01-01 to 2024-01-04 UTC/);
    expect(all).toMatchObject({ count: (await klines('5m')).length, unproved: '1 d' });
    expect(await pressed()).toEqual(['1 week']);
    await page.getByRole('button', { name: 'Shorter span' }).click();
    const minutes = (await klines('1m')).map(starts);
    for (let at = 0; at < 3; at++) await page.keyboard.press('ArrowRight');
    const day = await drawn('1 minute', /2024-01-04 UTC/);
    expect(day).toMatchObject({ count: within(minutes, day).length, unproved: undefined });
    expect(await pressed()).toEqual(['1 day']);

    // A quarter of the chart, which is six hours: half of what is drawn then is of the missing day.
    const box = (await page.locator('#candles-chart td:nth-child(2) canvas').first().boundingBox())!;
    const at = (share: number) => [box.x + share * box.width, box.y + box.height / 2] as const;
    await page.mouse.move(...at(0.5));
    await page.mouse.down();
    await page.mouse.move(...at(0.75), { steps: 30 });
    await page.mouse.up();
    const dragged = await drawn('1 minute', /2024-01-03 1[78]:.* to 2024-01-04 1[78]:/);
    expect(dragged.count).toBe(within(minutes, dragged).length);
    expect(dragged.unproved).toMatch(/^[56] h/);
    expect(await pressed()).toEqual(['1 day']);

    await page.getByRole('button', { name: '1 hour' }).click();
    const hour = await drawn('1 minute', /2024-01-04 0[56]:/);
    const [minute] = within(minutes, hour);
    // An hour that begins within a minute is said to be 61 minutes long; half of what is too much lies before it.
    const before = ((hour.toMs - hour.fromMs) / 60_000 - 60) / 2;
    await page.mouse.click(...at(((minute - hour.fromMs) / 60_000 + 0.5 - before) / 60));
    const shown = await drawn('1 second', new RegExp(new Date(minute).toISOString().slice(0, 16).replace('T', ' ')));
    const time_range = [minute, minute + 60_000].map((ms) => new Date(ms).toISOString());
    const seconds = await rowsOf('/v1/raw/query', { sources: [DATASET], mode: 'aligned_1s', time_range });
    expect(shown.count).toBe(seconds.length);
    expect(shown.count).toBeGreaterThan(0);

    const scroll = await page.evaluate('scrollY');
    await page.mouse.move(...at(0.5));
    await page.keyboard.down('Control');
    for (let turn = 0; turn < 8; turn++) await page.mouse.wheel(0, 400);
    await page.keyboard.up('Control');
    await expect.poll(pressed).toEqual([]);
    expect(await page.evaluate('scrollY')).toBe(scroll);
    await page.getByRole('button', { name: '1 week' }).click();
    expect(await drawn('5 minutes', /2024-01-01 to 2024-01-04 UTC/)).toMatchObject({ count: all.count });
    expect(new Set(asked)).toEqual(new Set(['5m', '1m', '1s']));
    expect(faults()).toEqual([]);
  });

  test('says of a dataset that rights refuse that it is not served, and why, wherever it is asked for', async () => {
    const matrix = JSON.parse(await readFile(OWN_MATRIX, 'utf8'));
    matrix.sources.exchange_a.rights_state = 'Ingest Only';
    await using folder = await mkdtempDisposable(join(tmpdir(), 'page-rights-'));
    const rightsMatrixPath = join(folder.path, 'matrix.json');
    await writeFile(rightsMatrixPath, JSON.stringify(matrix));
    await copyFile(join(dirname(OWN_MATRIX), 'signed.md'), join(folder.path, 'signed.md'));
    const settings = { SVC_NATS_READER_URL: system.env.natsReaderUrl };
    await using refusing = await startServing({ databaseUrl: system.env.databaseUrl, settings, rightsMatrixPath });
    await using watched = await enter(world.browser, refusing);
    const { page } = watched;
    const row = page.locator('.datasets tbody tr').first();
    expect(await textOf(row.locator('.badge.bad').first())).toBe('not served');
    expect(await textOf(row.locator('td[data-name="Newest values"]'))).toBe('refused: QUERY_RIGHTS_INGEST_ONLY');
    await page.getByText(`${DATASET} is not served: QUERY_RIGHTS_INGEST_ONLY.`).waitFor();
    await page.goto(`${refusing.url}/#explore?dataset=${DATASET}`);
    await page.getByRole('alert').getByText('QUERY_RIGHTS_INGEST_ONLY').waitFor();
  });

  test('a link whose choices are not known leads to the first screen, which says so', async () => {
    const { page } = await afresh('#frame?columns=nonsense');
    await page.getByText('The address holds choices that are not known here.').waitFor();
    await page.locator('.datasets tbody tr').first().waitFor();
  });

  // axe-core looks at the colours, too, and at every state of the page, in nightly/page-looks.test.ts.
  test('can be read in light and in dark, at every width; axe-core finds no rule broken by it', async () => {
    const { page, faults } = await afresh(`#coverage?dataset=${DATASET}`);
    await dayOf(page, '2024-01-05').click();
    await page.locator('#proof .notice').waitFor();
    await page.goto(`${serving.url}/#explore`);
    await page.getByRole('button', { name: 'Run it' }).click();
    await page.locator('#explore-result .scroll table').waitFor();
    for (const width of [768, 390, 320, 1366]) {
      await page.setViewportSize({ width, height: 800 });
      // Charts follow the width a moment later.
      await expect.poll(() => tooWide(page), { message: `${width} px` }).toEqual([]);
    }
    for (const colorScheme of ['dark', 'light'] as const) {
      await page.emulateMedia({ colorScheme });
      expect(await lowContrast(page), colorScheme).toEqual([]);
    }
    expect(await brokenRules(page, [CONTRAST])).toEqual([]);
    await page.locator('#key-button').click();
    expect(await nameless(page)).toEqual([]);
    expect(faults()).toEqual([]);
  });

  test('is told what it may load, and a part that did not change is not sent again', async () => {
    const { headers } = await serving.send({ method: 'GET', path: '/', key: null });
    expect(headers['content-security-policy']).toMatch(/^default-src 'none'; script-src 'self'; style-src 'self';/);
    expect(headers['content-security-policy']).not.toMatch(/unsafe|https?:|\*/);
    const again = await serving.send({
      method: 'GET',
      path: '/',
      key: null,
      headers: { 'If-None-Match': headers.etag! },
    });
    expect([again.status, again.text]).toEqual([304, '']);
    // As proxies that compress send it.
    const weak = await serving.send({
      method: 'GET',
      path: '/',
      key: null,
      headers: { 'If-None-Match': `"x", W/${headers.etag}` },
    });
    expect(weak.status).toBe(304);
  });

  test('follows what happens: a day that is proved meanwhile, a service that goes away and comes back', async () => {
    await using watched = await enter(world.browser, serving, {
      hash: `#coverage?dataset=${DATASET}`,
      prepare: (page) => page.clock.install(),
    });
    const { page } = watched;
    await page.route('**/v1/**', (route) => route.abort());
    await page.clock.fastForward(POLL_MS);
    await page.getByText('The service does not answer. Trying again.').waitFor();
    await writeDocument(
      system.vendor,
      '2024-01-03',
      csvOf({ day: '2024-01-03', rows: 10, firstId: 10_000, seed: 9, timeUnit: 'ms' }),
    );
    expect((await system.backfill('2024-01-03', '2024-01-03')).exit).toBe(0);
    // It was started again: one that went on would tell what it found for five seconds more.
    await using again = await startServing({
      databaseUrl: system.env.databaseUrl,
      settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl },
    });
    await page.unroute('**/v1/**');
    await page.route('**/v1/**', (route) =>
      route.continue({ url: route.request().url().replace(serving.url, again.url) }),
    );
    await eventually(async () => {
      await page.clock.fastForward(POLL_MS);
      return (await dayOf(page, '2024-01-03').getAttribute('aria-label')) === '2024-01-03, degraded';
      // Ten trades: its silences are long, and the ids of the next day do not follow its own.
    }, 'the day is shown as degraded');
    expect(await textOf(page.locator('#updated'))).toMatch(/^as of /);
  });

  test('of an empty system says what to do', async () => {
    await using env = await createMigratedEnv();
    await using empty = await startServing({
      databaseUrl: env.databaseUrl,
      settings: { SVC_NATS_READER_URL: env.natsReaderUrl },
    });
    await using watched = await enter(world.browser, empty);
    const { page } = watched;
    await page.getByRole('heading', { name: 'Nothing is proved yet' }).waitFor();
    // Of no rows it was said that they are a sample.
    expect(await page.locator('.lead').first().textContent()).toContain('Nothing is here yet');
    await page.goto(`${empty.url}/#coverage`);
    await page.getByText('brings it in').waitFor();
    await page.goto(`${empty.url}/#work`);
    await page.getByText('Nothing is at work.').waitFor();
    expect(watched.faults).toEqual([]);
  });
});
