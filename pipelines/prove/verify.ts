/**
 * Verification of what is served: the recount again, and on request byte by byte against the log. A partition whose
 * stored rows no longer match is quarantined at once.
 */
import { createHash } from 'node:crypto';
import type { NatsConnection } from '@nats-io/transport-node';
import { DatabaseError } from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import { compare, describeDiscrepancies, type Recount, recount } from '../../shared/proof/recount.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/partitions.ts';
import { COPY_HEADER, COPY_TRAILER } from '../project/binary-copy.ts';
import type { PartitionWindow, RowProjector } from '../sources/types.ts';
import { framesOf } from './log-frames.ts';

export interface VerifyNeeds {
  readonly dataset: DatasetDefinition;
  readonly client: Client;
  readonly catalog: Catalog;
  readonly connection: NatsConnection;
  readonly createRows: (window: PartitionWindow) => RowProjector;
  readonly batchBytes: number;
  /** Also every row's bytes against the log. */
  readonly deep: boolean;
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
  const { dataset, client, createRows } = needs;
  const window = { key: row.partitionKey, ...windowOf(dataset, row.partitionKey) };
  assert(row.manifest, 'a proved partition has a manifest');
  const { alignedColumns } = createRows(window);
  await client.query('begin isolation level repeatable read');
  try {
    await checkCurrent(row, needs);
    const tables = { native: dataset.native.table, aligned: ALIGNED_TABLE };
    const found = await recount(client, dataset, window, tables, alignedColumns);
    const discrepancies = compare(dataset, row.manifest, found);
    if (found.aligned_hash !== row.alignedHash) {
      discrepancies.push({ fact: 'aligned_hash', expected: `${row.alignedHash}`, found: `${found.aligned_hash}` });
    }
    if (needs.deep && discrepancies.length === 0) {
      const log = await logDigests(row, window, needs);
      const stored = await storedDigest(client, dataset, window);
      if (log.rows !== stored) discrepancies.push({ fact: 'rows_sha256', expected: log.rows, found: stored });
      const { events_sha256: expected } = row.manifest;
      if (log.events !== expected) discrepancies.push({ fact: 'events_sha256', expected, found: log.events });
    }
    const reason = describeDiscrepancies(discrepancies);
    if (reason) await quarantine(client, dataset, row, reason, found);
    await client.query('commit');
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

/** sha256 of what the log yields, in the order of offsets: its rows as binary COPY, and its events as they are. */
async function logDigests(
  row: PartitionRow,
  window: PartitionWindow,
  needs: VerifyNeeds,
): Promise<{ rows: string; events: string }> {
  const { catalog, dataset, connection, createRows, batchBytes } = needs;
  const attempt = await catalog.attempt(dataset, row.partitionKey, row.attempt);
  assert(row.manifest && attempt?.manifestSequence, 'a proved partition has a manifest in the log');
  const rows = createRows(window);
  const digest = createHash('sha256').update(COPY_HEADER);
  const events = createHash('sha256');
  for await (const frame of framesOf(connection, row.manifest, attempt.manifestSequence, batchBytes)) {
    events.update(frame.raw);
    digest.update(rows.rows(frame.raw, frame.header.rows).copy);
  }
  return { rows: digest.update(COPY_TRAILER).digest('hex'), events: events.digest('hex') };
}

async function storedDigest(client: Client, dataset: DatasetDefinition, window: PartitionWindow): Promise<string> {
  const { table, time, columns, identity } = dataset.native;
  const names = columns.map((column) => `"${column.name}"`).join(', ');
  const order = identity.map((name) => `"${name}"`).join(', ');
  const stream = client.query(
    copyTo(
      `copy (select ${names} from ${table} where "${time.column}" >= ${window.fromMs} and "${time.column}" < ${window.toMs}
       order by ${order}) to stdout with (format binary)`,
    ),
  );
  const digest = createHash('sha256');
  for await (const chunk of stream) digest.update(chunk);
  return digest.digest('hex');
}

async function quarantine(
  client: Client,
  dataset: DatasetDefinition,
  row: PartitionRow,
  reason: string,
  found: Recount,
): Promise<void> {
  await client.query(
    `update coverage set proved = proved - int8multirange(int8range($2, $3)), version = version + 1,
       updated_at = clock_timestamp() where dataset_id = $1`,
    [dataset.number, row.fromMs, row.toMs],
  );
  await client.query(
    `update partitions set state = 'quarantined', reason = $3, recount = $4, updated_at = clock_timestamp()
     where dataset_id = $1 and partition_key = $2`,
    [dataset.number, row.partitionKey, reason, found],
  );
  await client.query(
    `insert into ledger (dataset_id, partition_key, kind, reason, details) values ($1, $2, 'quarantined', $3, $4)`,
    [dataset.number, row.partitionKey, reason, { by: 'verify', attempt: row.attempt }],
  );
}
