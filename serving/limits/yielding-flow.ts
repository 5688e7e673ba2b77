/** Holds a read back while its client is behind, and meanwhile leaves its slot to others. */
import type { Slot } from './slots.ts';

interface Flow {
  pause(): void;
  resume(): void;
}

/** A client that is behind for a moment keeps its slot: giving it up and taking it again would only cost others. */
const PARK_AFTER_MS = 250;

export class YieldingFlow implements Flow {
  readonly #flow: Flow;
  readonly #slot: Slot;
  readonly #evict: () => void;
  #timer: NodeJS.Timeout | undefined;

  /** @param evict ends the read: too many are parked, and this one has been for longest. */
  constructor(flow: Flow, slot: Slot, evict: () => void) {
    this.#flow = flow;
    this.#slot = slot;
    this.#evict = evict;
  }

  pause(): void {
    this.#flow.pause();
    this.#timer = setTimeout(() => this.#slot.park(this.#evict), PARK_AFTER_MS);
  }

  resume(): void {
    this.end();
    this.#slot.unpark().then(() => this.#flow.resume());
  }

  /** The read has ended: nothing is parked any more. */
  end(): void {
    clearTimeout(this.#timer);
  }
}
