/** Documents of funds through the real command: proved, served, and refused where they are not what they should be. */
import { readFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { checkLineage } from '../../client/check/index.ts';
import { ISSUERS } from '../../pipelines/sources/etf/issuers/index.ts';
import { connect } from '../../shared/db/connect.ts';
import { generateSigner } from '../../shared/proof-log/note.ts';
import type { Json } from '../support/command.ts';
import { Archives, dayOf, documentOf, idOf } from '../support/etf.ts';
import { givenData } from '../support/given.ts';
import { System } from '../support/pipeline.ts';
import { eventually, type Serving, startServing } from '../support/serving.ts';

const DATASET = 'etf_daily_metrics';
const REAL = '../shared/data/etf/IBIT_holdings.csv';
/** A Thursday before a weekend, a year without surprises. */
const DAY = '2026-03-05';

let system: System;
let archives: Archives;
let serving: Serving;
beforeAll(async () => {
  system = await System.create();
  archives = new Archives(join(system.env.dir, 'issuers'));
  await archives.fill([DAY]);
  serving = await startServing({
    databaseUrl: system.env.databaseUrl,
    settings: { SVC_NATS_READER_URL: system.env.natsReaderUrl },
  });
});
afterAll(async () => {
  await serving?.[Symbol.asyncDispose]();
  await system?.[Symbol.asyncDispose]();
});

const etf = (args: readonly string[], settings = archives.settings()) => system.run(args, settings);
const backfill = (...more: readonly string[]) => etf(['backfill', 'etf', ...more]);
const rowsOf = async (body: Json): Promise<Json[]> => {
  const { status, json } = await serving.query({ sources: [DATASET], ...body });
  expect(status, JSON.stringify(json).slice(0, 400)).toBe(200);
  return json.rows;
};
const of = (ticker: string, ...more: readonly Json[]) => [
  { field: 'source_id', op: 'eq', value: idOf(ticker) },
  ...more,
];
const metric = (name: string) => ({ field: 'metric_name', op: 'eq', value: name });
const keys = async () =>
  (await system.rows<Json>('select partition_key k from partitions order by 1')).map(({ k }) => k);

describe('a day of ten funds', () => {
  test('is 116 rows, proved and served as the documents say them, in both modes', async () => {
    const { exit, json, stderr } = await backfill();
    expect({ exit, stderr }).toMatchObject({ exit: 0 });
    expect(json).toMatchObject({ proved: 10, rows: 116, failed: 0 });
    const window = { time_range: [`${DAY}T00:00:00Z`, '2026-03-06T00:00:00Z'] };
    const native = await rowsOf(window);
    expect(native).toHaveLength(116);
    const aligned = await rowsOf({ mode: 'aligned_1s', ...window });
    expect(aligned).toHaveLength(116);
    for (const { ticker, sourceId, issuer } of ISSUERS) {
      const fund = dayOf(ticker, DAY);
      const values = (rows: readonly Json[]) =>
        Object.fromEntries(
          rows
            .filter(({ source_id }) => source_id === sourceId)
            .map((row) => [row.metric_name, row.metric_value_float ?? row.metric_value_string]),
        );
      // What the documents were written from, not what their parsers made of them.
      const wanted = {
        as_of_date: DAY,
        btc_units: Number(fund.holdings[0].units),
        issuer,
        observed_at_utc: `${DAY}T00:00:00.000Z`,
        ticker,
        total_net_assets_usd: Number(fund.netAssetsUsd),
      };
      expect(values(native), ticker).toMatchObject(wanted);
      expect(values(aligned), ticker).toEqual(values(native));
    }
    const [units] = await rowsOf({ ...window, filters: of('IBIT', metric('btc_units')) });
    const [kept] = await system.rows<Json>(`select manifest -> 'document' as document from partitions
      where partition_key = '${idOf('IBIT')}:${DAY}'`);
    expect(units).toMatchObject({ metric_unit: 'BTC', dimensions_json: '{"row_index":"1"}', metric_value_int: null });
    const provenance = JSON.parse(units.provenance_json);
    expect(Object.keys(provenance)).toEqual(Object.keys(provenance).toSorted());
    expect(provenance).toMatchObject({
      artifact_sha256: kept.document.sha256,
      fetch_method: 'http',
      source_id: idOf('IBIT'),
    });
    const [count] = await rowsOf({ ...window, filters: of('IBIT', metric('holdings_row_count')) });
    expect(count).toMatchObject({ metric_unit: 'COUNT', metric_value_int: 2, metric_value_float: 2 });
  });

  test('met again with another advert it is the same record; with other facts another capture, whose values win', async () => {
    const before = await system.digests();
    for (const { ticker } of ISSUERS) {
      await archives.write(ticker, DAY, documentOf(ticker, dayOf(ticker, DAY, { visit: 'another' })));
    }
    expect((await backfill()).json).toMatchObject({ unchanged: 10, proved: 0 });
    expect(await system.digests()).toEqual(before);

    const restated = dayOf('HODL', DAY);
    const [bitcoin, cash] = restated.holdings;
    const document = documentOf('HODL', { ...restated, holdings: [{ ...bitcoin, units: '4711.5' }, cash] });
    await archives.write('HODL', DAY, document, `${DAY}T22.json`);
    expect((await backfill('--fund', 'hodl')).json).toMatchObject({ proved: 1, unchanged: 1, rows: 10 });
    expect(await keys()).toContain(`${idOf('HODL')}:${DAY}:2`);
    // Captured on the day that it is filed under.
    const [{ captured }] = await system.rows<{ captured: number }>(
      `select captured_ms::float8 as captured from partitions where partition_key = $1`,
      [`${idOf('HODL')}:${DAY}:2`],
    );
    expect(captured).toBe(Date.parse(`${DAY}T00:00:00Z`) + 86_400_000);
    const filters = of('HODL', metric('btc_units'));
    expect((await rowsOf({ filters })).map((row) => row.metric_value_float).toSorted()).toEqual(
      [4711.5, Number(bitcoin.units)].toSorted(),
    );
    expect(await rowsOf({ mode: 'aligned_1s', filters })).toMatchObject([
      { metric_value_float: 4711.5, records_in_bucket: 2 },
    ]);
  });

  test('reingested with a reason it is a new revision; nothing is doubled', async () => {
    const args = ['reingest', 'etf', '--fund', 'ARKB,HODL', '--reason', 'a test'];
    const { exit, json } = await etf(args);
    // The first document of HODL says what its first capture says; the second replaces the latest.
    expect({ exit, proved: json.proved, unchanged: json.unchanged }).toEqual({ exit: 0, proved: 2, unchanged: 1 });
    const revisions = await system.rows<Json>(
      `select partition_key k, revision r from partitions where partition_key ~ 'ark|vaneck' order by 1`,
    );
    expect(revisions.map(({ r }) => r)).toEqual([2, 1, 2]);
    expect(await rowsOf({ filters: of('HODL') })).toHaveLength(20);
  });
});

describe('a document that is not what it should be', () => {
  test('fails loudly naming fund, document and place, and writes nothing; the other funds go on', async () => {
    const day = '2026-03-06';
    const funds = new Archives(join(system.env.dir, 'faulty'));
    const good = (ticker: string) => documentOf(ticker, dayOf(ticker, day));
    await funds.write('IBIT', day, good('IBIT').replace('Fund Holdings as of', 'Holdings of'));
    await funds.write('BTCO', day, '<!doctype html><html><title>Just a moment...</title>Checking your browser</html>');
    await funds.write('ARKB', day, documentOf('ARKB', dayOf('ARKB', '2099-03-06')));
    await funds.write('GBTC', day, good('GBTC').replace('<body>', '<body>Vercel Security Checkpoint '));
    await funds.write('HODL', day, documentOf('HODL', dayOf('HODL', '1999-03-06')));
    await funds.write('EZBC', day, '');
    await funds.write('DEFI', day, Buffer.from([0x5b, 0xff, 0x5d]));
    await funds.write('BRRR', day, good('BRRR'));
    const tickers = ['IBIT', 'BTCO', 'ARKB', 'GBTC', 'HODL', 'EZBC', 'DEFI', 'BRRR'];
    const before = { keys: await keys(), messages: (await system.log(DATASET)).length };
    const { exit, json } = await etf(['backfill', 'etf'], funds.settings(...tickers));
    expect(exit).toBe(1);
    const said = Object.fromEntries(
      json.units.map(({ partition, state, code, reason }: Json) => [partition, [state, code, reason]]),
    );
    const failed = (ticker: string, code: string, place: string) => {
      const [state, ...found] =
        said[`${ticker} ${day}.${ISSUERS.find((one) => one.ticker === ticker)!.document.extension}`];
      expect([state, found[0]], ticker).toEqual(['failed', code]);
      expect(found[1]).toContain(`${ticker} (${idOf(ticker)}), document ${day}`);
      expect(found[1]).toContain(place);
    };
    failed('IBIT', 'SOURCE_LAYOUT_UNKNOWN', 'no label "Fund Holdings as of"');
    failed('BTCO', 'SOURCE_LAYOUT_UNKNOWN', 'a page where JSON was expected');
    failed('ARKB', 'SOURCE_DOCUMENT_INVALID', '2099-03-06 is in the future');
    failed('GBTC', 'SOURCE_LAYOUT_UNKNOWN', '"Security Checkpoint"');
    failed('HODL', 'SOURCE_DOCUMENT_INVALID', '1999-03-06');
    failed('EZBC', 'SOURCE_DOCUMENT_INVALID', 'empty');
    failed('DEFI', 'SOURCE_LAYOUT_UNKNOWN', 'not UTF-8');
    expect(said[`${idOf('BRRR')}:${day}`]).toEqual(['proved', undefined, undefined]);
    expect(await keys()).toEqual([...before.keys, `${idOf('BRRR')}:${day}`].toSorted());
    expect((await system.log(DATASET)).length).toBe(before.messages + 2);
    // What could not be read is kept all the same.
    const kept = await readdir(join(system.env.dir, 'state', 'kept', 'fetches', idOf('GBTC')));
    expect(kept.length).toBeGreaterThan(0);
  });

  test('of a folder that is not there only that fund fails', async () => {
    const settings = { ...archives.settings('ARKB'), SVC_ETF_ISHARES_IBIT_BASE_URL: 'file:///nowhere/at/all/' };
    const { exit, json } = await etf(['backfill', 'etf'], settings);
    expect(exit).toBe(1);
    expect(json.units).toMatchObject([
      {
        partition: 'IBIT archive',
        state: 'failed',
        code: 'SOURCE_NOT_FOUND',
        reason: expect.stringContaining('/nowhere'),
      },
      { partition: `${idOf('ARKB')}:${DAY}`, state: 'unchanged' },
    ]);
  });

  test.each([
    [['--fund', 'XYZ'], 2, 'no fund "XYZ"'],
    [['--fund', 'BITB'], 2, 'SVC_ETF_BITWISE_BITB_BASE_URL is not set'],
    [['--granularity', 'daily'], 2, 'does not take --granularity'],
    [['--from', '2026-03-07', '--to', '2026-03-01'], 2, 'is after'],
  ])('%s is a usage fault', async (args, code, message) => {
    const { exit, json } = await etf(['backfill', 'etf', ...args], archives.settings('IBIT'));
    expect([exit, json.error.message]).toEqual([code, expect.stringContaining(message)]);
  });
});

describe('days', () => {
  const csv = (day: string) => documentOf('IBIT', dayOf('IBIT', day));
  const noData = 'Bitcoin Trust ETF\nFund Holdings as of,"-"\n';

  test('without data are empty captures once they are a week old; a market day that is missing is a gap', async () => {
    const funds = new Archives(join(system.env.dir, 'holidays'));
    // 7 April is missing. The 9th the issuer had no data; folders by day hold files under their own names.
    for (const day of ['2026-04-02', '2026-04-06', '2026-04-08', '2026-04-10']) {
      await funds.write('IBIT', day, csv(day), `${day}/IBIT_holdings.csv`);
    }
    await funds.write('IBIT', '2026-04-09', noData);
    const today = new Date().toISOString().slice(0, 10);
    await funds.write('IBIT', today, noData);
    const { json } = await etf(['backfill', 'etf'], funds.settings('IBIT'));
    expect(json).toMatchObject({ proved: 5, failed: 1, rows: 4 * 11 });
    // Units are listed in the order in which they end, and a refusal ends at any moment between the proofs.
    expect(json.units.filter(({ state }: Json) => state === 'failed')).toMatchObject([
      { code: 'SOURCE_DOCUMENT_INVALID' },
    ]);
    const spans = await system.rows<Json>(
      `select span::text, rows::int, partitions::int from coverage_spans where source_id = $1 order by span`,
      [idOf('IBIT')],
    );
    const from = (day: string) => Date.parse(day);
    expect(spans.slice(-2)).toEqual([
      { span: `[${from('2026-04-02')},${from('2026-04-07')})`, rows: 22, partitions: 2 },
      { span: `[${from('2026-04-08')},${from('2026-04-13')})`, rows: 22, partitions: 3 },
    ]);
    // Good Friday and the weekend are no gap; the 7th is; the 9th has the state of the 8th.
    const answer = await serving.query({
      sources: [DATASET],
      mode: 'aligned_1s',
      time_range: ['2026-04-03T00:00:00Z', '2026-04-11T00:00:00Z'],
      filters: of('IBIT', metric('as_of_date')),
    });
    const states = answer.json.rows.map((row: Json) => [row.valid_from_utc, row.valid_to_utc_exclusive].map(short));
    expect(states).toEqual([
      ['04-03', '04-06'],
      ['04-06', '04-07'],
      ['04-08', '04-10'],
      ['04-10', '04-11'],
    ]);
    const [gap] = answer.json.warnings.filter(({ code }: Json) => code === 'WINDOW_EXCEEDS_PROVED_COVERAGE');
    expect(JSON.stringify(gap)).toContain('2026-04-07T00:00:00.000Z');
  });

  const short = (time: string) => time.slice(5, 10);

  test('stated several times are as many captures in one backfill, and the last one wins', async () => {
    const day = '2026-06-03';
    const funds = new Archives(join(system.env.dir, 'restated'));
    const units = ['4711.5', '4712.5', '4712.5', '4713.5'];
    for (const [index, one] of units.entries()) {
      const { holdings, ...fund } = dayOf('HODL', day);
      const restated = { ...fund, visit: `v${index}`, holdings: [{ ...holdings[0], units: one }, holdings[1]] };
      await funds.write('HODL', day, documentOf('HODL', restated), `${day}T2${index}.json`);
    }
    const { exit, json } = await etf(['backfill', 'etf'], funds.settings('HODL'));
    expect({ exit, json }).toMatchObject({ exit: 0, json: { proved: 3, unchanged: 1, refused: 0 } });
    const window = { time_range: [`${day}T00:00:00Z`, '2026-06-04T00:00:00Z'] };
    const filters = of('HODL', metric('btc_units'));
    expect(await rowsOf({ ...window, filters, mode: 'aligned_1s' })).toMatchObject([
      { metric_value_float: 4713.5, records_in_bucket: 3 },
    ]);
  });

  test('of an archive are chosen by --from and --to, both included', async () => {
    const settings = new Archives(join(system.env.dir, 'holidays')).settings('IBIT');
    const records = () => readdir(join(system.env.dir, 'state', 'kept', 'fetches', idOf('IBIT')));
    const before = await records();
    const { json } = await etf(['backfill', 'etf', '--from', '2026-04-06', '--to', '2026-04-08'], settings);
    expect(json.units.map(({ partition }: Json) => partition)).toEqual([
      `${idOf('IBIT')}:2026-04-06`,
      `${idOf('IBIT')}:2026-04-08`,
    ]);
    // Read again is not fetched again.
    expect(await records()).toEqual(before);
  });
});

describe('serving', () => {
  test('a value leads back to the document it was read from', async () => {
    const [row] = await rowsOf({ filters: of('ARKB', metric('btc_units')), n_rows: 1 });
    const { status, json } = await serving.send({ path: `/v1/lineage/${DATASET}/${row.metric_id}`, method: 'GET' });
    expect(status).toBe(200);
    expect(json.document.sha256).toBe(JSON.parse(row.provenance_json).artifact_sha256);
    expect(JSON.parse(json.payload_raw.utf8)).toMatchObject({
      metric_name: 'btc_units',
      metric_value_text: row.metric_value_string,
    });
    // The event is a value that was read out of a page: its bytes are in no line of it.
    const unlogged = { ...json, proof_log: { state: 'pending', leaf_index: null, leaf: null, inclusion: null } };
    const { line } = generateSigner('log').verifier;
    const document = { sha256: json.document.sha256, content: Buffer.from('<html></html>') };
    const checked = checkLineage(unlogged, line, document);
    expect(checked.faults).toEqual([]);
    expect(checked.notChecked.at(-1)).toBe(`how the event was read out of ${json.document.name}`);
    expect(checkLineage(unlogged, line, { ...document, sha256: '0' }).ok).toBe(false);
  });
});

describe('verification', () => {
  test('whose connection is lost fails the partition it was at, and goes on with another', async () => {
    await using holder = await connect({ url: system.env.databaseUrl, name: 'test' });
    await holder.query('begin; lock table etf_daily_metrics in access exclusive mode');
    const verifying = system.run(['verify', DATASET]);
    try {
      await eventually(async () => {
        const cut = await system.rows(
          `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()
             and application_name = 'tidemark verify' and wait_event_type = 'Lock'`,
        );
        return cut.length > 0;
      }, 'a verification that waits is cut off');
    } finally {
      await holder.query('commit');
    }
    const { exit, json } = await verifying;
    expect(exit).toBe(1);
    expect(json.units.length).toBeGreaterThan(10);
    const found = json.units.map(({ state }: Json) => state).sort();
    expect(found).toEqual(['failed', ...json.units.slice(1).map(() => 'proved')]);
  });
});

test('series of funds that only the retired sample had are not listed, and do not make a metric’s name ambiguous', async () => {
  await using own = await System.create();
  const sample = new Archives(join(own.env.dir, 'sample'));
  const funds = ['IBIT', 'FBTC', 'BITB'];
  for (const ticker of funds) await sample.write(ticker, DAY, documentOf(ticker, dayOf(ticker, DAY)));
  expect((await own.run(['backfill', 'etf'], sample.settings(...funds))).exit).toBe(0);
  await own.rows('update partitions set synthetic = true');
  await own.rows('update coverage set synthetic = true');
  await using served = await startServing({ databaseUrl: own.env.databaseUrl });
  const sources = async () => {
    const { json } = await served.send({ method: 'GET', path: '/v1/datasets' });
    const { series } = json.datasets.find(({ key }: Json) => key === DATASET);
    return new Set(series.map(({ source_id }: Json) => source_id));
  };
  const column = { name: 'btc', dataset: DATASET, field: 'metric_value_float', filter: [metric('btc_units')] };
  const frame = () =>
    served.send({ path: '/v1/frame', body: JSON.stringify({ grid: '1d', n_rows: 5, columns: [column] }) });
  expect(await sources()).toEqual(new Set(funds.map(idOf)));
  expect((await frame()).json.detail).toContain('admits 3');

  const real = new Archives(join(own.env.dir, 'real'));
  await real.write('IBIT', '2026-03-06', documentOf('IBIT', dayOf('IBIT', '2026-03-06')));
  expect((await own.run(['backfill', 'etf'], real.settings('IBIT'))).exit).toBe(0);
  expect(await sources()).toEqual(new Set([idOf('IBIT')]));
  const { status, json, text } = await frame();
  expect(status, text).toBe(200);
  const [{ units }] = dayOf('IBIT', '2026-03-06').holdings;
  expect(json.rows.map(({ btc }: Json) => btc)).toContain(Number(units));
});

givenData('etf/IBIT_holdings.csv').describe('the real holdings file of IBIT', () => {
  test('is proved and served: 822,736.649 BTC and 1,448,920,000 shares as of 2026-05-06', async () => {
    const funds = new Archives(join(system.env.dir, 'real'));
    await funds.write('IBIT', '2026-05-06', readFileSync(REAL), '2026-05-06/IBIT_holdings.csv');
    const { exit, json } = await etf(['backfill', 'etf', '--fund', 'IBIT'], funds.settings('IBIT'));
    expect({ exit, units: json.units }).toMatchObject({
      exit: 0,
      units: [{ partition: `${idOf('IBIT')}:2026-05-06`, state: 'proved', rows: 11 }],
    });
    const window = { time_range: ['2026-05-06T00:00:00Z', '2026-05-07T00:00:00Z'], filters: of('IBIT') };
    for (const mode of ['native', 'aligned_1s']) {
      const rows = await rowsOf({ mode, ...window });
      const values = Object.fromEntries(rows.map((row) => [row.metric_name, row.metric_value_string]));
      expect(values, mode).toMatchObject({
        as_of_date: '2026-05-06',
        btc_units: '822736.649',
        shares_outstanding: '1448920000',
        ticker: 'IBIT',
      });
    }
  });
});
