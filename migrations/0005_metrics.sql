-- Native rows of ETF metrics. `observed_at_ms` is epoch ms, midnight of the as-of day. A value is one text and a kind
-- (int, float, string, bool, null); the channels that are served are made from the two. Texts that rows are ordered by
-- compare byte by byte whatever the database's locale. Ten years a chunk: some 300,000 rows a year at most.
create table if not exists etf_daily_metrics (
  observed_at_ms int8 not null,
  metric_id text collate "C" not null,
  source_id text collate "C" not null,
  metric_name text collate "C" not null,
  metric_unit text,
  value_kind text not null,
  value_text text,
  dimensions_json text not null,
  provenance_json text,
  partition_key text collate "C" not null
);
select create_hypertable('etf_daily_metrics', by_range('observed_at_ms', 315360000000),
  create_default_indexes => false, if_not_exists => true);
create unique index if not exists etf_daily_metrics_key on etf_daily_metrics (observed_at_ms, metric_id);
create index if not exists etf_daily_metrics_partition on etf_daily_metrics (partition_key);

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
-- Whether a series has several units: each vintage has its own. A read looks that up in a few index entries, not in all rows.
create index if not exists macro_series_metrics_unit on macro_series_metrics (source_id, metric_unit);
