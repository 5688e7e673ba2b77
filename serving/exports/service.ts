/** Everything of exports that one process has: what routes need, and a worker where it is to have one. */
import type { Settings } from '../../shared/config/settings.ts';
import { auditFolderOf, exportRootOf } from '../../shared/exports/places.ts';
import type { Logger } from '../../shared/log/logger.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { poolOptions, WirePool } from '../db/pool.ts';
import type { FreshnessRule } from '../read/judge.ts';
import { Reader } from '../read/reader.ts';
import { BufferPool } from '../rendering/response.ts';
import { ExportAudit } from './audit.ts';
import { ExportPlaces } from './places.ts';
import { QueueConnection } from './queue-connection.ts';
import { exportRunner } from './run.ts';
import { ExportStore, type QueueLimits } from './store.ts';
import { ExportSweeper } from './sweeper.ts';
import { ExportWorker } from './worker.ts';

export interface ExportServiceDeps {
  readonly settings: Settings;
  readonly databaseUrl: string;
  readonly rights: RightsStore;
  readonly freshness: FreshnessRule;
  readonly log: Logger;
  /** What the process is, in the audit log. */
  readonly role: 'serving' | 'worker';
}

/** An export may search long for its next row; the database is told to stop all the same when it finds none. */
const ROW_TIMEOUT_MS = 600_000;

export class ExportService implements AsyncDisposable {
  readonly store: ExportStore;
  readonly queue: QueueConnection;
  readonly audit: ExportAudit;
  readonly places: ExportPlaces;
  readonly limits: QueueLimits;
  readonly #deps: ExportServiceDeps;
  readonly #leaseMs: number;
  #pool: WirePool | undefined;
  #worker: ExportWorker | undefined;
  #sweeper: ExportSweeper | undefined;

  constructor(deps: ExportServiceDeps) {
    const { settings, databaseUrl, log, role, freshness } = deps;
    this.#deps = deps;
    this.#leaseMs = settings.SVC_EXPORT_LEASE_SECONDS * 1000;
    this.limits = { running: settings.SVC_EXPORT_MAX_CONCURRENCY, waiting: settings.SVC_EXPORT_MAX_QUEUE };
    this.places = new ExportPlaces(exportRootOf(settings));
    this.store = new ExportStore({
      databaseUrl,
      leaseMs: this.#leaseMs,
      onTransition: (transition) => this.audit.transition(transition),
    });
    this.audit = new ExportAudit({
      directory: auditFolderOf(settings),
      role,
      log,
      now: freshness.now,
      keepHead: (chain, sequence, hash) => this.store.noteHead(chain, sequence, hash),
    });
    this.queue = new QueueConnection({
      url: (settings.SVC_NATS_EXPORT_URL ?? settings.SVC_NATS_URL)?.href,
      name: `tidemark exports ${role}`,
      leaseMs: this.#leaseMs,
      replicas: settings.SVC_STREAM_REPLICAS,
      log,
    });
  }

  /** Takes exports from the queue, until disposal. */
  work(): void {
    const { settings, databaseUrl, rights, freshness, log } = this.#deps;
    const { store, queue, places, audit } = this;
    if (!queue.isConfigured) {
      log.warn('no exports are taken: SVC_NATS_EXPORT_URL and SVC_NATS_URL are not set');
      return;
    }
    const pool = new WirePool(poolOptions(databaseUrl));
    const budget = { firstRowMs: ROW_TIMEOUT_MS, nextRowMs: ROW_TIMEOUT_MS };
    const reader = new Reader({ pool, byokRole: undefined, budget, log, ...freshness });
    this.#pool = pool;
    this.#worker = new ExportWorker({
      store,
      queue,
      places,
      log,
      concurrency: settings.SVC_EXPORT_MAX_CONCURRENCY,
      leaseMs: this.#leaseMs,
      maxCrashes: settings.SVC_EXPORT_MAX_CRASHES,
      ttlSeconds: settings.SVC_EXPORT_ARTIFACT_TTL_SECONDS,
      run: exportRunner({
        reader,
        rights,
        buffers: new BufferPool(),
        now: freshness.now,
        splitRows: settings.SVC_EXPORT_SPLIT_ROWS,
      }),
    });
    this.#sweeper = new ExportSweeper({ store, queue, places, audit, leaseMs: this.#leaseMs, log });
  }

  /** Takes no more, and gives back what runs. */
  async rest(): Promise<void> {
    await this.#worker?.[Symbol.asyncDispose]();
    await this.#sweeper?.[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.rest();
    await this.queue[Symbol.asyncDispose]();
    await this.#pool?.[Symbol.asyncDispose]();
    await this.audit[Symbol.asyncDispose]();
    await this.store[Symbol.asyncDispose]();
  }
}
