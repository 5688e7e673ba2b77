/**
 * Synthetic documents in exchange A's layout: generated days and months, zipped, each with its checksum beside it.
 * A day's trades are bytes in the exchange's CSV layout; the same options give the same bytes on every machine. Prices
 * drift from `startPrice` to `endPrice`, trades arrive in bursts of fills of one taker order, hours differ in activity,
 * and every quote quantity is exactly price times quantity.
 */

import { mkdir, rename, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DAY_MS } from '../../../shared/dates.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
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
  /** Price of the first trades. Default 40000. */
  readonly startPrice?: number;
  /** Price that the day drifts to. Default `startPrice`; the next day's start price gives a series without jumps. */
  readonly endPrice?: number;
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
/** 20 units. While prices are below a million, every product is an exact double. */
const MAX_QUANTITY = 20 * QUANTITY_SCALE;
const MAX_PRICE = 1_000_000 * PRICE_SCALE;
/** The chance of one more fill of a taker order, and the mean number of fills that follows from it. */
const MORE_FILLS = 0.58;
const MEAN_FILLS = 1 / (1 - MORE_FILLS);
const TWO_TO_MINUS_32 = 2 ** -32;

/** Yields chunks of whole rows, about 1 MiB each. @returns the sums of the rows. */
export function* generateDay(options: ExchangeADay): Generator<Buffer, DaySummary> {
  const { rows, timeUnit, header = false, firstId = 1, startPrice = 40_000, endPrice = startPrice } = options;
  const dayStartMs = checkOptions(options);
  const random = randomSource(options.seed, dayStartMs);
  const orders = new OrderFlow(random, {
    dayStart: timeUnit === 'us' ? dayStartMs * 1000 : dayStartMs,
    dayLength: timeUnit === 'us' ? 1000 * DAY_MS : DAY_MS,
    from: Math.round(startPrice * PRICE_SCALE),
    to: Math.round(endPrice * PRICE_SCALE),
  });
  let firstTime = 0;
  let quantitySum = 0;
  let quoteSum = 0n;
  let quotePart = 0;
  let buyerMakerRows = 0;

  let chunk = Buffer.allocUnsafeSlow(CHUNK_BYTES);
  let at = header ? chunk.write(`${CSV_HEADER}\n`, 0, 'latin1') : 0;

  for (let row = 0; row < rows; row++) {
    orders.next(rows - row);
    const quantity = drawQuantity(random);
    if (row === 0) firstTime = orders.time;
    if (orders.buyerMaker) buyerMakerRows++;
    quantitySum += quantity;
    quotePart += orders.price * quantity;
    if (quotePart > 2 ** 50) {
      quoteSum += BigInt(quotePart);
      quotePart = 0;
    }
    at = writeRow(chunk, at, firstId + row, orders, quantity);
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
    lastTime: orders.time,
    quantity: decimalText(BigInt(quantitySum), QUANTITY_SCALE),
    quoteQuantity: decimalText(quoteSum + BigInt(quotePart), QUOTE_SCALE),
    buyerMakerRows,
  };
}

interface FlowOptions {
  /** In the document's time unit, like `dayLength`. */
  readonly dayStart: number;
  readonly dayLength: number;
  /** First and last price, in ticks. */
  readonly from: number;
  readonly to: number;
}

/** Taker orders of one day, each filled by one or several trades. `next` puts the trade into the fields. */
class OrderFlow {
  time: number;
  price: number;
  buyerMaker = false;
  readonly #random: () => number;
  readonly #options: FlowOptions;
  readonly #hours: Float64Array;
  #bid: number;
  /** The fraction of the day's activity that has passed. */
  #position = 0;
  #fills = 0;

  constructor(random: () => number, options: FlowOptions) {
    this.#random = random;
    this.#options = options;
    this.#hours = cumulativeActivity(random);
    this.time = options.dayStart;
    this.#bid = options.from;
    this.price = this.#bid;
  }

  next(tradesLeft: number): void {
    if (this.#fills === 0) this.#order(tradesLeft);
    else if (this.#random() < 0.2) this.price = this.buyerMaker ? Math.max(1, this.price - 1) : this.price + 1;
    this.#fills--;
  }

  #order(tradesLeft: number): void {
    const random = this.#random;
    const { dayStart, dayLength, from, to } = this.#options;
    // The next remaining order is an order statistic of as many uniform points, so times come sorted without a sort.
    const ordersLeft = Math.max(1, tradesLeft / MEAN_FILLS);
    this.#position += (1 - this.#position) * (1 - random() ** (1 / ordersLeft));
    const activity = activityTime(this.#hours, this.#position);
    this.time = dayStart + Math.min(dayLength - 1, Math.floor(activity * dayLength));
    // The taker's side persists. The best bid moves rarely, by few ticks, and drifts towards the day's line.
    if (random() < 0.35) this.buyerMaker = !this.buyerMaker;
    const move = random();
    if (move < 0.4) {
      const ticks = move < 0.004 ? 1 + Math.floor(400 * random()) : 1 + Math.floor(8 * random());
      const pull = (from + (to - from) * this.#position - this.#bid) / from;
      this.#bid += random() < 0.5 + 20 * pull ? ticks : -ticks;
      this.#bid = Math.min(MAX_PRICE, Math.max(1, this.#bid));
    }
    this.price = this.buyerMaker ? this.#bid : this.#bid + 1;
    this.#fills = 1;
    while (this.#fills < 64 && random() < MORE_FILLS) this.#fills++;
  }
}

/** @returns the position after the row. */
function writeRow(chunk: Buffer, from: number, id: number, orders: OrderFlow, quantity: number): number {
  let at = writeInteger(chunk, from, id);
  chunk[at++] = COMMA;
  at = writeDecimal(chunk, at, orders.price, PRICE_SCALE);
  chunk[at++] = COMMA;
  at = writeDecimal(chunk, at, quantity, QUANTITY_SCALE);
  chunk[at++] = COMMA;
  at = writeDecimal(chunk, at, orders.price * quantity, QUOTE_SCALE);
  chunk[at++] = COMMA;
  at = writeInteger(chunk, at, orders.time);
  const flags = orders.buyerMaker ? TRUE_TRUE : FALSE_TRUE;
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
  readonly startPrice?: number;
  readonly timeUnit: 'ms' | 'us';
}

/** Consecutive days: ids continue over midnight, and each day drifts to the price at which the next one starts. */
export function consecutiveDays(options: ExchangeADays): ExchangeADay[] {
  const first = dayStartOf(options.from);
  const last = dayStartOf(options.to);
  const random = randomSource(options.seed, first);
  const days: ExchangeADay[] = [];
  let startPrice = options.startPrice ?? 40_000;
  let firstId = options.firstId ?? 1;
  for (let at = first; at <= last; at += DAY_MS) {
    const endPrice = Math.round(startPrice * (0.98 + 0.04 * random()) * PRICE_SCALE) / PRICE_SCALE;
    days.push({
      day: new Date(at).toISOString().slice(0, 10),
      rows: options.rowsPerDay,
      seed: options.seed,
      firstId,
      startPrice,
      endPrice,
      timeUnit: options.timeUnit,
    });
    startPrice = endPrice;
    firstId += options.rowsPerDay;
  }
  return days;
}

/** Start of a day in ms. @throws TidemarkError USAGE if it is not a calendar day. */
function dayStartOf(day: string): number {
  const start = /^\d{4}-\d{2}-\d{2}$/.test(day) ? Date.parse(`${day}T00:00:00.000Z`) : Number.NaN;
  if (Number.isNaN(start) || new Date(start).toISOString().slice(0, 10) !== day)
    throw new TidemarkError('USAGE', `${JSON.stringify(day)} is not a day (YYYY-MM-DD)`);
  return start;
}

function checkOptions(options: ExchangeADay): number {
  const { rows, seed, firstId = 1, startPrice = 40_000, endPrice = startPrice } = options;
  const highestPrice = (MAX_PRICE * 0.9) / PRICE_SCALE;
  if (!Number.isSafeInteger(rows) || rows < 0) throw new TidemarkError('USAGE', 'rows must be a whole number');
  if (!Number.isSafeInteger(seed)) throw new TidemarkError('USAGE', 'seed must be a whole number');
  if (!Number.isSafeInteger(firstId) || firstId < 0 || !Number.isSafeInteger(firstId + rows))
    throw new TidemarkError('USAGE', 'firstId must be a whole number');
  for (const price of [startPrice, endPrice]) {
    if (!(price >= 1 && price <= highestPrice))
      throw new TidemarkError('USAGE', `prices must be between 1 and ${highestPrice}`);
  }
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

/** Cumulative share of the day's orders at each full hour: 25 values from 0 to 1. */
function cumulativeActivity(random: () => number): Float64Array {
  const shares = new Float64Array(25);
  for (let hour = 1; hour <= 24; hour++) shares[hour] = shares[hour - 1] + 0.4 + random() * 1.6;
  const total = shares[24];
  for (let hour = 1; hour < 24; hour++) shares[hour] /= total;
  shares[24] = 1;
  return shares;
}

/**
 * The fraction of the day by which this share of its orders has arrived. It is monotone, so times never go backwards.
 */
function activityTime(shares: Float64Array, position: number): number {
  let hour = 0;
  while (hour < 23 && shares[hour + 1] <= position) hour++;
  return (hour + (position - shares[hour]) / (shares[hour + 1] - shares[hour])) / 24;
}

/** Mostly very small, sometimes round lots, rarely very large: the distribution of real order books. */
function drawQuantity(random: () => number): number {
  const u = random();
  if (u < 0.12) return ROUND_LOTS[Math.floor((u / 0.12) * ROUND_LOTS.length)];
  const tail = 1 / (u * u) - 1;
  return Math.min(MAX_QUANTITY, 5 + Math.floor(900 * random() * (0.05 + tail)));
}

const ROUND_LOTS = [100, 100, 200, 500, 1000, 1000, 2000, 5000, 10_000, 50_000];

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
