/**
 * Inspects the catalog, for the discovery routes. They have a limiter of their own, so that they answer while long reads run;
 * like reads they are bounded in number and time, and each sees one snapshot.
 */
import { toProblem } from '../http/answer.ts';
import type { Caller } from '../http/caller.ts';
import type { ConcurrencyLimiter } from '../limits/concurrency-limiter.ts';
import { ReadDeadline } from '../read/execute/read-deadline.ts';
import type { CoverageProbe } from '../read/snapshot/session.ts';
import { Session, type SnapshotOptions, Snapshots } from '../read/snapshot/session.ts';

/** The cost of these statements does not depend on the number of rows. */
const TIMEOUT_MS = 10_000;

const NO_PROBE: Pick<CoverageProbe, 'steps'> = { steps: [] };

interface Inspection {
  readonly signal: AbortSignal;
  readonly caller: Caller;
  /** Password of the restricted role, for datasets whose rights demand the caller's own. */
  readonly token?: string | undefined;
}

export class Inspector {
  readonly #snapshots: Snapshots;
  readonly #limiter: ConcurrencyLimiter;

  constructor(options: SnapshotOptions & { readonly limiter: ConcurrencyLimiter }) {
    this.#snapshots = new Snapshots(options);
    this.#limiter = options.limiter;
  }

  /** Runs the work in a snapshot. @throws Problem */
  async run<T>(inspection: Inspection, work: (session: Session) => Promise<T>): Promise<T> {
    return await this.inspect(inspection, () => NO_PROBE, work);
  }

  /** Runs the work in a snapshot that begins with a coverage probe. */
  async inspect<T, L extends Pick<CoverageProbe, 'steps'>>(
    { signal, caller, token }: Inspection,
    probe: () => L,
    work: (session: Session, probe: L) => Promise<T>,
  ): Promise<T> {
    const slot = await this.#limiter.acquire(signal, 'any', caller.name ?? '');
    try {
      using deadline = new ReadDeadline(signal, { firstRowMs: TIMEOUT_MS, nextRowMs: TIMEOUT_MS });
      try {
        const opened = await this.#snapshots.begin(probe, token, deadline);
        try {
          const result = await work(new Session(opened.connection), opened.probe);
          this.#snapshots.end(opened.connection, token);
          return result;
        } catch (error) {
          this.#snapshots.discard(opened.connection);
          throw error;
        }
      } catch (error) {
        throw toProblem(deadline.explain(error));
      }
    } finally {
      slot.release();
    }
  }
}
