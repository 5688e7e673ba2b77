/** The exports part of a process: what the routes need, a worker if the process runs exports, and the sweeper. */

import type { Settings } from '../../shared/config/settings.ts';
import { auditFolderOf, exportRootOf, proofLogOf } from '../../shared/config/settings.ts';
import type { Logger } from '../../shared/logger.ts';
import { readSigners } from '../../shared/proof-log/signers.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { PgPool, poolOptions } from '../db/pool.ts';
import { Instruments } from '../discovery/instruments.ts';
import { ProofLog } from '../discovery/proof-log.ts';
import { Reader } from '../read/execute/answer.ts';
import type { FreshnessRule } from '../read/execute/warnings.ts';
import { FrameReader } from '../read/frame/frame.ts';
import { BufferPool } from '../render/response.ts';
import type { ArtifactDeps } from './artifact/write.ts';
import { AUDIT_EVENTS, ExportAudit } from './audit.ts';
import { ExportDirectories } from './files.ts';
import { ExportStore, type QueueLimits, type RunFolders } from './store.ts';
import { ExportWorker, exportRunner } from './worker.ts';

interface SweeperOptions {
  readonly store: ExportStore;
  readonly directories: ExportDirectories;
  readonly audit: ExportAudit;
  readonly leaseMs: number;
  readonly log: Logger;
  /** Expired artifacts that are looked up at a time; default PAGE_SIZE. */
  readonly pageSize?: number;
}

/** Longest interval between two sweeps; also how long an artifact may outlive its time. */
const MAX_INTERVAL_MS = 30_000;
/** Every so many sweeps the sweeper also searches for unneeded directories. */
const SWEEPS_PER_SEARCH = 20;
const PAGE_SIZE = 1000;

/** Periodically deletes expired artifacts, and what killed runs left. */
export class ExportSweeper implements AsyncDisposable {
  readonly #options: SweeperOptions;
  readonly #timer: NodeJS.Timeout;
  /** Sweeps until the next search. */
  #untilSearch = 0;
  /** Exports whose files could not be deleted: the log says so once. */
  readonly #undeletable = new Set<string>();
  #sweeping: Promise<void> | undefined;

  constructor(options: SweeperOptions) {
    this.#options = options;
    this.#timer = setInterval(() => void this.sweep(), Math.min(options.leaseMs, MAX_INTERVAL_MS));
    void this.sweep();
  }

  sweep(): Promise<void> {
    this.#sweeping ??= this.#sweep().finally(() => {
      this.#sweeping = undefined;
    });
    return this.#sweeping;
  }

  /** Each step is taken whatever became of the one before it. */
  async #sweep(): Promise<void> {
    for (const step of [this.#expire, this.#clear]) {
      try {
        await step.call(this);
      } catch (error) {
        this.#options.log.debug({ err: error }, 'a step of the sweep of exports failed; the next sweep tries again');
      }
    }
  }

  async #expire(): Promise<void> {
    const { store, audit, log, pageSize = PAGE_SIZE } = this.#options;
    let above = '0';
    // All pages: any number of artifacts that cannot be deleted stays at the front.
    for (;;) {
      const page = await store.expired(above, pageSize);
      for (const { exportId, number } of page) {
        above = number;
        if (!(await this.#remove(exportId, { state: 'succeeded', fence: 0, artifactFence: null }))) continue;
        await store.noteRemoved(exportId);
        await audit.note(AUDIT_EVENTS.expired, exportId, { reason: 'expired' });
        log.info({ exportId }, 'the sweeper deleted an expired artifact');
      }
      if (page.length < pageSize) return;
    }
  }

  /** Removes the directories of killed runs. It leaves exports alone that the database does not know. */
  async #clear(): Promise<void> {
    if (this.#untilSearch > 0) {
      this.#untilSearch--;
      return;
    }
    const { store, directories } = this.#options;
    const known = await store.foldersOf(await directories.present());
    for (const [exportId, folders] of known) await this.#remove(exportId, folders);
    this.#untilSearch = SWEEPS_PER_SEARCH - 1;
  }

  /** Removes unneeded directories of an export. @returns whether it could */
  async #remove(exportId: string, folders: RunFolders): Promise<boolean> {
    const { directories, log } = this.#options;
    try {
      await directories.removeUnneeded(exportId, folders);
      return true;
    } catch (error) {
      if (!this.#undeletable.has(exportId)) {
        this.#undeletable.add(exportId);
        log.warn(
          { err: error, exportId },
          'the sweeper cannot delete files of an export and tries again; check the permissions of its folder',
        );
      }
      return false;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    await this.#sweeping;
  }
}

interface ExportServiceDeps {
  readonly settings: Settings;
  readonly databaseUrl: string;
  readonly rights: RightsStore;
  readonly freshness: FreshnessRule;
  readonly log: Logger;
  /** Role of the process, for the audit log. */
  readonly role: 'serving' | 'worker';
}

/** An export may search long for its next row; the read still ends when the search takes longer. */
const ROW_TIMEOUT_MS = 600_000;

/** What writing artifacts in the background needs. */
export function artifactDeps(
  settings: Settings,
  { pool, freshness, log }: Pick<ExportServiceDeps, 'freshness' | 'log'> & { readonly pool: PgPool },
): ArtifactDeps {
  const budget = { firstRowMs: ROW_TIMEOUT_MS, nextRowMs: ROW_TIMEOUT_MS };
  const reading = { pool, byokRole: undefined, budget, log, ...freshness };
  const place = proofLogOf(settings);
  return {
    reader: new Reader({ ...reading, granuleLookupRows: settings.limits.granuleLookupRows }),
    frames: new FrameReader({ ...reading, confirmations: settings.SVC_BITCOIN_CONFIRMATION_DEPTH }),
    buffers: new BufferPool(),
    proofLog: new ProofLog(place.folder, log),
    signer: async () => (await readSigners(place))?.current,
    now: freshness.now,
    splitRows: settings.limits.exportSplitRows,
  };
}

export class ExportService implements AsyncDisposable {
  readonly store: ExportStore;
  readonly audit: ExportAudit;
  readonly directories: ExportDirectories;
  readonly limits: QueueLimits;
  readonly #deps: ExportServiceDeps;
  readonly #leaseMs: number;
  #pool: PgPool | undefined;
  #worker: ExportWorker | undefined;
  #sweeper: ExportSweeper | undefined;

  constructor(deps: ExportServiceDeps) {
    const { settings, databaseUrl, log, role, freshness } = deps;
    this.#deps = deps;
    this.#leaseMs = settings.limits.exportLeaseMs;
    this.limits = { running: settings.SVC_EXPORT_MAX_CONCURRENCY, waiting: settings.SVC_EXPORT_MAX_QUEUE };
    this.directories = new ExportDirectories(exportRootOf(settings));
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
  }

  /** Runs exports until disposal. */
  work(): void {
    const { settings, databaseUrl, rights, freshness, log } = this.#deps;
    const { store, directories, audit } = this;
    const pool = new PgPool(poolOptions(databaseUrl));
    const instruments = new Instruments(settings, () => store.instruments());
    this.#pool = pool;
    this.#worker = new ExportWorker({
      store,
      databaseUrl,
      directories,
      log,
      concurrency: settings.SVC_EXPORT_MAX_CONCURRENCY,
      leaseMs: this.#leaseMs,
      maxCrashes: settings.limits.exportCrashes,
      ttlSeconds: settings.SVC_EXPORT_ARTIFACT_TTL_SECONDS,
      run: exportRunner({ ...artifactDeps(settings, { pool, freshness, log }), rights, instruments }),
    });
    this.#sweeper = new ExportSweeper({ store, directories, audit, leaseMs: this.#leaseMs, log });
  }

  /** Takes no more exports, and gives the running ones back. */
  async stopWork(): Promise<void> {
    await this.#worker?.[Symbol.asyncDispose]();
    await this.#sweeper?.[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stopWork();
    await this.#pool?.[Symbol.asyncDispose]();
    await this.audit[Symbol.asyncDispose]();
    await this.store[Symbol.asyncDispose]();
  }
}
