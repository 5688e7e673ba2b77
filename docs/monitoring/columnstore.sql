-- Chunks older than a month go into TimescaleDB's columnstore: smaller (how much was not measured), read as before. Only
-- where the licence of the server allows it (`timescaledb.license = timescale`, the full edition); elsewhere nothing happens.
-- May be run again. What a chunk is taken out again for (reingest, replay) is done by the server, slower.
do $$
declare
  held record;
begin
  if current_setting('timescaledb.license', true) is distinct from 'timescale' then
    raise notice 'the licence of this server is %: no columnstore, nothing is changed', current_setting('timescaledb.license', true);
    return;
  end if;
  -- Time is epoch milliseconds in an integer: the policy has to be told what is now.
  create or replace function tidemark_now_ms() returns int8 language sql stable as
    'select (extract(epoch from clock_timestamp()) * 1000)::int8';
  for held in
    -- The tables of many rows: one for each exchange, all of them ordered by the same two columns.
    select tablename as name, 'timestamp' as time_column, 'trade_id' as id_column
    from pg_tables where schemaname = current_schema() and tablename like '%\_spot\_trades'
  loop
    perform set_integer_now_func(held.name::regclass, 'tidemark_now_ms', replace_if_exists => true);
    execute format(
      'alter table %I set (timescaledb.enable_columnstore = true, timescaledb.orderby = %L)',
      held.name, format('%I, %I', held.time_column, held.id_column));
    execute format(
      'call add_columnstore_policy(%L, after => %s, if_not_exists => true)',
      held.name, '2592000000::bigint');
    raise notice '% goes into columns after 30 days', held.name;
  end loop;
end
$$;
