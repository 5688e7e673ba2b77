/** Waits for what the projector makes of published attempts: of any number at once, by one connection. */
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import type { Catalog } from '../../shared/db/catalog.ts';
import { OUTCOME_CHANNEL, PROJECTOR_CHANNEL, type ProjectorFailure } from '../../shared/db/channels.ts';
import { type Client, connect } from '../../shared/db/connect.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { ProjectorFaults } from './projector-faults.ts';
import { ProjectorWatch } from './projector-watch.ts';

export interface AttemptOutcome {
  readonly state: 'proved' | 'quarantined' | 'refused';
  readonly reason: string | null;
}

/** A notification can be lost with its connection, so the catalog is asked now and then as well. */
const POLL_MS = 1000;
/** Who waits is told so after this long without a sign of life. */
const NOTE_MS = 10_000;

/** Hundreds of small partitions are published within this: they are asked about in one statement. */
const LOOK_AFTER_MS = 20;

const keyOf = (dataset: DatasetDefinition, partition: string, attempt: number) =>
  `${dataset.key}|${partition}|${attempt}`;

interface Waiting extends PromiseWithResolvers<AttemptOutcome> {
  readonly dataset: DatasetDefinition;
  readonly partition: string;
  readonly attempt: number;
}

export interface OutcomesNeeds {
  readonly databaseUrl: string;
  readonly catalog: Catalog;
  readonly signal: AbortSignal;
  /** Nothing proved, and nothing under way, for this long means that no projector is at work. */
  readonly patienceMs: number;
  /** Told who is waited for, when nothing moves. */
  readonly onStill?: (message: string) => void;
}

export class Outcomes implements AsyncDisposable {
  readonly #catalog: Catalog;
  readonly #signal: AbortSignal;
  readonly #patienceMs: number;
  readonly #waiting = new Map<string, Waiting>();
  readonly #watches = new Map<string, ProjectorWatch>();
  /** Datasets of which it was told that nothing moves. */
  readonly #told = new Set<string>();
  readonly #onStill: (message: string) => void;
  readonly #faults = new ProjectorFaults();
  /** Keys to be asked about. */
  readonly #asked = new Set<string>();
  #client: Client | undefined;
  readonly #stopped = new AbortController();

  private constructor(needs: Omit<OutcomesNeeds, 'databaseUrl'>) {
    this.#onStill = needs.onStill ?? (() => {});
    this.#catalog = needs.catalog;
    this.#signal = needs.signal;
    this.#patienceMs = needs.patienceMs;
  }

  static async open(needs: OutcomesNeeds): Promise<Outcomes> {
    const outcomes = new Outcomes(needs);
    await outcomes.#listen(needs.databaseUrl);
    outcomes.#poll();
    return outcomes;
  }

  /**
   * Resolves when the attempt has come to an end.
   * @throws TidemarkError PROJECTOR_FAILED when the dataset's projector fails again and again, PARTITION_TIMEOUT when it
   *   did not move at all; the signal's reason.
   */
  async of(dataset: DatasetDefinition, partition: string, attempt: number): Promise<AttemptOutcome> {
    this.#signal.throwIfAborted();
    const key = keyOf(dataset, partition, attempt);
    const waiting: Waiting = { dataset, partition, attempt, ...Promise.withResolvers<AttemptOutcome>() };
    if (![...this.#waiting.values()].some((one) => one.dataset === dataset)) this.#watchOf(dataset).stepped();
    this.#waiting.set(key, waiting);
    // It may have ended before anybody listened.
    this.#lookSoon(key);
    const abort = () => waiting.reject(this.#signal.reason);
    this.#signal.addEventListener('abort', abort, { once: true });
    try {
      return await waiting.promise;
    } finally {
      this.#signal.removeEventListener('abort', abort);
      this.#waiting.delete(key);
    }
  }

  /** Why nothing of the dataset will be proved; undefined while it may be. */
  faultOf(dataset: DatasetDefinition): TidemarkError | undefined {
    return this.#faults.of(dataset.key);
  }

  /** Asks about it, together with whatever else is asked about at the moment. */
  #lookSoon(key: string): void {
    if (this.#asked.add(key).size > 1) return;
    setTimeout(() => {
      const keys = [...this.#asked];
      this.#asked.clear();
      // A fault here is met again by the next poll.
      this.#look(keys).catch(() => {});
    }, LOOK_AFTER_MS);
  }

  async #look(keys: readonly string[]): Promise<void> {
    const waiting = keys.flatMap((key) => this.#waiting.get(key) ?? []);
    for (const [dataset, some] of Map.groupBy(waiting, (one) => one.dataset)) {
      for (const { partitionKey, attempt, state, reason } of await this.#catalog.attemptStates(dataset, some)) {
        if (state !== 'proved' && state !== 'quarantined' && state !== 'refused') continue;
        const key = keyOf(dataset, partitionKey, attempt);
        this.#waiting.get(key)?.resolve({ state, reason });
        this.#waiting.delete(key);
      }
    }
  }

  async #listen(url: string): Promise<void> {
    const client = await connect({ url, name: 'tidemark outcomes' });
    this.#client = client;
    client.on('notification', ({ channel, payload = '' }) => {
      if (channel === PROJECTOR_CHANNEL) {
        this.#projectorFailed(JSON.parse(payload) as ProjectorFailure);
        return;
      }
      this.#faults.worked(payload.slice(0, payload.indexOf('|')));
      const key = payload.slice(0, payload.lastIndexOf('|'));
      const waiting = this.#waiting.get(key);
      if (!waiting) return;
      this.#watchOf(waiting.dataset).stepped();
      if (payload.endsWith('|proved')) waiting.resolve({ state: 'proved', reason: null });
      else this.#lookSoon(key);
    });
    await client.query(`listen ${OUTCOME_CHANNEL}; listen ${PROJECTOR_CHANNEL}`);
    // Lost connection: polling goes on alone; the outcome is the same, a second later.
    once(client, 'end').catch(() => {});
  }

  #projectorFailed(failure: ProjectorFailure): void {
    const isFirst = this.#faults.failed(failure);
    const waiting = [...this.#waiting.values()].filter(({ dataset }) => dataset.key === failure.dataset);
    if (waiting.length === 0) return;
    if (isFirst) this.#onStill(`${failure.dataset}: its projector failed and starts again: ${failure.message}`);
    const fault = this.#faults.of(failure.dataset);
    if (fault) for (const { reject } of waiting) reject(fault);
  }

  async #poll(): Promise<void> {
    while (!this.#stopped.signal.aborted) {
      // Patience that is shorter is looked at in time, too.
      const pauseMs = Math.min(POLL_MS, this.#patienceMs / 2);
      await delay(pauseMs, undefined, { signal: this.#stopped.signal, ref: false }).catch(() => {});
      await this.#look([...this.#waiting.keys()]).catch(() => {});
      const datasets = new Set([...this.#waiting.values()].map(({ dataset }) => dataset));
      for (const dataset of datasets) await this.#checkPatience(dataset).catch(() => {});
    }
  }

  /** The database may be away for a moment; patience covers it. */
  async #checkPatience(dataset: DatasetDefinition): Promise<void> {
    const watch = this.#watchOf(dataset);
    await watch.look();
    if (watch.stillMs < NOTE_MS) {
      this.#told.delete(dataset.key);
    } else if (!this.#told.has(dataset.key)) {
      this.#told.add(dataset.key);
      this.#onStill(`${dataset.key}: what is published waits to be proved: ${watch.describe()}`);
    }
    if (watch.sinceStepMs < this.#patienceMs) return;
    for (const { dataset: of, partition, attempt, reject } of this.#waiting.values()) {
      if (of !== dataset) continue;
      const message = `${dataset.key} ${partition} attempt ${attempt} was not proved in ${this.#patienceMs / 1000} s`;
      reject(new TidemarkError('PARTITION_TIMEOUT', `${message}: ${watch.describe()}`));
    }
  }

  #watchOf(dataset: DatasetDefinition): ProjectorWatch {
    let watch = this.#watches.get(dataset.key);
    if (!watch) {
      watch = new ProjectorWatch(this.#catalog, dataset);
      this.#watches.set(dataset.key, watch);
    }
    return watch;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped.abort();
    await this.#client?.[Symbol.asyncDispose]();
  }
}
