-- The one storage of every aligned row. Declared in shared/registry/aligned-storage.ts; a test holds the two equal.
create table if not exists canonical_aligned_1s_aggregates (
  aligned_at_utc timestamptz not null,
  trade_count int8,
  open_price float8,
  high_price float8,
  low_price float8,
  close_price float8,
  quantity_sum float8,
  quote_volume_sum float8,
  series_id int4 not null,
  dataset_id int2 not null,
  metric_value_bool boolean,
  metric_value_int int8,
  metric_value_float float8,
  metric_value_string text,
  metric_id text,
  source_id text,
  metric_name text,
  metric_unit text,
  dimensions_json text,
  provenance_json text,
  records_in_bucket int8,
  latest_ingested_at_utc timestamptz,
  first_source_offset_or_equivalent text,
  last_source_offset_or_equivalent text,
  bucket_sha256 text,
  latest_source_chain text,
  latest_height int8,
  latest_block_hash text,
  latest_prev_hash text,
  latest_merkle_root text,
  latest_version int8,
  latest_nonce int8,
  latest_difficulty float8,
  latest_timestamp_ms int8,
  tx_count int8,
  coinbase_tx_count int8,
  total_input_value_btc float8,
  total_output_value_btc float8,
  first_block_height int8,
  last_block_height int8,
  latest_block_timestamp_ms int8,
  latest_txid text,
  fee_rate_sat_vb_min float8,
  fee_rate_sat_vb_max float8,
  fee_rate_sat_vb_avg float8,
  total_vsize int8,
  first_seen_timestamp_min int8,
  first_seen_timestamp_max int8,
  rbf_true_count int8,
  latest_snapshot_at_unix_ms int8
);
-- Before 2016-10-26 one-second rows are few (macro series from decades back, the first years of the chain): two long chunks
-- hold them, made here, instead of one every 30 days, each of which would be opened by whatever looks at a whole history. The
-- end is a chunk's bound in either length (17,100 days after 1970-01-01).
select create_hypertable('canonical_aligned_1s_aggregates', by_range('aligned_at_utc', interval '17100 days'),
  create_default_indexes => false, if_not_exists => true);
create unique index if not exists canonical_aligned_1s_aggregates_key
  on canonical_aligned_1s_aggregates (dataset_id, series_id, aligned_at_utc);
-- A chunk is made by a row that is stored.
insert into canonical_aligned_1s_aggregates (dataset_id, series_id, aligned_at_utc)
  values (0, 0, '1969-12-31Z'), (0, 0, '1970-01-01Z');
delete from canonical_aligned_1s_aggregates where dataset_id = 0;
-- 30 days a chunk from then on: a year of one dataset is 12 chunks, and a day's rows never straddle more than two.
select set_chunk_time_interval('canonical_aligned_1s_aggregates', interval '30 days');
