/**
 * Scans rows of trade files whose cells are written as usual. It is AssemblyScript, which `npm run wasm` compiles to
 * ../row-scanner.wasm; ../row-scanner.ts lays out the memory. A scan ends before the first row that is not as usual, and
 * the vendor's decoder reads or refuses that row, so a scan has no errors of its own. A scan must read every row that it takes
 * exactly as the decoder reads it.
 */
import {
  byte,
  comma,
  decimal,
  digits,
  flag,
  flagOrNone,
  isEnd,
  isUsual,
  known,
  LF,
  letters,
  MAX_SCALE,
  newRow,
  number,
  odd,
  offset,
  quotient,
  rounded,
  SCALE,
  scale,
  seconds,
  side,
  units,
  value,
  whole,
} from './cells.ts';
import { hashFloat8, hashInt8, hashSide, hashText } from './hash.ts';

const MAX_ROW_BYTES: usize = 512;
/** Most rows of a scan: sums of so many units below 2^51 fit in an i64. */
export const MAX_ROWS: i32 = 4096;
/** What a scan found, in places of 8 bytes: five numbers, then seven whole numbers of 64 bits. */
export const result: usize = memory.data(96);
/** The text that every row of exchange B or C has: its length, then its bytes. */
export const symbol: usize = memory.data(72);

let rows: i32 = 0;
let firstId: u64 = 0;
let lastId: u64 = 0;
let leastMs: u64 = 0;
let mostMs: u64 = 0;
/** Of the signed high and the unsigned low halves of the hashes. */
let sumHigh: i64 = 0;
let sumLow: u64 = 0;
/** Of the units of the columns, in their order in the manifest. */
let sum0: u64 = 0;
let sum1: u64 = 0;
let sum2: u64 = 0;
let sum3: u64 = 0;
let sum4: u64 = 0;

function begin(): void {
  rows = 0;
  firstId = 0;
  lastId = 0;
  leastMs = u64.MAX_VALUE;
  mostMs = 0;
  sumHigh = 0;
  sumLow = 0;
  sum0 = 0;
  sum1 = 0;
  sum2 = 0;
  sum3 = 0;
  sum4 = 0;
}

function count(id: u64, ms: u64, hash: u64): void {
  if (rows === 0) firstId = id;
  if (ms < leastMs) leastMs = ms;
  if (ms > mostMs) mostMs = ms;
  lastId = id;
  sumHigh += <i64>(<i32>(hash >> 32));
  sumLow += hash & 0xffffffff;
  rows++;
}

/** Stores what the rows add up to. @returns the position of the first row that was not read */
function end(position: usize): usize {
  store<f64>(result, <f64>rows);
  store<f64>(result, <f64>firstId, 8);
  store<f64>(result, <f64>lastId, 16);
  store<f64>(result, <f64>leastMs, 24);
  store<f64>(result, <f64>mostMs, 32);
  store<i64>(result, sumHigh, 40);
  store<u64>(result, sumLow, 48);
  store<u64>(result, sum0, 56);
  store<u64>(result, sum1, 64);
  store<u64>(result, sum2, 72);
  store<u64>(result, sum3, 80);
  store<u64>(result, sum4, 88);
  return position;
}

/** The LF of a row that began at `start`. @returns the position of the next row */
function endOfRow(p: usize, start: usize): usize {
  if (byte(p) !== LF || p - start > MAX_ROW_BYTES) odd();
  return p + 1;
}

/**
 * Rows of exchange A in [from, to), whole lines, until they have `room` bytes.
 * @param nextId the id of the first; -1 for any
 */
export function scanA(from: usize, to: usize, room: usize, nextId: f64, fromMs: f64, toMs: f64): usize {
  begin();
  let start = from;
  let expected = <i64>nextId;
  while (start < to && start - from < room && rows < MAX_ROWS) {
    newRow();
    let p = offset(start);
    const id = whole;
    p = decimal(comma(p), false, SCALE);
    const price = value;
    const priceUnits = units;
    p = decimal(comma(p), false, SCALE);
    const quantity = value;
    const quantityUnits = units;
    p = decimal(comma(p), false, SCALE);
    const quote = value;
    const quoteUnits = units;
    const time = comma(p);
    p = number(time, 16);
    let ms = whole;
    if (p - time === 16) ms /= 1000;
    else if (p - time !== 13) odd();
    p = flag(comma(p));
    const maker = whole;
    p = flag(comma(p));
    const best = whole;
    const next = endOfRow(p, start);
    if (!isUsual || ms < <u64>fromMs || ms >= <u64>toMs || (<i64>id !== expected && expected >= 0)) break;
    let hash = (ms << 2) | maker | (best << 1);
    hash = hashInt8(hash, id);
    hash = hashFloat8(hash, price);
    hash = hashFloat8(hash, quantity);
    hash = hashFloat8(hash, quote);
    count(id, ms, hash);
    sum0 += priceUnits;
    sum1 += quantityUnits;
    sum2 += quoteUnits;
    expected = <i64>id + 1;
    start = next;
  }
  return end(start);
}

/** Rows of exchange B, as `scanA`. @param afterId the id that the first is above; -1 for any @param more a last column */
export function scanB(from: usize, to: usize, room: usize, afterId: f64, fromMs: f64, toMs: f64, more: bool): usize {
  begin();
  const text = symbol + 4;
  const length = load<u32>(symbol);
  let start = from;
  let before = <i64>afterId;
  while (start < to && start - from < room && rows < MAX_ROWS) {
    newRow();
    let p = offset(comma(known(start, text, length)));
    const id = whole;
    p = side(comma(p));
    const taker = <u32>whole;
    p = decimal(comma(p), false, SCALE);
    const price = value;
    const priceUnits = units;
    const priceDigits = <f64>digits;
    const priceScale = scale;
    p = decimal(comma(p), false, SCALE);
    const size = value;
    const sizeUnits = units;
    const places = priceScale + scale;
    // A price of more digits than a float64 holds is left to the decoder.
    if (priceDigits >= 9007199254740992 || places > MAX_SCALE) odd();
    const quote = isUsual ? quotient(digits, priceDigits, places) : NaN;
    const quoteUnits = rounded(quote * SCALE);
    const time = comma(p);
    p = number(time, 13);
    const ms = whole;
    if (p - time !== 13) odd();
    if (more) for (p = comma(p); p < to && !isEnd(p); ) p++;
    const next = endOfRow(p, start);
    if (!isUsual || ms < <u64>fromMs || ms >= <u64>toMs || <i64>id <= before) break;
    let hash = hashInt8(ms, id);
    hash = hashFloat8(hash, price);
    hash = hashFloat8(hash, size);
    hash = hashFloat8(hash, quote);
    hash = hashSide(hash, taker);
    hash = hashText(hash, text, length);
    count(id, ms, hash);
    sum0 += priceUnits;
    sum1 += sizeUnits;
    sum2 += quoteUnits;
    before = <i64>id;
    start = next;
  }
  return end(start);
}

/**
 * Rows of exchange C in any order. The id, time, place and length of each go into lists, which have room for MAX_ROWS.
 * @param rpi whether rows have that column
 */
export function scanC(
  from: usize,
  to: usize,
  fromMs: f64,
  toMs: f64,
  rpi: bool,
  ids: usize,
  times: usize,
  places: usize,
  lengths: usize,
): usize {
  begin();
  const text = symbol + 4;
  const length = load<u32>(symbol);
  let start = from;
  while (start < to && rows < MAX_ROWS) {
    newRow();
    let p = seconds(start, <u64>fromMs, <u64>toMs);
    const ms = whole;
    p = side(comma(known(comma(p), text, length)));
    const taker = <u32>whole;
    p = decimal(comma(p), true, SCALE);
    const size = value;
    const sizeUnits = units;
    p = decimal(comma(p), false, SCALE);
    const price = value;
    const priceUnits = units;
    const tick = comma(p);
    p = letters(tick);
    const tickBytes = <u32>(p - tick);
    const match = comma(p);
    // `m-`
    if (load<u16>(match) !== 0x2d6d) odd();
    p = number(match + 2, 15);
    const id = whole;
    const matchBytes = <u32>(p - match);
    p = decimal(comma(p), false, 1);
    const gross = value;
    const grossUnits = units;
    p = decimal(comma(p), true, SCALE);
    const home = value;
    const homeUnits = units;
    p = decimal(comma(p), false, SCALE);
    const foreign = value;
    const foreignUnits = units;
    if (rpi) p = flagOrNone(comma(p));
    const next = endOfRow(p, start);
    if (!isUsual) break;
    let hash = hashFloat8(hashFloat8(hashInt8(ms, id), price), size);
    hash = hashFloat8(hashFloat8(hashFloat8(hash, gross), home), foreign);
    hash = hashText(hashText(hashSide(hash, taker), tick, tickBytes), text, length);
    hash = hashText(hash, match, matchBytes);
    const row = <usize>rows;
    store<f64>(ids + (row << 3), <f64>id);
    store<f64>(times + (row << 3), <f64>ms);
    store<u32>(places + (row << 2), <u32>(start - from));
    store<u16>(lengths + (row << 1), <u16>(next - start - 1));
    count(id, ms, hash);
    sum0 += priceUnits;
    sum1 += sizeUnits;
    sum2 += grossUnits;
    sum3 += homeUnits;
    sum4 += foreignUnits;
    start = next;
  }
  return end(start);
}
