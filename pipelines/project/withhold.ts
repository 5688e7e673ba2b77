/** Takes proved partitions out of service: their rows no longer match, or their source no longer stands by them. */
import type { ClientBase } from 'pg';
import { Catalog } from '../../shared/db/catalog.ts';
import { lockCoverage, recoverSpan, uncoverWindow } from '../../shared/db/coverage.ts';
import { record } from '../../shared/db/ledger.ts';
import type { Range } from '../../shared/db/ranges.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import type { Recount } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { SharedSeconds } from '../rows/types.ts';
import { TouchedSeconds } from './seconds.ts';
import { refOf } from './stored.ts';

export interface Withholding {
  readonly reason: string;
  /** Who found it: goes into the ledger. */
  readonly by: string;
  /** What the rows say of themselves, where they were counted. */
  readonly recount?: Recount;
}

/**
 * In the caller's transaction. The rows stay where they are; nothing reads them until they are proved again, and the
 * seconds they shared with others are made without them.
 */
export async function withholdPartition(
  client: ClientBase,
  dataset: DatasetDefinition,
  seconds: SharedSeconds | undefined,
  row: PartitionRow,
  { reason, by, recount }: Withholding,
): Promise<void> {
  await lockCoverage(client, dataset);
  await client.query(
    `update partitions set state = 'quarantined', reason = $3, recount = coalesce($4, recount), updated_at = clock_timestamp()
     where dataset_id = $1 and partition_key = $2`,
    [dataset.number, row.partitionKey, reason, recount ?? null],
  );
  const { sourceId, span } = keyFacts(dataset, row.partitionKey);
  if (!seconds || !span) {
    await uncoverWindow(client, dataset, refOf(row));
  } else {
    const touched = await TouchedSeconds.open(client, dataset, seconds);
    await touched.addWindow(refOf(row));
    await touched.rebuild();
    await recoverSpan(client, dataset, sourceId, span, { withheld: [row.partitionKey] });
  }
  await record(client, dataset, row.partitionKey, 'quarantined', reason, { by, attempt: row.attempt });
}

/**
 * Withholds every proved partition that covers some of a span: blocks that are no longer in the node's chain. One
 * transaction. @returns their keys.
 */
export async function withholdSpan(
  client: ClientBase,
  dataset: DatasetDefinition,
  seconds: SharedSeconds,
  { sourceId, span }: { readonly sourceId: string; readonly span: Range },
  withholding: Withholding,
): Promise<string[]> {
  await TouchedSeconds.prepare(client);
  await client.query('begin');
  try {
    await lockCoverage(client, dataset);
    const covering = await new Catalog(client).overlapping(dataset, sourceId, span);
    const proved = covering.filter((row) => row.state === 'proved');
    for (const row of proved) await withholdPartition(client, dataset, seconds, row, withholding);
    await client.query('commit');
    return proved.map((row) => row.partitionKey);
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}
