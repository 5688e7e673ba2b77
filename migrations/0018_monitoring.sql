-- What monitors ask for every few seconds is found without reading the history of attempts and of the ledger.
create index if not exists attempts_open on attempts (dataset_id) where state in ('publishing', 'published');
create index if not exists ledger_kind on ledger (kind, dataset_id);

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
