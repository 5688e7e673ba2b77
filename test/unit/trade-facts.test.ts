/** The facts of a file day's trades, in random days with planted increments, silences and gaps, against DuckDB. */
import { DuckDBInstance } from '@duckdb/node-api';
import fc from 'fast-check';
import { beforeAll, describe, expect, test } from 'vitest';
import type { FoldingProjection } from '../../pipelines/rows/binary-copy.ts';
import { projectionOf } from '../../pipelines/sources/index.ts';
import { DAY_MS } from '../../shared/dates.ts';
import { factsText } from '../../shared/proof/facts.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { runs } from '../support/seed.ts';

const DAY = Date.UTC(2024, 2, 1);
const WINDOW = { key: '2024-03-01', fromMs: DAY, toMs: DAY + DAY_MS };
const MINUTE = 60_000;

interface Trade {
  readonly id: number;
  readonly ms: number;
  readonly price: string;
  readonly quantity: string;
}

const LAYOUTS = {
  exchange_a_spot_trades: {
    line: ({ id, ms, price, quantity }: Trade) => `${id},${price},${quantity},1,${ms},True,True`,
    written: {},
  },
  exchange_b_spot_trades: {
    line: ({ id, ms, price, quantity }: Trade) => `BTC-USDT,${id},buy,${price},${quantity},${ms}`,
    written: {},
  },
  exchange_c_spot_trades: {
    line: ({ id, ms, price, quantity }: Trade) => `${id},${ms},${price},${quantity},sell`,
    written: { layout: 'spot', constants: { symbol: 'BTCUSDT' } },
  },
} as const;
const KEYS = Object.keys(LAYOUTS) as (keyof typeof LAYOUTS)[];

/** What the projector finds, with the trades in two frames. */
function found(key: keyof typeof LAYOUTS, trades: readonly Trade[]) {
  const { line, written } = LAYOUTS[key];
  const dataset = datasetOf(key);
  const rows = (projectionOf(dataset) as FoldingProjection).createRows(WINDOW);
  const half = trades.length >> 1;
  for (const part of [trades.slice(0, half), trades.slice(half)]) {
    if (part.length > 0) rows.rows(Buffer.from(part.map((trade) => `${line(trade)}\n`).join('')), part.length, written);
  }
  const times = trades.map(({ ms }) => ms);
  const ids = trades.map(({ id }) => id);
  const manifest = {
    rows: trades.length,
    first_ms: Math.min(...times),
    last_ms: Math.max(...times),
    gaps: Math.max(...ids) - Math.min(...ids) + 1 - trades.length,
    repeats_dropped: 2,
  };
  return JSON.parse(factsText(dataset, manifest, rows.facts()));
}

let oracle: Awaited<ReturnType<DuckDBInstance['connect']>>;
beforeAll(async () => {
  oracle = await (await DuckDBInstance.create()).connect();
});

const SCALE = 8;
const gcdOf = (column: string) =>
  `list_reduce(list(replace(${column}::decimal(38,${SCALE})::varchar, '.', '')::hugeint), (a, b) -> gcd(a, b))`;

/** The same by DuckDB, which reads the texts as decimals and the trades in the order of time. */
async function expected(key: string, trades: readonly Trade[]) {
  const values = trades.map(({ id, ms, price, quantity }) => `(${id}, ${ms}, '${price}', '${quantity}')`);
  await oracle.run(`create or replace temp table t as from (values ${values.join(', ')}) v (id, ms, price, quantity)`);
  const [[price, quantity, first, last, missing]] = (
    await oracle.runAndReadAll(
      `select ${gcdOf('price')}, ${gcdOf('quantity')}, min(ms), max(ms), max(id) - min(id) + 1 - count(*) from t`,
    )
  ).getRows();
  const silences = await oracle.runAndReadAll(`select was, ms, before + 1 = after from (
      select ms, lag(ms) over w as was, max(id) over (w rows between unbounded preceding and 1 preceding) as before,
        min(id) over (w rows between current row and unbounded following) as after
      from t window w as (order by ms, id)) where ms - was > ${MINUTE} order by ms`);
  const text = (units: unknown) => {
    const digits = String(units).padStart(SCALE + 1, '0');
    return `${digits.slice(0, -SCALE)}.${digits.slice(-SCALE)}`.replace(/\.?0+$/, '');
  };
  return {
    first_ms: Number(first),
    last_ms: Number(last),
    repeats: 2,
    ids_missing: Number(missing),
    price_increment: text(price),
    quantity_increment: text(quantity),
    silences: silences
      .getRows()
      .map(([from, to, follows]) => [
        Number(from),
        Number(to),
        follows && key !== 'exchange_c_spot_trades' ? 'proved' : 'unknown',
      ]),
  };
}

/** Multiples of an increment, printed with the decimals that the vendor always prints, or with those that are needed. */
const decimals = fc.record({
  step: fc.constantFrom(1n, 5n, 10n, 25n, 100n, 1_000_000n),
  scale: fc.nat({ max: 8 }),
  padded: fc.boolean(),
  most: fc.constantFrom(50n, 10n ** 6n, 10n ** 13n, 10n ** 18n),
});
type Decimals = typeof decimals extends fc.Arbitrary<infer T> ? T : never;

function printed(multiple: bigint, { step, scale, padded, most }: Decimals): string {
  const digits = String((multiple % most) * step + step).padStart(scale + 1, '0');
  const whole = digits.slice(0, digits.length - scale);
  const fraction = digits.slice(digits.length - scale);
  if (padded) return `${whole}.${fraction.padEnd(8, '0')}`;
  const short = fraction.replace(/0+$/, '');
  return short === '' ? whole : `${whole}.${short}`;
}

const day = fc.record({
  price: decimals,
  quantity: decimals,
  steps: fc.array(
    fc.record({
      // Around a minute, hours, and within a second.
      afterMs: fc.oneof(
        fc.nat({ max: 999 }),
        fc.integer({ min: MINUTE - 2, max: MINUTE + 2 }),
        fc.nat({ max: 3_600_000 }),
      ),
      missing: fc.oneof(
        { weight: 5, arbitrary: fc.constant(0) },
        { weight: 1, arbitrary: fc.integer({ min: 1, max: 9 }) },
      ),
      price: fc.bigInt({ min: 0n, max: 10n ** 19n }),
      quantity: fc.bigInt({ min: 0n, max: 10n ** 19n }),
    }),
    { minLength: 1, maxLength: 40 },
  ),
});

function tradesOf({ price, quantity, steps }: typeof day extends fc.Arbitrary<infer T> ? T : never): Trade[] {
  let [id, ms] = [1_000_000, DAY];
  const trades: Trade[] = [];
  for (const step of steps) {
    id += 1 + step.missing;
    ms += step.afterMs;
    if (ms >= DAY + DAY_MS) break;
    trades.push({ id, ms, price: printed(step.price, price), quantity: printed(step.quantity, quantity) });
  }
  return trades;
}

describe.for(KEYS)('%s', (key) => {
  test('increments, silences and missing ids are those that DuckDB finds', async () => {
    await fc.assert(
      fc.asyncProperty(day, async (planted) => {
        const trades = tradesOf(planted);
        fc.pre(trades.length > 0);
        expect(found(key, trades)).toEqual(await expected(key, trades));
      }),
      { numRuns: runs(400) },
    );
  });
});

const at = (id: number, ms: number, price = '1', quantity = '1'): Trade => ({ id, ms: DAY + ms, price, quantity });
const A = 'exchange_a_spot_trades';

test('prices of 1e-8 and quantities of 1e12 with eight decimals keep their increments', () => {
  const facts = found(A, [
    at(1, 0, '0.00000001', '1000000000000.00000000'),
    at(2, 1, '0.00000007', '1000000000000.00000003'),
    at(3, 2, '0.00000010', '2000000000000.00000000'),
  ]);
  expect([facts.price_increment, facts.quantity_increment]).toEqual(['0.00000001', '0.00000001']);
  const whole = found(A, [at(1, 0, '30000.00', '12345678900.00000000'), at(2, 1, '45000.00', '100.00000000')]);
  expect([whole.price_increment, whole.quantity_increment]).toEqual(['15000', '100']);
});

test('a value that is too long in the units of another keeps its digits', () => {
  const facts = found('exchange_b_spot_trades', [
    at(1, 0, '0.00000003', '0.000007'),
    at(2, 1, '9007199254740990', '9007199254740989'),
  ]);
  expect([facts.price_increment, facts.quantity_increment]).toEqual(['0.00000003', '0.000001']);
});

test('a minute is no silence, and a millisecond more is one', () => {
  expect(found(A, [at(1, 500), at(2, 500 + MINUTE)]).silences).toEqual([]);
  expect(found(A, [at(1, 500), at(2, 501 + MINUTE)]).silences).toEqual([[DAY + 500, DAY + 501 + MINUTE, 'proved']]);
});

test('ids whose times disagree prove a silence only where the day has them all', () => {
  // Trade 3 is earlier than trade 2, and both are on one side of the silence.
  const side = [at(1, 0), at(2, 900), at(3, 100)];
  expect(found(A, [...side, at(4, 2 * MINUTE)]).silences).toEqual([[DAY + 900, DAY + 2 * MINUTE, 'proved']]);
  expect(found(A, [...side, at(5, 2 * MINUTE)]).silences).toEqual([[DAY + 900, DAY + 2 * MINUTE, 'unknown']]);
  // Trades 2 and 3 changed sides.
  const across = [at(1, 0), at(3, 900), at(2, 2 * MINUTE), at(4, 2 * MINUTE)];
  expect(found(A, across).silences).toEqual([[DAY + 900, DAY + 2 * MINUTE, 'proved']]);
  expect(found(A, [...across, at(6, 2 * MINUTE)]).silences).toEqual([[DAY + 900, DAY + 2 * MINUTE, 'unknown']]);
});

test('a day of no size has no increment of it', () => {
  expect(found('exchange_b_spot_trades', [at(1, 0, '5.5', '0')]).quantity_increment).toBeNull();
});
