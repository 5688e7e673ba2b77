/**
 * UNIT_CHANGES_WITHIN_SERIES: said where an answer has one series in several units, and nowhere else; by queries, historical
 * routes, estimates, exports and frames alike.
 */
import { beforeAll, describe, expect, test } from 'vitest';
import { startExports } from '../support/exports.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { servedEnv } from '../support/served-env.ts';
import { createMigratedEnv } from '../support/stack.ts';
import { type Vintage, worldOfVintages } from '../support/vintages.ts';

const KEY = 'macro_series_metrics';
const CODE = 'UNIT_CHANGES_WITHIN_SERIES';
const CPI = 'macro_cpiaucsl';
const [OLD, NEW] = ['Index 1967=100', 'Index 1982-1984=100'];

const cpi = (day: string, unit: string, values: Vintage['values']): Vintage => {
  return { sourceId: CPI, name: 'consumer_price_index_all_items', day, unit, values };
};

/** An index that gets another base on 26 February 1988, and in which October is not said any more; and a rate that has one unit. */
const VINTAGES: readonly Vintage[] = [
  cpi('1988-01-20', OLD, { '1987-10-01': '345.3', '1987-11-01': '345.8', '1987-12-01': '346.7' }),
  cpi('1988-02-26', NEW, { '1987-11-01': '115.4', '1987-12-01': '115.8', '1988-01-01': '115.7' }),
  cpi('1988-03-23', NEW, { '1988-02-01': '116.0' }),
  {
    sourceId: 'macro_unrate',
    name: 'unemployment_rate',
    day: '1988-02-05',
    unit: 'Percent',
    values: { '1987-12-01': '5.7', '1988-01-01': '5.7' },
  },
];

const served = servedEnv(createMigratedEnv, { now: () => Date.parse('1988-04-01T00:00:00Z') });
beforeAll(() => loadWorld(served.env.databaseUrl, worldOfVintages(VINTAGES)));

interface Said {
  readonly code: string;
  readonly message: string;
  readonly details: object;
}

const post = (path: string, body: object) => served.serving.send({ path, body: JSON.stringify(body) });
const ofUnits = (warnings: readonly Said[]) => warnings.filter(({ code }) => code === CODE);
const range = (from: string, to: string) => ({ time_range: [`${from}T00:00:00Z`, `${to}T00:00:00Z`] });
const only = (field: string, value: string) => ({ filters: [{ field, op: 'eq', value }] });

/** By query, by estimate and by the historical route, which say the same. */
async function said(body: object): Promise<Said[]> {
  const query = await served.serving.query({ sources: [KEY], ...body });
  expect(query.status, query.text).toBe(200);
  const estimate = await post('/v1/raw/estimate', { sources: [KEY], ...body });
  expect(ofUnits(estimate.json.warnings)).toEqual(ofUnits(query.json.warnings));
  return ofUnits(query.json.warnings);
}

test.each([
  ['native, of all', {}, true],
  ['native, of the series', only('source_id', CPI), true],
  ['native, of the metric', only('metric_name', 'consumer_price_index_all_items'), true],
  ['native, of another series', only('source_id', 'macro_unrate'), false],
  ['native, of another metric', only('metric_name', 'unemployment_rate'), false],
  ['native, of one unit', only('metric_unit', OLD), false],
  ['native, of a window with one unit', range('1988-01-01', '1988-03-01'), false],
  ['native, of a window with both', range('1987-12-01', '1988-03-01'), true],
  ['native, the last rows of one unit', { ...only('source_id', CPI), n_rows: 3 }, false],
  ['native, the last rows of both', { ...only('source_id', CPI), n_rows: 4 }, true],
  ['native, a sample', { n_random: 2, random_seed: 1 }, true],
  ['native, as of a time with the old one alone', { as_of: '1988-02-27T05:59:59Z' }, false],
  ['native, as of a time with both', { as_of: '1988-02-27T06:00:00Z' }, true],
  [
    'aligned, of a window that the last vintage rebased',
    { mode: 'aligned_1s', ...range('1987-11-01', '1988-03-01') },
    false,
  ],
  ['aligned, with a value that it did not', { mode: 'aligned_1s' }, true],
  ['aligned, with such a value carried in', { mode: 'aligned_1s', ...range('1987-10-15', '1987-11-02') }, true],
  ['aligned, with such a value alone', { mode: 'aligned_1s', ...range('1987-10-15', '1987-11-01') }, false],
  ['aligned, as of a time before', { mode: 'aligned_1s', as_of: '1988-02-27T05:59:59Z' }, false],
  ['aligned, as of a time after', { mode: 'aligned_1s', as_of: '1988-02-27T06:00:00Z' }, true],
  ['aligned, the last rows', { mode: 'aligned_1s', ...only('source_id', CPI), n_rows: 4 }, false],
  ['aligned, all rows as the last ones', { mode: 'aligned_1s', ...only('source_id', CPI), n_rows: 5 }, true],
] as const)('%s', async (_, body, isSaid) => {
  expect((await said(body)).map(({ code }) => code)).toEqual(isSaid ? [CODE] : []);
});

const DETAILS = {
  sources: [
    {
      source_id: CPI,
      metric_name: 'consumer_price_index_all_items',
      units: [
        { unit: OLD, from_vintage: '1988-01-20' },
        { unit: NEW, from_vintage: '1988-02-26' },
      ],
    },
  ],
};

test('it names the series, its units and from when each holds; strict refuses, and the historical route says the same', async () => {
  const [warning] = await said({});
  expect(warning.details).toEqual(DETAILS);
  for (const text of [CPI, OLD, NEW, '1988-01-20', '1988-02-26']) expect(warning.message).toContain(text);
  const path = '/v1/historical/macro/series_metrics';
  const historical = await post(path, { start_date: '1987-10-01' });
  expect(ofUnits(historical.json.warnings)).toEqual([warning]);
  const window = { ...range('1987-10-01', '1988-03-01'), ...only('source_id', CPI), strict: true };
  const [first, second] = [
    await post('/v1/raw/query', { sources: [KEY], ...window }),
    await post(path, { strict: true }),
  ];
  expect([first.status, first.json.code]).toEqual([409, 'STRICT_MODE_WARNING_FAILURE']);
  expect(first.json.warnings.map(({ code }: Said) => code)).toEqual([CODE]);
  expect([second.status, ofUnits(second.json.warnings)]).toEqual([409, [warning]]);
  const one = { ...window, ...range('1988-01-01', '1988-03-01') };
  expect((await post('/v1/raw/query', { sources: [KEY], ...one })).status).toBe(200);
});

describe('a frame', () => {
  const column = (name: string, more: object = {}) => ({
    name,
    dataset: KEY,
    field: 'metric_value_float',
    filter: { field: 'source_id', op: 'eq', value: CPI },
    ...more,
  });
  const RATE = column('rate', { filter: { field: 'source_id', op: 'eq', value: 'macro_unrate' } });
  const ask = (columns: readonly object[], more: object) => post('/v1/frame', { columns, grid: '1d', ...more });

  test.each([
    ['as of each row, over the day of the change', { as_of: 'row', ...range('1988-02-20', '1988-03-02') }, true],
    ['as of each row, up to it', { as_of: 'row', ...range('1988-01-22', '1988-02-27') }, false],
    ['as of each row, from it on', { as_of: 'row', ...range('1988-02-28', '1988-03-22') }, false],
    ['as of now, of values in one unit', range('1987-11-01', '1988-03-22'), false],
    ['as of now, with a value that was not rebased', range('1987-10-20', '1987-11-05'), true],
    ['as of a time before', { as_of: '1988-02-01T00:00:00Z', ...range('1987-10-20', '1988-01-10') }, false],
    ['as of a time after', { as_of: '1988-03-01T00:00:00Z', ...range('1987-10-20', '1988-01-10') }, true],
  ] as const)('%s', async (_, more, isSaid) => {
    const { json, text } = await ask([column('cpi'), RATE], more);
    expect(json.warnings, text).toBeDefined();
    expect(json.columns.map(({ warnings }: { warnings: string[] }) => warnings.includes(CODE))).toEqual([
      isSaid,
      false,
    ]);
    expect(ofUnits(json.warnings).map(({ details }) => details)).toEqual(
      isSaid ? [{ ...DETAILS, columns: ['cpi'] }] : [],
    );
    const strict = await ask([column('cpi'), RATE], { ...more, strict: true });
    if (isSaid) expect([strict.status, ofUnits(strict.json.warnings)]).toEqual([409, ofUnits(json.warnings)]);
  });

  test('goes by the values that its buckets show: filters and ages leave some out', async () => {
    const late = range('1987-10-20', '1987-11-05');
    const codes = async (more: object) => {
      const { json } = await ask([column('cpi', more)], late);
      return ofUnits(json.warnings).length;
    };
    const clauses = (field: string, op: string, value: unknown) => [
      { field: 'source_id', op: 'eq', value: CPI },
      { field, op, value },
    ];
    expect(await codes({})).toBe(1);
    expect(await codes({ filter: clauses('metric_unit', 'eq', NEW) })).toBe(0);
    expect(await codes({ filter: clauses('metric_value_float', 'lt', 200) })).toBe(0);
    expect(await codes({ max_age: '5d' })).toBe(0);
  });

  test('is exported with its warnings, and so are rows', async () => {
    await using exports = await startExports(served.env, { now: () => Date.parse('1988-04-01T00:00:00Z') });
    const frame = { columns: [column('cpi')], grid: '1d', as_of: 'row', ...range('1988-02-20', '1988-03-02') };
    for (const body of [frame, { dataset: KEY, ...range('1987-10-01', '1988-03-01') }]) {
      const strict = await exports.submit({ ...body, format: 'csv', strict: true });
      expect([strict.status, ofUnits(strict.json.warnings)]).toMatchObject([409, [{ details: DETAILS }]]);
      const { json } = await exports.run({ ...body, format: 'csv' });
      expect([json.status, ofUnits(json.warnings)]).toMatchObject(['succeeded', [{ details: DETAILS }]]);
    }
  });
});

test('a unit that comes back is named each time; of what is not proved or was not known nothing is said', async () => {
  const back = [...VINTAGES.slice(0, 2), cpi('1988-03-23', OLD, { '1988-02-01': '347.4' })];
  const unitsSaid = async (body: object = {}) =>
    (await said(body)).flatMap(({ details }) => (details as typeof DETAILS).sources.flatMap(({ units }) => units));
  await loadWorld(served.env.databaseUrl, worldOfVintages(back));
  const [first, second] = DETAILS.sources[0].units;
  expect(await unitsSaid()).toEqual([first, second, { unit: OLD, from_vintage: '1988-03-23' }]);
  expect(await unitsSaid({ as_of: '1988-03-01T00:00:00Z' })).toEqual([first, second]);
  await loadWorld(served.env.databaseUrl, worldOfVintages(back, '1988-03-23'));
  expect(await unitsSaid()).toEqual([first, second]);
  await loadWorld(served.env.databaseUrl, worldOfVintages(VINTAGES, '1988-01-20'));
  expect(await unitsSaid()).toEqual([]);
});

test('a filter that admits no source of the dataset was a failure of the service, not an answer without rows', async () => {
  const body = only('source_id', 'nobody');
  const query = await served.serving.query({ sources: [KEY], ...body });
  expect([query.status, query.json.code]).toEqual([404, 'QUERY_NO_DATA']);
  expect((await post('/v1/raw/estimate', { sources: [KEY], ...body })).status).toBeLessThan(500);
});
