/** What the publishing side computes in JavaScript, held against PostgreSQL's own functions over stored rows. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Client, connect } from '../../shared/db/connect.ts';
import { codeOf } from '../../shared/errors.ts';
import { ExactTotal, roundHalfEven, totalSql } from '../../shared/proof/row-facts.ts';
import { knownText, RowHasher, rowHashSql, valueHashSql } from '../../shared/proof/row-hash.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { exchangeBSpotTrades } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { exchangeCSpotTrades } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { eventId, eventIdSql, unpackEventId } from '../../shared/registry/event-id.ts';
import { DATASETS, type DatasetDefinition } from '../../shared/registry/index.ts';
import {
  baseOf,
  instrumentDataset,
  instrumentTag,
  parseInstrument,
  slotNumber,
} from '../../shared/registry/instruments.ts';
import { dayKeyOf, windowOf } from '../../shared/registry/keys.ts';
import { unitsOf } from '../support/decimals.ts';
import { createTestEnv, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let client: Client;
beforeAll(async () => {
  env = await createTestEnv();
  client = await connect({ url: env.databaseUrl, name: 'row hash test' });
});
afterAll(async () => {
  await client[Symbol.asyncDispose]();
  await env[Symbol.asyncDispose]();
});

/** float8 as text that PostgreSQL reads back to the same bits. */
const text = (value: number) => (Object.is(value, -0) ? '-0' : String(value));

const LARGEST = 2 ** 53;
const int8 = fc.oneof(
  fc.maxSafeInteger(),
  fc.integer(),
  fc.nat(1000),
  fc.constantFrom(0, 1, -1, LARGEST, -LARGEST, LARGEST - 1, 2 ** 31, -(2 ** 31), 2 ** 32, 2 ** 32 - 1, -(2 ** 32), -2),
);
/** A time in ms or µs, with room for two booleans below it. */
const time = fc.oneof(
  fc.integer({ min: -(2 ** 51), max: 2 ** 51 - 1 }),
  fc.integer({ min: 1.5e12, max: 1.8e12 }),
  fc.constantFrom(0, 1, -1, 2 ** 51 - 1, -(2 ** 51), 2 ** 30, 2 ** 30 - 1),
);
const float8 = fc.oneof(
  fc.double({ noNaN: true }),
  fc.double({ noNaN: true, min: 0, max: 1e9 }),
  fc.double({ noNaN: true, min: 0, max: 2.3e-308 }),
  fc.constantFrom(0, -0, 5e-324, 1.7976931348623157e308, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 0.1, -0.1),
);

describe('the row hash', () => {
  test("equals PostgreSQL's over rows of the trades table, row by row and in sum", async () => {
    const { native } = exchangeASpotTrades;
    const row = fc.tuple(time, int8, float8, float8, float8, fc.boolean(), fc.boolean());
    const rows = fc.sample(row, { numRuns: 6000, seed: 20240101 });
    const column = (index: number) => rows.map((cells) => text(Number(cells[index])));
    await client.query(`create temp table hashed (ordinal int4,
      ${native.columns.map(({ name, pg }) => `${name} ${pg}`).join(', ')})`);
    await client.query(
      `insert into hashed select ordinality, a, b, c, d, e, f::int4::bool, g::int4::bool from unnest(
       $1::int8[], $2::int8[], $3::float8[], $4::float8[], $5::float8[], $6::text[], $7::text[])
       with ordinality as u(a, b, c, d, e, f, g, ordinality)`,
      [0, 1, 2, 3, 4, 5, 6].map(column),
    );
    const stored = await client.query<{ hash: string }>(
      `select (${rowHashSql(native)})::text as hash from hashed t order by ordinal`,
    );
    const all = new RowHasher();
    const ours = rows.map((cells) => {
      const [timestamp, tradeId, price, quantity, quote, maker, best] = cells;
      const one = new RowHasher();
      for (const hasher of [one, all]) {
        hasher.begin(timestamp, Number(maker) | (Number(best) << 1), 2);
        hasher.int8(tradeId);
        hasher.float8(price);
        hasher.float8(quantity);
        hasher.float8(quote);
        hasher.end();
      }
      return one.total();
    });
    expect(ours).toEqual(stored.rows.map(({ hash }) => hash));
    const sum = await client.query(`select sum(${rowHashSql(native)})::text as hash from hashed t`);
    expect(all.total()).toBe(sum.rows[0].hash);
    // Distinct rows with one hash would make the comparison above easy to pass.
    expect(new Set(ours).size).toBe(new Set(rows.map((cells) => cells.map((cell) => text(Number(cell))).join())).size);
  });

  test('of a single value equals the hash function of its type, whatever the seed', async () => {
    const values = fc.sample(fc.tuple(int8, int8, float8, fc.integer()), { numRuns: 4000, seed: 7 });
    await client.query('create temp table single (ordinal int4, seed int8, i int8, f float8, w int4)');
    await client.query(
      `insert into single select ordinality, a, b, c, d from unnest($1::int8[], $2::int8[], $3::float8[], $4::int4[])
       with ordinality as u(a, b, c, d, ordinality)`,
      [0, 1, 2, 3].map((index) => values.map((cells) => text(cells[index]))),
    );
    const seeded = 'hashint8extended(t.seed, 0)';
    const sql = [
      valueHashSql('i', 'int8', seeded),
      valueHashSql('f', 'float8', seeded),
      valueHashSql('w', 'int4', '0'),
    ];
    const stored = await client.query({
      text: `select ${sql.map((each) => `(${each})::text`).join(', ')} from single t order by ordinal`,
      rowMode: 'array',
    });
    const hash = (fill: (hasher: RowHasher) => void) => {
      const hasher = new RowHasher();
      hasher.begin(0, 0, 0);
      fill(hasher);
      hasher.end();
      return hasher.total();
    };
    const ours = values.map(([seed, i, f, w]) => [
      hash((hasher) => {
        hasher.int8(seed);
        hasher.int8(i);
      }),
      hash((hasher) => {
        hasher.int8(seed);
        hasher.float8(f);
      }),
      hash((hasher) => hasher.int4(w)),
    ]);
    expect(ours).toEqual(stored.rows);
  });

  test('sums exactly past the point where the partial sums are carried', () => {
    const hash = (value: number, rows: number) => {
      const hasher = new RowHasher();
      for (let row = 0; row < rows; row++) {
        hasher.begin(0, 0, 0);
        hasher.int8(value);
        hasher.end();
      }
      return hasher;
    };
    // Hashes whose low half is large and odd, of either sign: summed in float64 they are soon inexact.
    const large = Array.from({ length: 200 }, (_, value) => ({ value, one: BigInt(hash(value, 1).total()) })).filter(
      ({ one }) => BigInt.asUintN(32, one) > 0xe0000000n && (one & 1n) === 1n,
    );
    const rows = 3 * (1 << 20) + 12_345;
    for (const { value, one } of [large.find(({ one }) => one > 0n)!, large.find(({ one }) => one < 0n)!]) {
      const many = hash(value, rows);
      expect(many.total()).toBe((one * BigInt(rows)).toString());
      expect(many.total()).toBe(many.total());
    }
  });

  test('does not depend on the order of rows, and does on every column and on which column holds a value', () => {
    const hash = (rows: readonly (readonly [number, number, number])[]) => {
      const hasher = new RowHasher();
      for (const [id, price, quantity] of rows) {
        hasher.begin(0, 0, 0);
        hasher.int8(id);
        hasher.float8(price);
        hasher.float8(quantity);
        hasher.end();
      }
      return hasher.total();
    };
    expect(hash([[1, 2, 3], [4, 5, 6]])).toBe(hash([[4, 5, 6], [1, 2, 3]])); // biome-ignore format: two rows beside each other
    expect(hash([[1, 2, 3], [4, 5, 6]])).not.toBe(hash([[1, 5, 3], [4, 2, 6]])); // biome-ignore format: values swapped between rows
    expect(hash([[1, 2, 3]])).not.toBe(hash([[1, 3, 2]]));
    expect(hash([[1, 2, 3]])).not.toBe(hash([[2, 2, 3]]));
  });

  test('tells a null from every text it might be taken for', async () => {
    const hash = valueHashSql('v', 'text', '0', true);
    const { rows } = await client.query(
      `select count(distinct ${hash})::int4 as hashes, count(*)::int4 as values
       from (values (null), (''), ('null'), ('NULL'), ('0'), (' ')) as t(v)`,
    );
    expect(rows[0]).toEqual({ hashes: 6, values: 6 });
  });
});

/** Of every length around the blocks of the hash, ASCII and not; PostgreSQL has no NUL and no lone surrogates. */
const words = fc
  .oneof(
    fc.string({ unit: 'grapheme', maxLength: 40 }),
    fc.string({ maxLength: 13 }),
    fc.integer({ min: 0, max: 80 }).map((length) => 'x'.repeat(length)),
    fc.constantFrom('buy', 'sell', 'BTC-USDT', 'ZeroMinusTick', 'm-123456789'),
  )
  .filter((value) => !value.includes('\0') && value.isWellFormed());
const seeds = fc.oneof(fc.constant(0), fc.maxSafeInteger());

test('the row hash of a text of any length and seed equals hashtextextended', async () => {
  const values = fc.sample(fc.tuple(seeds, words), { numRuns: 5000, seed: 7 });
  const { rows } = await client.query({
    text: `select hashtextextended(t, s)::text from unnest($1::int8[], $2::text[]) with ordinality as u(s, t, o) order by o`,
    values: [values.map(([s]) => s), values.map(([, t]) => t)],
    rowMode: 'array',
  });
  const ours = values.map(([start, value]) => {
    const hasher = new RowHasher();
    // Somewhere in a larger buffer, as in a file.
    const bytes = Buffer.from(`\u00e9,${value},rest`);
    hasher.begin(start, 0, 0);
    hasher.text(bytes, 3, bytes.length - 5);
    hasher.end();
    return hasher.total();
  });
  expect(ours).toEqual(rows.map(([hash]) => hash));
  // The same read beforehand, as of the texts that many rows share.
  const known = values.map(([start, value]) => {
    const hasher = new RowHasher();
    hasher.begin(start, 0, 0);
    hasher.known(knownText(value));
    hasher.end();
    return hasher.total();
  });
  expect(known).toEqual(ours);
  expect(new Set(ours).size).toBeGreaterThan(3500);
});

/** Trades whose rows hold texts. */
const DATASETS_WITH_TEXTS = [...DATASETS.values()].filter(
  ({ trades, native }) => trades && native.columns.every(({ pg }) => pg !== 'bool'),
);

test.each(DATASETS_WITH_TEXTS)(
  'the row hash of whole rows with texts equals the sum over the table: $key',
  async ({ native, key }) => {
    const times = fc.integer({ min: 1.5e12, max: 1.8e12 });
    const number = fc.double({ noNaN: true, min: 0, max: 1e12 });
    const cells = native.columns.map(
      ({ name, pg }): fc.Arbitrary<number | string> =>
        name === 'timestamp' ? times : pg === 'int8' ? fc.nat({ max: 2 ** 31 - 1 }) : pg === 'float8' ? number : words,
    );
    const rows = fc.sample(fc.tuple(...cells), { numRuns: 1000, seed: 3 });
    await client.query(
      `create temp table ${key} (${native.columns.map(({ name, pg }) => `"${name}" ${pg}`).join(', ')})`,
    );
    await client.query(
      `insert into ${key} select * from unnest(${native.columns.map(({ pg }, index) => `$${index + 1}::${pg}[]`).join(', ')})`,
      native.columns.map((_, index) => rows.map((row) => String(row[index]))),
    );
    const hasher = new RowHasher();
    for (const row of rows) {
      native.columns.forEach(({ name, pg }, index) => {
        const value = row[index];
        if (name === 'timestamp') hasher.begin(Number(value), 0, 0);
        else if (pg === 'int8') hasher.int8(Number(value));
        else if (pg === 'float8') hasher.float8(Number(value));
        else hasher.text(Buffer.from(String(value)), 0, Buffer.byteLength(String(value)));
      });
      hasher.end();
    }
    const found = await client.query(`select sum(${rowHashSql(native)})::text as hash from ${key} t`);
    expect(hasher.total()).toBe(found.rows[0].hash);
  },
);

describe('exact totals', () => {
  test('of decimals of up to eight places equal the sum of what the database stored', async () => {
    // Up to 2^51 units of 1e-8: the bound below which the publishing side takes the digits as they are.
    const units = fc.oneof(
      fc.integer({ min: 1, max: 2 ** 51 - 1 }),
      fc.integer({ min: 2 ** 51 - 10_000, max: 2 ** 51 - 1 }),
      fc.integer({ min: 1, max: 10 ** 12 }),
      fc.nat(1000).map((n) => n + 1),
    );
    const values = fc.sample(units, { numRuns: 20_000, seed: 3 });
    const decimals = values.map((value) => {
      const digits = String(value).padStart(9, '0');
      return `${digits.slice(0, -8)}.${digits.slice(-8)}`;
    });
    const total = new ExactTotal();
    for (const value of values) total.add(value);
    const { rows } = await client.query(
      `select ${totalSql('v', 8)}::text as stored, sum((d::numeric * 1e8)::int8)::text as digits
       from (select d, d::float8 as v from unnest($1::text[]) as u(d)) t`,
      [decimals],
    );
    expect(rows[0].stored).toBe(rows[0].digits);
    expect(total.toString()).toBe(rows[0].stored);
  });

  test('of values that are not whole units equal the sum of what the database stored', async () => {
    const value = fc.oneof(
      fc.double({ noNaN: true, min: 0, max: 2e7 }),
      fc.double({ noNaN: true, min: 0, max: 1e-7 }),
      fc.integer({ min: 0, max: 10 ** 6 }).map((n) => (n + 0.5) / 1e8),
      fc.integer({ min: 0, max: 2 ** 22 }).map((n) => n / 2 ** 9),
    );
    const values = fc.sample(value, { numRuns: 20_000, seed: 4 });
    const total = new ExactTotal();
    for (const each of values) total.addFloat(each, 1e8);
    const { rows } = await client.query(
      `select ${totalSql('v', 8)}::text as stored from unnest($1::float8[]) as t(v)`,
      [values.map(text)],
    );
    expect(total.toString()).toBe(rows[0].stored);
  });

  test('of values by the trillion equal the exact sum of their decimals', async () => {
    const value = fc.oneof(
      fc.double({ noNaN: true, min: 0, max: 2 ** 53 }).filter((each) => each < 2 ** 53),
      fc.double({ noNaN: true, min: 2e7, max: 1e12 }),
      fc.double({ noNaN: true, min: 0, max: 1e-7 }),
      fc.integer({ min: 0, max: 2 ** 30 }).map((n) => n * 2 ** 12 + 0.5),
      fc.integer({ min: 0, max: 10 ** 12 }).map((n) => n / 10),
    );
    const values = fc.sample(value, { numRuns: 20_000, seed: 5 });
    const total = new ExactTotal();
    for (const each of values) total.addFloat(each, 1e8);
    const sum = (sql: string) => `select (${sql})::text as stored from unnest($1::float8[]) as t(v)`;
    const { rows } = await client.query(sum(totalSql('v', 8, Math.max(...values))), [values.map(text)]);
    expect(total.toString()).toBe(rows[0].stored);
    // The two forms agree on what both can sum.
    const small = values.filter((each) => each < 2e7).map(text);
    const [narrow, wide] = await Promise.all(
      [0, 1e12].map((most) => client.query(sum(totalSql('v', 8, most)), [small])),
    );
    expect(wide.rows).toEqual(narrow.rows);
  });

  test('take whole units and others in any order', () => {
    fc.assert(
      fc.property(
        fc.array(fc.oneof(fc.integer({ min: 0, max: 2 ** 51 }), fc.double({ noNaN: true, min: 0, max: 9e10 }))),
        (values) => {
          const total = new ExactTotal();
          let expected = 0n;
          for (const value of values) {
            if (Number.isInteger(value)) {
              total.add(value);
              expected += BigInt(value);
            } else {
              total.addFloat(value, 1e8);
              expected += unitsOf(value, 8);
            }
          }
          expect(total.toString()).toBe(expected.toString());
        },
      ),
    );
  });

  test("round like PostgreSQL's round(float8): halves to even", async () => {
    const value = fc.oneof(
      fc.double({ noNaN: true, min: -1e16, max: 1e16 }),
      fc.integer({ min: -(2 ** 51), max: 2 ** 51 }).map((n) => n + 0.5),
      fc.integer({ min: -20, max: 20 }).map((n) => n / 2),
      fc.double({ noNaN: true, min: -1, max: 1 }),
      fc.constantFrom(0.49999999999999994, -0.49999999999999994, 4503599627370495.5, 5e-324, 1e300, -1e300),
    );
    const values = fc.sample(value, { numRuns: 10_000, seed: 5 });
    const { rows } = await client.query({
      text: 'select round(v) from unnest($1::float8[]) with ordinality as t(v, o) order by o',
      values: [values.map(text)],
      rowMode: 'array',
    });
    // PostgreSQL keeps the sign of a zero; nothing that is summed can see it.
    expect(values.map((each) => roundHalfEven(each) + 0)).toEqual(rows.map(([rounded]) => Number(rounded) + 0));
  });
});

describe('event ids', () => {
  const day = fc.integer({ min: 0, max: 60_000 }).map((n) => new Date(n * 86_400_000).toISOString().slice(0, 10));
  const offset = fc.oneof(fc.bigInt({ min: 0n, max: 10n ** 18n - 1n }), fc.bigInt({ min: 0n, max: 1000n }));
  const dataset = fc
    .integer({ min: 1, max: 65_535 })
    .map((number): DatasetDefinition => ({ ...exchangeASpotTrades, number }));

  test('are UUIDs of version 8 and give back what they were packed from', () => {
    fc.assert(
      fc.property(dataset, day, offset, (of, partition, at) => {
        const id = eventId(of, partition, String(at));
        expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
        expect(unpackEventId(id)).toEqual({ datasetNumber: of.number, partition, offset: String(at) });
        expect(unpackEventId(id.toUpperCase())).toEqual(unpackEventId(id));
      }),
      { numRuns: 2000 },
    );
  });

  test('rise with day and offset within a dataset', () => {
    fc.assert(
      fc.property(dataset, fc.tuple(day, offset), fc.tuple(day, offset), (of, a, b) => {
        const order = (x: [string, bigint], y: [string, bigint]) =>
          x[0] === y[0] ? Number(x[1] > y[1]) - Number(x[1] < y[1]) : x[0] > y[0] ? 1 : -1;
        const [idA, idB] = [eventId(of, a[0], String(a[1])), eventId(of, b[0], String(b[1]))];
        expect(Number(idA > idB) - Number(idA < idB)).toBe(order(a, b));
      }),
      { numRuns: 2000 },
    );
  });

  const other = fc
    .tuple(
      fc.constantFrom(exchangeASpotTrades, exchangeBSpotTrades, exchangeCSpotTrades),
      fc.stringMatching(/^[A-Z0-9]{3,10}(-USD[TC])?$/),
    )
    .map(([base, symbol]) => instrumentDataset(base, parseInstrument(symbol)!, slotNumber(base, 1)));

  test('of other instruments are packed and unpacked alike, and none is of the default or of two of them', () => {
    fc.assert(
      fc.property(other, other, day, offset, (of, also, date, at) => {
        const id = eventId(of, dayKeyOf(of, date), String(at));
        expect(id).toMatch(/^02[0-9a-f]{6}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
        const unpacked = { datasetNumber: of.base!.number, tag: instrumentTag(of.instrument!), partition: date };
        expect(unpackEventId(id)).toEqual({ ...unpacked, offset: String(at) });
        expect(eventId(baseOf(of), date, String(at))).not.toBe(id);
        const isOne = also.instrument === of.instrument && also.base === of.base;
        expect(eventId(also, dayKeyOf(also, date), String(at)) === id).toBe(isOne);
      }),
      { numRuns: 2000 },
    );
  });

  test('are not made of anything else, and other ids are not read as ours', () => {
    for (const [partition, at] of [
      ['2024-02-30', '1'],
      ['2024-01', '1'],
      ['2024-01-01', ''],
      ['2024-01-01', '-1'],
      ['2024-01-01', '1.0'],
      ['2024-01-01', '1234567890123456789'],
    ]) {
      expect(() => eventId(exchangeASpotTrades, partition, at)).toThrow();
    }
    const ours = eventId(exchangeASpotTrades, '2024-01-01', '3344774379');
    const others = [
      '',
      'x',
      '00000000-0000-0000-0000-000000000000',
      'ffffffff-ffff-ffff-ffff-ffffffffffff',
      '2c1b1f0e-8f0a-4d6e-9d8e-0d6c3f5a7b11',
      ours.slice(1),
      `${ours}0`,
      `2${ours.slice(1)}`,
      ours.replace('-8', '-4'),
    ];
    for (const id of others) {
      let code: string | undefined = 'none';
      try {
        unpackEventId(id);
      } catch (error) {
        code = codeOf(error);
      }
      expect([id, code]).toEqual([id, 'EVENT_UNKNOWN']);
    }
  });

  test('made by the database are those that are packed here', async () => {
    const small = fc.oneof(fc.bigInt({ min: 0n, max: 10n ** 18n - 1n }), fc.bigInt({ min: 0n, max: 20n }));
    const events = fc.sample(fc.tuple(day, fc.nat(86_399_999), small), { numRuns: 2000, seed: 2 });
    const others = fc.sample(other, { numRuns: 3, seed: 2 });
    for (const dataset of [exchangeBSpotTrades, exchangeCSpotTrades, ...others] as DatasetDefinition[]) {
      const { startOffsetMs } = dataset.partition as typeof exchangeBSpotTrades.partition;
      const sql = eventIdSql(dataset, startOffsetMs, 't', 'i');
      // Days before 1970 have no ids of this form.
      const after = events
        .map(([date, ms, id]) => [dayKeyOf(dataset, date), ms, id] as const)
        .filter(([key]) => windowOf(dataset, key).fromMs >= 0);
      const { rows } = await client.query({
        text: `select ${sql}::text from unnest($1::int8[], $2::int8[]) with ordinality as u(t, i, o) order by o`,
        values: [after.map(([key, ms]) => windowOf(dataset, key).fromMs + ms), after.map(([, , id]) => String(id))],
        rowMode: 'array',
      });
      expect(rows.map(([id]) => id)).toEqual(after.map(([key, , id]) => eventId(dataset, key, String(id))));
    }
  });
});
