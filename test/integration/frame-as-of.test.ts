/** Frames as of a time, and as of each row: what was known then, to the millisecond. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { datasetOf } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import type { Json } from '../support/command.ts';
import { type FrameBody, frameOf } from '../support/frame-oracle.ts';
import { servedEnv } from '../support/served-env.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { capturedAt, DAY, SECOND } from '../support/worlds.ts';
import { createWorldsEnv, TRADE_DAYS, WORLDS } from '../support/worlds-env.ts';

const served = servedEnv(createWorldsEnv);

const iso = (ms: number) => new Date(ms).toISOString();

async function rowsOf(body: object): Promise<Json[]> {
  const { status, json, text } = await served.serving.send({ path: '/v1/frame', body: JSON.stringify(body) });
  expect(status, text.slice(0, 500)).toBe(200);
  return json.rows;
}

describe.each(['exchange_a_spot_trades', 'exchange_b_spot_trades', 'exchange_c_spot_trades'])(
  'one-second fields of %s held trades of a second that had not ended',
  (dataset) => {
    const [{ day, trades }] = TRADE_DAYS;
    const { fromMs } = windowOf(datasetOf(dataset), day);
    const all = trades.map((trade) => ({ ...trade, ms: trade.timestamp + fromMs - Date.parse(`${day}T00:00:00Z`) }));
    const secondOf = (ms: number) => Math.floor(ms / SECOND) * SECOND;
    const isAlone = ({ ms }: { readonly ms: number }) =>
      all.every((other) => other.ms === ms || Math.abs(other.ms - ms) > 3 * SECOND);
    const inside = all.filter((trade) => isAlone(trade) && trade.ms % SECOND > 0 && trade.ms % SECOND < 998);
    const fields = ['open_price', 'high_price', 'low_price', 'close_price', 'quantity_sum', 'quote_volume_sum'];
    const columns = [
      { name: 'trade', dataset, field: 'price' },
      ...fields.map((field) => ({ name: field, dataset, field })),
      { name: 'trades', dataset, field: 'trade_count', aggregate: 'sum' },
    ];
    const held = ({ price, quantity }: (typeof all)[number]) => ({
      open_price: price,
      high_price: price,
      low_price: price,
      close_price: price,
      quantity_sum: quantity,
      quote_volume_sum: expect.closeTo(price * quantity, 3),
      trades: 1,
    });
    const nothing = Object.fromEntries(columns.slice(1).map(({ name }) => [name, null]));

    test('as of a time within it', async () => {
      expect(inside.length).toBeGreaterThan(5);
      for (const trade of inside.slice(0, 5)) {
        const second = secondOf(trade.ms);
        const time_range = [iso(second - SECOND), iso(second + 2 * SECOND)];
        for (const asOf of [second, trade.ms - 1, trade.ms, second + 998, second + 999, second + 1000]) {
          const rows = await rowsOf({ columns, grid: 1, time_range, as_of: iso(asOf) });
          const seconds = asOf === second + 1000 ? [-1000, 0, 1000] : [-1000, 0];
          expect(rows.map(({ datetime }) => datetime)).toEqual(seconds.map((shift) => iso(second + shift)));
          const native = { datetime: iso(second), trade: asOf >= trade.ms ? trade.price : null };
          expect(rows[1], iso(asOf)).toEqual({ ...native, ...(asOf >= second + 999 ? held(trade) : nothing) });
        }
      }
    });

    test('in longer buckets, and in values that fill empty ones', async () => {
      const [first, ...later] = inside;
      const time_range = [iso(Math.floor(first.ms / 60_000) * 60_000), iso(fromMs + 86_400_000)];
      for (const trade of later) {
        const known = all.filter(({ ms }) => secondOf(ms) + 999 <= trade.ms);
        const latest = known.toSorted((a, b) => a.trade_id - b.trade_id).at(-1)!;
        for (const grid of [60, 3600]) {
          const rows = await rowsOf({ columns, grid, time_range, as_of: iso(trade.ms), fill: 'previous' });
          const start = Math.floor(trade.ms / grid / SECOND) * grid * SECOND;
          const count = known.filter(({ ms }) => ms >= start).length;
          expect(rows.at(-1)).toMatchObject({
            datetime: iso(start),
            trade: trade.price,
            close_price: latest.price,
            trades: count === 0 ? null : count,
          });
        }
      }
    });

    test('as of each row, where the window ends within it', async () => {
      for (const trade of inside.slice(0, 5)) {
        const second = secondOf(trade.ms);
        for (const end of [second + 1, trade.ms + 1, second + 999, second + 1000]) {
          const time_range = [iso(second - SECOND), iso(end)];
          const last = {
            datetime: iso(second),
            known_at_utc: iso(end),
            trade: end > trade.ms ? trade.price : null,
            ...(end === second + 1000 ? held(trade) : nothing),
          };
          expect((await rowsOf({ columns, grid: 1, time_range, as_of: 'row' })).at(-1)).toEqual(last);
          // Known today, the second is that of the window, as in a query.
          const { known_at_utc, ...today } = { ...last, ...held(trade) };
          expect((await rowsOf({ columns, grid: 1, time_range })).at(-1)).toEqual(today);
        }
      }
    });
  },
);

describe('a state had no value at the time of as_of beside a column that is proved for longer', () => {
  const HEIGHT = { name: 'height', dataset: 'bitcoin_block_headers', field: 'height' };
  const CLOSE = { name: 'close', dataset: 'exchange_a_spot_trades', field: 'close_price' };
  const fund = WORLDS.find(({ dataset }) => dataset.key === 'etf_daily_metrics')!;
  // The time until which a fund's capture holds, at which nothing later had been captured.
  const held = fund.rows.flatMap(({ cells, partition: { state, span, sourceId } }) => {
    const of = () => capturedAt(fund, span[1]).runs.findLast((run) => run.sourceId === sourceId);
    const isLast = state === 'proved' && cells.value_kind === 'float' && of()?.throughMs === span[1];
    return isLast ? [{ source: sourceId, metric: String(cells.metric_name), asOf: span[1], ms: span[0] }] : [];
  });
  const series = [
    { source: 'macro_unrate', metric: 'unemployment_rate', asOf: '1970-09-30T12:00:00Z', ms: '1970-08-22' },
    { source: 'macro_unrate', metric: 'unemployment_rate', asOf: '1970-09-30T12:34:56.789Z', ms: '1970-08-22' },
    { source: 'macro_dgs10', metric: 'treasury_yield_10y', asOf: '1970-03-01T00:00:00Z', ms: '1970-02-01' },
  ].map((one) => ({ ...one, asOf: Date.parse(one.asOf), ms: Date.parse(one.ms) }));

  test.each([
    ['macro_series_metrics', series],
    ['etf_daily_metrics', held.slice(0, 5)],
  ])('of %s', async (dataset, cases) => {
    expect(cases.length).toBeGreaterThan(2);
    for (const { source, metric, asOf } of cases) {
      const state = {
        name: 'x',
        dataset,
        field: 'metric_value_float',
        filter: [
          { field: 'source_id', op: 'eq' as const, value: source },
          { field: 'metric_name', op: 'eq' as const, value: metric },
        ],
      };
      for (const grid of [3600, 86_400, 7 * 86_400]) {
        const of = (...columns: FrameBody['columns']): FrameBody => ({
          columns,
          grid,
          time_range: [iso(asOf - 2 * DAY), iso(asOf + 10 * DAY)],
          as_of: iso(asOf),
        });
        const alone = await rowsOf(of(state));
        expect(alone.at(-1).x).not.toBe(null);
        for (const other of [HEIGHT, CLOSE]) {
          const beside = await rowsOf(of(state, other));
          expect(beside.at(-1)).toMatchObject({ x: alone.at(-1).x });
          if (other === HEIGHT) expect(beside).toEqual(frameOf(of(state, other)));
        }
      }
    }
  });

  test('and none of an age that it had not reached', async () => {
    const [{ source, metric, asOf, ms }] = series;
    for (const [maxAge, isOld] of [
      [(asOf - ms) / SECOND, false],
      [(asOf - ms) / SECOND - 1, true],
    ] as const) {
      const x = {
        name: 'x',
        dataset: 'macro_series_metrics',
        field: 'metric_value_float',
        filter: [
          { field: 'source_id', op: 'eq' as const, value: source },
          { field: 'metric_name', op: 'eq' as const, value: metric },
        ],
        max_age: maxAge,
      };
      const time_range = [iso(asOf - DAY), iso(asOf + DAY)] as const;
      const body = { columns: [x, HEIGHT], grid: 3600, time_range, as_of: iso(asOf) };
      const rows = await rowsOf(body);
      expect(rows).toEqual(frameOf(body));
      expect(rows.at(-1).x === null).toBe(isOld);
    }
  });
});

describe('as of each row, a bucket that has not ended was shown while a state held', () => {
  const HOUR = 3_600_000;
  const clock = { ms: Date.now() };
  let asked: Serving;
  beforeAll(async () => {
    asked = await startServing({ databaseUrl: served.env.databaseUrl, now: () => clock.ms });
  });
  afterAll(() => asked[Symbol.asyncDispose]());

  const columns = [
    {
      name: 'x',
      dataset: 'macro_series_metrics',
      field: 'metric_value_float',
      filter: [{ field: 'source_id', op: 'eq', value: 'macro_dgs10' }],
    },
  ];
  /** A time before the end of what is proved. */
  const through = Date.parse('1970-03-01T00:00:00Z');
  const time_range = [iso(through - DAY), iso(through + 10 * DAY)];

  async function frameAt(ms: number, body: object) {
    clock.ms = ms;
    const { status, json, text } = await asked.send({
      path: '/v1/frame',
      body: JSON.stringify({ grid: '1h', as_of: 'row', ...body }),
    });
    return { status, json, text };
  }

  test('now or in any window', async () => {
    const { rows } = (await frameAt(Date.now(), { columns, time_range })).json;
    const endedBy = (ms: number) => rows.filter(({ known_at_utc }: Json) => Date.parse(known_at_utc) <= ms);
    const now = through + 90 * 60_000;
    expect([endedBy(now).length, rows.length > 40]).toEqual([25, true]);
    const { json } = await frameAt(now, { columns, time_range });
    expect(json.rows).toEqual(endedBy(now));
    expect(json.rows.at(-1).known_at_utc).toBe(iso(through + HOUR));
    // Until the next bucket has ended, the answer is the same.
    for (const later of [now + 1, through + 2 * HOUR - 1]) {
      expect((await frameAt(later, { columns, time_range })).json.rows_sha256).toBe(json.rows_sha256);
    }
    const ended = await frameAt(through + 2 * HOUR, { columns, time_range });
    expect(ended.json.rows).toEqual(endedBy(through + 2 * HOUR));
    // A window that ends before now is cut where it ends; one that ends later is not.
    const cut = (end: number) => frameAt(now, { columns, time_range: [time_range[0], iso(end)] });
    expect((await cut(now - 60_000)).json.rows.at(-1).known_at_utc).toBe(iso(now - 60_000));
    expect((await cut(now + 60_000)).json.rows.at(-1).known_at_utc).toBe(iso(through + HOUR));
    // Nothing of it has come.
    expect(await frameAt(now, { columns, time_range: [iso(now), time_range[1]] })).toMatchObject({ status: 404 });
  });

  test('without the warning that the window holds time of which nothing is proved', async () => {
    const now = through + 90 * 60_000;
    const reaching = (end: number, strict = false) =>
      frameAt(now, { columns, time_range: [iso(through - DAY), iso(end)], strict });
    expect((await reaching(now)).json.columns[0].warnings).not.toContain('WINDOW_EXCEEDS_PROVED_COVERAGE');
    const { json } = await reaching(through + 5 * HOUR);
    const warned = json.warnings.find(({ code }: Json) => code === 'WINDOW_EXCEEDS_PROVED_COVERAGE');
    expect(warned.details.gaps).toEqual([
      expect.objectContaining({ start: iso(through + HOUR), end: iso(through + 5 * HOUR) }),
    ]);
    expect((await reaching(through + 5 * HOUR, true)).status).toBe(409);
  });

  test('as of a time to come, which is as of now', async () => {
    const now = through + 90 * 60_000;
    const rowsAsOf = async (ms: number) => (await frameAt(now, { columns, time_range, as_of: iso(ms) })).json.rows;
    const rows = await rowsAsOf(now);
    expect(rows.at(-1)).toMatchObject({ datetime: iso(through + HOUR), x: expect.any(Number) });
    expect(await rowsAsOf(now + DAY)).toEqual(rows);
  });
});
