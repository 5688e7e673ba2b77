/** Partition keys: their forms, and the source, span and times that a key stands for. */
import { DAY_MS, daysBetween, parseDay } from '../dates.ts';
import { TidemarkError } from '../errors.ts';
import type { Range } from '../ranges.ts';
import type { DatasetDefinition } from './definition.ts';

export interface TimeWindow {
  /** Epoch ms, inclusive. */
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
}

/** The key of a file day: `YYYY-MM-DD`, of another instrument than the default `<instrument>:YYYY-MM-DD`. */
export const dayKeyOf = ({ instrument }: Pick<DatasetDefinition, 'instrument'>, day: string): string =>
  instrument === undefined ? day : `${instrument}:${day}`;

/** The day of such a key. */
export const dayOfKey = (key: string): string => key.slice(key.indexOf(':') + 1);

/** The instrument that the key of a file day names; undefined: the default. */
export const instrumentOfKey = (key: string): string | undefined =>
  key.includes(':') ? key.slice(0, key.indexOf(':')) : undefined;

/** @throws TidemarkError USAGE when the key is not one of the dataset's kind. */
export function windowOf(dataset: DatasetDefinition, key: string): TimeWindow {
  if (dataset.partition.kind === 'file_day' && instrumentOfKey(key) === dataset.instrument) {
    const day = parseDay(dayOfKey(key));
    if (day !== undefined) {
      const fromMs = day + dataset.partition.startOffsetMs;
      return { fromMs, toMs: fromMs + DAY_MS };
    }
  }
  throw unknownKey(dataset, key);
}

const unknownKey = (dataset: DatasetDefinition, key: string) =>
  new TidemarkError('USAGE', `${dataset.key} has no partition ${JSON.stringify(key)}`, {
    remedy: '`./tidemark status` lists the existing partitions.',
  });

/** The file days from `fromDay` to `toDay`, both included. */
export function fileDays(fromDay: string, toDay: string): string[] {
  return daysBetween(fromDay, toDay);
}

/**
 * SQL: the row `t` belongs to the partition `p` of the catalog, by the key that the row holds. Keys in rows have the
 * collation "C" and those of the catalog do not; only with its collation can the catalog's index be used.
 */
export const isOfPartition = (column = 'partition_key'): string => `p.partition_key = t."${column}" collate "default"`;

/** The window of rows whose times are unknown. */
export const ALL_TIME: TimeWindow = { fromMs: -8.64e15, toMs: 8.64e15 };

interface KeyFacts {
  /** `source_id` of its rows; for file days the one source of the dataset. */
  readonly sourceId: string;
  /** Heights, or epoch ms of a snapshot, an as-of day or a vintage date; undefined for a file day, which has a window. */
  readonly span: Range | undefined;
  /** The window in which its rows must lie, as far as the key gives it. */
  readonly times: TimeWindow;
}

/** The key `<height>`, or `<from>-<to>` with both included. */
export const heightKey = (from: number, to: number): string => (from === to ? `${from}` : `${from}-${to}`);

/** The key `<source_id>:<as-of day>`; further captures of the same day with different facts are numbered from 2. */
export const captureKey = (sourceId: string, day: string, number = 1): string =>
  number === 1 ? `${sourceId}:${day}` : `${sourceId}:${day}:${number}`;

export const vintageKey = (sourceId: string, day: string): string => `${sourceId}:${day}`;

const HEIGHTS = /^(0|[1-9]\d{0,8})(?:-([1-9]\d{0,8}))?$/;
const SNAPSHOT = /^[1-9]\d{11,14}$/;
const DATED = /^([a-z0-9_]{1,64}):(\d{4}-\d{2}-\d{2})(?::([2-9]|[1-9]\d{1,5}))?$/;

/** @throws TidemarkError USAGE when the key is not one of the dataset's kind. */
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
  if (!facts) throw unknownKey(dataset, key);
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

/** The rows of a capture lie in its as-of day; those of a vintage may lie in any day. */
function dated(dataset: DatasetDefinition, key: string): KeyFacts | undefined {
  const [, sourceId, day, number] = DATED.exec(key) ?? [];
  const from = day === undefined ? undefined : parseDay(day);
  const isCapture = dataset.partition.kind === 'capture';
  if (from === undefined || (number !== undefined && !isCapture)) return undefined;
  const span = { from, to: from + DAY_MS };
  return { sourceId, span, times: isCapture ? { fromMs: span.from, toMs: span.to } : ALL_TIME };
}

/** The group of captures of one source and day: the key of the first, with which the keys of the others begin. */
export const captureGroup = (key: string): string => key.split(':').slice(0, 2).join(':');

/** The heights of a span, as operators write them: `190-199`. */
export const describeHeights = ({ from, to }: Range): string => heightKey(from, to - 1);
