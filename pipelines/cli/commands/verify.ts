/** `verify`: stored rows counted again, and on request compared byte by byte with the log; once, or for ever. */
import { withClient } from '../../../shared/db/connect.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { verifyPartition } from '../../prove/verify.ts';
import { projectionOf } from '../../sources/projections.ts';
import { openContext } from '../context.ts';
import { EXIT } from '../exit.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions, selectedDatasets } from '../over-partitions.ts';
import { keepVerified } from '../verify-schedule.ts';

export async function runVerify(command: ParsedCommand): Promise<number> {
  const { every } = command.values as { every?: string };
  if (every !== undefined) {
    const chosen = ['from', 'to', 'partition', 'from-height', 'to-height'].find((name) => command.values[name]);
    if (chosen) throw new TidemarkError('USAGE', `--every takes every partition in turn: leave --${chosen} out`);
    await using context = await openContext(command, 'verify');
    await keepVerified(context, selectedDatasets(command.positionals), {
      intervalMs: Number(every) * 1000,
      line: command.line,
      deep: command.values.deep === true,
    });
    return EXIT.DONE;
  }
  return await overPartitions(command, {
    name: 'verify',
    states: ['proved'],
    good: ['proved'],
    work: async (dataset, row, context) => {
      const needs = {
        dataset,
        catalog: context.catalog,
        connection: await context.nats('operator'),
        projection: projectionOf(dataset),
        batchBytes: context.settings.SVC_PULL_MAX_BYTES,
        deep: command.values.deep === true,
      };
      return await withClient(context.pool, (client) => verifyPartition(row, { ...needs, client }));
    },
  });
}
