/**
 * How the whole system stands, as this process knows it from the catalog and the log: asked for by whoever looks, at
 * most every few seconds, over one connection of its own, so that neither scrapes nor open pages are load, and none of
 * them takes a slot from a read.
 */

import type { JetStreamManager } from '@nats-io/jetstream';
import { type Client, connect } from '../../shared/db/connect.ts';
import type { RunRow } from '../../shared/db/runs.ts';
import { explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import {
  collect,
  type DatasetStatus,
  type ExportCounts,
  type Overview,
  readDatabaseBytes,
  readExports,
  readRuns,
} from '../../shared/status/collect.ts';
import { LogFactsReader } from '../../shared/status/log-facts.ts';

/* The last hour in samples, for plots: bounded, in memory, begun again with the process. */

const KEPT_MS = 3_600_000;
/** Looks at the page add samples of their own; no more than this many are kept apart. */
const MIN_DISTANCE_MS = 10_000;

/** One number of one dataset over time; null where it was not known. */
export type Series = readonly (number | null)[];

/** What of a dataset is kept. */
const KEPT = {
  lag_frames: ({ log }) => log?.lag.frames ?? null,
  lag_events: ({ log }) => log?.lag.events ?? null,
  lag_event_time_seconds: ({ log }) => log?.lag.event_time_seconds ?? null,
  lag_oldest_seconds: ({ log }) => log?.lag.oldest_seconds ?? null,
  freshness_seconds: ({ proved_through_utc: through }, atMs) =>
    through === null ? null : Math.max(0, (atMs - Date.parse(through)) / 1000),
  rows: ({ rows }) => rows,
} as const satisfies Record<string, (overview: Overview, atMs: number) => number | null>;

export type KeptName = keyof typeof KEPT;

interface Sample {
  readonly atMs: number;
  /** By dataset. */
  readonly values: ReadonlyMap<string, Readonly<Record<KeptName, number | null>>>;
}

export class History {
  #samples: Sample[] = [];

  add({ atMs, standings }: Pick<SystemStatus, 'atMs' | 'standings'>): void {
    const last = this.#samples.at(-1);
    if (last && atMs - last.atMs < MIN_DISTANCE_MS) return;
    const values = new Map(standings.map(({ overview }) => [overview.dataset, valuesOf(overview, atMs)]));
    this.#samples = [...this.#samples.filter((sample) => atMs - sample.atMs <= KEPT_MS), { atMs, values }];
  }

  get atMs(): readonly number[] {
    return this.#samples.map((sample) => sample.atMs);
  }

  of(dataset: string): Readonly<Record<KeptName, Series>> {
    return eachKept((name) => this.#samples.map(({ values }) => values.get(dataset)?.[name] ?? null));
  }
}

export function eachKept<T>(of: (name: KeptName) => T): Record<KeptName, T> {
  const names = Object.keys(KEPT) as KeptName[];
  return Object.fromEntries(names.map((name): [string, T] => [name, of(name)])) as Record<KeptName, T>;
}

const valuesOf = (overview: Overview, atMs: number) => eachKept((name) => KEPT[name](overview, atMs));

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
  readonly standings: readonly DatasetStatus[];
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
