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
