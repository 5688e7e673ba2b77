-- Partitions that are no stretches of time: heights, snapshots, captures, vintages. Their rows say which partition they are
-- of (native.scope in shared/registry), so what is proved is kept in the unit of the partition, with its times beside.

-- Known from the manifest on: which times a range of heights holds is not known before.
alter table partitions alter column from_ms drop not null;
alter table partitions alter column to_ms drop not null;
-- The source a partition is of, what it covers in the unit of its kind, and until when its source is complete with it.
alter table partitions add column if not exists source_id text;
alter table partitions add column if not exists span int8range;
alter table partitions add column if not exists through_ms int8;
create index if not exists partitions_span on partitions using gist (dataset_id, source_id, span) where span is not null;

-- Keys of partitions whose rows are stored and not served: quarantined after they had been proved.
alter table coverage add column if not exists withheld text[] not null default '{}';

-- Maximal runs of proved partitions, by source. Changes with coverage, in the same commit.
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

-- Until when a source was found to have nothing newer, by a check that brought no partition.
create table if not exists source_checks (
  dataset_id int2 not null references datasets,
  source_id text not null,
  through_ms int8 not null,
  checked_at timestamptz not null default clock_timestamp(),
  primary key (dataset_id, source_id)
);
