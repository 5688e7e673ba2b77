/** `replay`: partitions built again from the log and compared with what is served. */
import { withClient } from '../../../shared/db/connect.ts';
import { replayPartition } from '../../prove/replay.ts';
import { projectionOf } from '../../sources/projections.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions } from '../over-partitions.ts';

export async function runReplay(command: ParsedCommand): Promise<number> {
  return await overPartitions(command, {
    name: 'replay',
    states: ['proved', 'quarantined'],
    good: ['identical', 'replaced'],
    work: async (dataset, row, context) => {
      const needs = {
        dataset,
        catalog: context.catalog,
        connection: await context.nats('operator'),
        projection: projectionOf(dataset),
        batchBytes: context.settings.SVC_PULL_MAX_BYTES,
        verifyOnly: command.values['verify-only'] === true,
      };
      const replayed = await withClient(context.pool, (client) => replayPartition(row, { ...needs, client }));
      const { partition, state, rows, differing } = replayed;
      const reason = differing.length > 0 ? `differed in ${differing.join(', ')}` : undefined;
      return { partition, state, rows, ...(reason ? { reason } : {}) };
    },
  });
}
