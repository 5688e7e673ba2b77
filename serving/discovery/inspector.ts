/**
 * Looks into the catalog, for the routes that tell what there is. They have slots of their own, so that they answer
 * while long reads run, and like those they are bounded in number and time and see one snapshot.
 */
import { toProblem } from '../http/answer.ts';
import type { ConcurrencyLimiter } from '../limits/concurrency-limiter.ts';
import { ReadDeadline } from '../read/execute/optimistic-read.ts';
import { type SnapshotOptions, Snapshots } from '../read/execute/snapshots.ts';
import type { CoverageProbe } from '../read/snapshot/session.ts';
import { Session } from '../read/snapshot/session.ts';

/** None of these statements depends on how many rows there are. */
const TIMEOUT_MS = 10_000;

const NO_LOOK: Pick<CoverageProbe, 'steps'> = { steps: [] };

export interface Caller {
  readonly signal: AbortSignal;
  /** Password of the restricted role, where rights demand the caller's own. */
  readonly token?: string | undefined;
  /** Of the dataset whose aligned storage is looked at. */
  readonly contractViolationStatus?: number;
}

export class Inspector {
  readonly #snapshots: Snapshots;
  readonly #slots: ConcurrencyLimiter;

  constructor(options: SnapshotOptions & { readonly slots: ConcurrencyLimiter }) {
    this.#snapshots = new Snapshots(options);
    this.#slots = options.slots;
  }

  /** @throws Problem */
  async run<T>(caller: Caller, work: (session: Session) => Promise<T>): Promise<T> {
    return await this.look(caller, () => NO_LOOK, work);
  }

  /** The same, begun by a look at coverage. */
  async look<T, L extends Pick<CoverageProbe, 'steps'>>(
    { signal, token, contractViolationStatus }: Caller,
    look: () => L,
    work: (session: Session, look: L) => Promise<T>,
  ): Promise<T> {
    const slot = await this.#slots.acquire(signal);
    try {
      using guard = new ReadDeadline(signal, { firstRowMs: TIMEOUT_MS, nextRowMs: TIMEOUT_MS });
      try {
        const opened = await this.#snapshots.begin(look, token, guard);
        try {
          const result = await work(new Session(opened.wire), opened.look);
          this.#snapshots.end(opened.wire, token);
          return result;
        } catch (error) {
          this.#snapshots.discard(opened.wire);
          throw error;
        }
      } catch (error) {
        throw toProblem(guard.explain(error), contractViolationStatus);
      }
    } finally {
      slot.release();
    }
  }
}
