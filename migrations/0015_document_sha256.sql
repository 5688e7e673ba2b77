-- The document a partition was made of, as rows name it: a fact of the partition, in no digest of its rows.
alter table partitions add column if not exists document_sha256 text
  generated always as (manifest #>> '{document,sha256}') stored;
