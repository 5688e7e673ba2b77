-- Before 2016-10-26 one-second rows are few (macro series from decades back, the first years of the chain): two long chunks
-- hold them, made here, instead of one every 30 days, each of which would be opened by whatever looks at a whole history. The
-- end is a chunk's bound in either length (17,100 days after 1970-01-01). Rows that are there already move.
lock table canonical_aligned_1s_aggregates in access exclusive mode;
create temp table aligned_moved on commit drop as
  select * from canonical_aligned_1s_aggregates where aligned_at_utc < '2016-10-26Z';
select drop_chunks('canonical_aligned_1s_aggregates', older_than => timestamptz '2016-10-26Z');
select set_chunk_time_interval('canonical_aligned_1s_aggregates', interval '17100 days');
-- A chunk is made by a row that is stored.
insert into canonical_aligned_1s_aggregates (dataset_id, series_id, aligned_at_utc)
  values (0, 0, '1969-12-31Z'), (0, 0, '1970-01-01Z');
delete from canonical_aligned_1s_aggregates where dataset_id = 0;
insert into canonical_aligned_1s_aggregates select * from aligned_moved;
select set_chunk_time_interval('canonical_aligned_1s_aggregates', interval '30 days');
