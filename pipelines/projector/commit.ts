/** Records the ends of attempts: proved, quarantined or refused. Each moves the checkpoint in the same transaction. */

import type { ClientBase } from 'pg';
import { Catalog, record } from '../../shared/db/catalog.ts';
import { type Client, OUTCOME_CHANNEL } from '../../shared/db/connect.ts';
import { registeredInstruments } from '../../shared/db/instruments.ts';
import {
  coverSpans,
  coverWindow,
  lockCoverage,
  type ProvedExtent,
  recoverSpan,
  statementOfManifest,
  writeLeaves,
} from '../../shared/db/partition-changes.ts';
import { pinSettings } from '../../shared/db/pinned-settings.ts';
import { type AttemptRow, partitions, type StoredRow, storedColumns } from '../../shared/db/schema.ts';
import { differingFacts, type Manifest } from '../../shared/frame/manifest.ts';
import type { Recount } from '../../shared/proof/recount.ts';
import {
  RANGES_COLUMNS,
  RANGES_VALUES,
  rangesTexts,
  unitedRanges,
  type ValueRanges,
} from '../../shared/proof/value-ranges.ts';
import type { LeafReason } from '../../shared/proof-log/leaf.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { baseOf, hasInstruments, SLOTS, slotNumber } from '../../shared/registry/instruments.ts';
import { keyFacts, type TimeWindow } from '../../shared/registry/keys.ts';
import { extentOf, offsetsOf, outsidePartition } from './faults.ts';
import { shareKlines } from './kline-storage.ts';
import type { FrameEntry } from './partition-load.ts';
import { deleteSampleRows } from './retract.ts';
import type { AttemptId } from './state.ts';

/** The log message that a checkpoint names. */
export interface Position {
  readonly streamCreated: Date;
  readonly sequence: number;
  readonly messageSha256: string;
  /** @throws TidemarkError LOG_UNAVAILABLE when the log no longer holds the message */
  confirm(): Promise<void>;
}

/** Rebuilds the dirty buckets, after the catalog lists the partitions as proved. */
export type Rebuild = () => Promise<void>;

/** A partition whose proof holds. */
export interface Proved {
  readonly manifest: Manifest;
  readonly recount: Recount;
  readonly frames: readonly FrameEntry[];
  /** Digest of its klines, which are stored already; null or absent for datasets without. */
  readonly klinesSha256?: string | null;
  /** See KeptKlines. */
  readonly inexactSeconds?: string | null;
  /** Digest of the canonical bytes of its rows (shared/proof-log/rows.ts). */
  readonly rowsSha256: string;
  /** Their facts in canonical bytes (shared/proof/facts.ts). */
  readonly facts: string;
  /** The sequence of its manifest. */
  readonly sequence: number;
}

/** Writes everything that reads of the partitions depend on, in the load's transaction and after the proof. */
export async function writeProved(
  client: ClientBase,
  dataset: DatasetDefinition,
  proved: readonly Proved[],
  position: Position,
  rebuild: Rebuild,
): Promise<void> {
  const manifests = proved.map(({ manifest }) => manifest);
  const [{ synthetic }] = manifests;
  const keys = manifests.map(({ partition }) => partition);
  const before = await lockCoverage(client, dataset);
  // Where partitions share chunks, the sample was deleted before the load: nothing would distinguish its rows from the new
  // ones.
  if (before.synthetic && !synthetic && dataset.native.scope.kind === 'window') {
    await deleteSampleRows(client, dataset, keys[0]);
  }
  if (!synthetic) await retireSiblings(client, dataset);
  const known = await client.query<{ key: string; revision: number; state: string }>(
    'select partition_key as key, revision, state from partitions where dataset_id = $1 and partition_key = any ($2::text[])',
    [dataset.number, keys],
  );
  const old = new Map(known.rows.map((row) => [row.key, row]));
  await writeFrames(client, dataset, proved);
  await writePartitions(client, dataset, proved);
  await rebuild();
  for (const { manifest } of proved) {
    await shareKlines(client, dataset, { fromMs: manifest.from_ms, toMs: manifest.to_ms });
  }
  const arriving: ProvedExtent[] = [];
  for (const manifest of manifests) {
    const { partition: key } = manifest;
    const extent = extentOf(dataset, manifest);
    if (!extent) await coverWindow(client, dataset, { fromMs: manifest.from_ms, toMs: manifest.to_ms }, synthetic);
    else if (old.get(key)?.state !== 'proved') arriving.push({ key, ...extent });
    else await recoverSpan(client, dataset, extent.sourceId, extent.span, { served: [key] });
  }
  await coverSpans(client, dataset, arriving, synthetic);
  for (const { partition: key, revision, attempt } of manifests) {
    if ((old.get(key)?.revision ?? revision) >= revision) continue;
    await record(client, dataset, key, 'revision_proved', `revision ${revision}`, { attempt });
  }
  await writeLeaves(
    client,
    dataset,
    proved.map(({ manifest, rowsSha256, facts }) => {
      const before = old.get(manifest.partition);
      const kind = before && before.revision < manifest.revision ? 'revised' : 'proved';
      return statementOfManifest(manifest, { kind, rowsSha256, facts });
    }),
  );
  await endAttempts(client, dataset, proved, 'proved', null);
  // Last, because transactions of other datasets of the source may wait for it.
  if (!synthetic) await pinSettings(client, dataset, manifests);
  await moveCheckpoint(client, dataset, position);
  await announce(client, dataset, manifests, 'proved');
}

/** The sample of an exchange goes as a whole: that of its other instruments with the first real partition of any. */
async function retireSiblings(client: ClientBase, dataset: DatasetDefinition): Promise<void> {
  const base = baseOf(dataset);
  if (!hasInstruments(base)) return;
  const { rows } = await client.query<{ id: number }>(
    `select dataset_id as id from coverage where (dataset_id = $1 or dataset_id between $2 and $3) and dataset_id <> $4
       and synthetic and proved <> '{}' order by dataset_id desc`,
    [base.number, slotNumber(base, 1), slotNumber(base, SLOTS), dataset.number],
  );
  if (rows.length === 0) return;
  const all = [...(await registeredInstruments(client)), base];
  for (const { id } of rows) {
    const sibling = all.find(({ number }) => number === id);
    if (!sibling) continue;
    await lockCoverage(client, sibling);
    await deleteSampleRows(client, sibling, '');
  }
}

const KEY = storedColumns(partitions, ['partitionKey']);
const PROOF = storedColumns(partitions, [
  'attempt',
  'revision',
  'fromMs',
  'toMs',
  'synthetic',
  'rows',
  'alignedRows',
  'alignedHash',
  'offsets',
  'manifest',
  'recount',
  'ingestedAt',
  'sourceId',
  'span',
  'throughMs',
  'lastUpdatedAt',
  'klinesSha256',
  'inexactSeconds',
  'valueRanges',
  'facts',
]);

async function writePartitions(
  client: ClientBase,
  dataset: DatasetDefinition,
  proved: readonly Proved[],
): Promise<void> {
  const rows = proved.map((one): StoredRow<typeof KEY> & StoredRow<typeof PROOF> => {
    const { manifest, recount, frames, facts, klinesSha256 = null, inexactSeconds = null } = one;
    const extent = extentOf(dataset, manifest);
    return {
      partitionKey: manifest.partition,
      attempt: manifest.attempt,
      revision: manifest.revision,
      fromMs: manifest.from_ms,
      toMs: manifest.to_ms,
      synthetic: manifest.synthetic,
      rows: manifest.rows,
      alignedRows: recount.aligned_rows,
      alignedHash: recount.aligned_hash,
      offsets: offsetsOf(dataset, manifest),
      manifest,
      recount,
      ingestedAt: new Date(manifest.ingested_at_ms),
      sourceId: extent?.sourceId ?? null,
      span: extent ? `[${extent.span.from},${extent.span.to})` : null,
      throughMs: extent?.throughMs ?? null,
      lastUpdatedAt: manifest.last_updated_ms === undefined ? null : new Date(manifest.last_updated_ms),
      klinesSha256,
      inexactSeconds,
      valueRanges: rangesOf(frames) ?? null,
      facts,
    };
  });
  await client.query(
    `insert into partitions (dataset_id, state, proved_at, ${KEY.names}, ${PROOF.names})
     select $1, 'proved', clock_timestamp(), ${KEY.members}, ${PROOF.members}
     from jsonb_to_recordset($2) p (${KEY.definitions}, ${PROOF.definitions})
     on conflict (dataset_id, partition_key) do update set state = excluded.state, proved_at = excluded.proved_at,
       reason = null, updated_at = clock_timestamp(), ${PROOF.updates}`,
    [dataset.number, JSON.stringify(rows)],
  );
}

/** Quarantines a partition with the reason, in a transaction of its own, after its load was rolled back. */
export async function writeQuarantined(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifest: Manifest,
  reason: string,
  recount: Recount | null,
  position: Position,
): Promise<void> {
  const { partition: key, attempt, revision } = manifest;
  const { sourceId, span } = keyFacts(dataset, key);
  // No rows are stored, so times would make a later deletion look for rows that do not exist.
  const times: Partial<TimeWindow> = span ? {} : { fromMs: manifest.from_ms, toMs: manifest.to_ms };
  await client.query('begin');
  await lockCoverage(client, dataset);
  // A proved partition stays served when a revision of it fails.
  const changed = await client.query(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows, manifest,
       recount, reason, source_id, span)
     values ($1, $2, 'quarantined', $3, $4, $5, $6, $7, null, $8, $9, $10, $11, int8range($12, $13))
     on conflict (dataset_id, partition_key) do update set state = excluded.state, attempt = excluded.attempt,
       revision = excluded.revision, synthetic = excluded.synthetic, manifest = excluded.manifest,
       recount = excluded.recount, reason = excluded.reason, updated_at = clock_timestamp()
       where partitions.state <> 'proved'`,
    [
      dataset.number,
      key,
      attempt,
      revision,
      times.fromMs ?? null,
      times.toMs ?? null,
      manifest.synthetic,
      manifest,
      recount,
      reason,
      span ? sourceId : null,
      span?.from ?? null,
      span?.to ?? null,
    ],
  );
  await record(client, dataset, key, 'quarantined', reason, { attempt, revision });
  const kind = changed.rowCount === 0 ? 'refused' : 'quarantined';
  await writeLeaves(client, dataset, [statementOfManifest(manifest, { kind, reason: 'the proof failed' })]);
  await endAttempts(client, dataset, [{ manifest, sequence: position.sequence }], 'quarantined', reason);
  await moveCheckpoint(client, dataset, position);
  await announce(client, dataset, [manifest], 'quarantined');
  await client.query('commit');
}

/** Refuses an attempt whose partition is already proved: only the record of the attempt changes. */
export async function writeRefused(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifest: Manifest,
  { reason, stated, late }: { readonly reason: string; readonly stated: LeafReason; readonly late: boolean },
  position: Position,
): Promise<void> {
  await client.query('begin');
  await lockCoverage(client, dataset);
  if (late) {
    await record(client, dataset, manifest.partition, 'late_arrival_refused', reason, {
      attempt: manifest.attempt,
      document: manifest.document,
    });
  }
  await writeLeaves(client, dataset, [statementOfManifest(manifest, { kind: 'refused', reason: stated })]);
  await endAttempts(client, dataset, [{ manifest, sequence: position.sequence }], 'refused', reason);
  await moveCheckpoint(client, dataset, position);
  await announce(client, dataset, [manifest], 'refused');
  await client.query('commit');
}

async function writeFrames(client: ClientBase, dataset: DatasetDefinition, proved: readonly Proved[]): Promise<void> {
  const keys = proved.map(({ manifest }) => manifest.partition);
  await client.query('delete from frames where dataset_id = $1 and partition_key = any ($2::text[])', [
    dataset.number,
    keys,
  ]);
  const entries = proved.flatMap(({ manifest, frames }) => {
    let base = 0;
    return frames.map((frame) => {
      base += frame.header.rows;
      return { ...frame, key: manifest.partition, base: base - frame.header.rows };
    });
  });
  await client.query(
    `insert into frames (dataset_id, partition_key, stream_sequence, first_offset, last_offset, first_ms, last_ms, rows, row_base,
       ${RANGES_COLUMNS.join(', ')})
     select $1, key, sequence, first_offset, last_offset, first_ms, last_ms, rows, base, ${RANGES_VALUES.join(', ')}
     from unnest($2::text[], $3::int8[], $4::text[], $5::text[], $6::int8[], $7::int8[], $8::int4[], $9::int8[],
         ${RANGES_COLUMNS.map((_, index) => `$${10 + index}::text[]`).join(', ')})
       as f (key, sequence, first_offset, last_offset, first_ms, last_ms, rows, base, ${RANGES_COLUMNS.join(', ')})`,
    [
      dataset.number,
      entries.map(({ key }) => key),
      entries.map(({ sequence }) => sequence),
      entries.map(({ header }) => header.first_offset),
      entries.map(({ header }) => header.last_offset),
      entries.map(({ header }) => header.first_ms),
      entries.map(({ header }) => header.last_ms),
      entries.map(({ header }) => header.rows),
      entries.map(({ base }) => base),
      ...rangesTexts(entries),
    ],
  );
}

/** The ranges of a partition, from those of its frames with rows. */
export const rangesOf = (frames: readonly FrameEntry[]): ValueRanges | undefined =>
  unitedRanges(frames.flatMap(({ header, ranges }) => (header.rows > 0 ? [ranges] : [])));

async function endAttempts(
  client: ClientBase,
  dataset: DatasetDefinition,
  ended: readonly Pick<Proved, 'manifest' | 'sequence'>[],
  state: 'proved' | 'quarantined' | 'refused',
  reason: string | null,
): Promise<void> {
  // The catalog may not know the attempt: the database can be younger than the log.
  await client.query(
    `insert into attempts (dataset_id, partition_key, attempt, revision, state, publisher, document, manifest, frames,
       first_sequence, manifest_sequence, reason)
     select $1, manifest->>'partition', (manifest->>'attempt')::int4, (manifest->>'revision')::int4, $3, 'log',
       manifest->'document', manifest, (manifest->>'frames')::int4, (manifest->>'first_sequence')::int8, sequence, $4
     from jsonb_to_recordset($2) e (manifest jsonb, sequence int8)
     on conflict (dataset_id, partition_key, attempt) do update set state = excluded.state, manifest = excluded.manifest,
       frames = excluded.frames, first_sequence = excluded.first_sequence, manifest_sequence = excluded.manifest_sequence,
       reason = excluded.reason, updated_at = clock_timestamp()`,
    [dataset.number, JSON.stringify(ended.map(({ manifest, sequence }) => ({ manifest, sequence }))), state, reason],
  );
}

/**
 * Moves the checkpoint of the log, which all instruments of a dataset share, in the transaction whose effect it records and that locks the coverage, as `recover` does. The log is asked
 * once more: it may have lost its tail since it was read, and a `recover` before this commit could not see this checkpoint.
 */
export async function moveCheckpoint(
  client: ClientBase,
  dataset: DatasetDefinition,
  position: Position,
): Promise<void> {
  await position.confirm();
  const base = baseOf(dataset);
  if (base !== dataset) await lockCoverage(client, base);
  await client.query(
    `insert into checkpoints (dataset_id, stream_created, stream_sequence, message_sha256) values ($1, $2, $3, $4)
     on conflict (dataset_id) do update set stream_created = excluded.stream_created,
       stream_sequence = excluded.stream_sequence, message_sha256 = excluded.message_sha256, updated_at = clock_timestamp()`,
    [base.number, position.streamCreated, position.sequence, position.messageSha256],
  );
}

async function announce(
  client: ClientBase,
  dataset: DatasetDefinition,
  manifests: readonly Manifest[],
  state: string,
): Promise<void> {
  const payloads = manifests.map(({ partition, attempt }) => `${dataset.key}|${partition}|${attempt}|${state}`);
  await client.query('select pg_notify($1, payload) from unnest($2::text[]) payload', [OUTCOME_CHANNEL, payloads]);
}

/** Why an attempt is skipped: its partition is proved, its end was recorded before, or it cannot be completed. */
type SkipCause = 'proved' | 'ended' | 'broken';

/** An attempt whose messages are skipped up to its manifest. */
export interface Skipping {
  readonly name: AttemptId;
  readonly why: SkipCause;
  readonly reason: string;
}

/** States of an attempt that never change again. */
export const ENDED: ReadonlySet<AttemptRow['state']> = new Set(['proved', 'quarantined', 'refused']);

/** Moves the checkpoint past messages without an effect. */
async function skipTo(client: Client, dataset: DatasetDefinition, position: Position): Promise<void> {
  await client.query('begin');
  await lockCoverage(client, dataset);
  await moveCheckpoint(client, dataset, position);
  await client.query('commit');
}

/** Records the end of a skipped attempt, whose manifest has arrived, and moves the checkpoint in any case. */
export async function endSkipped(
  client: Client,
  dataset: DatasetDefinition,
  { why, reason, name }: Skipping,
  manifest: Manifest,
  position: Position,
): Promise<void> {
  const named = { ...manifest, partition: name.partition, attempt: name.attempt };
  const catalog = new Catalog(client);
  // The checkpoint was lost and the attempt is read a second time: its recorded end stays, however it began this time.
  const recorded = await catalog.attempt(dataset, name.partition, name.attempt);
  if (why === 'ended' || (recorded && ENDED.has(recorded.state))) {
    await skipTo(client, dataset, position);
    return;
  }
  if (why === 'proved') {
    const known = await catalog.partition(dataset, name.partition);
    const differing = known?.manifest ? differingFacts(known.manifest, manifest) : [];
    // The checkpoint was lost and the proved attempt is read a second time.
    if (known?.attempt === name.attempt && differing.length === 0) {
      await skipTo(client, dataset, position);
      return;
    }
    const late = differing.length > 0;
    const refusal = late
      ? ({
          reason: `${reason} with other content (${differing.join(', ')})`,
          stated: 'the partition is proved with other content',
        } as const)
      : ({ reason, stated: 'the partition is proved' } as const);
    await writeRefused(client, dataset, named, { ...refusal, late }, position);
    return;
  }
  let times: TimeWindow;
  try {
    times = keyFacts(dataset, name.partition).times;
  } catch {
    const refusal = { reason, stated: 'the attempt cannot be completed', late: true } as const;
    await writeRefused(client, dataset, named, refusal, position);
    return;
  }
  await writeQuarantined(client, dataset, outsidePartition(manifest, name, times), reason, null, position);
}
