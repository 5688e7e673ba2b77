/**
 * Event ids, and the order of offsets. An event id is derived, never stored. For file-day datasets it is a UUIDv8
 * (RFC 9562) that packs what identifies the event, so that it can be unpacked:
 *
 *     48 bits  format 1 (8), dataset number (16), file day since 1970-01-01 (24)
 *      4 bits  version 8
 *     12 bits  offset, bits 62..73 (zero)
 *      2 bits  variant
 *     62 bits  offset, low bits
 */

import { createHash } from 'node:crypto';
import { DAY_MS, dayKey, parseDay } from '../dates.ts';
import { assert, TidemarkError } from '../errors.ts';
import type { DatasetDefinition, OffsetRule } from './definition.ts';
import { keyFacts } from './keys.ts';

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
  const day = parseDay(partition);
  assert(day !== undefined && /^\d{1,18}$/.test(offset), 'an event is named by its day and numeric offset');
  const high = (FORMAT << 40n) | (BigInt(dataset.number) << 24n) | BigInt(day / DAY_MS);
  const number = BigInt(offset);
  const bits = (high << 80n) | (8n << 76n) | ((number >> LOW_BITS) << 64n) | (2n << 62n) | (number & LOW_MASK);
  return bits
    .toString(16)
    .padStart(32, '0')
    .replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
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
export function eventIdSql(datasetNumber: number, startOffsetMs: number, timeMs: string, offset: string): string {
  const head = ((FORMAT << 16n) | BigInt(datasetNumber)).toString(16).padStart(6, '0');
  const day = `lpad(to_hex((${timeMs} - (${startOffsetMs})) / ${DAY_MS}), 6, '0')`;
  // Version 8 and twelve zero bits. Then the variant as the sign bit of the offset, which gives sixteen digits always.
  return `('${head}' || ${day} || '8000' || to_hex((-9223372036854775808)::int8 | ${offset}))::uuid`;
}

/** Unpacks an event id. @throws TidemarkError EVENT_UNKNOWN for an id that is not of this form. */
export function unpackEventId(id: string): { datasetNumber: number; partition: string; offset: string } {
  const hex = id.replaceAll('-', '').toLowerCase();
  const bits = /^[0-9a-f]{32}$/.test(hex) ? BigInt(`0x${hex}`) : 0n;
  if (bits >> 120n !== FORMAT || ((bits >> 76n) & 15n) !== 8n || ((bits >> 62n) & 3n) !== 2n) {
    throw new TidemarkError('EVENT_UNKNOWN', `${JSON.stringify(id)} is not an event id of a file-day dataset`);
  }
  return {
    datasetNumber: Number((bits >> 104n) & 0xffffn),
    partition: dayKey(Number((bits >> 80n) & 0xffffffn) * DAY_MS),
    offset: ((((bits >> 64n) & 0xfffn) << LOW_BITS) | (bits & LOW_MASK)).toString(),
  };
}
