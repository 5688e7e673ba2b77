/**
 * Every metric of the service: its meaning, its labels, its buckets. docs/monitoring.md is generated from this table, and a test
 * checks alert rules and the dashboard against it. Label values are bounded: datasets, sources, codes, routes, modes, states,
 * names of keys.
 */

export interface MetricSpec {
  readonly type: 'gauge' | 'counter' | 'histogram';
  readonly help: string;
  readonly labels?: readonly string[];
  readonly buckets?: readonly number[];
  /** What each serving process counts for itself: with several, `process` says which one. Others are of the whole system. */
  readonly ofProcess?: true;
}

const OF_DATASET = ['dataset'] as const;
/** From an index look-up to a day's history over a slow connection. */
const SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];
const ROWS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7];

export const METRICS = {
  tidemark_build_info: { type: 'gauge', labels: ['version'], help: 'Always 1; the version of the service' },

  // The consumer of each stream: messages in the log that are not projected yet.
  tidemark_consumer_lag_messages: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Messages of the stream that are not projected yet',
  },
  tidemark_consumer_lag_events: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Events in the messages that are not projected yet',
  },
  tidemark_consumer_lag_event_time_seconds: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Event time that is not projected yet',
  },
  tidemark_consumer_ack_floor_age_seconds: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Waiting time of the oldest message after the ack floor; 0 when none waits',
  },
  tidemark_checkpoint_sequence: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Stream sequence of the last message whose effect is committed',
  },
  tidemark_projector_active: {
    type: 'gauge',
    labels: OF_DATASET,
    help: '1 while a projector holds the lock of the dataset',
  },
  tidemark_publisher_active: {
    type: 'gauge',
    labels: OF_DATASET,
    help: '1 while a publisher holds the lease of the dataset',
  },

  // The log.
  tidemark_stream_messages: { type: 'gauge', labels: OF_DATASET, help: 'Messages in the stream' },
  tidemark_stream_bytes: { type: 'gauge', labels: OF_DATASET, help: 'Bytes in the stream' },
  tidemark_stream_max_bytes: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Byte limit of the stream; a full one stops its publisher',
  },
  tidemark_stream_last_sequence: { type: 'gauge', labels: OF_DATASET, help: 'Sequence of the newest message' },

  // Coverage.
  tidemark_proved_through_timestamp_seconds: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Exclusive end of coverage, with several sources the earliest, of an exchange that of its default instrument; absent while nothing is proved',
  },
  tidemark_proved_rows: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Native rows of proved partitions, of an exchange those of all its instruments',
  },
  tidemark_ingested_rows_total: {
    ofProcess: true,
    type: 'counter',
    labels: OF_DATASET,
    help: 'Rows that became proved since the first scrape; its rate is rows per second',
  },
  tidemark_partitions: {
    type: 'gauge',
    labels: ['dataset', 'state'],
    help: 'Partitions by state; missing ones are expected but not in the catalog',
  },
  tidemark_late_arrivals_total: {
    type: 'counter',
    labels: OF_DATASET,
    help: 'Documents refused because their partition was proved with other content',
  },
  tidemark_late_arrivals_open: {
    type: 'gauge',
    labels: OF_DATASET,
    help: 'Documents that vendors publish now in place of those that were proved, with other rows',
  },
  tidemark_synthetic: { type: 'gauge', labels: OF_DATASET, help: '1 while the proved rows belong to the sample' },

  // Sources and runs.
  tidemark_source_failures_total: {
    type: 'counter',
    labels: ['dataset', 'source', 'code'],
    help: 'Documents abandoned after all retries, by source and code of the fault',
  },
  tidemark_runs: {
    type: 'gauge',
    labels: ['kind', 'state'],
    help: 'Backfills, followers and other runs that have not ended',
  },
  tidemark_follow_failures: {
    type: 'gauge',
    labels: ['subject'],
    help: 'Consecutive failures of the follower; 0 after a success',
  },
  tidemark_exports: { type: 'gauge', labels: ['state'], help: 'Exports by state; absent until there are exports' },

  // Stores.
  tidemark_database_up: { type: 'gauge', help: '1 when the database answered' },
  tidemark_database_size_bytes: { type: 'gauge', help: 'Size of the database on disk, measured once a minute' },
  tidemark_columnstore_chunks: {
    type: 'gauge',
    labels: ['table', 'store'],
    help: 'Chunks in rows and in columns; absent without a columnstore',
  },
  tidemark_columnstore_bytes: {
    type: 'gauge',
    labels: ['table', 'store'],
    help: 'Bytes of the chunks in columns: before as rows, now as columns',
  },
  tidemark_proof_log_leaves: {
    type: 'gauge',
    labels: ['state'],
    help: 'Leaves of the last signed checkpoint, and those that wait for the next one',
  },
  tidemark_proof_log_oldest_pending_seconds: {
    type: 'gauge',
    help: 'How long the oldest leaf has been waiting for a checkpoint; 0 where none waits',
  },
  tidemark_lake_files: { type: 'gauge', labels: ['folder'], help: 'Files of the lake' },
  tidemark_lake_rows: { type: 'gauge', labels: ['folder'], help: 'Their rows' },
  tidemark_lake_behind_changes: { type: 'gauge', labels: ['folder'], help: 'Changes that it lacks' },
  tidemark_log_up: { type: 'gauge', help: '1 when the log answered' },
  tidemark_ready: { type: 'gauge', labels: ['check'], help: '1 for each passing check of /readyz' },
  tidemark_status_timestamp_seconds: { type: 'gauge', help: 'Time at which the figures above were collected' },
  tidemark_status_collect_duration_seconds: { type: 'gauge', help: 'Duration of that collection' },

  // This process.
  tidemark_http_request_duration_seconds: {
    ofProcess: true,
    type: 'histogram',
    labels: ['method', 'route', 'status'],
    buckets: SECONDS,
    help: 'Time from the request to the last byte of its answer, or to the end of its connection (status 0)',
  },
  tidemark_key_requests_total: {
    ofProcess: true,
    type: 'counter',
    labels: ['key', 'status'],
    help: 'Requests by key and class of status; `cut`: the connection ended first',
  },
  tidemark_key_rejections_total: {
    ofProcess: true,
    type: 'counter',
    labels: ['key', 'reason'],
    help: 'Requests refused because of their key',
  },
  tidemark_read_duration_seconds: {
    ofProcess: true,
    type: 'histogram',
    labels: ['route', 'mode'],
    buckets: SECONDS,
    help: 'Time of reads that returned rows, from the request to the last row',
  },
  tidemark_read_rows: {
    ofProcess: true,
    type: 'histogram',
    labels: ['route', 'mode'],
    buckets: ROWS,
    help: 'Rows of those reads',
  },
  tidemark_read_slots: {
    ofProcess: true,
    type: 'gauge',
    labels: ['queue', 'state'],
    help: 'Reads running, waiting, and parked because their client is slow',
  },
  tidemark_read_slots_limit: {
    ofProcess: true,
    type: 'gauge',
    labels: ['queue', 'state'],
    help: 'Number of reads that may run and wait',
  },
  tidemark_read_rejections_total: {
    ofProcess: true,
    type: 'counter',
    labels: ['queue', 'reason'],
    help: 'Reads refused with 503 because the queue was full or the wait too long',
  },
  tidemark_change_listeners: { ofProcess: true, type: 'gauge', help: 'Event streams of /v1/changes that are open' },
  tidemark_change_listeners_limit: { ofProcess: true, type: 'gauge', help: 'Event streams that may be open' },
  tidemark_change_listeners_evicted_total: {
    ofProcess: true,
    type: 'counter',
    help: 'Event streams that the service ended: their client did not read, or another key had the place',
  },
  tidemark_database_connections: {
    ofProcess: true,
    type: 'gauge',
    labels: ['state'],
    help: 'Connections for reads, idle and busy',
  },
} as const satisfies Readonly<Record<string, MetricSpec>>;

export type MetricName = keyof typeof METRICS;
