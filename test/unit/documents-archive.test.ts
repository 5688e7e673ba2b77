/** Reading the one member of a vendor's archive: damaged, lying and hostile ones are refused, good ones are exact. */

import { existsSync, readdirSync, readlinkSync } from 'node:fs';
import { mkdtemp, open, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { crc32, deflateRawSync, gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { type ArchiveMember, openGzip, openZipMember } from '../../pipelines/sources/documents/zip-reader.ts';
import { writeZip } from '../../pipelines/sources/documents/zip-writer.ts';
import type { ErrorCode } from '../../shared/errors.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { buildZip, type MemberSpec, type ZipSpec } from '../support/broken-zip.ts';
import { faultOf } from '../support/faults.ts';
import { givenData } from '../support/given.ts';
import { PATIENCE_MS } from '../support/patience.ts';

const NAME = 'trades.csv';
const SHARED_DATA = new URL('../../../shared/data/exchange_a/', import.meta.url);
/** Compressible, yet no run of one byte; larger than one piece of the stream. */
const CONTENT = Buffer.from(Array.from({ length: 60_000 }, (_, i) => `${i},${(i * 7919) % 10_007}.50\n`).join(''));

let folder: string;
let count = 0;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'archive-'));
});
afterAll(() => rm(folder, { recursive: true }));

async function file(content: Buffer): Promise<string> {
  const path = join(folder, `${++count}.bin`);
  await writeFile(path, content);
  return path;
}

const openZip = (path: string, maxUnpackedBytes = 10_000_000) =>
  openZipMember({ path, expectedName: NAME, maxUnpackedBytes, document: 'the document' });
const member = (more: Partial<MemberSpec> = {}): MemberSpec => ({ name: NAME, content: CONTENT, ...more });
const zipFile = (spec: Partial<ZipSpec> & { member?: MemberSpec }) =>
  file(buildZip({ members: [spec.member ?? member()], ...spec }));

async function contentOf(archive: ArchiveMember): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of archive.stream()) pieces.push(piece);
  return Buffer.concat(pieces);
}

async function refusedBy(work: Promise<unknown>, code: ErrorCode, opening = false): Promise<TidemarkError> {
  const fault = await faultOf(work, code);
  expect(fault.details.document).toBe('the document');
  // A zip without a readable directory is closed by the library that looked for one, a moment later.
  if (opening) await vi.waitFor(() => expect(openFiles()).toEqual([]), PATIENCE_MS);
  expect(openFiles()).toEqual([]);
  return fault;
}

/** Descriptors of this process that point into the test's folder; what a reader forgot to close shows here. */
function openFiles(): string[] {
  if (!existsSync('/proc/self/fd')) return [];
  const targets = readdirSync('/proc/self/fd').map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return '';
    }
  });
  return targets.filter((target) => target.startsWith(folder));
}

describe('a whole zip', () => {
  test.each([
    ['deflated', {}],
    ['stored', { member: member({ method: 0 }) }],
    ['zip64', { zip64: true }],
    ['stored, zip64', { zip64: true, member: member({ method: 0 }) }],
  ])('%s: sizes, checksum and content are told and kept', async (_name, spec) => {
    const archive = await openZip(await zipFile(spec));
    expect(archive).toMatchObject({ name: NAME, unpackedBytes: CONTENT.length, crc32: crc32(CONTENT) });
    expect((await contentOf(archive)).equals(CONTENT)).toBe(true);
    // Each call reads anew.
    expect((await contentOf(archive)).equals(CONTENT)).toBe(true);
    expect(openFiles()).toEqual([]);
  });

  test('of an empty member is read as nothing: that it holds no rows is for the decoder to say', async () => {
    for (const method of [0, 8]) {
      const path = await zipFile({ member: member({ content: Buffer.alloc(0), method }) });
      expect(await contentOf(await openZip(path))).toHaveLength(0);
    }
  });

  test('comes in large pieces that stay as they are when the next is read', async () => {
    const pieces: { piece: Buffer; crc: number }[] = [];
    const content = Buffer.concat([CONTENT, CONTENT, CONTENT, CONTENT]);
    const archive = await openZip(await zipFile({ member: member({ content }) }));
    for await (const piece of archive.stream()) pieces.push({ piece, crc: crc32(piece) });
    for (const { piece, crc } of pieces) expect(crc32(piece)).toBe(crc);
    expect(pieces.length).toBeLessThanOrEqual(Math.ceil(content.length / 262_144) + 1);
  });

  givenData('exchange_a').test('real: the day has the rows it is known to have', async () => {
    const expectedName = 'BTCUSDT-trades-2019-04-01.csv';
    const path = fileURLToPath(new URL('spot/daily/trades/BTCUSDT/BTCUSDT-trades-2019-04-01.zip', SHARED_DATA));
    const content = await contentOf(await openZipMember({ path, expectedName, maxUnpackedBytes: 20_000_000 }));
    const lines = content.toString().split('\n');
    expect(lines).toHaveLength(183_355 + 1);
    expect(lines[0].split(',')[0]).toBe('109344068');
    expect(lines[183_354].split(',')[0]).toBe('109527422');
  });
});

describe('a zip that is refused before its first byte', () => {
  test.each<[string, ErrorCode, () => Promise<string>, RegExp]>([
    ['nothing', 'SOURCE_DOCUMENT_INVALID', () => file(Buffer.alloc(0)), /0 bytes/],
    ['garbage', 'SOURCE_DOCUMENT_INVALID', () => file(Buffer.alloc(5000, 'x')), /not a zip/],
    ['a web page', 'SOURCE_DOCUMENT_INVALID', () => file(Buffer.from('<html></html>')), /not a zip/],
    ['only an end', 'SOURCE_DOCUMENT_INVALID', () => file(buildZip({ members: [] })), /0 members/],
    ['another name', 'SOURCE_DOCUMENT_INVALID', () => zipFile({ member: member({ name: 'other.csv' }) }), /other\.csv/],
    [
      'a name that climbs',
      'SOURCE_DOCUMENT_INVALID',
      () => zipFile({ member: member({ name: '../trades.csv' }) }),
      /directory/,
    ],
    [
      'two members',
      'SOURCE_DOCUMENT_INVALID',
      () => zipFile({ members: [member(), member({ name: 'b' })] }),
      /2 members/,
    ],
    ['the same member twice', 'SOURCE_DOCUMENT_INVALID', () => zipFile({ members: [member(), member()] }), /2 members/],
    [
      'two names for one member',
      'SOURCE_DOCUMENT_INVALID',
      () => zipFile({ member: member({ localName: 'b.csv' }) }),
      /contradicts/,
    ],
    ['encryption', 'SOURCE_DOCUMENT_INVALID', () => zipFile({ member: member({ flags: 1 }) }), /encrypted/],
    ['another compression', 'SOURCE_DOCUMENT_INVALID', () => zipFile({ member: member({ method: 12 }) }), /method 12/],
    [
      'data beyond its end',
      'SOURCE_DOCUMENT_INVALID',
      () => zipFile({ member: member({ claim: { packedBytes: 99_999_999 } }) }),
      /damaged directory/,
    ],
    [
      'a declared bomb',
      'SOURCE_DOCUMENT_INVALID',
      () => zipFile({ zip64: true, member: member({ claim: { unpackedBytes: 2 ** 40 } }) }),
      /unpacks to more than \d+ bytes/,
    ],
    [
      'a byte too much',
      'SOURCE_DOCUMENT_INVALID',
      async () => file(Buffer.concat([buildZip({ members: [member()] }), Buffer.from('x')])),
      /directory/,
    ],
  ])('%s is %s', async (_name, code, make, message) => {
    const path = await make();
    expect((await refusedBy(openZip(path), code, true)).message).toMatch(message);
  });

  test.each([
    ['end record', 34, /no readable directory/],
    ['directory', 50, /damaged directory/],
    ['member', 106, /damaged directory/],
  ])('a zip64 field that points beyond 2^53 for the %s ended the process', async (_name, fromEnd, message) => {
    for (const place of [2n ** 53n, 2n ** 63n, 2n ** 64n - 1n]) {
      const zip = buildZip({ zip64: true, members: [member()] });
      const at = zip.length - fromEnd;
      expect(zip.readBigUInt64LE(at)).toBeLessThan(zip.length);
      zip.writeBigUInt64LE(place, at);
      const fault = await refusedBy(openZip(await file(zip)), 'SOURCE_DOCUMENT_INVALID', true);
      expect(fault.message).toMatch(message);
    }
  });

  test('cut anywhere, it is never taken for whole', async () => {
    const whole = buildZip({ members: [member({ content: CONTENT.subarray(0, 3000) })] });
    for (let size = 1; size < whole.length; size += 13) {
      const path = await file(whole.subarray(0, size));
      const fault = await openZip(path)
        .then(contentOf)
        .catch((error) => error);
      expect(fault).toBeInstanceOf(TidemarkError);
      // Below four bytes there is no telling a zip from anything else.
      expect(fault.code).toBe(size < 4 || size > whole.length - 22 ? fault.code : 'SOURCE_UNREACHABLE');
      expect(['SOURCE_UNREACHABLE', 'SOURCE_DOCUMENT_INVALID']).toContain(fault.code);
      await rm(path);
    }
  });

  givenData('exchange_a').test('the real truncated month', async () => {
    const path = fileURLToPath(new URL('broken/BTCUSDT-trades-2019-04.zip', SHARED_DATA));
    const fault = await refusedBy(openZip(path), 'SOURCE_UNREACHABLE');
    expect(fault.message).toContain('3375104');
  });

  test('a file that is gone', async () => {
    await refusedBy(openZip(join(folder, 'gone')), 'SOURCE_NOT_FOUND');
  });
});

describe('a zip that is refused while it is read', () => {
  const refused = async (path: string, code: ErrorCode, maxUnpackedBytes?: number) => {
    const archive = await openZip(path, maxUnpackedBytes);
    return refusedBy(contentOf(archive), code);
  };

  test('a bomb that lies about its size hands out nothing', async () => {
    const packed = deflateRawSync(Buffer.alloc(20_000_000));
    const path = await zipFile({ member: member({ packed, claim: { unpackedBytes: 1000 } }) });
    let produced = 0;
    const archive = await openZip(path);
    const reading = async () => {
      for await (const piece of archive.stream()) produced += piece.length;
    };
    const fault = await refusedBy(reading(), 'SOURCE_DOCUMENT_INVALID');
    expect(produced).toBe(0);
    expect(fault.details.maxBytes).toBe(1000);
  });

  test('a bomb that declares just what is allowed', async () => {
    const packed = deflateRawSync(Buffer.alloc(20_000_000));
    const path = await zipFile({ member: member({ packed, claim: { unpackedBytes: 5_000_000 } }) });
    await refused(path, 'SOURCE_DOCUMENT_INVALID', 5_000_000);
  });

  test('less than it declares', async () => {
    const claim = { unpackedBytes: CONTENT.length + 1 };
    const fault = await refused(await zipFile({ member: member({ claim }) }), 'SOURCE_UNREACHABLE');
    expect(fault.details).toMatchObject({ bytes: CONTENT.length, declaredBytes: CONTENT.length + 1 });
  });

  test.each([0, 8])('another content than its CRC is for (method %d)', async (method) => {
    const path = await zipFile({ member: member({ method, claim: { crc: (crc32(CONTENT) ^ 1) >>> 0 } }) });
    expect((await refused(path, 'SOURCE_DOCUMENT_INVALID')).message).toContain('CRC');
  });

  test('one byte changed in stored data', async () => {
    const zip = buildZip({ members: [member({ method: 0 })] });
    zip[5000] ^= 1;
    await refused(await file(zip), 'SOURCE_DOCUMENT_INVALID');
  });

  test('deflate data that ends early, is garbage, or is followed by something', async () => {
    const whole = deflateRawSync(CONTENT);
    await refused(await zipFile({ member: member({ packed: whole.subarray(0, -20) }) }), 'SOURCE_UNREACHABLE');
    await refused(await zipFile({ member: member({ packed: Buffer.alloc(0) }) }), 'SOURCE_UNREACHABLE');
    await refused(await zipFile({ member: member({ packed: Buffer.alloc(500, 0xff) }) }), 'SOURCE_DOCUMENT_INVALID');
    const followed = member({ packed: Buffer.concat([whole, Buffer.from('more')]) });
    expect((await refused(await zipFile({ member: followed }), 'SOURCE_DOCUMENT_INVALID')).message).toContain(
      '4 bytes',
    );
  });

  test.each([0, 8])('cut under the reader (method %d)', async (method) => {
    const path = await zipFile({ member: member({ method }) });
    const archive = await openZip(path);
    await truncate(path, 20_000);
    await refusedBy(contentOf(archive), 'SOURCE_UNREACHABLE');
    await rm(path);
    await refusedBy(contentOf(archive), 'SOURCE_NOT_FOUND');
  });
});

describe('leaving', () => {
  const big = Buffer.concat(Array.from({ length: 6 }, () => CONTENT));

  test.each([0, 8])('early closes the file at once (method %d)', async (method) => {
    const archive = await openZip(await zipFile({ member: member({ content: big, method }) }), big.length);
    for await (const _ of archive.stream()) break;
    expect(openFiles()).toEqual([]);
    const consumer = async () => {
      for await (const _ of archive.stream()) throw new Error('consumer');
    };
    await expect(consumer()).rejects.toThrow('consumer');
    expect(openFiles()).toEqual([]);
  });

  test.each([0, 8])('by abort throws its reason and closes the file (method %d)', async (method) => {
    const archive = await openZip(await zipFile({ member: member({ content: big, method }) }), big.length);
    const abort = new AbortController();
    const reading = async () => {
      for await (const _ of archive.stream(abort.signal)) abort.abort(new Error('operator'));
    };
    await expect(reading()).rejects.toThrow('operator');
    expect(openFiles()).toEqual([]);
    await expect(reading()).rejects.toThrow('operator');
  });
});

describe('a gzip', () => {
  const openGz = (path: string, maxUnpackedBytes = 10_000_000) =>
    openGzip({ path, expectedName: NAME, maxUnpackedBytes, document: 'the document' });
  const refused = async (content: Buffer, code: ErrorCode, maxUnpackedBytes?: number) => {
    const path = await file(content);
    return refusedBy(openGz(path, maxUnpackedBytes).then(contentOf), code);
  };

  test('whole, and in several members', async () => {
    const path = await file(Buffer.concat([gzipSync(CONTENT.subarray(0, 1000)), gzipSync(CONTENT.subarray(1000))]));
    const archive = await openGz(path);
    expect(archive).toMatchObject({ name: NAME, unpackedBytes: null, crc32: null });
    expect((await contentOf(archive)).equals(CONTENT)).toBe(true);
    expect(openFiles()).toEqual([]);
  });

  test('refused: empty, garbage, cut, damaged, followed by something, a bomb', async () => {
    const whole = gzipSync(CONTENT);
    const damaged = Buffer.from(whole);
    damaged[whole.length - 6] ^= 1;
    await refused(Buffer.alloc(0), 'SOURCE_DOCUMENT_INVALID');
    await refusedBy(openGz(await file(Buffer.from('id,price'))), 'SOURCE_DOCUMENT_INVALID');
    for (const cut of [5, 100, whole.length - 4]) await refused(whole.subarray(0, cut), 'SOURCE_UNREACHABLE');
    await refused(damaged, 'SOURCE_DOCUMENT_INVALID');
    await refused(Buffer.concat([whole, Buffer.from('trailing')]), 'SOURCE_DOCUMENT_INVALID');
    await refused(gzipSync(Buffer.alloc(20_000_000)), 'SOURCE_DOCUMENT_INVALID', 1_000_000);
  });
});

test('property: what is written in any pieces is read back as the same bytes, and as the same archive', async () => {
  const modified = new Date(Date.UTC(2024, 0, 2));
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.uint8Array({ maxLength: 3000 }), { maxLength: 8 }),
      // To several pieces of the stream.
      fc.integer({ min: 1, max: 40 }),
      fc.integer({ min: 0, max: 9 }),
      async (parts, repeat, level) => {
        const chunks = parts.flatMap((part) => Array.from({ length: repeat }, () => Buffer.from(part)));
        const content = Buffer.concat(chunks);
        const path = join(folder, 'property.zip');
        const written = await writeZip({ path, memberName: NAME, modified, level, chunks });
        const archive = await openZip(path);
        expect(archive).toMatchObject({ unpackedBytes: content.length, crc32: crc32(content) });
        expect((await contentOf(archive)).equals(content)).toBe(true);
        const whole = await writeZip({ path, memberName: NAME, modified, level, chunks: [content] });
        expect(whole).toEqual(written);
        expect((await readFile(path)).length).toBe(written.bytes);
      },
    ),
    { numRuns: 60 },
  );
});

test('an archive that cannot be finished leaves nothing behind', async () => {
  const path = join(folder, 'unfinished', 'a.zip');
  const chunks = (function* () {
    yield Buffer.from('rows');
    throw new Error('source of rows');
  })();
  await expect(writeZip({ path, memberName: NAME, modified: new Date(Date.UTC(2024, 0, 2)), chunks })).rejects.toThrow(
    'source of rows',
  );
  expect(await readdir(join(folder, 'unfinished'))).toEqual([]);
  expect(openFiles()).toEqual([]);
  await using kept = await open(await file(CONTENT), 'r');
  // The check above sees what is open: it can fail.
  expect(openFiles()).toHaveLength(existsSync('/proc/self/fd') ? 1 : 0);
  expect(kept.fd).toBeGreaterThan(0);
});
