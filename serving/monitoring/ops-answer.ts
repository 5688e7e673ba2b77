/** The answers of GET /v1/ops/status and /v1/ops/history. */
import { z } from 'zod';
import { count, datasetKey, flag, textField, utc } from '../discovery/schemas.ts';
import { eachSeries, type SeriesName } from './monitor.ts';

const seconds = (doc: string) => z.number().min(0).describe(doc);
const number = (doc: string) => z.number().min(0).describe(doc);

const lag = z.strictObject({
  frames: count('Messages of the log that are not projected yet.'),
  events: count('Events in those messages; an approximation while a partition is being written.'),
  event_time_seconds: seconds(
    'Length of the event time that waits, or its distance from the proved end if that is longer.',
  ),
  oldest_seconds: seconds('How long the oldest message has been waiting.'),
});

const log = z.strictObject({
  messages: count('Messages in the stream.'),
  bytes: count('Bytes of these messages.'),
  max_bytes: z.int().describe('Byte limit of the stream; a full stream stops its publisher.'),
  last_sequence: count('Sequence of the newest message.'),
  checkpoint_sequence: count('Sequence of the last message whose effect is committed.'),
  lag,
});

const dataset = z.strictObject({
  dataset: datasetKey,
  coverage_version: count('Number that rises with every change of coverage.'),
  synthetic: flag('Whether the dataset holds the sample: rows that no vendor published.'),
  rows: count('Proved native rows.'),
  partitions: z
    .strictObject({
      missing: count('Expected but not in the catalog.'),
      publishing: count('Being written to the log.'),
      published: count('In the log, waiting for their proof.'),
      proved: count('Proved.'),
      quarantined: count('Quarantined.'),
    })
    .describe('Partitions by state.'),
  proved_from_utc: utc('Start of coverage.').nullable(),
  proved_through_utc: utc('Exclusive end of coverage, with several sources the earliest.').nullable(),
  late_arrivals_total: count('Documents refused because their partition is proved with other content.'),
  late_arrivals_open: count('Documents that vendors publish now in place of those that were proved, with other rows.'),
  publisher: z.string().nullable().describe('The current publisher.'),
  projector: z.string().nullable().describe('The current projector.'),
  log: log
    .nullable()
    .describe('The dataset’s stream in the log; null if there is none yet or the log does not answer.'),
});

const run = z.strictObject({
  run_id: count('Number of the run; it rises.'),
  kind: textField('backfill, reingest, follow, replay, verify, recover, klines, ranges, compact, leaves.'),
  subject: textField('A feed, or a dataset.'),
  command: textField('The command line.'),
  host: textField('Host of the process.'),
  pid: count('Id of the process.'),
  state: textField('running, waiting, done, failed, interrupted; lost: its process no longer exists.'),
  planned: count('Number of partitions; null if unknown.').nullable(),
  proved: count('Partitions that were proved.'),
  unchanged: count('Partitions that were unchanged.'),
  refused: count('Partitions that were refused.'),
  quarantined: count('Partitions that were quarantined.'),
  failed: count('Partitions that failed.'),
  rows: count('Number of rows proved.'),
  at_partition: z.string().nullable().describe('The partition in progress.'),
  failed_unit: z
    .strictObject({
      dataset: textField('Its dataset.'),
      partition: textField('The partition, or the document where its partitions are not known.'),
      code: textField('The code of the fault.'),
      reason: textField('What it was.'),
      at: utc('When it failed.'),
    })
    .nullable()
    .describe('The first partition that failed; of what is followed, the latest.'),
  failures: count('Consecutive failures of a follower.'),
  fault: z.string().nullable().describe('The latest fault.'),
  next_at_utc: utc('Time of the next try.').nullable(),
  succeeded_at_utc: utc('Time of the last success.').nullable(),
  started_at_utc: utc('Start of the run.'),
  updated_at_utc: utc('Time of the last update.'),
  ended_at_utc: utc('End of the run.').nullable(),
});

const columnstore = z.strictObject({
  table: textField('The hypertable.'),
  chunks: count('Its chunks.'),
  compacted_chunks: count('Those in the columnstore.'),
  row_bytes: count('Bytes of the compacted chunks before, as rows.'),
  column_bytes: count('Bytes of the compacted chunks now.'),
});

const proofLog = z
  .strictObject({
    size: count('Leaves of the last signed checkpoint.'),
    root: z.string().nullable().describe('Its root in base64; null before the first checkpoint.'),
    signed_at_utc: utc('Time of its signature.').nullable(),
    pending: count('Leaves that wait for the next checkpoint.'),
    oldest_pending_seconds: seconds('How long the oldest of them has been waiting.'),
  })
  .describe('The proof log.');

const lake = z.strictObject({
  folder: textField('The folder.'),
  host: textField('Host of its writer.'),
  files: count('Files of rows.'),
  rows: count('Their rows.'),
  bytes: count('Their bytes.'),
  change: count('The lake has every change before this leaf of the proof log.'),
  behind: count('Leaves that have followed.'),
  fault: z.string().nullable().describe('Why the last pass failed.'),
  written_at_utc: utc('Time of the last change of the lake.'),
  checked_at_utc: utc('Time of the last pass.'),
});

const queue = z.strictObject({
  queue: textField('native, aligned, discovery, lineage.'),
  running: count('Reads that run.'),
  waiting: count('Reads that wait.'),
  parked: count('Reads whose client is behind.'),
  max_running: count('Number of reads that may run.'),
  max_waiting: count('Number of reads that may wait.'),
  rejected: count('Reads refused with 503 since the process started.'),
});

export const statusAnswer = z.strictObject({
  at_utc: utc('Time of the collection, at most five seconds ago.'),
  collect_ms: number('Duration of the collection.'),
  log_fault: z.string().nullable().describe('Why the log did not answer.'),
  database_bytes: count('Size of the database.'),
  columnstore: z
    .array(columnstore)
    .nullable()
    .describe('Tables of which chunks are compacted; null where TimescaleDB has no columnstore. At most a minute old.'),
  proof_log: proofLog,
  lakes: z.array(lake).describe('Lakes, as their writers stated them last.'),
  checks: z.record(z.string(), z.string()).describe('The checks of /readyz.'),
  datasets: z.array(dataset),
  runs: z.array(run).describe('The newest twenty runs, and all that have not ended.'),
  exports: z.record(z.string(), count('Number of exports.')).nullable().describe('Exports by state.'),
  changes: z
    .strictObject({
      last: count('Number of the last change of /v1/changes.'),
      listeners: count('Event streams of this process.'),
      max_listeners: count('Number of event streams that may be open.'),
    })
    .describe('The changes, and who follows them.'),
  queues: z.array(queue).describe('Reads of this process.'),
});

export type OpsStatusAnswer = z.input<typeof statusAnswer>;

const DOCS: Readonly<Record<SeriesName, string>> = {
  lag_frames: 'Messages that are not projected yet.',
  lag_events: 'Events in those messages.',
  lag_event_time_seconds: 'Event time that is not projected yet.',
  lag_oldest_seconds: 'How long the oldest message has been waiting.',
  freshness_seconds: 'Time from the proved end to the sample.',
  rows: 'Proved native rows.',
};

const series = (doc: string) => z.array(z.number().nullable()).describe(doc);

export const historyAnswer = z.strictObject({
  interval_seconds: count('Interval of the samples.'),
  at_utc: z.array(utc('Time of the sample.')).describe('Oldest first; the process keeps one hour.'),
  datasets: z.array(
    z.strictObject({
      dataset: datasetKey,
      ...eachSeries((name) => series(DOCS[name])),
    }),
  ),
});

export type HistoryAnswer = z.input<typeof historyAnswer>;
