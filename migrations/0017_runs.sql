-- What operators and the service have at work: who, since when, how far. A run is alive while its session lock is held
-- (shared/db/runs.ts); a row without an end and without its lock was killed.
create table if not exists runs (
  run_id int4 generated always as identity primary key,
  kind text not null check (kind in ('backfill', 'reingest', 'reparse', 'follow', 'replay', 'verify', 'recover')),
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

-- When verification last found a proved partition to be what it was; null: not since it was proved.
alter table partitions add column if not exists verified_at timestamptz;
