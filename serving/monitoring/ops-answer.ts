/** What GET /v1/ops/status and /v1/ops/history say. */
import { z } from 'zod';
import { count, datasetKey, flag, textField, utc } from '../discovery/schemas.ts';
import { eachKept, type KeptName } from './monitor.ts';

const seconds = (doc: string) => z.number().min(0).describe(doc);
const number = (doc: string) => z.number().min(0).describe(doc);

const lag = z.strictObject({
  frames: count('Messages of the log that are not projected.'),
  events: count('Events in them; of a partition still being written about as many as its frames hold.'),
  event_time_seconds: seconds('The length of what waits, or its way ahead of the proved end if that is longer.'),
  oldest_seconds: seconds('How long the oldest message has been waiting.'),
});

const log = z.strictObject({
  messages: count('Messages in the stream.'),
  bytes: count('Their bytes.'),
  max_bytes: z.int().describe('The limit of the stream; a full one stops its publisher.'),
  last_sequence: count('Of the newest message.'),
  checkpoint_sequence: count('Of the last message whose effect is committed.'),
  lag,
});

const dataset = z.strictObject({
  dataset: datasetKey,
  coverage_version: count('Rises with every change of what is proved.'),
  synthetic: flag('It is the sample: rows that no vendor published.'),
  rows: count('Proved native rows.'),
  partitions: z
    .strictObject({
      missing: count('Expected and unknown.'),
      publishing: count('Going into the log.'),
      published: count('In the log, waiting for their proof.'),
      proved: count('Proved.'),
      quarantined: count('Kept back.'),
    })
    .describe('Partitions by state.'),
  proved_from_utc: utc('Start of what is proved.').nullable(),
  proved_through_utc: utc('Its exclusive end, of several sources the earliest.').nullable(),
  late_arrivals_total: count('Documents that came for a proved partition with other content.'),
  publisher: z.string().nullable().describe('Who publishes now.'),
  projector: z.string().nullable().describe('Who projects now.'),
  log: log.nullable().describe('Its stream in the log; null: none yet, or the log does not answer.'),
});

const run = z.strictObject({
  run_id: count('Rises.'),
  kind: textField('backfill, reingest, reparse, follow, replay, verify, recover.'),
  subject: textField('A feed, or a dataset.'),
  command: textField('As it was typed.'),
  host: textField('Where.'),
  pid: count('Which process.'),
  state: textField('running, waiting, done, failed, interrupted; lost: nobody is at it any more.'),
  planned: count('Partitions; null where nobody knows how many there will be.').nullable(),
  proved: count('Of them.'),
  unchanged: count('Of them.'),
  refused: count('Of them.'),
  quarantined: count('Of them.'),
  failed: count('Of them.'),
  rows: count('Rows proved.'),
  at_partition: z.string().nullable().describe('What is being worked at.'),
  failures: count('Of what is followed: failures in a row.'),
  fault: z.string().nullable().describe('The latest fault.'),
  next_at_utc: utc('When it is tried again.').nullable(),
  succeeded_at_utc: utc('When it last went well.').nullable(),
  started_at_utc: utc('Start.'),
  updated_at_utc: utc('When it last said something.'),
  ended_at_utc: utc('End.').nullable(),
});

const queue = z.strictObject({
  queue: textField('native, aligned, discovery, lineage.'),
  running: count('Reads at work.'),
  waiting: count('Reads that wait.'),
  parked: count('Reads whose client is behind.'),
  max_running: count('How many may run.'),
  max_waiting: count('How many may wait.'),
  rejected: count('Refused with 503 since the start of this process.'),
});

export const statusAnswer = z.strictObject({
  at_utc: utc('When it was collected: at most five seconds ago.'),
  collect_ms: number('How long that took.'),
  log_fault: z.string().nullable().describe('Why the log could not be asked.'),
  database_bytes: count('Size of the database.'),
  checks: z.record(z.string(), z.string()).describe('As /readyz has them.'),
  datasets: z.array(dataset),
  runs: z.array(run).describe('The newest twenty, and all that are at work.'),
  exports: z.record(z.string(), count('Of them.')).nullable().describe('Exports by state.'),
  queues: z.array(queue).describe('Reads of this process.'),
});

export type StatusAnswer = z.input<typeof statusAnswer>;

const DOCS: Readonly<Record<KeptName, string>> = {
  lag_frames: 'Messages not projected.',
  lag_events: 'Events in them.',
  lag_event_time_seconds: 'Event time that waits.',
  lag_oldest_seconds: 'How long the oldest has been waiting.',
  freshness_seconds: 'From the proved end to the moment of the sample.',
  rows: 'Proved native rows.',
};

const series = (doc: string) => z.array(z.number().nullable()).describe(doc);

export const historyAnswer = z.strictObject({
  interval_seconds: count('A sample this often.'),
  at_utc: z.array(utc('Of the sample.')).describe('Oldest first, an hour back at most: this process keeps them.'),
  datasets: z.array(
    z.strictObject({
      dataset: datasetKey,
      ...eachKept((name) => series(DOCS[name])),
    }),
  ),
});

export type HistoryAnswer = z.input<typeof historyAnswer>;
