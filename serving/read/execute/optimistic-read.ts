/**
 * The newest rows in one round trip instead of two. What the last look at coverage said is taken for true, the read it
 * leads to is sent along with the new look, in one transaction, and its rows are used only if both looks agree.
 */
import type { ReadRequest } from '../../contract/read-request.ts';
import {
  ColumnTypeFault,
  ConnectionLost,
  type PgConnection,
  type RowSink,
  ServerFault,
} from '../../db/pg-connection.ts';
import type { RowWriter } from '../../render/cells.ts';
import { contextOf, type PlanContext } from '../plan/context.ts';
import { type NewestPlan, planNewest } from '../plan/latest.ts';
import type { CoverageProbe, Snapshot } from '../snapshot/session.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../types.ts';

export interface Seen {
  readonly signature: string;
  readonly snapshot: Snapshot;
}

export interface GuessedPlan {
  readonly context: PlanContext;
  readonly plan: NewestPlan;
}

/** Plans kept for one look: as many kinds of request for the newest rows as are likely to come again. */
const MAX_PLANS = 32;

/** The last look at each dataset and mode, and the plans it led to. */
export class ProbeCache {
  readonly #seen = new Map<string, Seen & { readonly plans: Map<string, GuessedPlan | undefined> }>();

  of(request: ReadRequest): Seen | undefined {
    return this.#seen.get(keyOf(request));
  }

  note(request: ReadRequest, look: CoverageProbe): void {
    const { signature } = look;
    if (this.of(request)?.signature === signature) return;
    this.#seen.set(keyOf(request), { signature, snapshot: look.snapshot(), plans: new Map() });
  }

  forget(request: ReadRequest): void {
    this.#seen.delete(keyOf(request));
  }

  /** How the newest rows are read if the last look still holds. Undefined: look first. */
  planOf(request: ReadRequest & { readonly window: { readonly kind: 'latest' } }): GuessedPlan | undefined {
    const seen = this.#seen.get(keyOf(request));
    if (!seen || seen.snapshot.violation !== undefined) return undefined;
    const { rows } = request.window;
    const key = [rows, ...request.fields.map((field) => field.name)].join(' ');
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

/** The rows of a read that was sent on a guess; dropped when the look before them says otherwise. */
export class OptimisticRows implements RowSink {
  readonly #isRight: () => boolean;
  readonly #start: () => RowSink;
  #sink: RowSink | undefined;
  #checked = false;

  constructor(isRight: () => boolean, start: () => RowSink) {
    this.#isRight = isRight;
    this.#start = start;
  }

  /** Rows came and were used. */
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

/* Ends a read from outside: its receiver left, or rows did not come in time. */

export interface TimeBudget {
  readonly firstRowMs: number;
  /** From one row to the next, while the receiver takes them. */
  readonly nextRowMs: number;
}

export class ReadDeadline implements Disposable {
  readonly #signal: AbortSignal;
  readonly #budget: TimeBudget;
  #timer: NodeJS.Timeout;
  #wire: PgConnection | undefined;
  #writer: RowWriter | undefined;
  #rowsSeen = 0;
  #timedOut = false;
  readonly #onAbort = () => this.#wire?.abandon();

  constructor(signal: AbortSignal, budget: TimeBudget) {
    this.#signal = signal;
    this.#budget = budget;
    signal.addEventListener('abort', this.#onAbort);
    this.#timer = setTimeout(() => this.#look(), budget.firstRowMs);
  }

  /** A database that found rows since the last look, or is held back, gets more time. */
  #look(): void {
    const rows = this.#writer?.rows ?? 0;
    if (rows > this.#rowsSeen || this.#wire?.isPaused) {
      this.#rowsSeen = rows;
      this.#timer = setTimeout(() => this.#look(), this.#budget.nextRowMs);
      return;
    }
    this.#timedOut = true;
    this.#wire?.abandon();
  }

  get hasFired(): boolean {
    return this.#timedOut || this.#signal.aborted;
  }

  /** The connection that is ended. */
  own(wire: PgConnection): void {
    this.#wire = wire;
    if (this.hasFired) wire.abandon();
  }

  /** Whose rows are what is waited for. */
  watch(writer: RowWriter): void {
    this.#writer = writer;
  }

  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
    this.#signal.removeEventListener('abort', this.#onAbort);
  }

  /** The reason behind what a failure looks like. */
  explain(error: unknown): unknown {
    if (error instanceof ReadFault || error instanceof StrictRefusal) return error;
    if (this.#signal.aborted) return this.#signal.reason;
    if (this.#timedOut) return new ReadFault('timeout', `no row in time, after ${this.#rowsSeen}`, { cause: error });
    if (error instanceof ColumnTypeFault) return new ReadFault('runtime', error.message, { cause: error });
    if (error instanceof ServerFault) return new ReadFault(kindOf(error.sqlState), error.message, { cause: error });
    if (error instanceof ConnectionLost) return new ReadFault('backend', error.message, { cause: error });
    return error;
  }
}

function kindOf(sqlState: string): ReadFaultKind {
  switch (sqlState) {
    case '57014': // cancelled: by nobody here, so by a time-out of the database's own
      return 'timeout';
    case '42501': // a role that may not read this
      return 'backend';
    default: // class 42: a table, column or type is not what the registry says
      return sqlState.startsWith('42') ? 'runtime' : 'backend';
  }
}
