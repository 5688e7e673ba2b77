/** Channel on which the end of an attempt is announced: `<dataset>|<partition>|<attempt>|<state>`. */
export const OUTCOME_CHANNEL = 'tidemark_partition';
