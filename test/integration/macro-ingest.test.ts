/**
 * The macro feed from the operator's command to the rows that are served: real values through a server of the provider's
 * protocol, killed and gone on with, parsed anew from what was kept, replayed, revised, and followed.
 */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { DuckDBInstance } from '@duckdb/node-api';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Json } from '../support/command.ts';
import { givenData } from '../support/given.ts';
import {
  CSV_DIR,
  metadataOf,
  type ProviderServer,
  type ProviderSpec,
  type Publication,
  type Revision,
  realProvider,
  startMacroProvider,
} from '../support/macro-provider.ts';
import { System } from '../support/pipeline.ts';
import { eventually, type Serving, startServing } from '../support/serving.ts';
import { limitsEnv } from '../support/small-limits.ts';

const KEY = 'macro_series_metrics';
const API_KEY = 'provider-key-0123';
const UPDATED = '2026-03-06 08:12:35-06';
const OLD_BASE = 'Index 1967=100';

const settingsOf = (provider: ProviderServer): Record<string, string> => ({
  SVC_MACRO_BASE_URL: provider.url.href,
  SVC_MACRO_API_KEY: API_KEY,
  ...limitsEnv({ sourceAttempts: 2 }),
});

const codesOf = (answer: { json: Json }) => answer.json.units.map(({ code }: Json) => code);

givenData('macro/fredgraph').describe('real values', () => {
  let system: System;
  let provider: ProviderServer;
  let serving: Serving;
  let all: NonNullable<ProviderSpec['all']>;
  let revised: Revision;
  let total = 0;
  const vintages = () => Object.values(all).reduce((sum, { publications }) => sum + publications.length, 0);

  beforeAll(async () => {
    ({ all, revised } = realProvider(UPDATED));
    provider = await startMacroProvider({ ...all.UNRATE, all });
    system = await System.create();
    total = vintages();
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await system[Symbol.asyncDispose]();
    await provider[Symbol.asyncDispose]();
  });

  const run = (...args: string[]) => system.run(args, settingsOf(provider));

  test('a backfill that is killed goes on, and everything is proved in the end', async () => {
    const { child, done } = system.start(['backfill', 'macro'], settingsOf(provider));
    await eventually(async () => {
      const [{ n }] = await system.rows(
        `select count(*) n from information_schema.tables where table_name = 'partitions'`,
      );
      if (Number(n) === 0) return false;
      const [proved] = await system.rows(`select count(*) n from partitions where state = 'proved'`);
      return Number(proved.n) >= 3;
    }, 'some vintages are proved');
    child.kill('SIGKILL');
    await done;
    const { exit, json, stderr } = await run('backfill', 'macro');
    expect([exit, json.failed, json.refused, json.quarantined], stderr).toEqual([0, 0, 0, 0]);
    expect(json.proved + json.unchanged).toBe(total);
    const states = await system.rows('select state, count(*)::int n from partitions group by 1');
    expect(states).toEqual([{ state: 'proved', n: total }]);
  });

  test('the values served are the real ones, by an oracle over the files', async () => {
    serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      now: () => Date.parse('2026-03-08T00:00:00Z'),
    });
    const duckdb = await (await DuckDBInstance.create()).connect();
    for (const [seriesId, { publications }] of Object.entries(all)) {
      const file = fileURLToPath(new URL(`${seriesId}.csv`, CSV_DIR));
      const dates = publications.flatMap(({ said }) => Object.keys(said)).sort();
      // `.` is no number: null, and in aligned rows no row.
      const oracle = await duckdb.runAndReadAll(
        `select column0 || 'T00:00:00.000Z', column1, try_cast(column1 as double) from read_csv('${file}', header = false, skip = 1,
           all_varchar = true) where column0 >= '${dates[0]}' order by 1`,
      );
      const expected = oracle.getRows();
      const filters = [{ field: 'source_id', op: 'eq', value: `macro_${seriesId.toLowerCase()}` }];
      const fields = ['observed_at_utc', 'metric_value_string', 'metric_value_float'];
      const native = await serving.query({ sources: [KEY], fields, filters });
      const isRevision = ([at]: Json[], value: string) => at.startsWith(revised.date) && value === revised.second;
      const rows = native.json.rows.map((row: Json) => fields.map((name) => row[name]));
      expect(rows.filter((row: Json[]) => !isRevision(row, row[1]))).toEqual(expected);
      const aligned = await serving.query({
        sources: [KEY],
        mode: 'aligned_1s',
        fields: ['aligned_at_utc', 'metric_value_float'],
        filters,
      });
      const numbers = expected.filter(([, , value]) => value !== null);
      const shown = seriesId === 'CPIAUCSL' ? Number(revised.second) : undefined;
      expect(aligned.json.rows.map((row: Json) => [row.aligned_at_utc, row.metric_value_float])).toEqual(
        numbers.map(([at, , value]) => [at, shown && String(at).startsWith(revised.date) ? shown : value]),
      );
      expect(expected.length).toBeGreaterThan(numbers.length - 1);
    }
    const [{ n }] = await system.rows(`select count(*) n from ${KEY} where value_text = '.'`);
    expect(Number(n)).toBeGreaterThan(3);
  });

  test('as of a time the first print is served, and then its revision, by query and by historical route', async () => {
    const knownFrom = (vintage: string, ms = 0) => new Date(Date.parse(vintage) + 30 * 3_600_000 + ms).toISOString();
    const filters = [
      { field: 'source_id', op: 'eq', value: 'macro_cpiaucsl' },
      { field: 'aligned_at_utc', op: 'eq', value: `${revised.date}T00:00:00Z` },
    ];
    const body = { mode: 'aligned_1s', fields: ['metric_value_float', 'provenance_json'], filters };
    const ask = async (as_of: string) => {
      const query = await serving.query({ sources: [KEY], ...body, as_of });
      const path = '/v1/historical/macro/series_metrics';
      const route = await serving.send({ path, body: JSON.stringify({ ...body, as_of }) });
      expect([route.status, route.json.rows]).toEqual([query.status, query.json.rows]);
      return query.json.rows?.map((row: Json) => [
        row.metric_value_float,
        JSON.parse(row.provenance_json).realtime_start,
      ]);
    };
    expect(await ask(knownFrom(revised.firstVintage, -1))).toBeUndefined();
    expect(await ask(knownFrom(revised.firstVintage))).toEqual([[Number(revised.first), revised.firstVintage]]);
    expect(await ask(knownFrom(revised.vintage, -1))).toEqual([[Number(revised.first), revised.firstVintage]]);
    expect(await ask(knownFrom(revised.vintage))).toEqual([[Number(revised.second), revised.vintage]]);
  });

  test('stored seconds are those that a read makes as of a time after the last vintage', async () => {
    const [now, then] = await Promise.all(
      [undefined, '2026-03-08T00:00:00Z'].map((as_of) => serving.query({ sources: [KEY], mode: 'aligned_1s', as_of })),
    );
    const drop = ({ valid_to_utc_exclusive, ...row }: Json) => row;
    expect(now.json.rows.length).toBeGreaterThan(400);
    expect(then.json.rows.map(drop)).toEqual(now.json.rows.map(drop));
    const { provenance_json } = now.json.rows[0];
    expect(JSON.parse(provenance_json).last_updated_utc).toBe('2026-03-06T14:12:35.000Z');
  });

  test('rebuilt in another system from the answers that were kept, and replayed from the log, it is the same', {
    tags: ['nightly'],
  }, async () => {
    const [replayed, digests] = [await run('replay', KEY), await system.digests()];
    expect([replayed.exit, replayed.json.ok], replayed.stderr).toEqual([0, true]);
    await using other = await System.create();
    const kept = { SVC_KEEP_DIR: join(system.settings.SVC_STATE_DIR, 'kept') };
    const asked = provider.asked.length;
    const reparsed = await other.run(['reingest', 'macro', '--kept'], kept);
    expect([reparsed.exit, reparsed.json.failed, reparsed.json.refused], reparsed.stderr).toEqual([0, 0, 0]);
    expect(await other.digests()).toEqual(digests);
    expect(provider.asked.length).toBe(asked);
  });

  test('the text of a number may change; the number of a proved vintage may not, until an operator says so', async () => {
    const [first] = all.UNRATE.publications as Publication[];
    const [date, value] = Object.entries(first.said)[0];
    const said = first.said as Record<string, string>;
    said[date] = `${value}00`;
    const only = ['--series', 'UNRATE', '--from', first.vintage, '--to', first.vintage];
    const same = await run('backfill', 'macro', ...only);
    expect([same.exit, same.json.unchanged]).toEqual([0, 1]);
    said[date] = '77.5';
    const late = await run('backfill', 'macro', ...only);
    expect([late.exit, codesOf(late)]).toEqual([1, ['PARTITION_LATE_ARRIVAL']]);
    const stored = async () =>
      (
        await system.rows(
          `select value_text from ${KEY} where source_id = 'macro_unrate' and vintage = $1 and observed_at_ms = $2`,
          [first.vintage, Date.parse(date)],
        )
      ).map(({ value_text }) => value_text);
    expect(await stored()).toEqual([value]);
    const put = await run('reingest', 'macro', ...only, '--reason', 'the provider corrected it');
    expect([put.exit, put.json.proved], put.stderr).toEqual([0, 1]);
    expect(await stored()).toEqual(['77.5']);
  });

  test('follow takes new vintages as they come, and what is checked moves on where there are none', async () => {
    const publications = all.FEDFUNDS.publications as Publication[];
    const before = await system.rows(`select source_id, through_ms from source_checks order by 1`);
    const often = limitsEnv({ metricsEveryMs: 100 });
    const environment = { ...settingsOf(provider), SVC_FOLLOW_JITTER_SECONDS: '0', ...often };
    const following = system.begin(['follow', 'macro'], environment);
    publications.push({ vintage: '2026-03-03', said: { '2026-02-01': '3.64' } });
    await eventually(async () => {
      const found = await system.rows(`select state from partitions where partition_key = 'macro_fedfunds:2026-03-03'`);
      return found[0]?.state === 'proved';
    }, 'the new vintage is proved');
    await eventually(async () => {
      const checks = await system.rows(`select source_id, through_ms from source_checks order by 1`);
      return before.every((check, index) => Number(checks[index].through_ms) > Number(check.through_ms));
    }, 'all four are checked again');
    following.stop();
    expect((await following.done).exit).toBe(0);
    const later = await system.run(['status', KEY]);
    expect(later.json.datasets[0].quarantined ?? []).toEqual([]);
  });
});

describe('a provider that refuses', () => {
  let system: System;
  let provider: ProviderServer;
  const publications = Array.from({ length: 4 }, (_, n) => ({
    vintage: `2024-0${n + 2}-05`,
    said: { [`2024-0${n + 1}-01`]: `${n}.5` },
  }));
  /** The index has another base and title up to the third vintage. */
  const described = (id: string) => {
    const series = metadataOf(id, UPDATED);
    if (id !== 'CPIAUCSL') return series;
    const [first, , third] = publications.map(({ vintage }) => vintage);
    const older = { units: OLD_BASE, title: 'an older title', realtime_start: first };
    return [
      { ...series, ...older },
      { ...series, realtime_start: third },
    ];
  };
  const all = Object.fromEntries(
    ['UNRATE', 'FEDFUNDS', 'CPIAUCSL', 'DGS10'].map((id) => [id, { series: described(id), publications }]),
  );
  beforeAll(async () => {
    provider = await startMacroProvider({ ...all.UNRATE, all });
    system = await System.create();
  });
  afterAll(async () => {
    await system[Symbol.asyncDispose]();
    await provider[Symbol.asyncDispose]();
  });

  const backfill = (...args: string[]) => system.run(['backfill', 'macro', ...args], settingsOf(provider));
  const proved = async () =>
    Number((await system.rows(`select count(*) n from partitions where state = 'proved'`))[0].n);

  test('without its address or its key nothing is begun', async () => {
    const { exit, stdout } = await system.run(['backfill', 'macro']);
    expect(exit).toBe(2);
    expect(stdout).toContain('SVC_MACRO_BASE_URL and SVC_MACRO_API_KEY are not set');
    const unknown = await backfill('--series', 'GDP');
    expect([unknown.exit, unknown.stdout]).toEqual([2, expect.stringContaining('macro_dgs10')]);
  });

  test('a refused key is every series’ fault, says so without the key, and writes nothing', async () => {
    provider.fault = () => ({
      status: 400,
      body: JSON.stringify({
        error_code: 400,
        error_message: 'Bad Request. The value for variable api_key is not registered.',
      }),
    });
    const { exit, json, stdout, stderr } = await backfill();
    expect([exit, new Set(codesOf({ json }))]).toEqual([1, new Set(['SOURCE_REFUSED'])]);
    expect(json.units[0].reason).toContain('not registered');
    expect(stdout + stderr).not.toContain(API_KEY);
    expect(await proved()).toBe(0);
  });

  test('a series that is another is refused by itself; the others are proved, with every answer kept', async () => {
    provider.fault = ({ path, query }) =>
      path === '/series' && query.get('series_id') === 'CPIAUCSL'
        ? { body: JSON.stringify({ seriess: [{ ...metadataOf('CPIAUCSL', UPDATED), id: 'CPILFESL' }] }) }
        : path === '/series/observations' && query.get('series_id') === 'UNRATE'
          ? { body: JSON.stringify({ error_code: 500, error_message: 'Internal Server Error' }) }
          : undefined;
    const { exit, json } = await backfill();
    expect([exit, json.proved]).toEqual([1, 8]);
    const failed = json.units.filter(({ state }: Json) => state === 'failed');
    expect(failed.map(({ partition, code }: Json) => [partition, code])).toEqual([
      ['CPIAUCSL', 'SOURCE_LAYOUT_UNKNOWN'],
      ...publications.map(({ vintage }) => [`macro_unrate:${vintage}`, 'SOURCE_LAYOUT_UNKNOWN']),
    ]);
    expect(failed[0].reason).toContain('id is "CPILFESL", not "CPIAUCSL"');
    const kept = await readdir(join(system.settings.SVC_STATE_DIR, 'kept', 'fetches', 'macro_cpiaucsl'));
    expect(kept.length).toBeGreaterThan(0);
    provider.fault = () => undefined;
    expect((await backfill()).json).toMatchObject({ ok: true, proved: 8, unchanged: 8 });
    // Answers that were refused when they came are passed over when all is parsed anew.
    expect((await system.run(['reingest', 'macro', '--kept'])).json).toMatchObject({ ok: true, unchanged: 16 });
  });

  test('an index is served with the base of each vintage, and what has two bases warns; it is the same from the kept answers', async () => {
    const rebased = { sources: [KEY], filters: [{ field: 'source_id', op: 'eq', value: 'macro_cpiaucsl' }] };
    await using serving = await startServing({
      databaseUrl: system.env.databaseUrl,
      now: () => Date.parse('2026-03-08T00:00:00Z'),
    });
    const { json } = await serving.query(rebased);
    const vintageOf = ({ provenance_json }: Json) => JSON.parse(provenance_json).realtime_start;
    const [first, second, third, last] = publications.map(({ vintage }) => vintage);
    expect(json.rows.map((row: Json) => [vintageOf(row), row.metric_unit]).sort()).toEqual([
      ...[first, second].map((vintage) => [vintage, OLD_BASE]),
      ...[third, third, third, last].map((vintage) => [vintage, 'Index 1982-1984=100']),
    ]);
    const titles = json.rows.map((row: Json) => [row.metric_unit, JSON.parse(row.provenance_json).title]);
    expect(new Set(titles.map(String))).toEqual(
      new Set([`${OLD_BASE},an older title`, 'Index 1982-1984=100,consumer_price_index_all_items']),
    );
    const codes = (answer: Json) => answer.json.warnings.map(({ code }: Json) => code);
    expect(codes({ json })).toContain('UNIT_CHANGES_WITHIN_SERIES');
    const aligned = await serving.query({ ...rebased, mode: 'aligned_1s' });
    expect(aligned.json.rows.map(({ metric_unit }: Json) => metric_unit)).toEqual(Array(4).fill('Index 1982-1984=100'));
    expect(codes(aligned)).not.toContain('UNIT_CHANGES_WITHIN_SERIES');
    const before = await serving.query({ ...rebased, mode: 'aligned_1s', as_of: `${third}T00:00:00Z` });
    expect(before.json.rows.map(({ metric_unit }: Json) => metric_unit)).toEqual([OLD_BASE, OLD_BASE]);
    await using other = await System.create();
    const kept = { SVC_KEEP_DIR: join(system.settings.SVC_STATE_DIR, 'kept') };
    expect((await other.run(['reingest', 'macro', '--kept'], kept)).json).toMatchObject({ ok: true, proved: 16 });
    expect(await other.digests()).toEqual(await system.digests());
  });

  test('a base that the provider changes for a proved vintage is a late arrival, until an operator says so', async () => {
    // As if a release had proved it before that did not know the vintage's own base.
    provider.fault = ({ path, query }) =>
      path === '/series' && query.get('series_id') === 'CPIAUCSL'
        ? { body: JSON.stringify({ seriess: [metadataOf('CPIAUCSL', UPDATED)] }) }
        : undefined;
    const { exit, json } = await backfill('--series', 'CPIAUCSL');
    expect([exit, json.refused, json.unchanged]).toEqual([1, 3, 1]);
    const put = await system.run(
      ['reingest', 'macro', '--series', 'CPIAUCSL', '--reason', 'the provider describes it otherwise'],
      settingsOf(provider),
    );
    expect([put.exit, put.json.proved], put.stderr).toEqual([0, 4]);
    const stored = await system.rows(`select distinct metric_unit from ${KEY} where source_id = 'macro_cpiaucsl'`);
    expect(stored).toEqual([{ metric_unit: 'Index 1982-1984=100' }]);
  });
});
