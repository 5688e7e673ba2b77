/**
 * `replay`: rebuilds partitions from the log in scratch tables and compares them with the served rows. If the digests
 * differ, one transaction replaces the served rows, so readers see either all old or all new rows.
 */

import { createHash } from 'node:crypto';
import type { NatsConnection } from '@nats-io/transport-node';
import type { ClientBase } from 'pg';
import { Catalog, record } from '../../../shared/db/catalog.ts';
import { withClient } from '../../../shared/db/connect.ts';
import { coverWindow, lockCoverage, recoverSpan } from '../../../shared/db/partition-changes.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import {
  describeDiscrepancies,
  type PartitionRef,
  type Recount,
  recount,
  recountNative,
} from '../../../shared/proof/recount.ts';
import { differingRanges, writeRanges } from '../../../shared/proof/value-ranges.ts';
import { ALIGNED_TABLE } from '../../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { keyFacts } from '../../../shared/registry/keys.ts';
import type { LoadTarget } from '../../projector/chunks.ts';
import { rangesOf } from '../../projector/commit.ts';
import { DirtyBuckets } from '../../projector/dirty-buckets.ts';
import { compareShared, keepKlines, remadeKlines, storedKlinesSha256 } from '../../projector/kline-storage.ts';
import { provingLeaf, stateProved } from '../../projector/logged-proof.ts';
import { type LoadResult, PartitionLoad, partitionRefOf } from '../../projector/partition-load.ts';
import { takeOut } from '../../projector/retract.ts';
import { comparedSeconds, framesOf, inLog, quarantinedBy } from '../../projector/verify.ts';
import type { Projection } from '../../rows/binary-copy.ts';
import { projectionOf } from '../../sources/index.ts';
import type { ParsedCommand } from '../options.ts';
import { overPartitions } from '../over-partitions.ts';

export interface ReplayNeeds {
  readonly dataset: DatasetDefinition;
  readonly client: ClientBase;
  readonly catalog: Catalog;
  readonly connection: NatsConnection;
  readonly projection: Projection;
  readonly batchBytes: number;
  /** Reports what would be replaced, without replacing it. */
  readonly verifyOnly?: boolean;
}

export interface ReplayResult {
  readonly partition: string;
  readonly state: 'identical' | 'replaced' | 'differs';
  readonly rows: number;
  /** Names of the facts in which the served rows differed; empty if identical. */
  readonly differing: readonly string[];
}

const SCRATCH = { native: 'replay_native', aligned: 'replay_aligned' } as const;

/**
 * @throws TidemarkError PARTITION_PROOF_FAILED if the log no longer yields the manifest's content, PARTITION_CHANGED if the
 * partition has changed since `row` was read.
 */
export async function replayPartition(row: PartitionRow, needs: ReplayNeeds): Promise<ReplayResult> {
  const { dataset, client, catalog, connection, projection } = needs;
  const attempt = await catalog.attempt(dataset, row.partitionKey, row.attempt);
  assert(row.manifest && attempt, 'a proved partition has a manifest');
  const manifestSequence = inLog(dataset, row, attempt);
  // A rebuild cannot prove what was never proved: the partition needs a new ingest.
  if (attempt.state !== 'proved') {
    throw new TidemarkError(
      'PARTITION_PROOF_FAILED',
      `${dataset.key} ${row.partitionKey} was never proved: ${row.reason}`,
    );
  }
  const partition = partitionRefOf(row);
  await checkReplayable(row, needs);
  if (projection.seconds) await DirtyBuckets.prepare(client);
  await client.query('begin');
  try {
    await client.query(
      `create temp table ${SCRATCH.native} (like ${dataset.native.table} including defaults) on commit drop`,
    );
    await client.query(`create temp table ${SCRATCH.aligned} (like ${ALIGNED_TABLE}) on commit drop`);
    const load = await PartitionLoad.open(client, {
      dataset,
      partition,
      projection,
      seriesId: projection.seconds ? 0 : await catalog.seriesId(dataset),
      tables: { native: scratchOf(partition), aligned: SCRATCH.aligned },
    });
    const events = createHash('sha256');
    try {
      for await (const frame of framesOf(connection, row.manifest, manifestSequence, needs.batchBytes)) {
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
        `The log of ${dataset.key} ${row.partitionKey} no longer matches its manifest: ${describeDiscrepancies(discrepancies)}`,
      );
    }
    const differing = await differingFacts(needs, row, result);
    if (load.factsText(row.manifest) !== row.facts) differing.push('facts');
    const replaces = differing.length > 0 && !needs.verifyOnly;
    if (replaces) await replaceRows(needs, row, load, differing);
    else await checkUnchanged(needs, row);
    await client.query('commit');
    return {
      partition: row.partitionKey,
      state: replaces ? 'replaced' : differing.length > 0 ? 'differs' : 'identical',
      rows: rebuilt.rows,
      differing,
    };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** The whole partition goes into one table without an index. */
const scratchOf = ({ fromMs, toMs }: PartitionRef): LoadTarget => ({
  table: SCRATCH.native,
  chunks: [{ table: SCRATCH.native, fromMs, toMs, indexed: true, compacted: false, fresh: true }],
});

/**
 * A replay restores what a verification quarantined. It does not restore what the source retracted, because the log
 * still holds the retracted content.
 */
async function checkReplayable(row: PartitionRow, { dataset, client }: ReplayNeeds): Promise<void> {
  if (row.state !== 'quarantined') return;
  const by = await quarantinedBy(client, dataset, row.partitionKey);
  if (by === 'verify') return;
  throw new TidemarkError(
    'PARTITION_PROOF_FAILED',
    `${dataset.key} ${row.partitionKey} was quarantined by ${by}: ${row.reason}`,
  );
}

/** Names of the recounted facts that differ. */
function differences(a: Recount, b: Recount): string[] {
  const flat = (found: Recount) => ({ ...found, ...found.totals, totals: undefined }) as Record<string, unknown>;
  const [left, right] = [flat(a), flat(b)];
  return Object.keys(left).filter((name) => String(left[name]) !== String(right[name]));
}

/** Names of the facts in which what is served differs from what was rebuilt. */
async function differingFacts(needs: ReplayNeeds, row: PartitionRow, rebuilt: LoadResult): Promise<string[]> {
  const { dataset, client, projection } = needs;
  const partition = partitionRefOf(row);
  const differing = differences(rebuilt.recount, await recountServed(needs, partition));
  if (projection.seconds && differing.length === 0) {
    const { made, stored } = await comparedSeconds(client, dataset, projection.seconds, partition);
    if (made !== stored) differing.push('aligned_hash');
  }
  const { klinesSha256: recorded } = row;
  if (recorded !== null) {
    const stored = await storedKlinesSha256(client, dataset, partition, row.inexactSeconds);
    if (recorded !== rebuilt.klinesSha256 || stored !== recorded) differing.push('klines_sha256');
    if ((await compareShared(client, dataset, partition)).length > 0) differing.push('shared klines');
  }
  if (differing.length === 0 && (await differingRanges(client, dataset, partition))) differing.push('value_ranges');
  if (row.state === 'proved' && !(await provingLeaf(client, dataset, row))) differing.push('proof_leaf');
  // A partition that a verification quarantined is always replaced by what the log yields, even if a recount matches.
  if (row.state === 'quarantined' && differing.length === 0) differing.push('quarantined');
  return differing;
}

async function recountServed({ dataset, client, projection }: ReplayNeeds, partition: PartitionRef): Promise<Recount> {
  const { table } = dataset.native;
  if (projection.seconds) return await recountNative(client, dataset, partition, table);
  const tables = { native: table, aligned: ALIGNED_TABLE };
  return await recount(client, dataset, partition, tables, projection.alignedColumns);
}

/**
 * The command read `row` at its start. Since then a revision may have been proved, whose rows are not those of the log's old
 * attempt, or the source may have retracted the partition, which must stay out of service.
 * @throws TidemarkError PARTITION_CHANGED
 */
async function checkUnchanged({ dataset, client }: ReplayNeeds, row: PartitionRow): Promise<void> {
  const now = await new Catalog(client).partition(dataset, row.partitionKey);
  const isSame = now?.attempt === row.attempt && now.state === row.state;
  if (isSame && now.provedAt?.getTime() === row.provedAt?.getTime()) return;
  throw new TidemarkError('PARTITION_CHANGED', `${dataset.key} ${row.partitionKey} has changed since it was read`);
}

async function replaceRows(
  needs: ReplayNeeds,
  row: PartitionRow,
  load: PartitionLoad,
  differing: readonly string[],
): Promise<void> {
  const { dataset, client, projection } = needs;
  const { frames, rowsSha256 } = load;
  const partition = partitionRefOf(row);
  assert(row.manifest, 'a proved partition has a manifest');
  const facts = load.factsText(row.manifest);
  // Waits for any other process that changes this dataset's coverage, usually the projector.
  await lockCoverage(client, dataset);
  await checkUnchanged(needs, row);
  const dirty = projection.seconds && (await DirtyBuckets.open(client, dataset, projection.seconds));
  await dirty?.addWindow(partition);
  await takeOut(client, dataset, partition, dirty);
  await client.query(`insert into ${dataset.native.table} select * from ${SCRATCH.native}`);
  if (!projection.seconds) {
    const columns = projection.alignedColumns.join(', ');
    await client.query(`insert into ${ALIGNED_TABLE} (${columns}) select ${columns} from ${SCRATCH.aligned}`);
  }
  const again = await recountServed(needs, partition);
  await client.query(
    `update partitions set state = 'proved', reason = null, recount = $3, rows = $4, aligned_rows = $5, aligned_hash = $6, facts = $7,
       proved_at = clock_timestamp(), updated_at = clock_timestamp() where dataset_id = $1 and partition_key = $2`,
    [dataset.number, partition.key, again, again.rows, again.aligned_rows, again.aligned_hash, facts],
  );
  await writeRanges(client, dataset, partition.key, { whole: rangesOf(frames), frames });
  await dirty?.addPartition(partition);
  await dirty?.rebuild();
  const replaced = { ...row, alignedRows: again.aligned_rows, alignedHash: again.aligned_hash };
  const klines = await remadeKlines(client, dataset, replaced);
  await keepKlines(client, dataset, replaced, klines);
  const { sourceId, span } = keyFacts(dataset, partition.key);
  if (span) await recoverSpan(client, dataset, sourceId, span, { served: [partition.key] });
  else await coverWindow(client, dataset, partition);
  await record(
    client,
    dataset,
    partition.key,
    'replay_replaced',
    `the served rows differed in ${differing.join(', ')}`,
    { differing },
  );
  await stateProved(client, dataset, replaced, { rowsSha256, facts, reason: 'replayed from the log' });
}

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
        batchBytes: context.settings.limits.pullBytes,
        verifyOnly: command.values['verify-only'] === true,
      };
      const replayed = await withClient(context.pool, (client) => replayPartition(row, { ...needs, client }));
      const { partition, state, rows, differing } = replayed;
      const reason = differing.length > 0 ? `differed in ${differing.join(', ')}` : undefined;
      return { partition, state, rows, ...(reason ? { reason } : {}) };
    },
  });
}
