/** One answer in progress: the facts before its rows, the writer that receives the rows, and the checks after them. */
import { isoOf, SECOND_MS } from '../../../shared/dates.ts';
import type { Logger } from '../../../shared/logger.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import type { Warning } from '../../contract/problems.ts';
import type { ReadRequest } from '../../contract/read-request.ts';
import type { RowSink } from '../../db/pg-connection.ts';
import type { Column, RowWriter } from '../../render/cells.ts';
import { readTimestamptzMs } from '../../render/text.ts';
import { askedDays } from '../klines/sources.ts';
import { contextOf, type LiveContext, type PlanContext, type ReadPlan } from '../plan/context.ts';
import { checkCount } from '../plan/counted.ts';
import { FoundRows } from '../plan/found-rows.ts';
import {
  ContractViolation,
  LostRows,
  type Part,
  ReadFault,
  type RowCount,
  type Searched,
  StrictRefusal,
} from '../read-model.ts';
import { boundsOf, type Coverage, missingIn } from '../snapshot/proved-runs.ts';
import { CoverageProbe, Session, type SnapshotOptions, Snapshots } from '../snapshot/session.ts';
import { OptimisticRows, ProbeCache } from './optimistic-read.ts';
import { planRead } from './plan-read.ts';
import { ReadDeadline, type TimeBudget } from './read-deadline.ts';
import { RecountRequests } from './recount-requests.ts';
import { RowStreams, SecondConnection } from './row-streams.ts';
import { reachOf, silenceWarnings } from './silences.ts';
import { unitWarnings } from './unit-changes.ts';
import { evaluateWarnings, type Freshness, type FreshnessRule, qualityWarnings } from './warnings.ts';

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
  /** How much of the window the read searches; absent without filters. */
  readonly searched?: Searched;
  /** The signed checkpoint of the proof log, as of the snapshot. */
  readonly checkpoint?: string;
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
  /** Whether nobody else reads, so that the read may use more of the machine. Undefined: others may. */
  readonly isAlone?: () => boolean;
  /** Inspects the snapshot of the rows further, before the first row. @returns the plan to execute. */
  inspect?(live: LiveContext, plan: ReadPlan): Promise<ReadPlan>;
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
  #plan: ReadPlan | undefined;
  #flow: RowFlow | undefined;
  #warnings: readonly Warning[] = [];
  #whyNone = '';

  constructor(call: ReadCall, rule: FreshnessRule, deadline: ReadDeadline) {
    this.#call = call;
    this.#rule = rule;
    this.#deadline = deadline;
  }

  /** @returns the sink of the plan's rows. @throws StrictRefusal, ReadFault before anything is written. */
  start(context: PlanContext, plan: ReadPlan, flow: Flow, quality: readonly Warning[] = []): RowSink {
    const { relation, snapshot } = context;
    const { warnings, freshness } = this.#evaluate(context, plan, quality);
    const hiddenFirst = relation.hidden !== undefined;
    this.#plan = plan;
    this.#flow = new RowFlow(flow);
    this.#writer = this.#call.open(
      {
        warnings,
        freshness,
        synthetic: snapshot.coverage.synthetic,
        columns: relation.columns,
        hiddenFirst,
        searched: plan.searched,
        checkpoint: snapshot.checkpoint,
      },
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

  #evaluate(context: PlanContext, plan: ReadPlan, quality: readonly Warning[]) {
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
export function whyNoRows({ request, snapshot, coverage }: PlanContext, { parts }: ReadPlan): string {
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
class RowFlow implements Flow {
  #flow: Flow | undefined;

  constructor(flow: Flow) {
    this.#flow = flow;
  }

  pause(): void {
    this.#flow?.pause();
  }

  resume(): void {
    this.#flow?.resume();
  }

  end(): void {
    this.#flow?.resume();
    this.#flow = undefined;
  }
}

interface ReaderOptions extends FreshnessRule, SnapshotOptions {
  readonly budget: TimeBudget;
  readonly granuleLookupRows: number;
  readonly log?: Logger;
}

/** Runs one read: connection, snapshot, plan, and rows into a writer. Every access style uses it. */
export class Reader {
  readonly #options: ReaderOptions;
  readonly #snapshots: Snapshots;
  readonly #probes = new ProbeCache();
  readonly #recounts: RecountRequests;
  readonly #second: SecondConnection;

  constructor(options: ReaderOptions) {
    this.#second = new SecondConnection(options.pool);
    this.#options = options;
    this.#snapshots = new Snapshots(options);
    this.#recounts = new RecountRequests(options.pool, options.log);
  }

  /** @throws ReadFault, StrictRefusal, or the signal's reason. @returns the number of rows written. */
  async read(call: ReadCall): Promise<number> {
    using deadline = new ReadDeadline(call.signal, this.#options.budget);
    try {
      return (await this.#readOptimistically(call, deadline)) ?? (await this.#readAfterProbe(call, deadline));
    } catch (error) {
      if (error instanceof LostRows) await this.#recounts.ask(call.request, error);
      throw deadline.explain(error);
    }
  }

  /** Probes coverage, plans, and reads. */
  async #readAfterProbe(call: ReadCall, deadline: ReadDeadline): Promise<number> {
    const { request } = call;
    const { connection, probe } = await this.#snapshots.begin(() => probeFor(request), call.token, deadline);
    let rows: RowStreams | undefined;
    try {
      const session = new Session(connection);
      await call.admit?.(session);
      const context = contextOf(request, this.#note(request, probe));
      const { violation } = context.snapshot;
      if (violation !== undefined) throw new ContractViolation(call.request.dataset, violation);
      const { granuleLookupRows } = this.#options;
      const live = { ...context, session, isAlone: call.isAlone, granuleLookupRows };
      const planned = await planRead(live);
      const plan = (await call.inspect?.(live, planned)) ?? planned;
      const quality = [
        ...(await qualityWarnings(live, this.#options)),
        ...(await unitWarnings(live)),
        ...(await silenceWarnings(live, reachOf(context, plan))),
      ];
      const answer = new Answer(call, this.#options, deadline);
      const { oids } = context.relation;
      // A connection of the caller's own stays the only one.
      const isAlone = call.token === undefined ? call.isAlone : undefined;
      rows = new RowStreams({ first: connection, second: this.#second, owner: deadline, isAlone, oids });
      const sink = answer.start(context, plan, rows, quality);
      for await (const statement of plan.statements) {
        const before = answer.found;
        if (statement instanceof FoundRows) {
          await statement.giveTo(sink);
          continue;
        }
        await rows.read(statement, sink);
        const found = answer.found - before;
        answer.check(statement.count, found);
        if (statement.sections) this.#second.note(statement.sections, found);
      }
      const count = answer.finish();
      rows.end();
      this.#snapshots.end(connection, call.token);
      return count;
    } catch (error) {
      rows?.discard();
      this.#snapshots.discard(connection);
      throw error;
    }
  }

  /** Reads the newest rows by the plan of the last probe. Undefined: nothing was written, and the read must probe first. */
  async #readOptimistically(call: ReadCall, deadline: ReadDeadline): Promise<number | undefined> {
    const { request, token } = call;
    if (!isLatest(request) || token !== undefined || call.inspect || call.admit || request.silences) return undefined;
    const seen = this.#probes.of(request);
    const optimistic = this.#probes.planOf(request);
    if (!seen || !optimistic) return undefined;
    const { context, plan } = optimistic;
    const { connection } = await this.#options.pool.acquire();
    deadline.own(connection);
    const probe = new CoverageProbe(request);
    const answer = new Answer(call, this.#options, deadline);
    const rows = new OptimisticRows(
      () => probe.signature === seen.signature,
      // A checkpoint may be newer than the coverage, which is all that the signatures tell.
      () => {
        const snapshot = { ...context.snapshot, checkpoint: probe.checkpoint };
        return answer.start({ ...context, snapshot }, plan, connection);
      },
    );
    try {
      await new Session(connection).all(probe, plan.statements[0], context.relation.oids, rows);
    } catch (error) {
      this.#options.pool.discard(connection);
      // The connection may have died while idle, or the storage may have changed: the full read finds out.
      if (rows.used || deadline.hasFired) throw error;
      return undefined;
    }
    try {
      return rows.used ? answer.finish() : undefined;
    } catch (error) {
      this.#probes.forget(request);
      throw error;
    } finally {
      this.#options.pool.release(connection);
    }
  }

  #note(request: ReadRequest, probe: CoverageProbe) {
    if (isLatest(request)) this.#probes.note(request, probe);
    return probe.snapshot();
  }
}

type LatestRequest = ReadRequest & { readonly window: { readonly kind: 'latest' } };

/** Whether the row counts of the newest partitions determine the extent of the read. */
function isLatest(request: ReadRequest): request is LatestRequest {
  const { window, filters, klineMs, asOfMs } = request;
  return window.kind === 'latest' && filters.length === 0 && klineMs === undefined && asOfMs === undefined;
}

const probeFor = (request: ReadRequest) =>
  new CoverageProbe(request, { tail: isLatest(request), days: askedDays(request) });
