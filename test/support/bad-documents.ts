/** What can be wrong with a vendor's document of one day, and the odd ones that are read: data for tests of each vendor. */
import { deflateRawSync, gzipSync } from 'node:zlib';
import type { ErrorCode } from '../../shared/errors.ts';
import { buildZip } from './broken-zip.ts';
import { SYMBOL, writeDocument } from './pipeline.ts';
import { VENDOR_A, VENDOR_B, VENDOR_C, type Vendor } from './vendors.ts';

export interface BadCase {
  readonly name: string;
  /** Puts what the vendor has instead of the right document. */
  readonly write: (base: string, day: string, text: string) => Promise<unknown>;
  readonly code: ErrorCode;
  /** Line that is named, where a row is at fault. */
  readonly line?: number;
  /** Known only when frames of the day are in the log. */
  readonly late?: boolean;
}

/** Where a row is spoilt: behind rows of several frames. Of exchange C, only a repeated id is known after a frame has left. */
const LINE = 250;
const MIB = 1 << 20;
// A frame is in the log before the next one is taken, so a late fault meets frames that are out.
export const BAD_DOCUMENT_LIMITS = {
  frameRawBytes: 4096,
  publishWindow: 1,
  unpackedBytes: MIB,
  documentBytes: MIB,
  sourceAttempts: 2,
  sourceTimeoutMs: 1000,
};

type Spoil = (day: string, text: string) => Buffer | undefined;

function archives(vendor: Vendor): BadCase[] {
  const { pack } = vendor;
  const header = vendor.layout.headers.find((each) => each !== undefined)!;
  const half = (bytes: Buffer) => bytes.subarray(0, bytes.length >> 1);
  const of = (name: string, code: ErrorCode, spoil: Spoil, more: Partial<BadCase> = {}): BadCase => ({
    name,
    code,
    write: (base, day, text) => vendor.put(base, day, spoil(day, text)),
    ...more,
  });
  const common = [
    of('no document', 'SOURCE_NOT_FOUND', () => undefined),
    of('an archive of no bytes', 'SOURCE_DOCUMENT_INVALID', () => Buffer.alloc(0)),
    of('no archive at all', 'SOURCE_DOCUMENT_INVALID', (_, text) => Buffer.from(text)),
    of('an archive cut in half', 'SOURCE_UNREACHABLE', (day, text) => half(pack(day, text))),
    of('a file of no bytes', 'SOURCE_DOCUMENT_INVALID', (day) => pack(day, '')),
    of('a header alone', 'SOURCE_DOCUMENT_INVALID', (day) => pack(day, `${header}\n`)),
    of('a bomb of good rows', 'SOURCE_DOCUMENT_INVALID', (day, text) =>
      pack(day, text + afterHeader(text).repeat(300)),
    ),
    of('another day', 'SOURCE_DOCUMENT_INVALID', (day) => pack(day, otherDay(vendor))),
  ];
  return [...common, ...(vendor.archive === 'zip' ? zips(vendor, of) : gzips(of))];
}

const afterHeader = (text: string) => text.slice(text.indexOf('\n') + 1);

const otherDay = (vendor: Vendor) => vendor.plainDay({ day: '2019-09-09', rows: 5, seed: 1, firstId: 1 });

type Maker = (name: string, code: ErrorCode, spoil: Spoil, more?: Partial<BadCase>) => BadCase;

const zips = ({ pack }: Vendor, of: Maker): BadCase[] => [
  of('a bomb that lies about its size', 'SOURCE_DOCUMENT_INVALID', (day, text) =>
    pack(day, text, { packed: deflateRawSync(Buffer.concat([Buffer.from(text), Buffer.alloc(64 * MIB)])) }),
  ),
  of('an archive larger than the limit', 'SOURCE_DOCUMENT_INVALID', (day) =>
    pack(day, Buffer.alloc(MIB + 1), { method: 0 }),
  ),
  of('a member of another name', 'SOURCE_DOCUMENT_INVALID', (day, text) => pack(day, text, { name: 'trades.csv' })),
  of('two members', 'SOURCE_DOCUMENT_INVALID', (_, text) => {
    const content = Buffer.from(text);
    return buildZip({ members: ['a.csv', 'b.csv'].map((name) => ({ name, content })) });
  }),
  of(
    'bytes that do not match their CRC',
    'SOURCE_DOCUMENT_INVALID',
    (day, text) => pack(day, text, { claim: { crc: 17 } }),
    { late: true },
  ),
];

const gzips = (of: Maker): BadCase[] => [
  of('an archive larger than the limit', 'SOURCE_DOCUMENT_INVALID', () =>
    gzipSync(Buffer.alloc(MIB + 1), { level: 0 }),
  ),
  of('bytes behind the archive', 'SOURCE_DOCUMENT_INVALID', (_, text) =>
    Buffer.concat([gzipSync(text), Buffer.from('more')]),
  ),
  of('bytes that do not match their CRC', 'SOURCE_DOCUMENT_INVALID', (_, text) => {
    const gzip = gzipSync(text);
    gzip[gzip.length - 8] ^= 1;
    return gzip;
  }),
];

// ---- rows ----------------------------------------------------------------------------------------------------------

/** Chinese names of an exchange's columns, in GBK. */
const GBK = Buffer.from([0xbd, 0xbb, 0xd2, 0xd7, 0x49, 0x44]);

function rows(vendor: Vendor): BadCase[] {
  const { columns, headers } = vendor.layout;
  const header = headers.find((each) => each !== undefined)!;
  const at = (...names: string[]) => columns.findIndex(({ name }) => names.includes(name));
  const [price, size, time] = [at('price'), at('qty', 'size', 'volume'), at('time', 'created_time', 'timestamp')];
  const [id, side] = [at('id', 'trade_id'), at('side')];
  /** Its decoder parses all rows of a small document before it frames them in order, and meets repeated ids then. */
  const sorts = vendor === VENDOR_C;

  const text = (name: string, change: (text: string) => string | Buffer, code: ErrorCode, more = {}): BadCase => ({
    name,
    code,
    write: (base, day, right) => vendor.put(base, day, vendor.pack(day, change(right))),
    ...more,
  });
  const line = (
    name: string,
    change: (line: string, lines: readonly string[]) => string,
    code: ErrorCode = 'SOURCE_DOCUMENT_INVALID',
    more = {},
  ) =>
    text(
      name,
      (right) => {
        const lines = right.split('\n');
        return lines.with(LINE - 1, change(lines[LINE - 1], lines)).join('\n');
      },
      code,
      { line: LINE, ...more },
    );
  const cell = (column: number, name: string, change: (cell: string) => string, code?: ErrorCode) =>
    line(
      name,
      (row) =>
        row
          .split(',')
          .with(column, change(row.split(',')[column]))
          .join(','),
      code,
    );
  const idOf = (lines: readonly string[], number: number) => lines[number - 1].split(',')[id];

  return [
    line(`a row of ${columns.length - 1} columns`, (row) => row.slice(0, row.lastIndexOf(','))),
    line(`a row of ${columns.length + 1} columns`, (row) => `${row},0`),
    cell(price, 'a price that is no number', () => 'abc'),
    cell(price, 'a price of 0', () => '0.0'),
    cell(size, 'a negative quantity', (value) => `-${value}`),
    cell(size, 'a NaN quantity', () => 'NaN'),
    cell(size, 'a quantity of 1e400', () => '1e400'),
    cell(size, 'a quantity of 30 digits', () => '123456789012345678901234567890'),
    cell(price, 'a row of 1,000 bytes', (value) => '0'.repeat(1000) + value),
    cell(time, 'a time of another length', (value) => value.slice(1)),
    cell(
      time,
      'a time outside the day',
      (value) => String(Number(value) + 86_400_000 * 10 ** (value.length - 13)),
      'SOURCE_DOCUMENT_INVALID',
    ),
    cell(id, 'an id of another shape', () => '82c4f9a7-8675-54e6-9935-6ed6b9d9993f'),
    line(
      'an id again with other content',
      (row, lines) =>
        row
          .split(',')
          .with(id, idOf(lines, LINE - 1))
          .join(','),
      vendor === VENDOR_A ? 'SOURCE_DOCUMENT_INVALID' : 'SOURCE_DOCUMENT_INVALID',
      { late: sorts },
    ),
    line(
      'an id that goes back',
      (row, lines) =>
        row
          .split(',')
          .with(id, idOf(lines, LINE - 2))
          .join(','),
      vendor === VENDOR_C ? 'SOURCE_DOCUMENT_INVALID' : 'SOURCE_DOCUMENT_INVALID',
    ),
    line('garbage behind a row', (row) => `${row}garbage`),
    line('an empty line', (row) => `\n${row}`),
    line('a NUL byte', (row) => `\0${row}`),
    text('garbage behind the last row', (right) => `${right}garbage\n`, 'SOURCE_DOCUMENT_INVALID', { late: false }),
    text('an empty line at the end', (right) => `${right}\n`, 'SOURCE_DOCUMENT_INVALID'),
    text('a last row cut off', (right) => right.slice(0, right.lastIndexOf(',') + 1), 'SOURCE_DOCUMENT_INVALID', {
      late: !sorts,
    }),
    ...(side < 0 ? [] : [cell(side, 'a side other than buy or sell', () => 'hold')]),
    ...(vendor === VENDOR_A
      ? [
          line(
            'a missing id',
            (row) => row.replace(/^\d+/, (value) => `${Number(value) + 1}`),
            'SOURCE_DOCUMENT_INVALID',
          ),
        ]
      : [
          text('no header', afterHeader, 'SOURCE_DOCUMENT_INVALID', { line: 1 }),
          text(
            'a header in GBK',
            (right) =>
              Buffer.concat([
                Buffer.from(`${columns[0].name}/`),
                GBK,
                Buffer.from(right.slice(columns[0].name.length)),
              ]),
            'SOURCE_DOCUMENT_INVALID',
            { line: 1 },
          ),
          text(
            `rows of ${columns.length} columns under a header of ${columns.length + 1}`,
            (right) => right.replace(header, headers.at(-1)!),
            'SOURCE_DOCUMENT_INVALID',
            { line: 2 },
          ),
        ]),
  ];
}

// ---- what one vendor alone has -------------------------------------------------------------------------------------

const checksums: BadCase[] = [
  {
    name: 'an archive cut in half, signed whole',
    write: async (base, day, text) => {
      const whole = VENDOR_A.pack(day, text);
      const sha256 = await writeDocument(base, day, text);
      const checksum = `${sha256}  ${SYMBOL}-trades-${day}.zip\n`;
      return writeDocument(base, day, text, { zip: whole.subarray(0, whole.length >> 1), checksum });
    },
    code: 'SOURCE_CHECKSUM_MISMATCH',
  },
  {
    name: 'a wrong checksum',
    write: (base, day, text) =>
      writeDocument(base, day, text, { checksum: `${'0'.repeat(64)}  ${SYMBOL}-trades-${day}.zip\n` }),
    code: 'SOURCE_CHECKSUM_MISMATCH',
  },
  {
    name: 'no checksum',
    write: (base, day, text) => writeDocument(base, day, text, { checksum: null }),
    code: 'SOURCE_DOCUMENT_INVALID',
  },
  {
    name: 'a checksum file that is none',
    write: (base, day, text) => writeDocument(base, day, text, { checksum: 'sorry\n' }),
    code: 'SOURCE_DOCUMENT_INVALID',
  },
  {
    name: 'a checksum of another file',
    write: async (base, day, text) => {
      const sha256 = await writeDocument(base, day, text);
      return writeDocument(base, day, text, { checksum: `${sha256}  ${SYMBOL}-trades-2001-01-01.zip\n` });
    },
    code: 'SOURCE_CHECKSUM_MISMATCH',
  },
];

export const BAD_DOCUMENTS: ReadonlyMap<Vendor, readonly BadCase[]> = new Map(
  [VENDOR_A, VENDOR_B, VENDOR_C].map((vendor) => [
    vendor,
    [...archives(vendor), ...rows(vendor), ...(vendor === VENDOR_A ? checksums : [])],
  ]),
);

/** Oddities that are read: the same events, whatever surrounds them. */
export const ODD_DOCUMENTS: readonly { readonly name: string; readonly change: (text: string) => string }[] = [
  { name: 'as it is', change: (text) => text },
  { name: 'CRLF ends', change: (text) => text.replaceAll('\n', '\r\n') },
  { name: 'a byte order mark', change: (text) => `\ufeff${text}` },
  { name: 'no last line end', change: (text) => text.trimEnd() },
  { name: 'a mark, CRLF and no last end', change: (text) => `\ufeff${text.trimEnd().replaceAll('\n', '\r\n')}` },
];
