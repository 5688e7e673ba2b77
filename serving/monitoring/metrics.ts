/** The metrics of this process and of the system as the process sees it, in the text format of Prometheus. */
import { AggregatorRegistry, Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { PARTITION_STATES } from '../../shared/db/schema.ts';
import type { State } from '../../shared/status/state.ts';
import type { ProblemCode } from '../contract/problems.ts';
import type { ConcurrencyLimiter } from '../limits/concurrency-limiter.ts';
import { METRICS, type MetricName, type MetricSpec } from './names.ts';
import type { CheckResults } from './startup.ts';

type Labels = Readonly<Record<string, string | number>>;

interface MetricSources {
  readonly status: () => Promise<State>;
  readonly checks: () => Promise<CheckResults>;
  readonly queues: Readonly<Record<string, ConcurrencyLimiter>>;
  readonly connections: () => { readonly idle: number; readonly busy: number };
  readonly listeners: () => { readonly listeners: number; readonly limit: number; readonly evicted: number };
  readonly version: string;
  readonly place?: Place;
}

/** One of several serving processes on the same port, each of which answers a part of the scrapes. */
export interface Place {
  /** Which of them. */
  readonly number: number;
  /** The metrics that all of them count for themselves; none where one does not answer. */
  metricsOfAll(): Promise<string | undefined>;
}

/**
 * prom-client gives three of its gauges names that Prometheus reserves for counters. Existing dashboards use these names, so
 * they and their samples stay. Declared as untyped they no longer claim to be gauges, which promtool objects to.
 */
const GAUGES_NAMED_TOTAL = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
];

const KEY_REASONS: Readonly<Partial<Record<ProblemCode, string>>> = {
  AUTH_KEY_EXPIRED: 'expired',
  AUTH_KEY_REVOKED: 'revoked',
  AUTH_SCOPE_MISSING: 'scope',
  AUTH_DATASET_NOT_COVERED: 'dataset',
  RATE_LIMITED: 'rate',
  AUTH_CONCURRENCY_LIMITED: 'concurrency',
};

export class Metrics {
  /** What this process counts for itself, and Node's metrics of it. */
  readonly #ofProcess = new Registry();
  /** What the process sees of the system. */
  readonly #ofSystem = new Registry();
  readonly #sources: MetricSources;
  readonly #metrics: ReadonlyMap<string, Gauge | Counter | Histogram>;
  /** Rows of each dataset at the last status. */
  readonly #rowsSeen = new Map<string, number>();

  constructor(sources: MetricSources) {
    this.#sources = sources;
    if (sources.place) {
      // So that each of these series is reset when its process is restarted.
      this.#ofProcess.setDefaultLabels({ process: String(sources.place.number) });
      AggregatorRegistry.setRegistries(this.#ofProcess);
      // Answers the primary process, which asks all for them.
      new AggregatorRegistry();
    }
    this.#metrics = new Map(Object.entries(METRICS).map(([name, spec]) => [name, this.#create(name, spec)]));
  }

  /** Adds Node's own metrics of the process: memory, event loop, garbage collection. */
  addProcessMetrics(): void {
    collectDefaultMetrics({ register: this.#ofProcess });
    for (const name of GAUGES_NAMED_TOTAL) {
      const metric = this.#ofProcess.getSingleMetric(name);
      if (metric) Object.assign(metric, { type: 'untyped' });
    }
    // Their labels tell the processes apart: none is left out of a scrape of several.
    for (const metric of this.#ofProcess.getMetricsAsArray()) Object.assign(metric, { aggregator: 'first' });
  }

  get contentType(): string {
    return this.#ofProcess.contentType;
  }

  request(labels: { readonly method: string; readonly route: string; readonly status: number }, seconds: number): void {
    this.#histogram('tidemark_http_request_duration_seconds').observe(labels, seconds);
  }

  /** Counts the request of a known key; anybody could create labels with others. */
  keyRequest(key: string, status: number): void {
    const kind = status === 0 ? 'cut' : `${Math.floor(status / 100)}xx`;
    (this.#metrics.get('tidemark_key_requests_total') as Counter).inc({ key, status: kind });
  }

  /** Counts the refusal of a known key, if the code is one. */
  keyRefusal(key: string, code: ProblemCode): void {
    const reason = KEY_REASONS[code];
    if (reason) (this.#metrics.get('tidemark_key_rejections_total') as Counter).inc({ key, reason });
  }

  read(labels: { readonly route: string; readonly mode: string }, seconds: number, rows: number): void {
    this.#histogram('tidemark_read_duration_seconds').observe(labels, seconds);
    this.#histogram('tidemark_read_rows').observe(labels, rows);
  }

  async text(): Promise<string> {
    // Asked first, so that a process that stands still delays the answer by no more than it takes to give up on it.
    const ofAll = this.#sources.place?.metricsOfAll();
    await Promise.all([this.#readChecks(), this.#readSystem()]);
    return `${(await ofAll) ?? (await this.#ofProcess.metrics())}\n${await this.#ofSystem.metrics()}`;
  }

  #create(name: string, { type, help, labels = [], buckets, ofProcess }: MetricSpec): Gauge | Counter | Histogram {
    const options = {
      ...{ name, help, labelNames: [...labels], registers: [ofProcess ? this.#ofProcess : this.#ofSystem] },
      // Before it is shown, whoever asks.
      ...(ofProcess && type !== 'histogram' && { collect: () => this.#readProcess() }),
    };
    if (type === 'histogram') return new Histogram({ ...options, buckets: [...buckets!] });
    return type === 'counter' ? new Counter(options) : new Gauge(options);
  }

  #histogram = (name: MetricName) => this.#metrics.get(name) as Histogram;

  /** Removes every value. prom-client sets a metric without labels to 0, which would say that it is known. */
  #forget(name: MetricName): void {
    const metric = this.#metrics.get(name) as Gauge;
    metric.reset();
    metric.remove({});
  }

  #set(name: MetricName, labels: Labels, value: number): void {
    (this.#metrics.get(name) as Gauge).set(labels, value);
  }

  /** Sets a counter that is counted elsewhere. */
  #total(name: MetricName, labels: Labels, value: number): void {
    const counter = this.#metrics.get(name) as Counter;
    counter.remove(labels);
    counter.inc(labels, value);
  }

  #readProcess(): void {
    for (const [queue, limiter] of Object.entries(this.#sources.queues)) {
      for (const [state, count] of Object.entries(limiter.load))
        this.#set('tidemark_read_slots', { queue, state }, count);
      for (const [state, count] of Object.entries(limiter.limits)) {
        this.#set('tidemark_read_slots_limit', { queue, state }, count);
      }
      for (const [reason, count] of Object.entries(limiter.rejected)) {
        this.#total('tidemark_read_rejections_total', { queue, reason }, count);
      }
    }
    const { listeners, limit, evicted } = this.#sources.listeners();
    this.#set('tidemark_change_listeners', {}, listeners);
    this.#set('tidemark_change_listeners_limit', {}, limit);
    this.#total('tidemark_change_listeners_evicted_total', {}, evicted);
    for (const [state, count] of Object.entries(this.#sources.connections())) {
      this.#set('tidemark_database_connections', { state }, count);
    }
  }

  async #readChecks(): Promise<void> {
    const results = await this.#sources.checks();
    // Without the database some checks are not made, and their last values would mislead.
    this.#forget('tidemark_ready');
    for (const [check, result] of Object.entries(results)) {
      this.#set('tidemark_ready', { check }, result === 'ok' ? 1 : 0);
    }
  }

  async #readSystem(): Promise<void> {
    this.#set('tidemark_build_info', { version: this.#sources.version }, 1);
    let status: State;
    try {
      status = await this.#sources.status();
    } catch {
      // Stale numbers would mislead: the process removes them, and alerts watch their absence and `tidemark_database_up`.
      for (const name of OF_SYSTEM) this.#forget(name);
      this.#set('tidemark_database_up', {}, 0);
      return;
    }
    this.#set('tidemark_database_up', {}, 1);
    this.#set('tidemark_log_up', {}, status.logFault === undefined ? 1 : 0);
    this.#set('tidemark_database_size_bytes', {}, status.databaseBytes);
    this.#set('tidemark_status_timestamp_seconds', {}, status.atMs / 1000);
    this.#set('tidemark_status_collect_duration_seconds', {}, status.collectMs / 1000);
    for (const name of OF_DATASETS) this.#forget(name);
    for (const one of status.statuses) this.#ofDataset(one);
    this.#ofWork(status);
  }

  #ofDataset({ overview, facts }: State['statuses'][number]): void {
    const { dataset, log, partitions, rows, proved_through_utc: through } = overview;
    const labels = { dataset };
    if (log) {
      this.#set('tidemark_consumer_lag_messages', labels, log.lag.frames);
      this.#set('tidemark_consumer_lag_events', labels, log.lag.events);
      this.#set('tidemark_consumer_lag_event_time_seconds', labels, log.lag.event_time_seconds);
      this.#set('tidemark_consumer_ack_floor_age_seconds', labels, log.lag.oldest_seconds);
      this.#set('tidemark_stream_messages', labels, log.messages);
      this.#set('tidemark_stream_bytes', labels, log.bytes);
      this.#set('tidemark_stream_max_bytes', labels, log.max_bytes);
      this.#set('tidemark_stream_last_sequence', labels, log.last_sequence);
    }
    this.#set('tidemark_checkpoint_sequence', labels, facts.checkpoint?.sequence ?? 0);
    this.#set('tidemark_projector_active', labels, overview.projector === null ? 0 : 1);
    this.#set('tidemark_publisher_active', labels, overview.publisher === null ? 0 : 1);
    if (through !== null) this.#set('tidemark_proved_through_timestamp_seconds', labels, Date.parse(through) / 1000);
    this.#set('tidemark_proved_rows', labels, rows);
    this.#set('tidemark_synthetic', labels, overview.synthetic ? 1 : 0);
    for (const state of ['missing', ...PARTITION_STATES] as const) {
      this.#set('tidemark_partitions', { dataset, state }, partitions[state]);
    }
    this.#total('tidemark_late_arrivals_total', labels, overview.late_arrivals_total);
    this.#set('tidemark_late_arrivals_open', labels, overview.late_arrivals_open);
    for (const { source, code, failures } of facts.failures) {
      this.#total('tidemark_source_failures_total', { dataset, source, code }, failures);
    }
    // Removed rows (a quarantine, the sample) do not decrease the counter: it continues from the rows that are left.
    const before = this.#rowsSeen.get(dataset) ?? rows;
    (this.#metrics.get('tidemark_ingested_rows_total') as Counter).inc(labels, Math.max(0, rows - before));
    this.#rowsSeen.set(dataset, rows);
  }

  #ofWork({ runs, exports, columnstore, proofLog, lakes }: State): void {
    this.#set('tidemark_proof_log_leaves', { state: 'signed' }, proofLog.size);
    this.#set('tidemark_proof_log_leaves', { state: 'pending' }, proofLog.pending);
    this.#set('tidemark_proof_log_oldest_pending_seconds', {}, proofLog.oldest_pending_seconds);
    for (const { folder, files, rows, behind } of lakes) {
      this.#set('tidemark_lake_files', { folder }, files);
      this.#set('tidemark_lake_rows', { folder }, rows);
      this.#set('tidemark_lake_behind_changes', { folder }, behind);
    }
    for (const { table, chunks, compacted_chunks: compacted, row_bytes, column_bytes } of columnstore ?? []) {
      this.#set('tidemark_columnstore_chunks', { table, store: 'rows' }, chunks - compacted);
      this.#set('tidemark_columnstore_chunks', { table, store: 'columns' }, compacted);
      this.#set('tidemark_columnstore_bytes', { table, store: 'rows' }, row_bytes);
      this.#set('tidemark_columnstore_bytes', { table, store: 'columns' }, column_bytes);
    }
    const open = runs.filter(({ ended_at_utc: ended }) => ended === null);
    for (const [key, same] of Map.groupBy(open, ({ kind, state }) => `${kind} ${state}`)) {
      const [kind, state] = key.split(' ');
      this.#set('tidemark_runs', { kind, state }, same.length);
    }
    for (const { kind, subject, failures } of open) {
      if (kind === 'follow') this.#set('tidemark_follow_failures', { subject }, failures);
    }
    for (const [state, count] of Object.entries(exports ?? {})) this.#set('tidemark_exports', { state }, count);
  }
}

/** Metrics that are forgotten before each status, so that vanished label values do not stay. */
const OF_DATASETS = [
  'tidemark_consumer_lag_messages',
  'tidemark_consumer_lag_events',
  'tidemark_consumer_lag_event_time_seconds',
  'tidemark_consumer_ack_floor_age_seconds',
  'tidemark_stream_messages',
  'tidemark_stream_bytes',
  'tidemark_stream_max_bytes',
  'tidemark_stream_last_sequence',
  'tidemark_proved_through_timestamp_seconds',
  'tidemark_runs',
  'tidemark_follow_failures',
] as const satisfies readonly MetricName[];

const OF_SYSTEM = [
  ...OF_DATASETS,
  'tidemark_checkpoint_sequence',
  'tidemark_projector_active',
  'tidemark_publisher_active',
  'tidemark_proved_rows',
  'tidemark_partitions',
  'tidemark_late_arrivals_open',
  'tidemark_synthetic',
  'tidemark_exports',
  'tidemark_database_size_bytes',
  'tidemark_columnstore_chunks',
  'tidemark_columnstore_bytes',
  'tidemark_proof_log_leaves',
  'tidemark_proof_log_oldest_pending_seconds',
  'tidemark_lake_files',
  'tidemark_lake_rows',
  'tidemark_lake_behind_changes',
  'tidemark_log_up',
  'tidemark_status_timestamp_seconds',
  'tidemark_status_collect_duration_seconds',
] as const satisfies readonly MetricName[];
