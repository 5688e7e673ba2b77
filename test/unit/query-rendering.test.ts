/**
 * The byte writers against JSON.stringify and Date, and the parsers of requests against JSON.parse.
 *
 * Faults made on purpose and caught here or in integration/representations: the output buffer never flushed, a float or
 * a time outside 0000 to 9999 written wrongly, CSV text unquoted, a JSON row cut.
 */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { POSTGRES_EPOCH_MS } from '../../serving/db/pg-messages.ts';
import { BUFFER_BYTES, CELL, OutputBuffer } from '../../serving/render/cells.ts';
import { JsonRows, jsonList } from '../../serving/render/json-rows.ts';
import {
  maxStringBytes,
  TimestampWriter,
  writeFloat,
  writeInt64,
  writeString,
  writeUuid,
} from '../../serving/render/text.ts';
import { ceilMs, parseDay, parseInstant } from '../../shared/dates.ts';
import type { Field } from '../../shared/registry/index.ts';
import { JsonFault, parseJson, writeJson } from '../../shared/strict-json.ts';
import { anyText } from '../support/generated-rows.ts';
import { runs } from '../support/seed.ts';

const RUNS = 20_000;
const bytes = Buffer.alloc(64 * 1024);
const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
const written = (end: number) => bytes.toString('utf8', 0, end);

const anyBits = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }).map((bits) => {
  const cell = new DataView(new ArrayBuffer(8));
  cell.setBigUint64(0, bits);
  return cell.getFloat64(0);
});

describe('numbers', () => {
  test('a float is written as JSON.stringify writes it', () => {
    const decimals = fc
      .tuple(fc.bigInt({ min: -(10n ** 17n), max: 10n ** 17n }), fc.integer({ min: 0, max: 20 }))
      .map(([mantissa, scale]) => Number(mantissa) / 10 ** scale);
    const amounts = fc
      .tuple(fc.bigInt({ min: 0n, max: 2n * 10n ** 15n }), fc.integer({ min: 0, max: 5 }))
      .map(([mantissa, scale]) => Number(mantissa) / 10 ** scale);
    const values = fc.oneof(anyBits, fc.double(), decimals, amounts, fc.integer().map(Number));
    fc.assert(
      fc.property(values, (value) => {
        expect(written(writeFloat(view, 0, value))).toBe(JSON.stringify(value));
      }),
      { numRuns: runs(RUNS) },
    );
    const small = [0, -0, 1e-6, 9.99999e-7, 1e7, 9_999_999.99999999, 2 ** 53, 1e21, 5e-324, 0.1 + 0.2];
    const amountsAtBounds = [
      10_000_000.0001, -10_000_000.5, 99_999_999_999.9999, 1e11, 100_000_000_000.5, 12_345_678_901.02,
    ];
    for (const value of [...small, ...amountsAtBounds, Number.NaN, Number.POSITIVE_INFINITY]) {
      expect(written(writeFloat(view, 0, value))).toBe(JSON.stringify(value));
    }
  });

  test('an int8 is written exactly, past 2^53 too', () => {
    const near = [
      0n,
      1n,
      -1n,
      2n ** 31n,
      2n ** 53n,
      2n ** 53n + 1n,
      2n ** 63n - 1n,
      -(2n ** 63n),
      10n ** 16n,
      10n ** 8n,
    ];
    const values = fc.oneof(
      fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
      fc.maxSafeInteger().map(BigInt),
      fc.constantFrom(...near),
    );
    fc.assert(
      fc.property(values, (value) => {
        const cell = new DataView(new ArrayBuffer(8));
        cell.setBigInt64(0, value);
        expect(written(writeInt64(view, 0, cell.getInt32(0), cell.getUint32(4)))).toBe(String(value));
      }),
      { numRuns: runs(RUNS) },
    );
  });
});

describe('timestamps', () => {
  test('a timestamp is written as Date writes it, in any order of time', () => {
    const writer = new TimestampWriter();
    const first = Date.parse('0000-01-01T00:00:00Z');
    const last = Date.parse('9999-12-31T23:59:59.999Z');
    fc.assert(
      fc.property(fc.integer({ min: first, max: last }), fc.integer({ min: 0, max: 1500 }), (ms, step) => {
        for (const value of [ms, Math.min(last, ms + step), ms]) {
          expect(written(writer.write(view, 0, value))).toBe(new Date(value).toISOString());
        }
      }),
      { numRuns: runs(RUNS) },
    );
  });

  test.each([-62_167_219_200_001, 253_402_300_800_000, 8.64e15, -8.64e15])(
    'a timestamp outside the years 0000 to 9999 (%d) is written with the sign and six digits of the year',
    (ms) => {
      const writer = new TimestampWriter();
      for (const value of [ms, 0, ms]) {
        expect(written(writer.write(view, 0, value))).toBe(new Date(value).toISOString());
      }
    },
  );
});

describe('text', () => {
  test('a string is escaped as JSON.stringify escapes it, and never takes more room than was reserved', () => {
    fc.assert(
      fc.property(anyText(200), (text) => {
        const from = Buffer.from(text);
        const end = writeString(bytes, 0, from, 0, from.length);
        expect(end).toBeLessThanOrEqual(maxStringBytes(from.length));
        expect(written(end)).toBe(JSON.stringify(text));
      }),
      { numRuns: runs(RUNS) },
    );
    const control = String.fromCharCode(...Array.from({ length: 128 }, (_, code) => code));
    expect(written(writeString(bytes, 0, Buffer.from(control), 0, 128))).toBe(JSON.stringify(control));
  });

  test('a uuid has its hyphens', () => {
    fc.assert(
      fc.property(fc.uuid(), (uuid) => {
        const from = Buffer.from(uuid.replaceAll('-', ''), 'hex');
        expect(written(writeUuid(bytes, 0, from, 0))).toBe(uuid);
      }),
    );
  });
});

describe('rows', () => {
  type Value = number | bigint | string | boolean | null;
  const kinds = {
    int8: { cell: CELL.int8, of: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }) },
    float8: { cell: CELL.float8, of: fc.double({ noNaN: true, noDefaultInfinity: true }) },
    bool: { cell: CELL.bool, of: fc.boolean() },
    timestamptz: { cell: CELL.timestamptz, of: fc.integer({ min: 0, max: 4e12 }) },
    text: { cell: CELL.text, of: anyText(300) },
  } as const;
  type Kind = keyof typeof kinds;

  /** As PostgreSQL sends it. */
  function encode(kind: Kind, value: Value): Buffer {
    if (value === null) return Buffer.from([255, 255, 255, 255]);
    const cell = Buffer.alloc(kind === 'bool' ? 1 : 8);
    if (kind === 'int8') cell.writeBigInt64BE(value as bigint);
    else if (kind === 'float8') cell.writeDoubleBE(value as number);
    else if (kind === 'bool') cell[0] = value ? 1 : 0;
    else if (kind === 'timestamptz') cell.writeBigInt64BE(BigInt((value as number) - POSTGRES_EPOCH_MS) * 1000n + 999n);
    const body = kind === 'text' ? Buffer.from(value as string) : cell;
    const length = Buffer.alloc(4);
    length.writeInt32BE(body.length);
    return Buffer.concat([length, body]);
  }

  /** As the answer must show it. */
  function shown(kind: Kind, value: Value): string {
    if (kind === 'int8' && value !== null) return String(value);
    if (kind === 'bool' && value !== null) return value ? '1' : '0';
    if (kind === 'timestamptz' && value !== null) return JSON.stringify(new Date(value as number).toISOString());
    return JSON.stringify(value);
  }

  function render(columns: readonly Kind[], rows: readonly (readonly Value[])[]): { text: string; chunks: number } {
    const parts: Buffer[] = [];
    const out = new OutputBuffer({
      write: (part) => parts.push(Buffer.from(part)),
      buffer: () => Buffer.alloc(BUFFER_BYTES, 0x21),
    });
    const writer = new JsonRows(
      out,
      {
        columns: columns.map((kind, index) => ({ field: { name: `c${index}` } as Field, cell: kinds[kind].cell })),
        hiddenFirst: false,
      },
      jsonList(),
    );
    for (const row of rows) {
      const cells = Buffer.concat(row.map((value, index) => encode(columns[index], value)));
      writer.row(new DataView(cells.buffer, cells.byteOffset, cells.length), cells, 0, cells.length);
    }
    out.flush();
    return { text: Buffer.concat(parts).toString(), chunks: parts.length };
  }

  const expectedText = (columns: readonly Kind[], rows: readonly (readonly Value[])[]) =>
    `[${rows.map((row) => `{${row.map((value, index) => `"c${index}":${shown(columns[index], value)}`)}}`)}`;

  test('of any columns, with nulls, are what JSON.stringify makes of them', () => {
    const columns = fc.array(fc.constantFrom(...(Object.keys(kinds) as Kind[])), { minLength: 1, maxLength: 9 });
    const cases = columns.chain((names) =>
      fc.tuple(
        fc.constant(names),
        fc.array(fc.tuple(...names.map((kind) => fc.option(kinds[kind].of as fc.Arbitrary<Value>, { freq: 5 }))), {
          minLength: 1,
          maxLength: 20,
        }),
      ),
    );
    fc.assert(
      fc.property(cases, ([names, rows]) => {
        expect(render(names, rows).text).toBe(expectedText(names, rows));
      }),
      { numRuns: runs(2000) },
    );
  });

  test('wider than a buffer, and of every length around its end', () => {
    const wide = ['x', '"', '\u0001', 'é'].map((unit) => [unit.repeat(BUFFER_BYTES)]);
    expect(render(['text'], wide).text).toBe(expectedText(['text'], wide));
    for (let length = BUFFER_BYTES / 6 - 60; length < BUFFER_BYTES / 6; length++) {
      const rows = [['\u0001'.repeat(length)], ['after']];
      expect(render(['text'], rows).text).toBe(expectedText(['text'], rows));
    }
    const many = Array.from({ length: 100_000 }, (_, i) => [BigInt(i), i / 7]);
    const { text, chunks } = render(['int8', 'float8'], many);
    expect(text).toBe(expectedText(['int8', 'float8'], many));
    expect(text.length / chunks).toBeGreaterThan(64 * 1024);
  });
});

describe('the JSON parser', () => {
  test('reads what JSON.stringify writes', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 6 }), fc.constantFrom(undefined, 1, '\t'), (value, indent) => {
        const text = JSON.stringify(value, null, indent);
        expect(JSON.stringify(parseJson(text), withBigInts)).toBe(JSON.stringify(JSON.parse(text)));
      }),
      { numRuns: runs(2000) },
    );
  });

  test('refuses exactly what JSON.parse refuses, and repeated keys', () => {
    const soup = fc.stringMatching(/^[[\]{}",:0-9eE+\-.\\utrfalsn \n]{0,12}$/);
    fc.assert(
      fc.property(soup, (text) => {
        const ours = outcome(() => parseJson(text));
        const theirs = outcome(() => JSON.parse(text));
        if (ours instanceof JsonFault && /second time/.test(ours.message)) expect(theirs).not.toBeInstanceOf(Error);
        else expect(ours instanceof Error).toBe(theirs instanceof Error);
      }),
      { numRuns: runs(50_000) },
    );
  });

  test('says where the fault is', () => {
    const offset = (text: string) => (outcome(() => parseJson(text)) as JsonFault).offset;
    expect(offset('{"a": 1,}')).toBe(8);
    expect(offset('{"a": 01}')).toBe(7);
    expect(offset('[1, 2')).toBe(5);
    expect(offset('{"a":1,"a":2}')).toBe(7);
    expect(offset('"a\nb"')).toBe(2);
    expect(offset('')).toBe(0);
    expect(offset('[1] x')).toBe(4);
    expect(outcome(() => parseJson('['.repeat(100_000)))).toBeInstanceOf(JsonFault);
  });

  test('keeps integers exact and takes 1.0 for 1', () => {
    expect(parseJson('9007199254740993')).toBe(9007199254740993n);
    expect(parseJson('-9223372036854775808')).toBe(-(2n ** 63n));
    expect(parseJson('1.0')).toBe(1);
    expect(parseJson('1e2')).toBe(100);
  });

  test('reads what writeJson writes, with every digit', () => {
    const { tree: value } = fc.letrec((tie) => ({
      tree: fc.oneof(
        { depthSize: 'small' },
        fc.jsonValue({ maxDepth: 2 }).filter((one) => !Object.is(one, -0)),
        fc.bigInt({ min: 2n ** 53n, max: 2n ** 70n }),
        fc.array(tie('tree'), { maxLength: 3 }),
      ),
    }));
    const plain = (text: string) => JSON.stringify(parseJson(text), withBigInts);
    fc.assert(
      fc.property(value, (one) => {
        expect(plain(writeJson(one))).toBe(JSON.stringify(one, withBigInts));
      }),
      { numRuns: runs(1000) },
    );
    expect(writeJson({ value: [2n ** 53n + 1n, 1.5] })).toBe('{"value":[9007199254740993,1.5]}');
  });

  test('a key called __proto__ is a key', () => {
    const value = parseJson('{"__proto__": {"polluted": 1}, "constructor": 2}') as object;
    expect(Object.keys(value)).toEqual(['__proto__', 'constructor']);
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });
});

describe('instants', () => {
  test('any instant with any offset means the same moment', () => {
    const offsets = fc.integer({ min: -23 * 60 - 59, max: 23 * 60 + 59 });
    const times = fc.integer({ min: Date.parse('0001-01-02T00:00:00Z'), max: Date.parse('9999-12-30T00:00:00Z') });
    fc.assert(
      fc.property(times, offsets, (ms, minutes) => {
        const two = (n: number) => String(Math.floor(n)).padStart(2, '0');
        const size = Math.abs(minutes);
        const offset = `${minutes < 0 ? '-' : '+'}${two(size / 60)}:${two(size % 60)}`;
        const local = new Date(ms + minutes * 60_000).toISOString().slice(0, -1);
        expect(parseInstant(local + offset)).toEqual({ ms, exact: true });
      }),
    );
  });

  test('finer than a millisecond is rounded down and remembered', () => {
    expect(parseInstant('2024-01-01T00:00:00.0005Z')).toEqual({ ms: 1704067200000, exact: false });
    expect(ceilMs(parseInstant('2024-01-01T00:00:00.0005Z')!)).toBe(1704067200001);
    expect(ceilMs(parseInstant('2024-01-01T00:00:00.001000Z')!)).toBe(1704067200001);
    expect(parseInstant('1969-12-31T23:59:59.9999Z')).toEqual({ ms: -1, exact: false });
  });

  test('years 0000 and 10000 are no times of the contract, however they are written', () => {
    for (const text of ['0000-12-31T23:59:59.999Z', '0000-01-01T00:00:00Z', '0001-01-01T00:00:00+00:01']) {
      expect(parseInstant(text), text).toBeUndefined();
    }
    expect(parseInstant('9999-12-31T23:59:59-00:01')).toBeUndefined();
    expect(parseInstant('0001-01-01T00:00:00Z')).toEqual({ ms: Date.parse('0001-01-01T00:00:00Z'), exact: true });
    expect(parseInstant('9999-12-31T23:59:59.999999Z')).toMatchObject({ exact: false });
    expect(parseDay('0000-12-31')).toBeUndefined();
    expect(parseDay('0001-01-01')).toBe(Date.parse('0001-01-01T00:00:00Z'));
  });

  test.each([
    '2024-01-01',
    '2024-01-01T00:00:00',
    '2024-02-30T00:00:00Z',
    '2023-02-29T00:00:00Z',
    '2024-13-01T00:00:00Z',
    '2024-01-01T24:00:00Z',
    '2024-01-01T23:60:00Z',
    '2024-01-01T23:59:60Z',
    '2024-01-01T00:00:00+24:00',
    '2024-01-01T00:00:00.Z',
    '9999-12-31T23:00:00-02:00',
    '0000-01-01T00:00:00+01:00',
    ' 2024-01-01T00:00:00Z',
    '2024-01-01T00:00:00Z\n',
    '20240101T000000Z',
    '1704067200000',
    '',
  ])('%j is none', (text) => expect(parseInstant(text)).toBeUndefined());
});

describe('the output buffer', () => {
  const LENGTH = 256;
  const USABLE = LENGTH - 64;

  /** Bytes that give out at most `limit` parts: a copy that makes no progress fails instead of running for ever. */
  class LimitedBytes extends Uint8Array {
    limit = 20;
    override subarray(from?: number, to?: number): Uint8Array<ArrayBuffer> {
      if (this.limit-- === 0) throw new Error('the copy makes no progress');
      return new Uint8Array(this.buffer as ArrayBuffer, this.byteOffset, this.length).subarray(from, to);
    }
  }

  test.each([0, 1, USABLE - 1, USABLE])('copies on where %i bytes of it are filled', (filled) => {
    const parts: Buffer[] = [];
    const out = new OutputBuffer({
      write: (part) => parts.push(Buffer.from(part)),
      buffer: () => Buffer.alloc(LENGTH),
    });
    const first = new Uint8Array(filled).fill(1);
    const second = new LimitedBytes(3 * LENGTH).map((_, index) => index % 251);
    out.copy(first);
    out.copy(second);
    out.flush();
    expect(Buffer.concat(parts)).toEqual(Buffer.concat([first, second]));
    expect(out.flushed).toBe(filled + second.length);
    expect(Math.max(...parts.map((part) => part.length))).toBeLessThanOrEqual(USABLE);
  });
});
const withBigInts = (_: string, value: unknown) => (typeof value === 'bigint' ? Number(value) : value);

function outcome(run: () => unknown): unknown {
  try {
    return run();
  } catch (error) {
    return error;
  }
}
