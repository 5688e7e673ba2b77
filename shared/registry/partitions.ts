/** Partition keys and the time windows they stand for. */
import { TidemarkError } from '../errors.ts';
import { daysBetween, parseDay } from '../time/days.ts';
import type { DatasetDefinition } from './types.ts';

const DAY_MS = 86_400_000;

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
