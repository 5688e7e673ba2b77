/**
 * Reads the events of a frame that are written as usual into columns, and writes their storage rows as binary COPY. It is
 * AssemblyScript, which `npm run wasm` compiles to ../row-columns.wasm; ../row-columns.ts copies bytes in and out. Reading ends
 * before the first event that is not as usual, and the projector reads or refuses that one, so this has no errors of its own.
 */
import {
  byte,
  comma,
  decimal,
  fine,
  flag,
  hasUnits,
  isExact,
  isUsual,
  LF,
  longProduct,
  mantissa,
  milliseconds,
  newRow,
  number,
  odd,
  power,
  QUOTE_SCALE,
  rest,
  scale,
  shortProduct,
  side,
  TICK_SCALE,
  text,
  units,
  value,
  whole,
} from './cells.ts';

/** Most bytes of events that are read at once. Of the shortest, those of exchange A with 26 bytes, they hold 2,520. */
export const INPUT_BYTES: i32 = 65536;
export const MAX_ROWS: i32 = 2528;

/** Events, and zeros behind them, at which every cell ends. */
export const input: usize = memory.data(65600);
/** Their rows: those of exchange C take 102 bytes and the texts of the event, of at least 33 bytes. */
export const output: usize = memory.data(344064);
/** By event: the second since `fromMs`, whether the buyer was the maker, and the rest as float64. */
export const seconds: usize = memory.data(10112);
export const makers: usize = memory.data(2528);
export const times: usize = memory.data(20224);
export const ids: usize = memory.data(20224);
export const prices: usize = memory.data(20224);
export const quantities: usize = memory.data(20224);
/** Of quantity and quote quantity: units, and what is finer, in 10^-12 of one. */
export const quantityUnits: usize = memory.data(20224);
export const quantityFines: usize = memory.data(20224);
export const quoteUnits: usize = memory.data(20224);
export const quoteFines: usize = memory.data(20224);

/** How many events were read, and how many bytes their rows take. */
export let rows: i32 = 0;
export let written: i32 = 0;

/** Where the next value is written. */
let out: usize = 0;

function begin(columns: u32): void {
  store<u16>(out, bswap<u16>(<u16>columns));
  out += 2;
}

function int8(value: u64): void {
  store<u32>(out, 0x08000000);
  store<u64>(out, bswap<u64>(value), 4);
  out += 12;
}

function float8(value: f64): void {
  int8(reinterpret<u64>(value));
}

function bool8(value: u64): void {
  store<u32>(out, 0x01000000);
  store<u8>(out, <u8>value, 4);
  out += 5;
}

/** Copies eight bytes at a time, so that up to seven more are written, which the next value replaces. */
function bytes(from: usize, to: usize): void {
  const length = <u32>(to - from);
  store<u32>(out, bswap<u32>(length));
  out += 4;
  for (let at: usize = 0; at < length; at += 8) store<u64>(out + at, load<u64>(from + at));
  out += length;
}

/** `buy` or `sell`. */
function word(isSell: u64): void {
  store<u32>(out, isSell ? 0x04000000 : 0x03000000);
  store<u32>(out, isSell ? 0x6c6c6573 : 0x00797562, 4);
  out += isSell ? 8 : 7;
}

function add(ms: u64, fromMs: u64, id: u64, price: f64, quantity: f64, maker: u64): void {
  const row = <usize>rows;
  store<u32>(seconds + (row << 2), <u32>((ms - fromMs) / 1000));
  store<u8>(makers + row, <u8>maker);
  store<f64>(times + (row << 3), <f64>ms);
  store<f64>(ids + (row << 3), <f64>id);
  store<f64>(prices + (row << 3), price);
  store<f64>(quantities + (row << 3), quantity);
  rows++;
}

function addUnits(quantity: f64, quantityFine: f64, quote: f64, quoteFine: f64): void {
  const at = (<usize>rows) << 3;
  store<f64>(quantityUnits + at, quantity);
  store<f64>(quantityFines + at, quantityFine);
  store<f64>(quoteUnits + at, quote);
  store<f64>(quoteFines + at, quoteFine);
}

function start(): void {
  rows = 0;
  out = output;
}

/** @returns the position of the first event that was not read */
function end(position: usize): usize {
  written = <i32>(out - output);
  return position;
}

/** Reads up to `most` events of exchange A in [from, to), whole lines. */
export function readA(from: usize, to: usize, most: i32, fromMs: f64, toMs: f64): usize {
  start();
  let at = from;
  while (at < to && rows < most) {
    newRow();
    let p = number(at);
    const id = whole;
    p = decimal(comma(p));
    const price = value;
    p = decimal(comma(p));
    const quantity = value;
    const unitsOfQuantity = units;
    const fineOfQuantity = fine;
    if (!hasUnits) odd();
    p = decimal(comma(p));
    const quote = value;
    if (!hasUnits) odd();
    const time = comma(p);
    p = time;
    let ms: u64 = 0;
    for (let digit = byte(p) - 48; digit <= 9; digit = byte(++p) - 48) ms = ms * 10 + digit;
    if (p - time === 16) ms /= 1000;
    else if (p - time > 16) odd();
    p = flag(comma(p));
    const maker = whole;
    p = flag(comma(p));
    const best = whole;
    if (byte(p) !== LF || !isUsual || ms < <u64>fromMs || ms >= <u64>toMs) break;
    addUnits(unitsOfQuantity, fineOfQuantity, units, fine);
    add(ms, <u64>fromMs, id, price, quantity, maker);
    begin(7);
    int8(ms);
    int8(id);
    float8(price);
    float8(quantity);
    float8(quote);
    bool8(maker);
    bool8(best);
    at = p + 1;
  }
  return end(at);
}

/** As `readA`, of exchange B. */
export function readB(from: usize, to: usize, most: i32, fromMs: f64, toMs: f64): usize {
  start();
  let at = from;
  while (at < to && rows < most) {
    newRow();
    const instrument = text(at);
    let p = number(comma(instrument));
    const id = whole;
    p = side(comma(p));
    const isSell = whole;
    p = decimal(comma(p));
    const price = value;
    const priceMantissa = mantissa;
    const priceScale = scale;
    if (!isExact) odd();
    p = decimal(comma(p));
    const size = value;
    const places = priceScale + scale;
    const ofSize = units;
    const fineOfSize = fine;
    if (!hasUnits) odd();
    else if (isExact && places <= QUOTE_SCALE) shortProduct(priceMantissa, mantissa, places);
    else if (priceScale <= TICK_SCALE) longProduct(priceMantissa * power(TICK_SCALE - priceScale), ofSize, fineOfSize);
    else odd();
    const quote = value;
    const quoteSum = units;
    const fineOfQuote = fine;
    p = number(comma(p));
    const ms = whole;
    if (byte(p) !== LF) p = rest(comma(p));
    if (!isUsual || ms < <u64>fromMs || ms >= <u64>toMs) break;
    addUnits(ofSize, fineOfSize, quoteSum, fineOfQuote);
    add(ms, <u64>fromMs, id, price, size, isSell);
    begin(7);
    int8(ms);
    int8(id);
    float8(price);
    float8(size);
    float8(quote);
    word(isSell);
    bytes(at, instrument);
    at = p + 1;
  }
  return end(at);
}

/** As `readA`, of exchange C. */
export function readC(from: usize, to: usize, most: i32, fromMs: f64, toMs: f64): usize {
  start();
  let at = from;
  while (at < to && rows < most) {
    newRow();
    let p = milliseconds(at);
    const ms = whole;
    const symbol = comma(p);
    const symbolEnd = text(symbol);
    p = side(comma(symbolEnd));
    const isSell = whole;
    p = decimal(comma(p));
    const size = value;
    const ofSize = units;
    const fineOfSize = fine;
    if (!hasUnits) odd();
    p = decimal(comma(p));
    const price = value;
    const tick = comma(p);
    const tickEnd = text(tick);
    const match = comma(tickEnd);
    // Behind `m-`.
    const matchEnd = number(match + 2);
    const id = whole;
    p = decimal(comma(matchEnd));
    const gross = value;
    p = decimal(comma(p));
    const home = value;
    p = decimal(comma(p));
    const foreign = value;
    if (!hasUnits) odd();
    p = rest(p);
    if (!isUsual || ms < <u64>fromMs || ms >= <u64>toMs) break;
    addUnits(ofSize, fineOfSize, units, fine);
    add(ms, <u64>fromMs, id, price, size, isSell);
    begin(11);
    int8(ms);
    int8(id);
    float8(price);
    float8(size);
    float8(gross);
    float8(home);
    float8(foreign);
    word(isSell);
    bytes(tick, tickEnd);
    bytes(symbol, symbolEnd);
    bytes(match, matchEnd);
    at = p + 1;
  }
  return end(at);
}
