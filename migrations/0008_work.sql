-- What operators and the service have at work: who, since when, how far. A run is alive while its session lock is held
-- (shared/db/runs.ts); a row without an end and without its lock was killed.
create table if not exists runs (
  run_id int4 generated always as identity primary key,
  kind text not null check (kind in ('backfill', 'reingest', 'follow', 'replay', 'verify', 'recover', 'compact')),
  -- a feed, or a dataset
  subject text not null,
  datasets int2[] not null,
  command text not null,
  host text not null,
  pid int4 not null,
  -- of the connection that holds the publisher leases, while it holds them
  lease_backend int4,
  state text not null check (state in ('running', 'waiting', 'done', 'failed', 'interrupted')),
  -- partitions; null where nobody knows how many there will be
  planned int8,
  proved int8 not null default 0,
  unchanged int8 not null default 0,
  refused int8 not null default 0,
  quarantined int8 not null default 0,
  failed int8 not null default 0,
  rows int8 not null default 0,
  at_partition text,
  -- the first partition that failed, of what is followed the latest: {dataset, partition, code, reason, at}
  failed_unit jsonb,
  -- of what is followed: failures in a row, the latest fault, when it is tried again, when it last went well
  failures int4 not null default 0,
  fault text,
  next_at timestamptz,
  succeeded_at timestamptz,
  started_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  ended_at timestamptz
);
create index if not exists runs_open on runs (kind, subject) where ended_at is null;
create index if not exists runs_started on runs (started_at);

-- Partitions that a read covered whole and of which it did not find the rows that were proved. The service that reads may
-- only insert here. The projector process counts the rows of the partition again, quarantines it if they differ from its
-- manifest, and deletes the request (pipelines/projector/verify.ts).
create table if not exists recount_requests (
  dataset_id int2 not null references datasets,
  partition_key text not null,
  -- What the read expected and what it found.
  reason text not null,
  asked_at timestamptz not null default clock_timestamp(),
  primary key (dataset_id, partition_key)
);
