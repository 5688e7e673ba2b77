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
  -- Keys of datasets, or `dataset:instrument` for one instrument alone. Null: all, those that are added later included.
  datasets text[] check (cardinality(datasets) > 0),
  requests_per_minute integer check (requests_per_minute > 0),
  concurrent_reads integer check (concurrent_reads > 0),
  created_at timestamptz not null default date_trunc('milliseconds', clock_timestamp()),
  expires_at timestamptz,
  rotated_at timestamptz,
  revoked_at timestamptz,
  check ((previous_digest is null) = (previous_until is null))
);

-- Database roles of callers who bring their own credentials, made by `tidemark rights read-role`. After each migration they are
-- granted again exactly what reads need, tables of new datasets included (shared/db/roles.ts).
create table if not exists read_roles (
  role text primary key,
  created_at timestamptz not null default clock_timestamp()
);
