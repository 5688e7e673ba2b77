/** Rows in every representation, read back by parsers that are not ours: the same rows, whatever is in them. */
import { createHash } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DuckDBInstance } from '@duckdb/node-api';
import { RecordBatchReader, type Schema, tableFromIPC } from 'apache-arrow';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { FairScheduler, PgConnection } from '../../serving/db/pg-connection.ts';
import { ColumnTypeFault } from '../../serving/db/pg-messages.ts';
import { END_OF_STREAM } from '../../serving/render/arrow-messages.ts';
import { BATCH_ROWS, BATCH_TEXT_BYTES, FIRST_BATCH_ROWS } from '../../serving/render/arrow-rows.ts';
import { BUFFER_BYTES, CELL, type Column, cellOf, OutputBuffer, type RowShape } from '../../serving/render/cells.ts';
import { envelopeHeaders } from '../../serving/render/json-rows.ts';
import { REPRESENTATIONS, type Representation } from '../../serving/render/representations.ts';
import type { Dtype, PgType } from '../../shared/registry/index.ts';
import {
  bodyOf,
  collected,
  expectedTexts,
  type GeneratedRow,
  type GeneratedRows,
  generatedRows,
  HOSTILE_TEXTS,
  lastMessageAt,
  writeRow,
} from '../support/generated-rows.ts';
import { READERS } from '../support/read-back.ts';
import { runs } from '../support/seed.ts';
import { createTestEnv, execute, type TestEnv } from '../support/stack.ts';

const ARROW = REPRESENTATIONS.find(({ mediaType }) => mediaType.includes('arrow'))!;
const CSV = REPRESENTATIONS.find(({ mediaType }) => mediaType === 'text/csv')!;
const dtypesOf = ({ columns }: RowShape) => new Map(columns.map(({ field }) => [field.name, field.dtype]));
const readBack = ({ mediaType }: Representation, body: Buffer, shape: RowShape) =>
  READERS[mediaType](body, dtypesOf(shape));

const columnOf = (name: string, dtype: Dtype, pg: PgType, nullable = false): Column => ({
  field: { name, dtype, pg, nullable, doc: '', sql: '', columns: [] },
  cell: cellOf({ name, dtype, pg }),
});
const textRow = (text: string | null): GeneratedRow => ({
  cells: [text === null ? null : { bytes: Buffer.from(text), text }],
  fromMs: 0,
  toMs: 0,
});
const textRows = (texts: readonly (string | null)[]): GeneratedRows => ({
  shape: { columns: [columnOf('text', 'string', 'text', true)], hiddenFirst: false },
  rows: texts.map(textRow),
  flushBefore: new Set(),
});

describe.for(REPRESENTATIONS)('$mediaType', (representation) => {
  test('gives back any rows of any columns', () => {
    fc.assert(
      fc.property(generatedRows, (generated) => {
        const body = bodyOf(representation, generated);
        const { names, rows } = readBack(representation, body, generated.shape);
        expect(names).toEqual(generated.shape.columns.map(({ field }) => field.name));
        expect(rows).toEqual(expectedTexts(generated));
        // The clock that hands on what is complete leaves no trace.
        expect(body.equals(bodyOf(representation, { ...generated, flushBefore: new Set() }))).toBe(true);
      }),
      { numRuns: runs(1000) },
    );
  });

  test('gives back texts wider than a buffer, and of every length around its end', () => {
    const lengths = [260_000, 262_000, 262_080, 262_100, 262_144, 262_200, 600_000, 1_100_000];
    const wide = textRows(lengths.flatMap((length) => ['x', '"', '\u0001', 'é'].map((unit) => unit.repeat(length))));
    expect(readBack(representation, bodyOf(representation, wide), wide.shape).rows).toEqual(expectedTexts(wide));
  });
});

describe('CSV', () => {
  test('null is nothing, empty text is two quotes, lines end with LF', () => {
    const shape = {
      columns: [columnOf('a', 'string', 'text', true), columnOf('b', 'string', 'text')],
      hiddenFirst: false,
    };
    const row = (...texts: (string | null)[]) => ({
      ...textRow(null),
      cells: texts.flatMap((text) => textRow(text).cells),
    });
    const rows = [row(null, ''), row('', 'x'), row('a"b', 'c,d'), row('e\nf', ' g '), row('h\ri', '\\')];
    const body = bodyOf(CSV, { shape, rows, flushBefore: new Set() });
    expect(body.toString()).toBe('a,b\n,""\n"",x\n"a""b","c,d"\n"e\nf", g \n"h\ri",\\\n');
  });

  test('DuckDB reads the same', async () => {
    await using env = await createTestEnv();
    const file = join(env.dir, 'rows.csv');
    const rows = fc.sample(generatedRows, { numRuns: 60, seed: 5 });
    const instance = await DuckDBInstance.create();
    const connection = await instance.connect();
    try {
      for (const generated of rows.filter(({ shape }) => shape.columns.length > 1)) {
        await writeFile(file, bodyOf(CSV, generated));
        const found = await connection.runAndReadAll(
          `select * from read_csv('${file}', header = true, all_varchar = true, delim = ',', quote = '"', escape = '"',
             new_line = '\\n', nullstr = '', allow_quoted_nulls = false, auto_detect = false, parallel = false,
             columns = {${generated.shape.columns.map(({ field }) => `'${field.name}': 'VARCHAR'`).join(', ')}})`,
        );
        expect(found.getRows()).toEqual(expectedTexts(generated));
      }
    } finally {
      connection.closeSync();
      instance.closeSync();
    }
  });
});

describe('Arrow', () => {
  const typesOf = (schema: Schema) => schema.fields.map(({ name, type, nullable }) => [name, String(type), nullable]);

  test('has the types and nullability of the schema, and carries the envelope but its freshness', () => {
    const columns = [
      columnOf('id', 'int64', 'int8'),
      columnOf('value', 'float64', 'float8', true),
      columnOf('flag', 'bool01', 'bool'),
      columnOf('at', 'timestamp_utc', 'timestamptz', true),
      columnOf('name', 'string', 'text'),
      columnOf('facts', 'json', 'text', true),
      columnOf('event_id', 'uuid', 'uuid'),
    ];
    const envelope = { mode: 'native', warnings: [{ code: 'X' }], freshness: { lag_seconds: 1 }, view_version: 1 };
    const body = collected((out) => ARROW.open(out, { columns, hiddenFirst: false }, envelope).end());
    const { schema, numRows } = tableFromIPC(body);
    expect(numRows).toBe(0);
    expect(typesOf(schema)).toEqual([
      ['id', 'Int64', false],
      ['value', 'Float64', true],
      ['flag', 'Int8', false],
      ['at', 'Timestamp<MILLISECOND, UTC>', true],
      ['name', 'Utf8', false],
      ['facts', 'Utf8', true],
      ['event_id', 'Utf8', false],
    ]);
    expect(schema.fields.map(({ metadata }) => metadata.get('dtype'))).toEqual(columns.map(({ field }) => field.dtype));
    expect(Object.fromEntries(schema.metadata)).toEqual({
      mode: 'native',
      warnings: '[{"code":"X"}]',
      view_version: '1',
    });
  });

  test('comes in batches of bounded rows and bytes, and ends with its marker', () => {
    const columns = [columnOf('id', 'int64', 'int8', true), columnOf('text', 'string', 'text')];
    const shape = { columns, hiddenFirst: false };
    const count = 3 * BATCH_ROWS + 5;
    const text = (row: number) => (row < 2 * BATCH_ROWS ? 'x' : 'y'.repeat(1000));
    const body = collected((out) => {
      const writer = ARROW.open(out, shape, {});
      for (let row = 0; row < count; row++) {
        const id = Buffer.alloc(8);
        id.writeBigInt64BE(BigInt(row));
        const cell = row % 1000 === 7 ? null : { bytes: id, text: '' };
        writeRow(writer, shape, { cells: [cell, { bytes: Buffer.from(text(row)), text: '' }], fromMs: 0, toMs: 0 });
      }
      writer.end();
    });
    expect(body.subarray(-8).toString('hex')).toBe(END_OF_STREAM.toString('hex'));
    let rows = 0;
    const sizes: number[] = [];
    for (const batch of RecordBatchReader.from(body)) {
      sizes.push(batch.numRows);
      const ids = batch.getChild('id')!;
      for (let row = 0; row < batch.numRows; row++, rows++) {
        if (ids.get(row) !== (rows % 1000 === 7 ? null : BigInt(rows))) expect.fail(`row ${rows} is ${ids.get(row)}`);
      }
      expect(ids.nullCount).toBe(Array.from(ids).filter((id) => id === null).length);
      const bytes = batch.getChild('text')!.data[0].values.length;
      expect(bytes).toBeLessThan(BATCH_TEXT_BYTES + 1001);
    }
    expect(rows).toBe(count);
    expect(sizes.slice(0, 7)).toEqual([256, 512, 1024, 2048, 4096, 8192, BATCH_ROWS]);
    expect(sizes[0]).toBe(FIRST_BATCH_ROWS);
    expect(Math.max(...sizes.slice(7))).toBeLessThan(BATCH_ROWS / 10);
  });

  test('the same rows are the same bytes, whatever batch was in the memory before', () => {
    const shape = {
      columns: [
        columnOf('n', 'int64', 'int8', true),
        columnOf('b', 'bool01', 'bool', true),
        columnOf('t', 'string', 'text', true),
      ],
      hiddenFirst: false,
    };
    const cell = (bytes: number[]) => ({ bytes: Buffer.from(bytes), text: '' });
    const full = { cells: [cell([1, 2, 3, 4, 5, 6, 7, 8]), cell([1]), cell([65, 66])], fromMs: 0, toMs: 0 };
    const empty = { cells: [null, null, null], fromMs: 0, toMs: 0 };
    const bodyWith = (rows: readonly GeneratedRow[]) => bodyOf(ARROW, { shape, rows, flushBefore: new Set() });
    // All batches of growing size, and one of those whose memory is used again.
    const before = 2 * BATCH_ROWS - FIRST_BATCH_ROWS;
    const lastAfter = (rowAt: (row: number) => GeneratedRow) => {
      const rows = Array.from({ length: before }, (_, row) => rowAt(row));
      const body = bodyWith([...rows, empty, full, empty]);
      return body.subarray(lastMessageAt(bodyWith(rows)), lastMessageAt(body)).toString('hex');
    };
    const afterFull = lastAfter(() => full);
    expect(lastAfter(() => empty)).toBe(afterFull);
    expect(lastAfter((row) => (row % 3 === 0 ? empty : full))).toBe(afterFull);
    // Bits past the last row are zero.
    const [batch] = RecordBatchReader.from(
      bodyOf(ARROW, { shape, rows: [empty, full, empty], flushBefore: new Set() }),
    );
    expect(batch.getChild('n')!.data[0].nullBitmap[0]).toBe(0b010);
  });

  test('a null where none is declared is a fault, not a value', () => {
    const shape = { columns: [columnOf('text', 'string', 'text')], hiddenFirst: false };
    const write = () => bodyOf(ARROW, { shape, rows: [textRow('a'), textRow(null)], flushBefore: new Set() });
    expect(write).toThrow(ColumnTypeFault);
  });
});

describe('validity told by the next row', () => {
  test.for(REPRESENTATIONS)('$mediaType: nothing of a row is handed on while its end is open', (representation) => {
    const columns = [
      columnOf('text', 'string', 'text'),
      { ...columnOf('until', 'timestamp_utc', 'timestamptz'), cell: CELL.validTo },
    ];
    const shape = { columns, hiddenFirst: true };
    let handedOn = 0;
    const body = collected((out) => {
      const writer = representation.open(out, shape, { mode: 'native' });
      writer.flush();
      const before = out.flushed;
      writeRow(writer, shape, { ...textRow('a'), fromMs: 0 });
      writer.flush();
      handedOn = out.flushed - before;
      writer.resolve(1000);
      writer.flush();
      writeRow(writer, shape, { ...textRow('b'), fromMs: 1000 });
      writer.resolve(2000);
      writer.end();
    });
    expect(handedOn).toBe(0);
    expect(readBack(representation, body, shape).rows).toEqual([
      ['a', '1970-01-01T00:00:01.000Z'],
      ['b', '1970-01-01T00:00:02.000Z'],
    ]);
  });
});

describe('as PostgreSQL sends them', () => {
  let env: TestEnv;
  beforeAll(async () => {
    env = await createTestEnv();
  });
  afterAll(() => env[Symbol.asyncDispose]());

  test('hostile rows of every type are the same rows in each representation', async () => {
    const list = HOSTILE_TEXTS.map((text) => `'${text.replaceAll("'", "''")}'`).join(', ');
    await execute(
      env.databaseUrl,
      `create table hostile as select n, -n * 4503599627370497 / 7 * 7 - n as big, n::int4 as middle, n::int2 as small,
         case when n % 4 = 0 then null else n / 7.0::float8 end as ratio, n % 3 = 0 as flag,
         timestamptz '1969-12-31 23:59:59.9995Z' + n * interval '7 hours 1.0005 s' as at, n * 86399999 - 5 as ms,
         case when n % 5 = 0 then null else (array[${list}])[1 + n % ${HOSTILE_TEXTS.length}] end as words,
         jsonb_build_object('k', (array[${list}])[1 + n % ${HOSTILE_TEXTS.length}])::text as facts,
         md5(n::text)::uuid as id from generate_series(1::int8, 2000) n`,
    );
    const columns = [
      columnOf('big', 'int64', 'int8'),
      columnOf('middle', 'int64', 'int4'),
      columnOf('small', 'int64', 'int2'),
      columnOf('ratio', 'float64', 'float8', true),
      columnOf('flag', 'bool01', 'bool'),
      columnOf('at', 'timestamp_utc', 'timestamptz'),
      columnOf('ms', 'timestamp_utc', 'int8'),
      columnOf('words', 'string', 'text', true),
      columnOf('facts', 'json', 'text'),
      columnOf('id', 'uuid', 'uuid'),
    ];
    const shape = { columns, hiddenFirst: false };
    const names = columns.map(({ field }) => field.name).join(', ');
    const wire = await PgConnection.open({
      url: env.databaseUrl,
      name: 'test',
      connectTimeoutMs: 5000,
      scheduler: new FairScheduler(),
    });
    const found = new Map<string, unknown>();
    for (const representation of REPRESENTATIONS) {
      const parts: Buffer[] = [];
      const out = new OutputBuffer({
        write: (part) => parts.push(Buffer.from(part)),
        buffer: () => Buffer.alloc(BUFFER_BYTES),
        digest: () => createHash('sha256').update(Buffer.concat(parts)),
      });
      const writer = representation.open(out, shape, { warnings: [] });
      await wire.run([
        {
          statement: { text: `select ${names} from hostile order by n` },
          oids: [20, 23, 21, 701, 16, 1184, 20, 25, 25, 2950],
          sink: writer,
        },
      ]);
      writer.end();
      out.flush();
      found.set(representation.mediaType, readBack(representation, Buffer.concat(parts), shape).rows);
    }
    wire.end();
    // What PostgreSQL itself makes of them, as text.
    const said = await execute(
      env.databaseUrl,
      `select big::text, middle::text, small::text, null as ratio, flag::int::text as flag,
         to_char(date_trunc('milliseconds', at) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as at,
         to_char(to_timestamp(ms / 1000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as ms, words, facts, id::text,
         ratio as number from hostile order by n`,
    );
    const expected = said.rows.map(({ number, ...row }) =>
      Object.values({ ...row, ratio: number === null ? null : JSON.stringify(number) }),
    );
    for (const [mediaType, rows] of found) expect(rows, mediaType).toEqual(expected);
  });
});

describe('the envelope in headers', () => {
  test('texts are plain, all else is JSON, and everything is ASCII', () => {
    const headers = envelopeHeaders({
      mode: 'native',
      view_version: 1,
      freshness: null,
      rights_provisional: false,
      warnings: [{ code: 'A', message: 'it’s\n🦊', details: { n: 1 } }],
    });
    expect(headers).toEqual({
      'X-Svc-Mode': 'native',
      'X-Svc-View-Version': '1',
      'X-Svc-Freshness': 'null',
      'X-Svc-Rights-Provisional': 'false',
      'X-Svc-Warnings': '[{"code":"A","message":"it\\u2019s\\n\\ud83e\\udd8a","details":{"n":1}}]',
    });
    expect(JSON.parse(headers['X-Svc-Warnings'])[0].message).toBe('it’s\n🦊');
  });

  test('warnings too long for a header leave their details out, and say so', () => {
    const details = { gaps: Array.from({ length: 100 }, () => ({ start: '2024-01-01T00:00:00.000Z', end: 'x' })) };
    const headers = envelopeHeaders({ warnings: [{ code: 'A', message: 'm', details }] });
    expect(headers).toEqual({ 'X-Svc-Warnings': '[{"code":"A","message":"m","details":{"omitted":true}}]' });
    // The seed of a sample went with the gaps.
    const sample = { code: 'B', message: 'm', details: { n_random: 5, random_seed: 7 } };
    expect(
      JSON.parse(envelopeHeaders({ warnings: [{ code: 'A', message: 'm', details }, sample] })['X-Svc-Warnings']),
    ).toEqual([{ code: 'A', message: 'm', details: { omitted: true } }, sample]);
    const many = Array.from({ length: 100 }, () => ({ code: 'CODE', message: 'm'.repeat(100), details }));
    expect(envelopeHeaders({ warnings: many })['X-Svc-Warnings'].length).toBeLessThan(4096);
  });
});
