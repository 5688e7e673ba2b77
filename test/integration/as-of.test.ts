/**
 * Reads as of a time, against a naive model: the world with the vintages that were known then and no others, asked as if
 * it were all there is. Rows, validity, freshness, samples and estimates all have to agree with it.
 */
import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import { connect } from '../../shared/db/connect.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { loadWorld } from '../support/load-worlds.ts';
import { runs } from '../support/seed.ts';
import { servedEnv } from '../support/served-env.ts';
import { createMigratedEnv } from '../support/stack.ts';
import { type Vintage, worldOfVintages } from '../support/vintages.ts';
import { type Body, bodiesOf, expected, iso, type Served } from '../support/world-oracle.ts';
import { capturedAt, DAY, etfWorld, knownAt, knownMs, macroWorld, type World } from '../support/worlds.ts';

const KEY = 'macro_series_metrics';
const MACRO = datasetOf(KEY);
const KNOWN_AFTER = DAY + 6 * 3_600_000;

const served = servedEnv(createMigratedEnv);

const ask = (body: object) => served.serving.query({ sources: [KEY], ...body });

/** Times at which a vintage becomes known, and about them; before all and after all. */
const timesOf = ({ partitions }: World): fc.Arbitrary<number> =>
  fc
    .tuple(fc.constantFrom(...partitions), fc.constantFrom(0, 0, -1, 1, DAY, -DAY, -400 * DAY, 20_000 * DAY))
    .map(([{ span }, shift]) => span[0] + KNOWN_AFTER + shift);

async function check(world: World, body: Body): Promise<void> {
  const known = knownAt(world, Date.parse(body.as_of!));
  const rows = expected(known, body);
  const answer = await ask(body);
  if (rows.length === 0) {
    expect([answer.status, answer.json.code], answer.text.slice(0, 500)).toEqual([404, 'QUERY_NO_DATA']);
    return;
  }
  expect(answer.status, answer.text.slice(0, 500)).toBe(200);
  expect(answer.json.rows).toEqual(rows);
  if (body.mode === 'native' || body.filters) return;
  const throughMs = Math.min(...known.runs.map((run) => run.throughMs));
  const lag = Math.floor((Math.min(Date.parse(body.as_of!), Date.now()) - throughMs) / 1000);
  expect(answer.json.freshness.as_of_utc).toBe(iso(throughMs));
  expect(Math.abs(answer.json.freshness.lag_seconds - lag)).toBeLessThan(60);
}

describe.each([1, 2])('a world of seed %i', (seed) => {
  const world = macroWorld(seed);
  beforeAll(() => loadWorld(served.env.databaseUrl, world));

  test.each(['native', 'aligned_1s'] as const)('%s: any window, fields and filters, at any time', async (mode) => {
    await fc.assert(
      fc.asyncProperty(bodiesOf(world, mode), timesOf(world), (body, ms) => check(world, { ...body, as_of: iso(ms) })),
      { numRuns: runs(280) },
    );
  });

  test('samples and estimates are of what was known', async () => {
    const vintages = world.partitions.map(({ span }) => span[0]).sort((a, b) => a - b);
    const as_of = iso(vintages[Math.floor(vintages.length / 2)] + KNOWN_AFTER);
    const known = knownAt(world, Date.parse(as_of));
    for (const mode of ['native', 'aligned_1s'] as const) {
      const rows = expected(known, { mode }).map((row) => JSON.stringify(row));
      const all = expected(world, { mode }).length;
      expect(rows.length).toBeGreaterThan(7);
      expect(rows.length).toBeLessThan(all);
      for (const n_random of [Math.floor(rows.length / 2), rows.length + 1]) {
        const { json } = await ask({ mode, as_of, n_random, random_seed: seed });
        const places = json.rows.map((row: Served) => rows.indexOf(JSON.stringify(row)));
        expect(places).toHaveLength(Math.min(n_random, rows.length));
        expect(places).toEqual([...new Set(places)].sort((a, b) => Number(a) - Number(b)));
        expect(places).not.toContain(-1);
      }
      const estimate = await served.serving.send({
        path: '/v1/raw/estimate',
        body: JSON.stringify({ sources: [KEY], mode, as_of }),
      });
      expect([estimate.json.rows, estimate.json.rows_is_exact]).toEqual([rows.length, true]);
      expect(estimate.json.as_of_utc).toBe(iso(Math.min(...known.runs.map((run) => run.throughMs))));
    }
  });
});

test('what a row takes from its partition is looked up in the catalog, not searched for in all of it', async () => {
  await loadWorld(served.env.databaseUrl, macroWorld(1));
  await using client = await connect({ url: served.env.databaseUrl, name: 'test' });
  // The other indexes are as good of a table as small as here.
  await client.query('begin; set local enable_seqscan = off; set local enable_hashjoin = off');
  await client.query(`do $$ declare one record; begin
    for one in select conname from pg_constraint where conrelid = 'partitions'::regclass and contype = 'x'
      loop execute format('alter table partitions drop constraint %I', one.conname); end loop;
    for one in select indexrelid::regclass as name from pg_index where indrelid = 'partitions'::regclass and not indisprimary
      loop execute format('drop index %s', one.name); end loop; end $$`);
  const facts = MACRO.native.fields.filter(({ name }) => /ingested|provenance/.test(name)).map(({ sql }) => sql);
  const { rows } = await client.query(`explain select ${facts.join(', ')} from ${MACRO.native.table} t`);
  const plan = rows.map((row) => row['QUERY PLAN']).join('\n');
  expect(plan.match(/Index Cond: .*partition_key/g) ?? [], plan).toHaveLength(2);
  await client.query('rollback');
});

describe.each([1, 2])('funds that were captured late and out of order, seed %i', (seed) => {
  const world = etfWorld(seed);
  beforeAll(() => loadWorld(served.env.databaseUrl, world));

  test.each(['native', 'aligned_1s'] as const)('%s: any window, fields and filters, at any time', async (mode) => {
    const times = fc
      .tuple(fc.constantFrom(...world.partitions), fc.constantFrom(0, 0, -1, 1, DAY, -DAY))
      .map(([partition, shift]) => knownMs(partition) + shift);
    await fc.assert(
      fc.asyncProperty(bodiesOf(world, mode), times, async (body, ms) => {
        const rows = expected(capturedAt(world, ms), body);
        const answer = await served.serving.query({ sources: ['etf_daily_metrics'], ...body, as_of: iso(ms) });
        if (rows.length === 0) expect([answer.status, answer.json.code]).toEqual([404, 'QUERY_NO_DATA']);
        else expect(answer.json.rows, answer.text.slice(0, 500)).toEqual(rows);
      }),
      { numRuns: runs(280) },
    );
  });
});

describe('a first print and its revision', () => {
  // One observation, said on two days, and one said only later.
  const [OBSERVED, NEXT] = ['2024-01-01', '2024-02-01'];
  const [FIRST, SECOND] = ['2024-02-13', '2024-03-12'];
  const cpi = (day: string, values: Vintage['values']): Vintage => ({
    ...{ sourceId: 'macro_cpiaucsl', name: 'consumer_price_index_all_items', day, unit: 'Index 1982-1984=100', values },
  });
  const world = worldOfVintages([
    cpi(FIRST, { [OBSERVED]: '308.417' }),
    cpi(SECOND, { [OBSERVED]: '309.685', [NEXT]: '311.054' }),
  ]);
  beforeAll(() => loadWorld(served.env.databaseUrl, world));

  const fields = (mode: Mode) =>
    mode === 'native' ? ['observed_at_utc'] : ['aligned_at_utc', 'valid_to_utc_exclusive'];
  const valuesAt = async (mode: Mode, as_of: string | undefined, historical = false) => {
    const body = { mode, as_of, fields: ['metric_value_float', ...fields(mode)] };
    const path = '/v1/historical/macro/series_metrics';
    const answer = historical ? await served.serving.send({ path, body: JSON.stringify(body) }) : await ask(body);
    return answer.status === 200 ? answer.json.rows.map((row: Served) => row.metric_value_float) : answer.status;
  };

  test.each([false, true])(
    'a vintage is known from 06:00 of the day after its date (historical: %s)',
    async (route) => {
      for (const [as_of, native, aligned] of [
        ['2024-02-14T05:59:59.999Z', 404, 404],
        ['2024-02-14T06:00:00Z', [308.417], [308.417]],
        ['2024-02-14T00:00:00-06:00', [308.417], [308.417]],
        ['2024-03-13T05:59:59.999Z', [308.417], [308.417]],
        ['2024-03-13T06:00:00Z', [308.417, 309.685, 311.054], [309.685, 311.054]],
        [undefined, [308.417, 309.685, 311.054], [309.685, 311.054]],
      ] as const) {
        expect(await valuesAt('native', as_of, route), `native ${as_of}`).toEqual(native);
        expect(await valuesAt('aligned_1s', as_of, route), `aligned ${as_of}`).toEqual(aligned);
      }
    },
  );

  test('the last state that was known holds until the time, and no window reaches past it unnoticed', async () => {
    const as_of = '2024-03-01T00:00:00Z';
    const within = await ask({ mode: 'aligned_1s', as_of, time_range: ['2024-02-20T00:00:00Z', as_of] });
    expect(within.json.rows).toMatchObject([
      {
        metric_value_float: 308.417,
        valid_from_utc: '2024-02-20T00:00:00.000Z',
        valid_to_utc_exclusive: iso(Date.parse(as_of)),
      },
    ]);
    const codes = ({ json }: { json: { warnings: { code: string }[] } }) => json.warnings.map(({ code }) => code);
    expect(codes(within)).not.toContain('WINDOW_EXCEEDS_PROVED_COVERAGE');
    const past = await ask({ mode: 'aligned_1s', as_of, time_range: ['2024-02-20T00:00:00Z', '2024-03-02T00:00:00Z'] });
    expect(codes(past)).toContain('WINDOW_EXCEEDS_PROVED_COVERAGE');
    expect(past.json.rows[0].valid_to_utc_exclusive).toBe(iso(Date.parse(as_of)));
  });

  test.each([undefined, '2024-03-20T00:00:00Z'])(
    'a filter that left only the carried-in row made it valid past the next one, as of %s',
    async (as_of) => {
      const [start, end] = ['2024-01-15T00:00:00.000Z', '2024-03-01T00:00:00.000Z'];
      const of = (filters: object[], window: object = {}) =>
        ask({
          mode: 'aligned_1s',
          as_of,
          time_range: [start, end],
          fields: ['aligned_at_utc', 'metric_value_float', 'valid_from_utc', 'valid_to_utc_exclusive'],
          filters,
          ...window,
        });
      const [observed, next] = [OBSERVED, NEXT].map((day) => iso(Date.parse(day)));
      const carried = {
        aligned_at_utc: observed,
        metric_value_float: 309.685,
        valid_from_utc: start,
        valid_to_utc_exclusive: next,
      };
      const clause = (field: string, op: string, value: string) => ({ field, op, value });
      const alone = clause('aligned_at_utc', 'eq', observed);
      for (const filter of [alone, clause('aligned_at_utc', 'lt', start), clause('aligned_at_utc', 'lt', next)]) {
        expect((await of([filter])).json.rows, JSON.stringify(filter)).toEqual([carried]);
        expect((await of([filter, clause('valid_to_utc_exclusive', 'eq', next)])).json.rows).toEqual([carried]);
        expect((await of([filter, clause('valid_to_utc_exclusive', 'gt', next)])).status).toBe(404);
      }
      // The end of the window is nearer than the next row, or the next row lies beyond what is proved.
      const short = await of([alone], { time_range: [start, '2024-01-20T00:00:00Z'] });
      expect(short.json.rows).toEqual([{ ...carried, valid_to_utc_exclusive: '2024-01-20T00:00:00.000Z' }]);
      const last = await of([clause('aligned_at_utc', 'eq', next)], { time_range: ['2024-02-10T00:00:00Z', end] });
      expect(last.json.rows).toMatchObject([{ aligned_at_utc: next, valid_to_utc_exclusive: end }]);
    },
  );

  test('only a dataset that keeps its vintages can be asked as of a time; of others it is a fault of the contract', async () => {
    const as_of = '2024-03-01T00:00:00Z';
    const trades = await ask({ sources: ['exchange_a_spot_trades'], as_of });
    expect([trades.status, trades.json.code]).toEqual([409, 'QUERY_CONTRACT_ERROR']);
    expect(trades.json.errors).toEqual([
      { pointer: '/as_of', message: `is only for datasets that keep vintages: etf_daily_metrics, ${KEY}` },
    ]);
    const path = '/v1/historical/exchange_a/spot/trades';
    const route = await served.serving.send({ path, body: JSON.stringify({ as_of }) });
    expect([route.status, route.json.errors[0].pointer]).toEqual([409, '/as_of']);
    for (const bad of ['2024-03-01', '2024-03-01T00:00:00', 1_709_251_200_000, null]) {
      expect((await ask({ as_of: bad })).json.errors?.[0].pointer, JSON.stringify(bad)).toBe('/as_of');
    }
  });
});
