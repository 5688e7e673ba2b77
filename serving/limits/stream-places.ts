/**
 * The places of event streams. When all are taken, the newest stream of the key that holds most ends to make room for a key
 * that holds less, and the owner always gets in: nobody shuts the others out.
 */
import { Problem } from '../contract/problems.ts';
import type { Caller } from '../http/caller.ts';

export class StreamPlaces {
  readonly limit: number;
  /** What ends each stream of a key, the oldest first. */
  readonly #byKey = new Map<string, Set<() => void>>();
  #taken = 0;
  #displaced = 0;

  constructor(limit: number) {
    this.limit = limit;
  }

  get taken(): number {
    return this.#taken;
  }

  /** Streams that ended to make room, since the start. */
  get displaced(): number {
    return this.#displaced;
  }

  /**
   * Takes a place for a stream, which `end` ends.
   * @returns a function that gives the place back, to be called when the stream is over.
   * @throws Problem CHANGES_LISTENER_LIMIT_REACHED
   */
  take(caller: Caller, end: () => void): () => void {
    const key = caller.name ?? '';
    if (this.#taken >= this.limit) this.#makeRoom(caller);
    this.#byKey.set(key, (this.#byKey.get(key) ?? new Set()).add(end));
    this.#taken++;
    return () => this.#give(key, end);
  }

  #give(key: string, end: () => void): void {
    const streams = this.#byKey.get(key);
    // A stream that made room has given its place already.
    if (!streams?.delete(end)) return;
    if (streams.size === 0) this.#byKey.delete(key);
    this.#taken--;
  }

  #makeRoom(caller: Caller): void {
    const own = caller.name ?? '';
    const held = (key: string) => this.#byKey.get(key)?.size ?? 0;
    const most = [...this.#byKey.keys()].reduce((one, other) => (held(other) > held(one) ? other : one), own);
    // After the exchange a newcomer's key holds no more than the other, or the two would displace each other for ever.
    const end = caller.isOwner || held(most) > held(own) + 1 ? [...(this.#byKey.get(most) ?? [])].at(-1) : undefined;
    if (!end) {
      throw new Problem(
        'CHANGES_LISTENER_LIMIT_REACHED',
        `The service has its ${this.limit} event streams. Try again later, or ask for pages of JSON.`,
      );
    }
    this.#give(most, end);
    this.#displaced++;
    end();
  }
}
