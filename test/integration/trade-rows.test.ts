/** The decoder's facts of every vendor's trades, against PostgreSQL parsing the same text itself. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Client, connect } from '../../shared/db/connect.ts';
import { nativeRecountSql } from '../../shared/proof/recount.ts';
import { createTestEnv, type TestEnv } from '../support/stack.ts';
import {
  decimal,
  extremeDecimal,
  fileOf,
  LAYOUTS,
  OTHER_LAYOUTS,
  unusualDecimal,
  usualDecimal,
} from '../support/trade-layouts.ts';
import { decodeFile, endsOf } from '../support/trades.ts';

describe('PostgreSQL, parsing the text itself,', () => {
  let env: TestEnv;
  let client: Client;
  beforeAll(async () => {
    env = await createTestEnv();
    client = await connect({ url: env.databaseUrl, name: 'trade rows test' });
  });
  afterAll(async () => {
    await client[Symbol.asyncDispose]();
    await env[Symbol.asyncDispose]();
  });

  const kinds = [
    ['usual decimals', usualDecimal],
    ['unusual decimals', unusualDecimal],
    ['both', decimal],
    ['tiny prices and trillions', extremeDecimal],
  ] as const;
  test.each(
    [...LAYOUTS, ...OTHER_LAYOUTS].flatMap((layout) =>
      kinds.map(([name, decimals]) => [layout.name, name, layout, decimals] as const),
    ),
  )("comes to the decoder's facts: %s, %s", async (_key, _name, layout, decimals) => {
    const limits: fc.ArrayConstraints = { minLength: 3000, maxLength: 3000, size: 'max' };
    const [list] = fc.sample(layout.lines(decimals, limits), { numRuns: 1, seed: 11 });
    expect(list.length).toBe(3000);
    const items = decodeFile(
      layout,
      fileOf(
        layout,
        list.map(({ line }) => line),
      ),
      { pieces: [10_000], frame: 50_000 },
    );
    const [{ facts }] = endsOf(items);

    const { native } = layout.dataset;
    await client.query('begin');
    await client.query(
      `create temp table parsed (${native.columns.map(({ name, pg }) => `"${name}" ${pg}`).join(', ')}) on commit drop`,
    );
    await client.query(
      `insert into parsed select * from unnest(${native.columns.map(({ pg }, index) => `$${index + 1}::${pg}[]`).join(', ')})`,
      native.columns.map((_, index) => list.map(({ texts }) => texts[index])),
    );
    const greatest = native.totals.map(({ column }) => `max("${column}") as "${column}"`).join(', ');
    const most = await client.query(`select ${greatest} from parsed`);
    const ranges = Object.fromEntries(Object.entries(most.rows[0]).map(([name, value]) => [name, [0, Number(value)]]));
    const found = await client.query(nativeRecountSql(layout.dataset, 'true', 'parsed', ranges as never));
    await client.query('rollback');
    const [row] = found.rows;
    const totals = Object.fromEntries(native.totals.map(({ column }) => [column, row[`total_${column}`]]));
    const { rows, first_offset, last_offset, first_ms, last_ms, rows_hash } = row;
    expect({ rows, first_offset, last_offset, first_ms, last_ms, rows_hash, totals }).toEqual({
      rows: String(facts.rows),
      first_offset: facts.first_offset,
      last_offset: facts.last_offset,
      first_ms: String(facts.first_ms),
      last_ms: String(facts.last_ms),
      rows_hash: facts.rows_hash,
      totals: facts.totals,
    });
  });
});
