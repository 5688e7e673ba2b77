/**
 * The newest rows in one round trip instead of two. What the last look at coverage said is taken for true, the read it
 * leads to is sent along with the new look, in one transaction, and its rows are used only if both looks agree.
 */

import type { RowSink } from '../db/wire.ts';
import { contextOf, type PlanContext } from './context.ts';
import { type NewestPlan, planNewest } from './latest.ts';
import type { Look, Snapshot } from './session.ts';
import type { ReadRequest } from './types.ts';

export interface Seen {
  readonly signature: string;
  readonly snapshot: Snapshot;
}

export interface GuessedPlan {
  readonly context: PlanContext;
  readonly plan: NewestPlan;
}

/** Plans kept for one look: as many kinds of request for the newest rows as are likely to come again. */
const MAX_PLANS = 32;

/** The last look at each dataset and mode, and the plans it led to. */
export class LastLooks {
  readonly #seen = new Map<string, Seen & { readonly plans: Map<string, GuessedPlan | undefined> }>();

  of(request: ReadRequest): Seen | undefined {
    return this.#seen.get(keyOf(request));
  }

  note(request: ReadRequest, look: Look): void {
    const { signature } = look;
    if (this.of(request)?.signature === signature) return;
    this.#seen.set(keyOf(request), { signature, snapshot: look.snapshot(), plans: new Map() });
  }

  forget(request: ReadRequest): void {
    this.#seen.delete(keyOf(request));
  }

  /** How the newest rows are read if the last look still holds. Undefined: look first. */
  planOf(request: ReadRequest & { readonly window: { readonly kind: 'latest' } }): GuessedPlan | undefined {
    const seen = this.#seen.get(keyOf(request));
    if (!seen || seen.snapshot.violation !== undefined) return undefined;
    const { rows } = request.window;
    const key = [rows, ...request.fields.map((field) => field.name)].join(' ');
    if (!seen.plans.has(key)) {
      if (seen.plans.size >= MAX_PLANS) seen.plans.clear();
      const context = contextOf(request, seen.snapshot);
      const plan = planNewest(context, rows);
      seen.plans.set(key, plan && { context, plan });
    }
    return seen.plans.get(key);
  }
}

const keyOf = ({ dataset, mode }: ReadRequest) => `${dataset.number} ${mode}`;

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
