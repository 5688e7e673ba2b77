/**
 * Limits concurrent reads: a number of reads run, a number wait, and any further one is refused at once. A read whose client is
 * behind does no work, so it can be parked: it gives its slot to another read and takes a slot again before it goes on. Reads
 * of any size never take all slots: some are left to small reads, which would otherwise wait behind a few that take minutes,
 * and be refused in the end. Between callers it is fair: a free slot goes to the caller with the fewest running reads, and in a
 * full queue the caller that holds most gives way to one that holds less, so that nobody shuts the others out.
 */
import { OWNER } from '../../shared/keys/key.ts';
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

interface Returning {
  readonly size: ReadSize;
  readonly caller: string;
  readonly admit: () => void;
}

interface Waiter extends Returning {
  /** Refuses the read: another caller's read takes its place in the queue. */
  readonly displace: () => void;
}

/** The reads of one caller. There is one entry for each name that was ever given. */
interface CallerReads {
  running: number;
  /** In order of arrival. */
  readonly waiting: Set<Waiter>;
  /** Position of the last admission among those of all callers. */
  servedAt: number;
}

/** One slot in this many is for small reads alone. */
const SLOTS_PER_SMALL = 4;

/** Parked reads per slot. Each holds a database backend, so they are bounded; the one parked longest is evicted. */
export const PARKED_PER_SLOT = 2;

export class ConcurrencyLimiter {
  readonly #options: LimiterOptions;
  readonly #callers = new Map<string, CallerReads>();
  /** Parked reads that wait for a slot to go on. */
  readonly #returning = new Set<Returning>();
  readonly #parked = new Map<object, () => void>();
  #running = 0;
  #waiting = 0;
  #served = 0;
  /** The number of running reads of size `any`. */
  #anySize = 0;
  readonly #rejected = { full: 0, timeout: 0 };

  constructor(options: LimiterOptions) {
    this.#options = options;
  }

  get load(): { readonly running: number; readonly waiting: number; readonly parked: number } {
    return { running: this.#running, waiting: this.#waiting, parked: this.#parked.size };
  }

  /** The number of rejections since the start. */
  get rejected(): { readonly full: number; readonly timeout: number } {
    return { ...this.#rejected };
  }

  get limits(): { readonly running: number; readonly waiting: number } {
    return { running: this.#options.running, waiting: this.#options.waiting };
  }

  /**
   * Acquires a slot, now or when one becomes free; a caller's reads of one size are served in order of arrival.
   * @param caller names the caller: a bounded set, since the limiter remembers each.
   * @throws Problem when too many reads wait or the wait is too long; the signal's reason when the caller is gone.
   */
  async acquire(signal: AbortSignal, size: ReadSize = 'any', caller = ''): Promise<Slot> {
    signal.throwIfAborted();
    if (this.#hasRoom(size)) this.#take(size, caller);
    else await this.#wait(signal, size, caller);
    return this.#slot(size, caller);
  }

  #hasRoom(size: ReadSize): boolean {
    const { running } = this.#options;
    return (
      this.#running < running && (size === 'small' || this.#anySize < running - Math.floor(running / SLOTS_PER_SMALL))
    );
  }

  #readsOf(caller: string): CallerReads {
    const known = this.#callers.get(caller);
    if (known) return known;
    const reads = { running: 0, waiting: new Set<Waiter>(), servedAt: 0 };
    this.#callers.set(caller, reads);
    return reads;
  }

  #take(size: ReadSize, caller: string): void {
    const reads = this.#readsOf(caller);
    reads.running++;
    reads.servedAt = ++this.#served;
    this.#running++;
    if (size === 'any') this.#anySize++;
  }

  #give(size: ReadSize, caller: string): void {
    this.#readsOf(caller).running--;
    this.#running--;
    if (size === 'any') this.#anySize--;
    this.#next();
  }

  #slot(size: ReadSize, caller: string): Slot {
    const read = {};
    let state: 'running' | 'parked' | 'returning' | 'released' = 'running';
    let returning: Returning | undefined;
    return {
      park: (evict) => {
        if (state !== 'running') return;
        state = 'parked';
        this.#parked.set(read, evict);
        this.#give(size, caller);
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
            this.#take(size, caller);
            admit();
            return;
          }
          state = 'returning';
          returning = { size, caller, admit };
          this.#returning.add(returning);
        });
      },
      release: () => {
        const last = state;
        state = 'released';
        this.#parked.delete(read);
        if (returning) this.#returning.delete(returning);
        if (last === 'running') this.#give(size, caller);
      },
    };
  }

  /** Passes a free slot on: to a read that was parked, else to a waiting read. */
  #next(): void {
    for (const waiter of this.#returning) {
      if (!this.#hasRoom(waiter.size)) continue;
      this.#returning.delete(waiter);
      this.#take(waiter.size, waiter.caller);
      waiter.admit();
      return;
    }
    const next = this.#nextWaiter();
    if (!next) return;
    this.#leave(next);
    this.#take(next.size, next.caller);
    next.admit();
  }

  /** Of the callers with a read that may have the slot, the one with the fewest running reads, then the one served longest ago. */
  #nextWaiter(): Waiter | undefined {
    let best: { readonly reads: CallerReads; readonly waiter: Waiter } | undefined;
    for (const reads of this.#callers.values()) {
      if (best && !isServedBefore(reads, best.reads)) continue;
      for (const waiter of reads.waiting) {
        if (!this.#hasRoom(waiter.size)) continue;
        best = { reads, waiter };
        break;
      }
    }
    return best?.waiter;
  }

  #leave(waiter: Waiter): void {
    if (this.#readsOf(waiter.caller).waiting.delete(waiter)) this.#waiting--;
  }

  /**
   * The waiting read that gives its place in the full queue to a newcomer of this caller: the newest of the caller that holds
   * most. After the exchange the newcomer's caller holds no more than that one did, or holds one more and runs fewer reads:
   * otherwise the two would displace each other for ever. The owner gets in wherever another holds more.
   */
  #displacedBy(caller: string): Waiter | undefined {
    const own = this.#readsOf(caller);
    let most = own;
    for (const reads of this.#callers.values()) {
      const more = reads.waiting.size - most.waiting.size || reads.running - most.running;
      if (more > 0) most = reads;
    }
    const more = most.waiting.size - own.waiting.size;
    const gives = more > 1 || (more === 1 && (caller === OWNER || most.running > own.running));
    return gives ? [...most.waiting].at(-1) : undefined;
  }

  #full(): Problem {
    this.#rejected.full++;
    const { waiting, code } = this.#options;
    return new Problem(code, `All slots are taken, and ${waiting} reads are waiting. Try again later.`);
  }

  #wait(signal: AbortSignal, size: ReadSize, caller: string): Promise<void> {
    const { waiting, timeoutMs, code } = this.#options;
    if (this.#waiting >= waiting) {
      const displaced = this.#displacedBy(caller);
      if (!displaced) return Promise.reject(this.#full());
      displaced.displace();
    }
    return new Promise((resolve, reject) => {
      const leave = (reason: unknown) => {
        this.#leave(waiter);
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
        caller,
        admit: () => {
          settle();
          resolve();
        },
        displace: () => leave(this.#full()),
      };
      this.#readsOf(caller).waiting.add(waiter);
      this.#waiting++;
      signal.addEventListener('abort', onAbort);
    });
  }
}

const isServedBefore = (one: CallerReads, other: CallerReads): boolean =>
  one.running < other.running || (one.running === other.running && one.servedAt < other.servedAt);
