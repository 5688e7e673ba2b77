-- The proof log: one leaf for each proved, revised, retracted, quarantined or refused partition, written by the transaction that
-- it is about. The sequencer gives leaves their index after the commit; until then it is null (docs/proof-log.md).
create table if not exists proof_leaves (
  entry_id int8 generated always as identity primary key,
  leaf_index int8 unique check (leaf_index >= 0),
  dataset_id int2 references datasets,
  partition_key text,
  attempt int4,
  kind text not null check (kind in ('proved', 'revised', 'retracted', 'quarantined', 'refused', 'restored', 'rotated')),
  body bytea not null check (octet_length(body) between 1 and 1024),
  -- Null where the leaf is about the log itself. Those who may read the rows are given it.
  salt bytea check (octet_length(salt) = 32),
  written_at timestamptz not null default clock_timestamp()
);
create index if not exists proof_leaves_pending on proof_leaves (entry_id) where leaf_index is null;
create index if not exists proof_leaves_partition on proof_leaves (dataset_id, partition_key, entry_id desc);

-- One row: the tree of all leaves with an index, and the last checkpoint that was signed, which may be of a smaller tree.
create table if not exists proof_head (
  is_only boolean primary key default true check (is_only),
  size int8 not null check (size >= 0),
  root bytea not null check (octet_length(root) = 32),
  signed_size int8 not null default 0,
  checkpoint text,
  signed_at timestamptz,
  -- Leaves of a checkpoint that a follower showed: nothing smaller is signed.
  known_size int8 not null default 0,
  key text
);

-- One row: the secret that the salts are made of, which a file beside the log's folder has as well.
create table if not exists proof_secret (
  is_only boolean primary key default true check (is_only),
  secret bytea not null check (octet_length(secret) = 32)
);
