/**
 * How the whole system stands, as this process knows it from the catalog and the log: asked for by whoever looks, at
 * most every few seconds, over one connection of its own, so that neither scrapes nor open pages are load, and none of
 * them takes a slot from a read.
 */
import type { JetStreamManager } from '@nats-io/jetstream';
import type { Client } from '../../shared/db/connect.ts';
import { connect } from '../../shared/db/connect.ts';
import type { RunRow } from '../../shared/db/runs.ts';
import { explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log/logger.ts';
import { collect, type Standing } from '../../shared/status/collect.ts';
import { LogFactsReader } from '../../shared/status/log-facts.ts';
import { type ExportCounts, readDatabaseBytes, readExports, readRuns } from '../../shared/status/system-facts.ts';

import { History } from './history.ts';

/** What was found is shown again for this long. */
const KEEP_MS = 5000;
/** A sample for the plots this often; each is a collection. */
export const SAMPLE_INTERVAL_MS = 15_000;
/** Files of a database are counted one by one: a tenth of a second where there are thousands of chunks. */
const DATABASE_SIZE_KEEP_MS = 60_000;
const STATEMENT_TIMEOUT_MS = 5000;

export interface SystemStatus {
  readonly atMs: number;
  readonly collectMs: number;
  readonly standings: readonly Standing[];
  readonly logFault: string | undefined;
  readonly databaseBytes: number;
  /** Newest first; those at work are among them. */
  readonly runs: readonly RunRow[];
  /** Undefined until there is a table of them. */
  readonly exports: ExportCounts | undefined;
}

export interface MonitorDeps {
  readonly databaseUrl: string;
  readonly manager: () => Promise<JetStreamManager>;
  readonly log: Logger;
  readonly now?: () => number;
}

export class Monitor implements AsyncDisposable {
  readonly history = new History();
  readonly #deps: MonitorDeps;
  readonly #logs = new LogFactsReader();
  #client: Client | undefined;
  #kept: { readonly at: number; readonly status: Promise<SystemStatus> } | undefined;
  #databaseBytes: { readonly at: number; readonly bytes: number } | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: MonitorDeps) {
    this.#deps = deps;
  }

  /** Takes samples from now on. */
  start(): void {
    const sample = () => this.status().catch((error) => this.#deps.log.debug({ err: explain(error) }, 'no sample'));
    void sample();
    this.#timer = setInterval(sample, SAMPLE_INTERVAL_MS);
    this.#timer.unref();
  }

  /** @throws what the database says. */
  status(): Promise<SystemStatus> {
    const now = performance.now();
    if (!this.#kept || now - this.#kept.at > KEEP_MS) {
      const status = this.#collect();
      const kept = { at: now, status };
      this.#kept = kept;
      // A failure is not kept: the next one who asks tries again.
      status.catch(() => {
        if (this.#kept === kept) this.#kept = undefined;
      });
    }
    return this.#kept.status;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    await this.#kept?.status.catch(() => {});
    await this.#client?.[Symbol.asyncDispose]();
  }

  async #collect(): Promise<SystemStatus> {
    const startedAt = performance.now();
    try {
      const client = await this.#connected();
      const collected = await collect(client, this.#deps.manager, { logs: this.#logs, now: this.#deps.now });
      const status = {
        ...collected,
        databaseBytes: await this.#sizeOf(client),
        runs: await readRuns(client),
        exports: await readExports(client),
        collectMs: performance.now() - startedAt,
      };
      this.history.add(status);
      return status;
    } catch (error) {
      await this.#client?.[Symbol.asyncDispose]();
      this.#client = undefined;
      throw error;
    }
  }

  async #connected(): Promise<Client> {
    if (!this.#client) {
      const client = await connect({
        url: this.#deps.databaseUrl,
        name: 'tidemark monitoring',
        connectTimeoutMs: 5000,
      });
      await client.query(`set statement_timeout = ${STATEMENT_TIMEOUT_MS}`);
      this.#client = client;
    }
    return this.#client;
  }

  async #sizeOf(client: Client): Promise<number> {
    const at = performance.now();
    if (!this.#databaseBytes || at - this.#databaseBytes.at > DATABASE_SIZE_KEEP_MS) {
      this.#databaseBytes = { at, bytes: await readDatabaseBytes(client) };
    }
    return this.#databaseBytes.bytes;
  }
}
