/** Awaits the projector's verdict on published attempts: on any number at once, over one connection. */

import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
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
import { whyNeverProved } from './attempts.ts';

/** Failures in a row, about 3 s of them, after which waiting is useless. Fewer may have a cause that passes by itself. */
const HOPELESS = 5;
/** A projector tries again every 5 s at the latest. One that announces nothing for this long has recovered or is gone. */
const FORGOTTEN_MS = 30_000;

interface Failing {
  readonly message: string;
  /** Failures in a row. */
  readonly count: number;
  readonly at: number;
}

/**
 * The failures that projectors announce: why a proof does not come. A projector restarts after each failure. An announcement
 * that is missed does no harm, because the next failure brings another within seconds.
 */
export class ProjectorFaults {
  readonly #failing = new Map<string, Failing>();

  /** @returns whether this is the first failure in a row. */
  failed({ dataset, message }: ProjectorFailure): boolean {
    const before = this.#current(dataset);
    this.#failing.set(dataset, { message, count: (before?.count ?? 0) + 1, at: performance.now() });
    return before === undefined;
  }

  /** Records that the projector ended a partition of the dataset, so it works. */
  worked(dataset: string): void {
    this.#failing.delete(dataset);
  }

  /** Why no proof of the dataset will come; undefined while one may. */
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

/** A projector that is at work and proves nothing is awaited for this many timeouts, which is an hour: it may work in vain for ever. */
const MAX_BUSY_TIMEOUTS = 12;

/**
 * Tells whether a projector is at work. Its checkpoint moves only when a partition is proved, which may take a while. So its
 * connection is watched, too: what it executes, and how far its COPY is.
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
  async poll(): Promise<number> {
    const now = await this.#catalog.projectorActivity(this.#dataset);
    const last = this.#last;
    this.#last = now;
    if (last?.sequence !== now.sequence) this.stepped();
    if (last?.activity !== now.activity || now.isBusy) this.#movedAt = performance.now();
    return now.sequence;
  }

  /** Records that the projector ended a partition, or that none waited for it. */
  stepped(): void {
    this.#steppedAt = performance.now();
    this.#movedAt = this.#steppedAt;
  }

  /** The time since the projector ended a partition. */
  get sinceStepMs(): number {
    return performance.now() - this.#steppedAt;
  }

  /** The time since the last sign of life. */
  get stillMs(): number {
    return performance.now() - this.#movedAt;
  }

  /** The limit that is over, in ms; undefined while a proof may come. Above `timeoutMs` the projector works in vain. */
  limitOver(timeoutMs: number): number | undefined {
    if (this.stillMs >= timeoutMs) return timeoutMs;
    const busyMs = timeoutMs * MAX_BUSY_TIMEOUTS;
    return this.sinceStepMs >= busyMs ? busyMs : undefined;
  }

  /** Describes the projector so that an operator can find it. */
  describe(): string {
    const [unproved, unmoved] = [this.sinceStepMs, this.stillMs].map((ms) => Math.round(ms / 1000));
    const still = `nothing was proved for ${unproved} s, and nothing has moved for ${unmoved} s`;
    const holder = this.#last?.holder;
    if (!holder) return `no projector works on ${this.#dataset.key}, ${still}`;
    const { name, pid, since } = holder;
    return `the lock of its projector is held by "${name}" (server process ${pid}, since ${since.toISOString()}), ${still}`;
  }
}

export type AttemptOutcome =
  | { readonly state: 'proved' | 'quarantined' | 'refused'; readonly reason: string | null }
  /**
   * The wait ended without a verdict: PROJECTOR_FAILED when the projector failed again and again, PARTITION_TIMEOUT when it
   * did not move at all or the log lost the manifest, or the reason of the signal.
   */
  | { readonly state: 'unknown'; readonly error: unknown };

/** A notification can be lost with its connection, so the catalog is polled as well. */
const PROOF_POLL_MS = 1000;
/** After this long without a sign of life the operator is informed, and the log is checked for what is awaited. */
const STILL_MS = 10_000;

/** Hundreds of small partitions are published within this time; one query asks for the states of all of them. */
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
  readonly connection: NatsConnection;
  readonly signal: AbortSignal;
  /** If nothing is proved and nothing is under way for this long, no projector is at work. One at work is awaited 12 times as long. */
  readonly timeoutMs: number;
  /** Longest time without a sign of life before the operator is informed and the log is checked; default STILL_MS. */
  readonly stillMs?: number;
  /** Receives a description of the projector when it shows no sign of life. */
  readonly onStill?: (message: string) => void;
}

export class ProofWaiter implements AsyncDisposable {
  readonly #catalog: Catalog;
  readonly #signal: AbortSignal;
  readonly #connection: NatsConnection;
  readonly #timeoutMs: number;
  readonly #stillMs: number;
  readonly #waiting = new Map<string, Waiting>();
  readonly #watches = new Map<string, ProjectorWatch>();
  /** Datasets whose projector was reported to show no sign of life. */
  readonly #reported = new Set<string>();
  readonly #onStill: (message: string) => void;
  readonly #faults = new ProjectorFaults();
  /** Attempts whose state the next query asks for. */
  readonly #asked = new Set<string>();
  #client: Client | undefined;
  readonly #stopped = new AbortController();

  private constructor(needs: Omit<ProofWaiterOptions, 'databaseUrl'>) {
    this.#onStill = needs.onStill ?? (() => {});
    this.#catalog = needs.catalog;
    this.#signal = needs.signal;
    this.#connection = needs.connection;
    this.#timeoutMs = needs.timeoutMs;
    this.#stillMs = needs.stillMs ?? STILL_MS;
  }

  static async open(needs: ProofWaiterOptions): Promise<ProofWaiter> {
    const outcomes = new ProofWaiter(needs);
    await outcomes.#listen(needs.databaseUrl);
    outcomes.#poll();
    return outcomes;
  }

  /** Resolves when the projector has ended the attempt, or the wait is given up. */
  async of(dataset: DatasetDefinition, partition: string, attempt: number): Promise<AttemptOutcome> {
    const key = keyOf(dataset, partition, attempt);
    // Two documents may await the same attempt: what one published is met again by the next before it is proved.
    const waiting = this.#waiting.get(key) ?? {
      dataset,
      partition,
      attempt,
      ...Promise.withResolvers<AttemptOutcome>(),
    };
    if (![...this.#waiting.values()].some((one) => one.dataset === dataset)) this.#watchOf(dataset).stepped();
    this.#waiting.set(key, waiting);
    // The projector may have ended it before this connection listened.
    this.#pollSoon(key);
    const abort = () => waiting.resolve({ state: 'unknown', error: this.#signal.reason });
    this.#signal.addEventListener('abort', abort, { once: true });
    if (this.#signal.aborted) abort();
    const outcome = await waiting.promise;
    this.#signal.removeEventListener('abort', abort);
    if (this.#waiting.get(key) === waiting) this.#waiting.delete(key);
    return outcome;
  }

  /** Why no proof of the dataset will come; undefined while one may. */
  faultOf(dataset: DatasetDefinition): TidemarkError | undefined {
    return this.#faults.of(dataset.key);
  }

  /** Asks for the state of an attempt, together with those of others that are published at the same time. */
  #pollSoon(key: string): void {
    if (this.#asked.add(key).size > 1) return;
    setTimeout(() => {
      const keys = [...this.#asked];
      this.#asked.clear();
      // The next poll meets a fault again.
      this.#readOutcomes(keys).catch(() => {});
    }, LOOK_AFTER_MS);
  }

  async #readOutcomes(keys: readonly string[]): Promise<void> {
    const waiting = keys.flatMap((key) => this.#waiting.get(key) ?? []);
    for (const [dataset, some] of Map.groupBy(waiting, (one) => one.dataset)) {
      for (const { partitionKey, attempt, state, reason } of await this.#catalog.attemptStates(dataset, some)) {
        if (state === 'publishing' || state === 'published') continue;
        const key = keyOf(dataset, partitionKey, attempt);
        // Another process may have found that the log lost its manifest.
        const error = new TidemarkError('PARTITION_TIMEOUT', `${key} was abandoned: ${reason}`);
        this.#waiting.get(key)?.resolve(state === 'abandoned' ? { state: 'unknown', error } : { state, reason });
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
      else this.#pollSoon(key);
    });
    await client.query(`listen ${OUTCOME_CHANNEL}; listen ${PROJECTOR_CHANNEL}`);
    // Without the connection the polls go on, and an outcome comes a second later.
    once(client, 'end').catch(() => {});
  }

  #projectorFailed(failure: ProjectorFailure): void {
    const isFirst = this.#faults.failed(failure);
    const waiting = [...this.#waiting.values()].filter(({ dataset }) => dataset.key === failure.dataset);
    if (waiting.length === 0) return;
    if (isFirst) this.#onStill(`${failure.dataset}: its projector failed and starts again: ${failure.message}`);
    const fault = this.#faults.of(failure.dataset);
    if (fault) for (const { resolve } of waiting) resolve({ state: 'unknown', error: fault });
  }

  async #poll(): Promise<void> {
    while (!this.#stopped.signal.aborted) {
      // A timeout shorter than the poll's pause is noticed in time, too.
      const pauseMs = Math.min(PROOF_POLL_MS, this.#timeoutMs / 2);
      await delay(pauseMs, undefined, { signal: this.#stopped.signal, ref: false }).catch(() => {});
      await this.#readOutcomes([...this.#waiting.keys()]).catch(() => {});
      const datasets = new Set([...this.#waiting.values()].map(({ dataset }) => dataset));
      for (const dataset of datasets) await this.#checkTimeout(dataset).catch(() => {});
    }
  }

  /** A query that fails is repeated with the next poll, because the timeout is longer than a short outage. */
  async #checkTimeout(dataset: DatasetDefinition): Promise<void> {
    const watch = this.#watchOf(dataset);
    await watch.poll();
    if (watch.stillMs < this.#stillMs) {
      this.#reported.delete(dataset.key);
    } else {
      if (!this.#reported.has(dataset.key)) {
        this.#onStill(`${dataset.key}: published partitions wait for their proof: ${watch.describe()}`);
      }
      this.#reported.add(dataset.key);
      // A log that is unavailable is checked again with the next poll.
      await this.#checkLog(dataset).catch(() => {});
    }
    const limitMs = watch.limitOver(this.#timeoutMs);
    if (limitMs === undefined) return;
    for (const { partition, attempt, resolve } of this.#waitingOf(dataset)) {
      const message = `${dataset.key} ${partition} attempt ${attempt} was not proved in ${limitMs / 1000} s`;
      const error = new TidemarkError('PARTITION_TIMEOUT', `${message}: ${watch.describe()}`);
      resolve({ state: 'unknown', error });
    }
  }

  /**
   * A crash of nats-server can take manifests that it had acknowledged, and nothing proves what the log lost. Mostly it takes
   * the end of the log, so the newest are checked first, up to one that the log holds.
   */
  async #checkLog(dataset: DatasetDefinition): Promise<void> {
    const manager = await jetstreamManager(this.#connection, { checkAPI: false });
    for (const { partition, attempt, resolve } of this.#waitingOf(dataset).reverse()) {
      const row = await this.#catalog.attempt(dataset, partition, attempt);
      if (row?.state !== 'published') continue;
      const reason = await whyNeverProved(this.#catalog, manager, dataset, row);
      if (reason === undefined) return;
      // Followed sources ask for what is neither published nor ended. A projector may have proved it meanwhile.
      const isAbandoned = await this.#catalog.abandonAttempt(dataset, partition, attempt, reason, 'published');
      if (isAbandoned) resolve({ state: 'unknown', error: new TidemarkError('PARTITION_TIMEOUT', reason) });
    }
  }

  #waitingOf(dataset: DatasetDefinition): Waiting[] {
    return [...this.#waiting.values()].filter((waiting) => waiting.dataset === dataset);
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
