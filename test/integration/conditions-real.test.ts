/** GET /v1/conditions of real days, beside DuckDB over the vendors' own texts, which it reads as decimals. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ROOT } from '../support/command.ts';
import { givenData } from '../support/given.ts';
import { documentPath, memberName, System, unzip } from '../support/pipeline.ts';
import { type Serving, startServing } from '../support/serving.ts';
import { duckdb } from '../support/trade-oracle.ts';
import { VENDOR_A, VENDOR_B, VENDOR_C, type Vendor } from '../support/vendors.ts';

const DATA = join(ROOT, '..', 'shared', 'data');
const SCALE = 12;

/** Where a vendor's lines have id, time in ms, price and quantity. */
const COLUMNS = { id: 'trade_id', ms: 'created_time', price: 'price', quantity: 'size' };
const COLUMNS_C = { id: 'id', ms: '"timestamp"', price: 'price', quantity: 'volume' };
const COLUMNS_A = { id: 'column0', ms: 'column4', price: 'column1', quantity: 'column2' };

interface Real {
  readonly vendor: Vendor;
  readonly day: string;
  /** Below the data. */
  readonly file: string;
  readonly columns: typeof COLUMNS;
  readonly hasHeader: boolean;
}

const REAL: readonly Real[] = [
  ...['2019-04-01', '2025-01-01'].map((day) => {
    const file = `exchange_a/${documentPath(day)}`;
    return { vendor: VENDOR_A, day, file, columns: COLUMNS_A, hasHeader: false };
  }),
  ...['2024-01-01.first1', '2026-09-01.first1'].map((name) => {
    const file = `exchange_b/excerpts/spot_BTC-USDT-trades-${name}.csv`;
    return { vendor: VENDOR_B, day: name.slice(0, 10), file, columns: COLUMNS, hasHeader: true };
  }),
  ...['2023-10-01.first1', '2025-05-19.first3', '2026-09-01.first3'].map((name) => {
    const file = `exchange_c/excerpts/spot_BTCUSDT_${name}.csv`;
    return { vendor: VENDOR_C, day: name.slice(0, 10), file, columns: COLUMNS_C, hasHeader: true };
  }),
];

const gcdOf = (column: string) =>
  `list_reduce(list(distinct replace(${column}::varchar, '.', '')::hugeint), (a, b) -> gcd(a, b))`;

const textOf = (units: string | null) => {
  const digits = String(units).padStart(SCALE + 1, '0');
  return `${digits.slice(0, -SCALE)}.${digits.slice(-SCALE)}`.replace(/\.?0+$/, '');
};

/** What the text of a day determines. */
async function expectedOf({ vendor, columns, hasHeader }: Real, csv: string) {
  const { id, ms, price, quantity } = columns;
  const lines = `read_csv('${csv}', all_varchar = true, delim = ',', header = ${hasHeader})`;
  // Exchange A states microseconds since 2025.
  const day = `select distinct ${id}::int8 as id, case when ${ms}::int8 > 10 ^ 14 then ${ms}::int8 // 1000 else ${ms}::int8 end as ms,
    ${price}::decimal(38, ${SCALE}) as price, ${quantity}::decimal(38, ${SCALE}) as quantity
    from ${lines}`;
  const [[first, last, missing, repeats, stepOfPrice, stepOfQuantity]] = await duckdb(
    `with t as (${day}) select min(ms), max(ms), max(id) - min(id) + 1 - count(*),
       (select count(*) from ${lines}) - count(*), ${gcdOf('price')}, ${gcdOf('quantity')} from t`,
  );
  const silences = await duckdb(
    `with t as (${day}) select was, ms, before + 1 = after from (select ms, lag(ms) over w as was,
       max(id) over (w rows between unbounded preceding and 1 preceding) as before,
       min(id) over (w rows between current row and unbounded following) as after
     from t window w as (order by ms, id)) where ms - was > 60000 order by ms`,
  );
  const iso = (time: string | null) => new Date(Number(time)).toISOString();
  const list = silences.map(([from, to, follows]) => ({
    from_utc: iso(from),
    to_utc: iso(to),
    ms: Number(to) - Number(from),
    state: follows === 'true' && vendor !== VENDOR_C ? 'proved' : 'unknown',
  }));
  return {
    observed_increment: { price: textOf(stepOfPrice), quantity: textOf(stepOfQuantity) },
    silences: {
      count: list.length,
      longest_ms: Math.max(0, ...list.map((one) => one.ms)),
      unknown: list.filter(({ state }) => state === 'unknown').length,
      list,
    },
    ids_missing: Number(missing),
    repeats: Number(repeats),
    first: iso(first),
    last: iso(last),
  };
}

givenData('exchange_a').describe('a real day', () => {
  let system: System;
  let serving: Serving;
  beforeAll(async () => {
    system = await System.create();
    serving = await startServing({ databaseUrl: system.env.databaseUrl });
  });
  afterAll(async () => {
    await serving?.[Symbol.asyncDispose]();
    await system?.[Symbol.asyncDispose]();
  });

  test.each(REAL.map((real) => [real.vendor.dataset, real.day, real] as const))('%s %s', async (key, day, real) => {
    const { vendor } = real;
    const isArchive = vendor === VENDOR_A;
    const file = join(DATA, real.file);
    if (!isArchive) await vendor.put(system.vendor, day, vendor.pack(day, readFileSync(file)));
    const env = vendor.settings(isArchive ? join(DATA, 'exchange_a') : system.vendor);
    const { exit, json: said } = await system.run(['backfill', key, '--from', day, '--to', day], env);
    expect(exit, JSON.stringify(said)).toBe(0);
    const csv = isArchive ? await unzip(file, memberName(day), system.env.dir) : file;
    const query = new URLSearchParams({ dataset: key, from: day, to: day, silences: 'list' });
    const { json } = await serving.send({ method: 'GET', path: `/v1/conditions?${query}` });
    expect(json.conditions).toEqual([expect.objectContaining(await expectedOf(real, csv))]);
  });
});
