/**
 * Reads the newest rows in one round trip instead of two. The read assumes the result of the last coverage probe: it sends
 * a new probe and the statement planned from the last one in one transaction, and uses the rows only if both probes agree.
 */
import type { ReadRequest } from '../../contract/read-request.ts';
import { ConnectionLost, type PgConnection, type RowSink } from '../../db/pg-connection.ts';
import { ColumnTypeFault, ServerFault } from '../../db/pg-messages.ts';
import type { RowWriter } from '../../render/cells.ts';
import { contextOf, type PlanContext } from '../plan/context.ts';
import { type NewestPlan, planNewest } from '../plan/latest.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read-model.ts';
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

export interface TimeBudget {
  readonly firstRowMs: number;
  /** The time from one row to the next, while the receiver takes rows. */
  readonly nextRowMs: number;
}

/** Ends a read from outside: its receiver left, or its rows did not come in time. */
export class ReadDeadline implements Disposable {
  readonly #signal: AbortSignal;
  readonly #budget: TimeBudget;
  #timer: NodeJS.Timeout;
  #connection: PgConnection | undefined;
  #writer: RowWriter | undefined;
  #rowsSeen = 0;
  #timedOut = false;
  readonly #onAbort = () => this.#connection?.abandon();

  constructor(signal: AbortSignal, budget: TimeBudget) {
    this.#signal = signal;
    this.#budget = budget;
    signal.addEventListener('abort', this.#onAbort);
    this.#timer = setTimeout(() => this.#check(), budget.firstRowMs);
  }

  /** Extends the deadline if rows arrived since the last check, or while the receiver holds the database back. */
  #check(): void {
    const rows = this.#writer?.rows ?? 0;
    if (rows > this.#rowsSeen || this.#connection?.isPaused) {
      this.#rowsSeen = rows;
      this.#timer = setTimeout(() => this.#check(), this.#budget.nextRowMs);
      return;
    }
    this.#timedOut = true;
    this.#connection?.abandon();
  }

  get hasFired(): boolean {
    return this.#timedOut || this.#signal.aborted;
  }

  /** Sets the connection that the deadline closes. */
  own(connection: PgConnection): void {
    this.#connection = connection;
    if (this.hasFired) connection.abandon();
  }

  /** Sets the writer whose rows the deadline waits for. */
  watch(writer: RowWriter): void {
    this.#writer = writer;
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
    this.#signal.removeEventListener('abort', this.#onAbort);
  }

  /** Turns a failure into its reason. */
  explain(error: unknown): unknown {
    if (error instanceof ReadFault || error instanceof StrictRefusal) return error;
    if (this.#signal.aborted) return this.#signal.reason;
    if (this.#timedOut)
      return new ReadFault('timeout', `no row came in time after ${this.#rowsSeen} rows`, { cause: error });
    if (error instanceof ColumnTypeFault) return new ReadFault('runtime', error.message, { cause: error });
    if (error instanceof ServerFault) return new ReadFault(kindOf(error.sqlState), error.message, { cause: error });
    if (error instanceof ConnectionLost) return new ReadFault('backend', 'the read is lost', { cause: error });
    return error;
  }
}

function kindOf(sqlState: string): ReadFaultKind {
  switch (sqlState) {
    case '57014': // Canceled. This service cancels nothing, so it was a time-out of the database's own.
      return 'timeout';
    case '42501': // The role may not read this.
      return 'backend';
    default: // Class 42: a table, column or type differs from the registry.
      return sqlState.startsWith('42') ? 'runtime' : 'backend';
  }
}
