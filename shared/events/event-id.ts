/**
 * Event ids are derived, never stored. For file-day datasets a UUIDv8 (RFC 9562) packs what identifies the event, so
 * that the id can be read back:
 *
 *     48 bits  format 1 (8), dataset number (16), file day since 1970-01-01 (24)
 *      4 bits  version 8
 *     12 bits  offset, bits 62..73 (zero)
 *      2 bits  variant
 *     62 bits  offset, low bits
 */
import { assert, TidemarkError } from '../errors.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { dayKey, parseDay } from '../time/days.ts';

const DAY_MS = 86_400_000;
const FORMAT = 1n;
const LOW_BITS = 62n;
const LOW_MASK = (1n << LOW_BITS) - 1n;

export function eventId(dataset: DatasetDefinition, partition: string, offset: string): string {
  assert(dataset.partition.kind === 'file_day', `event ids of ${dataset.key} are not packed`);
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

/**
 * The same id as SQL, from what a row holds: an expression of its time in epoch ms and one of its numeric offset. A
 * file day covers [day + startOffsetMs, + 24 h).
 */
export function eventIdSql(datasetNumber: number, startOffsetMs: number, timeMs: string, offset: string): string {
  const head = ((FORMAT << 16n) | BigInt(datasetNumber)).toString(16).padStart(6, '0');
  const day = `lpad(to_hex((${timeMs} - (${startOffsetMs})) / ${DAY_MS}), 6, '0')`;
  // Version 8 and twelve zero bits; then the variant as the sign bit of the offset: sixteen digits whatever it is.
  return `('${head}' || ${day} || '8000' || to_hex((-9223372036854775808)::int8 | ${offset}))::uuid`;
}

/** What an id was packed from. @throws TidemarkError EVENT_UNKNOWN for an id that is not of this form. */
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
