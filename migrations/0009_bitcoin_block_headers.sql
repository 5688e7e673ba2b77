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
