/**
 * Replay: a partition built again from the log, beside the one that is served. Equal digests mean there is nothing to
 * do; otherwise the served rows are replaced in one transaction, which readers see whole or not at all.
 */
import { createHash } from 'node:crypto';
import type { NatsConnection } from '@nats-io/transport-node';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import { describeDiscrepancies, type Recount, recount } from '../../shared/proof/recount.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/partitions.ts';
import { deleteRows, PartitionLoad } from '../project/partition-load.ts';
import type { PartitionWindow, RowProjector } from '../sources/types.ts';
import { framesOf } from './log-frames.ts';

export interface ReplayNeeds {
  readonly dataset: DatasetDefinition;
  readonly client: Client;
  readonly catalog: Catalog;
  readonly connection: NatsConnection;
  readonly createRows: (window: PartitionWindow) => RowProjector;
  readonly batchBytes: number;
}

export interface ReplayResult {
  readonly partition: string;
  readonly state: 'identical' | 'replaced';
  readonly rows: number;
  /** What the served rows said otherwise; empty when identical. */
  readonly differing: readonly string[];
}

const SCRATCH = { native: 'replay_native', aligned: 'replay_aligned' } as const;

/** @throws TidemarkError PARTITION_PROOF_FAILED when the log itself no longer yields the manifest's content. */
export async function replayPartition(row: PartitionRow, needs: ReplayNeeds): Promise<ReplayResult> {
  const { dataset, client, catalog, connection, createRows } = needs;
  const window = { key: row.partitionKey, ...windowOf(dataset, row.partitionKey) };
  const attempt = await catalog.attempt(dataset, row.partitionKey, row.attempt);
  assert(row.manifest && attempt?.manifestSequence, 'a proved partition has a manifest in the log');
  // What was never proved is not made so by building it again: its reason stands until it is re-ingested.
  if (attempt.state !== 'proved') {
    throw new TidemarkError(
      'PARTITION_PROOF_FAILED',
      `${dataset.key} ${row.partitionKey} was never proved: ${row.reason}`,
    );
  }
  const projector = createRows(window);
  await client.query('begin');
  try {
    await client.query(`create temp table ${SCRATCH.native} (like ${dataset.native.table}) on commit drop`);
    await client.query(`create temp table ${SCRATCH.aligned} (like ${ALIGNED_TABLE}) on commit drop`);
    const load = await PartitionLoad.open(client, {
      dataset,
      window,
      projector,
      seriesId: await catalog.seriesId(dataset),
      tables: { native: { table: SCRATCH.native, unindexed: [], fresh: true }, aligned: SCRATCH.aligned },
    });
    const events = createHash('sha256');
    try {
      for await (const frame of framesOf(connection, row.manifest, attempt.manifestSequence, needs.batchBytes)) {
        events.update(frame.raw);
        await load.add(frame.sequence, frame.header, frame.raw);
      }
    } catch (error) {
      await load.abort();
      throw error;
    }
    const result = await load.finish(row.manifest);
    const { recount: rebuilt } = result;
    const discrepancies = [...result.discrepancies];
    const events_sha256 = events.digest('hex');
    if (events_sha256 !== row.manifest.events_sha256) {
      discrepancies.push({ fact: 'events_sha256', expected: row.manifest.events_sha256, found: events_sha256 });
    }
    if (discrepancies.length > 0) {
      throw new TidemarkError(
        'PARTITION_PROOF_FAILED',
        `The log of ${dataset.key} ${row.partitionKey} no longer yields its manifest: ${describeDiscrepancies(discrepancies)}`,
      );
    }
    const tables = { native: dataset.native.table, aligned: ALIGNED_TABLE };
    const served = await recount(client, dataset, window, tables, projector.alignedColumns);
    const differing = differences(rebuilt, served);
    // What verification took out comes back only as what the log yields, whatever a recount says of the rows.
    if (row.state === 'quarantined' && differing.length === 0) differing.push('quarantined');
    if (differing.length > 0) await replaceRows(needs, row, window, projector.alignedColumns, differing);
    await client.query('commit');
    return {
      partition: row.partitionKey,
      state: differing.length > 0 ? 'replaced' : 'identical',
      rows: rebuilt.rows,
      differing,
    };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** Names of the recount's facts that differ. */
export function differences(a: Recount, b: Recount): string[] {
  const flat = (found: Recount) => ({ ...found, ...found.totals, totals: undefined }) as Record<string, unknown>;
  const [left, right] = [flat(a), flat(b)];
  return Object.keys(left).filter((name) => String(left[name]) !== String(right[name]));
}

async function replaceRows(
  { dataset, client }: ReplayNeeds,
  row: PartitionRow,
  window: PartitionWindow,
  alignedColumns: readonly string[],
  differing: readonly string[],
): Promise<void> {
  // Waits for whoever else changes this dataset's coverage, the projector first of all.
  await client.query('select 1 from coverage where dataset_id = $1 for update', [dataset.number]);
  const now = await client.query('select attempt from partitions where dataset_id = $1 and partition_key = $2', [
    dataset.number,
    row.partitionKey,
  ]);
  if (now.rows[0]?.attempt !== row.attempt) {
    throw new TidemarkError(
      'PARTITION_CHANGED',
      `${dataset.key} ${row.partitionKey} became another revision meanwhile`,
    );
  }
  await deleteRows(client, dataset, window);
  await client.query(`insert into ${dataset.native.table} select * from ${SCRATCH.native}`);
  const columns = alignedColumns.join(', ');
  await client.query(`insert into ${ALIGNED_TABLE} (${columns}) select ${columns} from ${SCRATCH.aligned}`);
  const tables = { native: dataset.native.table, aligned: ALIGNED_TABLE };
  const again = await recount(client, dataset, window, tables, alignedColumns);
  await client.query(
    `update partitions set state = 'proved', reason = null, recount = $3, rows = $4, aligned_rows = $5, aligned_hash = $6,
       proved_at = clock_timestamp(), updated_at = clock_timestamp() where dataset_id = $1 and partition_key = $2`,
    [dataset.number, window.key, again, again.rows, again.aligned_rows, again.aligned_hash],
  );
  await client.query(
    `update coverage set proved = proved + int8multirange(int8range($2, $3)), version = version + 1,
       updated_at = clock_timestamp() where dataset_id = $1`,
    [dataset.number, window.fromMs, window.toMs],
  );
  await client.query(
    `insert into ledger (dataset_id, partition_key, kind, reason, details) values ($1, $2, 'replay_replaced', $3, $4)`,
    [dataset.number, window.key, `the served rows differed in ${differing.join(', ')}`, { differing }],
  );
}
