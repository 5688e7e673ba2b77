/**
 * Limits concurrent reads: a number of reads run, a number wait, and any further one is refused at once. A read whose client is
 * behind does no work, so it can be parked: it gives its slot to another read and takes a slot again before it goes on. Reads
 * of any size never take all slots: some are left to small reads, which would otherwise wait behind a few that take minutes,
 * and be refused in the end.
 */
import { Problem, type ProblemCode } from '../contract/problems.ts';

interface LimiterOptions {
  readonly running: number;
  readonly waiting: number;
  readonly timeoutMs: number;
  readonly code: ProblemCode;
}

export interface Slot {
  /** The client is behind: gives the slot to another read. `evict` ends this read when too many are parked. */
  park(evict: () => void): void;
  /** Takes a slot again, before reads that have not begun; resolves at once if the read is not parked. */
  unpark(): Promise<void>;
  /** Call it when the read has ended, in any state. */
  release(): void;
}

/** `small`: the request bounds the read, whatever is stored. */
export type ReadSize = 'small' | 'any';

interface Waiter {
  readonly size: ReadSize;
  readonly admit: () => void;
}

/** One slot in this many is for small reads alone. */
const SLOTS_PER_SMALL = 4;

/** Parked reads per slot. Each holds a database backend, so they are bounded; the one parked longest is evicted. */
export const PARKED_PER_SLOT = 2;

export class ConcurrencyLimiter {
  readonly #options: LimiterOptions;
  readonly #queue = new Set<Waiter>();
  /** Parked reads that wait for a slot to go on. */
  readonly #returning = new Set<Waiter>();
  readonly #parked = new Map<object, () => void>();
  #running = 0;
  /** The number of running reads of size `any`. */
  #anySize = 0;
  readonly #rejected = { full: 0, timeout: 0 };

  constructor(options: LimiterOptions) {
    this.#options = options;
  }

  get load(): { readonly running: number; readonly waiting: number; readonly parked: number } {
    return { running: this.#running, waiting: this.#queue.size, parked: this.#parked.size };
  }

  /** The number of rejections since the start. */
  get rejected(): { readonly full: number; readonly timeout: number } {
    return { ...this.#rejected };
  }

  get limits(): { readonly running: number; readonly waiting: number } {
    return { running: this.#options.running, waiting: this.#options.waiting };
  }

  /**
   * Acquires a slot, now or when one becomes free; reads of one size are served in order of arrival.
   * @throws Problem when too many reads wait or the wait is too long; the signal's reason when the caller is gone.
   */
  async acquire(signal: AbortSignal, size: ReadSize = 'any'): Promise<Slot> {
    signal.throwIfAborted();
    if (this.#hasRoom(size)) this.#take(size);
    else await this.#wait(signal, size);
    return this.#slot(size);
  }

  #hasRoom(size: ReadSize): boolean {
    const { running } = this.#options;
    return (
      this.#running < running && (size === 'small' || this.#anySize < running - Math.floor(running / SLOTS_PER_SMALL))
    );
  }

  #take(size: ReadSize): void {
    this.#running++;
    if (size === 'any') this.#anySize++;
  }

  #give(size: ReadSize): void {
    this.#running--;
    if (size === 'any') this.#anySize--;
    this.#next();
  }

  #slot(size: ReadSize): Slot {
    const read = {};
    let state: 'running' | 'parked' | 'returning' | 'released' = 'running';
    let returning: Waiter | undefined;
    return {
      park: (evict) => {
        if (state !== 'running') return;
        state = 'parked';
        this.#parked.set(read, evict);
        this.#give(size);
        if (this.#parked.size > this.#options.running * PARKED_PER_SLOT) {
          const [[oldest, evictOldest]] = this.#parked;
          this.#parked.delete(oldest);
          evictOldest();
        }
      },
      unpark: () => {
        if (state !== 'parked') return Promise.resolve();
        this.#parked.delete(read);
        return new Promise((resolve) => {
          const admit = () => {
            state = 'running';
            resolve();
          };
          if (this.#hasRoom(size)) {
            this.#take(size);
            admit();
            return;
          }
          state = 'returning';
          returning = { size, admit };
          this.#returning.add(returning);
        });
      },
      release: () => {
        const last = state;
        state = 'released';
        this.#parked.delete(read);
        if (returning) this.#returning.delete(returning);
        if (last === 'running') this.#give(size);
      },
    };
  }

  /** Passes a free slot on: to a read that was parked, else to the longest waiting read that may have it. */
  #next(): void {
    for (const waiters of [this.#returning, this.#queue]) {
      for (const waiter of waiters) {
        if (!this.#hasRoom(waiter.size)) continue;
        waiters.delete(waiter);
        this.#take(waiter.size);
        waiter.admit();
        return;
      }
    }
  }

  #wait(signal: AbortSignal, size: ReadSize): Promise<void> {
    const { waiting, timeoutMs, code } = this.#options;
    if (this.#queue.size >= waiting) {
      this.#rejected.full++;
      return Promise.reject(
        new Problem(code, `All slots are taken, and ${waiting} reads are waiting. Try again later.`),
      );
    }
    return new Promise((resolve, reject) => {
      const leave = (reason: unknown) => {
        this.#queue.delete(waiter);
        settle();
        reject(reason);
      };
      const onAbort = () => leave(signal.reason);
      const timer = setTimeout(() => {
        this.#rejected.timeout++;
        leave(new Problem(code, `No slot became free within ${timeoutMs} ms. Try again later.`));
      }, timeoutMs);
      const settle = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', onAbort);
      };
      const waiter: Waiter = {
        size,
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
