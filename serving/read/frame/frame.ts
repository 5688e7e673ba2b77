/**
 * Reads a frame: columns of several datasets side by side, all from one snapshot. The frame is made window by window, so that it
 * streams in flat memory: each group of columns fills its values of the window's buckets, and then the rows leave.
 */
import { DAY_MS, isoOf } from '../../../shared/dates.ts';
import type { Logger } from '../../../shared/logger.ts';
import type { View } from '../../../shared/registry/definition.ts';
import type { Field } from '../../../shared/registry/index.ts';
import { writeJson } from '../../../shared/strict-json.ts';
import type { Filter } from '../../contract/filters.ts';
import { FRAME_DATETIME, FRAME_KNOWN_AT, type FrameColumn, type FrameRequest } from '../../contract/frame.ts';
import { Problem, type Warning } from '../../contract/problems.ts';
import type { ReadRequest, Window } from '../../contract/read-request.ts';
import { type Column, cellOf, type RowWriter } from '../../render/cells.ts';
import { type Flow, type ReadFacts, whyNoRows } from '../execute/answer.ts';
import { ReadDeadline, type TimeBudget } from '../execute/read-deadline.ts';
import { RecountRequests } from '../execute/recount-requests.ts';
import { silenceWarnings } from '../execute/silences.ts';
import { evaluateWarnings, type FreshnessRule, mutableWindowWarning, qualityWarnings } from '../execute/warnings.ts';
import { contextOf, type LiveContext } from '../plan/context.ts';
import { ContractViolation, LostRows, ReadFault, StrictRefusal } from '../read-model.ts';
import { admittedBy, boundsOf, type Coverage, gapsSince, gapsWithin, type ProvedRun } from '../snapshot/proved-runs.ts';
import { CoverageProbe, Session, type Snapshot, type SnapshotOptions, Snapshots } from '../snapshot/session.ts';
import { checkSeries, filtersOfSeries } from './column-series.ts';
import { judgedColumns, staleWarningOf, stateColumns, unitWarningOf } from './state-columns.ts';
import { tradeColumns, tradeRequest } from './trade-columns.ts';
import {
  type ColumnGroup,
  dtypeOf,
  FrameFlow,
  FrameRows,
  type FrameWindow,
  unitOf,
  Values,
  valuePg,
} from './values.ts';

/** What is proved of a column. */
export interface ColumnFacts {
  readonly column: FrameColumn;
  readonly provedFromMs: number | undefined;
  readonly provedThroughMs: number | undefined;
  /** Codes of the warnings that concern it. */
  readonly warnings: readonly string[];
}

export interface FrameFacts extends ReadFacts {
  readonly columnFacts: readonly ColumnFacts[];
  /** Whether nothing that it reads was published by a vendor; `synthetic` says so of some of it. */
  readonly isAllSynthetic: boolean;
}

/** The view of every frame. */
export const FRAME_VIEW: View = { id: 'frame', version: 1 };

export interface FrameCall {
  readonly request: FrameRequest;
  readonly signal: AbortSignal;
  readonly token: string | undefined;
  /** One for each dataset whose rows need a check. */
  readonly admit: readonly ((session: Session) => Promise<void>)[];
  /** Whether a frame without rows is an answer. */
  readonly mayBeEmpty?: boolean;
  /** Inspects the snapshot of the rows, before the first row. */
  inspect?(contexts: readonly LiveContext[]): Promise<void>;
  open(facts: FrameFacts, flow: Flow): RowWriter;
}

/** A frame that was read. */
export interface FrameResult {
  readonly rows: number;
  /** Digest of the rows, whatever they are rendered as. */
  readonly sha256: string;
}

interface FrameReaderOptions extends FreshnessRule, SnapshotOptions {
  readonly budget: TimeBudget;
  /** Blocks that must follow a block before it is known, if the operator set it. */
  readonly confirmations: number | undefined;
  readonly log?: Logger;
}

/** Buckets in memory at once, and the longest time that they may span. */
const MAX_BUCKETS = 32_768;
const MAX_WINDOW_MS = 366 * DAY_MS;

/** Columns with the same rows, and their positions in the frame. */
interface Group {
  readonly columns: readonly { readonly column: FrameColumn; readonly at: number }[];
  readonly probe: CoverageProbe;
}

const groupKey = ({ dataset, mode, filters }: FrameColumn) =>
  `${dataset.number} ${mode} ${writeJson(filters.map(({ clause }) => clause))}`;

/** Metrics come from native rows, but their series are those of aligned rows. */
const probeMode = ({ dataset, mode }: FrameColumn) => (dataset.aligned.seriesKey.length > 0 ? 'aligned_1s' : mode);

function groupsOf({ columns, asOf }: FrameRequest): Group[] {
  const placed = columns.map((column, at) => ({ column, at }));
  return [...Map.groupBy(placed, ({ column }) => groupKey(column)).values()].map((own) => {
    const [{ column }] = own;
    const asOfMs = typeof asOf === 'number' ? asOf : undefined;
    return { columns: own, probe: new CoverageProbe({ dataset: column.dataset, mode: probeMode(column), asOfMs }) };
  });
}

/** The columns of the rows. */
export function frameFields({ columns, asOf }: Pick<FrameRequest, 'columns' | 'asOf'>): Field[] {
  const time = (name: string, doc: string): Field => ({
    name,
    dtype: 'timestamp_utc',
    nullable: false,
    doc,
    pg: 'int8',
    sql: '',
    columns: [],
  });
  return [
    time(FRAME_DATETIME, 'Start of the bucket, a multiple of its size since 1970 UTC.'),
    ...(asOf === 'row' ? [time(FRAME_KNOWN_AT, 'End of the bucket: the row holds nothing that was known later.')] : []),
    ...columns.map((column): Field => {
      const dtype = dtypeOf(column);
      const { doc } = column.field;
      return {
        name: column.name,
        dtype,
        nullable: true,
        unit: unitOf(column),
        doc,
        pg: valuePg({ dtype }),
        sql: '',
        columns: [],
      };
    }),
  ];
}

/** A frame as far as its snapshot is known. */
interface Evaluated {
  readonly groups: readonly Group[];
  readonly contexts: readonly LiveContext[];
  /** Undefined: nothing is proved in the window. */
  readonly extent: Extent | undefined;
  readonly facts: FrameFacts;
  readonly warnings: readonly Warning[];
}

/** The time of the rows: [from, to), both multiples of the grid, and the end of the last bucket. */
interface Extent {
  readonly from: number;
  readonly to: number;
  readonly lastEnd: number;
}

/** When the first bucket ends, and when the last one does. */
const endsOf = ({ from, lastEnd }: Extent, gridMs: number) => ({
  first: Math.min(from + gridMs, lastEnd),
  last: lastEnd,
});

/** The first queries of a frame's snapshot, and what follows from them. */
export class FrameProbe {
  readonly groups: readonly Group[];
  readonly steps: CoverageProbe['steps'];
  readonly #request: FrameRequest;

  constructor(request: FrameRequest) {
    this.#request = request;
    this.groups = groupsOf(request);
    this.steps = this.groups.flatMap(({ probe }) => probe.steps);
  }

  /** @throws Problem QUERY_CONTRACT_ERROR, ReadFault, StrictRefusal */
  async evaluate(session: Session, rule: FreshnessRule): Promise<Evaluated> {
    const request = this.#request;
    const snapshots = this.groups.map((group) => snapshotOf(group, request));
    const nowMs = rule.now();
    const extent = extentOf(request, snapshots, nowMs);
    const contexts = this.groups.map((group, index) =>
      contextIn(group, snapshots[index], { request, session, extent }),
    );
    return { groups: this.groups, contexts, extent, ...(await this.#factsOf(contexts, { extent, nowMs }, rule)) };
  }

  /** The warnings of each group, and what is proved of each column. */
  async #factsOf(
    contexts: readonly LiveContext[],
    { extent, nowMs }: { readonly extent: Extent | undefined; readonly nowMs: number },
    rule: FreshnessRule,
  ) {
    const request = this.#request;
    const { groups } = this;
    const warnings: Warning[] = [...mutableWindowWarning(request.window)];
    const columnFacts = new Map<number, ColumnFacts>();
    for (const [index, context] of contexts.entries()) {
      const { coverage } = context;
      const isOpen = request.window.kind === 'latest';
      const quality = [
        ...(await qualityWarnings(context, rule, isOpen ? Number.POSITIVE_INFINITY : undefined)),
        ...(await this.#unitWarnings(index, context, extent)),
        ...(extent ? await silenceWarnings(context, { from: extent.from, to: extent.lastEnd }) : []),
      ];
      const gaps = gapsOf(request, coverage, extent, nowMs);
      const judged = {
        dataset: context.request.dataset,
        mode: context.request.mode,
        window: isOpen ? ({ kind: 'history' } as const) : context.request.window,
        asOfMs: typeof request.asOf === 'number' ? request.asOf : undefined,
      };
      const found = evaluateWarnings(judged, { coverage, gaps, quality }, rule).warnings;
      const { columns } = groups[index];
      const names = columns.map(({ column }) => column.name);
      warnings.push(
        ...found.map(({ code, message, details }) => ({
          code,
          message: `${names.join(', ')}: ${message}`,
          details: { ...details, columns: names },
        })),
      );
      const judgedByAge = judgedColumns(columns);
      const stale = await this.#staleWarning(judgedByAge, context, extent, rule);
      if (stale) {
        const own = judgedByAge.map(({ column }) => column.name);
        const details = { ...stale.details, columns: own };
        warnings.push({ ...stale, message: `${own.join(', ')}: ${stale.message}`, details });
      }
      for (const one of columns) {
        const { column, at } = one;
        const codes = [...found, ...(stale && judgedByAge.includes(one) ? [stale] : [])].map(({ code }) => code);
        columnFacts.set(at, {
          column,
          provedFromMs: coverage.extent?.from,
          provedThroughMs: coverage.extent && provedEnd(coverage),
          warnings: codes,
        });
      }
    }
    if (request.strict && warnings.length > 0) throw new StrictRefusal(warnings);
    const facts: FrameFacts = {
      warnings,
      freshness: null,
      synthetic: contexts.some(({ snapshot }) => snapshot.coverage.synthetic),
      columns: frameFields(request).map((field): Column => ({ field, cell: cellOf(field) })),
      hiddenFirst: false,
      checkpoint: contexts[0].snapshot.checkpoint,
      isAllSynthetic: contexts.every(({ snapshot }) => snapshot.coverage.synthetic),
      columnFacts: request.columns.map((_, at) => columnFacts.get(at)!),
    };
    return { facts, warnings };
  }

  async #staleWarning(
    columns: Group['columns'],
    context: LiveContext,
    extent: Extent | undefined,
    { intervalSeconds }: FreshnessRule,
  ): Promise<Warning | undefined> {
    if (!extent || columns.length === 0 || context.request.dataset.trades) return undefined;
    const { asOf, gridMs } = this.#request;
    return await staleWarningOf(context, { columns, asOf, ends: endsOf(extent, gridMs) }, { gridMs, intervalSeconds });
  }

  async #unitWarnings(group: number, context: LiveContext, extent: Extent | undefined): Promise<Warning[]> {
    if (!extent || context.request.dataset.partition.kind !== 'vintage') return [];
    const { asOf, gridMs } = this.#request;
    const needs = { columns: this.groups[group].columns, asOf, ends: endsOf(extent, gridMs) };
    return await unitWarningOf(context, needs, { from: extent.from, gridMs });
  }
}

export class FrameReader {
  readonly #options: FrameReaderOptions;
  readonly #snapshots: Snapshots;
  readonly #recounts: RecountRequests;

  constructor(options: FrameReaderOptions) {
    this.#options = options;
    this.#snapshots = new Snapshots(options);
    this.#recounts = new RecountRequests(options.pool, options.log);
  }

  /** @throws Problem QUERY_CONTRACT_ERROR, ReadFault, StrictRefusal, or the signal's reason. */
  async read(call: FrameCall): Promise<FrameResult> {
    using deadline = new ReadDeadline(call.signal, this.#options.budget);
    try {
      return await this.#read(call, deadline);
    } catch (error) {
      if (error instanceof Problem) throw error;
      throw deadline.explain(error);
    }
  }

  async #read(call: FrameCall, deadline: ReadDeadline): Promise<FrameResult> {
    const { request, token } = call;
    const { connection, probe } = await this.#snapshots.begin(() => new FrameProbe(request), token, deadline);
    try {
      const session = new Session(connection);
      for (const admit of call.admit) await admit(session);
      const found = await probe.evaluate(session, this.#options);
      const { extent, contexts, facts, warnings } = found;
      if (!extent && !call.mayBeEmpty) {
        throw new ReadFault('no_rows', whyNoRows(contexts[0], { gaps: [], parts: [], statements: [] }), { warnings });
      }
      await call.inspect?.(contexts);
      const flow = new FrameFlow(connection, call.signal);
      const writer = call.open(facts, flow);
      deadline.watch(writer);
      const rows = new FrameRows(request, writer, flow);
      try {
        if (extent) await this.#fill(request, { ...found, extent }, rows);
      } finally {
        flow.end();
      }
      // The rows end early when the receiver goes away.
      call.signal.throwIfAborted();
      const result = { rows: writer.rows, sha256: rows.digest() };
      this.#snapshots.end(connection, token);
      return result;
    } catch (error) {
      this.#snapshots.discard(connection);
      throw error;
    }
  }

  async #fill(
    request: FrameRequest,
    found: { readonly groups: readonly Group[]; readonly contexts: readonly LiveContext[]; readonly extent: Extent },
    rows: FrameRows,
  ): Promise<void> {
    const { extent, contexts } = found;
    const columns: ColumnGroup[] = [];
    // One after the other: they share a connection.
    for (const [index, group] of found.groups.entries()) {
      columns.push(await this.#columns(request, group, contexts[index], extent));
    }
    // The database reads a window while the rows of the one before it leave.
    let leaving: Promise<void> = Promise.resolve();
    const maxWindowMs = Math.min(MAX_WINDOW_MS, ...columns.map((group) => group.maxWindowMs ?? MAX_WINDOW_MS));
    let [values, other] = [new Values(0, request.columns.length), new Values(0, request.columns.length)];
    try {
      for (const window of windowsOf(extent, request.gridMs, maxWindowMs)) {
        [values, other] = [other, values];
        values.reset((window.to - window.from) / request.gridMs);
        for (const [index, group] of columns.entries()) {
          await this.#recounting(contexts[index], () => group.fill(window, values));
        }
        await leaving;
        leaving = rows.write(window, values);
        // Its failure is thrown where it is awaited.
        leaving.catch(() => {});
      }
      await leaving;
    } catch (error) {
      // No row may be written any more when the caller learns of the failure, because its buffers go to others.
      rows.stop();
      await leaving.catch(() => {});
      throw error;
    }
    for (const [index, group] of columns.entries())
      await this.#recounting(contexts[index], async () => group.finish?.());
  }

  #columns(request: FrameRequest, group: Group, context: LiveContext, extent: Extent): Promise<ColumnGroup> {
    const { asOf, gridMs, fill } = request;
    const { columns } = group;
    if (context.request.dataset.trades) {
      // A trade at the very time is known. As of each row, only the last bucket can end within a second.
      const knownTo = typeof asOf === 'number' ? asOf + 1 : asOf === 'row' ? extent.lastEnd : undefined;
      return tradeColumns(context, { columns, gridMs, fill }, knownTo);
    }
    const ends = endsOf(extent, gridMs);
    return stateColumns(context, { columns, asOf, ends, confirmations: this.#options.confirmations });
  }

  /** Asks for a recount of the partitions that lost rows. */
  async #recounting(context: LiveContext, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (error instanceof LostRows) await this.#recounts.ask(context.request, error);
      throw error;
    }
  }
}

/** The request of a group as the read core takes it. */
function requestOf({ columns }: Group, request: FrameRequest, window: Window): ReadRequest {
  const [{ column }] = columns;
  const { dataset, filters } = column;
  const own = columns.map((one) => one.column);
  if (dataset.trades) return tradeRequest(own, request.gridMs, window);
  const asOfMs = typeof request.asOf === 'number' ? request.asOf : undefined;
  const isMetric = dataset.aligned.seriesKey.length > 0;
  // The blocks of all rows tell what is known, so the filters of a column of blocks are part of its statement.
  return {
    dataset,
    mode: probeMode(column),
    fields: [],
    filters: isMetric ? filters : [],
    window,
    strict: request.strict,
    asOfMs: isMetric ? asOfMs : undefined,
  };
}

interface GroupSnapshot {
  readonly snapshot: Snapshot;
  /** Coverage of the sources that the filters admit. */
  readonly coverage: Coverage;
  /** Those of the request; of a dataset with many series one of them names the source. */
  readonly filters: readonly Filter[];
}

/** @throws Problem QUERY_CONTRACT_ERROR where the filters name no series or several; ContractViolation */
function snapshotOf(group: Group, request: FrameRequest): GroupSnapshot {
  const snapshot = group.probe.snapshot();
  const [{ column, at }] = group.columns;
  if (column.mode === 'aligned_1s' && snapshot.violation !== undefined) {
    throw new ContractViolation(column.dataset, snapshot.violation);
  }
  const history = requestOf(group, request, { kind: 'history' });
  const { coverage, series } = contextOf(history, snapshot);
  if (column.dataset.aligned.seriesKey.length === 0) return { snapshot, coverage, filters: history.filters };
  checkSeries(
    column,
    at,
    snapshot,
    series.map(({ key }) => key),
  );
  const filters = filtersOfSeries(column, series);
  return { snapshot, coverage: admittedBy(snapshot.coverage, filters), filters };
}

function contextIn(
  group: Group,
  { snapshot, filters }: GroupSnapshot,
  {
    request,
    session,
    extent,
  }: { readonly request: FrameRequest; readonly session: Session; readonly extent: Extent | undefined },
): LiveContext {
  const { window } = request;
  const given = window.kind === 'range' ? window : { fromMs: undefined, toMs: undefined };
  const range: Window = {
    kind: 'range',
    fromMs: given.fromMs ?? extent?.from,
    toMs: given.toMs ?? extent?.to,
  };
  return {
    ...contextOf({ ...requestOf(group, request, range), filters, silences: request.silences }, snapshot),
    session,
  };
}

/** The end of what is proved, of the source that is furthest ahead. */
const provedEnd = ({ sources }: Coverage): number =>
  Math.max(...sources.flatMap(({ runs }) => runs.at(-1)?.through ?? []));

/**
 * The buckets of the window in which any column can have a value; undefined where there is none. The latest buckets are those of
 * trades if the frame has any: states are checked at other times than trades are proved.
 */
function extentOf(
  { window, gridMs, asOf, columns }: FrameRequest,
  groups: readonly GroupSnapshot[],
  nowMs: number,
): Extent | undefined {
  const proved = groups.flatMap(({ coverage }) => (coverage.extent ? [coverage] : []));
  if (proved.length === 0) return undefined;
  const trades = columns.some(({ dataset }) => dataset.trades) ? proved.filter(({ kind }) => kind === 'file_day') : [];
  const ends =
    window.kind === 'latest'
      ? (trades.length > 0 ? trades : proved).map(provedEnd)
      : proved.map((coverage) => Math.max(coverage.extent!.to, ...lastEnds(coverage)));
  const knownTo = typeof asOf === 'number' ? Math.min(asOf, nowMs) + 1 : Number.POSITIVE_INFINITY;
  const windowTo = (window.kind === 'range' ? window.toMs : undefined) ?? Number.POSITIVE_INFINITY;
  const passed = ends.map((ms) => endedBy({ gridMs, asOf }, Math.min(ms, windowTo), nowMs));
  const end = Math.min(Math.max(...passed), knownTo);
  const start = Math.min(...proved.map(({ extent }) => extent!.from));
  const to = Math.ceil(end / gridMs) * gridMs;
  const wanted =
    window.kind === 'latest' ? to - window.rows * gridMs : window.kind === 'range' ? window.fromMs! : start;
  const from = Math.floor(Math.max(wanted, start) / gridMs) * gridMs;
  return from < end ? { from, to, lastEnd: Math.min(to, end) } : undefined;
}

/**
 * The end of the rows where columns end at this time. Some states hold beyond now, such as a fund's to the next market day, but
 * what will be known at the end of a bucket is not known before it.
 */
const endedBy = ({ gridMs, asOf }: Pick<FrameRequest, 'gridMs' | 'asOf'>, ms: number, nowMs: number): number =>
  asOf === 'row' && ms > nowMs ? Math.floor(nowMs / gridMs) * gridMs : ms;

const lastEnds = ({ sources }: Coverage) => sources.flatMap(({ runs }) => runs.at(-1)?.to ?? []);

/** The gaps of a column; the last buckets have those since the first of them. */
function gapsOf(request: FrameRequest, coverage: Coverage, extent: Extent | undefined, nowMs: number) {
  const { window } = request;
  if (window.kind === 'latest' && extent) return gapsSince(coverage, extent.from);
  const bounds = boundsOf(coverage, window);
  if (!bounds.toIsGiven || bounds.to <= nowMs) return gapsWithin(coverage, bounds);
  const ended = (run: ProvedRun) => ({ ...run, to: Math.max(run.from, endedBy(request, run.to, nowMs)) });
  const sources = coverage.sources.map((source) => ({ ...source, runs: source.runs.map(ended) }));
  return gapsWithin({ ...coverage, sources }, bounds);
}

/** Windows end with a day where buckets do, so that the rows of whole days are counted. */
function* windowsOf(
  { from: start, to: end, lastEnd }: Extent,
  gridMs: number,
  maxWindowMs: number,
): Generator<FrameWindow> {
  const days = Math.max(1, Math.floor((MAX_BUCKETS * gridMs) / DAY_MS));
  const spanMs = Math.min(days * DAY_MS, maxWindowMs);
  for (let from = start; from < end; ) {
    const day = Math.floor(from / DAY_MS) * DAY_MS;
    const to = Math.min(end, Math.max(from + gridMs, Math.floor((day + spanMs) / gridMs) * gridMs));
    const first = from;
    yield { from, to, gridMs, endOf: (bucket) => Math.min(first + (bucket + 1) * gridMs, lastEnd) };
    from = to;
  }
}

/** A time of a request, for documents. */
export const asOfText = (asOf: FrameRequest['asOf']): string | null =>
  asOf === undefined ? null : typeof asOf === 'number' ? isoOf(asOf) : asOf;
