/** What a partition's key says: its source, what it covers in the unit of its kind, and when its rows can be. */
import { DAY_MS, daysBetween, parseDay } from '../dates.ts';
import { TidemarkError } from '../errors.ts';
import type { Range } from '../ranges.ts';
import type { DatasetDefinition } from './types.ts';

/* Partition keys and the time windows they stand for. */

export interface TimeWindow {
  /** Epoch ms, inclusive. */
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
}

/** @throws TidemarkError PARTITION_UNKNOWN when the key is not one of the dataset's kind. */
export function windowOf(dataset: DatasetDefinition, key: string): TimeWindow {
  if (dataset.partition.kind === 'file_day') {
    const day = parseDay(key);
    if (day !== undefined) {
      const fromMs = day + dataset.partition.startOffsetMs;
      return { fromMs, toMs: fromMs + DAY_MS };
    }
  }
  throw new TidemarkError('PARTITION_UNKNOWN', `${JSON.stringify(key)} is no partition of ${dataset.key}`);
}

/** Keys of the file days from..to, both included. */
export function fileDays(fromDay: string, toDay: string): string[] {
  return daysBetween(fromDay, toDay);
}

/**
 * SQL: the row `t` is of the partition `p` of the catalog, where rows have its key. Keys of rows compare by code points and
 * the catalog's do not: its index is of use only where that is said.
 */
export const isOfPartition = (column = 'partition_key'): string => `p.partition_key = t."${column}" collate "default"`;

/** Nothing is known of the times of rows. */
export const ALL_TIME: TimeWindow = { fromMs: -8.64e15, toMs: 8.64e15 };

export interface KeyFacts {
  /** `source_id` of its rows; of file days the one source of the dataset. */
  readonly sourceId: string;
  /** Heights, or epoch ms of a snapshot, an as-of day, a vintage date; of a file day nothing but its window. */
  readonly span: Range | undefined;
  /** Where the times of its rows must lie, as far as the key tells. */
  readonly times: TimeWindow;
}

/** `<height>`, or `<from>-<to>` with both included. */
export const heightKey = (from: number, to: number): string => (from === to ? `${from}` : `${from}-${to}`);

/** `<source_id>:<as-of day>`; captures of the same day with other facts are numbered from 2. */
export const captureKey = (sourceId: string, day: string, number = 1): string =>
  number === 1 ? `${sourceId}:${day}` : `${sourceId}:${day}:${number}`;

export const vintageKey = (sourceId: string, day: string): string => `${sourceId}:${day}`;

const HEIGHTS = /^(0|[1-9]\d{0,8})(?:-([1-9]\d{0,8}))?$/;
const SNAPSHOT = /^[1-9]\d{11,14}$/;
const DATED = /^([a-z0-9_]{1,64}):(\d{4}-\d{2}-\d{2})(?::([2-9]|[1-9]\d{1,5}))?$/;

/** @throws TidemarkError PARTITION_UNKNOWN when the key is not one of the dataset's kind. */
export function keyFacts(dataset: DatasetDefinition, key: string): KeyFacts {
  const { kind } = dataset.partition;
  const facts =
    kind === 'file_day'
      ? { sourceId: dataset.sources[0], span: undefined, times: windowOf(dataset, key) }
      : kind === 'height'
        ? heights(dataset, key)
        : kind === 'snapshot'
          ? snapshot(dataset, key)
          : dated(dataset, key);
  if (!facts) throw new TidemarkError('PARTITION_UNKNOWN', `${JSON.stringify(key)} is no partition of ${dataset.key}`);
  return facts;
}

function heights(dataset: DatasetDefinition, key: string): KeyFacts | undefined {
  const [, first, last = first] = HEIGHTS.exec(key) ?? [];
  if (first === undefined) return undefined;
  const [from, to] = [Number(first), Number(last)];
  if (heightKey(from, to) !== key || from > to) return undefined;
  return { sourceId: dataset.sources[0], span: { from, to: to + 1 }, times: ALL_TIME };
}

function snapshot(dataset: DatasetDefinition, key: string): KeyFacts | undefined {
  if (!SNAPSHOT.test(key)) return undefined;
  const ms = Number(key);
  return { sourceId: dataset.sources[0], span: { from: ms, to: ms + 1 }, times: { fromMs: ms, toMs: ms + 1 } };
}

/** A capture's rows are of its as-of day; a vintage's are of any day. */
function dated(dataset: DatasetDefinition, key: string): KeyFacts | undefined {
  const [, sourceId, day, number] = DATED.exec(key) ?? [];
  const from = day === undefined ? undefined : parseDay(day);
  const isCapture = dataset.partition.kind === 'capture';
  if (from === undefined || (number !== undefined && !isCapture)) return undefined;
  const span = { from, to: from + DAY_MS };
  return { sourceId, span, times: isCapture ? { fromMs: span.from, toMs: span.to } : ALL_TIME };
}

/** The keys a capture of the same source and day may have: the first one's, and what numbered ones begin with. */
export const captureFamily = (key: string): string => key.split(':').slice(0, 2).join(':');

/** Heights of a span, as operators write them: `190-199`. */
export const describeHeights = ({ from, to }: Range): string => heightKey(from, to - 1);
