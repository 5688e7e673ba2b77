/** `klines`: makes the kept klines of partitions that were proved before klines were kept. */

import type { ClientBase } from 'pg';
import { Catalog } from '../../../shared/db/catalog.ts';
import { withClient } from '../../../shared/db/connect.ts';
import { lockCoverage } from '../../../shared/db/coverage-changes.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { keptStartOf } from '../../../shared/registry/kept-klines.ts';
import { keepKlines, remadeKlines } from '../../projector/kline-storage.ts';
import { fedDatasets } from '../../sources/index.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions, selectedDatasets } from '../over-partitions.ts';

/**
 * Makes the klines of one partition in a transaction of its own. The rows are read before the lock, so that projectors wait for
 * the writing alone.
 * @throws TidemarkError PARTITION_CHANGED when another attempt or state took the partition's place meanwhile.
 */
export async function makeKlines(
  client: ClientBase,
  dataset: DatasetDefinition,
  row: PartitionRow,
): Promise<{ readonly partition: string; readonly state: 'made'; readonly rows: number }> {
  const { partitionKey } = row;
  await client.query('begin');
  try {
    const klines = await remadeKlines(client, dataset, row);
    await lockCoverage(client, dataset);
    const now = await new Catalog(client).partition(dataset, partitionKey);
    if (now?.state !== 'proved' || now.attempt !== row.attempt || now.klinesSha256 !== null) {
      throw new TidemarkError('PARTITION_CHANGED', `${dataset.key} ${partitionKey} has changed since it was read`);
    }
    await keepKlines(client, dataset, row, klines);
    await client.query('commit');
    return { partition: partitionKey, state: 'made', rows: row.rows ?? 0 };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

export async function runKlines(command: ParsedCommand): Promise<number> {
  const isKept = (dataset: DatasetDefinition) => keptStartOf(dataset) !== undefined;
  const chosen = command.positionals.includes('all')
    ? fedDatasets().filter(isKept)
    : selectedDatasets(command.positionals);
  const other = chosen.find((dataset) => !isKept(dataset));
  if (other) throw new TidemarkError('USAGE', `${other.key} has no klines: name a dataset of trades, or all`);
  return await overPartitions(
    { ...command, positionals: chosen.map(({ key }) => key) },
    {
      name: 'klines',
      states: ['proved'],
      wants: ({ klinesSha256 }) => klinesSha256 === null,
      good: ['made'],
      work: (dataset, row, context) => withClient(context.pool, (client) => makeKlines(client, dataset, row)),
    },
  );
}
