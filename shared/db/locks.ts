/** Advisory lock classes: the first key of `pg_advisory_lock(class, dataset number)`. Arbitrary, never reused. */
export const MIGRATION_LOCK = 7301;
/** One publisher per dataset: its frames lie in the log one attempt after the other. */
export const PUBLISHER_LOCK = 7302;
/** One projector per dataset. */
export const PROJECTOR_LOCK = 7303;
