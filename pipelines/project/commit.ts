/**
 * The ends an attempt can come to, each one transaction that also moves the checkpoint: proved, quarantined, refused.
 */
import type { ClientBase } from 'pg';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { FrameEntry, LoadResult } from './partition-load.ts';
import { deleteRows } from './partition-load.ts';

/** The message an attempt's end stands at. */
export interface Position {
  readonly streamCreated: Date;
  readonly sequence: number;
  readonly messageSha256: string;
}

/** Channel on which the end of an attempt is announced: `<dataset>|<partition>|<attempt>|<state>`. */
export const OUTCOME_CHANNEL = 'tidemark_partition';

/** Inside the load's transaction, after its proof: everything that makes the partition served. */
export async function writeProved(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifest: Manifest,
  result: LoadResult,
  frames: readonly FrameEntry[],
  position: Position,
): Promise<void> {
  const id = dataset.number;
  const key = manifest.partition;
  // The lock orders this commit with every other change of the dataset's coverage.
  const before = (await client.query('select synthetic from coverage where dataset_id = $1 for update', [id])).rows[0];
  if (before.synthetic && !manifest.synthetic) await retireSample(client, dataset, key);
  const old = await client.query('select revision from partitions where dataset_id = $1 and partition_key = $2', [
    id,
    key,
  ]);
  await client.query('delete from frames where dataset_id = $1 and partition_key = $2', [id, key]);
  await insertFrames(client, dataset, key, frames);
  const offsets = dataset.offset.unique ? `[${manifest.first_offset},${manifest.last_offset}]` : null;
  await client.query(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows,
       aligned_rows, aligned_hash, offsets, manifest, recount, reason, ingested_at, proved_at)
     values ($1, $2, 'proved', $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, null, to_timestamp($14 / 1000.0), clock_timestamp())
     on conflict (dataset_id, partition_key) do update set state = excluded.state, attempt = excluded.attempt,
       revision = excluded.revision, from_ms = excluded.from_ms, to_ms = excluded.to_ms, synthetic = excluded.synthetic,
       rows = excluded.rows, aligned_rows = excluded.aligned_rows, aligned_hash = excluded.aligned_hash,
       offsets = excluded.offsets, manifest = excluded.manifest, recount = excluded.recount, reason = null,
       ingested_at = excluded.ingested_at, proved_at = excluded.proved_at, updated_at = clock_timestamp()`,
    [
      id,
      key,
      manifest.attempt,
      manifest.revision,
      manifest.from_ms,
      manifest.to_ms,
      manifest.synthetic,
      manifest.rows,
      result.recount.aligned_rows,
      result.recount.aligned_hash,
      offsets,
      manifest,
      result.recount,
      manifest.ingested_at_ms,
    ],
  );
  await client.query(
    `update coverage set proved = proved + int8multirange(int8range($2, $3)), version = version + 1, synthetic = $4,
       updated_at = clock_timestamp() where dataset_id = $1`,
    [id, manifest.from_ms, manifest.to_ms, manifest.synthetic],
  );
  if (old.rows[0] && old.rows[0].revision < manifest.revision) {
    await record(client, dataset, key, 'revision_proved', `revision ${manifest.revision}`, {
      attempt: manifest.attempt,
    });
  }
  await endAttempt(client, dataset, manifest, 'proved', null, position.sequence);
  await moveCheckpoint(client, dataset, position);
  await announce(client, dataset, manifest, 'proved');
}

/** Its own transaction, after the load was rolled back: the partition is not served and says why. */
export async function writeQuarantined(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifest: Manifest,
  reason: string,
  recount: LoadResult['recount'] | null,
  position: Position,
): Promise<void> {
  const { partition: key, attempt, revision } = manifest;
  await client.query('begin');
  // A failed revision leaves the proved one served.
  await client.query(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows, manifest,
       recount, reason)
     values ($1, $2, 'quarantined', $3, $4, $5, $6, $7, null, $8, $9, $10)
     on conflict (dataset_id, partition_key) do update set state = excluded.state, attempt = excluded.attempt,
       revision = excluded.revision, synthetic = excluded.synthetic, manifest = excluded.manifest,
       recount = excluded.recount, reason = excluded.reason, updated_at = clock_timestamp()
       where partitions.state <> 'proved'`,
    [
      dataset.number,
      key,
      attempt,
      revision,
      manifest.from_ms,
      manifest.to_ms,
      manifest.synthetic,
      manifest,
      recount,
      reason,
    ],
  );
  await record(client, dataset, key, 'quarantined', reason, { attempt, revision });
  await endAttempt(client, dataset, manifest, 'quarantined', reason, position.sequence);
  await moveCheckpoint(client, dataset, position);
  await announce(client, dataset, manifest, 'quarantined');
  await client.query('commit');
}

/** A manifest for a partition that is proved already: nothing changes but the record of it. */
export async function writeRefused(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifest: Manifest,
  reason: string,
  late: boolean,
  position: Position,
): Promise<void> {
  await client.query('begin');
  if (late) {
    await record(client, dataset, manifest.partition, 'late_arrival_refused', reason, {
      attempt: manifest.attempt,
      document: manifest.document,
    });
  }
  await endAttempt(client, dataset, manifest, 'refused', reason, position.sequence);
  await moveCheckpoint(client, dataset, position);
  await announce(client, dataset, manifest, 'refused');
  await client.query('commit');
}

/** The first real partition of a dataset takes the synthetic sample out, in the same commit. */
async function retireSample(client: ClientBase, dataset: DatasetDefinition, arriving: string): Promise<void> {
  const sample = await client.query(
    `delete from partitions where dataset_id = $1 and synthetic returning partition_key, from_ms, to_ms, rows`,
    [dataset.number],
  );
  for (const row of sample.rows) {
    // The arriving partition's window was emptied before it was loaded; emptying it again would take its own rows.
    if (row.partition_key !== arriving) {
      await deleteRows(client, dataset, { fromMs: Number(row.from_ms), toMs: Number(row.to_ms) });
    }
    await client.query('delete from frames where dataset_id = $1 and partition_key = $2', [
      dataset.number,
      row.partition_key,
    ]);
    await record(client, dataset, row.partition_key, 'sample_retired', 'the first real partition was proved', {
      rows: Number(row.rows),
    });
  }
  await client.query(`update coverage set proved = '{}' where dataset_id = $1`, [dataset.number]);
}

async function insertFrames(
  client: ClientBase,
  dataset: DatasetDefinition,
  key: string,
  frames: readonly FrameEntry[],
): Promise<void> {
  let base = 0;
  const bases = frames.map(({ header }) => {
    base += header.rows;
    return base - header.rows;
  });
  await client.query(
    `insert into frames (dataset_id, partition_key, stream_sequence, first_offset, last_offset, first_ms, last_ms, rows, row_base)
     select $1, $2, * from unnest($3::int8[], $4::text[], $5::text[], $6::int8[], $7::int8[], $8::int4[], $9::int8[])`,
    [
      dataset.number,
      key,
      frames.map((entry) => entry.sequence),
      frames.map((entry) => entry.header.first_offset),
      frames.map((entry) => entry.header.last_offset),
      frames.map((entry) => entry.header.first_ms),
      frames.map((entry) => entry.header.last_ms),
      frames.map((entry) => entry.header.rows),
      bases,
    ],
  );
}

async function endAttempt(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifest: Manifest,
  state: 'proved' | 'quarantined' | 'refused',
  reason: string | null,
  sequence: number,
): Promise<void> {
  // The attempt may be unknown here: the database can be younger than the log.
  await client.query(
    `insert into attempts (dataset_id, partition_key, attempt, revision, state, publisher, document, manifest, frames,
       first_sequence, manifest_sequence, reason)
     values ($1, $2, $3, $4, $5, 'log', $6, $7, $8, $9, $10, $11)
     on conflict (dataset_id, partition_key, attempt) do update set state = excluded.state, manifest = excluded.manifest,
       frames = excluded.frames, first_sequence = excluded.first_sequence, manifest_sequence = excluded.manifest_sequence,
       reason = excluded.reason, updated_at = clock_timestamp()`,
    [
      dataset.number,
      manifest.partition,
      manifest.attempt,
      manifest.revision,
      state,
      manifest.document,
      manifest,
      manifest.frames,
      manifest.first_sequence,
      sequence,
      reason,
    ],
  );
}

export async function moveCheckpoint(
  client: ClientBase,
  dataset: DatasetDefinition,
  position: Position,
): Promise<void> {
  await client.query(
    `insert into checkpoints (dataset_id, stream_created, stream_sequence, message_sha256) values ($1, $2, $3, $4)
     on conflict (dataset_id) do update set stream_created = excluded.stream_created,
       stream_sequence = excluded.stream_sequence, message_sha256 = excluded.message_sha256, updated_at = clock_timestamp()`,
    [dataset.number, position.streamCreated, position.sequence, position.messageSha256],
  );
}

async function record(
  client: ClientBase,
  dataset: DatasetDefinition,
  key: string,
  kind: string,
  reason: string,
  details: Record<string, unknown>,
): Promise<void> {
  await client.query(
    'insert into ledger (dataset_id, partition_key, kind, reason, details) values ($1, $2, $3, $4, $5)',
    [dataset.number, key, kind, reason, details],
  );
}

async function announce(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifest: Manifest,
  state: string,
): Promise<void> {
  const payload = `${dataset.key}|${manifest.partition}|${manifest.attempt}|${state}`;
  await client.query('select pg_notify($1, $2)', [OUTCOME_CHANNEL, payload]);
}
