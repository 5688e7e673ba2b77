/** Ends a read from outside: its receiver left, or rows did not come in time. */
import { ColumnTypeFault, ConnectionLost, ServerFault, type Wire } from '../db/wire.ts';
import type { RowWriter } from '../rendering/representations.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from './faults.ts';

export interface TimeBudget {
  readonly firstRowMs: number;
  /** From one row to the next, while the receiver takes them. */
  readonly nextRowMs: number;
}

export class Guard implements Disposable {
  readonly #signal: AbortSignal;
  readonly #budget: TimeBudget;
  #timer: NodeJS.Timeout;
  #wire: Wire | undefined;
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
  own(wire: Wire): void {
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
