-- Native rows of macro series: as those of ETF metrics, and the vintage (`YYYY-MM-DD`) that brought the value.
create table if not exists macro_series_metrics (
  observed_at_ms int8 not null,
  metric_id text collate "C" not null,
  source_id text collate "C" not null,
  metric_name text collate "C" not null,
  metric_unit text not null,
  value_kind text not null,
  value_text text,
  dimensions_json text not null,
  provenance_json text not null,
  partition_key text collate "C" not null,
  vintage text collate "C" not null
);
select create_hypertable('macro_series_metrics', by_range('observed_at_ms', 315360000000),
  create_default_indexes => false, if_not_exists => true);
create unique index if not exists macro_series_metrics_key on macro_series_metrics (observed_at_ms, metric_id);
create index if not exists macro_series_metrics_partition on macro_series_metrics (partition_key);
-- When the source last changed the series, as the fetch of the partition was told. In no digest.
alter table partitions add column if not exists last_updated_at timestamptz;
