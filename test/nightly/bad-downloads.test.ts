/** A vendor's server that does not give what it should: refused, sat out, or said to be gone; every vendor's alike. */
import { createHash } from 'node:crypto';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { BAD_DOCUMENT_LIMITS as LIMITS } from '../support/bad-documents.ts';
import type { Json } from '../support/command.ts';
import { dayNames, filesBelow, SYMBOL, System } from '../support/pipeline.ts';
import { limitsEnv } from '../support/small-limits.ts';
import { type Fault, startVendorServer, type VendorServer } from '../support/vendor-server.ts';
import { VENDOR_A, VENDOR_B, VENDOR_C, VENDORS, type Vendor } from '../support/vendors.ts';

const ROWS = 300;
const md5 = (bytes: Buffer | string) => createHash('md5').update(bytes).digest('base64');

/** What a request meets, and how the day ends; `asked` is how often the document was asked for. */
interface Case {
  readonly name: string;
  readonly fault?: Fault;
  /** Of the document beside the document. */
  readonly checksum?: (day: string) => Fault;
  /** A code of failure; undefined: proved. */
  readonly code?: RegExp;
  readonly asked: number;
  /** Once more where bytes that disagree with a checksum are fetched again. */
  readonly askedAgain?: boolean;
}

const COMMON: readonly Case[] = [
  { name: 'a good answer', asked: 1 },
  { name: '404', fault: { kind: 'status', status: 404 }, code: /^SOURCE_NOT_FOUND$/, asked: 1 },
  { name: '403', fault: { kind: 'status', status: 403 }, code: /^SOURCE_UNREACHABLE$/, asked: 1 },
  { name: '500 for ever', fault: { kind: 'status', status: 500 }, code: /^SOURCE_UNREACHABLE$/, asked: 2 },
  { name: '429 for ever', fault: { kind: 'status', status: 429 }, code: /^SOURCE_UNREACHABLE$/, asked: 2 },
  { name: 'a cut', fault: { kind: 'cut', afterBytes: 2000 }, code: /^SOURCE_UNREACHABLE$/, asked: 2 },
  {
    name: 'a page of HTML',
    fault: { kind: 'body', body: '<html>gone</html>' },
    code: /^SOURCE_(DOCUMENT_INVALID|CHECKSUM_MISMATCH)$/,
    asked: 1,
    askedAgain: true,
  },
  { name: '503 once', fault: { kind: 'status', status: 503, times: 1 }, asked: 2 },
  { name: 'a cut once', fault: { kind: 'cut', afterBytes: 2000, times: 1, chunked: true }, asked: 2 },
];

/** Asked for by itself: the others are not to be given up when the machine is busy, this one soon. */
const SILENCE: Case = {
  name: 'silence',
  fault: { kind: 'stall', afterBytes: 100 },
  code: /^SOURCE_UNREACHABLE$/,
  asked: 2,
};

const OWN: ReadonlyMap<Vendor, readonly Case[]> = new Map<Vendor, readonly Case[]>([
  [
    VENDOR_A,
    [
      {
        name: 'no checksum',
        checksum: () => ({ kind: 'status', status: 404 }),
        code: /^SOURCE_DOCUMENT_INVALID$/,
        asked: 1,
      },
      {
        name: 'another checksum',
        checksum: (day) => ({ kind: 'body', body: `${'ab'.repeat(32)}  ${SYMBOL}-trades-${day}.zip\n` }),
        code: /^SOURCE_CHECKSUM_MISMATCH$/,
        asked: 2,
      },
    ],
  ],
  [
    VENDOR_B,
    [
      {
        name: 'another Content-MD5',
        fault: { kind: 'headers', headers: { 'content-md5': md5('other') } },
        code: /^SOURCE_CHECKSUM_MISMATCH$/,
        asked: 2,
      },
      {
        name: 'a Content-MD5 that is none',
        fault: { kind: 'headers', headers: { 'content-md5': 'nonsense' } },
        code: /^SOURCE_CHECKSUM_MISMATCH$/,
        asked: 2,
      },
      {
        name: 'another Content-MD5 once',
        fault: { kind: 'headers', headers: { 'content-md5': md5('other') }, times: 1 },
        asked: 2,
      },
    ],
  ],
  [VENDOR_C, [{ name: 'an ETag', fault: { kind: 'headers', headers: { etag: '"0636f753-4"' } }, asked: 1 }]],
]);

describe.each(VENDORS)('a backfill of $dataset over http', (vendor) => {
  const cases = [...COMMON, ...OWN.get(vendor)!, SILENCE];
  const days = dayNames('2024-06-01', cases.length);
  const contiguous = vendor === VENDOR_A ? 1 : 7;
  const archives = days.map((day, index) =>
    vendor.pack(day, vendor.plainDay({ day, rows: ROWS, seed: 6, firstId: 1 + index * ROWS * contiguous })),
  );
  let system: System;
  let server: VendorServer;
  const [LOCATION] = Object.keys(vendor.settings(''));
  const run = (from = days[0], to = days.at(-1)!, sourceTimeoutMs = 60_000) =>
    system.run(['backfill', vendor.dataset, '--from', from, '--to', to], {
      ...limitsEnv({ ...LIMITS, sourceTimeoutMs }),
      [LOCATION]: server.url.href,
    });
  const spooled = async () =>
    (await filesBelow(join(system.env.dir, 'state', 'spool'))).filter((name) => !name.startsWith('.'));

  beforeAll(async () => {
    system = await System.create();
    for (const [index, day] of days.entries()) await vendor.put(system.vendor, day, archives[index]);
    server = await startVendorServer(system.vendor);
  });
  afterAll(async () => {
    await server[Symbol.asyncDispose]();
    await system[Symbol.asyncDispose]();
  });

  test('refuses what does not arrive whole, sits out what passes, and names the document', async () => {
    for (const [index, { fault, checksum }] of cases.entries()) {
      if (fault) server.fail(vendor.path(days[index]), fault);
      if (checksum) server.fail(`${vendor.path(days[index])}.CHECKSUM`, checksum(days[index]));
    }
    const answers = [await run(days[0], days.at(-2)), await run(days.at(-1), days.at(-1), 1)];
    expect(answers.map(({ exit }) => exit)).toEqual([1, 1]);
    const units = answers.flatMap(({ json }) => json.units);
    for (const [index, { name, code, asked, askedAgain }] of cases.entries()) {
      const unit = units.find(({ partition }: Json) => partition === days[index]);
      if (code === undefined) {
        expect([name, unit]).toMatchObject([name, { partition: days[index], state: 'proved', rows: ROWS }]);
      } else {
        expect([name, unit]).toMatchObject([name, { state: 'failed', code: expect.stringMatching(code) }]);
        expect(unit.reason).toContain(vendor.document(days[index]));
      }
      const times = vendor === VENDOR_A && askedAgain ? asked + 1 : asked;
      expect([name, server.requests(vendor.path(days[index])).length]).toEqual([name, times]);
    }
    const log = await system.log(vendor.dataset);
    const good = days.filter((_, index) => cases[index].code === undefined);
    expect(new Set(log.map(({ header }) => header.partition))).toEqual(new Set(good));
    expect(await spooled()).toEqual([]);
  });

  test('succeeds once the vendor is well again; the manifest keeps what is said of a document beside its bytes', async () => {
    server.reset();
    const [day] = dayNames(days.at(-1)!, 2).slice(1);
    const archive = vendor.pack(day, vendor.plainDay({ day, rows: 10, seed: 1, firstId: 900_000 }));
    await vendor.put(system.vendor, day, archive);
    const stated = { etag: '"0636f753-4"', 'content-md5': md5(archive) };
    server.fail(vendor.path(day), { kind: 'headers', headers: stated });
    const { exit, json } = await run(days[0], day);
    const bad = cases.filter(({ code }) => code !== undefined).length;
    expect([exit, json.proved, json.unchanged]).toEqual([0, bad + 1, cases.length - bad]);
    const [{ n }] = await system.rows(`select count(*)::int4 as n from ${vendor.layout.dataset.native.table}`);
    expect(n).toBe(days.length * ROWS + 10);
    expect(await spooled()).toEqual([]);
    const [{ manifest }] = await system.rows('select manifest from partitions where partition_key = $1', [day]);
    expect(manifest.document).toEqual({
      name: vendor.document(day),
      sha256: createHash('sha256').update(archive).digest('hex'),
      bytes: archive.length,
      granularity: 'daily',
      ...(vendor === VENDOR_B ? { content_md5: stated['content-md5'] } : {}),
      etag: stated.etag,
      fetched_ms: expect.any(Number),
    });
  });

  test('of a vendor that is not there, of a folder that is not there, and without any location, says so', async () => {
    const day = '2024-07-15';
    const at = (location: string) =>
      system.run(['backfill', vendor.dataset, '--from', day, '--to', day], {
        ...limitsEnv(LIMITS),
        [LOCATION]: location,
      });
    const unreachable = await at('http://127.0.0.1:9/');
    expect([unreachable.exit, unreachable.json.units[0].state, unreachable.json.units[0].code]).toEqual([
      1,
      'failed',
      'SOURCE_UNREACHABLE',
    ]);
    const missing = await at(pathToFileURL(join(system.env.dir, 'nosuchfolder/')).href);
    expect([missing.exit, missing.json.units[0].code]).toEqual([1, 'SOURCE_NOT_FOUND']);
    expect(missing.json.units[0].reason).toContain('nosuchfolder');
    const unset = await at('');
    expect([unset.exit, unset.json.error.code]).toEqual([2, 'CONFIGURATION_INVALID']);
    expect(unset.json.error.message).toContain(LOCATION);
  });
});
