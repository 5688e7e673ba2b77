-- Named keys of callers, kept as digests. A row is never deleted and its name never given again, because exports and the audit
-- log name keys by it.
create table if not exists api_keys (
  key_id text primary key check (key_id ~ '^[0-9a-f]{12}$'),
  name text not null unique check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$' and name not in ('owner', 'metrics')),
  -- sha256 of the whole key.
  digest bytea not null check (octet_length(digest) = 32),
  -- The key before the last rotation, which holds until then.
  previous_digest bytea check (octet_length(previous_digest) = 32),
  previous_until timestamptz,
  scopes text[] not null check (cardinality(scopes) > 0 and scopes <@ array['read', 'export', 'operate', 'metrics']),
  -- Null: all, those of later releases included.
  dataset_ids smallint[] check (cardinality(dataset_ids) > 0),
  requests_per_minute integer check (requests_per_minute > 0),
  concurrent_reads integer check (concurrent_reads > 0),
  created_at timestamptz not null default date_trunc('milliseconds', clock_timestamp()),
  expires_at timestamptz,
  rotated_at timestamptz,
  revoked_at timestamptz,
  check ((previous_digest is null) = (previous_until is null))
);

-- The name of the key that submitted the export; null: the configured key of the owner.
alter table exports add column if not exists api_key text references api_keys (name);
-- Two callers may choose the same Idempotency-Key.
alter table exports drop constraint if exists exports_idempotency_key_key;
create unique index if not exists exports_idempotency on exports (idempotency_key, coalesce(api_key, 'owner'))
  where idempotency_key is not null;
