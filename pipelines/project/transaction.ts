/**
 * The transaction that loads are made in. A file day has one of its own. Small partitions share one, which ends when it is
 * large or old enough, or when nothing more is there to be loaded: what is said of them is said of all at once.
 */
import type { ClientBase } from 'pg';

/** Partitions, rows and bytes of events that one transaction proves at most, and how long it stays open. */
const MAX_PARTITIONS = 512;
const MAX_ROWS = 50_000;
const MAX_BYTES = 32 * 1024 * 1024;
export const MAX_OPEN_MS = 1000;

export class LoadTransaction {
  readonly #client: ClientBase;
  /** Whether several loads are made in one. */
  readonly shares: boolean;
  #open = false;
  #openedAt = 0;
  #partitions = 0;
  #rows = 0;
  #bytes = 0;

  constructor(client: ClientBase, shares: boolean) {
    this.#client = client;
    this.shares = shares;
  }

  /** Partitions that are loaded in it and not committed. */
  get pending(): number {
    return this.#partitions;
  }

  /** Of those. */
  get rows(): number {
    return this.#rows;
  }

  /** It has been large, or open, long enough. */
  get isDue(): boolean {
    return (
      !this.shares ||
      this.#partitions >= MAX_PARTITIONS ||
      this.#rows >= MAX_ROWS ||
      this.#bytes >= MAX_BYTES ||
      performance.now() - this.#openedAt > MAX_OPEN_MS
    );
  }

  /** A load begins. @returns whether it is the first of its transaction. */
  async enter(): Promise<boolean> {
    if (this.#open) return false;
    await this.#client.query('begin');
    this.#open = true;
    this.#openedAt = performance.now();
    return true;
  }

  /** The load's partition is part of the transaction from now on. */
  keep(rows: number, bytes: number): void {
    this.#partitions++;
    this.#rows += rows;
    this.#bytes += bytes;
  }

  /** Nothing stays, of any load. */
  async undo(): Promise<void> {
    if (!this.#open) return;
    this.#ended();
    await this.#client.query('rollback');
  }

  async commit(): Promise<void> {
    if (!this.#open) return;
    await this.#client.query('commit');
    this.#ended();
  }

  #ended(): void {
    this.#open = false;
    this.#partitions = 0;
    this.#rows = 0;
    this.#bytes = 0;
  }
}
