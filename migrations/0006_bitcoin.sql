-- Native rows of block headers. `timestamp` is the block's own time in epoch ms. One row a block: a year a chunk.
create table if not exists bitcoin_block_headers (
  "timestamp" int8 not null,
  height int8 not null,
  version int8 not null,
  nonce int8 not null,
  difficulty float8 not null,
  block_hash text not null,
  prev_hash text not null,
  merkle_root text not null,
  source_chain text not null,
  payload_sha256 text not null
);
select create_hypertable('bitcoin_block_headers', by_range('timestamp', 31536000000),
  create_default_indexes => false, if_not_exists => true);
create unique index if not exists bitcoin_block_headers_key on bitcoin_block_headers ("timestamp", height);

-- Native rows of block transactions; a day a chunk. The satoshi sums are those in `values`, exact and ready to be summed.
create table if not exists bitcoin_block_transactions (
  block_timestamp int8 not null,
  block_height int8 not null,
  transaction_index int8 not null,
  input_value_sats int8 not null,
  output_value_sats int8 not null,
  coinbase boolean not null,
  block_hash text not null,
  txid text not null,
  inputs text not null,
  outputs text not null,
  "values" text not null,
  scripts text not null,
  witness_data text not null,
  source_chain text not null,
  payload_sha256 text not null
);
select create_hypertable('bitcoin_block_transactions', by_range('block_timestamp', 86400000),
  create_default_indexes => false, if_not_exists => true);
create unique index if not exists bitcoin_block_transactions_key
  on bitcoin_block_transactions (block_timestamp, block_height, transaction_index);

-- Native rows of mempool snapshots; a day a chunk. The fee rate is fee_sats / vsize, stored as the two.
create table if not exists bitcoin_mempool_state (
  snapshot_at_unix_ms int8 not null,
  fee_sats int8 not null,
  vsize int8 not null,
  first_seen_timestamp int8 not null,
  rbf_flag boolean not null,
  txid text collate "C" not null,
  source_chain text not null,
  payload_sha256 text not null
);
select create_hypertable('bitcoin_mempool_state', by_range('snapshot_at_unix_ms', 86400000),
  create_default_indexes => false, if_not_exists => true);
create unique index if not exists bitcoin_mempool_state_key on bitcoin_mempool_state (snapshot_at_unix_ms, txid);

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
