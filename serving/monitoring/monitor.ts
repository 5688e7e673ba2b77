/**
 * The state of the whole system, as the catalog and the log have it. The monitor collects it on demand, at most every few
 * seconds, over a connection of its own, so that neither scrapes nor open pages cause load or take a slot from a read. It also
 * keeps samples of the last hour for plots, in memory and bounded.
 */

import type { JetStreamManager } from '@nats-io/jetstream';
import { type Client, connect } from '../../shared/db/connect.ts';
import { explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { LogFactsReader } from '../../shared/status/log-facts.ts';
import { type Overview, readState, type State, type Storage } from '../../shared/status/state.ts';

const HISTORY_MS = 3_600_000;
/** Requests of the page add samples too; samples closer together than this are dropped. */
const MIN_DISTANCE_MS = 10_000;

/** One number of one dataset over time; null where it was unknown. */
type SampleSeries = readonly (number | null)[];

/** The numbers that each sample holds per dataset. */
const SERIES = {
  lag_frames: ({ log }) => log?.lag.frames ?? null,
  lag_events: ({ log }) => log?.lag.events ?? null,
  lag_event_time_seconds: ({ log }) => log?.lag.event_time_seconds ?? null,
  lag_oldest_seconds: ({ log }) => log?.lag.oldest_seconds ?? null,
  freshness_seconds: ({ proved_through_utc: through }, atMs) =>
    through === null ? null : Math.max(0, (atMs - Date.parse(through)) / 1000),
  rows: ({ rows }) => rows,
} as const satisfies Record<string, (overview: Overview, atMs: number) => number | null>;

export type SeriesName = keyof typeof SERIES;

interface StatusSample {
  readonly atMs: number;
  /** Values by dataset. */
  readonly values: ReadonlyMap<string, Readonly<Record<SeriesName, number | null>>>;
}

class History {
  #samples: StatusSample[] = [];

  add({ atMs, statuses }: Pick<State, 'atMs' | 'statuses'>): void {
    const last = this.#samples.at(-1);
    if (last && atMs - last.atMs < MIN_DISTANCE_MS) return;
    const values = new Map(statuses.map(({ overview }) => [overview.dataset, valuesOf(overview, atMs)]));
    this.#samples = [...this.#samples.filter((sample) => atMs - sample.atMs <= HISTORY_MS), { atMs, values }];
  }

  get atMs(): readonly number[] {
    return this.#samples.map((sample) => sample.atMs);
  }

  of(dataset: string): Readonly<Record<SeriesName, SampleSeries>> {
    return eachSeries((name) => this.#samples.map(({ values }) => values.get(dataset)?.[name] ?? null));
  }
}

export function eachSeries<T>(of: (name: SeriesName) => T): Record<SeriesName, T> {
  const names = Object.keys(SERIES) as SeriesName[];
  return Object.fromEntries(names.map((name): [string, T] => [name, of(name)])) as Record<SeriesName, T>;
}

const valuesOf = (overview: Overview, atMs: number) => eachSeries((name) => SERIES[name](overview, atMs));

/** A collected status is cached for this long. */
const CACHE_MS = 5000;
/** Interval of the samples for plots; each is a collection. */
export const SAMPLE_INTERVAL_MS = 15_000;
/** Its storage, for this long. */
const STORAGE_CACHE_MS = 60_000;
const STATEMENT_TIMEOUT_MS = 5000;
/** A database that falls silent ends no statement, and TCP gives it up after a quarter of an hour. */
const COLLECT_TIMEOUT_MS = 7000;

interface MonitorDeps {
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
  /** `untilMs` is infinite while the collection is pending: no other may begin on its connection. */
  #cached: { untilMs: number; readonly status: Promise<State> } | undefined;
  #storage: { readonly at: number; readonly storage: Storage } | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(deps: MonitorDeps) {
    this.#deps = deps;
  }

  /** Starts to take samples. */
  start(): void {
    const sample = () =>
      this.status().catch((error) =>
        this.#deps.log.debug({ err: explain(error) }, 'the monitor could not take a sample'),
      );
    void sample();
    this.#timer = setInterval(sample, SAMPLE_INTERVAL_MS);
    this.#timer.unref();
  }

  /** @throws the database's error. */
  status(): Promise<State> {
    const now = performance.now();
    if (!this.#cached || now > this.#cached.untilMs) {
      const cached = { untilMs: Number.POSITIVE_INFINITY, status: this.#collect() };
      this.#cached = cached;
      cached.status.then(
        () => {
          cached.untilMs = now + CACHE_MS;
        },
        // A failure is not cached: the next call tries again.
        () => {
          this.#cached = undefined;
        },
      );
    }
    return this.#cached.status;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#timer);
    await this.#cached?.status.catch(() => {});
    await this.#disconnect();
  }

  async #disconnect(): Promise<void> {
    const client = this.#client;
    this.#client = undefined;
    await client?.[Symbol.asyncDispose]();
  }

  async #collect(): Promise<State> {
    const startedAt = performance.now();
    let timer: NodeJS.Timeout | undefined;
    try {
      const client = await this.#connected();
      timer = setTimeout(() => void this.#disconnect(), COLLECT_TIMEOUT_MS);
      const isRecent = this.#storage !== undefined && startedAt - this.#storage.at < STORAGE_CACHE_MS;
      const storage = isRecent ? this.#storage?.storage : undefined;
      const status = await readState(client, this.#deps.manager, { logs: this.#logs, now: this.#deps.now, storage });
      if (storage === undefined) this.#storage = { at: startedAt, storage: status };
      this.history.add(status);
      return status;
    } catch (error) {
      // Not awaited: a server that does not answer does not answer this either.
      void this.#disconnect();
      throw error;
    } finally {
      clearTimeout(timer);
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
}
