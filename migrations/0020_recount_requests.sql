-- Partitions that a read covered whole and of which it did not find the rows that were proved. The service that reads may
-- only insert here. The projector process counts the rows of the partition again, quarantines it if they differ from its
-- manifest, and deletes the request (pipelines/prove/recount-requests.ts).
create table if not exists recount_requests (
  dataset_id int2 not null references datasets,
  partition_key text not null,
  -- What the read expected and what it found.
  reason text not null,
  asked_at timestamptz not null default clock_timestamp(),
  primary key (dataset_id, partition_key)
);

-- Reads add up the row counts of the proved partitions of a window: from this index alone, since rows of the table are wide.
create index if not exists partitions_counts on partitions (dataset_id, from_ms) include (to_ms, rows, aligned_rows)
  where state = 'proved';
