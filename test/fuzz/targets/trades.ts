/** The trade files of the three exchanges, plain and packed, held against a reading by plain text handling and BigInts. */
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { openGzip, openZipMember } from '../../../pipelines/sources/documents/zip-reader.ts';
import type { DecodedItem } from '../../../pipelines/sources/feed-types.ts';
import type { TidemarkError } from '../../../shared/errors.ts';
import { exactDecimal, fixed, unitsOf } from '../../support/decimals.ts';
import {
  EXCHANGE_A,
  EXCHANGE_B,
  EXCHANGE_C,
  EXCHANGE_C_SPOT,
  LAYOUTS,
  type TradeLayout,
} from '../../support/trade-layouts.ts';
import { decodeFile, endsOf, runsOf } from '../../support/trades.ts';
import { VENDORS, type Vendor } from '../../support/vendors.ts';
import { refusal, same, type Target, Wrong } from '../target.ts';

const ROOT = join(import.meta.dirname, '../../..');
const REAL = join(ROOT, 'test/data/real');
const SHARED = join(ROOT, '../shared/data');

/** A row as plain text handling reads it. */
interface ReadRow {
  readonly line: string;
  readonly id: number;
  readonly ms: number;
  readonly values: Readonly<Record<string, string>>;
}

type RowReader = (cells: readonly string[], toMs: number) => Omit<ReadRow, 'line'>;

/** Decimal seconds to the nearest millisecond, half up, by digits. */
function msOfSeconds(text: string, toMs: number): number {
  const [whole, decimals = ''] = text.split('.');
  const tenths = Number(decimals.slice(0, 4).padEnd(4, '0'));
  return Math.min(Number(whole) * 1000 + Math.floor((tenths + 5) / 10), toMs - 1);
}

/** The decimals here have 30 places; so small a product has no units. */
const product = (a: string, b: string, factor = 1n) =>
  Number(a) * Number(b) < 1e-9 ? '0' : fixed(String(exactDecimal(a) * exactDecimal(b) * factor), 60);

const readA: RowReader = ([id, price, quantity, quote, time]) => ({
  id: Number(id),
  ms: time.length === 16 ? Math.floor(Number(time) / 1000) : Number(time),
  values: { price, quantity, quote_quantity: quote },
});
const readB: RowReader = ([, id, , price, size, time]) => ({
  id: Number(id),
  ms: Number(time),
  values: { price, size, quote_quantity: product(price, size) },
});
const readTrading: RowReader = ([time, , , size, price, , id, gross, home, foreign], toMs) => ({
  id: Number(id.slice(2)),
  ms: msOfSeconds(time, toMs),
  values: { price, size, gross_value: gross, home_notional: home, foreign_notional: foreign },
});
const readSpot: RowReader = ([id, time, price, volume]) => {
  const foreign = product(price, volume);
  const gross = product(price, volume, 10n ** 8n);
  return {
    id: Number(id),
    ms: Number(time),
    values: { price, size: volume, gross_value: gross, home_notional: volume, foreign_notional: foreign },
  };
};

const READERS: ReadonlyMap<TradeLayout, RowReader> = new Map([
  [EXCHANGE_A, readA],
  [EXCHANGE_B, readB],
  [EXCHANGE_C, readTrading],
  [EXCHANGE_C_SPOT, readSpot],
]);

const isHeader = (line: string) => /^\W*[a-z]/i.test(line) && !/\d{5}/.test(line);

/** What a manifest must say of an accepted file. */
function factsByText(layout: TradeLayout, bytes: Buffer): object {
  const lines = bytes
    .toString('latin1')
    .replace(/^\xef\xbb\xbf/, '')
    .split('\n');
  if (lines.at(-1) === '') lines.pop();
  const plain = lines.map((line) => line.replace(/\r$/, ''));
  if (isHeader(plain[0])) plain.shift();
  const { native } = layout.dataset;
  const rows = plain.map((line): ReadRow => ({ line, ...READERS.get(layout)!(line.split(','), layout.toMs) }));
  const sorted = layout === EXCHANGE_A ? rows : rows.toSorted((a, b) => a.id - b.id);
  const kept = sorted.filter(({ id }, index) => index === 0 || id !== sorted[index - 1].id);
  const totals = native.totals.map(({ column, scale }) => {
    const sum = kept.reduce((total, { values }) => total + unitsOf(Number(values[column]), scale), 0n);
    return [column, sum.toString()];
  });
  const times = kept.map(({ ms }) => ms);
  const [first, last] = [kept[0].id, kept.at(-1)!.id];
  const digest = createHash('sha256').update(Buffer.from(kept.map(({ line }) => `${line}\n`).join(''), 'latin1'));
  return {
    rows: kept.length,
    first_offset: String(first),
    last_offset: String(last),
    first_ms: Math.min(...times),
    last_ms: Math.max(...times),
    // Ids of a day of exchange C's spot files begin at 1.
    gaps: last - (layout === EXCHANGE_C_SPOT ? 1 : first) + 1 - kept.length,
    totals: Object.fromEntries(totals),
    events_sha256: digest.digest('hex'),
  };
}

/** The facts of the decoder, the reading by text, and the projector's reading of every frame. */
function compare(layout: TradeLayout, day: string, items: readonly DecodedItem[], bytes: Buffer): string {
  const [end, ...others] = endsOf(items);
  if (others.length > 0) throw new Wrong(`${others.length + 1} partitions in a file of a day`);
  const { rows_hash, repeats_dropped, missing_offsets, ...facts } = end.facts;
  const expected = factsByText(layout, bytes) as { [name: string]: unknown };
  for (const [name, value] of Object.entries(facts)) same(name, value, expected[name]);
  if (!/^-?\d+$/.test(rows_hash)) throw new Wrong(`rows_hash is ${rows_hash}`);
  if (repeats_dropped !== undefined && repeats_dropped < 0) throw new Wrong(`${repeats_dropped} repeats`);
  if ((missing_offsets?.length ?? 0) > facts.gaps) throw new Wrong(`${missing_offsets} of ${facts.gaps} gaps`);
  const projector = layout.projector(day);
  let rows = 0;
  for (const run of runsOf(items)) rows += projector.rows(run.raw, run.rows).rows;
  same('rows of the projector', rows, facts.rows);
  projector.aligned({ datasetId: 1, seriesId: 1 });
  return `accepted${repeats_dropped ? ', repeats' : ''}${facts.gaps > 0 ? ', gaps' : ''}`;
}

/** What is said of a whole file, which has no line. */
const OF_THE_FILE = /holds no rows|more rows than are sorted/;

/** A refusal of rows names document and line. */
function located(error: unknown, document: string, bytes: Buffer | undefined): string {
  const outcome = refusal(error);
  const { code, details, message } = error as TidemarkError;
  const { line } = details;
  const isArchive = bytes === undefined && line === undefined;
  if (code !== 'SOURCE_DOCUMENT_INVALID' || isArchive || OF_THE_FILE.test(message)) return outcome;
  if (!message.includes(`${document}, line ${line}: `) || details.document !== document)
    throw new Wrong(`does not name its line: ${message}`, { cause: error });
  const lines = bytes?.reduce((count, byte) => count + (byte === 10 ? 1 : 0), 1) ?? Number.POSITIVE_INFINITY;
  if (!(Number(line) >= 1 && Number(line) <= lines))
    throw new Wrong(`names line ${line} of ${lines}`, { cause: error });
  return outcome;
}

/** What must not depend on how a file is cut. Of two faults in a line, either may be found first. */
const outcomeOf = ({
  items,
  error,
}: {
  readonly items?: readonly DecodedItem[];
  readonly error?: unknown;
}): unknown => {
  if (items) return endsOf(items).map(({ facts }) => facts);
  return ['refused', (error as TidemarkError).details.line];
};

function plainTarget(layout: TradeLayout, day: string, name: string, seeds: readonly Buffer[]): Target {
  let turn = 0;
  const document = layout.document.replaceAll(layout.day, day);
  const read = (bytes: Buffer, pieces: readonly number[], frame: number, run?: number) => {
    try {
      return { items: decodeFile(layout, bytes, { day, pieces, frame, run }) };
    } catch (error) {
      return { error, outcome: located(error, document, bytes) };
    }
  };
  return {
    name,
    form: 'lines',
    seeds,
    words: [
      ...layout.headers.filter((header) => header !== undefined),
      'True',
      'FALSE',
      'buy',
      'Sell',
      'm-',
      'BTCUSDT',
      '\r\n',
    ],
    run(bytes) {
      const whole = read(bytes, [], 1 << 14);
      turn++;
      const cut = read(bytes, [1 + (turn % 97), 1 + (turn % 13)], 1 + (turn % 400));
      same('the same file in pieces', outcomeOf(cut), outcomeOf(whole));
      if (!bytes.includes(13)) {
        // Rows that end with CR LF are read by the decoder alone, without the scanner.
        const parsed = read(Buffer.from(bytes.toString('latin1').replaceAll('\n', '\r\n'), 'latin1'), [], 1 << 14);
        same('the same file without the scanner', outcomeOf(parsed), outcomeOf(whole));
      }
      if (layout === EXCHANGE_C || layout === EXCHANGE_C_SPOT) {
        // Rows nearly in order are parsed while the file is read. Of faults in several lines, another may then be found first.
        const inRuns = read(bytes, [1 + (turn % 97)], 1 + (turn % 400), 1 + (turn % 600));
        const outcomes = [inRuns, whole].map((found) => (found.items ? outcomeOf(found) : 'refused'));
        same('the same file in runs', outcomes[0], outcomes[1]);
      }
      return whole.items ? compare(layout, day, whole.items, bytes) : whole.outcome;
    },
  };
}

/** The CRC of a zip's first entry, by its directory. */
function crcOf(zip: Buffer): number {
  const end = zip.lastIndexOf('PK\x05\x06', undefined, 'latin1');
  return zip.readUInt32LE(zip.readUInt32LE(end + 16) + 16);
}

function archiveTarget(vendor: Vendor, seeds: readonly Buffer[], scratch: string): Target {
  const { layout } = vendor;
  const isZip = vendor.archive === 'zip';
  const path = join(scratch, `${layout.dataset.key}.${vendor.archive}`);
  const expectedName = isZip ? vendor.document(layout.day).replace(/zip$/, 'csv') : 'x.csv';
  const packed = seeds.map((seed) => vendor.pack(layout.day, seed));
  return {
    name: `${layout.dataset.key} ${vendor.archive}`,
    form: 'bytes',
    weight: 2,
    seeds: packed,
    words: ['PK\x01\x02', 'PK\x03\x04', 'PK\x05\x06', 'PK\x06\x06', 'PK\x06\x07', expectedName, '\x1f\x8b\x08'],
    async run(bytes) {
      await writeFile(path, bytes);
      const chunks: Buffer[] = [];
      const options = { path, expectedName, maxUnpackedBytes: 1 << 20, document: layout.document };
      try {
        const member = await (isZip ? openZipMember : openGzip)(options);
        for await (const chunk of member.stream()) chunks.push(Buffer.from(chunk));
        const content = Buffer.concat(chunks);
        if (isZip) same('CRC of the content', crc32(content), crcOf(bytes));
        return compare(layout, layout.day, decodeFile(layout, content), content);
      } catch (error) {
        return located(error, layout.document, undefined);
      }
    },
  };
}

/** Excerpts of real files with the layouts of other years; rows of other days are refused at once. */
function excerpts(exchange: string): Buffer[] {
  const folder = join(SHARED, exchange, 'excerpts');
  if (!existsSync(folder)) return [];
  return readdirSync(folder).map((name) => readFileSync(join(folder, name)));
}

const seedsOf = (layout: TradeLayout): Buffer[] =>
  layout.headers.flatMap((header, index) =>
    [1, 3, 12, 40].map((rows) => {
      const wide = header !== undefined && header.split(',').length > layout.columns.length;
      const lines = Array.from({ length: rows }, (_, row) => {
        const line = layout.row(1000 + row);
        return wide ? `${line},0` : line;
      });
      const end = index % 2 === 0 ? '\n' : '\r\n';
      return Buffer.from([...(header === undefined ? [] : [header]), ...lines, ''].join(end));
    }),
  );

/** @param scratch a folder for packed files */
export function tradeTargets(scratch: string): Target[] {
  const answers = JSON.parse(readFileSync(join(REAL, 'answers.json'), 'utf8'));
  const real = Object.keys(answers)
    .filter((name) => name.startsWith('exchange_'))
    .map((name) => {
      const layout = LAYOUTS.find(({ dataset }) => dataset.key === answers[name].layout)!;
      return plainTarget(layout, answers[name].day, name, [readFileSync(join(REAL, name))]);
    });
  const made = LAYOUTS.map((layout) => {
    const exchange = layout.dataset.key.slice(0, 'exchange_a'.length);
    return {
      ...plainTarget(layout, layout.day, layout === EXCHANGE_C ? `${layout.dataset.key} trading` : layout.dataset.key, [
        ...seedsOf(layout),
        ...excerpts(exchange),
      ]),
      weight: 10,
    };
  });
  const packed = VENDORS.map((vendor) => archiveTarget(vendor, seedsOf(vendor.layout), scratch));
  return [...made, ...real, ...packed];
}
