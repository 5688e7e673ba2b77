-- Settings that select what is read of a source, with the values that the first proof of what the source published pinned. The
-- projector writes them in the transaction of the proof.
create table if not exists pinned_settings (
  setting text primary key,
  value text not null,
  -- the proof that pinned it
  dataset_id int2 not null references datasets,
  partition_key text not null,
  attempt int4 not null,
  pinned_at timestamptz not null default clock_timestamp()
);

-- What was proved before: the names of the documents say which values were in force.
insert into pinned_settings (setting, value, dataset_id, partition_key, attempt, pinned_at)
select distinct on (setting) setting, value, dataset_id, partition_key, attempt, proved_at
from (
  select s.setting, substring(p.manifest -> 'document' ->> 'name' from s.pattern) as value, p.dataset_id, p.partition_key,
    p.attempt, coalesce(p.proved_at, p.updated_at) as proved_at
  from partitions p join (values
    (array[1], 'SVC_EXCHANGE_A_SYMBOL', '^(.+)-trades-[0-9-]+[.]zip$'),
    (array[2], 'SVC_EXCHANGE_B_INSTRUMENT', '^(.+)-trades-[0-9-]+[.]zip$'),
    (array[3], 'SVC_EXCHANGE_C_SYMBOL', '^(.+)[0-9]{4}-[0-9]{2}-[0-9]{2}[.]csv[.]gz$'),
    (array[6, 7, 8, 9, 10, 11, 12], 'SVC_BITCOIN_NETWORK', '^(.+)-(?:blocks|mempool)-')
  ) s (datasets, setting, pattern) on p.dataset_id = any (s.datasets)
  where p.state = 'proved' and not p.synthetic) stated
where value is not null
order by setting, proved_at, dataset_id, partition_key
on conflict (setting) do nothing;
