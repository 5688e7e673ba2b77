-- Native rows of the four datasets with one value a block; a year a chunk. Amounts are satoshis; BTC is made on reading.
create table if not exists bitcoin_block_fee_totals (
  block_timestamp int8 not null,
  block_height int8 not null,
  fee_total_sats int8 not null,
  block_hash text not null,
  source_chain text not null
);
create table if not exists bitcoin_block_subsidy_schedule (
  block_timestamp int8 not null,
  block_height int8 not null,
  halving_interval int8 not null,
  subsidy_sats int8 not null,
  block_hash text not null,
  source_chain text not null
);
create table if not exists bitcoin_network_hashrate_estimate (
  block_timestamp int8 not null,
  block_height int8 not null,
  observed_interval_seconds int8 not null,
  raw_interval_seconds int8 not null,
  difficulty float8 not null,
  hashrate_hs float8 not null,
  block_hash text not null,
  source_chain text not null
);
create table if not exists bitcoin_circulating_supply (
  block_timestamp int8 not null,
  block_height int8 not null,
  circulating_supply_sats int8 not null,
  block_hash text not null,
  source_chain text not null
);
select create_hypertable(t, by_range('block_timestamp', 31536000000),
  create_default_indexes => false, if_not_exists => true)
from unnest(array['bitcoin_block_fee_totals', 'bitcoin_block_subsidy_schedule',
  'bitcoin_network_hashrate_estimate', 'bitcoin_circulating_supply']::regclass[]) t;
create unique index if not exists bitcoin_block_fee_totals_key
  on bitcoin_block_fee_totals (block_timestamp, block_height);
create unique index if not exists bitcoin_block_subsidy_schedule_key
  on bitcoin_block_subsidy_schedule (block_timestamp, block_height);
create unique index if not exists bitcoin_network_hashrate_estimate_key
  on bitcoin_network_hashrate_estimate (block_timestamp, block_height);
create unique index if not exists bitcoin_circulating_supply_key
  on bitcoin_circulating_supply (block_timestamp, block_height);
