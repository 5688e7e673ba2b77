/** What GET /v1/coverage/{dataset} says. */
import { z } from 'zod';
import { PARTITION_STATES } from '../../shared/db/partition-states.ts';
import { count, datasetKey, document, flag, sha256, text, utc } from './schemas.ts';

const span = z
  .strictObject({ unit: z.enum(['epoch_ms', 'height']), from: z.int(), to: z.int() })
  .describe('The same in the unit that its partitions are counted in, [from, to).');

const stretch = z.strictObject({
  source_id: text('The source it is complete for.'),
  start_utc: utc('Its first moment.'),
  through_utc: utc('The exclusive moment through which it is complete.'),
  span,
  partitions: count('Proved partitions in it.'),
  rows: count('Their native rows.'),
});

const gap = z.strictObject({
  source_id: text('The source that is incomplete.'),
  start_utc: utc('Start.'),
  end_utc: utc('Exclusive end.'),
  span,
});

const tally = z.strictObject({
  partitions: count('Partitions in this state.'),
  rows: count('Native rows they were proved to hold.'),
});

const partition = z.strictObject({
  partition: text('Its key.'),
  source_id: text('The source it is of.'),
  state: z.enum(PARTITION_STATES),
  start_utc: utc('Start of its window.').nullable(),
  end_utc: utc('Exclusive end.').nullable(),
  rows: count('Native rows; null unless proved.').nullable(),
  aligned_rows: count('One-second rows, where these are of one partition each.').nullable(),
  first_offset: z.string().nullable().describe('Offset of its first event.'),
  last_offset: z.string().nullable().describe('Offset of its last event.'),
  rows_hash: z.string().nullable().describe('Sum of the hashes of its rows, as the document and the database have it.'),
  events_sha256: sha256('Of every event’s vendor bytes and a line feed, in order of offset.').nullable(),
  document: document.nullable().describe('The document it came in.'),
  revision: count('Rises when an operator ingests it again.'),
  attempt: count('The try at publishing it that this is of.'),
  synthetic: flag('Of the sample: no vendor published it.'),
  ingested_at_utc: utc('When it was published to the log; the same after every replay.').nullable(),
  proved_at_utc: utc('When its recount agreed.').nullable(),
  reason: z.string().nullable().describe('Why it is quarantined: what was expected and what was found.'),
});

const lateArrival = z.strictObject({
  at_utc: utc('When it was refused.'),
  partition: text('The proved partition that it was for.'),
  reason: text('What of it differs.'),
  document: document.nullable().describe('The document that came late.'),
});

export const coverageAnswer = z.strictObject({
  dataset: datasetKey,
  partition_kind: text('What is fetched, proved and replayed together.'),
  version: count('Rises with every change of what is proved.'),
  synthetic: flag('It is the sample: rows that no vendor published.'),
  as_of_utc: utc('Until when every source is complete.').nullable(),
  proved: z.array(stretch).describe('Stretches without a gap, by source and time.'),
  gaps: z.array(gap).describe('What was expected between them and is not proved.'),
  totals: z.strictObject(
    Object.fromEntries(PARTITION_STATES.map((state) => [state, tally])) as Record<
      (typeof PARTITION_STATES)[number],
      typeof tally
    >,
  ),
  partitions: z.array(partition).describe('Those asked for, by time.'),
  next_cursor: z.string().nullable().describe('The `cursor` of the next page; null: this is the last.'),
  late_arrivals: z
    .array(lateArrival)
    .describe('The newest documents that came for a proved partition with other content.'),
  late_arrivals_total: count('All of them.'),
});

export type CoverageAnswer = z.input<typeof coverageAnswer>;
