/** Advisory lock classes: the first key of `pg_advisory_lock(class, dataset number)`. Arbitrary, never reused. */
export const MIGRATION_LOCK = 7301;
/** One publisher per dataset: its frames lie in the log one attempt after the other. */
export const PUBLISHER_LOCK = 7302;
/** One projector per dataset. */
export const PROJECTOR_LOCK = 7303;
/** One holder per run, with the run's number: a run is alive while it is held. */
export const RUN_LOCK = 7304;
/** Work that is not to be done twice at once, with a number made of its name. */
export const WORK_LOCK = 7305;
/** One process at a time answers requests for recounts. Second key 0. */
export const RECOUNT_LOCK = 7306;
/** One submit of an export after the other: the limit of the queue is counted under it. Second key 0. */
export const EXPORT_SUBMIT_LOCK = 7310;
