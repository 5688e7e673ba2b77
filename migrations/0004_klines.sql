-- Whole klines of six sizes, kept for every proved file day of a trade dataset. The projector makes them from the rows that it
-- loads, in the transaction of the proof (pipelines/rows/kline-builder.ts). `partitions.klines_sha256` is the digest of those
-- that lie wholly inside the partition, in binary COPY format and in the order of the primary key.
-- The doubles are what klines answer. The totals are exact, so that klines of other sizes can be added up from them.
create table if not exists native_klines (
  start_ms int8 not null,
  no_of_trades int8 not null,
  -- Trades in which the buyer was the maker.
  makers int8 not null,
  first_id int8 not null,
  last_id int8 not null,
  open float8 not null,
  high float8 not null,
  low float8 not null,
  close float8 not null,
  mean float8 not null,
  std float8 not null,
  median float8 not null,
  iqr float8 not null,
  volume float8 not null,
  open_liquidity float8 not null,
  high_liquidity float8 not null,
  low_liquidity float8 not null,
  close_liquidity float8 not null,
  liquidity_sum float8 not null,
  maker_volume float8 not null,
  maker_liquidity float8 not null,
  size_s int4 not null,
  dataset_id int2 not null,
  price_total numeric not null,
  price_square_total numeric not null,
  quantity_total numeric not null,
  liquidity_total numeric not null,
  maker_quantity_total numeric not null,
  maker_liquidity_total numeric not null,
  primary key (dataset_id, size_s, start_ms)
);

-- The same from one-second rows.
create table if not exists aligned_klines (
  start_ms int8 not null,
  -- One-second rows.
  rows int8 not null,
  no_of_trades int8 not null,
  open float8 not null,
  high float8 not null,
  low float8 not null,
  close float8 not null,
  volume float8 not null,
  liquidity_sum float8 not null,
  size_s int4 not null,
  dataset_id int2 not null,
  quantity_total numeric not null,
  liquidity_total numeric not null,
  primary key (dataset_id, size_s, start_ms)
);

-- Native klines that two file days share, because the day of the dataset does not begin at midnight UTC. They exist while both
-- are proved, in these revisions.
create table if not exists shared_klines (
  like native_klines including all,
  first_partition text not null,
  first_revision int4 not null,
  second_partition text not null,
  second_revision int4 not null
);
