/** Looks at the service, one after the other: two at once could show the older answer after the newer. This file does not use the DOM. */
import { Fault, Latest } from './api.js';

/** A look that takes longer is given up: a connection may be dead without a word. */
const LOOK_MS = 30_000;

export class Looks {
  #latest = new Latest();
  #look;
  #show;
  isBusy = false;

  /**
   * @param {(signal: AbortSignal) => Promise<any>} look
   * @param {(end: { value?: any, fault?: Fault }) => void} show
   */
  constructor(look, show) {
    this.#look = look;
    this.#show = show;
  }

  stop() {
    this.#latest.stop();
  }

  /** Ends the look in progress, and begins another. */
  async now() {
    this.isBusy = true;
    const end = await this.#latest.ask(async (signal) => {
      const limit = AbortSignal.timeout(LOOK_MS);
      const both = AbortSignal.any([signal, limit]);
      try {
        return await this.#look(both);
      } catch (error) {
        if (limit.aborted && !signal.aborted) throw new Fault('The service does not answer.');
        throw error;
      }
    });
    if (end === undefined) return;
    this.isBusy = false;
    this.#show(end);
  }
}
