/**
 * What the rules of ETF and macro data say of a window: each code where it must be said and where it must not, on query,
 * historical routes and estimates alike, judged over the window that was asked for.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { dayKey } from '../../shared/dates.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { startExports } from '../support/exports.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { createMigratedEnv, type TestEnv } from '../support/stack.ts';
import { type Vintage, worldOfVintages } from '../support/vintages.ts';
import { iso } from '../support/world-oracle.ts';
import { type Cells, DAY, type World, type WorldPartition, type WorldRow } from '../support/worlds.ts';

const ETF = datasetOf('etf_daily_metrics');
const MACRO = datasetOf('macro_series_metrics');
const REQUIRED = [
  'issuer',
  'ticker',
  'as_of_date',
  'btc_units',
  'btc_market_value_usd',
  'total_net_assets_usd',
  'holdings_row_count',
];
const ms = (day: string) => Date.parse(`${day}T00:00:00Z`);

let env: TestEnv;
let serving: Serving;
let nowMs = 0;
beforeAll(async () => {
  env = await createMigratedEnv();
  serving = await startServing({ databaseUrl: env.databaseUrl, now: () => nowMs });
});
afterAll(async () => {
  await serving[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

interface Said {
  readonly code: string;
  readonly message: string;
  // biome-ignore lint/suspicious/noExplicitAny: details are looked into freely
  readonly details: any;
}

/** The warnings of a dataset's own rules. */
const ownOf = (warnings: readonly Said[]) => warnings.filter(({ code }) => /^(ETF|MACRO)_/.test(code));

/** By query and by estimate, which say the same. */
async function said(body: object, on: { readonly now: string }): Promise<Said[]> {
  nowMs = Date.parse(on.now);
  const { json, text } = await serving.query(body);
  expect(json.warnings, text).toBeDefined();
  const estimate = await serving.send({ path: '/v1/raw/estimate', body: JSON.stringify(body) });
  expect(ownOf(estimate.json.warnings)).toEqual(ownOf(json.warnings));
  const strict = await serving.query({ ...body, strict: true });
  if (json.warnings.length > 0) expect([strict.status, strict.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
  return ownOf(json.warnings);
}
const codesOf = (warnings: readonly Said[]) => warnings.map(({ code }) => code);

describe('etf', () => {
  const FUNDS = ETF.sources;
  /** Thursday to Wednesday; Monday 2024-05-27 is a holiday. */
  const DAYS = ['2024-05-23', '2024-05-24', '2024-05-28', '2024-05-29'];
  const [WHOLE, LAST] = [DAYS[2], DAYS[3]];
  const LACKING = FUNDS[2];

  /** All funds on all days; on the last one is not there, one has no BTC and one says nothing of its assets. */
  const held = (fund: string, day: string, metric: string): string | null | undefined => {
    if (day !== LAST) return '1';
    if (fund === FUNDS[0] || (fund === FUNDS[1] && metric === 'btc_units')) return undefined;
    return fund === LACKING && metric === 'total_net_assets_usd' ? null : '1';
  };
  beforeAll(() => loadWorld(env.databaseUrl, etfWorldOf(FUNDS, DAYS, held)));

  const ask = (mode: string, range: readonly [string, string] | undefined, more: object = {}) => ({
    sources: [ETF.key],
    mode,
    ...(range && { time_range: range.map((day) => iso(ms(day))) }),
    ...more,
  });

  test.each(['native', 'aligned_1s'])(
    '%s: a fund that is not there, and metrics without a value, on the last day',
    async (mode) => {
      const warnings = await said(ask(mode, ['2024-05-23', '2024-05-30']), { now: '2024-05-30T12:00:00Z' });
      expect(codesOf(warnings)).toEqual(['ETF_DAILY_MISSING_RECORDS', 'ETF_DAILY_INCOMPLETE_RECORDS']);
      const [missing, incomplete] = warnings;
      expect(missing.details).toEqual({ latest_day: LAST, sources: [FUNDS[0]] });
      expect(missing.message).toContain(FUNDS[0]);
      expect(missing.message).toContain(LAST);
      expect(incomplete.details).toEqual({
        latest_day: LAST,
        sources: [
          { source_id: FUNDS[1], metrics: ['btc_units'] },
          { source_id: LACKING, metrics: ['total_net_assets_usd'] },
        ],
      });
      for (const name of [FUNDS[1], LACKING, 'btc_units', 'total_net_assets_usd', LAST]) {
        expect(incomplete.message).toContain(name);
      }
    },
  );

  test.each(['native', 'aligned_1s'])('%s: nothing of a window whose last day is whole', async (mode) => {
    expect(await said(ask(mode, ['2024-05-23', '2024-05-29']), { now: '2024-05-30T12:00:00Z' })).toEqual([]);
    expect(await said(ask(mode, ['2024-05-23', '2024-05-25']), { now: '2030-01-01T00:00:00Z' })).toEqual([]);
  });

  test('age is counted in market days: a weekend and a holiday make nobody late', async () => {
    const of = async (now: string, range?: readonly [string, string]) =>
      (await said(ask('native', range), { now })).filter(({ code }) => code === 'ETF_DAILY_STALE_RECORDS');
    // Wednesday the 29th, then Thursday, Friday, Monday: three.
    expect(await of('2024-06-03T23:59:59Z')).toEqual([]);
    const [stale] = await of('2024-06-04T00:00:00Z');
    expect(stale.details).toMatchObject({
      latest_day: LAST,
      today: '2024-06-04',
      age_market_days: 4,
      max_age_market_days: 3,
    });
    expect(stale.message).toContain(`${LAST}, 4 market days before 2024-06-04`);
    for (const fund of FUNDS) expect(stale.message).toContain(fund);
    // Today is the end of a window that ends in the past, and now for one that ends in the future.
    const [past] = await of('2030-01-01T00:00:00Z', ['2024-05-23', '2024-06-08']);
    expect(past.details).toMatchObject({ today: '2024-06-08', age_market_days: 7 });
    expect(await of('2024-06-03T12:00:00Z', ['2024-05-23', '2025-01-01'])).toEqual([]);
  });

  test('the setting says how many market days are fresh', async () => {
    await using patient = await startServing({
      databaseUrl: env.databaseUrl,
      now: () => Date.parse('2024-06-06T00:00:00Z'),
      settings: { SVC_ETF_DAILY_STALE_MAX_AGE_DAYS: '6' },
    });
    expect(codesOf((await patient.query(ask('native', undefined))).json.warnings)).not.toContain(
      'ETF_DAILY_STALE_RECORDS',
    );
    expect(codesOf(await said(ask('native', undefined), { now: '2024-06-06T00:00:00Z' }))).toContain(
      'ETF_DAILY_STALE_RECORDS',
    );
  });

  test('only the sources that eq and in admit are looked at', async () => {
    const only = (op: string, value: unknown) =>
      ask('native', undefined, { filters: [{ field: 'source_id', op, value }] });
    const on = { now: '2024-05-30T12:00:00Z' };
    expect(await said(only('eq', FUNDS[5]), on)).toEqual([]);
    expect(codesOf(await said(only('in', [FUNDS[0], FUNDS[5]]), on))).toEqual(['ETF_DAILY_MISSING_RECORDS']);
    expect(codesOf(await said(only('eq', FUNDS[1]), on))).toEqual(['ETF_DAILY_INCOMPLETE_RECORDS']);
    // Its own latest day is another, and that one is whole.
    expect(await said(only('eq', FUNDS[0]), on)).toEqual([]);
    // Other filters leave rows out, not what is known of the day.
    const units = ask('native', undefined, { filters: [{ field: 'metric_name', op: 'eq', value: 'issuer' }] });
    expect(codesOf(await said(units, on))).toEqual(['ETF_DAILY_MISSING_RECORDS', 'ETF_DAILY_INCOMPLETE_RECORDS']);
    expect(codesOf(await said(only('ne', FUNDS[0]), on))).toContain('ETF_DAILY_MISSING_RECORDS');
  });

  test('aligned, what is carried into a window counts as its latest day; native, such a window holds nothing', async () => {
    const on = { now: '2024-05-30T12:00:00Z' };
    const night = { time_range: ['2024-05-28T12:00:00Z', '2024-05-28T13:00:00Z'] };
    expect(await said({ ...ask('aligned_1s', undefined), ...night }, on)).toEqual([]);
    const later = { time_range: ['2024-05-29T12:00:00Z', '2024-05-29T13:00:00Z'] };
    const carried = await said({ ...ask('aligned_1s', undefined), ...later }, on);
    expect(codesOf(carried)).toEqual(['ETF_DAILY_MISSING_RECORDS', 'ETF_DAILY_INCOMPLETE_RECORDS']);
    expect(carried[0].details).toEqual({ latest_day: LAST, sources: [FUNDS[0]] });
    const [none] = await said({ ...ask('native', undefined), ...night }, on);
    expect(none).toMatchObject({ code: 'ETF_DAILY_MISSING_RECORDS', details: { latest_day: null, sources: FUNDS } });
  });

  test('windows by count are of the whole history', async () => {
    const warnings = await said(ask('native', undefined, { n_rows: 1 }), { now: '2024-05-30T12:00:00Z' });
    expect(codesOf(warnings)).toEqual(['ETF_DAILY_MISSING_RECORDS', 'ETF_DAILY_INCOMPLETE_RECORDS']);
  });

  test('historical routes say the same, and strict ones refuse', async () => {
    nowMs = Date.parse('2024-06-05T12:00:00Z');
    const path = '/v1/historical/etf/daily_metrics';
    const body = { start_date: DAYS[0] };
    const { json } = await serving.send({ path, body: JSON.stringify(body) });
    expect(codesOf(ownOf(json.warnings))).toEqual([
      'ETF_DAILY_MISSING_RECORDS',
      'ETF_DAILY_STALE_RECORDS',
      'ETF_DAILY_INCOMPLETE_RECORDS',
    ]);
    const strict = await serving.send({ path, body: JSON.stringify({ ...body, strict: true }) });
    expect([strict.status, strict.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
    const whole = { start_date: DAYS[0], end_date: WHOLE, strict: true };
    expect((await serving.send({ path, body: JSON.stringify(whole) })).status).toBe(200);
  });
});

const rate = (sourceId: string, day: string, observed: string, updated: string | null): Vintage => {
  return { sourceId, name: 'rate', day, unit: 'USD', values: { [observed]: '1.5' }, updated };
};

/** Vintages by series: when, what they observed, and when their fetch was told of the last update. */
const VINTAGES: readonly Vintage[] = [
  rate('macro_dgs10', '2024-03-01', '2024-02-29', 'T21:16:00Z'),
  rate('macro_dgs10', '2024-03-06', '2024-03-05', 'T21:16:00Z'),
  rate('macro_unrate', '2024-02-02', '2024-01-01', 'T14:12:00Z'),
  rate('macro_cpiaucsl', '2024-02-13', '2024-01-01', 'T14:00:00Z'),
  rate('macro_fedfunds', '2024-03-01', '2024-02-01', null),
];

describe('macro', () => {
  beforeAll(() => loadWorld(env.databaseUrl, worldOfVintages(VINTAGES)));

  const ask = (more: object = {}) => ({ sources: [MACRO.key], ...more });
  const only = (...ids: string[]) => ({ filters: [{ field: 'source_id', op: 'in', value: ids }] });
  const TOLD = ['macro_dgs10', 'macro_unrate', 'macro_cpiaucsl'];

  test.each(['native', 'aligned_1s'])('%s: a series whose rows tell no time of publishing is named', async (mode) => {
    const [missing, ...others] = await said(ask({ mode }), { now: '2024-03-07T00:00:00Z' });
    expect(others).toEqual([]);
    expect(missing).toMatchObject({
      code: 'MACRO_SOURCE_PUBLISH_MISSING',
      details: { sources: ['macro_fedfunds'], window_end: null },
    });
    expect(missing.message).toContain('macro_fedfunds');
    expect(await said(ask({ mode, ...only(...TOLD) }), { now: '2024-03-07T00:00:00Z' })).toEqual([]);
  });

  test('rows after the end of the window tell nothing of it', async () => {
    const early = ask({
      time_range: ['2023-12-01T00:00:00Z', '2024-02-01T00:00:00Z'],
      ...only('macro_dgs10', 'macro_unrate'),
    });
    const [missing, ...others] = await said(early, { now: '2024-03-07T00:00:00Z' });
    expect(others).toEqual([]);
    expect(missing.details).toEqual({ sources: ['macro_dgs10'], window_end: '2024-02-01T00:00:00.000Z' });
    expect(missing.message).toContain('2024-02-01');
  });

  test('daily series are fresh for 5 days, monthly ones for 45; the newest publication counts', async () => {
    const stale = async (now: string, ...ids: string[]) =>
      (await said(ask(only(...ids)), { now })).flatMap(({ details }) => details.sources);
    expect(await stale('2024-03-11T23:00:00Z', 'macro_dgs10')).toEqual([]);
    expect(await stale('2024-03-12T00:00:00Z', 'macro_dgs10')).toEqual([
      { source_id: 'macro_dgs10', last_updated_utc: '2024-03-06T21:16:00.000Z', age_days: 6, max_age_days: 5 },
    ]);
    expect(await stale('2024-03-18T23:00:00Z', 'macro_unrate')).toEqual([]);
    expect(await stale('2024-03-19T00:00:00Z', 'macro_unrate', 'macro_cpiaucsl')).toMatchObject([
      { source_id: 'macro_unrate', age_days: 46, max_age_days: 45 },
    ]);
    const [warning] = await said(ask(only(...TOLD)), { now: '2024-04-30T00:00:00Z' });
    expect(warning.code).toBe('MACRO_SOURCE_PUBLISH_STALE');
    for (const said of [...TOLD, '2024-03-06', '2024-02-02', '2024-02-13', '2024-04-30'])
      expect(warning.message).toContain(said);
  });

  test('the one setting stands for every series', async () => {
    await using strict = await startServing({
      databaseUrl: env.databaseUrl,
      now: () => Date.parse('2024-03-08T00:00:00Z'),
      settings: { SVC_MACRO_SOURCE_PUBLISH_STALE_MAX_AGE_DAYS: '30' },
    });
    const { json } = await strict.query(ask(only(...TOLD)));
    expect(ownOf(json.warnings)).toMatchObject([
      { details: { sources: [{ source_id: 'macro_unrate', max_age_days: 30 }] } },
    ]);
  });

  test('as of a time, a publication is looked at from then, and none is later than its vintage was known', async () => {
    const at = (as_of: string) => said(ask({ as_of, ...only('macro_dgs10') }), { now: '2030-01-01T00:00:00Z' });
    expect(await at('2024-03-07T06:00:00Z')).toEqual([]);
    // The second vintage is not known yet, and the first is from Friday.
    expect(await at('2024-03-06T12:00:00Z')).toEqual([]);
    expect((await at('2024-03-07T05:59:59Z'))[0].details.sources).toMatchObject([
      { age_days: 6, last_updated_utc: '2024-03-01T21:16:00.000Z' },
    ]);
    expect((await at('2024-02-20T00:00:00Z'))[0]).toMatchObject({ code: 'MACRO_SOURCE_PUBLISH_MISSING' });
  });
});

describe('exports', () => {
  test('an export is judged as a query is: at submit, and again in what it leaves', async () => {
    const now = () => Date.parse('2024-06-05T12:00:00Z');
    await using exports = await startExports(env, { now });
    const body = { dataset: ETF.key, format: 'csv', time_range: ['2024-05-23T00:00:00Z', '2024-06-05T00:00:00Z'] };
    const codes = ['ETF_DAILY_MISSING_RECORDS', 'ETF_DAILY_STALE_RECORDS', 'ETF_DAILY_INCOMPLETE_RECORDS'];
    const strict = await exports.submit({ ...body, strict: true });
    expect([strict.status, strict.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
    expect(codesOf(ownOf(strict.json.warnings))).toEqual(codes);
    const taken = await exports.submit(body);
    expect([taken.status, codesOf(ownOf(taken.json.warnings))]).toEqual([202, codes]);
    const ended = await exports.finished(taken.json.export_id);
    expect([ended.json.status, codesOf(ownOf(ended.json.warnings))]).toEqual(['succeeded', codes]);
    const whole = { ...body, time_range: ['2024-05-23T00:00:00Z', '2024-05-29T00:00:00Z'], strict: true };
    expect((await exports.submit(whole)).status).toBe(202);
  });

  test('proved time after the last row was said not to be proved', async () => {
    await using exports = await startExports(env, { now: () => Date.parse('2024-05-30T12:00:00Z') });
    const later = { time_range: ['2024-05-29T12:00:00Z', '2024-05-29T13:00:00Z'] };
    const { json } = await exports.run({ dataset: ETF.key, format: 'csv', ...later });
    expect(json.status).toBe('succeeded');
    expect((await exports.bytes(json.export_id)).toString().split('\n')).toHaveLength(2);
    const body = JSON.stringify({ sources: [ETF.key], ...later });
    const asked = await serving.send({ path: '/v1/raw/query', body });
    expect(asked.json).toMatchObject({ status: 404, detail: expect.stringContaining('No proved row of') });
    const past = { time_range: ['2024-06-05T00:00:00Z', '2024-06-06T00:00:00Z'] };
    const refused = await exports.submit({ dataset: ETF.key, format: 'csv', ...past });
    expect([refused.status, refused.json.code]).toEqual([409, 'EXPORT_WINDOW_NOT_PROVED']);
  });

  test('as of a time an export holds what was known, and of a dataset without vintages it is refused', async () => {
    await using exports = await startExports(env, { now: () => Date.parse('2024-03-08T00:00:00Z') });
    const body = { dataset: MACRO.key, format: 'csv', fields: ['source_id', 'observed_at_utc'], n_rows: 99 };
    const rowsOf = async (more: object) => {
      const { json } = await exports.run({ ...body, ...more });
      expect(json.status).toBe('succeeded');
      return (await exports.bytes(json.export_id)).toString().trim().split('\n').slice(1).sort();
    };
    const known = VINTAGES.filter(({ day }) => day < '2024-03-06').map(
      ({ sourceId, values }) => `${sourceId},${iso(ms(Object.keys(values)[0]))}`,
    );
    expect(await rowsOf({ as_of: '2024-03-07T05:59:59Z' })).toEqual(known.sort());
    expect(await rowsOf({ as_of: '2024-03-07T06:00:00Z' })).toHaveLength(known.length + 1);
    const refused = await exports.submit({ ...body, dataset: 'bitcoin_block_headers', as_of: '2024-03-07T06:00:00Z' });
    expect([refused.status, refused.json.code]).toEqual([409, 'EXPORT_CONTRACT_ERROR']);
    expect(refused.json.errors).toContainEqual(expect.objectContaining({ pointer: '/as_of' }));
  });
});

// ---- worlds --------------------------------------------------------------------------------------------------------

let ids = 0;
const cellsOf = (partition: WorldPartition, at: number, name: string, value: string | null, more: Cells): Cells => ({
  observed_at_ms: at,
  metric_id: String(++ids).padStart(64, '0'),
  source_id: partition.sourceId,
  metric_name: name,
  metric_unit: 'USD',
  value_kind: value === null ? 'null' : 'float',
  value_text: value,
  dimensions_json: '{}',
  provenance_json: '{"realtime_start":"x"}',
  partition_key: partition.key,
  ...more,
});

const alignedOf = (world: Pick<World, 'dataset' | 'rows'>): World['aligned'] =>
  world.rows.map(({ ms: at, partition, cells }) => ({
    ms: at,
    sourceId: partition.sourceId,
    series: world.dataset.aligned.seriesKey.map((name) => String(cells[name])),
    cells: {
      metric_id: cells.metric_id,
      source_id: cells.source_id,
      metric_name: cells.metric_name,
      metric_unit: cells.metric_unit,
      metric_value_string: cells.value_text,
      metric_value_float: cells.value_text === null ? null : Number(cells.value_text),
      dimensions_json: cells.dimensions_json,
      provenance_json: cells.provenance_json,
      records_in_bucket: 1,
      latest_ingested_at_utc: iso(partition.ingestedMs),
    },
  }));

function etfWorldOf(
  funds: readonly string[],
  days: readonly string[],
  held: (fund: string, day: string, metric: string) => string | null | undefined,
): World {
  const partitions: WorldPartition[] = [];
  const rows: WorldRow[] = [];
  for (const fund of funds) {
    for (const [index, day] of days.entries()) {
      const at = ms(day);
      const until = ms(days[index + 1] ?? dayKey(at + DAY));
      const partition: WorldPartition = {
        key: `${fund}:${day}`,
        state: 'proved',
        sourceId: fund,
        span: [at, until],
        ingestedMs: at + DAY,
      };
      const found = REQUIRED.flatMap((name) => {
        const value = held(fund, day, name);
        return value === undefined ? [] : [{ ms: at, partition, cells: cellsOf(partition, at, name, value, {}) }];
      });
      if (found.length > 0) partitions.push(partition);
      rows.push(...found);
    }
  }
  const runs = funds.map((sourceId) => {
    const own = partitions.filter((partition) => partition.sourceId === sourceId);
    const [first, last] = [own[0].span, own[own.length - 1].span];
    return { sourceId, span: [first[0], last[1]] as const, fromMs: first[0], toMs: last[0] + 1, throughMs: last[1] };
  });
  const world = { dataset: ETF, partitions, rows, runs };
  return { ...world, aligned: alignedOf(world) };
}
