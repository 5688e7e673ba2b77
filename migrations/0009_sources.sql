-- Until when a source was found to have nothing newer, by a check that brought no partition.
create table if not exists source_checks (
  dataset_id int2 not null references datasets,
  source_id text not null,
  through_ms int8 not null,
  checked_at timestamptz not null default clock_timestamp(),
  primary key (dataset_id, source_id)
);

-- Documents given up after all tries, by source and code of the fault: sums for ever, and the newest reason.
create table if not exists source_failures (
  dataset_id int2 not null references datasets,
  source_id text not null,
  code text not null,
  failures int8 not null,
  last_at timestamptz not null default clock_timestamp(),
  last_reason text not null,
  primary key (dataset_id, source_id, code)
);

-- Settings that select what is read of a source, with the values that the first proof of what the source published pinned. The
-- projector writes them in the transaction of the proof.
create table if not exists pinned_settings (
  setting text primary key,
  value text not null,
  -- the proof that pinned it
  dataset_id int2 not null references datasets,
  partition_key text not null,
  attempt int4 not null,
  pinned_at timestamptz not null default clock_timestamp()
);

-- Documents that a source was found to publish in place of those that partitions were proved with, and what they change of the rows.
-- None is served before an operator reingests it, and none of it is proved.
create table if not exists late_arrivals (
  -- the entry of the leaf that refuses it
  revision_id int8 primary key,
  dataset_id int2 not null references datasets,
  partition_key text not null,
  -- the proved attempt that it was compared with
  attempt int4 not null,
  document jsonb not null,
  events_sha256 text,
  found_at timestamptz not null default clock_timestamp(),
  -- when the source was found to publish another one again
  left_at timestamptz,
  -- null where its rows could not be read
  rows_added int8,
  rows_removed int8,
  rows_altered int8,
  diff_sha256 text,
  diff_bytes int8,
  -- why it is no document of its source
  fault text
);
create index if not exists late_arrivals_partition on late_arrivals (dataset_id, partition_key);
