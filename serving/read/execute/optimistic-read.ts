/**
 * Reads the newest rows in one round trip instead of two. The read assumes the result of the last coverage probe: it sends
 * a new probe and the statement planned from the last one in one transaction, and uses the rows only if both probes agree.
 */
import type { ReadRequest } from '../../contract/read-request.ts';
import type { RowSink } from '../../db/pg-connection.ts';
import { contextOf, type PlanContext } from '../plan/context.ts';
import { type NewestPlan, planNewest } from '../plan/latest.ts';
import type { CoverageProbe, Snapshot } from '../snapshot/session.ts';

interface SeenCoverage {
  readonly signature: string;
  readonly snapshot: Snapshot;
}

interface OptimisticPlan {
  readonly context: PlanContext;
  readonly plan: NewestPlan;
}

/** Plans cached per probe: enough for the kinds of request for the newest rows that are likely to come again. */
const MAX_PLANS = 32;

/** The last probe of each dataset and mode, and the plans made from it. */
export class ProbeCache {
  readonly #seen = new Map<string, SeenCoverage & { readonly plans: Map<string, OptimisticPlan | undefined> }>();

  of(request: ReadRequest): SeenCoverage | undefined {
    return this.#seen.get(keyOf(request));
  }

  note(request: ReadRequest, probe: CoverageProbe): void {
    const { signature } = probe;
    if (this.of(request)?.signature === signature) return;
    this.#seen.set(keyOf(request), { signature, snapshot: probe.snapshot(), plans: new Map() });
  }

  forget(request: ReadRequest): void {
    this.#seen.delete(keyOf(request));
  }

  /** The plan for the newest rows if the last probe still holds. Undefined: the read must probe first. */
  planOf(request: ReadRequest & { readonly window: { readonly kind: 'latest' } }): OptimisticPlan | undefined {
    const seen = this.#seen.get(keyOf(request));
    if (!seen || seen.snapshot.violation !== undefined) return undefined;
    // Warnings name the selector, which differs between routes.
    const { rows, selector } = request.window;
    const key = [selector, rows, ...request.fields.map((field) => field.name)].join(' ');
    if (!seen.plans.has(key)) {
      if (seen.plans.size >= MAX_PLANS) seen.plans.clear();
      const context = contextOf(request, seen.snapshot);
      const plan = planNewest(context, rows);
      seen.plans.set(key, plan && { context, plan });
    }
    return seen.plans.get(key);
  }
}

const keyOf = ({ dataset, mode }: ReadRequest) => `${dataset.number} ${mode}`;

/** Receives the rows of a read that was sent optimistically, and drops them if the probe before them shows a change. */
export class OptimisticRows implements RowSink {
  readonly #isRight: () => boolean;
  readonly #start: () => RowSink;
  #sink: RowSink | undefined;
  #checked = false;

  constructor(isRight: () => boolean, start: () => RowSink) {
    this.#isRight = isRight;
    this.#start = start;
  }

  /** Whether rows arrived and were used. */
  get used(): boolean {
    return this.#sink !== undefined;
  }

  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    if (!this.#checked) {
      this.#checked = true;
      if (this.#isRight()) this.#sink = this.#start();
    }
    this.#sink?.row(view, bytes, at, length);
  }
}
