/** Partition keys and the time windows they stand for. */
import { TidemarkError } from '../errors.ts';
import { DAY_MS, daysBetween, parseDay } from '../time/days.ts';
import type { DatasetDefinition } from './types.ts';

export interface Window {
  /** Epoch ms, inclusive. */
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
}

/** @throws TidemarkError PARTITION_UNKNOWN when the key is not one of the dataset's kind. */
export function windowOf(dataset: DatasetDefinition, key: string): Window {
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
