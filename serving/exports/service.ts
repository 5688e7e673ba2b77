/** Everything of exports that one process has: what routes need, and a worker where it is to have one. */

import { auditFolderOf, exportRootOf } from '../../shared/config/export-folders.ts';
import type { Settings } from '../../shared/config/settings.ts';
import type { Logger } from '../../shared/logger.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { PgPool, poolOptions } from '../db/pool.ts';
import { Reader } from '../read/execute/reader.ts';
import type { FreshnessRule } from '../read/execute/warnings.ts';
import { BufferPool } from '../render/response.ts';
import { AUDIT_EVENTS, ExportAudit } from './audit.ts';
import { ExportDirectories } from './files.ts';
import { QueueConnection } from './queue-connection.ts';
import { ExportStore, type QueueLimits } from './store.ts';
import { ExportWorker, exportRunner } from './worker.ts';

/* What is put right from time to time: jobs whose message was lost, artifacts whose time is over, what the dead left. */

export interface SweeperOptions {
  readonly store: ExportStore;
  readonly queue: QueueConnection;
  readonly places: ExportDirectories;
  readonly audit: ExportAudit;
  readonly leaseMs: number;
  readonly log: Logger;
}

/** Between two looks; also how long an artifact may outlive its time. */
const MAX_INTERVAL_MS = 30_000;
/** Looks between two searches for what nobody needs. */
const LOOKS_A_SEARCH = 20;

export class ExportSweeper implements AsyncDisposable {
  readonly #options: SweeperOptions;
  readonly #timer: NodeJS.Timeout;
  #looks = 0;
  #looking: Promise<void> | undefined;

  constructor(options: SweeperOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.look(), Math.min(options.leaseMs, MAX_INTERVAL_MS));
    void this.look();
  }

  look(): Promise<void> {
    this.#looking ??= this.#look().finally(() => {
      this.#looking = undefined;
    });
    return this.#looking;
  }

  async #look(): Promise<void> {
    try {
      await this.#queueAgain();
      await this.#expire();
      if (this.#looks++ % LOOKS_A_SEARCH === 0) await this.#clear();
    } catch (error) {
      this.#options.log.debug({ err: error }, 'exports cannot be looked after; later');
    }
  }

  /** A message that is still there is not doubled. */
  async #queueAgain(): Promise<void> {
    const { store, queue, leaseMs } = this.#options;
    const idle = await store.idle(leaseMs);
    if (idle.length === 0) return;
    const connected = await queue.get();
    await connected.ensure();
    for (const exportId of idle) await connected.put(exportId);
  }

  async #expire(): Promise<void> {
    const { store, places, audit, log } = this.#options;
    for (const exportId of await store.expired()) {
      await places.removeUnneeded(exportId, { state: 'succeeded', fence: 0, kept: null });
      await store.noteRemoved(exportId);
      await audit.note(AUDIT_EVENTS.expired, exportId, { reason: 'expired' });
      log.info({ exportId }, 'an artifact is deleted: its time is over');
    }
  }

  /** Folders of runs that were killed. Of exports that the database does not know nothing is touched. */
  async #clear(): Promise<void> {
    const { store, places } = this.#options;
    const known = await store.foldersOf(await places.present());
    for (const [exportId, folders] of known) await places.removeUnneeded(exportId, folders);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    await this.#looking;
  }
}

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
  readonly places: ExportDirectories;
  readonly limits: QueueLimits;
  readonly #deps: ExportServiceDeps;
  readonly #leaseMs: number;
  #pool: PgPool | undefined;
  #worker: ExportWorker | undefined;
  #sweeper: ExportSweeper | undefined;

  constructor(deps: ExportServiceDeps) {
    const { settings, databaseUrl, log, role, freshness } = deps;
    this.#deps = deps;
    this.#leaseMs = settings.SVC_EXPORT_LEASE_SECONDS * 1000;
    this.limits = { running: settings.SVC_EXPORT_MAX_CONCURRENCY, waiting: settings.SVC_EXPORT_MAX_QUEUE };
    this.places = new ExportDirectories(exportRootOf(settings));
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
    const pool = new PgPool(poolOptions(databaseUrl));
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
