/** Channel on which the end of an attempt is announced: `<dataset>|<partition>|<attempt>|<state>`. */
export const OUTCOME_CHANNEL = 'tidemark_partition';

/** Channel on which a projector announces that it failed and starts again: a `ProjectorFailure` as JSON. */
export const PROJECTOR_CHANNEL = 'tidemark_projector';

export interface ProjectorFailure {
  /** Key of the dataset. */
  readonly dataset: string;
  /** For the operator; what the projector logs. */
  readonly message: string;
}
