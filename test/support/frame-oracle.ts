/** What a frame must be, in plain JavaScript over the values that were loaded: slow, and without any of the service's code. */
import { DATASETS } from '../../shared/registry/index.ts';
import { windowOf } from '../../shared/registry/keys.ts';
import { exact, SCALE } from './kline-oracle.ts';
import type { Trade } from './load-rows.ts';
import { capturedAt, DAY, knownAt, knownMs, SECOND, type World, type WorldPartition, type WorldRow } from './worlds.ts';
import { OTHER_DAYS, TRADE_DAYS, WORLDS } from './worlds-env.ts';

export interface ColumnBody {
  readonly name: string;
  readonly dataset: string;
  /** Of `OTHERS`; without it the default. */
  readonly instrument?: string;
  readonly field: string;
  readonly filter?: readonly { readonly field: string; readonly op: 'eq' | 'gte'; readonly value: string | number }[];
  readonly aggregate?: string;
  readonly max_age?: number;
}

export interface FrameBody {
  readonly columns: readonly ColumnBody[];
  /** Seconds. */
  readonly grid: number;
  readonly time_range: readonly [string, string];
  readonly as_of?: string;
  readonly fill?: 'previous' | null;
}

type Cell = number | null;
export type FrameRow = Readonly<Record<string, Cell | string>>;

const iso = (ms: number) => new Date(ms).toISOString();
/** Confirmations of a chain that is not regtest. */
const DEPTH = 6;

/** The moment that a bucket's state is of: its end, or as of a time that time, whose instant the last bucket holds. */
const momentOf = (end: number, asOf: number | 'row' | undefined) =>
  typeof asOf === 'number' ? Math.min(end, asOf) : end;

/** What a column may say at the end of a bucket, and the time in which it may say something. */
interface Model {
  readonly from: number;
  readonly to: number;
  at(bucket: { readonly start: number; readonly end: number; readonly windowFrom: number }): Cell;
}

/** The rows of the frame; undefined where it has none. */
export function frameOf(body: FrameBody): FrameRow[] | undefined {
  const gridMs = body.grid * SECOND;
  const asOf = body.as_of === undefined || body.as_of === 'row' ? body.as_of : Date.parse(body.as_of);
  const [windowFrom, windowTo] = body.time_range.map((text) => Date.parse(text));
  const models = body.columns.map((column) => modelOf(column, body, gridMs, asOf as number | 'row' | undefined));
  const held = models.filter((model) => model !== undefined);
  if (held.length === 0) return undefined;
  const knownTo = typeof asOf === 'number' ? asOf + 1 : Number.POSITIVE_INFINITY;
  const end = Math.min(windowTo, knownTo, Math.max(...held.map(({ to }) => to)));
  const from = Math.floor(Math.max(windowFrom, Math.min(...held.map((model) => model.from))) / gridMs) * gridMs;
  if (from >= end) return undefined;
  const rows: FrameRow[] = [];
  for (let start = from; start < end; start += gridMs) {
    const bucket = { start, end: Math.min(start + gridMs, end), windowFrom };
    rows.push({
      datetime: iso(start),
      ...(asOf === 'row' && { known_at_utc: iso(bucket.end) }),
      ...Object.fromEntries(body.columns.map(({ name }, index) => [name, models[index]?.at(bucket) ?? null])),
    });
  }
  return rows;
}

function modelOf(
  column: ColumnBody,
  body: FrameBody,
  gridMs: number,
  asOf: number | 'row' | undefined,
): Model | undefined {
  const { trades } = DATASETS.get(column.dataset)!;
  if (trades) return tradeModel(column, body.fill === 'previous', gridMs, asOf);
  const world = WORLDS.find(({ dataset }) => dataset.key === column.dataset)!;
  return world.dataset.aligned.seriesKey.length > 0
    ? metricModel(column, world, asOf)
    : timedModel(column, world, asOf);
}

// ---- trades --------------------------------------------------------------------------------------------------------

function tradeModel(column: ColumnBody, isFilled: boolean, gridMs: number, asOf: number | 'row' | undefined): Model {
  const dataset = DATASETS.get(column.dataset)!;
  const days = (column.instrument === undefined ? TRADE_DAYS : OTHER_DAYS).map(({ day, trades }) => {
    const { fromMs, toMs } = windowOf(dataset, day);
    const shift = fromMs - Date.parse(`${day}T00:00:00Z`);
    return {
      from: fromMs,
      to: toMs,
      trades: trades.map((trade) => ({ ...trade, timestamp: trade.timestamp + shift })),
    };
  });
  const passes = (trade: Trade) =>
    (column.filter ?? []).every(({ field, value }) => Number(trade[field as 'price']) >= Number(value));
  const all = days
    .flatMap((day) => day.trades)
    .filter((trade) => passes(trade) && (typeof asOf !== 'number' || trade.timestamp <= asOf));
  const runs: { from: number; to: number }[] = [];
  for (const { from, to } of days) {
    if (runs.at(-1)?.to === from) runs[runs.length - 1] = { from: runs[runs.length - 1].from, to };
    else runs.push({ from, to });
  }
  const runAt = (ms: number) => runs.find(({ from, to }) => from <= ms && ms < to);
  const of = (from: number, to: number) => all.filter(({ timestamp }) => timestamp >= from && timestamp < to);
  const isCarried = !['sum', 'count'].includes(column.aggregate ?? 'last');
  return {
    from: days[0].from,
    to: days[days.length - 1].to,
    at({ start, end, windowFrom }) {
      const own = of(Math.max(start, windowFrom), end);
      if (own.length > 0) return aggregated(column, own);
      const run = runAt(end - 1);
      if (!isFilled || !isCarried || !run) return null;
      for (let before = start - gridMs; before + gridMs > run.from; before -= gridMs) {
        // Buckets before the window are whole.
        const from = before + gridMs > windowFrom ? Math.max(before, windowFrom) : before;
        const trades = of(from, before + gridMs);
        if (trades.length === 0) continue;
        if (runAt(before + gridMs - 1) !== run) return null;
        if (column.max_age !== undefined && end - (before + gridMs) > column.max_age * SECOND) return null;
        return aggregated(column, trades);
      }
      return null;
    },
  };
}

/** The value of trades in the order of their ids, which restart with no day here. */
function aggregated({ field, aggregate = 'last' }: ColumnBody, trades: readonly Trade[]): Cell {
  const sorted = trades.toSorted((a, b) => a.trade_id - b.trade_id);
  const valueOfRow = (trade: Trade) => Number(trade[field as 'price']);
  const values = sorted.map(valueOfRow);
  const total = (of: (trade: Trade) => bigint) => sorted.reduce((sum, trade) => sum + of(trade), 0n);
  switch (aggregate) {
    case 'first':
      return values[0];
    case 'last':
      return values[values.length - 1];
    case 'min':
      return Math.min(...values);
    case 'max':
      return Math.max(...values);
    case 'count':
      return values.length;
    case 'sum':
      return Number(`${total((trade) => exact(valueOfRow(trade)))}e-${SCALE}`);
    default: {
      const quote = total((trade) => exact(trade.price) * exact(trade.quantity));
      const base = total((trade) => exact(trade.quantity));
      return Number(`${(quote * 10n ** 60n) / base / 10n ** BigInt(SCALE)}e-60`);
    }
  }
}

// ---- metrics -------------------------------------------------------------------------------------------------------

function metricModel(column: ColumnBody, whole: World, asOf: number | 'row' | undefined): Model | undefined {
  const isCapture = whole.dataset.partition.kind === 'capture';
  const then = isCapture ? capturedAt : knownAt;
  const world = typeof asOf === 'number' ? then(whole, asOf) : whole;
  const isNamed = ({ cells }: WorldRow) => column.filter!.every(({ field, value }) => cells[field] === value);
  // The filter may name the series without its source.
  const source = whole.rows.find(isNamed)!.partition.sourceId;
  const runs = world.runs
    .filter(({ sourceId }) => sourceId === source)
    .map((run) => ({ ...run, to: isCapture ? Math.max(run.throughMs, run.span[1]) : run.throughMs }));
  if (runs.length === 0) return undefined;
  const rows = world.rows.filter((row) => row.partition.state === 'proved' && isNamed(row));
  return {
    from: Math.min(...runs.map(({ fromMs }) => fromMs)),
    to: Math.max(...runs.map(({ toMs }) => toMs), runs[runs.length - 1].to),
    at({ end }) {
      const known = rows.filter(({ ms, partition }) => ms < end && (asOf !== 'row' || knownMs(partition) <= end));
      const times = [...new Set(known.map(({ ms }) => ms))].sort((a, b) => b - a);
      for (const ms of times) {
        const [winner] = known
          .filter((row) => row.ms === ms)
          .sort((a, b) => (String(a.cells.vintage) < String(b.cells.vintage) ? 1 : -1));
        if (!isCapture && winner.cells.value_text === '.') continue;
        const run = runs.find(({ fromMs, to }) => fromMs <= ms && ms < to);
        const late = asOf === 'row' && isCapture ? Math.max(0, knownMs(winner.partition) - ms) : 0;
        const moment = momentOf(end, asOf);
        if (moment > Math.max(run?.to ?? 0, ms + SECOND) + late) return null;
        if (column.max_age !== undefined && moment - ms > column.max_age * SECOND) return null;
        return ['int', 'float'].includes(String(winner.cells.value_kind)) ? Number(winner.cells.value_text) : null;
      }
      return null;
    },
  };
}

// ---- blocks and snapshots ------------------------------------------------------------------------------------------

function timedModel(
  column: ColumnBody,
  { dataset, rows, aligned, runs }: World,
  asOf: number | 'row' | undefined,
): Model {
  const proved = rows.filter(({ partition }) => partition.state === 'proved');
  const heightOf = (row: WorldRow) => Number(row.cells.height ?? row.cells.block_height);
  const isChain = dataset.partition.kind === 'height';
  /** When a block was known: with the latest time up to the blocks that confirm it, and if it was followed not before it came. */
  const knownOf = (height: number): number => {
    const run = runs.find(({ span }) => height >= span[0] && height + DEPTH < span[1]);
    if (!run) return Number.POSITIVE_INFINITY;
    const latest = Math.max(...proved.filter((row) => heightOf(row) <= height + DEPTH).map(({ ms }) => ms));
    const { partition } = proved.find((row) => heightOf(row) === height)!;
    return Math.max(latest, partition.capturedMs === undefined ? 0 : partition.ingestedMs);
  };
  const known = new Map(isChain ? [...new Set(proved.map(heightOf))].map((height) => [height, knownOf(height)]) : []);
  const isOfSeconds = dataset.key === 'bitcoin_block_transactions' || !isChain;
  const candidates = isOfSeconds
    ? aligned.map(({ ms, cells }) => ({
        ms: isChain ? ms : Number(cells.latest_snapshot_at_unix_ms),
        heights: isChain
          ? [...new Set(proved.filter((row) => Math.floor(row.ms / SECOND) * SECOND === ms).map(heightOf))]
          : [],
        cells,
      }))
    : proved.map((row) => ({ ms: row.ms, heights: [heightOf(row)], cells: row.cells }));
  const sorted = candidates
    .filter(({ cells }) => (column.filter ?? []).every(({ field, value }) => Number(cells[field]) >= Number(value)))
    .sort((a, b) => b.ms - a.ms || b.heights[0] - a.heights[0]);
  const valueOfRow = (cells: WorldRow['cells']) =>
    column.field.endsWith('_btc') && !(column.field in cells)
      ? Number(cells[column.field.replace('_btc', '_sats')]) / 1e8
      : Number(cells[column.field]);
  return {
    from: Math.min(...runs.map(({ fromMs }) => (isOfSeconds ? Math.floor(fromMs / SECOND) * SECOND : fromMs))),
    to: Math.max(...runs.map(({ toMs }) => toMs), runs[runs.length - 1].throughMs),
    at({ end }) {
      const at = asOf === 'row' ? end : asOf;
      const found = sorted.find(
        ({ ms, heights }) =>
          ms < end &&
          (at === undefined || heights.every((height) => known.get(height)! <= at)) &&
          (at === undefined || ms <= at),
      );
      if (!found) return null;
      const run = runs.find(
        ({ fromMs, throughMs }) =>
          (isOfSeconds ? Math.floor(fromMs / SECOND) * SECOND : fromMs) <= found.ms && found.ms < throughMs,
      );
      const moment = momentOf(end, asOf);
      if (moment > Math.max(run?.throughMs ?? 0, found.ms + SECOND)) return null;
      if (column.max_age !== undefined && moment - found.ms > column.max_age * SECOND) return null;
      return valueOfRow(found.cells);
    },
  };
}

export { DAY };

// Worlds in which a value becomes known later than the time that it is about.

/** A value that no world holds. */
export const PLANTED = 987_654.25;

/** The world with a value that becomes known at `knownAtMs`, about an earlier time. */
export function planted(world: World, of: WorldRow, knownAtMs: number): World {
  const { kind } = world.dataset.partition;
  const isVintage = kind === 'vintage';
  const vintageMs = knownAtMs - DAY - 6 * 3_600_000;
  const own = isVintage
    ? { key: `${of.partition.sourceId}:planted`, span: [vintageMs, vintageMs + DAY] as const, lastUpdatedMs: 0 }
    : { key: `${of.partition.key}:2`, span: of.partition.span, capturedMs: knownAtMs };
  const partition: WorldPartition = { ...of.partition, ...own, state: 'proved', ingestedMs: knownAtMs + 5000 };
  const values = { value_kind: 'float', value_text: String(PLANTED), partition_key: own.key };
  // A vintage of the same day would be the same text.
  const vintage = isVintage && { vintage: `${new Date(vintageMs).toISOString().slice(0, 10)}~` };
  const row = { ...of, partition, cells: { ...of.cells, ...values, ...vintage, metric_id: 'f'.repeat(64) } };
  return { ...world, partitions: [...world.partitions, partition], rows: [...world.rows, row] };
}

/** The world whose block is another one, which arrived at `knownAtMs`. */
export function replaced(world: World, of: WorldRow, knownAtMs: number): World {
  const partition = { ...of.partition, capturedMs: knownAtMs, ingestedMs: knownAtMs };
  const swap = (row: WorldRow) =>
    row.partition !== of.partition
      ? row
      : { ...row, partition, cells: row === of ? { ...row.cells, hashrate_hs: PLANTED } : row.cells };
  return {
    ...world,
    partitions: world.partitions.map((one) => (one === of.partition ? partition : one)),
    rows: world.rows.map(swap),
  };
}
