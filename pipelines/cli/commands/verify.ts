import { connect } from '../../../shared/db/connect.ts';
import { datasetOf } from '../../../shared/registry/index.ts';
import { verifyPartition } from '../../prove/verify.ts';
import { adapterOf } from '../../sources/index.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions } from './replay.ts';

export async function runVerify(command: ParsedCommand): Promise<number> {
  const dataset = datasetOf(command.positionals[0]);
  return await overPartitions(command, 'verify', ['proved'], ['proved'], async (row, context) => {
    await using client = await connect({ url: context.stack.databaseUrl, name: 'tidemark verify' });
    return await verifyPartition(row, {
      dataset,
      client,
      catalog: context.catalog,
      connection: await context.nats(),
      createRows: adapterOf(dataset).createRows,
      batchBytes: context.settings.SVC_PULL_MAX_BYTES,
      deep: command.values.deep === true,
    });
  });
}
