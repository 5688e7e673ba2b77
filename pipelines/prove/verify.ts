/**
 * Verification of what is served: the recount again, and on request byte by byte against the log. A partition whose
 * stored rows no longer match is quarantined at once.
 */
import { createHash } from 'node:crypto';
import type { NatsConnection } from '@nats-io/transport-node';
import { type ClientBase, DatabaseError } from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { Queryable } from '../../shared/db/read-roles.ts';
import type { AttemptRow, PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { RecordAssembler } from '../../shared/frame/records.ts';
import {
  compare,
  type Discrepancy,
  describeDiscrepancies,
  type Recount,
  recount,
  recountNative,
} from '../../shared/proof/recount.ts';
import { identityOrder, type PartitionRef, scopeSql } from '../../shared/proof/scope.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { TouchedSeconds } from '../project/seconds.ts';
import { refOf } from '../project/stored.ts';
import { withholdPartition } from '../project/withhold.ts';
import { COPY_HEADER, COPY_TRAILER } from '../rows/binary-copy.ts';
import type { Projection, SharedSeconds } from '../rows/types.ts';
import { framesOf } from './log-frames.ts';

export interface VerifyNeeds {
  readonly dataset: DatasetDefinition;
  readonly client: ClientBase;
  readonly catalog: Catalog;
  readonly projection: Projection;
  /** Also every row's bytes against the log, for which the two below are needed. */
  readonly deep?: boolean;
  readonly connection?: NatsConnection;
  readonly batchBytes?: number;
}

export interface VerifyResult {
  readonly partition: string;
  readonly state: 'proved' | 'quarantined';
  readonly rows: number;
  readonly reason?: string;
}

/** A verdict is taken in one snapshot; when the dataset's coverage moved under it, the next try sees the new one. */
const TRIES = 5;

export async function verifyPartition(row: PartitionRow, needs: VerifyNeeds): Promise<VerifyResult> {
  if (needs.projection.seconds) await TouchedSeconds.prepare(needs.client);
  for (let tries = 1; ; tries++) {
    try {
      return await verifyOnce(row, needs);
    } catch (error) {
      const moved = error instanceof DatabaseError && error.code === '40001';
      if (!moved || tries === TRIES) throw error;
    }
  }
}

async function verifyOnce(row: PartitionRow, needs: VerifyNeeds): Promise<VerifyResult> {
  const { dataset, client, projection } = needs;
  const partition = refOf(row);
  assert(row.manifest, 'a proved partition has a manifest');
  await client.query('begin isolation level repeatable read');
  try {
    await checkCurrent(row, needs);
    const { found, discrepancies } = await recountStored(client, dataset, projection, row, row.manifest);
    if (needs.deep && discrepancies.length === 0) {
      const log = await logDigests(row, partition, needs);
      const stored = await storedDigest(client, dataset, partition);
      if (log.rows !== stored) discrepancies.push({ fact: 'rows_sha256', expected: log.rows, found: stored });
      const { events_sha256: expected } = row.manifest;
      if (log.events !== expected) discrepancies.push({ fact: 'events_sha256', expected, found: log.events });
    }
    const reason = describeDiscrepancies(discrepancies);
    if (reason) {
      await withholdPartition(client, dataset, projection.seconds, row, { reason, by: 'verify', recount: found });
    }
    // A request that came after this snapshot is not seen here, and stays.
    await client.query('delete from recount_requests where dataset_id = $1 and partition_key = $2', [
      dataset.number,
      row.partitionKey,
    ]);
    await client.query('commit');
    if (!reason) await noteVerified(row, needs);
    return {
      partition: row.partitionKey,
      state: reason ? 'quarantined' : 'proved',
      rows: found.rows,
      ...(reason ? { reason } : {}),
    };
  } catch (error) {
    await client.query('rollback').catch(() => {});
    throw error;
  }
}

/** A statement of its own: it changes nothing that anybody else waits for. */
async function noteVerified({ partitionKey, attempt }: PartitionRow, { dataset, client }: VerifyNeeds): Promise<void> {
  await client.query(
    `update partitions set verified_at = clock_timestamp()
     where dataset_id = $1 and partition_key = $2 and attempt = $3 and state = 'proved'`,
    [dataset.number, partitionKey, attempt],
  );
}

/** What is stored, counted again, and all in which it is not what it should be: one-second rows with the native ones. */
export async function recountStored(
  client: ClientBase,
  dataset: DatasetDefinition,
  projection: Projection,
  row: PartitionRow,
  manifest: Manifest,
): Promise<{ readonly found: Recount; readonly discrepancies: Discrepancy[] }> {
  const partition = refOf(row);
  if (projection.seconds) {
    const found = await recountNative(client, dataset, partition, dataset.native.table);
    const discrepancies = compare(dataset, manifest, found);
    const { made, stored } = await comparedSeconds(client, dataset, projection.seconds, partition);
    if (made !== stored) discrepancies.push({ fact: 'aligned_hash', expected: made, found: stored });
    return { found, discrepancies };
  }
  const tables = { native: dataset.native.table, aligned: ALIGNED_TABLE };
  const found = await recount(client, dataset, partition, tables, projection.alignedColumns);
  const discrepancies = compare(dataset, manifest, found);
  if (found.aligned_hash !== row.alignedHash) {
    discrepancies.push({ fact: 'aligned_hash', expected: `${row.alignedHash}`, found: `${found.aligned_hash}` });
  }
  return { found, discrepancies };
}

/** Who took a partition out of service, by the ledger: `verify`, `source`; the proof itself where it never was in. */
export async function withheldBy(client: Queryable, dataset: DatasetDefinition, key: string): Promise<string> {
  const { rows } = await client.query(
    `select details->>'by' as by from ledger where dataset_id = $1 and partition_key = $2 and kind = 'quarantined'
     order by entry_id desc limit 1`,
    [dataset.number, key],
  );
  return (rows[0]?.by as string | null | undefined) ?? 'proof';
}

/** Digests of the partition's seconds as its native rows and those of others make them, and as they are stored. */
export async function comparedSeconds(
  client: ClientBase,
  dataset: DatasetDefinition,
  seconds: SharedSeconds,
  partition: PartitionRef,
): Promise<{ readonly made: string; readonly stored: string }> {
  const touched = await TouchedSeconds.open(client, dataset, seconds);
  await touched.addProof(partition);
  return await touched.compare();
}

/** @throws TidemarkError PARTITION_CHANGED when the snapshot holds another revision than the one asked about. */
async function checkCurrent(row: PartitionRow, { dataset, client }: VerifyNeeds): Promise<void> {
  const { rows } = await client.query<{ attempt: number; state: string }>(
    'select attempt, state from partitions where dataset_id = $1 and partition_key = $2',
    [dataset.number, row.partitionKey],
  );
  if (rows[0]?.attempt !== row.attempt || rows[0].state !== 'proved') {
    throw new TidemarkError('PARTITION_CHANGED', `${dataset.key} ${row.partitionKey} is no longer what it was`);
  }
}

/** @throws TidemarkError LOG_PARTITION_LOST where the log lost it. */
export function inLog(dataset: DatasetDefinition, row: PartitionRow, attempt: AttemptRow | undefined): number {
  if (attempt?.manifestSequence) return attempt.manifestSequence;
  throw new TidemarkError('LOG_PARTITION_LOST', `The log no longer holds ${dataset.key} ${row.partitionKey}`);
}

/** sha256 of what the log yields, in the order of offsets: its rows as binary COPY, and its events as they are. */
async function logDigests(
  row: PartitionRow,
  partition: PartitionRef,
  needs: VerifyNeeds,
): Promise<{ rows: string; events: string }> {
  const { catalog, dataset, connection, projection, batchBytes } = needs;
  const attempt = await catalog.attempt(dataset, row.partitionKey, row.attempt);
  assert(row.manifest, 'a proved partition has a manifest');
  assert(connection && batchBytes !== undefined, 'a deep verification reads the log');
  const manifestSequence = inLog(dataset, row, attempt);
  const rows = projection.createRows(partition);
  const assembler = new RecordAssembler();
  const digest = createHash('sha256').update(COPY_HEADER);
  const events = createHash('sha256');
  for await (const frame of framesOf(connection, row.manifest, manifestSequence, batchBytes)) {
    events.update(frame.raw);
    const body = assembler.take(frame.header, frame.raw);
    if (body) digest.update(rows.rows(body, frame.header.rows).copy);
  }
  return { rows: digest.update(COPY_TRAILER).digest('hex'), events: events.digest('hex') };
}

async function storedDigest(client: ClientBase, dataset: DatasetDefinition, partition: PartitionRef): Promise<string> {
  const { table, columns } = dataset.native;
  const names = columns.map((column) => `t."${column.name}"`).join(', ');
  const stream = client.query(
    copyTo(
      `copy (select ${names} from ${table} t where ${scopeSql(dataset, partition)}
       order by ${identityOrder(dataset).join(', ')}) to stdout with (format binary)`,
    ),
  );
  const digest = createHash('sha256');
  for await (const chunk of stream) digest.update(chunk);
  return digest.digest('hex');
}
