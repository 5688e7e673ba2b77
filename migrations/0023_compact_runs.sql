-- `./tidemark compact` is recorded as a run.
alter table runs drop constraint if exists runs_kind_check;
alter table runs add constraint runs_kind_check check (kind in
  ('backfill', 'reingest', 'reparse', 'follow', 'replay', 'verify', 'recover', 'klines', 'ranges', 'compact'));
