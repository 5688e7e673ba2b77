/**
 * The newest rows in one round trip instead of two. What the last look at coverage said is taken for true, the read it
 * leads to is sent along with the new look, in one transaction, and its rows are used only if both looks agree.
 */

import type { DatasetDefinition, Mode } from '../../shared/registry/index.ts';
import type { RowSink } from '../db/wire.ts';
import type { Look, Snapshot } from './session.ts';

export interface Seen {
  readonly signature: string;
  readonly snapshot: Snapshot;
}

/** The last look at each dataset and mode. */
export class LastLooks {
  readonly #seen = new Map<string, Seen>();

  of(dataset: DatasetDefinition, mode: Mode): Seen | undefined {
    return this.#seen.get(`${dataset.number} ${mode}`);
  }

  note(dataset: DatasetDefinition, mode: Mode, look: Look): void {
    if (this.of(dataset, mode)?.signature === look.signature) return;
    this.#seen.set(`${dataset.number} ${mode}`, { signature: look.signature, snapshot: look.snapshot() });
  }
}

/** The rows of a read that was sent on a guess; dropped when the look before them says otherwise. */
export class GuessedRows implements RowSink {
  readonly #isRight: () => boolean;
  readonly #start: () => RowSink;
  #sink: RowSink | undefined;
  #checked = false;

  constructor(isRight: () => boolean, start: () => RowSink) {
    this.#isRight = isRight;
    this.#start = start;
  }

  /** Rows came and were used. */
  get used(): boolean {
    return this.#sink !== undefined;
  }

  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    if (!this.#checked) {
      this.#checked = true;
      if (this.#isRight()) this.#sink = this.#start();
    }
    this.#sink?.row(view, bytes, at, length);
  }
}
