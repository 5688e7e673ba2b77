-- What is known about partitions, and what may be served. Position and proof live here and nowhere else.
create extension if not exists timescaledb;
create extension if not exists btree_gist;

create table if not exists datasets (
  dataset_id int2 primary key,
  key text not null unique
);

-- Dictionary of the series of aligned rows; a dataset that is one series has the empty key. Other instruments of an exchange
-- have numbers of their own, which the migration registers beforehand (shared/registry/instruments.ts): the row here claims one
-- for a symbol, for ever.
create table if not exists series (
  series_id int4 generated always as identity primary key,
  dataset_id int2 not null references datasets,
  key text not null,
  unique (dataset_id, key)
);
create unique index if not exists series_slot on series (dataset_id) where dataset_id > 255;
create unique index if not exists series_instrument on series ((dataset_id >> 8), key) where dataset_id > 255;

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
-- Monitors ask for open attempts every few seconds.
create index if not exists attempts_open on attempts (dataset_id) where state in ('publishing', 'published');

-- Where each partition stands; a partition with no row is missing. `proved` rows are what coverage is made of.
create table if not exists partitions (
  dataset_id int2 not null references datasets,
  partition_key text not null,
  state text not null check (state in ('publishing', 'published', 'proved', 'quarantined')),
  attempt int4 not null,
  revision int4 not null,
  -- the times of its rows: of a file day known beforehand, of heights, snapshots, captures and vintages from the manifest on
  from_ms int8,
  to_ms int8 check (to_ms > from_ms),
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
  -- what it covers in the unit of its kind, of which source, and until when its source is complete with it: of partitions that
  -- are no stretches of time, whose rows say which partition they are of (native.scope in shared/registry)
  source_id text,
  span int8range,
  through_ms int8,
  -- when the source last changed the series, as the fetch of the partition was told; in no digest
  last_updated_at timestamptz,
  -- the document it was made of, as rows name it; in no digest of its rows
  document_sha256 text generated always as (manifest #>> '{document,sha256}') stored,
  -- when verification last found it to be what it was; null: not since it was proved
  verified_at timestamptz,
  -- when the source was last asked, as one of the old days, whether it still publishes the document
  asked_at timestamptz,
  -- another document that its source was found to publish with the same content, such as that of the day where the partition was made
  -- of the month's: {"attempt": 1, "document": {...}}
  same_document jsonb,
  -- digest of the kept klines that lie wholly inside it, in binary COPY format and in the order of their primary key, and of
  -- inexact_seconds
  klines_sha256 text,
  -- the times of its aligned rows that do not add up to longer klines of its trades: where ids go back from a second to the next,
  -- or quantities have more than eight decimals. Null where that is not known
  inexact_seconds int8multirange,
  -- of trade datasets, the smallest and largest value of each column of doubles, {"price": [41000.5, 43999.9], ...}: reads with
  -- filters leave out what no row can pass
  value_ranges jsonb,
  -- what its rows determine beside, in the canonical bytes that its leaf commits to: a text, because jsonb keeps no order
  facts text,
  -- when its values were seen for the first time, epoch ms, where that is later than the times of its rows: the capture of a
  -- fund's document, or the arrival of a followed block. Reads as of a time use it
  captured_ms int8 generated always as ((manifest ->> 'captured_ms')::int8) stored,
  primary key (dataset_id, partition_key),
  -- An instrument that its exchange ended and listed again may begin with the ids that it had.
  exclude using gist (dataset_id with =, (coalesce((manifest ->> 'listed_from_ms')::int8, 0)) with =, offsets with &&)
    where (state = 'proved')
);
create index if not exists partitions_window on partitions (dataset_id, from_ms);
create index if not exists partitions_span on partitions using gist (dataset_id, source_id, span) where span is not null;
-- Few partitions are not proved, and they are what is asked for by state.
create index if not exists partitions_unproved on partitions (dataset_id, state, from_ms) where state <> 'proved';
-- The ingest time of rows is looked up in their partitions by every read that asks for it.
create index if not exists partitions_ingested on partitions (dataset_id, from_ms) include (ingested_at)
  where state = 'proved';
-- Reads add up the row counts of the proved partitions of a window: from this index alone, since rows of the table are wide.
create index if not exists partitions_counts on partitions (dataset_id, from_ms) include (to_ms, rows, aligned_rows)
  where state = 'proved';

-- The proved time ranges of a dataset, epoch ms. Readers take it first, in their snapshot.
create table if not exists coverage (
  dataset_id int2 primary key references datasets,
  version int8 not null,
  proved int8multirange not null,
  synthetic boolean not null,
  updated_at timestamptz not null default clock_timestamp(),
  -- keys of partitions whose rows are stored and not served: quarantined after they had been proved
  withheld text[] not null default '{}'
);

-- Maximal runs of proved partitions that are no stretches of time, by source. Changes with coverage, in the same commit.
create table if not exists coverage_spans (
  dataset_id int2 not null references datasets,
  source_id text not null,
  -- in the unit of the partition's kind: heights, epoch ms of snapshots, as-of days or vintages
  span int8range not null check (not isempty(span)),
  -- event times of the run's rows: [from_ms, to_ms)
  from_ms int8 not null,
  to_ms int8 not null check (to_ms > from_ms),
  -- exclusive proved-through of the run
  through_ms int8 not null,
  partitions int8 not null,
  rows int8 not null,
  exclude using gist (dataset_id with =, source_id with =, span with &&)
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
  -- as of `partitions`, of the frame's rows
  value_ranges jsonb,
  -- The same by granule, 256 rows in the order of offsets (shared/proof/value-ranges.ts). First ids where ids have gaps; first and last
  -- times in ms after first_ms; the smallest values of the first column of doubles by granule, its largest, those of the next column.
  granule_offsets int8[],
  granule_first_ms int4[],
  granule_last_ms int4[],
  granule_ranges float8[],
  primary key (dataset_id, stream_sequence)
);
create index if not exists frames_partition on frames (dataset_id, partition_key, row_base);
-- Ids without gaps are found by the number of rows before them, others by the first id of their frame.
create index if not exists frames_ids on frames (dataset_id, partition_key, (first_offset::int8)) where granule_offsets is not null;
-- Few reads need them: out of the way of those that go through all frames.
alter table frames alter column granule_ranges set storage external;

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
-- Monitors count by kind without reading the history.
create index if not exists ledger_kind on ledger (kind, dataset_id);
