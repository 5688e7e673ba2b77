/** One COPY ... FROM STDIN in binary, fed with ready-made rows. */
import { once } from 'node:events';
import type { ClientBase } from 'pg';
import { type CopyStreamQuery, from as copyFrom } from 'pg-copy-streams';
import { COPY_HEADER, COPY_TRAILER } from '../rows/binary-copy.ts';

export class CopyIn {
  readonly #stream: CopyStreamQuery;
  #failure: unknown;
  #draining: Promise<void> | undefined;
  /** Never resolves; rejects when the database refuses the rows. */
  readonly #failed: Promise<never>;

  constructor(client: ClientBase, table: string, columns: readonly string[], freeze = false) {
    const names = columns.map((name) => `"${name}"`).join(', ');
    this.#stream = client.query(
      copyFrom(`copy ${table} (${names}) from stdin with (format binary${freeze ? ', freeze' : ''})`),
    );
    this.#failed = new Promise((_, reject) => {
      this.#stream.on('error', (error) => {
        this.#failure ??= error;
        reject(error);
      });
    });
    this.#failed.catch(() => {});
    this.#stream.write(COPY_HEADER);
  }

  /**
   * Hands rows over. Returns while the database still takes them in, so that the caller makes the next rows meanwhile;
   * waits when the rows before are still on their way: two batches are in memory at the most.
   */
  async write(rows: Buffer): Promise<void> {
    if (this.#failure) throw this.#failure;
    if (this.#draining) await Promise.race([this.#draining, this.#failed]);
    this.#draining = this.#stream.write(rows) ? undefined : this.#drained();
  }

  /** Ends the COPY. @returns the number of rows the database took. */
  async end(): Promise<number> {
    if (this.#failure) throw this.#failure;
    const finished = once(this.#stream, 'finish');
    this.#stream.end(COPY_TRAILER);
    await finished;
    return this.#stream.rowCount;
  }

  /**
   * Gives up: the database discards what it has; the transaction must be rolled back. A COPY that the database refused, or
   * that went with its connection, is over already: closing the stream would wait for an answer that never comes.
   */
  async abort(): Promise<void> {
    if (this.#failure || this.#stream.destroyed || this.#stream.writableFinished) return;
    const closed = once(this.#stream, 'close').catch(() => {});
    this.#stream.destroy();
    await closed;
  }

  #drained(): Promise<void> {
    return new Promise((resolve) => this.#stream.once('drain', resolve));
  }
}

/** A COPY that is opened with its first rows, and that one partition after another goes into. */
export class SharedCopy {
  readonly #open: () => CopyIn;
  #copy: CopyIn | undefined;

  constructor(client: ClientBase, table: string, columns: readonly string[]) {
    this.#open = () => new CopyIn(client, table, columns);
  }

  async write(rows: Buffer): Promise<void> {
    this.#copy ??= this.#open();
    await this.#copy.write(rows);
  }

  /** The connection is free again. @returns the number of rows the database took. */
  async end(): Promise<number> {
    const copy = this.#copy;
    this.#copy = undefined;
    return (await copy?.end()) ?? 0;
  }

  async abort(): Promise<void> {
    const copy = this.#copy;
    this.#copy = undefined;
    await copy?.abort();
  }
}
