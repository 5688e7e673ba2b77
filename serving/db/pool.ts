/** Connections of the service's own role, kept open between reads. The read limiters bound their number. */
import { FairScheduler, PgConnection, type PgConnectionOptions } from './pg-connection.ts';

const CONNECT_TIMEOUT_MS = 5000;

export const poolOptions = (url: string): PgConnectionOptions => ({
  url,
  name: 'tidemark serving',
  connectTimeoutMs: CONNECT_TIMEOUT_MS,
  scheduler: new FairScheduler(),
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

  /** Returns an idle connection, or opens one. A `reused` connection may have died unnoticed. */
  async acquire(fresh = false): Promise<{ connection: PgConnection; reused: boolean }> {
    while (!fresh) {
      const connection = this.#idle.pop();
      if (!connection) break;
      if (connection.closed) continue;
      this.#busy.add(connection);
      return { connection, reused: true };
    }
    const connection = await PgConnection.open(this.options);
    this.#busy.add(connection);
    return { connection, reused: false };
  }

  /** Returns the connection to the pool if it can be reused. */
  release(connection: PgConnection): void {
    if (!this.#busy.delete(connection) || connection.closed) return;
    if (this.#ended || connection.status !== 'I') connection.abandon();
    else this.#idle.push(connection);
  }

  /** Closes the connection and cancels what it runs. */
  discard(connection: PgConnection): void {
    this.#busy.delete(connection);
    connection.abandon();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#ended = true;
    for (const connection of this.#idle.splice(0)) connection.end();
    for (const connection of this.#busy) connection.abandon();
  }
}
