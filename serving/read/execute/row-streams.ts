/**
 * The rows of one read, over one connection or two. While nobody else reads, a long read takes a second connection that imports
 * the snapshot of the first. The two run the sections of a statement in turn, and their rows are passed on in order: a section
 * whose turn has not come is read ahead up to a bound, and then its backend waits.
 */
import { assert } from '../../../shared/errors.ts';
import type { PgConnection, RowSink } from '../../db/pg-connection.ts';
import type { Statement } from '../../db/pg-messages.ts';
import type { PgPool } from '../../db/pool.ts';
import type { CountedStatement } from '../plan/context.ts';
import { LEAST_LONG_ROWS } from '../plan/sections.ts';
import type { Sections } from '../read-model.ts';
import { Session } from '../snapshot/session.ts';
import type { ReadDeadline } from './read-deadline.ts';

/** A few milliseconds tell little about how many rows an hour may have. */
const LEAST_NOTED_MS = 60_000;

/** What the reads of a process share: which has a second connection, and how many rows a millisecond each dataset had at most. */
export class SecondConnection {
  readonly pool: PgPool;
  /** One read at most, so that reads whose clients are slow hold no more connections than the limiters let them. */
  isTaken = false;
  readonly #densities = new Map<number, number>();

  constructor(pool: PgPool) {
    this.pool = pool;
  }

  note({ dataset, from, to }: Sections, rows: number): void {
    const density = rows / Math.max(to - from, LEAST_NOTED_MS);
    this.#densities.set(dataset, Math.max(density, this.#densities.get(dataset) ?? 0));
  }

  /** Where it says no, nothing is asked about frames: small reads cost no more than before. */
  isLong({ dataset, from, to, rows }: Sections): boolean {
    const expected = rows ?? (this.#densities.get(dataset) ?? Number.POSITIVE_INFINITY) * (to - from);
    return expected >= LEAST_LONG_ROWS;
  }
}

interface RowStreamsOptions {
  /** Has begun its snapshot. */
  readonly first: PgConnection;
  readonly second: SecondConnection;
  readonly owner: Pick<ReadDeadline, 'own' | 'disown'>;
  /** Whether nobody else reads; undefined for reads that have one connection in any case. */
  readonly isAlone: (() => boolean) | undefined;
  readonly oids: readonly number[];
}

interface Running {
  readonly connection: PgConnection;
  readonly done: Promise<true>;
}

/** What pg_export_snapshot gives; it becomes SQL text, because `set` takes no parameters. */
const SNAPSHOT = /^[0-9A-F-]+$/;

export class RowStreams {
  readonly #options: RowStreamsOptions;
  #second: PgConnection | undefined;
  #joining: Promise<false> | undefined;
  #snapshot: string | undefined;
  /** The connection whose rows are passed on. */
  #head: PgConnection;
  #isPaused = false;
  #hasEnded = false;

  constructor(options: RowStreamsOptions) {
    this.#options = options;
    this.#head = options.first;
  }

  pause(): void {
    this.#isPaused = true;
    this.#head.pause();
  }

  resume(): void {
    this.#isPaused = false;
    this.#head.resume();
  }

  /** Passes the statement's rows on, in order. */
  async read(statement: CountedStatement, sink: RowSink): Promise<void> {
    const { first, oids, second } = this.#options;
    const { sections } = statement;
    if (sections && this.#mayHaveTwo && second.isLong(sections)) {
      const statements = await sections.cut();
      if (statements.length > 1) {
        await this.#invite();
        await this.#readInTurn(statements, sink);
        return;
      }
    }
    this.#passOn(first);
    await new Session(first).stream(statement, oids, sink);
  }

  /** Ends the second connection's transaction in the background. */
  end(): void {
    this.#hasEnded = true;
    if (this.#second) this.#leave(this.#second);
  }

  /** Closes the second connection and cancels what it runs. */
  discard(): void {
    this.#hasEnded = true;
    const { second } = this.#options;
    if (!this.#second) return;
    second.pool.discard(this.#second);
    second.isTaken = false;
    this.#second = undefined;
  }

  get #mayHaveTwo(): boolean {
    return this.#isAlone && (this.#second !== undefined || !this.#options.second.isTaken);
  }

  get #isAlone(): boolean {
    const { isAlone, second } = this.#options;
    return isAlone?.() === true && second.pool.options.scheduler.isQuiet;
  }

  async #readInTurn(all: readonly Statement[], sink: RowSink): Promise<void> {
    const { oids } = this.#options;
    const failed = Promise.withResolvers<never>();
    failed.promise.catch(() => {});
    const running: Running[] = [];
    let next = 0;
    while (next < all.length || running.length > 0) {
      for (const connection of this.#free(running)) {
        if (next === all.length) break;
        if (running.length > 0) connection.hold();
        const done = connection.run([{ statement: all[next++], oids, sink }]).then(() => true as const);
        done.catch(failed.reject);
        running.push({ connection, done });
      }
      const [{ connection, done }] = running;
      this.#passOn(connection);
      const joining = this.#joining && next < all.length ? [this.#joining] : [];
      // A fault of either connection ends the read at once.
      if (await Promise.race([done, failed.promise, ...joining])) running.shift();
    }
  }

  /** The connections that run nothing. The second one leaves when others read. */
  #free(running: readonly Running[]): PgConnection[] {
    const { first } = this.#options;
    const isFree = (connection: PgConnection) => running.every((one) => one.connection !== connection);
    const second = this.#second;
    if (second && isFree(second) && !this.#isAlone) this.#leave(second);
    return [first, ...(this.#second ? [this.#second] : [])].filter(isFree);
  }

  #passOn(connection: PgConnection): void {
    const last = this.#head;
    if (last !== connection) {
      this.#head = connection;
      if (this.#isPaused) {
        connection.pause();
        last.resume();
      }
    }
    connection.release();
  }

  /** Asks for a second connection, which joins when it has the snapshot. */
  async #invite(): Promise<void> {
    const { first, second } = this.#options;
    if (this.#second || this.#joining || second.isTaken) return;
    second.isTaken = true;
    if (this.#snapshot === undefined) {
      try {
        const [[snapshot]] = await new Session(first).rows('select pg_export_snapshot()');
        assert(snapshot !== null && SNAPSHOT.test(snapshot), `${snapshot} is no name of a snapshot`);
        this.#snapshot = snapshot;
      } catch (error) {
        second.isTaken = false;
        throw error;
      }
    }
    this.#joining = this.#join().then(() => {
      this.#joining = undefined;
      return false;
    });
  }

  /** Without a second connection, for whatever reason, the first reads everything. */
  async #join(): Promise<void> {
    const { second, owner } = this.#options;
    let connection: PgConnection | undefined;
    try {
      ({ connection } = await second.pool.acquire());
      owner.own(connection);
      await new Session(connection).join(this.#snapshot!);
      // Nobody waits for this connection: it is no short read.
      connection.hold();
      this.#second = connection;
      if (this.#hasEnded) this.#leave(connection);
    } catch {
      if (connection) {
        owner.disown(connection);
        second.pool.discard(connection);
      }
      second.isTaken = false;
    }
  }

  #leave(connection: PgConnection): void {
    const { second, owner } = this.#options;
    this.#second = undefined;
    owner.disown(connection);
    connection.release();
    new Session(connection)
      .commit()
      .then(
        () => second.pool.release(connection),
        () => second.pool.discard(connection),
      )
      .finally(() => {
        second.isTaken = false;
      });
  }
}
