/** Removes stored rows in the transaction of what replaces them, and takes retracted partitions out of service. */

import type { ClientBase } from 'pg';
import { Catalog, record } from '../../shared/db/catalog.ts';
import {
  clearCoverage,
  lockCoverage,
  recoverSpan,
  statementOf,
  uncoverWindow,
  writeLeaves,
} from '../../shared/db/partition-changes.ts';
import { type PartitionRow, partitions, rowsOf } from '../../shared/db/schema.ts';
import type { PartitionRef, Recount } from '../../shared/proof/recount.ts';
import type { LeafReason } from '../../shared/proof-log/leaf.ts';
import type { Range } from '../../shared/ranges.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { SharedSeconds } from '../rows/binary-copy.ts';
import { DirtyBuckets } from './dirty-buckets.ts';
import { deleteKlines } from './kline-storage.ts';
import { deleteNative, deleteWindow, partitionRefOf } from './partition-load.ts';

/** A partition of the catalog whose rows may be stored. */
interface Stored extends PartitionRef {
  readonly rows: number;
  readonly row: Pick<PartitionRow, (typeof STORED_MEMBERS)[number]>;
}

const STORED_MEMBERS = [
  'partitionKey',
  'fromMs',
  'toMs',
  'rows',
  'state',
  'attempt',
  'revision',
  'synthetic',
  'manifest',
] as const;
const STORED = rowsOf(partitions, STORED_MEMBERS);

async function stored(
  client: ClientBase,
  dataset: DatasetDefinition,
  where: string,
  values: unknown[],
): Promise<Stored[]> {
  const found = await client.query(
    `select ${STORED.columns} from partitions
     where dataset_id = $1 and from_ms is not null and ${where} order by from_ms, partition_key`,
    [dataset.number, ...values],
  );
  return STORED.decode(found.rows).map((row) => ({
    key: row.partitionKey,
    fromMs: row.fromMs!,
    toMs: row.toMs!,
    rows: row.rows ?? 0,
    row,
  }));
}

/** Deletes the rows of a partition, and notes their seconds as dirty. */
export async function takeOut(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
  dirty: DirtyBuckets | undefined,
): Promise<void> {
  if (!dirty) {
    await deleteWindow(client, dataset, partition);
    return;
  }
  await dirty.addPartition(partition);
  await deleteNative(client, dataset, partition);
}

/**
 * Before a partition that shares chunks is loaded: deletes its rows of an earlier revision, and other partitions whose
 * heights its revision covers (a quarantined range that is ingested again block by block).
 */
export async function deleteReplacedRows(
  client: ClientBase,
  dataset: DatasetDefinition,
  arriving: { readonly key: string; readonly revision: number },
  dirty: DirtyBuckets,
): Promise<void> {
  for (const own of await stored(client, dataset, 'partition_key = $2', [arriving.key])) {
    await takeOut(client, dataset, own, dirty);
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
    await takeOut(client, dataset, other, dirty);
    await forget(client, dataset, other.key);
    const reason = `revision ${arriving.revision} of ${arriving.key} covers it`;
    await record(client, dataset, other.key, 'replaced', reason, { rows: other.rows, revision: other.row.revision });
    await stateRetracted(client, dataset, other, 'a later revision covers it');
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

/** A proved partition leaves the catalog; of any other the proof log has said so before. */
async function stateRetracted(
  client: ClientBase,
  dataset: DatasetDefinition,
  { row }: Stored,
  reason: LeafReason,
): Promise<void> {
  if (row.state !== 'proved') return;
  await writeLeaves(client, dataset, [statementOf(row, { kind: 'retracted', reason })]);
}

async function forget(client: ClientBase, dataset: DatasetDefinition, key: string): Promise<void> {
  await client.query('delete from partitions where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
  await client.query('delete from frames where dataset_id = $1 and partition_key = $2', [dataset.number, key]);
}

/**
 * Deletes the synthetic sample in the transaction of the first real partition. The window of an arriving file day is
 * left alone: it was emptied before the load and holds the new rows.
 */
export async function deleteSampleRows(
  client: ClientBase,
  dataset: DatasetDefinition,
  arriving: string,
  dirty?: DirtyBuckets,
): Promise<void> {
  for (const sample of await stored(client, dataset, 'synthetic', [])) {
    if (dirty || sample.key !== arriving) await takeOut(client, dataset, sample, dirty);
    await forget(client, dataset, sample.key);
    const reason = 'the first real partition was proved' satisfies LeafReason;
    await record(client, dataset, sample.key, 'sample_retired', reason, { rows: sample.rows });
    await stateRetracted(client, dataset, sample, reason);
  }
  await client.query('delete from partitions where dataset_id = $1 and synthetic', [dataset.number]);
  await clearCoverage(client, dataset);
}

/** Why proved partitions leave service: their rows no longer match, or their source no longer stands by them. */
interface Retracting {
  readonly reason: string;
  /** The process or source that found it; the ledger records it. */
  readonly by: string;
  /** The result of the recount, if there was one. */
  readonly recount?: Recount;
}

/**
 * Quarantines a proved partition in the caller's transaction. Its klines are removed. Its rows stay stored, but nothing reads them until they
 * are proved again, and the seconds that it shared with other partitions are rebuilt without them.
 */
export async function retractPartition(
  client: ClientBase,
  dataset: DatasetDefinition,
  seconds: SharedSeconds | undefined,
  row: PartitionRow,
  { reason, by, recount }: Retracting,
): Promise<void> {
  await lockCoverage(client, dataset);
  await client.query(
    `update partitions set state = 'quarantined', reason = $3, recount = coalesce($4, recount), klines_sha256 = null,
       updated_at = clock_timestamp()
     where dataset_id = $1 and partition_key = $2`,
    [dataset.number, row.partitionKey, reason, recount ?? null],
  );
  const { sourceId, span } = keyFacts(dataset, row.partitionKey);
  if (!seconds || !span) {
    await uncoverWindow(client, dataset, partitionRefOf(row));
    await deleteKlines(client, dataset, partitionRefOf(row));
  } else {
    const dirty = await DirtyBuckets.open(client, dataset, seconds);
    await dirty.addWindow(partitionRefOf(row));
    await dirty.rebuild();
    await recoverSpan(client, dataset, sourceId, span, { withheld: [row.partitionKey] });
  }
  await record(client, dataset, row.partitionKey, 'quarantined', reason, { by, attempt: row.attempt });
  const kind = by === 'source' ? 'retracted' : 'quarantined';
  const stated = by === 'source' ? 'its source withdrew it' : 'its stored rows are not those that were proved';
  await writeLeaves(client, dataset, [statementOf(row, { kind, reason: stated })]);
}

/**
 * Retracts, in one transaction, every proved partition that holds a part of a span: blocks that left the node's chain.
 * @returns their keys.
 */
export async function retractSpan(
  client: ClientBase,
  dataset: DatasetDefinition,
  seconds: SharedSeconds,
  { sourceId, span }: { readonly sourceId: string; readonly span: Range },
  retracting: Retracting,
): Promise<string[]> {
  await DirtyBuckets.prepare(client);
  await client.query('begin');
  try {
    await lockCoverage(client, dataset);
    const covering = await new Catalog(client).overlapping(dataset, sourceId, span);
    const proved = covering.filter((row) => row.state === 'proved');
    for (const row of proved) await retractPartition(client, dataset, seconds, row, retracting);
    await client.query('commit');
    return proved.map((row) => row.partitionKey);
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}
