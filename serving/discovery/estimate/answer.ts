/** What POST /v1/raw/estimate says. */
import { z } from 'zod';
import { MODES } from '../../contract/shapes.ts';
import { REPRESENTATIONS } from '../../rendering/representations.ts';
import { count, datasetKey, flag, grantedRights, membersOf, problemCode, text, utc, warning } from '../schemas.ts';
import { shortName } from './bytes.ts';

const names = REPRESENTATIONS.map(shortName);

const BASES = ['counted', 'statistics', 'rules_of_thumb'] as const;

export const estimateAnswer = z.strictObject({
  mode: z.enum(MODES),
  source: datasetKey,
  sources: z.array(datasetKey).length(1),
  rows: count('Rows the query would answer with.'),
  rows_is_exact: flag('They are counted, at this moment.'),
  rows_at_most: z.int().min(0).nullable().describe('They cannot be more; null: not known.'),
  rows_basis: z
    .enum(BASES)
    .describe(
      '`counted`: by partitions and frames. `statistics`: the database’s statistics of the columns filtered on. `rules_of_thumb`: it has none yet.',
    ),
  rows_searched: count('Rows that the filters are held against.'),
  bytes: z
    .strictObject(membersOf(names, count('Bytes.')))
    .describe('Size of the body in each representation, before compression.'),
  partitions: z.int().min(0).nullable().describe('Proved partitions that hold the window; null: not counted.'),
  will_exceed_time_budget: flag('The query is likely to find no row in time, and to be answered `QUERY_TIMEOUT`.'),
  time: z
    .strictObject({
      budget_ms: count('What a read is given to find its next row.'),
      first_row_ms: count('Until it finds one, if rows lie evenly.'),
      scan_ms: count('To go through all rows searched, if none passes.'),
    })
    .describe('For filters, at the speed of rows that are in memory.'),
  would_answer: z
    .strictObject({ status: z.int(), code: problemCode.nullable() })
    .describe('What the query would be answered with, as far as can be told.'),
  as_of_utc: utc('Until when every source is complete.').nullable(),
  warnings: z.array(warning).describe('Those of the query, and `QUERY_TIMEOUT_LIKELY` or `QUERY_TIMEOUT_POSSIBLE`.'),
  view_id: text('The view that would be read.'),
  view_version: count('Its version.'),
  ...grantedRights,
});

export type EstimateAnswer = z.input<typeof estimateAnswer>;
