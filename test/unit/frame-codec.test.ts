/**
 * Faults made on purpose and caught here or in integration/kinds: a frame or record past its limits, an empty offset, a
 * swapped count.
 */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { RecordFrames } from '../../pipelines/sources/record-frames.ts';
import { LAST_MS } from '../../shared/dates.ts';
import { codeOf } from '../../shared/errors.ts';
import {
  decodeBody,
  decodeHeader,
  decodeMessage,
  encodeMessage,
  type FrameHeader,
  type Header,
  MAX_HEADER_BYTES,
  MAX_MESSAGE_BYTES,
  MAX_RAW_BYTES,
  type ManifestHeader,
  sha256Hex,
} from '../../shared/frame/codec.ts';
import {
  differingFacts,
  type Manifest,
  type PartitionFacts,
  parseManifest,
  type SourceFacts,
} from '../../shared/frame/manifest.ts';
import { encodeRecord, recordBytes, recordsOf } from '../../shared/frame/records.ts';
import { findLine } from '../../shared/lineage/find-event.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { faultOf } from '../support/faults.ts';

type Unpacked = Omit<FrameHeader, 'raw_bytes' | 'raw_sha256' | 'version'>;

const name = {
  dataset: fc.string({ minLength: 1, maxLength: 40, unit: 'grapheme' }),
  partition: fc.string({ maxLength: 40, unit: 'grapheme' }),
  revision: fc.nat(),
  attempt: fc.nat(),
  frame: fc.nat(),
  document_sha256: fc.stringMatching(/^[0-9a-f]{64}$/),
};
const frameHeader: fc.Arbitrary<Unpacked> = fc.record({
  ...name,
  kind: fc.constant('frame' as const),
  encoding: fc.constant('lines' as const),
  rows: fc.nat(),
  first_offset: fc.string({ maxLength: 70 }),
  last_offset: fc.string({ maxLength: 70 }),
  first_ms: fc.maxSafeInteger(),
  last_ms: fc.maxSafeInteger(),
});
const manifestHeader = fc.record({ ...name, kind: fc.constant('manifest' as const) });
/** Noise, and bytes that compress well, up to a few blocks of the compressor. */
const body = fc.oneof(
  fc.uint8Array({ minLength: 1, maxLength: 3000 }),
  fc
    .tuple(fc.uint8Array({ minLength: 1, maxLength: 200 }), fc.integer({ min: 1, max: 3000 }))
    .map(([bytes, times]) => Buffer.concat(Array.from({ length: times }, () => bytes))),
);

const aHeader: Unpacked = {
  kind: 'frame',
  encoding: 'lines',
  dataset: 'exchange_a_spot_trades',
  partition: '2024-01-01',
  revision: 1,
  attempt: 1,
  frame: 3,
  rows: 2,
  first_offset: '17',
  last_offset: '18',
  first_ms: 1_704_067_200_000,
  last_ms: 1_704_067_200_003,
  document_sha256: 'ab'.repeat(32),
};
const encode = (raw: Uint8Array, header = aHeader) => encodeMessage<FrameHeader>(header, raw);
/** What decoding yields: the whole message, or the code of the fault. Anything that is not ours is thrown. */
async function outcome(message: Uint8Array) {
  try {
    return await decodeMessage(message, 'a place');
  } catch (error) {
    const code = codeOf(error);
    if (code === undefined) throw error;
    return code;
  }
}

describe('round trip', () => {
  test('any header and any bytes come back as they went in', async () => {
    await fc.assert(
      fc.asyncProperty(fc.oneof(frameHeader, manifestHeader), body, async (header, bytes) => {
        const raw = Buffer.from(bytes);
        const message = await encodeMessage<Header>(header as Unpacked, raw);
        const decoded = await decodeMessage(message, 'here');
        expect(decoded.raw.equals(raw)).toBe(true);
        expect(decoded.header).toEqual({
          ...header,
          version: 1,
          raw_bytes: raw.length,
          raw_sha256: sha256Hex(raw),
        });
        expect(decodeHeader(message, 'here')).toEqual(decoded.header);
      }),
      { numRuns: 300 },
    );
  });

  test('a message that lies inside a larger buffer is read from its own start', async () => {
    const raw = Buffer.from('17,1,1,1\n18,2,2,2\n');
    const message = await encode(raw);
    const larger = Buffer.concat([Buffer.alloc(13, 7), message, Buffer.alloc(9, 7)]);
    const view = new Uint8Array(larger.buffer, larger.byteOffset + 13, message.length);
    const header = decodeHeader(view, 'here');
    expect((await decodeBody(view, header, 'here')).equals(raw)).toBe(true);
  });

  test('the same content always makes the same message', async () => {
    const raw = Buffer.from('17,1,1,1\n18,2,2,2\n'.repeat(500));
    expect((await encode(raw)).equals(await encode(Buffer.from(raw)))).toBe(true);
  });
});

describe('damage', () => {
  test('every bit of a message, flipped, makes it corrupt', async () => {
    const message = await encode(Buffer.from('17,42283.58,0.00069,29.17,1704067200000,True,True\n'.repeat(40)));
    const accepted: number[] = [];
    for (let bit = 0; bit < message.length * 8; bit++) {
      const damaged = Buffer.from(message);
      damaged[bit >> 3] ^= 1 << (bit & 7);
      if ((await outcome(damaged)) !== 'LOG_DAMAGED') accepted.push(bit);
    }
    expect(accepted).toEqual([]);
  });

  test('every truncation, and anything added at the end, makes it corrupt', async () => {
    const message = await encode(Buffer.from('17,42283.58,0.00069,29.17,1704067200000,True,True\n'.repeat(40)));
    for (let length = 0; length < message.length; length++) {
      expect({ length, outcome: await outcome(message.subarray(0, length)) }).toEqual({
        length,
        outcome: 'LOG_DAMAGED',
      });
    }
    for (const tail of [Buffer.of(0), Buffer.from('rest'), message]) {
      expect(await outcome(Buffer.concat([message, tail]))).toBe('LOG_DAMAGED');
    }
  });

  test('any other byte anywhere, and any run of bytes overwritten or taken out, makes it corrupt', async () => {
    await fc.assert(
      fc.asyncProperty(body, fc.nat(), fc.uint8Array({ minLength: 1, maxLength: 9 }), async (raw, at, bytes) => {
        const message = await encode(raw);
        const start = at % message.length;
        const overwritten = Buffer.from(message);
        overwritten.set(bytes.subarray(0, message.length - start), start);
        if (!overwritten.equals(message)) expect(await outcome(overwritten)).toBe('LOG_DAMAGED');
        const shorter = Buffer.concat([message.subarray(0, start), message.subarray(start + bytes.length)]);
        if (!shorter.equals(message)) expect(await outcome(shorter)).toBe('LOG_DAMAGED');
      }),
      { numRuns: 300 },
    );
  });

  test('bytes that never were a message are corrupt, also behind a right beginning', async () => {
    const start = (await encode(Buffer.from('x'))).subarray(0, 12);
    await fc.assert(
      fc.asyncProperty(fc.uint8Array({ maxLength: 400 }), fc.integer({ min: 0, max: 12 }), async (noise, kept) => {
        expect(await outcome(Buffer.concat([start.subarray(0, kept), noise]))).toBe('LOG_DAMAGED');
      }),
      { numRuns: 500 },
    );
  });

  test('the fault names the place', async () => {
    const fault = await faultOf(decodeMessage(Buffer.from('nonsense'), 'sequence 77'), 'LOG_DAMAGED');
    expect(fault.message).toContain('sequence 77');
    expect(fault.details).toMatchObject({ place: 'sequence 77' });
  });

  test("one message's body under another's header does not match its digest", async () => {
    const message = await encode(Buffer.from('17,1\n18,2\n'));
    const other = await encode(Buffer.from('17,1\n18,3\n'));
    const header = decodeHeader(message, 'here');
    await faultOf(decodeBody(other, header, 'here'), 'LOG_DAMAGED');
  });
});

describe('limits', () => {
  test('a body of the largest size passes, one byte more or none at all does not', async () => {
    const largest = Buffer.alloc(MAX_RAW_BYTES, '17,1\n');
    const message = await encode(largest);
    expect((await decodeMessage(message, 'here')).raw.equals(largest)).toBe(true);
    await faultOf(encode(Buffer.alloc(MAX_RAW_BYTES + 1, '1')), 'INTERNAL_INVARIANT');
    await faultOf(encode(Buffer.alloc(0)), 'INTERNAL_INVARIANT');
  });

  test('a message larger than the log takes is refused when packed', async () => {
    // Noise does not compress: its message is larger than it.
    const noise = Buffer.alloc(MAX_MESSAGE_BYTES);
    for (let at = 0, x = 1; at < noise.length; at++) {
      x = (Math.imul(x, 1103515245) + 12345) | 0;
      noise[at] = x >>> 16;
    }
    await faultOf(encode(noise), 'INTERNAL_INVARIANT');
    const fitting = await encode(noise.subarray(0, MAX_MESSAGE_BYTES - 4096));
    expect(fitting.length).toBeLessThanOrEqual(MAX_MESSAGE_BYTES);
  });

  test('a header over its limit is refused when packed', async () => {
    const partition = 'p'.repeat(MAX_HEADER_BYTES);
    await faultOf(encode(Buffer.from('x'), { ...aHeader, partition }), 'INTERNAL_INVARIANT');
  });
});

describe('a manifest', () => {
  const facts: PartitionFacts = {
    rows: 2,
    first_offset: '17',
    last_offset: '18',
    first_ms: 1,
    last_ms: 2,
    gaps: 0,
    totals: { price: '10', quantity: '20' },
    rows_hash: '-5',
    events_sha256: 'ab',
  };

  test('is refused when it is no manifest', async () => {
    for (const text of ['', '{', 'null', '[]', '17', '"x"', '{"format":2}', '{"format":1}', JSON.stringify(facts)]) {
      const parsing = Promise.resolve().then(() => parseManifest(Buffer.from(text), 'sequence 9'));
      const fault = await faultOf(parsing, 'LOG_DAMAGED');
      expect(fault.message).toContain('sequence 9');
    }
  });

  test('whose format is an object is refused by a message that shows it', async () => {
    const parsing = Promise.resolve().then(() => parseManifest(Buffer.from('{"format":{"a":1}}'), 'sequence 9'));
    expect((await faultOf(parsing, 'LOG_DAMAGED')).message).toContain('the format {"a":1}; this');
  });

  test('comes back out of its message', async () => {
    const manifest = { format: 1, ...manifestRest, ...facts } as Manifest;
    const message = await encodeMessage<ManifestHeader>(
      { kind: 'manifest', dataset: 'd', partition: 'p', revision: 1, attempt: 1, frame: 4, document_sha256: 'cd' },
      Buffer.from(JSON.stringify(manifest)),
    );
    expect(parseManifest((await decodeMessage(message, 'here')).raw, 'here')).toEqual(manifest);
  });

  test('differs from another by the name of each fact that differs', () => {
    expect(differingFacts(facts, { ...facts, totals: { ...facts.totals } })).toEqual([]);
    const others: [string, Partial<PartitionFacts>][] = [
      ['rows', { rows: 3 }],
      ['first_offset', { first_offset: '16' }],
      ['last_offset', { last_offset: '19' }],
      ['first_ms', { first_ms: 0 }],
      ['last_ms', { last_ms: 3 }],
      ['gaps', { gaps: 1 }],
      ['rows_hash', { rows_hash: '5' }],
      ['events_sha256', { events_sha256: 'ac' }],
      ['totals.price', { totals: { price: '11', quantity: '20' } }],
      ['totals.quantity', { totals: { price: '10' } }],
      ['totals.more', { totals: { ...facts.totals, more: '1' } }],
    ];
    for (const [fact, change] of others) {
      expect(differingFacts(facts, { ...facts, ...change })).toEqual([fact]);
      expect(differingFacts({ ...facts, ...change }, facts)).toEqual([fact]);
    }
  });

  test('tells of the same content where both name the same record, whatever else they say', () => {
    const one = { ...facts, record_sha256: 'aa' };
    expect(differingFacts(one, { ...one, events_sha256: 'ac' })).toEqual([]);
    expect(differingFacts(one, { ...one, events_sha256: 'ac', record_sha256: 'bb' })).toEqual(['events_sha256']);
    expect(differingFacts(one, { ...facts, events_sha256: 'ac' })).toEqual(['events_sha256']);
    const said = { format: 1, ...manifestRest, ...facts, record_sha256: 7 };
    expect(() => parseManifest(Buffer.from(JSON.stringify(said)), 'here')).toThrow('record_sha256');
  });

  // Its time was null in the catalog.
  test('is refused when a time is beyond what a date can hold', () => {
    const whole = { format: 1, ...manifestRest, ...facts };
    for (const name of ['from_ms', 'to_ms', 'first_ms', 'last_ms', 'ingested_at_ms', 'through_ms', 'last_updated_ms']) {
      const parse = (ms: number) => parseManifest(Buffer.from(JSON.stringify({ ...whole, [name]: ms })), 'here');
      expect(parse(8.64e15)).toMatchObject({ [name]: 8.64e15 });
      expect(() => parse(8.64e15 + 1)).toThrow(name);
      expect(() => parse(-8.64e15 - 1)).toThrow(name);
    }
  });

  const manifestRest = {
    dataset: 'd',
    partition: 'p',
    revision: 1,
    attempt: 1,
    frames: 4,
    first_sequence: 11,
    from_ms: 0,
    to_ms: 86_400_000,
    synthetic: false,
    document: { name: 'n', sha256: 's', bytes: 1, granularity: 'daily' },
    ingested_at_ms: 5,
  };
});

// A time that no date holds was written to the log, and the catalog had null for it.
test('a record with a time outside the years 0001 to 9999 is refused before it is framed', async () => {
  const dataset = datasetOf('bitcoin_circulating_supply');
  const take = async (ms: number, source: SourceFacts = {}) => {
    const frames = new RecordFrames(dataset, '7', 4096);
    const event = { offset: '7', payload: Buffer.from('x'), row: [ms, 7, 5, 'hash', 'main'] };
    return [...frames.add(event), ...frames.end(source)].length;
  };
  expect(await take(LAST_MS, { through_ms: LAST_MS })).toBe(2);
  for (const ms of [LAST_MS + 1, 8.64e15 + 1, Date.parse('0000-12-31T00:00:00Z'), Number.NaN]) {
    expect((await faultOf(take(ms), 'SOURCE_DOCUMENT_INVALID')).message).toContain('years 0001 to 9999');
    for (const name of ['through_ms', 'span_end', 'last_updated_ms']) {
      expect((await faultOf(take(5, { [name]: ms }), 'SOURCE_DOCUMENT_INVALID')).message).toContain(name);
    }
  }
});

test('a frame of records keeps its bytes until it is released, and the one after that reuses them', () => {
  const frames = new RecordFrames(datasetOf('bitcoin_circulating_supply'), '0-99', 4096);
  let height = 0;
  const next = () => {
    for (;;) {
      const payload = Buffer.alloc(1000, height);
      const event = { offset: `${height}`, payload, row: [5, height, 5, 'hash', 'main'] };
      height++;
      const [run] = [...frames.add(event)];
      if (run) return run;
    }
  };
  const encoded = (at: number) => encodeRecord(`${at}`, Buffer.alloc(1000, at));
  const expected = (first: number) => Buffer.concat([0, 1, 2, 3].map((at) => encoded(first + at)));
  const [first, second] = [next(), next()];
  expect(first.raw).toEqual(expected(0));
  expect(second.raw).toEqual(expected(4));
  first.release?.();
  const third = next();
  const fourth = next();
  expect([second, third, fourth].map(({ raw }) => raw)).toEqual([4, 8, 12].map(expected));
  expect([third, fourth].map(({ raw }) => raw.buffer === first.raw.buffer)).toEqual([false, true]);
});

describe('a line of a frame', () => {
  test('is found by its first cell, whatever surrounds it', () => {
    fc.assert(
      fc.property(
        fc.uniqueArray(fc.nat(2000), { minLength: 1, maxLength: 40 }),
        fc.nat(2000),
        fc.stringMatching(/^[0-9,.a-z]{0,12}$/),
        (ids, wanted, rest) => {
          const raw = Buffer.from(ids.map((id) => `${id},${rest}\n`).join(''));
          const found = findLine(raw, String(wanted), { column: 0, prefix: '' });
          expect(found?.payload.toString()).toBe(ids.includes(wanted) ? `${wanted},${rest}` : undefined);
          if (found) expect(found.position).toBe(ids.indexOf(wanted));
        },
      ),
      { numRuns: 500 },
    );
  });

  test('is not found by a part of a cell, nor in another cell', () => {
    const raw = Buffer.from('117,17,1\n171,5,17\n7,17,17\n');
    expect(findLine(raw, '17', { column: 0, prefix: '' })).toBeUndefined();
    expect(findLine(raw, '7', { column: 0, prefix: '' })).toEqual({ position: 2, payload: Buffer.from('7,17,17') });
  });
});

describe('a record', () => {
  const PREFIX = 10;
  const LARGEST = 16 * 1024 * 1024;

  test.each([
    ['an empty offset', '', 1],
    ['an offset of 1025 bytes', 'o'.repeat(1025), 1],
    ['an offset of 1025 bytes in 1024 characters', `${'o'.repeat(1023)}é`, 1],
    ['one byte more than a record may take', 'o', LARGEST - PREFIX],
  ])('with %s is refused', (_, offset, payloadBytes) => {
    expect(() => encodeRecord(offset, Buffer.alloc(payloadBytes))).toThrow(
      expect.objectContaining({ code: 'SOURCE_DOCUMENT_INVALID' }),
    );
  });

  test('of the largest offset and size is accepted and read back', () => {
    const offset = 'o'.repeat(1024);
    const record = encodeRecord(offset, Buffer.alloc(LARGEST - PREFIX - 1024 - 3), Buffer.from('aux'));
    expect(record.length).toBe(LARGEST);
    expect([...recordsOf(record)]).toMatchObject([{ offset, auxiliary: Buffer.from('aux') }]);
    expect(recordBytes('o', Buffer.alloc(LARGEST - PREFIX - 1))).toBe(LARGEST);
  });
});
