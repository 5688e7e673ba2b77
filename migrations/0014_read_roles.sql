-- Database roles of callers who bring their own credentials, made by `tidemark read-role`. After each migration they are
-- granted again exactly what reads need, tables of new datasets included (shared/db/read-roles.ts).
create table if not exists read_roles (
  role text primary key,
  created_at timestamptz not null default clock_timestamp()
);
