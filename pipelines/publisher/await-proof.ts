/** Waits for what the projector makes of published attempts: of any number at once, by one connection. */

import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import type { Catalog, ProjectorActivity } from '../../shared/db/catalog.ts';
import {
  type Client,
  connect,
  OUTCOME_CHANNEL,
  PROJECTOR_CHANNEL,
  type ProjectorFailure,
} from '../../shared/db/connect.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

/*
 * What projectors say of their own failures. A projector starts again after every failure, and announces it; a command
 * that waits for a proof learns here why none comes. Announcements carry no state: one that is missed comes again with
 * the next failure, within seconds.
 */

/** Failures in a row, about 3 s of them, after which waiting is useless. Before that the cause may pass by itself. */
const HOPELESS = 5;
/** A projector tries again every 5 s at the latest: one that is silent for longer has recovered, or is gone. */
const FORGOTTEN_MS = 30_000;

interface Failing {
  readonly message: string;
  /** Failures in a row. */
  readonly count: number;
  readonly at: number;
}

export class ProjectorFaults {
  readonly #failing = new Map<string, Failing>();

  /** @returns whether this is the first failure in a row. */
  failed({ dataset, message }: ProjectorFailure): boolean {
    const before = this.#current(dataset);
    this.#failing.set(dataset, { message, count: (before?.count ?? 0) + 1, at: performance.now() });
    return before === undefined;
  }

  /** A partition of the dataset came to its end: its projector works. */
  worked(dataset: string): void {
    this.#failing.delete(dataset);
  }

  /** Why nothing of the dataset will be proved; undefined while it may be. */
  of(dataset: string): TidemarkError | undefined {
    const failing = this.#current(dataset);
    if (failing === undefined || failing.count < HOPELESS) return undefined;
    const message = `The projector of ${dataset} failed ${failing.count} times in a row: ${failing.message}`;
    return new TidemarkError('PROJECTOR_FAILED', message, { details: { dataset } });
  }

  #current(dataset: string): Failing | undefined {
    const failing = this.#failing.get(dataset);
    return failing && performance.now() - failing.at <= FORGOTTEN_MS ? failing : undefined;
  }
}

/*
 * Whether anything goes on where the log is projected. The checkpoint moves only when a partition is proved, which may
 * take a while; so the connection that projects is looked at, too: what it does, and how far its COPY is.
 */

export class ProjectorWatch {
  readonly #catalog: Catalog;
  readonly #dataset: DatasetDefinition;
  #last: ProjectorActivity | undefined;
  #steppedAt = performance.now();
  #movedAt = this.#steppedAt;

  constructor(catalog: Catalog, dataset: DatasetDefinition) {
    this.#catalog = catalog;
    this.#dataset = dataset;
  }

  /** @returns the checkpoint. */
  async look(): Promise<number> {
    const now = await this.#catalog.projectorActivity(this.#dataset);
    const last = this.#last;
    this.#last = now;
    if (last?.sequence !== now.sequence) this.stepped();
    if (last?.mark !== now.mark || now.isBusy) this.#movedAt = performance.now();
    return now.sequence;
  }

  /** Something was proved, or there was nothing to be: counted from now. */
  stepped(): void {
    this.#steppedAt = performance.now();
    this.#movedAt = this.#steppedAt;
  }

  /** How long nothing has come to its end. */
  get sinceStepMs(): number {
    return performance.now() - this.#steppedAt;
  }

  /** How long there has been no sign of life. */
  get stillMs(): number {
    return performance.now() - this.#movedAt;
  }

  /** Who is waited for, as an operator would look for it. */
  describe(): string {
    const still = `nothing has moved for ${Math.round(this.stillMs / 1000)} s`;
    const holder = this.#last?.holder;
    if (!holder) return `nobody projects ${this.#dataset.key}, ${still}`;
    const { name, pid, since } = holder;
    return `the lock of its projector is held by "${name}" (server process ${pid}, since ${since.toISOString()}), ${still}`;
  }
}

export interface AttemptOutcome {
  readonly state: 'proved' | 'quarantined' | 'refused';
  readonly reason: string | null;
}

/** A notification can be lost with its connection, so the catalog is asked now and then as well. */
const PROOF_POLL_MS = 1000;
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

export interface ProofWaiterOptions {
  readonly databaseUrl: string;
  readonly catalog: Catalog;
  readonly signal: AbortSignal;
  /** Nothing proved, and nothing under way, for this long means that no projector is at work. */
  readonly patienceMs: number;
  /** Told who is waited for, when nothing moves. */
  readonly onStill?: (message: string) => void;
}

export class ProofWaiter implements AsyncDisposable {
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

  private constructor(needs: Omit<ProofWaiterOptions, 'databaseUrl'>) {
    this.#onStill = needs.onStill ?? (() => {});
    this.#catalog = needs.catalog;
    this.#signal = needs.signal;
    this.#patienceMs = needs.patienceMs;
  }

  static async open(needs: ProofWaiterOptions): Promise<ProofWaiter> {
    const outcomes = new ProofWaiter(needs);
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
      const pauseMs = Math.min(PROOF_POLL_MS, this.#patienceMs / 2);
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
