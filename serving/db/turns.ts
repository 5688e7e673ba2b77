/**
 * Long results take turns. A socket that always has more is read 32 times before the event loop looks at anything else,
 * and rows are rendered as they are read: 20 to 45 ms of processor, in which no other answer moves. So a connection
 * stops after a slice of work, and of those that stopped one goes on in each turn of the loop.
 */

/** Work on one connection's rows before others get their turn, ms. A read of a few hundred rows takes less. */
export const SLICE_MS = 2;

export class Turns {
  readonly #waiting: (() => void)[] = [];

  /** `goOn` is called in a later turn of the event loop, after those that wait already, no two of them in one turn. */
  wait(goOn: () => void): void {
    this.#waiting.push(goOn);
    if (this.#waiting.length === 1) setImmediate(this.#next);
  }

  readonly #next = () => {
    this.#waiting.shift()?.();
    if (this.#waiting.length > 0) setImmediate(this.#next);
  };
}
