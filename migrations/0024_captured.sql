-- When a partition's values were seen for the first time, epoch ms, where that is later than the times of its rows: the capture of
-- a fund's document, or the arrival of a followed block. Reads as of a time use it.
alter table partitions add column if not exists captured_ms int8
  generated always as ((manifest ->> 'captured_ms')::int8) stored;
