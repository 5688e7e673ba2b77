-- Lakes: folders of Parquet that a process keeps, and how far each has come. The writer states it at the end of each pass.
create table if not exists lakes (
  folder text primary key,
  host text not null,
  pid int4 not null,
  synthetic bool not null,
  files int8 not null,
  rows int8 not null,
  bytes int8 not null,
  -- every change up to this leaf of the proof log (its index + 1) is in the lake
  change int8 not null,
  -- why the last pass failed
  fault text,
  written_at timestamptz not null,
  checked_at timestamptz not null default clock_timestamp()
);
