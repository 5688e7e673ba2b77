-- The smallest and largest value of each column of doubles, by frame and by partition of the trade datasets:
-- {"price": [41000.5, 43999.9], ...}. Reads with filters leave out what no row can pass. Null where the rows were loaded
-- before ranges were kept; such a partition is read whole.
alter table frames add column if not exists value_ranges jsonb;
alter table partitions add column if not exists value_ranges jsonb;

alter table runs drop constraint if exists runs_kind_check;
alter table runs add constraint runs_kind_check
  check (kind in ('backfill', 'reingest', 'reparse', 'follow', 'replay', 'verify', 'recover', 'klines', 'ranges'));
