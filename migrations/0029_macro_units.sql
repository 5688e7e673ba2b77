-- Whether a series has several units: each vintage has its own. A read looks that up in a few index entries, not in all rows.
create index if not exists macro_series_metrics_unit on macro_series_metrics (source_id, metric_unit);
