/** `klines` and `ranges`: make the kept klines and the value ranges of partitions that were proved before these were kept. */

import type { ClientBase } from 'pg';
import { Catalog } from '../../../shared/db/catalog.ts';
import { withClient } from '../../../shared/db/connect.ts';
import { lockCoverage } from '../../../shared/db/partition-changes.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { rangedColumns, remadeRanges, writeRanges } from '../../../shared/proof/value-ranges.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { keptStartOf } from '../../../shared/registry/kept-klines.ts';
import { keepKlines, remadeKlines } from '../../projector/kline-storage.ts';
import { partitionRefOf } from '../../projector/partition-load.ts';
import { fedDatasets } from '../../sources/index.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions, selectedDatasets } from '../over-partitions.ts';

/** Makes the klines of one partition. @throws TidemarkError PARTITION_CHANGED */
export async function makeKlines(
  client: ClientBase,
  dataset: DatasetDefinition,
  row: PartitionRow,
): Promise<{ readonly partition: string; readonly state: 'made'; readonly rows: number }> {
  return await made(client, dataset, row, 'klinesSha256', async () => {
    const klines = await remadeKlines(client, dataset, row);
    return () => keepKlines(client, dataset, row, klines);
  });
}

/**
 * Makes what one partition lacks, in a transaction of its own. The rows are read before the lock, so that projectors wait for the
 * writing alone.
 * @throws TidemarkError PARTITION_CHANGED when another attempt or state took the partition's place meanwhile.
 */
async function made(
  client: ClientBase,
  dataset: DatasetDefinition,
  row: PartitionRow,
  fact: 'klinesSha256' | 'valueRanges',
  read: () => Promise<() => Promise<void>>,
): Promise<{ readonly partition: string; readonly state: 'made'; readonly rows: number }> {
  const { partitionKey } = row;
  await client.query('begin');
  try {
    const write = await read();
    await lockCoverage(client, dataset);
    const now = await new Catalog(client).partition(dataset, partitionKey);
    if (now?.state !== 'proved' || now.attempt !== row.attempt || now[fact] !== null) {
      throw new TidemarkError('PARTITION_CHANGED', `${dataset.key} ${partitionKey} has changed since it was read`);
    }
    await write();
    await client.query('commit');
    return { partition: partitionKey, state: 'made', rows: row.rows ?? 0 };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Makes the value ranges of one partition, in the same way. @throws TidemarkError PARTITION_CHANGED */
async function makeRanges(
  client: ClientBase,
  dataset: DatasetDefinition,
  row: PartitionRow,
): Promise<{ readonly partition: string; readonly state: 'made'; readonly rows: number }> {
  return await made(client, dataset, row, 'valueRanges', async () => {
    const ranges = await remadeRanges(client, dataset, partitionRefOf(row));
    return () => writeRanges(client, dataset, row.partitionKey, ranges);
  });
}

/** What a command makes of the partitions that lack it. */
interface Making {
  readonly name: 'klines' | 'ranges';
  /** What a dataset without it lacks, in words. */
  readonly what: string;
  readonly isKept: (dataset: DatasetDefinition) => boolean;
  readonly isMissing: (row: PartitionRow) => boolean;
  readonly make: typeof makeKlines;
}

const KLINES: Making = {
  name: 'klines',
  what: 'klines',
  isKept: (dataset) => keptStartOf(dataset) !== undefined,
  isMissing: ({ klinesSha256 }) => klinesSha256 === null,
  make: makeKlines,
};

const RANGES: Making = {
  name: 'ranges',
  what: 'value ranges',
  isKept: (dataset) => rangedColumns(dataset).length > 0,
  isMissing: ({ valueRanges }) => valueRanges === null,
  make: makeRanges,
};

async function runMaking(command: ParsedCommand, { name, what, isKept, isMissing, make }: Making): Promise<number> {
  const chosen = command.positionals.includes('all')
    ? fedDatasets().filter(isKept)
    : selectedDatasets(command.positionals);
  const other = chosen.find((dataset) => !isKept(dataset));
  if (other) throw new TidemarkError('USAGE', `${other.key} has no ${what}: name a dataset of trades, or all`);
  return await overPartitions(
    { ...command, positionals: chosen.map(({ key }) => key) },
    {
      name,
      states: ['proved'],
      wants: isMissing,
      good: ['made'],
      work: (dataset, row, context) => withClient(context.pool, (client) => make(client, dataset, row)),
    },
  );
}

export const runKlines = (command: ParsedCommand): Promise<number> => runMaking(command, KLINES);
export const runRanges = (command: ParsedCommand): Promise<number> => runMaking(command, RANGES);
