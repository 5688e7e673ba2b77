/** One answer in progress: the facts before its rows, the writer that receives the rows, and the checks after them. */
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

const SECOND_MS = 1000;

/** Computes the end of validity of rows that arrive completely and in order: the next row ends the validity of a row. */
class ValidityLookahead implements RowSink {
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

  /** The first cell is the row's second. The writer skips it. */
  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    const ms = readTimestamptzMs(view, at + 4);
    this.#resolve(ms);
    this.#writer.row(view, bytes, at, length);
    this.#lastMs = ms;
  }

  /** Call it after the last row. */
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

/** The facts about an answer that are known before its first row. */
export interface ReadFacts {
  readonly warnings: readonly Warning[];
  readonly freshness: Freshness | null;
  readonly synthetic: boolean;
  readonly columns: readonly Column[];
  /** Whether rows start with a cell that the answer does not show. */
  readonly hiddenFirst: boolean;
}

/** Slows the database down while the receiver of the rows is behind. */
export interface Flow {
  pause(): void;
  resume(): void;
}

export interface ReadCall {
  readonly request: ReadRequest;
  /** Aborted when the receiver goes away; the database then stops at once. */
  readonly signal: AbortSignal;
  /** Password of the restricted role, for datasets whose rights demand the caller's own. */
  readonly token: string | undefined;
  /** Checks in the snapshot, before anything else, whether these rows may be read. Undefined: any row may be read. */
  readonly admit: ((session: Session) => Promise<void>) | undefined;
  /** Whether a proved window without rows is an answer. */
  readonly mayBeEmpty?: boolean;
  /** Inspects the snapshot of the rows further, before the first row. @returns the plan to execute. */
  inspect?(live: LiveContext, plan: Plan): Promise<Plan>;
  /** Creates the writer; called once, before the first row. */
  open(facts: ReadFacts, flow: Flow): RowWriter;
}

export class Answer {
  readonly #call: ReadCall;
  readonly #rule: FreshnessRule;
  readonly #deadline: ReadDeadline;
  #writer: RowWriter | undefined;
  #lookahead: ValidityLookahead | undefined;
  #counter: SourceRowCounter | undefined;
  #plan: Plan | undefined;
  #flow: ConnectionFlow | undefined;
  #warnings: readonly Warning[] = [];
  #whyNone = '';

  constructor(call: ReadCall, rule: FreshnessRule, deadline: ReadDeadline) {
    this.#call = call;
    this.#rule = rule;
    this.#deadline = deadline;
  }

  /** @returns the sink of the plan's rows. @throws StrictRefusal, ReadFault before anything is written. */
  start(context: PlanContext, plan: Plan, connection: PgConnection, quality: readonly Warning[] = []): RowSink {
    const { relation, snapshot } = context;
    const { warnings, freshness } = this.#evaluate(context, plan, quality);
    const hiddenFirst = relation.hidden !== undefined;
    this.#plan = plan;
    this.#flow = new ConnectionFlow(connection);
    this.#writer = this.#call.open(
      { warnings, freshness, synthetic: snapshot.coverage.synthetic, columns: relation.columns, hiddenFirst },
      this.#flow,
    );
    this.#deadline.watch(this.#writer);
    if (relation.hidden === undefined) return this.#writer;
    if (relation.hidden === 'rows') {
      this.#counter = new SourceRowCounter(this.#writer);
      return this.#counter;
    }
    this.#lookahead = new ValidityLookahead(this.#writer, plan.parts, context.endMs);
    return this.#lookahead;
  }

  /** Number of rows written so far. */
  get rows(): number {
    return this.#writer?.rows ?? 0;
  }

  /** Number of stored rows found so far: the rows written, or those that the written klines aggregate. */
  get found(): number {
    return this.#counter?.found ?? this.rows;
  }

  /** @throws LostRows when the number of rows found differs from the proved count. */
  check(count: RowCount | undefined, found: number): void {
    checkCount(this.#call.request.dataset.key, count, found);
  }

  /** Ends the answer after its last row. @returns the number of rows written. @throws LostRows, ReadFault */
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

  #evaluate(context: PlanContext, plan: Plan, quality: readonly Warning[]) {
    const { request, coverage } = context;
    const { warnings, freshness } = evaluateWarnings(request, { coverage, gaps: plan.gaps, quality }, this.#rule);
    if (request.strict && warnings.length > 0) throw new StrictRefusal(warnings);
    this.#warnings = warnings;
    this.#whyNone = whyNoRows(context, plan);
    if (plan.parts.length === 0) throw new ReadFault('no_rows', this.#whyNone, { warnings });
    return { warnings, freshness };
  }
}

/** Adds up how many stored rows the klines aggregate. */
class SourceRowCounter implements RowSink {
  readonly #writer: RowWriter;
  found = 0;

  constructor(writer: RowWriter) {
    this.#writer = writer;
  }

  /** The first cell is the number of rows, an int8. The writer skips it. */
  row(view: DataView, bytes: Buffer, at: number, length: number): void {
    this.found += Number(view.getBigInt64(at + 4));
    this.#writer.row(view, bytes, at, length);
  }
}

/** Explains an empty answer: what is missing in the window, or what is proved. */
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

/** File days without a gap are proved throughout their extent. Several sources, heights or snapshots may have gaps in it. */
function provedExtent(dataset: DatasetDefinition, { extent, sources }: Coverage): string {
  const isOne = dataset.native.scope.kind === 'window' && sources[0]?.runs.length === 1;
  const [start, and] = isOne ? ['proved is', 'to'] : ['what is proved lies between', 'and'];
  return `${start} ${isoOf(extent!.from)} ${and} ${isoOf(extent!.to)}`;
}

/** Ignores a receiver that asks for more after the last row: the connection may already serve another read. */
class ConnectionFlow implements Flow {
  #connection: PgConnection | undefined;

  constructor(connection: PgConnection) {
    this.#connection = connection;
  }

  pause(): void {
    this.#connection?.pause();
  }

  resume(): void {
    this.#connection?.resume();
  }

  end(): void {
    this.#connection?.resume();
    this.#connection = undefined;
  }
}
