/** The time that a read has, and why it ended when it was ended from outside. */
import { ConnectionLost, type PgConnection } from '../../db/pg-connection.ts';
import { ColumnTypeFault, ServerFault } from '../../db/pg-messages.ts';
import type { RowWriter } from '../../render/cells.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read-model.ts';

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
  readonly #connections = new Set<PgConnection>();
  #writer: RowWriter | undefined;
  #rowsSeen = 0;
  #timedOut = false;
  readonly #onAbort = () => this.#abandon();

  constructor(signal: AbortSignal, budget: TimeBudget) {
    this.#signal = signal;
    this.#budget = budget;
    signal.addEventListener('abort', this.#onAbort);
    this.#timer = setTimeout(() => this.#check(), budget.firstRowMs);
  }

  /** Extends the deadline if rows arrived since the last check, or while the receiver holds the database back. */
  #check(): void {
    const rows = this.#writer?.rows ?? 0;
    if (rows > this.#rowsSeen || [...this.#connections].some(({ isPaused }) => isPaused)) {
      this.#rowsSeen = rows;
      this.#timer = setTimeout(() => this.#check(), this.#budget.nextRowMs);
      return;
    }
    this.#timedOut = true;
    this.#abandon();
  }

  #abandon(): void {
    for (const connection of this.#connections) connection.abandon();
  }

  get hasFired(): boolean {
    return this.#timedOut || this.#signal.aborted;
  }

  /** Adds a connection that the deadline closes. */
  own(connection: PgConnection): void {
    this.#connections.add(connection);
    if (this.hasFired) connection.abandon();
  }

  /** Leaves alone a connection that the read no longer uses. */
  disown(connection: PgConnection): void {
    this.#connections.delete(connection);
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
