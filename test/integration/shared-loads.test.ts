/** Partitions that share a transaction, with rows of kilobytes: their COPYs and their recount. */
import type { ClientBase } from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CopySeries } from '../../pipelines/rows/copy-in.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { migrate } from '../../shared/db/migrate.ts';
import { recountMany } from '../../shared/proof/recount.ts';
import { rowHashSql } from '../../shared/proof/row-hash.ts';
import { bitcoinBlockTransactions } from '../../shared/registry/datasets/bitcoin_block_transactions.ts';
import { createTestEnv, type TestEnv } from '../support/stack.ts';

let env: TestEnv;
let client: Client;
beforeAll(async () => {
  env = await createTestEnv();
  client = await connect({ url: env.databaseUrl, name: 'shared loads test' });
  await migrate(client);
});
afterAll(async () => {
  await client?.[Symbol.asyncDispose]();
  await env?.[Symbol.asyncDispose]();
});

const MIB = 1024 * 1024;

/** A binary row of one text. */
function rowOf(text: string): Buffer {
  const head = Buffer.alloc(6);
  head.writeInt16BE(1, 0);
  head.writeInt32BE(text.length, 2);
  return Buffer.concat([head, Buffer.from(text)]);
}

test('rows that take several COPYs are all stored, and a COPY that is given up leaves none of its own', async () => {
  await client.query('create temp table wide (text text)');
  const copy = new CopySeries(client as ClientBase, 'wide', ['text']);
  for (let row = 0; row < 30; row++) await copy.write(rowOf(String(row).padEnd(MIB, 'x')));
  expect(await copy.end()).toBe(30);
  const stored = await client.query('select rtrim(text, $1)::int as row from wide order by 1', ['x']);
  expect(stored.rows.map(({ row }) => row)).toEqual(Array.from({ length: 30 }, (_, row) => row));
  await client.query('begin');
  await copy.write(rowOf('given up'));
  await copy.abort();
  await client.query('rollback');
  // The connection is free, and the next rows open a COPY of their own.
  await copy.write(rowOf('next'));
  expect(await copy.end()).toBe(31);
  const { rows } = await client.query('select count(*)::int as rows, max(text) as last from wide');
  expect(rows).toEqual([{ rows: 31, last: 'next' }]);
});

// The recount sorted whole rows by offset: 75 MB of text, on disk, for 20 blocks.
test('a recount sorts offsets, not rows, and finds the same facts as a scan', async () => {
  const { table } = bitcoinBlockTransactions.native;
  const wide = `repeat(md5(h::text || i), 16)`;
  await client.query(
    `insert into ${table} select 1700000000000 + h * 1000, h, i, 2 * i, i, i = 0, md5(h::text), md5(i::text || h), ${wide}, ${wide},
       ${wide}, ${wide}, ${wide}, 'regtest', md5(i::text) from generate_series(1, 4) h, generate_series(0, 499) i`,
  );
  const refs = ['3', '1-2'].map((key) => ({ key, fromMs: 1700000000000, toMs: 1700000010000 }));
  await client.query('begin; set local work_mem = 256; set local temp_file_limit = 0');
  const found = await recountMany(client, bitcoinBlockTransactions, refs);
  await client.query('rollback');
  const scanned = await client.query(
    `select count(*)::int as rows, sum(${rowHashSql(bitcoinBlockTransactions.native)})::text as rows_hash,
       sum(input_value_sats)::text as total from ${table} t where block_height < 4 group by block_height < 3 order by 1`,
  );
  expect(found.map(({ rows, rows_hash, totals }) => ({ rows, rows_hash, total: totals.input_value_sats }))).toEqual(
    scanned.rows,
  );
  const offset = async (height: number, index: number) => {
    const { rows } = await client.query(`select md5($1::text) as txid`, [`${index}${height}`]);
    return `${height}:${index}:${rows[0].txid}`;
  };
  expect(
    found.map(({ first_offset, last_offset, first_ms, last_ms }) => [first_offset, last_offset, first_ms, last_ms]),
  ).toEqual([
    [await offset(3, 0), await offset(3, 499), 1700000003000, 1700000003000],
    [await offset(1, 0), await offset(2, 499), 1700000001000, 1700000002000],
  ]);
});
