/** Parquet files read back by DuckDB: the same rows, whatever is in them, and what the footer says of them. */
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { FileSink } from '../../serving/exports/artifact/file-sink.ts';
import { formatOf } from '../../serving/exports/artifact/files.ts';
import { GROUP_ROWS, GROUP_TEXT_BYTES } from '../../serving/exports/artifact/parquet-file.ts';
import { type Column, cellOf } from '../../serving/render/cells.ts';
import { BufferPool } from '../../serving/render/response.ts';
import type { Dtype, PgType } from '../../shared/registry/index.ts';
import {
  expectedTexts,
  type GeneratedRows,
  generatedRows,
  HOSTILE_TEXTS,
  writeRow,
} from '../support/generated-rows.ts';
import { type DuckDb, openDuckDb, writeParquet } from '../support/read-parquet.ts';

let dir: string;
let duck: DuckDb;
let files = 0;

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'tidemark-parquet-'));
  duck = await openDuckDb();
});

afterAll(async () => {
  duck?.[Symbol.dispose]();
  await rm(dir, { recursive: true, force: true });
});

const written = (generated: GeneratedRows, facts: Record<string, string> = {}, isOfTable = false): Promise<string> =>
  writeParquet(join(dir, `${files++}.parquet`), generated, { facts, isOfTable });

const columnOf = (name: string, dtype: Dtype, pg: PgType, nullable = false): Column => ({
  field: { name, dtype, pg, nullable, doc: '', sql: '', columns: [] },
  cell: cellOf({ name, dtype, pg }),
});
const int8 = (value: bigint) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64BE(value);
  return { bytes, text: String(value) };
};
const text = (value: string) => ({ bytes: Buffer.from(value), text: value });

test('any rows of any columns come back, from files of tables as well', async () => {
  await fc.assert(
    fc.asyncProperty(generatedRows, fc.constantFrom(1, 1, 40), fc.boolean(), async (generated, times, isOfTable) => {
      // Repeated, so that dictionaries pay.
      const many = { ...generated, rows: Array.from({ length: times }, () => generated.rows).flat() };
      const path = await written(many, {}, isOfTable);
      expect(await duck.texts(`select * from '${path}'`)).toEqual(expectedTexts(many));
      const units = await duck.texts(
        `select distinct converted_type from parquet_schema('${path}') where converted_type like 'TIMESTAMP%'`,
      );
      expect(units.flat().filter((unit) => unit !== (isOfTable ? 'TIMESTAMP_MICROS' : 'TIMESTAMP_MILLIS'))).toEqual([]);
    }),
    { numRuns: 25 },
  );
});

test('integers at their limits, hostile texts and no rows at all', async () => {
  const extremes = [2n ** 63n - 1n, -(2n ** 63n), 0n, -1n, 2n ** 53n + 1n, -(2n ** 63n), 2n ** 63n - 1n];
  const shape = {
    columns: [
      columnOf('id', 'int64', 'int8'),
      columnOf('maybe', 'int64', 'int8', true),
      columnOf('t', 'string', 'text'),
    ],
    hiddenFirst: false,
  };
  const rows = HOSTILE_TEXTS.map((hostile, index) => {
    const id = extremes[index % extremes.length];
    return { cells: [int8(id), index % 3 === 0 ? null : int8(-id - 1n), text(hostile)], fromMs: 0, toMs: 0 };
  });
  const generated = { shape, rows, flushBefore: new Set<number>() };
  expect(await duck.texts(`select * from '${await written(generated)}'`)).toEqual(expectedTexts(generated));
  const empty = await written({ ...generated, rows: [] });
  expect(await duck.texts(`select * from '${empty}'`)).toEqual([]);
  expect(await duck.texts(`select column_name, column_type from (describe select * from '${empty}')`)).toEqual([
    ['id', 'BIGINT'],
    ['maybe', 'BIGINT'],
    ['t', 'VARCHAR'],
  ]);
});

test('groups end by rows and by the bytes of their texts; pages and chunks carry their bounds', async () => {
  const shape = {
    columns: [
      columnOf('id', 'int64', 'int8'),
      columnOf('maybe', 'float64', 'float8', true),
      columnOf('t', 'json', 'text'),
    ],
    hiddenFirst: false,
  };
  const small = GROUP_ROWS + 7;
  const big = 'x'.repeat(GROUP_TEXT_BYTES / 4 + 1);
  const rows = Array.from({ length: small + 10 }, (_, index) => {
    const double = Buffer.alloc(8);
    double.writeDoubleBE(index / 8);
    const cells = [int8(BigInt(index)), index % 5 === 0 ? null : { bytes: double, text: '' }];
    return { cells: [...cells, text(index < small ? `${index % 100}` : big)], fromMs: 0, toMs: 0 };
  });
  const path = await written({ shape, rows, flushBefore: new Set() }, { tidemark: '{"é":1}' });
  const groups = await duck.texts(
    `select row_group_num_rows from parquet_metadata('${path}') where path_in_schema = 'id' order by row_group_id`,
  );
  expect(groups.flat().map(Number)).toEqual([GROUP_ROWS, 7 + 4, 4, 2]);
  expect(
    await duck.texts(
      `select count(*), min(id), max(id), sum(id), count(maybe), sum(maybe), sum(length(t)) from '${path}'`,
    ),
  ).toEqual([
    [
      rows.length,
      0,
      rows.length - 1,
      (rows.length * (rows.length - 1)) / 2,
      rows.filter((_, index) => index % 5 !== 0).length,
      rows.reduce((sum, _, index) => sum + (index % 5 === 0 ? 0 : index / 8), 0),
      rows.reduce((sum, row) => sum + row.cells[2]!.bytes.length, 0),
    ].map(String),
  ]);
  const chunks = await duck.rows(
    `select row_group_id, path_in_schema as name, stats_min_value as min, stats_max_value as max, stats_null_count as nulls,
      compression from parquet_metadata('${path}') where row_group_id = 0 and path_in_schema <> 't' order by column_id`,
  );
  expect(chunks).toEqual([
    { row_group_id: 0n, name: 'id', min: '0', max: String(GROUP_ROWS - 1), nulls: 0n, compression: 'ZSTD' },
    {
      row_group_id: 0n,
      name: 'maybe',
      min: '0.125',
      max: String((GROUP_ROWS - 1) / 8),
      nulls: BigInt(GROUP_ROWS / 5),
      compression: 'ZSTD',
    },
  ]);
  const facts = await duck.texts(
    `select decode(key), decode(value) from parquet_kv_metadata('${path}') where decode(key) = 'tidemark'`,
  );
  expect(facts).toEqual([['tidemark', '{"é":1}']]);
});

/** As the format numbers them. */
const PAGE_V1 = 0;

test('required 64-bit integers are differences in pages of version 1, over several pages and groups', async () => {
  const columns = [columnOf('id', 'int64', 'int8'), columnOf('at', 'timestamp_utc', 'int8')];
  const count = GROUP_ROWS + 70_000;
  const at = (row: number) => (row * 7919) % 100_003;
  const rows = Array.from({ length: count }, (_, row) => ({
    cells: [int8(BigInt(row) - 5n), int8(BigInt(at(row)))],
    fromMs: 0,
    toMs: 0,
  }));
  const path = await written({ shape: { columns, hiddenFirst: false }, rows, flushBefore: new Set() });
  const bytes = await readFile(path);
  const chunks = await duck.rows(
    `select encodings, data_page_offset as at, num_values from parquet_metadata('${path}') order by row_group_id, column_id`,
  );
  expect(chunks.map(({ encodings, num_values }) => [encodings, Number(num_values)])).toEqual(
    [GROUP_ROWS, GROUP_ROWS, 70_000, 70_000].map((values) => ['DELTA_BINARY_PACKED', values]),
  );
  // A page's header begins with the id and type of its first field, then the page's type as a zigzag number.
  for (const { at: start } of chunks)
    expect([bytes[Number(start)], bytes[Number(start) + 1] >> 1]).toEqual([0x15, PAGE_V1]);
  const all = await duck.rows(`select id, epoch_ms("at") as ms from '${path}'`);
  expect(all.length).toBe(count);
  const wrong = all.findIndex(({ id, ms }, row) => Number(id) !== row - 5 || Number(ms) !== at(row));
  expect(wrong).toBe(-1);
  // The page index leads a reader with a filter to the right pages.
  expect(
    await duck.texts(`select count(*), min(id) from '${path}' where "at" = epoch_ms(${at(150_000)})::timestamptz`),
  ).toEqual([['2', String(150_000 - 100_003 - 5)]]);
});

test('integers whose differences spread over more than 28 bits are no differences', async () => {
  const spreads = [2 ** 28 - 1, 2 ** 28];
  const columns = spreads.map((_, index) => columnOf(`c${index}`, 'int64', 'int8'));
  const rows = [0, 1, 2].map((row) => ({
    cells: spreads.map((spread) => int8(row === 2 ? BigInt(spread) : 0n)),
    fromMs: 0,
    toMs: 0,
  }));
  const generated = { shape: { columns, hiddenFirst: false }, rows, flushBefore: new Set<number>() };
  const path = await written(generated);
  expect(await duck.texts(`select encodings from parquet_metadata('${path}') order by column_id`)).toEqual([
    ['DELTA_BINARY_PACKED'],
    ['PLAIN'],
  ]);
  expect(await duck.texts(`select * from '${path}'`)).toEqual(expectedTexts(generated));
});

test('a column is of the type its dtype says, required unless it is nullable', async () => {
  const columns = [
    columnOf('id', 'int64', 'int8'),
    columnOf('value', 'float64', 'float8', true),
    columnOf('flag', 'bool01', 'bool'),
    columnOf('at', 'timestamp_utc', 'timestamptz', true),
    columnOf('name', 'string', 'text'),
    columnOf('facts', 'json', 'text', true),
    columnOf('event_id', 'uuid', 'uuid'),
  ];
  const path = await written({ shape: { columns, hiddenFirst: false }, rows: [], flushBefore: new Set() });
  const schema = await duck.texts(
    `select name, type, repetition_type, converted_type, logical_type from parquet_schema('${path}') offset 1`,
  );
  const timestamp =
    'TimestampType(isAdjustedToUTC=1, unit=TimeUnit(MILLIS=MilliSeconds(), MICROS=<null>, NANOS=<null>))';
  expect(schema).toEqual([
    ['id', 'INT64', 'REQUIRED', null, null],
    ['value', 'DOUBLE', 'OPTIONAL', null, null],
    ['flag', 'INT32', 'REQUIRED', 'INT_8', null],
    ['at', 'INT64', 'OPTIONAL', 'TIMESTAMP_MILLIS', timestamp],
    ['name', 'BYTE_ARRAY', 'REQUIRED', 'UTF8', 'StringType()'],
    ['facts', 'BYTE_ARRAY', 'OPTIONAL', 'UTF8', 'StringType()'],
    ['event_id', 'BYTE_ARRAY', 'REQUIRED', 'UTF8', 'StringType()'],
  ]);
});

test('a null where the schema has none is a fault, not a value', async () => {
  const shape = { columns: [columnOf('id', 'int64', 'int8')], hiddenFirst: false };
  const rows = [{ cells: [null], fromMs: 0, toMs: 0 }];
  await expect(written({ shape, rows, flushBefore: new Set() })).rejects.toThrow('id is null');
});

test('row groups that the encoder has not taken hold the rows back', async () => {
  const columns = [columnOf('id', 'int64', 'int8')];
  const calls: string[] = [];
  const flow = { pause: () => void calls.push('pause'), resume: () => void calls.push('resume') };
  const idle = { pause() {}, resume() {} };
  const onFault = (error: unknown) => {
    throw error;
  };
  await using sink = await FileSink.create(join(dir, 'ahead.parquet'), {
    buffers: new BufferPool(),
    flow: idle,
    onFault,
  });
  const shape = { columns, hiddenFirst: false };
  await using writer = formatOf('parquet', 'zstd').open({
    sink,
    flow,
    shape,
    facts: {},
    onFault,
    buffers: new BufferPool(),
  });
  const row = { cells: [int8(1n)], fromMs: 0, toMs: 0 };
  // One group being encoded while the next is filled is as it should be.
  for (let count = 0; count <= 2 * GROUP_ROWS; count++) {
    if (calls.length > 0) throw new Error(`held back at row ${count}`);
    writeRow(writer, shape, row);
  }
  expect(calls).toEqual(['pause']);
  await writer.close();
  expect(calls).toEqual(['pause', 'resume']);
});
