/** Connections of the service's own role, kept open between reads. How many there are is bounded by the read slots. */
import { FairScheduler, PgConnection, type PgConnectionOptions } from './pg-connection.ts';

const CONNECT_TIMEOUT_MS = 5000;

export const poolOptions = (url: string): PgConnectionOptions => ({
  url,
  name: 'tidemark serving',
  connectTimeoutMs: CONNECT_TIMEOUT_MS,
  turns: new FairScheduler(),
});

export class PgPool implements AsyncDisposable {
  readonly options: PgConnectionOptions;
  readonly #idle: PgConnection[] = [];
  readonly #busy = new Set<PgConnection>();
  #ended = false;

  constructor(options: PgConnectionOptions) {
    this.options = options;
  }

  get open(): { readonly idle: number; readonly busy: number } {
    return { idle: this.#idle.length, busy: this.#busy.size };
  }

  /** An idle connection if there is one, else a new one. `reused` connections may have died unnoticed. */
  async acquire(fresh = false): Promise<{ wire: PgConnection; reused: boolean }> {
    while (!fresh) {
      const wire = this.#idle.pop();
      if (!wire) break;
      if (wire.closed) continue;
      this.#busy.add(wire);
      return { wire, reused: true };
    }
    const wire = await PgConnection.open(this.options);
    this.#busy.add(wire);
    return { wire, reused: false };
  }

  /** Back to the idle ones, if it is in a state to be used again. */
  release(wire: PgConnection): void {
    if (!this.#busy.delete(wire) || wire.closed) return;
    if (this.#ended || wire.status !== 'I') wire.abandon();
    else this.#idle.push(wire);
  }

  /** Not to be used again; what it runs is cancelled. */
  discard(wire: PgConnection): void {
    this.#busy.delete(wire);
    wire.abandon();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#ended = true;
    for (const wire of this.#idle.splice(0)) wire.end();
    for (const wire of this.#busy) wire.abandon();
  }
}
