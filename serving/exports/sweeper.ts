/** What is put right from time to time: jobs whose message was lost, artifacts whose time is over, what the dead left. */
import type { Logger } from '../../shared/log/logger.ts';
import { AUDIT_EVENTS, type ExportAudit } from './audit.ts';
import type { ExportPlaces } from './places.ts';
import type { QueueConnection } from './queue-connection.ts';
import type { ExportStore } from './store.ts';

export interface SweeperOptions {
  readonly store: ExportStore;
  readonly queue: QueueConnection;
  readonly places: ExportPlaces;
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
