-- Exports: what was asked for, how far it has come, what came of it. Those that are not over are the queue.
create table if not exists exports (
  export_id uuid primary key,
  -- Order of submission, whatever clocks say.
  number bigint generated always as identity unique,
  state text not null default 'queued' check (state in ('queued', 'running', 'succeeded', 'failed')),
  -- The body as it was accepted, with the seed drawn for it.
  request jsonb not null,
  request_sha256 text not null,
  idempotency_key text,
  dataset_id smallint not null references datasets (dataset_id),
  mode text not null,
  format text not null,
  rights_state text not null,
  rights_provisional boolean not null,
  view_id text not null,
  view_version integer not null,
  submitted_at timestamptz not null default date_trunc('milliseconds', clock_timestamp()),
  updated_at timestamptz not null default date_trunc('milliseconds', clock_timestamp()),
  -- Each claim takes the next; what a worker does counts only while it holds the highest.
  fence bigint not null default 0,
  -- Who runs it; null: nobody, it was handed back.
  worker text,
  -- When a worker may take it: at once, after the pause before the next try, or when the lease of its worker is over.
  due_at timestamptz not null default clock_timestamp(),
  -- When a worker took it last.
  claimed_at timestamptz,
  crashes integer not null default 0,
  retries integer not null default 0,
  -- Of the latest run: at first as judged at submit.
  warnings jsonb not null default '[]',
  as_of_utc timestamptz,
  progress jsonb not null default '{"rows": 0, "bytes": 0}',
  -- The manifest of the artifact, and the fence under whose number its files lie.
  artifact jsonb,
  artifact_fence bigint,
  expires_at timestamptz,
  removed_at timestamptz,
  error_code text,
  error_message text,
  -- The name of the key that submitted it; null: the configured key of the owner.
  api_key text references api_keys (name),
  check ((state = 'succeeded') = (artifact is not null)),
  check ((state = 'failed') = (error_code is not null))
);
-- Two callers may choose the same Idempotency-Key.
create unique index if not exists exports_idempotency on exports (idempotency_key, coalesce(api_key, 'owner'))
  where idempotency_key is not null;
create index if not exists exports_unfinished on exports (number) where state in ('queued', 'running');
-- When a worker last took one of a key.
create index if not exists exports_claimed on exports (coalesce(api_key, 'owner'), claimed_at) where claimed_at is not null;
create index if not exists exports_kept on exports (expires_at) where state = 'succeeded' and removed_at is null;

-- Where each chain of the audit log ended when it was last written: a log that lost its tail is found by it.
create table if not exists export_audit_heads (
  chain text primary key,
  sequence bigint not null,
  hash text not null,
  updated_at timestamptz not null default clock_timestamp()
);
