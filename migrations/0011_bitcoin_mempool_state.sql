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
