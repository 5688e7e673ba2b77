/**
 * Event ids, and the order of offsets. An event id is derived, never stored. For file-day datasets it is a UUIDv8
 * (RFC 9562) that packs what identifies the event, so that it can be unpacked:
 *
 *             format 1, the default instrument              format 2, any other
 *     48 bits  format (8), dataset number (16), file day (24)   format (8), dataset number (8), file day (16), tag, high bits (16)
 *      4 bits  version 8                                        version 8
 *     12 bits  offset, bits 62..73 (zero)                       tag, low bits
 *      2 bits  variant                                          variant
 *     62 bits  offset, low bits                                 offset
 *
 * File days count from 1970-01-01. The tag is the first 28 bits of the symbol's sha256; the number is the exchange's.
 */

import { createHash } from 'node:crypto';
import { DAY_MS, dayKey, parseDay } from '../dates.ts';
import { assert, TidemarkError } from '../errors.ts';
import type { DatasetDefinition, OffsetRule } from './definition.ts';
import { baseNumber, baseOf, type Instrument, instrumentTag } from './instruments.ts';
import { dayOfKey, keyFacts } from './keys.ts';

/** Compares two offsets outside the database; returns a negative number, zero or a positive one. */
export function compareOffsets(rule: Pick<OffsetRule, 'order'>, a: string, b: string): number {
  switch (rule.order) {
    case 'numeric':
      return compareNumbers(a, b);
    case 'text':
      return a < b ? -1 : a > b ? 1 : 0;
    case 'composite':
      return compareParts(a, b);
  }
}

/** Compares from the first part that differs; between two neighbours it is nearly always the second. */
function compareParts(a: string, b: string): number {
  let at = 0;
  let part = 0;
  for (; at < a.length && a[at] === b[at]; at++) if (a[at] === ':') part = at + 1;
  if (at === a.length && at === b.length) return 0;
  const [left, right] = [partAt(a, part), partAt(b, part)];
  const order = isNumber(left) && isNumber(right) ? compareNumbers(left, right) : left < right ? -1 : +(left > right);
  // One offset has more parts than the other.
  return order !== 0 ? order : a.length - b.length;
}

function partAt(text: string, from: number): string {
  const end = text.indexOf(':', from);
  return end < 0 ? text.slice(from) : text.slice(from, end);
}

/** Ids of 64 hexadecimal digits are texts, whatever their digits. */
const isNumber = (text: string) => /^(?:0|[1-9]\d{0,17})$/.test(text);

/** Compares numbers without leading zeros: the longer one is larger. */
const compareNumbers = (a: string, b: string) => a.length - b.length || (a < b ? -1 : +(a > b));

/** The first number of an offset: trade id, height or snapshot. The partitions of a dataset have disjoint ranges of it. */
const leadingNumber = (offset: string): string => offset.split(':', 1)[0];

const FORMAT = 1n;
const OTHERS_FORMAT = 2n;
const LOW_BITS = 62n;
const LOW_MASK = (1n << LOW_BITS) - 1n;

/**
 * The id of an event: packed as above for file days, otherwise a UUIDv5 of `1|source|dataset|partition|offset`. The
 * partition of a block is then its height, whatever range of heights it was ingested with.
 */
export function eventId(dataset: DatasetDefinition, partition: string, offset: string): string {
  if (dataset.partition.kind !== 'file_day') {
    const { sourceId } = keyFacts(dataset, partition);
    const of = dataset.partition.kind === 'height' ? leadingNumber(offset) : partition;
    return uuidV5(`1|${sourceId}|${dataset.key}|${of}|${offset}`);
  }
  const day = parseDay(dayOfKey(partition));
  assert(day !== undefined && /^\d{1,18}$/.test(offset), 'an event is named by its day and numeric offset');
  const { high, middle } = prefixOf(dataset, BigInt(day / DAY_MS));
  const number = BigInt(offset);
  const bits =
    (high << 80n) | (8n << 76n) | ((middle | (number >> LOW_BITS)) << 64n) | (2n << 62n) | (number & LOW_MASK);
  return bits
    .toString(16)
    .padStart(32, '0')
    .replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}

/** The first 48 bits, and the twelve after the version. */
function prefixOf(dataset: DatasetDefinition, day: bigint): { readonly high: bigint; readonly middle: bigint } {
  const number = BigInt(baseOf(dataset).number);
  if (dataset.instrument === undefined) return { high: (FORMAT << 40n) | (number << 24n) | day, middle: 0n };
  const tag = BigInt(instrumentTag(dataset.instrument));
  const high = (OTHERS_FORMAT << 40n) | (number << 32n) | (day << 16n) | (tag >> 12n);
  return { high, middle: tag & 0xfffn };
}

/** Chosen once, at random. It never changes, because callers' databases hold ids made with it. */
const NAMESPACE = Buffer.from('8c1d7f0e5f0a4b6f9f3ce2a4d1b7605e', 'hex');

/** RFC 9562, version 5: SHA-1 over the namespace and the name. */
function uuidV5(name: string): string {
  const hash = createHash('sha1').update(NAMESPACE).update(name).digest().subarray(0, 16);
  hash[6] = (hash[6] & 0x0f) | 0x50;
  hash[8] = (hash[8] & 0x3f) | 0x80;
  return hash.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}

/**
 * SQL of the event id of a file-day dataset, from an expression of the row's time in epoch ms and one of its numeric offset.
 * A file day covers [day + startOffsetMs, + 24 h).
 */
export function eventIdSql(
  { number, instrument }: { readonly number: number; readonly instrument?: Instrument },
  startOffsetMs: number,
  timeMs: string,
  offset: string,
): string {
  const hex = (value: number | bigint, digits: number) => value.toString(16).padStart(digits, '0');
  const day = (digits: number) => `lpad(to_hex((${timeMs} - (${startOffsetMs})) / ${DAY_MS}), ${digits}, '0')`;
  // The variant as the sign bit of the offset, which gives sixteen digits always.
  const low = `to_hex((-9223372036854775808)::int8 | ${offset})`;
  if (instrument === undefined) {
    // Version 8 and twelve zero bits.
    return `('${hex(FORMAT, 2)}${hex(number, 4)}' || ${day(6)} || '8000' || ${low})::uuid`;
  }
  const tag = instrumentTag(instrument);
  const rest = `${hex(tag >>> 12, 4)}8${hex(tag & 0xfff, 3)}`;
  return `('${hex(OTHERS_FORMAT, 2)}${hex(baseNumber(number), 2)}' || ${day(4)} || '${rest}' || ${low})::uuid`;
}

export interface UnpackedEventId {
  /** Of the exchange. */
  readonly datasetNumber: number;
  /** Of another instrument than the default. */
  readonly tag?: number;
  /** The file day. */
  readonly partition: string;
  readonly offset: string;
}

/** Unpacks an event id. @throws TidemarkError EVENT_UNKNOWN for an id that is not of this form. */
export function unpackEventId(id: string): UnpackedEventId {
  const hex = id.replaceAll('-', '').toLowerCase();
  const bits = /^[0-9a-f]{32}$/.test(hex) ? BigInt(`0x${hex}`) : 0n;
  const format = bits >> 120n;
  const isKnown = format === FORMAT || format === OTHERS_FORMAT;
  if (!isKnown || ((bits >> 76n) & 15n) !== 8n || ((bits >> 62n) & 3n) !== 2n) {
    throw new TidemarkError('EVENT_UNKNOWN', `${JSON.stringify(id)} is not an event id of a file-day dataset`);
  }
  const dayAt = (value: bigint) => dayKey(Number(value) * DAY_MS);
  const middle = (bits >> 64n) & 0xfffn;
  if (format === OTHERS_FORMAT) {
    return {
      datasetNumber: Number((bits >> 112n) & 0xffn),
      tag: Number((((bits >> 80n) & 0xffffn) << 12n) | middle),
      partition: dayAt((bits >> 96n) & 0xffffn),
      offset: (bits & LOW_MASK).toString(),
    };
  }
  return {
    datasetNumber: Number((bits >> 104n) & 0xffffn),
    partition: dayAt((bits >> 80n) & 0xffffffn),
    offset: ((middle << LOW_BITS) | (bits & LOW_MASK)).toString(),
  };
}
