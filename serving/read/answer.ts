/** One answer in the making: what is said before its rows, the writer they go to, and what must hold after them. */
import type { Warning } from '../contract/problems.ts';
import type { RowSink, Wire } from '../db/wire.ts';
import type { Column } from '../rendering/cells.ts';
import type { RowWriter } from '../rendering/representations.ts';
import type { Plan, PlanContext } from './context.ts';
import { coverageWarning, provedThrough } from './coverage.ts';
import { ReadFault, StrictRefusal } from './faults.ts';
import { type Freshness, freshnessOf, mutableWindowWarning, staleWarning } from './freshness.ts';
import type { Guard } from './guard.ts';
import type { ReadRequest } from './types.ts';
import { Lookahead } from './validity.ts';

/** What is known of an answer before its first row. */
export interface ReadFacts {
  readonly warnings: readonly Warning[];
  readonly freshness: Freshness | null;
  readonly synthetic: boolean;
  readonly columns: readonly Column[];
  /** Rows start with a cell that is not shown. */
  readonly hiddenFirst: boolean;
}

/** Holds the database back while the receiver of the rows is behind. */
export interface Flow {
  pause(): void;
  resume(): void;
}

export interface ReadCall {
  readonly request: ReadRequest;
  /** Aborted when the receiver goes away: the database stops at once. */
  readonly signal: AbortSignal;
  /** Password of the restricted role, where rights demand the caller's own. */
  readonly token: string | undefined;
  /** Makes the writer; called once, before the first row. */
  open(facts: ReadFacts, flow: Flow): RowWriter;
}

export interface FreshnessRule {
  readonly alignedMaxAgeSeconds: number;
  readonly now: () => number;
}

export class Answer {
  readonly #call: ReadCall;
  readonly #rule: FreshnessRule;
  readonly #guard: Guard;
  #writer: RowWriter | undefined;
  #lookahead: Lookahead | undefined;
  #plan: Plan | undefined;
  #flow: WireFlow | undefined;

  constructor(call: ReadCall, rule: FreshnessRule, guard: Guard) {
    this.#call = call;
    this.#rule = rule;
    this.#guard = guard;
  }

  /** Where the plan's rows go. @throws StrictRefusal, ReadFault before anything is written. */
  start(context: PlanContext, plan: Plan, wire: Wire): RowSink {
    const { relation, snapshot } = context;
    const { warnings, freshness } = this.#judge(context, plan);
    const hiddenFirst = relation.validity === 'lookahead';
    this.#plan = plan;
    this.#flow = new WireFlow(wire);
    this.#writer = this.#call.open(
      { warnings, freshness, synthetic: snapshot.coverage.synthetic, columns: relation.columns, hiddenFirst },
      this.#flow,
    );
    this.#guard.watch(this.#writer);
    if (!hiddenFirst) return this.#writer;
    this.#lookahead = new Lookahead(this.#writer, plan.parts, context.endMs);
    return this.#lookahead;
  }

  /** All rows are written. @returns their number. */
  finish(): number {
    this.#lookahead?.end();
    this.#flow?.end();
    const rows = this.#writer?.rows ?? 0;
    const expected = this.#plan?.expectedRows;
    if (expected !== undefined && rows !== expected) {
      throw new ReadFault('runtime', `${rows} rows were found where ${expected} are counted as proved`);
    }
    if (rows === 0) throw new ReadFault('no_rows', 'no proved row matches');
    return rows;
  }

  #judge({ request, snapshot, parts }: PlanContext, plan: Plan) {
    const { now, alignedMaxAgeSeconds } = this.#rule;
    const asOfMs = provedThrough(snapshot.coverage);
    const warnings: Warning[] = [
      ...mutableWindowWarning(request.window),
      ...coverageWarning(snapshot.coverage, plan.gaps),
    ];
    let freshness: Freshness | null = null;
    if (request.mode === 'aligned_1s' && asOfMs !== undefined) {
      freshness = freshnessOf(asOfMs, now());
      warnings.push(...staleWarning(freshness, asOfMs, request.window, alignedMaxAgeSeconds));
    }
    if (request.strict && warnings.length > 0) throw new StrictRefusal(warnings);
    if (parts.length === 0) throw new ReadFault('no_rows', 'nothing of the window is proved');
    return { warnings, freshness };
  }
}

/** A receiver may still ask for more when the rows have ended and the connection serves another read. */
class WireFlow implements Flow {
  #wire: Wire | undefined;

  constructor(wire: Wire) {
    this.#wire = wire;
  }

  pause(): void {
    this.#wire?.pause();
  }

  resume(): void {
    this.#wire?.resume();
  }

  end(): void {
    this.#wire?.resume();
    this.#wire = undefined;
  }
}
