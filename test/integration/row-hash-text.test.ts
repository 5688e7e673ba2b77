/** Texts in the row hash, held against PostgreSQL's own function and against stored rows of exchanges B and C. */
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, connect } from '../../shared/db/connect.ts';
import { knownText, RowHasher, rowHashSql } from '../../shared/proof/row-hash.ts';
import { exchangeBSpotTrades } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { exchangeCSpotTrades } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { eventId, eventIdSql } from '../../shared/registry/event-id.ts';
import { DATASETS } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/keys.ts';
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

/** Of every length around the blocks of the hash, ASCII and not; PostgreSQL has no NUL and no lone surrogates. */
const text = fc
  .oneof(
    fc.string({ unit: 'grapheme', maxLength: 40 }),
    fc.string({ maxLength: 13 }),
    fc.integer({ min: 0, max: 80 }).map((length) => 'x'.repeat(length)),
    fc.constantFrom('buy', 'sell', 'BTC-USDT', 'ZeroMinusTick', 'm-123456789'),
  )
  .filter((value) => !value.includes('\0') && value.isWellFormed());
const seed = fc.oneof(fc.constant(0), fc.maxSafeInteger());

test('of a text of any length and seed equals hashtextextended', async () => {
  const values = fc.sample(fc.tuple(seed, text), { numRuns: 5000, seed: 7 });
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

test.each(DATASETS_WITH_TEXTS)('of whole rows equals the sum over the table: $key', async ({ native, key }) => {
  const time = fc.integer({ min: 1.5e12, max: 1.8e12 });
  const number = fc.double({ noNaN: true, min: 0, max: 1e12 });
  const cells = native.columns.map(
    ({ name, pg }): fc.Arbitrary<number | string> =>
      name === 'timestamp' ? time : pg === 'int8' ? fc.nat({ max: 2 ** 31 - 1 }) : pg === 'float8' ? number : text,
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
});

test('event ids made by the database are those that are packed here', async () => {
  const day = fc.integer({ min: 0, max: 60_000 }).map((n) => new Date(n * 86_400_000).toISOString().slice(0, 10));
  const offset = fc.oneof(fc.bigInt({ min: 0n, max: 10n ** 18n - 1n }), fc.bigInt({ min: 0n, max: 20n }));
  const events = fc.sample(fc.tuple(day, fc.nat(86_399_999), offset), { numRuns: 2000, seed: 2 });
  for (const dataset of [exchangeBSpotTrades, exchangeCSpotTrades]) {
    const { startOffsetMs } = dataset.partition;
    const sql = eventIdSql(dataset.number, startOffsetMs, 't', 'i');
    // Days before 1970 have no ids of this form.
    const after = events.filter(([key]) => windowOf(dataset, key).fromMs >= 0);
    const { rows } = await client.query({
      text: `select ${sql}::text from unnest($1::int8[], $2::int8[]) with ordinality as u(t, i, o) order by o`,
      values: [after.map(([key, ms]) => windowOf(dataset, key).fromMs + ms), after.map(([, , id]) => String(id))],
      rowMode: 'array',
    });
    expect(rows.map(([id]) => id)).toEqual(after.map(([key, , id]) => eventId(dataset, key, String(id))));
  }
});
