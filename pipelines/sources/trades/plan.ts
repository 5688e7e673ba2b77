/** The plan of a source that publishes one document a file day. */
import { TidemarkError } from '../../../shared/errors.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { fileDays, windowOf } from '../../../shared/registry/partitions.ts';
import type { FileDaySource } from '../types.ts';

/** @throws TidemarkError USAGE from the plan, for any other granularity. */
export const planDaily =
  (dataset: DatasetDefinition): FileDaySource['plan'] =>
  (fromDay, toDay, granularity) => {
    if (granularity !== 'daily') throw new TidemarkError('USAGE', `${dataset.key} has daily documents only`);
    return fileDays(fromDay, toDay).map((day) => ({
      period: day,
      granularity,
      partitions: [{ key: day, ...windowOf(dataset, day) }],
    }));
  };
