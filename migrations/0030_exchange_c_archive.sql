-- Exchange C has two archives. What was proved before is of the tree `trading`, the only one that was read.
insert into pinned_settings (setting, value, dataset_id, partition_key, attempt, pinned_at)
select 'SVC_EXCHANGE_C_ARCHIVE', 'trading', dataset_id, partition_key, attempt, coalesce(proved_at, updated_at)
from partitions
where dataset_id = 3 and state = 'proved' and not synthetic
order by coalesce(proved_at, updated_at), partition_key
limit 1
on conflict (setting) do nothing;
