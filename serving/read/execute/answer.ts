/** One answer in the making: what is said before its rows, the writer they go to, and what must hold after them. */
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import type { Warning } from '../../contract/problems.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import { isoOf } from '../../contract/time.ts';
import type { PgConnection, RowSink } from '../../db/pg-connection.ts';
import type { Column, RowWriter } from '../../render/cells.ts';
import { readTimestamptzMs } from '../../render/text.ts';
import type { LiveContext, Plan, PlanContext } from '../plan/context.ts';
import { checkCount } from '../plan/counted.ts';
import { boundsOf, type Coverage, missingIn } from '../snapshot/coverage.ts';
import type { Session } from '../snapshot/session.ts';
import { type Part, ReadFault, type RowCount, StrictRefusal } from '../types.ts';
import type { ReadDeadline } from './optimistic-read.ts';
import { evaluateWarnings, type Freshness, type FreshnessRule } from './warnings.ts';

/* The end of validity of rows that come complete and in order: each row's is told by the next one. */

const SECOND_MS = 1000;

export class ValidityLookahead implements RowSink {
  readonly #writer: RowWriter;
  readonly #parts: readonly Part[];
  readonly #endMs: number;
  #part = 0;
  #lastMs: number | undefined;

  constructor(writer: RowWriter, parts: readonly Part[], endMs: number) {
    this.#writer = writer;
    this.#parts = parts;
    this.#endMs = endMs;
  }

  /** The first cell is the row's second; the writer skips it. */
  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    const ms = readTimestamptzMs(view, at + 4);
    this.#resolve(ms);
    this.#writer.row(view, bytes, at, length);
    this.#lastMs = ms;
  }

  /** No row follows. */
  end(): void {
    this.#resolve(Number.POSITIVE_INFINITY);
    this.#lastMs = undefined;
  }

  #resolve(nextMs: number): void {
    const lastMs = this.#lastMs;
    if (lastMs === undefined) return;
    while (this.#parts[this.#part].to <= lastMs) this.#part++;
    const { provedTo, isLast } = this.#parts[this.#part];
    const second = lastMs + SECOND_MS;
    const last = provedTo === undefined ? second : isLast ? Math.max(provedTo, second) : provedTo;
    this.#writer.resolve(Math.min(nextMs, last, this.#endMs));
  }
}

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
  /** Whether these rows may be read at all: asked first, in their snapshot. Undefined: all may. */
  readonly admit: ((session: Session) => Promise<void>) | undefined;
  /** No row of a proved window is an answer too. */
  readonly mayBeEmpty?: boolean;
  /** Looks at more of the snapshot that the rows come from, before the first of them. @returns the plan to go by. */
  inspect?(live: LiveContext, plan: Plan): Promise<Plan>;
  /** Makes the writer; called once, before the first row. */
  open(facts: ReadFacts, flow: Flow): RowWriter;
}

export class Answer {
  readonly #call: ReadCall;
  readonly #rule: FreshnessRule;
  readonly #guard: ReadDeadline;
  #writer: RowWriter | undefined;
  #lookahead: ValidityLookahead | undefined;
  #tally: Tally | undefined;
  #plan: Plan | undefined;
  #flow: WireFlow | undefined;
  #warnings: readonly Warning[] = [];
  #whyNone = '';

  constructor(call: ReadCall, rule: FreshnessRule, guard: ReadDeadline) {
    this.#call = call;
    this.#rule = rule;
    this.#guard = guard;
  }

  /** Where the plan's rows go. @throws StrictRefusal, ReadFault before anything is written. */
  start(context: PlanContext, plan: Plan, wire: PgConnection, quality: readonly Warning[] = []): RowSink {
    const { relation, snapshot } = context;
    const { warnings, freshness } = this.#judge(context, plan, quality);
    const hiddenFirst = relation.hidden !== undefined;
    this.#plan = plan;
    this.#flow = new WireFlow(wire);
    this.#writer = this.#call.open(
      { warnings, freshness, synthetic: snapshot.coverage.synthetic, columns: relation.columns, hiddenFirst },
      this.#flow,
    );
    this.#guard.watch(this.#writer);
    if (relation.hidden === undefined) return this.#writer;
    if (relation.hidden === 'rows') {
      this.#tally = new Tally(this.#writer);
      return this.#tally;
    }
    this.#lookahead = new ValidityLookahead(this.#writer, plan.parts, context.endMs);
    return this.#lookahead;
  }

  /** Written so far. */
  get rows(): number {
    return this.#writer?.rows ?? 0;
  }

  /** Stored rows found so far: those written, or those that the klines written are made of. */
  get found(): number {
    return this.#tally?.found ?? this.rows;
  }

  /** @throws LostRows where so many rows are not what was proved. */
  check(count: RowCount | undefined, found: number): void {
    checkCount(this.#call.request.dataset.key, count, found);
  }

  /** All rows are written. @returns their number. @throws LostRows, ReadFault */
  finish(): number {
    this.#lookahead?.end();
    this.#flow?.end();
    const { rows } = this;
    const { expectedRows, count, parts = [] } = this.#plan ?? {};
    this.check(count, this.found);
    if (expectedRows !== undefined) {
      const [from = 0, to = 0] = [parts[0]?.from, parts.at(-1)?.to];
      this.check({ rows: expectedRows, window: { from, to } }, rows);
    }
    if (rows === 0 && !this.#call.mayBeEmpty)
      throw new ReadFault('no_rows', this.#whyNone, { warnings: this.#warnings });
    return rows;
  }

  #judge(context: PlanContext, plan: Plan, quality: readonly Warning[]) {
    const { request, coverage } = context;
    const { warnings, freshness } = evaluateWarnings(request, { coverage, gaps: plan.gaps, quality }, this.#rule);
    if (request.strict && warnings.length > 0) throw new StrictRefusal(warnings);
    this.#warnings = warnings;
    this.#whyNone = whyNoRows(context, plan);
    if (plan.parts.length === 0) throw new ReadFault('no_rows', this.#whyNone, { warnings });
    return { warnings, freshness };
  }
}

/** Adds up of how many rows the klines are made. */
class Tally implements RowSink {
  readonly #writer: RowWriter;
  found = 0;

  constructor(writer: RowWriter) {
    this.#writer = writer;
  }

  /** The first cell is the number, an int8; the writer skips it. */
  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    this.found += Number(view.getBigInt64(at + 4));
    this.#writer.row(view, bytes, at, length);
  }
}

/** For whom asks where nothing is: what is missing there, or else what there is. */
export function whyNoRows({ request, snapshot, coverage }: PlanContext, { parts }: Plan): string {
  const { dataset, filters, asOfMs, window } = request;
  const known = asOfMs === undefined ? '' : `, as it was known by ${isoOf(asOfMs)}`;
  if (!snapshot.coverage.extent) {
    return asOfMs === undefined
      ? `nothing of ${dataset.key} is proved yet`
      : `nothing of ${dataset.key} that is proved was known by ${isoOf(asOfMs)}`;
  }
  if (!coverage.extent) return `nothing of ${dataset.key} is proved of the sources that the filters name`;
  const missing = window.kind === 'range' ? missingIn(coverage, boundsOf(coverage, window)) : undefined;
  const proved = missing === undefined ? `${provedExtent(dataset, coverage)}${known}` : `missing there is ${missing}`;
  if (parts.length === 0) return `nothing of ${dataset.key} is proved in the window; ${proved}`;
  const passes = filters.length > 0 ? ' and passes the filters' : '';
  return `no proved row of ${dataset.key} lies in the window${passes}; ${proved}`;
}

/** Of file days without a gap all between is proved; of several sources, heights or snapshots that cannot be said. */
function provedExtent(dataset: DatasetDefinition, { extent, sources }: Coverage): string {
  const isOne = dataset.native.scope.kind === 'window' && sources[0]?.runs.length === 1;
  const [is, and] = isOne ? ['proved is', 'to'] : ['what is proved lies between', 'and'];
  return `${is} ${isoOf(extent!.from)} ${and} ${isoOf(extent!.to)}`;
}

/** A receiver may still ask for more when the rows have ended and the connection serves another read. */
class WireFlow implements Flow {
  #wire: PgConnection | undefined;

  constructor(wire: PgConnection) {
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
