/** Documents that differ from those that partitions were proved with, as their sources were found to publish them later. */
import type { DocumentFacts } from '../frame/manifest.ts';

/** What a document changes of the rows that are served. */
export interface RowChanges {
  readonly added: number;
  readonly removed: number;
  readonly altered: number;
  /** The file that says which. */
  readonly diff: { readonly sha256: string; readonly bytes: number };
}

/** A document as it is recorded. */
export interface LateArrival {
  readonly document: DocumentFacts;
  /** Of its events; absent where they could not be read. */
  readonly eventsSha256?: string;
  /** Absent where its rows could not be read. */
  readonly changes?: RowChanges;
  /** Why it is no document of its source. */
  readonly fault?: string;
}

/** SQL that records the arrival of the parameter `parameter`, as JSON, under the number of the leaf that `leaf` yields. */
export const arrivalSql = (parameter: string): string => {
  const changes = `${parameter}::jsonb -> 'changes'`;
  return `insert into late_arrivals (revision_id, dataset_id, partition_key, attempt, document, events_sha256, rows_added, rows_removed,
      rows_altered, diff_sha256, diff_bytes, fault)
    select entry_id, dataset_id, partition_key, attempt, ${parameter}::jsonb -> 'document', ${parameter}::jsonb ->> 'eventsSha256',
      (${changes} ->> 'added')::int8, (${changes} ->> 'removed')::int8, (${changes} ->> 'altered')::int8,
      ${changes} -> 'diff' ->> 'sha256', (${changes} -> 'diff' ->> 'bytes')::int8, ${parameter}::jsonb ->> 'fault'
    from leaf where ${parameter}::jsonb is not null`;
};

/** A recorded document with the events of partition $2, dataset $1, proved by attempt $3, in another archive. */
export const REPACKED_SQL = `select from late_arrivals a where a.dataset_id = $1 and a.partition_key = $2 and a.attempt = $3::int4
  and a.fault is null and a.events_sha256 = (select p.manifest ->> 'events_sha256' from partitions p
    where p.dataset_id = $1 and p.partition_key = $2)`;

/**
 * Of what a source publishes now, $3, of partition $2, dataset $1: documents that it publishes no longer have left, and one that it
 * publishes again has not. $4: it has the content that is proved. Another one may be known in another archive, which says nothing.
 */
export const PUBLISHED_SQL = `update late_arrivals a
  set left_at = case when a.document ->> 'sha256' = $3 then null else clock_timestamp() end
  where a.dataset_id = $1 and a.partition_key = $2 and (a.document ->> 'sha256' = $3) = (a.left_at is not null)
    and ($4 or exists (select from late_arrivals m where m.dataset_id = $1 and m.partition_key = $2
      and m.document ->> 'sha256' = $3))`;
