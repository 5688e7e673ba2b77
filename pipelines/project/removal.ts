/** Taking stored rows out, in the transaction of what replaces them. */
import type { ClientBase } from 'pg';
import { clearCoverage, recoverSpan } from '../../shared/db/coverage.ts';
import { record } from '../../shared/db/ledger.ts';
import type { Range } from '../../shared/db/ranges.ts';
import type { PartitionRef } from '../../shared/proof/scope.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import { deleteNative, deleteWindow } from './partition-load.ts';
import type { TouchedSeconds } from './seconds.ts';

/** A partition of the catalog whose rows are, or may be, in storage. */
interface Stored extends PartitionRef {
  readonly rows: number;
  readonly revision: number;
}

async function stored(client: ClientBase, dataset: DatasetDefinition, where: string, values: unknown[]) {
  const found = await client.query(
    `select partition_key, from_ms, to_ms, rows, revision from partitions
     where dataset_id = $1 and from_ms is not null and ${where} order by from_ms, partition_key`,
    [dataset.number, ...values],
  );
  return found.rows.map(
    (row): Stored => ({
      key: row.partition_key,
      fromMs: Number(row.from_ms),
      toMs: Number(row.to_ms),
      rows: Number(row.rows),
      revision: row.revision,
    }),
  );
}

/** The rows go; the seconds they were in are to be made again. */
export async function takeOut(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
  touched: TouchedSeconds | undefined,
): Promise<void> {
  if (!touched) {
    await deleteWindow(client, dataset, partition);
    return;
  }
  await touched.addPartition(partition);
  await deleteNative(client, dataset, partition);
}

/**
 * Before a partition that shares chunks is loaded: its own rows of an earlier revision go, and so do other partitions that
 * a revision of it covers (a quarantined range of heights, ingested again one by one).
 */
export async function makeRoom(
  client: ClientBase,
  dataset: DatasetDefinition,
  arriving: { readonly key: string; readonly revision: number },
  touched: TouchedSeconds,
): Promise<void> {
  for (const own of await stored(client, dataset, 'partition_key = $2', [arriving.key])) {
    await takeOut(client, dataset, own, touched);
  }
  const { sourceId, span } = keyFacts(dataset, arriving.key);
  if (dataset.partition.kind !== 'height' || arriving.revision === 1 || !span) return;
  const covered = await stored(
    client,
    dataset,
    `source_id = $2 and span && int8range($3, $4) and partition_key <> $5 and revision < $6`,
    [sourceId, span.from, span.to, arriving.key, arriving.revision],
  );
  for (const other of covered) {
    await takeOut(client, dataset, other, touched);
    await forget(client, dataset, other.key);
    await record(client, dataset, other.key, 'replaced', `revision ${arriving.revision} of ${arriving.key} covers it`, {
      rows: other.rows,
      revision: other.revision,
    });
  }
  if (covered.length === 0) return;
  const whole = covered.map(({ key }) => keyFacts(dataset, key).span).filter((one): one is Range => one !== undefined);
  await recoverSpan(
    client,
    dataset,
    sourceId,
    { from: Math.min(...whole.map(({ from }) => from)), to: Math.max(...whole.map(({ to }) => to)) },
    { served: covered.map(({ key }) => key) },
  );
}

async function forget(client: ClientBase, dataset: DatasetDefinition, key: string): Promise<void> {
  await client.query('delete from partitions where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
  await client.query('delete from frames where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
}

/**
 * The first real partition of a dataset takes the synthetic sample out, in its own commit. The window of the arriving
 * file day was emptied before it was loaded; emptying it again would take its own rows.
 */
export async function retireSample(
  client: ClientBase,
  dataset: DatasetDefinition,
  arriving: string,
  touched?: TouchedSeconds,
): Promise<void> {
  for (const sample of await stored(client, dataset, 'synthetic', [])) {
    if (touched || sample.key !== arriving) await takeOut(client, dataset, sample, touched);
    await forget(client, dataset, sample.key);
    await record(client, dataset, sample.key, 'sample_retired', 'the first real partition was proved', {
      rows: sample.rows,
    });
  }
  await client.query('delete from partitions where dataset_id = $1 and synthetic', [dataset.number]);
  await clearCoverage(client, dataset);
}
