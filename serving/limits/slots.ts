/** Read slots: so many run, so many wait, one more is refused at once. */
import { Problem, type ProblemCode } from '../contract/problems.ts';

export interface SlotOptions {
  readonly running: number;
  readonly waiting: number;
  readonly timeoutMs: number;
  readonly code: ProblemCode;
}

interface Waiter {
  readonly admit: () => void;
}

export class Slots {
  readonly #options: SlotOptions;
  readonly #queue = new Set<Waiter>();
  #running = 0;

  constructor(options: SlotOptions) {
    this.#options = options;
  }

  get load(): { readonly running: number; readonly waiting: number } {
    return { running: this.#running, waiting: this.#queue.size };
  }

  /**
   * A slot, now or when one is free, in order of arrival. @returns its release, to be called once.
   * @throws Problem when too many wait or the wait is too long; the signal's reason when the caller went away.
   */
  async acquire(signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted();
    if (this.#running < this.#options.running) this.#running++;
    else await this.#wait(signal);
    let released = false;
    return () => {
      if (released) return;
      released = true;
      this.#next();
    };
  }

  /** Hands the slot to the one who waits longest. */
  #next(): void {
    const [first] = this.#queue;
    if (!first) {
      this.#running--;
      return;
    }
    this.#queue.delete(first);
    first.admit();
  }

  #wait(signal: AbortSignal): Promise<void> {
    const { waiting, timeoutMs, code } = this.#options;
    if (this.#queue.size >= waiting) {
      return Promise.reject(new Problem(code, `All slots are taken and ${waiting} reads are waiting.`));
    }
    return new Promise((resolve, reject) => {
      const leave = (reason: unknown) => {
        this.#queue.delete(waiter);
        settle();
        reject(reason);
      };
      const onAbort = () => leave(signal.reason);
      const timer = setTimeout(
        () => leave(new Problem(code, `No slot became free within ${timeoutMs} ms.`)),
        timeoutMs,
      );
      const settle = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', onAbort);
      };
      const waiter: Waiter = {
        admit: () => {
          settle();
          resolve();
        },
      };
      this.#queue.add(waiter);
      signal.addEventListener('abort', onAbort);
    });
  }
}
