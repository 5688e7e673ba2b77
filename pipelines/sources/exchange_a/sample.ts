/**
 * Synthetic documents in exchange A's layout: generated days and months, zipped, each with its checksum beside it.
 * A day's trades are bytes in the exchange's CSV layout; the same options give the same bytes on every machine. The
 * trades are those of the sample's market, and every quote quantity is exactly price times quantity.
 */

import { mkdir, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DAY_MS, daysBetween } from '../../../shared/dates.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { MarketTrades } from '../../sample/trades.ts';
import { localPath } from '../documents/locations.ts';
import { type WrittenZip, writeZip } from '../documents/zip-writer.ts';
import { documentFor } from './source.ts';

export interface ExchangeADay {
  /** UTC day, `YYYY-MM-DD`. */
  readonly day: string;
  readonly rows: number;
  readonly seed: number;
  /** Id of the first row; ids continue without a gap. Default 1. */
  readonly firstId?: number;
  /** Price of the first trades. Default: the sample market's, so that days follow each other without a jump. */
  readonly startPrice?: number;
  readonly timeUnit: 'ms' | 'us';
  /** Writes a header row first. Default false, as in the vendor's files. */
  readonly header?: boolean;
}

/** What the rows hold, summed from the numbers that were written: an oracle for tests that read the rows back. */
export interface DaySummary {
  readonly rows: number;
  readonly firstId: number;
  readonly lastId: number;
  /** In the time unit of the document. */
  readonly firstTime: number;
  readonly lastTime: number;
  /** Exact sums as decimal text with eight decimals. */
  readonly quantity: string;
  readonly quoteQuantity: string;
  readonly buyerMakerRows: number;
}

const CSV_HEADER = 'id,price,qty,quote_qty,time,is_buyer_maker,is_best_match';

const CHUNK_BYTES = 1024 * 1024;
/** The longest row: id 16, price 21, qty 21, quote 26, time 16, two booleans 11, six commas and a line end. */
const MAX_ROW_BYTES = 128;
/** Prices are whole hundredths and quantities whole hundred-thousandths, like the vendor's tick and lot sizes. */
const PRICE_SCALE = 100;
const QUANTITY_SCALE = 100_000;
const QUOTE_SCALE = PRICE_SCALE * QUANTITY_SCALE;
/** While prices are below a million and quantities at most 20 units, every product is an exact double. */
const MAX_PRICE = 1_000_000 * PRICE_SCALE;
const TWO_TO_MINUS_32 = 2 ** -32;

/** Yields chunks of whole rows, about 1 MiB each. @returns the sums of the rows. */
export function* generateDay(options: ExchangeADay): Generator<Buffer, DaySummary> {
  const { rows, timeUnit, header = false, firstId = 1, startPrice } = options;
  const fromMs = checkOptions(options);
  const random = randomSource(options.seed, fromMs);
  const trades = new MarketTrades({ rows, fromMs, toMs: fromMs + DAY_MS, random, ticks: PRICE_SCALE, startPrice });
  const unitsPerMs = timeUnit === 'us' ? 1000 : 1;
  const row: Row = { id: 0, time: 0, price: 0, quantity: 0, buyerMaker: false };
  let firstTime = 0;
  let quantitySum = 0;
  let quoteSum = 0n;
  let quotePart = 0;
  let buyerMakerRows = 0;

  let chunk = Buffer.allocUnsafeSlow(CHUNK_BYTES);
  let at = header ? chunk.write(`${CSV_HEADER}\n`, 0, 'latin1') : 0;

  for (let index = 0; index < rows; index++) {
    trades.next();
    row.id = firstId + index;
    row.time = fromMs * unitsPerMs + Math.floor(trades.offsetMs * unitsPerMs);
    row.price = Math.min(MAX_PRICE, trades.price);
    row.quantity = trades.size;
    row.buyerMaker = !trades.buy;
    if (index === 0) firstTime = row.time;
    if (row.buyerMaker) buyerMakerRows++;
    quantitySum += row.quantity;
    quotePart += row.price * row.quantity;
    if (quotePart > 2 ** 50) {
      quoteSum += BigInt(quotePart);
      quotePart = 0;
    }
    at = writeRow(chunk, at, row);
    if (at > CHUNK_BYTES - MAX_ROW_BYTES) {
      yield chunk.subarray(0, at);
      chunk = Buffer.allocUnsafeSlow(CHUNK_BYTES);
      at = 0;
    }
  }
  if (at > 0) yield chunk.subarray(0, at);
  return {
    rows,
    firstId,
    lastId: firstId + rows - 1,
    firstTime,
    lastTime: row.time,
    quantity: decimalText(BigInt(quantitySum), QUANTITY_SCALE),
    quoteQuantity: decimalText(quoteSum + BigInt(quotePart), QUOTE_SCALE),
    buyerMakerRows,
  };
}

/** In the document's units. */
interface Row {
  id: number;
  time: number;
  price: number;
  quantity: number;
  buyerMaker: boolean;
}

/** @returns the position after the row. */
function writeRow(chunk: Buffer, from: number, { id, time, price, quantity, buyerMaker }: Row): number {
  let at = writeInteger(chunk, from, id);
  chunk[at++] = COMMA;
  at = writeDecimal(chunk, at, price, PRICE_SCALE);
  chunk[at++] = COMMA;
  at = writeDecimal(chunk, at, quantity, QUANTITY_SCALE);
  chunk[at++] = COMMA;
  at = writeDecimal(chunk, at, price * quantity, QUOTE_SCALE);
  chunk[at++] = COMMA;
  at = writeInteger(chunk, at, time);
  const flags = buyerMaker ? TRUE_TRUE : FALSE_TRUE;
  for (let i = 0; i < flags.length; i++) chunk[at++] = flags[i];
  return at;
}

export interface ExchangeADays {
  /** First and last UTC day, both inclusive. */
  readonly from: string;
  readonly to: string;
  readonly rowsPerDay: number;
  readonly seed: number;
  readonly firstId?: number;
  readonly timeUnit: 'ms' | 'us';
}

/** Consecutive days: ids and prices continue over midnight. */
export function consecutiveDays({ from, to, rowsPerDay, seed, firstId = 1, timeUnit }: ExchangeADays): ExchangeADay[] {
  return daysBetween(from, to).map((day, index) => ({
    day,
    rows: rowsPerDay,
    seed,
    firstId: firstId + index * rowsPerDay,
    timeUnit,
  }));
}

/** Start of a day in ms. @throws TidemarkError USAGE if it is not a calendar day. */
function dayStartOf(day: string): number {
  const start = /^\d{4}-\d{2}-\d{2}$/.test(day) ? Date.parse(`${day}T00:00:00.000Z`) : Number.NaN;
  if (Number.isNaN(start) || new Date(start).toISOString().slice(0, 10) !== day)
    throw new TidemarkError('USAGE', `${JSON.stringify(day)} is not a day (YYYY-MM-DD)`);
  return start;
}

function checkOptions(options: ExchangeADay): number {
  const { rows, seed, firstId = 1, startPrice = 1 } = options;
  const highestPrice = (MAX_PRICE * 0.9) / PRICE_SCALE;
  if (!Number.isSafeInteger(rows) || rows < 0) throw new TidemarkError('USAGE', 'rows must be a whole number');
  if (!Number.isSafeInteger(seed)) throw new TidemarkError('USAGE', 'seed must be a whole number');
  if (!Number.isSafeInteger(firstId) || firstId < 0 || !Number.isSafeInteger(firstId + rows))
    throw new TidemarkError('USAGE', 'firstId must be a whole number');
  if (!(startPrice >= 1 && startPrice <= highestPrice))
    throw new TidemarkError('USAGE', `startPrice must be between 1 and ${highestPrice}`);
  return dayStartOf(options.day);
}

/**
 * The generator sfc32, seeded by the seed and the day: uniform in (0, 1), never 0, because the roots must be below 1.
 */
function randomSource(seed: number, dayStartMs: number): () => number {
  let a = seed | 0;
  let b = Math.floor(seed / 2 ** 32) | 0;
  let c = Math.floor(dayStartMs / DAY_MS) | 0;
  let counter = 1;
  const next = () => {
    const t = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + t) | 0;
    return ((t >>> 0) + 0.5) * TWO_TO_MINUS_32;
  };
  for (let i = 0; i < 16; i++) next();
  return next;
}

const COMMA = 0x2c;
const TRUE_TRUE = Buffer.from(',True,True\n', 'latin1');
const FALSE_TRUE = Buffer.from(',False,True\n', 'latin1');
/** The four digits of every number below 10,000, as a table. */
const DIGITS = Buffer.from(
  Array.from({ length: 10_000 }, (_, value) => String(value).padStart(4, '0')).join(''),
  'latin1',
);

function writeFour(target: Buffer, at: number, value: number): number {
  const from = value << 2;
  target[at] = DIGITS[from];
  target[at + 1] = DIGITS[from + 1];
  target[at + 2] = DIGITS[from + 2];
  target[at + 3] = DIGITS[from + 3];
  return at + 4;
}

function writeInteger(target: Buffer, at: number, value: number): number {
  if (value >= 10_000) {
    const high = Math.floor(value / 10_000);
    return writeFour(target, writeInteger(target, at, high), value - high * 10_000);
  }
  const from = value << 2;
  if (value >= 1000) target[at++] = DIGITS[from];
  if (value >= 100) target[at++] = DIGITS[from + 1];
  if (value >= 10) target[at++] = DIGITS[from + 2];
  target[at] = DIGITS[from + 3];
  return at + 1;
}

/** Writes `value / scale` with eight decimals; scale is a power of ten up to 10^8. */
function writeDecimal(target: Buffer, at: number, value: number, scale: number): number {
  const whole = Math.floor(value / scale);
  const fraction = (value - whole * scale) * (100_000_000 / scale);
  let end = writeInteger(target, at, whole);
  target[end++] = 0x2e;
  const high = (fraction / 10_000) | 0;
  end = writeFour(target, end, high);
  return writeFour(target, end, fraction - high * 10_000);
}

function decimalText(units: bigint, scale: number): string {
  const scaled = units * BigInt(100_000_000 / scale);
  return `${scaled / 100_000_000n}.${String(scaled % 100_000_000n).padStart(8, '0')}`;
}

export interface WriteOptions {
  /** The base folder of the layout; `spot/daily/...` is created below it. */
  readonly directory: string;
  readonly symbol: string;
  /** zlib level, default 4. */
  readonly level?: number;
}

export interface WrittenDocument extends WrittenZip {
  readonly checksumPath: string;
  /** One summary per day, in order. */
  readonly days: readonly DaySummary[];
}

/** Writes `spot/daily/trades/SYMBOL/SYMBOL-trades-YYYY-MM-DD.zip` and its `.CHECKSUM`. */
export async function writeDay(options: WriteOptions & ExchangeADay): Promise<WrittenDocument> {
  return writeDocument(options, options.day, [options]);
}

/** Writes `spot/monthly/trades/SYMBOL/SYMBOL-trades-YYYY-MM.zip` with exactly the rows of these days of one month. */
export async function writeMonth(
  options: WriteOptions & { readonly days: readonly ExchangeADay[] },
): Promise<WrittenDocument> {
  const month = options.days[0]?.day.slice(0, 7);
  assert(
    month !== undefined && options.days.every((day) => day.day.startsWith(month)),
    'all days must be of one month',
  );
  return writeDocument(options, month, options.days);
}

async function writeDocument(
  options: WriteOptions,
  period: string,
  days: readonly ExchangeADay[],
): Promise<WrittenDocument> {
  const { name, memberName, url, checksumUrl, endMs } = documentFor(
    baseUrlOf(options.directory),
    options.symbol,
    period,
  );
  const summaries: DaySummary[] = [];
  const chunks = function* () {
    for (const [index, day] of days.entries()) {
      // A file has at most one header.
      summaries.push(yield* generateDay({ ...day, header: day.header === true && index === 0 }));
    }
  };
  const path = localPath(url);
  const zip = await writeZip({ path, memberName, chunks: chunks(), modified: new Date(endMs), level: options.level });
  const checksumPath = localPath(checksumUrl);
  await writeWhole(checksumPath, `${zip.sha256}  ${name}\n`);
  return { ...zip, checksumPath, days: summaries };
}

async function writeWhole(path: string, text: string): Promise<void> {
  const partial = `${path}.${process.pid}.partial`;
  await mkdir(dirname(path), { recursive: true });
  await writeFile(partial, text);
  await rename(partial, path);
}

const baseUrlOf = (directory: string) => pathToFileURL(join(directory, '/'));
