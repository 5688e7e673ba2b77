/** Issuers over http: today's documents again and again, past days where there are any, and what was kept of them all. */
import { mkdir, readdir, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { openDocumentArchive } from '../../pipelines/sources/documents/document-archive.ts';
import { bitwisePage } from '../../pipelines/sources/etf/sample.ts';
import { isMarketDay } from '../../shared/dates.ts';
import { Catalog } from '../../shared/db/catalog.ts';
import { etfDailyMetrics } from '../../shared/registry/datasets/etf_daily_metrics.ts';
import { captureKey } from '../../shared/registry/keys.ts';
import type { Json } from '../support/command.ts';
import { dayOf, documentOf, fundOf, type IssuerServer, idOf, marketDays, startIssuers } from '../support/etf.ts';
import { expectSameAfterKills } from '../support/etf-kills.ts';
import { digestsOf, System } from '../support/pipeline.ts';
import { eventually } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';

const [LOST, FIRST, SECOND] = ['2026-03-04', '2026-03-05', '2026-03-06'];

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

const keptIn = (one: System) => join(one.env.dir, 'state', 'kept');
const provedKeys = async (one = system) =>
  (await one.rows<Json>(`select partition_key k from partitions where state = 'proved' order by 1`)).map(({ k }) => k);
const show = (ticker: string, day: string, more = {}) =>
  issuers.show(ticker, documentOf(ticker, dayOf(ticker, day, more)));

describe('follow', () => {
  test('asks every fund again and again: new days, restated ones, faults that pass; checks move what is proved through', async () => {
    show('IBIT', FIRST);
    issuers.show('BITB', bitwisePage('build-1'));
    issuers.answers.set('/BITB/_next/data/build-1/index.json', documentOf('BITB', dayOf('BITB', FIRST)));
    issuers.show('ARKB', '<!doctype html><html><body>Checking your browser</body></html>');
    const settings = {
      ...issuers.settings('IBIT', 'BITB', 'ARKB'),
      SVC_FOLLOW_JITTER_SECONDS: '0',
      ...limitsEnv({ sourceAttempts: 1 }),
    };
    // Fetched before a crash, and never published: only begun.
    await new Catalog(system.client).openAttempts(etfDailyMetrics, [captureKey(idOf('IBIT'), LOST)], {
      attempt: 1,
      revision: 1,
      publisher: 'killed',
      document: { name: 'holdings.csv', sha256: '', bytes: 0, granularity: 'capture' },
      synthetic: false,
    });
    const keep = await openDocumentArchive(keptIn(system));
    const lost = Buffer.from(documentOf('IBIT', dayOf('IBIT', LOST)));
    await keep.put(lost, { source_id: idOf('IBIT'), name: 'holdings.csv', asked: {} });
    const startedAt = Date.now();
    const running = system.begin(['follow', 'etf'], { ...settings, ...limitsEnv({ metricsEveryMs: 100 }) });
    onTestFinished(() => running.stop());
    const has = async (...keys: readonly string[]) => {
      const found = await provedKeys();
      return keys.every((key) => found.includes(key));
    };
    const [ibit, bitb] = [idOf('IBIT'), idOf('BITB')];
    await eventually(() => has(`${ibit}:${LOST}`, `${ibit}:${FIRST}`, `${bitb}:${FIRST}`), 'the first day');
    show('IBIT', SECOND, { visit: 'another' });
    issuers.show('BITB', '<!doctype html><html><body>Security Checkpoint</body></html>');
    const pagesAsked = () => issuers.asked.filter((path) => path === '/BITB/').length;
    const askedBefore = pagesAsked();
    show('ARKB', SECOND);
    await eventually(() => has(`${idOf('IBIT')}:${SECOND}`, `${idOf('ARKB')}:${SECOND}`), 'the second day');
    await eventually(() => pagesAsked() > askedBefore, 'the bot check');
    issuers.show('BITB', bitwisePage('build-2'));
    const changed = dayOf('BITB', FIRST, { sharesOutstanding: '31000000' });
    issuers.answers.set('/BITB/_next/data/build-2/index.json', documentOf('BITB', changed));
    await eventually(() => has(`${idOf('BITB')}:${FIRST}:2`), 'the day said again');
    running.stop();
    const { exit, json } = await running.done;
    expect(exit).toBe(1);
    expect(await provedKeys()).toHaveLength(6);
    expect(json).toMatchObject({ refused: 0, quarantined: 0 });
    const bots = json.units.filter(({ reason = '' }: Json) => reason.includes(`BITB (${idOf('BITB')}), document /: `));
    expect(bots.length).toBeGreaterThan(0);
    const faults = new Set(json.units.map(({ code }: Json) => code).filter(Boolean));
    // What was under way when it was stopped.
    faults.delete('INTERRUPTED');
    expect(faults).toEqual(new Set(['SOURCE_LAYOUT_UNKNOWN']));
    const [{ through }] = await system.rows<Json>(
      'select through_ms::float8 as through from coverage_spans where source_id = $1 order by span desc limit 1',
      [idOf('IBIT')],
    );
    expect(through).toBeGreaterThanOrEqual(startedAt);
    expect(through).toBeLessThanOrEqual(Date.now());
  });

  test('what was asked for and answered is all there, verbatim', async () => {
    const folder = join(keptIn(system), 'fetches', idOf('BITB'));
    const records = await Promise.all(
      (await readdir(folder)).sort().map(async (name) => JSON.parse(await readFile(join(folder, name), 'utf8'))),
    );
    expect(records[0]).toMatchObject({ name: '/', asked: { part: 'page' } });
    expect(records[1]).toMatchObject({ name: '/_next/data/build-1/index.json', asked: {} });
    const read = (sha256: string) => readFile(join(keptIn(system), 'objects', sha256.slice(0, 2), sha256), 'utf8');
    expect(await read(records[0].sha256)).toBe(bitwisePage('build-1'));
    expect(await read(records[1].sha256)).toBe(documentOf('BITB', dayOf('BITB', FIRST)));
  });
});

describe('past days', () => {
  test('are asked of the issuer that has them, market days alone; of the others only today can be had, which is said', async () => {
    const path = (day: string) => `/IBIT${fundOf('IBIT').document.pathOf!(day)}`;
    const days = ['2026-02-11', '2026-02-12', '2026-02-13', '2026-02-17'];
    for (const day of days) issuers.answers.set(path(day), documentOf('IBIT', dayOf('IBIT', day)));
    // One day without data, and one answered with another day's document.
    issuers.answers.set(path('2026-02-12'), '\uFEFFTrust\nFund Holdings as of,"-"\n');
    issuers.answers.set(path('2026-02-13'), documentOf('IBIT', dayOf('IBIT', '2026-03-05')));
    issuers.asked.length = 0;
    const settings = { ...issuers.settings('IBIT', 'HODL'), ...limitsEnv({ sourceAttempts: 1 }) };
    const { exit, json } = await system.run(
      ['backfill', 'etf', '--from', '2026-02-11', '--to', '2026-02-17'],
      settings,
    );
    expect(exit).toBe(1);
    // No weekend, and not Presidents' Day.
    expect(issuers.asked).toEqual(days.map(path));
    expect(days.every(isMarketDay)).toBe(true);
    const found = json.units.map(({ partition, state, rows, code }: Json) => [
      partition.replace(/(?<=HODL before )\d{4}-\d\d-\d\d$/, 'today'),
      state,
      code ?? rows,
    ]);
    const key = (day: string) => `${idOf('IBIT')}:${day}`;
    expect(found.toSorted()).toEqual(
      [
        [key('2026-02-11'), 'proved', 11],
        [key('2026-02-12'), 'proved', 0],
        [key('2026-02-13'), 'failed', 'SOURCE_DOCUMENT_INVALID'],
        [key('2026-02-17'), 'proved', 11],
        ['HODL before today', 'failed', 'SOURCE_NOT_FOUND'],
      ].toSorted(),
    );
    expect(JSON.stringify(json.units)).toContain("only today's document");
  });

  test('a page that builds itself needs a browser, and says which setting names it', async () => {
    const { exit, json } = await system.run(['backfill', 'etf', '--fund', 'FBTC'], issuers.settings('FBTC'));
    expect(exit).toBe(1);
    expect(json.units).toMatchObject([{ partition: 'FBTC today', state: 'failed', code: 'CONFIGURATION_INVALID' }]);
    expect(json.units[0].reason).toContain('SVC_BROWSER_PATH');
  });
});

describe('reingest --kept', () => {
  test('makes the same partitions of what was kept, in a system that has lost everything else', {
    tags: ['nightly'],
  }, async () => {
    await using other = await System.create();
    await mkdir(join(other.env.dir, 'state'), { recursive: true });
    const kept = { SVC_KEEP_DIR: keptIn(system) };
    const { exit, json, stderr } = await other.run(['reingest', 'etf', '--kept'], kept);
    expect({ exit, stderr }).toMatchObject({ exit: 0 });
    expect(json).toMatchObject({ command: 'reingest', proved: 9, failed: 0, refused: 0 });
    expect(await provedKeys(other)).toEqual(await provedKeys());
    expect(await digestsOf(other.client)).toEqual(await digestsOf(system.client));
    const aligned = `select source_id, metric_name, metric_value_string from canonical_aligned_1s_aggregates order by 1, 2, aligned_at_utc, 3`;
    expect(await other.rows(aligned)).toEqual(await system.rows(aligned));
    // What is known since when does not change with a later reading of the archive.
    const captured = `select partition_key, captured_ms from partitions where captured_ms <= extract(epoch from ingested_at) * 1000 order by 1`;
    expect(await other.rows(captured)).toEqual(await system.rows(captured));
    expect(await other.rows(captured)).toHaveLength(9);
    // The bot check and the day answered with another's document are named, and hold nothing up.
    expect(stderr).toContain('is skipped');
    expect(
      (await other.run(['reingest', 'etf', '--kept', '--fund', 'IBIT', '--from', '2026-03-01'], kept)).json,
    ).toMatchObject({
      unchanged: 3,
      proved: 0,
    });
  });

  test('a document that a proved day was made of and that is damaged is a fault of that day', async () => {
    const folder = join(keptIn(system), 'objects');
    const [{ sha }] = await system.rows<Json>(
      `select document_sha256 sha from partitions where partition_key = '${idOf('ARKB')}:${SECOND}'`,
    );
    const path = join(folder, sha.slice(0, 2), sha);
    await rename(path, `${path}.away`);
    const { exit, json } = await system.run(['reingest', 'etf', '--kept', '--fund', 'ARKB']);
    await rename(`${path}.away`, path);
    expect(exit).toBe(1);
    expect(json.units).toMatchObject([
      { partition: `${idOf('ARKB')}:${SECOND}`, state: 'failed', code: 'SOURCE_NOT_FOUND' },
    ]);
  });

  test('what reads otherwise now is refused without a reason, and with one replaced as a new revision', async () => {
    const other = join(system.env.dir, 'kept-otherwise');
    const said = dayOf('ARKB', SECOND);
    const [bitcoin, cash] = said.holdings;
    const document = documentOf('ARKB', { ...said, holdings: [{ ...bitcoin, units: '77.25' }, cash] });
    const keep = await openDocumentArchive(other);
    await keep.put(Buffer.from(document), { source_id: idOf('ARKB'), name: 'holdings.csv', asked: {} });
    const key = `${idOf('ARKB')}:${SECOND}`;
    const units = () =>
      system.rows<Json>(
        `select value_text, revision from etf_daily_metrics join partitions using (partition_key)
         where partition_key = $1 and metric_name = 'btc_units'`,
        [key],
      );
    const refused = await system.run(['reingest', 'etf', '--kept'], { SVC_KEEP_DIR: other });
    expect([refused.exit, refused.json.units]).toMatchObject([
      1,
      [{ partition: key, state: 'refused', code: 'PARTITION_LATE_ARRIVAL' }],
    ]);
    expect(await units()).toEqual([{ value_text: bitcoin.units, revision: 1 }]);
    const args = ['reingest', 'etf', '--kept', '--reason', 'the adapter was corrected'];
    expect((await system.run(args, { SVC_KEEP_DIR: other })).json).toMatchObject({ proved: 1, failed: 0 });
    expect(await units()).toEqual([{ value_text: '77.25', revision: 2 }]);
    expect((await system.run(args, { SVC_KEEP_DIR: other })).json).toMatchObject({ proved: 0, unchanged: 1 });
  });

  test('of a feed whose documents are not kept is a usage fault', async () => {
    const { exit, json } = await system.run(['reingest', 'exchange_a_spot_trades', '--kept']);
    expect([exit, json.error.code]).toEqual([2, 'USAGE']);
  });
});

test('killed once some are proved, started again: every capture once, and the digests of an undisturbed run', {
  tags: ['nightly'],
}, async () => {
  // Kills at other moments: nightly/etf-kill.test.ts.
  await expectSameAfterKills(marketDays('2025-06-02', 2), [5]);
});
