-- Few partitions are not proved, and they are what is asked for by state.
create index if not exists partitions_unproved on partitions (dataset_id, state, from_ms) where state <> 'proved';
