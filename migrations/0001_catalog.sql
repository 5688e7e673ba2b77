-- What is known about partitions, and what may be served. Position and proof live here and nowhere else.
create extension if not exists timescaledb;
create extension if not exists btree_gist;

create table if not exists datasets (
  dataset_id int2 primary key,
  key text not null unique
);

-- Dictionary of the series of aligned rows; a dataset that is one series has the empty key.
create table if not exists series (
  series_id int4 generated always as identity primary key,
  dataset_id int2 not null references datasets,
  key text not null,
  unique (dataset_id, key)
);

-- Every try at publishing a partition. Numbers rise for ever, also over revisions.
create table if not exists attempts (
  dataset_id int2 not null references datasets,
  partition_key text not null,
  attempt int4 not null check (attempt > 0),
  revision int4 not null check (revision > 0),
  state text not null check (state in ('publishing', 'published', 'proved', 'quarantined', 'refused', 'abandoned')),
  publisher text not null,
  document jsonb not null,
  manifest jsonb,
  frames int4,
  first_sequence int8,
  manifest_sequence int8,
  reason text,
  started_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  primary key (dataset_id, partition_key, attempt)
);

-- Where each partition stands; a partition with no row is missing. `proved` rows are what coverage is made of.
create table if not exists partitions (
  dataset_id int2 not null references datasets,
  partition_key text not null,
  state text not null check (state in ('publishing', 'published', 'proved', 'quarantined')),
  attempt int4 not null,
  revision int4 not null,
  from_ms int8 not null,
  to_ms int8 not null check (to_ms > from_ms),
  synthetic boolean not null,
  rows int8,
  aligned_rows int8,
  aligned_hash text,
  -- ids of a dataset whose ids are unique: a key on a hypertable must include time, so it cannot hold this alone
  offsets int8range,
  manifest jsonb,
  recount jsonb,
  reason text,
  ingested_at timestamptz,
  proved_at timestamptz,
  updated_at timestamptz not null default clock_timestamp(),
  primary key (dataset_id, partition_key),
  exclude using gist (dataset_id with =, offsets with &&) where (state = 'proved')
);
create index if not exists partitions_window on partitions (dataset_id, from_ms);

-- The proved time ranges of a dataset, epoch ms. Readers take it first, in their snapshot.
create table if not exists coverage (
  dataset_id int2 primary key references datasets,
  version int8 not null,
  proved int8multirange not null,
  synthetic boolean not null,
  updated_at timestamptz not null default clock_timestamp()
);

-- Where each frame of a proved partition lies in the log and in the rows.
create table if not exists frames (
  dataset_id int2 not null references datasets,
  stream_sequence int8 not null,
  partition_key text not null,
  first_offset text not null,
  last_offset text not null,
  first_ms int8 not null,
  last_ms int8 not null,
  rows int4 not null,
  -- rows of the same partition before this frame
  row_base int8 not null,
  primary key (dataset_id, stream_sequence)
);
create index if not exists frames_partition on frames (dataset_id, partition_key);

-- How far the projector is. The stored message must still be the one the checkpoint was taken on.
create table if not exists checkpoints (
  dataset_id int2 primary key references datasets,
  stream_created timestamptz not null,
  stream_sequence int8 not null,
  message_sha256 text not null,
  updated_at timestamptz not null default clock_timestamp()
);

-- What operators and the service did to partitions on purpose, and what was refused. Never changed, only added to.
create table if not exists ledger (
  entry_id int8 generated always as identity primary key,
  at timestamptz not null default clock_timestamp(),
  dataset_id int2 not null references datasets,
  partition_key text not null,
  kind text not null,
  reason text not null,
  details jsonb not null default '{}'
);
create index if not exists ledger_partition on ledger (dataset_id, partition_key);
