/** Pages that build themselves, in a real Chromium: what it then shows is read, kept and proved like any document. */
import { readdir, readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { pageBrowser } from '../../pipelines/sources/etf/browser.ts';
import { OPERATIONS } from '../../pipelines/sources/etf/issuers/franklin-ezbc.ts';
import type { Json } from '../support/command.ts';
import { dayOf, documentOf, fundOf, type IssuerServer, idOf, startIssuers } from '../support/etf.ts';
import { givenTool } from '../support/given.ts';
import { System } from '../support/pipeline.ts';
import { chromium } from '../support/tools.ts';

const CHROMIUM = await chromium();

const DAY = '2026-03-05';

/** The body of a page is made by a script, after an answer that takes its time. */
function madeByScript(issuers: IssuerServer, ticker: string, page: string): string {
  const body = page.slice(page.indexOf('<body>') + 6, page.indexOf('</body>'));
  issuers.answers.set(`/${ticker}/parts`, JSON.stringify(body));
  return `<!doctype html><html><head><title>${ticker}</title></head><body><div id="app">Loading</div>
    <script>setTimeout(async () => {
      document.getElementById('app').innerHTML = await (await fetch('/${ticker}/parts')).json();
    }, 200)</script></body></html>`;
}

const FETCH = 'fetch(at)';
/** The page is not loaded before it has its answers. */
const WAIT_FOR = `const asked = new XMLHttpRequest(); asked.open('GET', at, false); asked.send()`;

/** A page that asks its own service for what it shows. */
function askingFor(issuers: IssuerServer, document: string, names: readonly string[], how = FETCH): string {
  const { operations } = JSON.parse(document);
  const at = (name: string) => `/api/pds/price-and-performance?op=${name}&v=1`;
  for (const name of names) issuers.answers.set(at(name), JSON.stringify(operations[name]));
  return `<!doctype html><html><body><script>
    for (const at of ${JSON.stringify(names.map(at))}) { ${how}; }</script></body></html>`;
}

givenTool(CHROMIUM).describe('chromium', () => {
  let system: System;
  let issuers: IssuerServer;
  beforeAll(async () => {
    system = await System.create();
    issuers = await startIssuers();
  });
  afterAll(async () => {
    await issuers?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  /** None of these pages is waited for to the end: what a page waits for comes, or its network is quiet. */
  const unitsOf = async (...tickers: readonly string[]) => {
    const browser = { SVC_BROWSER_PATH: CHROMIUM.path };
    const settings = { ...browser, ...issuers.settings(...tickers) };
    const { json, stderr } = await system.run(['backfill', 'etf'], settings);
    expect(json, stderr).toBeDefined();
    return json.units as Json[];
  };
  test('a redirect to an address inside is not taken', async () => {
    // Any that is not a loopback one: the machine's own.
    const inside = Object.values(networkInterfaces())
      .flatMap((found) => found ?? [])
      .find(({ internal, family }) => !internal && family === 'IPv4')?.address;
    if (inside === undefined) return;
    const server = createServer((request, response) => {
      const { port } = server.address() as AddressInfo;
      if (request.url === '/moved') response.writeHead(302, { location: `http://${inside}:${port}/` }).end();
      else response.end('<html>inside</html>');
    });
    await new Promise<void>((resolve) => server.listen(0, '0.0.0.0', resolve));
    try {
      const { port } = server.address() as AddressInfo;
      const options = { path: CHROMIUM.path, timeoutMs: 20_000, signal: AbortSignal.timeout(60_000) };
      await using browser = pageBrowser(options);
      const page = (path: string) => browser.document(new URL(`http://127.0.0.1:${port}/${path}`));
      expect((await page('')).toString()).toContain('inside');
      await expect(page('moved')).rejects.toThrow('address: it is not followed');
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });

  const good = (ticker: string) => documentOf(ticker, dayOf(ticker, DAY));

  test('reads tables made by scripts, and the answers a page asks its service for', async () => {
    issuers.show('FBTC', madeByScript(issuers, 'FBTC', good('FBTC')));
    issuers.show('BRRR', madeByScript(issuers, 'BRRR', good('BRRR')));
    issuers.show('GBTC', good('GBTC'));
    issuers.show('EZBC', askingFor(issuers, good('EZBC'), OPERATIONS));
    const tickers = ['EZBC', 'GBTC', 'FBTC', 'BRRR'];
    const units = await unitsOf(...tickers);
    expect(units.map(({ partition, state, rows, reason }) => [partition, state, reason ?? rows])).toEqual([
      [`${idOf('EZBC')}:${DAY}`, 'proved', 15],
      [`${idOf('GBTC')}:${DAY}`, 'proved', 14],
      [`${idOf('FBTC')}:${DAY}`, 'proved', 11],
      [`${idOf('BRRR')}:${DAY}`, 'proved', 9],
    ]);
    const found = await system.rows<Json>(
      `select source_id, value_text from etf_daily_metrics where metric_name = 'btc_units'`,
    );
    expect(new Map(found.map(({ source_id, value_text }) => [source_id, Number(value_text)]))).toEqual(
      new Map(tickers.map((ticker) => [idOf(ticker), Number(dayOf(ticker, DAY).holdings[0].units)])),
    );
    // What is kept is what the browser had in the end.
    const kept = join(system.env.dir, 'state', 'kept');
    const [record] = await readdir(join(kept, 'fetches', idOf('FBTC')));
    const sha256 = record.slice(-69, -5);
    expect(await readFile(join(kept, 'objects', sha256.slice(0, 2), sha256), 'utf8')).toContain(
      'Total bitcoin in fund',
    );
    expect((await system.run(['reingest', 'etf', '--kept'])).json).toMatchObject({ unchanged: 4, failed: 0 });
  });

  test('a page that is refused and one that never has its table fail, each for itself', async () => {
    issuers.show('GBTC', 429);
    issuers.show(
      'FBTC',
      '<!doctype html><html><head><title>FBTC</title></head><body><div id="app">Loading</div></body></html>',
    );
    issuers.show('BRRR', 404);
    const units = await unitsOf('GBTC', 'FBTC', 'BRRR');
    expect(units.map(({ partition, code }) => [partition, code])).toEqual([
      ['GBTC today', 'SOURCE_UNREACHABLE'],
      ['FBTC today', 'SOURCE_LAYOUT_UNKNOWN'],
      ['BRRR today', 'SOURCE_NOT_FOUND'],
    ]);
    expect(units[0].reason).toContain('GBTC: ');
    expect(units[0].reason).toContain('429');
    expect(units[1].reason).toContain('no label "Total bitcoin in fund"');
  });

  test('of a page that asks for less the answer that is missing is named', async () => {
    const without = OPERATIONS.filter((name) => name !== 'Aum');
    issuers.show('EZBC', askingFor(issuers, good('EZBC'), without, WAIT_FOR));
    const signal = new AbortController().signal;
    // Nothing is left to come after the page but what it does not ask for.
    await using browser = pageBrowser({ path: CHROMIUM.path, timeoutMs: 60_000, answersMs: 1000, signal });
    const { path, answers } = fundOf('EZBC').document;
    const url = new URL(`EZBC${path}`, issuers.url);
    await expect(browser.document(url, answers)).rejects.toMatchObject({
      code: 'SOURCE_LAYOUT_UNKNOWN',
      message: expect.stringContaining('op Aum'),
    });
  });

  test('a path that is no browser is named', async () => {
    const settings = { SVC_BROWSER_PATH: '/bin/false', ...issuers.settings('FBTC') };
    const { json } = await system.run(['backfill', 'etf'], settings);
    expect(json.units).toMatchObject([
      { code: 'CONFIGURATION_INVALID', reason: expect.stringContaining('/bin/false') },
    ]);
  });
});
