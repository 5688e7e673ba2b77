/** Columns of states: for each bucket the last value that was known at its end (see states.ts), from the rows of the database. */
import { DAY_MS } from '../../../shared/dates.ts';
import { assert } from '../../../shared/errors.ts';
import type { Range } from '../../../shared/ranges.ts';
import { confirmationDepth } from '../../../shared/registry/blocks.ts';
import { nativeRows } from '../../../shared/registry/instruments.ts';
import { isOfPartition } from '../../../shared/registry/keys.ts';
import type { FrameColumn } from '../../contract/frame.ts';
import type { Warning } from '../../contract/problems.ts';
import { array, int2, int8, OID, Params, text } from '../../db/pg-messages.ts';
import { unitsOf, unitWarning } from '../execute/unit-changes.ts';
import type { LiveContext } from '../plan/context.ts';
import type { Part } from '../read-model.ts';
import { knownMsOf, lastValid, type ProvedRun } from '../snapshot/proved-runs.ts';
import { cadenceOf, type ShownState, StaleStates, staleAfter } from './stale-states.ts';
import { type BlockKnowledge, KnownBlocks, RevisedSeries, type Revision, type State, TimedStates } from './states.ts';
import { type ColumnGroup, type FrameWindow, ValueRows, type Values, valueOid, valueSql } from './values.ts';

interface StateNeeds {
  /** The columns, and their positions in the frame. */
  readonly columns: readonly { readonly column: FrameColumn; readonly at: number }[];
  /** When the first bucket ends, and when the last one does. */
  readonly ends: { readonly first: number; readonly last: number };
  readonly asOf: number | 'row' | undefined;
  /** The operator's number of confirmations, if set. */
  readonly confirmations: number | undefined;
}

/** @param context of native rows, or of aligned rows where the columns are fields of those; without filters. */
export async function stateColumns(context: LiveContext, needs: StateNeeds): Promise<ColumnGroup> {
  const { kind } = context.request.dataset.partition;
  if (kind === 'vintage' || kind === 'capture') {
    const cells = { cellsOf: () => cellsOf(needs), oids: oidsOf(needs) };
    return new RevisedColumns(await revisedSeries(context, needs, cells), needs);
  }
  return new TimedColumns(context, needs, kind === 'height' ? await blockKnowledge(context, needs) : undefined);
}

/** As of a time the last bucket ends 1 ms after it, so that it holds trades of that instant. No state is proved to hold longer. */
const atOf = ({ asOf }: Pick<StateNeeds, 'asOf'>, endMs: number): number =>
  typeof asOf === 'number' ? Math.min(endMs, asOf) : endMs;

const holds = ({ ms, validToMs }: State, { maxAgeMs = Number.POSITIVE_INFINITY }: FrameColumn, atMs: number): boolean =>
  validToMs >= atMs && atMs - ms <= maxAgeMs;

function setState(needs: StateNeeds, state: State | undefined, endMs: number, bucket: number, values: Values): void {
  const atMs = atOf(needs, endMs);
  if (!state) return;
  for (let index = 0; index < needs.columns.length; index++) {
    const { column, at } = needs.columns[index];
    const upper = state.values[2 * index];
    if (Number.isNaN(upper) || !holds(state, column, atMs)) continue;
    values.set(bucket, at, upper, state.values[2 * index + 1]);
  }
}

class RevisedColumns implements ColumnGroup {
  readonly #series: RevisedSeries;
  readonly #needs: StateNeeds;

  constructor(series: RevisedSeries, needs: StateNeeds) {
    this.#series = series;
    this.#needs = needs;
  }

  async fill(window: FrameWindow, values: Values): Promise<void> {
    for (let bucket = 0; bucket < values.buckets; bucket++) {
      const endMs = window.endOf(bucket);
      setState(this.#needs, this.#series.at(endMs), endMs, bucket, values);
    }
  }
}

const cellsOf = ({ columns }: StateNeeds) => columns.map(({ column }) => valueSql(column.field));
const oidsOf = ({ columns }: StateNeeds) => columns.map(({ column }) => valueOid(column.field));

/** All revisions of one series up to the frame's end: some thousands, of which a frame needs the first as much as the last. */
async function revisedSeries(
  context: LiveContext,
  { columns, ends, asOf }: Pick<StateNeeds, 'columns' | 'ends' | 'asOf'>,
  { cellsOf, oids }: { cellsOf(params: Params): readonly string[]; readonly oids: readonly number[] },
): Promise<RevisedSeries> {
  const { session, coverage } = context;
  const { dataset } = context.request;
  const { native, aligned, number, offset } = dataset;
  const { latestBy, isPresent = 'true' } = aligned.seconds!;
  assert(latestBy !== undefined, 'metrics say which of their rows gives the value');
  const [{ column }] = columns;
  const params = new Params();
  const time = `t."${native.time.column}"`;
  const tests = [
    `p.state = 'proved'`,
    `${time} < ${params.add(int8(ends.last))}`,
    ...(typeof asOf === 'number' ? [`${knownMsOf(dataset)} <= ${params.add(int8(asOf))}`] : []),
    ...column.filters.map((filter) => filter.test(params)),
  ];
  const sql = `select ${[time, 't.known_ms', `(${isPresent})::int::int8`, ...cellsOf(params)].join(', ')}
    from (select t.*, p.ingested_at, ${offset.sql} as source_offset, ${knownMsOf(dataset)} as known_ms
      from ${nativeRows(dataset)} t join partitions p on p.dataset_id = ${number} and ${isOfPartition()}
      where ${tests.join(' and ')}) t
    order by ${[time, ...latestBy].join(', ')}`;
  const rows: Revision[] = [];
  const sink = new ValueRows(3, ([ms, knownMs, present], values) => {
    rows.push({ ms: ms!, knownMs: knownMs!, isPresent: present === 1, values });
  });
  await session.stream({ text: sql, params: params.list }, [OID.int8, OID.int8, OID.int8, ...oids], sink);
  const options = { byRow: asOf === 'row', isLate: dataset.partition.kind === 'capture' };
  return new RevisedSeries(rows, coverage.sources[0]?.runs ?? [], options);
}

/** The warning where the values of the buckets are in several units, of a series whose every vintage has its own. */
export async function unitWarningOf(
  context: LiveContext,
  needs: Pick<StateNeeds, 'columns' | 'ends' | 'asOf'>,
  { from, gridMs }: { readonly from: number; readonly gridMs: number },
): Promise<Warning[]> {
  const [[sourceId, units]] = [...(await unitsOf(context)), [undefined, []] as const];
  if (sourceId === undefined) return [];
  const numberOf = (params: Params) => [`array_position(${params.add(array(units.map(text)))}, t.metric_unit)::int8`];
  const series = await revisedSeries(context, needs, { cellsOf: numberOf, oids: [OID.int8] });
  const shown = new Set<string>();
  const { first, last } = needs.ends;
  let endMs = Number.NEGATIVE_INFINITY;
  for (const ms of series.changes) {
    if (ms <= endMs) continue;
    if (ms > last) break;
    // The end of the bucket in which the state changes, which is the first that shows it.
    endMs = ms <= first ? first : Math.min(from + Math.ceil((ms - from) / gridMs) * gridMs, last);
    const state = series.at(endMs);
    if (state && needs.columns.some(({ column }) => holds(state, column, atOf(needs, endMs)))) {
      shown.add(units[state.values[1] - 1]);
    }
  }
  return await unitWarning(context, new Map([[sourceId, [...shown]]]));
}

/** The columns whose request does not say itself how old a state may be. */
export const judgedColumns = <C extends { readonly column: FrameColumn }>(columns: readonly C[]): readonly C[] =>
  columns.filter(({ column }) => column.maxAgeMs === undefined);

/** The warning where buckets show states that are older than twice their cadence. */
export async function staleWarningOf(
  context: LiveContext,
  needs: Pick<StateNeeds, 'columns' | 'ends' | 'asOf'>,
  {
    gridMs,
    intervalSeconds,
  }: { readonly gridMs: number; readonly intervalSeconds: (name: string) => number | undefined },
): Promise<Warning | undefined> {
  const { dataset } = context.request;
  const cadence = cadenceOf(dataset, context.coverage.sources[0]?.sourceId, intervalSeconds);
  if (cadence === undefined) return undefined;
  const { first: firstEnd, last: lastEnd } = needs.ends;
  const stale = new StaleStates(cadence, { gridMs, firstEnd, lastEnd });
  const { kind } = dataset.partition;
  if (kind === 'vintage' || kind === 'capture') {
    for (const state of await shownRevisions(context, needs, gridMs)) stale.add(state);
  } else {
    // A fresh one cannot be stale before that much time has passed.
    const leastMs = staleAfter({ ms: 0, knownMs: 0, shownFrom: 0, shownTo: 0 }, cadence, gridMs);
    for (const state of await longShown(context, needs, leastMs)) stale.add(state);
  }
  return stale.warning();
}

/** The states of a series with revisions, and the buckets that show them. */
async function shownRevisions(
  context: LiveContext,
  needs: Pick<StateNeeds, 'columns' | 'ends' | 'asOf'>,
  gridMs: number,
): Promise<ShownState[]> {
  const { columns, ends } = needs;
  const cellsOf = () => columns.map(({ column }) => valueSql(column.field));
  const oids = columns.map(({ column }) => valueOid(column.field));
  const series = await revisedSeries(context, needs, { cellsOf, oids });
  const changes = series.changes.map((ms) => Math.min(Math.max(ms, ends.first), ends.last));
  const shown: ShownState[] = [];
  for (const [index, change] of changes.entries()) {
    const next = changes[index + 1] ?? Number.POSITIVE_INFINITY;
    // A change at the very end of a bucket is in it: the buckets from this one to the last before the next change.
    const endMs = change === ends.first ? change : Math.min(Math.ceil(change / gridMs) * gridMs, ends.last);
    if (next <= endMs && index + 1 < changes.length) continue;
    const state = series.at(endMs);
    if (!state || columns.every((_, at) => Number.isNaN(state.values[2 * at]))) continue;
    const { ms, knownMs, validToMs } = state;
    shown.push({ ms, knownMs, shownFrom: change - 1, shownTo: Math.min(validToMs, next - 1) });
  }
  return shown;
}

/** Rows of blocks or snapshots after which none came for longer than this, each until the next came. */
async function longShown(
  context: LiveContext,
  { columns, ends }: Pick<StateNeeds, 'columns' | 'ends'>,
  leastMs: number,
): Promise<ShownState[]> {
  const { session, coverage } = context;
  const runs = coverage.sources[0]?.runs ?? [];
  const timeMs = timeOf(context);
  const filters = columns[0].column.filters;
  const rowsIn = (range: Range, params: Params) => {
    const tests = filters.map((filter) => `coalesce(${filter.test(params)}, false)`);
    return `${rowsOf(context, range, params)}${tests.map((test) => ` and ${test}`).join('')}`;
  };
  const oldest = coverage.extent?.from ?? ends.first;
  const before = new Params();
  const [[carried]] = await session.rows(
    `select max(${timeMs})::text ${rowsIn({ from: Math.min(oldest, ends.first), to: ends.first }, before)}`,
    before,
  );
  const from = carried === null ? ends.first : Number(carried);
  if (from >= ends.last) return [];
  const params = new Params();
  const rows = await session.rows(
    `select ms::text, next::text from (select ms, lead(ms, 1, ${params.add(int8(ends.last))}) over (order by ms) as next
       from (select ${timeMs} as ms ${rowsIn({ from, to: ends.last }, params)}) t) t
     where next - ms > ${params.add(int8(leastMs))} order by ms`,
    params,
  );
  return rows.map(([own, next]) => {
    const ms = Number(own);
    return { ms, knownMs: ms, shownFrom: ms, shownTo: Math.min(Number(next), lastValid(runs, ms)) };
  });
}

/** No block's time is further than this from those of its neighbours. */
const NEIGHBOURS_MS = 365 * DAY_MS;

/** What is needed to tell when blocks are known; undefined where every block counts. */
async function blockKnowledge(context: LiveContext, { asOf, confirmations }: StateNeeds) {
  if (asOf === undefined) return undefined;
  const { session, request, coverage } = context;
  const [[chain] = ['']] = await session.rows(`select t.source_chain from ${nativeRows(request.dataset)} t limit 1`);
  return {
    depth: confirmationDepth(confirmations, chain!),
    proved: coverage.sources[0]?.runs.map(({ span }) => span) ?? [],
  };
}

/** SQL of the first and the last height of a row; undefined where rows have none. */
function heightsOf({
  request: { dataset, mode },
}: LiveContext): { readonly first: string; readonly last: string } | undefined {
  const { scope } = dataset.native;
  if (dataset.partition.kind !== 'height' || scope.kind !== 'column') return undefined;
  if (mode === 'native') return { first: `t."${scope.column}"`, last: `t."${scope.column}"` };
  return { first: 't.first_block_height', last: 't.last_block_height' };
}

/** Rows of blocks and snapshots, which have one time and no revisions. */
class TimedColumns implements ColumnGroup {
  readonly #context: LiveContext;
  readonly #needs: StateNeeds;
  readonly #knowledge: Pick<BlockKnowledge, 'depth' | 'proved'> | undefined;
  readonly #runs: readonly ProvedRun[];
  #states: TimedStates | undefined;
  /** Rows before this time have been read. */
  #readTo = 0;

  constructor(
    context: LiveContext,
    needs: StateNeeds,
    knowledge: Pick<BlockKnowledge, 'depth' | 'proved'> | undefined,
  ) {
    this.#context = context;
    this.#needs = needs;
    this.#knowledge = knowledge;
    this.#runs = context.coverage.sources[0]?.runs ?? [];
  }

  async fill(window: FrameWindow, values: Values): Promise<void> {
    const states = this.#states ?? (await this.#start());
    this.#states = states;
    let bucket = 0;
    const settle = (beforeMs: number) => {
      for (; bucket < values.buckets && window.endOf(bucket) < beforeMs; bucket++) {
        const endMs = window.endOf(bucket);
        setState(this.#needs, states.at(endMs), endMs, bucket, values);
      }
    };
    const toMs = window.endOf(values.buckets - 1) + 1;
    await this.#read(states, { from: this.#readTo, to: toMs }, settle);
    this.#readTo = toMs;
    settle(Number.POSITIVE_INFINITY);
  }

  /** Reads back from the first bucket's end until a row is known there, and twice as far each time. */
  async #start(): Promise<TimedStates> {
    const { first } = this.#needs.ends;
    const oldest = this.#context.coverage.extent?.from ?? first;
    for (let reach = 2 * DAY_MS; ; reach *= 4) {
      const from = Math.max(oldest, first - reach);
      const states = new TimedStates(this.#runs, await this.#known(from));
      await this.#read(states, { from, to: first }, () => {});
      if (from <= oldest || states.at(first - 1) !== undefined) {
        this.#readTo = first;
        return states;
      }
    }
  }

  /** Which of the blocks from this time on are known, and when; undefined where every row is known at its time. */
  async #known(fromMs: number) {
    const { asOf, ends } = this.#needs;
    if (!this.#knowledge) return undefined;
    const arrivals = await this.#arrivals(fromMs);
    const knowledge: BlockKnowledge = { ...this.#knowledge, arrivedMs: (height) => arrivedAt(arrivals, height) };
    if (asOf === 'row') return new KnownBlocks(knowledge, await this.#lowest(fromMs));
    // As of one time the same blocks are known in every row.
    const then = new KnownBlocks(knowledge, await this.#lowest(Math.min(asOf!, ends.last + NEIGHBOURS_MS) + 1));
    return { pass() {}, isKnown: (height: number) => then.isKnown(height, asOf!) };
  }

  /** The lowest height of the rows from this time on; infinite without such rows. */
  async #lowest(fromMs: number): Promise<number> {
    const { session } = this.#context;
    const params = new Params();
    const { first } = heightsOf(this.#context)!;
    const from = this.#from({ from: fromMs, to: fromMs + NEIGHBOURS_MS }, params);
    const [[height]] = await session.rows(`select min(${first}) ${from}`, params);
    return height === null ? Number.POSITIVE_INFINITY : Number(height);
  }

  /** When followed blocks arrived, by height. */
  async #arrivals(fromMs: number): Promise<Arrival[]> {
    const { session, request } = this.#context;
    const params = new Params();
    const rows = await session.rows(
      `select lower(p.span)::text, upper(p.span)::text,
         greatest(p.captured_ms, floor(extract(epoch from p.ingested_at) * 1000)::int8)::text
       from partitions p where p.dataset_id = ${params.add(int2(request.dataset.number))} and p.state = 'proved'
         and p.captured_ms is not null and p.to_ms > ${params.add(int8(fromMs))}
         and p.from_ms <= ${params.add(int8(this.#needs.ends.last))} order by lower(p.span)`,
      params,
    );
    return rows.map(([from, to, ms]) => ({ from: Number(from), to: Number(to), ms: Number(ms) }));
  }

  /** Reads rows in their order; `before` is called with the time of each before it is added. */
  async #read(states: TimedStates, range: Range, before: (ms: number) => void): Promise<void> {
    const { session, relation } = this.#context;
    if (range.from >= range.to) return;
    const heights = heightsOf(this.#context);
    const params = new Params();
    const from = this.#from(range, params);
    const passes = this.#needs.columns[0].column.filters.map((filter) => filter.test(params));
    const integers = [
      timeOf(this.#context),
      heights?.first ?? 'null::int8',
      heights?.last ?? 'null::int8',
      `(${passes.length === 0 ? 'true' : `coalesce(${passes.join(' and ')}, false)`})::int::int8`,
    ];
    const text = `select ${[...integers, ...cellsOf(this.#needs)].join(', ')} ${from} order by ${relation.order()}`;
    const sink = new ValueRows(integers.length, ([ms, first, last, isPassing], values) => {
      before(ms!);
      states.add({ ms: ms!, first, last, passes: isPassing === 1, values });
    });
    const oids = [...integers.map(() => OID.int8), ...oidsOf(this.#needs)];
    await session.stream({ text, params: params.list }, oids, sink);
  }

  #from(range: Range, params: Params): string {
    return rowsOf(this.#context, range, params);
  }
}

/** `from ... where ...`: the proved rows of a range. */
function rowsOf({ relation }: LiveContext, { from, to }: Range, params: Params): string {
  const part: Part = { from, to, until: to, provedTo: undefined, isLast: true };
  return relation.from({ from, to, part }, params);
}

/** A second of the mempool begins before its snapshot. */
const timeOf = ({ request, relation }: LiveContext): string =>
  request.dataset.partition.kind === 'snapshot' ? 't.latest_snapshot_at_unix_ms' : relation.timeMs;

interface Arrival extends Range {
  readonly ms: number;
}

/** By binary search: a year of followed blocks has 52,560 arrivals. */
function arrivedAt(arrivals: readonly Arrival[], height: number): number | undefined {
  let low = 0;
  let high = arrivals.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (arrivals[middle].to <= height) low = middle + 1;
    else high = middle;
  }
  const found = arrivals[low];
  return found && found.from <= height ? found.ms : undefined;
}
