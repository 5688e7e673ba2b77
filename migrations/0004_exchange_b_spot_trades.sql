-- Native rows of exchange B. `timestamp` is epoch ms. A file day covers two UTC days and so two chunks; the loader builds
-- the unique (timestamp, trade_id) of each chunk it makes.
create table if not exists exchange_b_spot_trades (
  "timestamp" int8 not null,
  trade_id int8 not null,
  price float8 not null,
  size float8 not null,
  quote_quantity float8 not null,
  side text not null,
  instrument_name text not null
);
select create_hypertable('exchange_b_spot_trades', by_range('timestamp', 86400000),
  create_default_indexes => false, if_not_exists => true);
-- The ingest time of rows is looked up in their partitions by every read that asks for it.
create index if not exists partitions_ingested on partitions (dataset_id, from_ms) include (ingested_at)
  where state = 'proved';
