/**
 * What projectors say of their own failures. A projector starts again after every failure, and announces it; a command
 * that waits for a proof learns here why none comes. Announcements carry no state: one that is missed comes again with
 * the next failure, within seconds.
 */
import type { ProjectorFailure } from '../../shared/db/channels.ts';
import { TidemarkError } from '../../shared/errors.ts';

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
