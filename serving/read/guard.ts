/** Ends a read from outside: its receiver left, or no row came in time. */
import { ColumnTypeFault, ConnectionLost, ServerFault, type Wire } from '../db/wire.ts';
import type { RowWriter } from '../rendering/representations.ts';
import { ReadFault, StrictRefusal } from './faults.ts';

export class Guard implements Disposable {
  readonly #signal: AbortSignal;
  readonly #timer: NodeJS.Timeout;
  readonly #timeoutMs: number;
  #wire: Wire | undefined;
  #writer: RowWriter | undefined;
  #timedOut = false;
  readonly #onAbort = () => this.#wire?.abandon();

  constructor(signal: AbortSignal, timeoutMs: number) {
    this.#signal = signal;
    this.#timeoutMs = timeoutMs;
    signal.addEventListener('abort', this.#onAbort);
    this.#timer = setTimeout(() => {
      if ((this.#writer?.rows ?? 0) > 0) return;
      this.#timedOut = true;
      this.#wire?.abandon();
    }, timeoutMs);
  }

  get hasFired(): boolean {
    return this.#timedOut || this.#signal.aborted;
  }

  /** The connection that is ended. */
  own(wire: Wire): void {
    this.#wire = wire;
    if (this.hasFired) wire.abandon();
  }

  /** Whose first row stops the clock. */
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
    if (this.#timedOut) return new ReadFault('timeout', `no row within ${this.#timeoutMs} ms`, { cause: error });
    if (error instanceof ColumnTypeFault) return new ReadFault('runtime', error.message, { cause: error });
    if (error instanceof ServerFault || error instanceof ConnectionLost) {
      return new ReadFault('backend', error.message, { cause: error });
    }
    return error;
  }
}
