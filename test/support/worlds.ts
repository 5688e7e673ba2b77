/**
 * Small invented worlds of the datasets whose partitions are no stretches of time: blocks whose times go back and forth,
 * snapshots, captures of funds and vintages of series, some of them proved and some stored all the same. What is loaded
 * is returned as plain values, so that a test can say by itself what every answer must be.
 */
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';

export const SECOND = 1000;
export const DAY = 86_400_000;

export type Cell = string | number | boolean | null;
export type Cells = Readonly<Record<string, Cell>>;

/** A partition as the catalog has it. */
export interface WorldPartition {
  readonly key: string;
  readonly state: 'proved' | 'quarantined';
  readonly sourceId: string;
  readonly span: readonly [number, number];
  readonly ingestedMs: number;
  readonly lastUpdatedMs?: number;
  /** When its values were seen for the first time, where the pipeline recorded it. */
  readonly capturedMs?: number;
}

/** A native row: stored columns, and the partition it is of. */
export interface WorldRow {
  readonly ms: number;
  readonly partition: WorldPartition;
  readonly cells: Cells;
}

/** An aligned row: stored columns without its key. */
export interface WorldAligned {
  readonly ms: number;
  readonly sourceId: string;
  /** Of a dataset with many series: values of the series key. */
  readonly series: readonly string[];
  readonly cells: Cells;
}

/** Maximal run of proved partitions of a source. */
export interface WorldRun {
  readonly sourceId: string;
  readonly span: readonly [number, number];
  readonly fromMs: number;
  /** Exclusive end of the rows' times. */
  readonly toMs: number;
  readonly throughMs: number;
}

export interface World {
  readonly dataset: DatasetDefinition;
  readonly partitions: readonly WorldPartition[];
  readonly rows: readonly WorldRow[];
  /** Of proved partitions only. */
  readonly aligned: readonly WorldAligned[];
  readonly runs: readonly WorldRun[];
}

type Random = () => number;
const pick = <T>(random: Random, list: readonly T[]): T => list[Math.floor(random() * list.length)];
const whole = (random: Random, min: number, max: number) => min + Math.floor(random() * (max - min + 1));
const isProved = ({ partition }: WorldRow) => partition.state === 'proved';
const text = (name: string, n: number) => `${name}-${n}`;
const hex = (n: number) => (n * 2_654_435_761).toString(16).padStart(64, 'a').slice(-64);

// ---- the chain -----------------------------------------------------------------------------------------------------

interface Block {
  readonly height: number;
  readonly ms: number;
}

/** Times as consensus allows them: later than the median of the eleven before, otherwise as they please. */
function blocksOf(random: Random, from: number, count: number, startMs: number): Block[] {
  const blocks: Block[] = [];
  for (let index = 0; index < count; index++) {
    const previous = blocks.at(-1)?.ms ?? startMs;
    const shifted = previous + whole(random, -900, 1500) * SECOND * (random() < 0.1 ? 3 : 1);
    // Some share a second.
    const wanted = random() < 0.1 ? previous : shifted;
    blocks.push({ height: from + index, ms: Math.max(wanted, medianPast(blocks) + SECOND) });
  }
  return blocks;
}

const followed = (ms: number) => ({ capturedMs: ms - 10, ingestedMs: ms });

/** Median time past of a chain's last block, as the node says it. */
function medianPast(blocks: readonly Block[]): number {
  const last = blocks.slice(-11).map((block) => block.ms);
  return last.sort((a, b) => a - b)[Math.floor(last.length / 2)] ?? 0;
}

/** All six chain datasets over the same blocks and partitions. `missing`: heights in no partition. */
export function chainWorlds(seed: number, options: { readonly from?: number; readonly blocks?: number } = {}): World[] {
  const random = seededRandom(seed);
  const arrivals = seededRandom(seed + 1000);
  const { from = 0, blocks: count = 80 } = options;
  const blocks = blocksOf(random, from, count, Date.parse('2020-06-01T00:00:00Z'));
  const partitions: WorldPartition[] = [];
  for (let at = 0; at < count; ) {
    const length = Math.min(whole(random, 1, 9), count - at);
    const [first, last] = [from + at, from + at + length - 1];
    const fate = random();
    at += length;
    if (fate < 0.1) continue;
    partitions.push({
      key: first === last ? String(first) : `${first}-${last}`,
      state: fate < 0.25 ? 'quarantined' : 'proved',
      sourceId: 'bitcoin_core',
      span: [first, last + 1],
      ingestedMs: Date.parse('2024-01-01T00:00:00Z') + at * SECOND,
      // Some blocks were followed, and came some time after their own.
      ...(first === last &&
        arrivals() < 0.6 &&
        followed(blocks[first - from].ms + whole(arrivals, 1, 90_000) * SECOND)),
    });
  }
  const keys = [
    'bitcoin_block_headers',
    'bitcoin_block_transactions',
    'bitcoin_block_fee_totals',
    'bitcoin_block_subsidy_schedule',
    'bitcoin_network_hashrate_estimate',
    'bitcoin_circulating_supply',
  ];
  return keys.map((key) => chainWorld(datasetOf(key), blocks, partitions));
}

function chainWorld(
  dataset: DatasetDefinition,
  blocks: readonly Block[],
  partitions: readonly WorldPartition[],
): World {
  const { native } = dataset;
  const rows = blocks.flatMap(({ height, ms }) => {
    const partition = partitions.find(({ span }) => height >= span[0] && height < span[1]);
    if (!partition) return [];
    const transactions = dataset.key === 'bitcoin_block_transactions' ? 1 + (height % 3) : 1;
    return Array.from({ length: transactions }, (_, index): WorldRow => {
      const given: Record<string, Cell> = {
        [native.time.column]: ms,
        height,
        block_height: height,
        transaction_index: index,
        coinbase: index === 0,
      };
      return { ms, partition, cells: filled(native.columns, given, height * 4 + index) };
    });
  });
  return {
    dataset,
    partitions,
    rows,
    aligned: bySecond(dataset, rows.filter(isProved)),
    runs: heightRuns(rows.filter(isProved), partitions, blocks),
  };
}

function heightRuns(
  rows: readonly WorldRow[],
  partitions: readonly WorldPartition[],
  blocks: readonly Block[],
): WorldRun[] {
  const runs: { from: number; to: number }[] = [];
  for (const { span } of partitions.filter(({ state }) => state === 'proved')) {
    const last = runs.at(-1);
    if (last?.to === span[0]) last.to = span[1];
    else runs.push({ from: span[0], to: span[1] });
  }
  return runs.map(({ from, to }) => {
    const times = rows.filter(({ partition: { span } }) => span[0] >= from && span[1] <= to).map((row) => row.ms);
    return {
      sourceId: 'bitcoin_core',
      span: [from, to],
      fromMs: Math.min(...times),
      toMs: Math.max(...times) + 1,
      throughMs: medianPast(blocks.filter(({ height }) => height < to)) + SECOND,
    };
  });
}

// ---- snapshots -----------------------------------------------------------------------------------------------------

export function mempoolWorld(seed: number, snapshots = 14): World {
  const random = seededRandom(seed);
  const dataset = datasetOf('bitcoin_mempool_state');
  let ms = Date.parse('2024-02-01T23:59:30.000Z');
  const partitions = Array.from({ length: snapshots }, (_, index): WorldPartition => {
    // Twice in one second now and then; days apart now and then.
    ms += random() < 0.3 ? whole(random, 1, 700) : whole(random, 1, random() < 0.2 ? 200_000 : 600) * 997;
    return {
      key: String(ms),
      state: random() < 0.2 && index > 0 && index < snapshots - 1 ? 'quarantined' : 'proved',
      sourceId: 'bitcoin_core',
      span: [ms, ms + 1],
      ingestedMs: ms + 5,
    };
  });
  const rows = partitions.flatMap((partition, index) =>
    // An empty mempool is a snapshot too.
    Array.from({ length: whole(random, 0, 4) }, (_, tx): WorldRow => {
      const given = {
        snapshot_at_unix_ms: partition.span[0],
        txid: hex(tx * 31 + 7),
        vsize: 100 + tx,
        fee_sats: 1000 + index,
      };
      return { ms: partition.span[0], partition, cells: filled(dataset.native.columns, given, index * 9 + tx) };
    }),
  );
  const proved = partitions.filter(({ state }) => state === 'proved');
  const [first, last] = [proved[0].span[0], proved[proved.length - 1].span[0]];
  return {
    dataset,
    partitions,
    rows,
    aligned: bySecond(dataset, rows.filter(isProved)),
    runs: [
      {
        sourceId: 'bitcoin_core',
        span: [first, last + 1],
        fromMs: first,
        toMs: last + 1,
        throughMs: Math.floor(last / SECOND) * SECOND + SECOND,
      },
    ],
  };
}

// ---- metrics -------------------------------------------------------------------------------------------------------

const KINDS = ['int', 'float', 'string', 'bool', 'null'] as const;
const VALUES: Readonly<Record<(typeof KINDS)[number], (n: number) => string | null>> = {
  int: (n) => String(n),
  float: (n) => `${n}.25`,
  string: (n) => (n % 5 === 0 ? '.' : `text "${n}" é`),
  bool: (n) => String(n % 2 === 0),
  null: () => null,
};

/** Funds with days that are missing; a day in quarantine is stored and is missing too. */
export function etfWorld(seed: number, days = 40): World {
  const random = seededRandom(seed);
  const captures = seededRandom(seed + 1000);
  const dataset = datasetOf('etf_daily_metrics');
  const start = Date.parse('2023-11-20T00:00:00Z');
  const partitions: WorldPartition[] = [];
  const rows: WorldRow[] = [];
  const runs: WorldRun[] = [];
  for (const sourceId of dataset.sources.slice(0, 3)) {
    const first = whole(random, 0, 10);
    const end = days - whole(random, 0, 6);
    let run: { from: number; to: number } | undefined;
    const close = (throughMs: number) => {
      if (run) {
        const [fromMs, last] = [start + run.from * DAY, start + run.to * DAY];
        runs.push({ sourceId, span: [fromMs, throughMs], fromMs, toMs: last + 1, throughMs });
      }
      run = undefined;
    };
    for (let day = first; day < end; day++) {
      const fate = random();
      const ms = start + day * DAY;
      if (fate >= 0.15) run = { from: run?.from ?? day, to: day };
      else close(ms);
      if (fate < 0.1) continue;
      const partition: WorldPartition = {
        key: `${sourceId}:${new Date(ms).toISOString().slice(0, 10)}`,
        state: fate < 0.15 ? 'quarantined' : 'proved',
        sourceId,
        span: [ms, ms + DAY],
        ingestedMs: ms + 2 * DAY,
        // Some were captured late, and in another order than that of their days.
        ...(captures() < 0.8 && { capturedMs: ms + whole(captures, 20, 90) * 3_600_000 }),
      };
      partitions.push(partition);
      for (const [index, name] of ['btc_units', 'issuer', 'wallet_count'].entries()) {
        // Labels come and go.
        if (random() < 0.4) continue;
        rows.push(metricRow(dataset, { ms, partition, name, n: day * 10 + index, kind: pick(random, KINDS), random }));
      }
    }
    // The last run is known a little further than its last day.
    close(start + ((run?.to ?? 0) + 1 + whole(random, 0, 3)) * DAY);
  }
  const aligned = rows.filter(isProved).map(alignedMetric(dataset));
  return { dataset, partitions, rows, aligned, runs };
}

/** Series with revisions; every vintage is a partition, and the newest proved one gives the aligned value. */
export function macroWorld(seed: number, observations = 24): World {
  const random = seededRandom(seed);
  const dataset = datasetOf('macro_series_metrics');
  const partitions: WorldPartition[] = [];
  const rows: WorldRow[] = [];
  const runs: WorldRun[] = [];
  const SERIES = [
    // Before 1970 too, and with years in between.
    ['macro_fedfunds', 'effective_federal_funds_rate', '1968-11-01', 31],
    ['macro_dgs10', 'treasury_yield_10y', '1969-12-20', 3],
    ['macro_unrate', 'unemployment_rate', '1969-06-01', 400],
  ] as const;
  for (const [sourceId, name, first, step] of SERIES) {
    let ms = Date.parse(`${first}T00:00:00Z`);
    const own: WorldRow[] = [];
    const vintages: WorldPartition[] = [];
    for (let index = 0; index < observations; index++) {
      ms += whole(random, 1, step) * DAY;
      const vintageMs = ms + whole(random, 20, 40) * DAY;
      const fate = random();
      const partition: WorldPartition = {
        key: `${sourceId}:${new Date(vintageMs).toISOString().slice(0, 10)}`,
        state: fate < 0.15 && index > 0 ? 'quarantined' : 'proved',
        sourceId,
        span: [vintageMs, vintageMs + DAY],
        ingestedMs: Date.parse('2024-01-01T00:00:00Z') + index,
        lastUpdatedMs: Date.parse('2023-12-31T12:00:00.123Z') + index * SECOND,
      };
      if (vintages.some(({ key }) => key === partition.key)) continue;
      vintages.push(partition);
      // A vintage also revises what was observed before.
      const revised = own.length > 0 && random() < 0.5 ? [pick(random, own).ms] : [];
      for (const observedMs of new Set([...revised, ms])) {
        const kind = random() < 0.15 ? 'string' : 'float';
        own.push(metricRow(dataset, { ms: observedMs, partition, name, n: index * 5, kind, random }));
      }
    }
    partitions.push(...vintages);
    rows.push(...own);
    const proved = vintages.filter(({ state }) => state === 'proved');
    const times = own.filter(isProved).map((row) => row.ms);
    const [from, to] = [Math.min(...proved.map(({ span }) => span[0])), Math.max(...proved.map(({ span }) => span[1]))];
    runs.push({
      sourceId,
      span: [from, to],
      fromMs: Math.min(...times),
      toMs: Math.max(...times) + 1,
      throughMs: to + whole(random, 0, 5) * DAY,
    });
  }
  const aligned = winnersOf(rows).map(([winner]) => alignedMetric(dataset)(winner));
  return { dataset, partitions, rows, aligned, runs };
}

/** The row that each second of a series has, of the newest vintage, and how many it was chosen among. */
function winnersOf(rows: readonly WorldRow[]): [winner: WorldRow, among: number][] {
  const seconds = Map.groupBy(rows.filter(isProved), ({ ms, cells }) => `${ms} ${cells.source_id}`);
  return [...seconds.values()].flatMap((group) => {
    const sorted = group.toSorted((a, b) => (String(a.cells.vintage) < String(b.cells.vintage) ? -1 : 1));
    // A missing value holds no second: the one before stays valid.
    const winner = sorted[sorted.length - 1];
    return winner.cells.value_kind === 'string' ? [] : [[winner, group.length]];
  });
}

/** When a partition's values were known: a vintage from 06:00 of the day after its date, a capture from its own time. */
export const knownMs = ({ span, capturedMs, ingestedMs, lastUpdatedMs }: WorldPartition): number =>
  lastUpdatedMs === undefined ? (capturedMs ?? ingestedMs) : span[0] + DAY + 6 * 3_600_000;

/** The world of funds as it was known at a time: the days that had been captured, with gaps where others had not. */
export function capturedAt(world: World, asOfMs: number): World {
  const isKnown = (partition: WorldPartition) => knownMs(partition) <= asOfMs;
  const rows = world.rows.filter(({ partition }) => isKnown(partition));
  const held = world.partitions.filter(
    (partition) =>
      partition.state === 'proved' && isKnown(partition) && rows.some((row) => row.partition === partition),
  );
  const runs: WorldRun[] = [];
  for (const { sourceId, span } of held) {
    const last = runs.at(-1);
    const joins = last?.sourceId === sourceId && last.span[1] === span[0];
    const first = joins ? last : undefined;
    if (joins) runs.pop();
    runs.push({
      sourceId,
      span: [first?.span[0] ?? span[0], span[1]],
      fromMs: first?.fromMs ?? span[0],
      toMs: span[0] + 1,
      throughMs: span[1],
    });
  }
  const aligned = rows.filter(isProved).map((row) => {
    const { value_kind: kind, value_text: value } = row.cells;
    const { cells, ...key } = alignedMetric(world.dataset)(row);
    return {
      ...key,
      cells: kind === 'int' ? { ...cells, metric_value_int: Number(value), metric_value_float: Number(value) } : cells,
    };
  });
  return { ...world, partitions: world.partitions.filter(isKnown), rows, aligned, runs };
}

/** The world of series as it was known at a time. */
export function knownAt(world: World, asOfMs: number): World {
  const isKnown = (partition: WorldPartition) => knownMs(partition) <= asOfMs;
  const rows = world.rows.filter(({ partition }) => isKnown(partition));
  const aligned = winnersOf(rows).map(([winner, among]) => {
    const row = alignedMetric(world.dataset)(winner);
    const { lastUpdatedMs } = winner.partition;
    const told = lastUpdatedMs === undefined ? '' : `"last_updated_utc":"${iso(lastUpdatedMs)}",`;
    const provenance = String(row.cells.provenance_json).replace('"realtime', `${told}"realtime`);
    return { ...row, cells: { ...row.cells, provenance_json: provenance, records_in_bucket: among } };
  });
  const runs = world.runs.flatMap((run) => {
    const times = rows.filter((row) => isProved(row) && row.partition.sourceId === run.sourceId).map(({ ms }) => ms);
    if (times.length === 0) return [];
    const throughMs = Math.min(run.throughMs, asOfMs);
    return [{ ...run, fromMs: Math.min(...times), toMs: Math.max(...times) + 1, throughMs }];
  });
  return { ...world, partitions: world.partitions.filter(isKnown), rows, aligned, runs };
}

const iso = (ms: number) => new Date(ms).toISOString();

function metricRow(
  dataset: DatasetDefinition,
  of: {
    readonly ms: number;
    readonly partition: WorldPartition;
    readonly name: string;
    readonly n: number;
    readonly kind: (typeof KINDS)[number];
    readonly random: Random;
  },
): WorldRow {
  const { ms, partition, name, n, kind, random } = of;
  const vintage = new Date(partition.span[0]).toISOString().slice(0, 10);
  const isMacro = dataset.key === 'macro_series_metrics';
  return {
    ms,
    partition,
    cells: {
      observed_at_ms: ms,
      metric_id: hex(Math.floor(random() * 1e15)),
      source_id: partition.sourceId,
      metric_name: name,
      metric_unit: isMacro ? 'Percent' : n % 2 === 0 ? 'BTC' : null,
      value_kind: kind,
      value_text: isMacro && kind === 'string' ? '.' : VALUES[kind](n),
      dimensions_json: isMacro ? `{"series_id":"${name}"}` : '{"row_index":"1"}',
      provenance_json: isMacro
        ? `{"fetched_from":"a | b","frequency":"Daily","realtime_start":"${vintage}","series_id":"X"}`
        : n % 3 === 0
          ? null
          : '{"source_id":"y"}',
      partition_key: partition.key,
      ...(isMacro && { vintage }),
    },
  };
}

const alignedMetric =
  (dataset: DatasetDefinition) =>
  ({ ms, partition, cells }: WorldRow): WorldAligned => ({
    ms,
    sourceId: partition.sourceId,
    series: dataset.aligned.seriesKey.map((name) => String(cells[name])),
    cells: {
      metric_id: cells.metric_id,
      source_id: cells.source_id,
      metric_name: cells.metric_name,
      metric_unit: cells.metric_unit,
      metric_value_string: cells.value_text,
      metric_value_int: null,
      metric_value_float: cells.value_kind === 'float' ? Number(cells.value_text) : null,
      metric_value_bool: cells.value_kind === 'bool' ? cells.value_text === 'true' : null,
      dimensions_json: cells.dimensions_json,
      provenance_json: cells.provenance_json,
      records_in_bucket: 1,
      latest_ingested_at_utc: new Date(partition.ingestedMs).toISOString(),
    },
  });

/** The same world of blocks or funds at another time. */
export function movedBy(world: World, byMs: number): World {
  const { column } = world.dataset.native.time;
  const later = (text: unknown) => iso(Date.parse(String(text)) + byMs);
  const isCapture = world.dataset.partition.kind === 'capture';
  const partitions = new Map(
    world.partitions.map((one) => {
      const span = isCapture ? ([one.span[0] + byMs, one.span[1] + byMs] as const) : one.span;
      return [one, { ...one, span }];
    }),
  );
  return {
    ...world,
    partitions: [...partitions.values()],
    rows: world.rows.map((row) => ({
      ...row,
      ms: row.ms + byMs,
      partition: partitions.get(row.partition)!,
      cells: { ...row.cells, [column]: row.ms + byMs },
    })),
    aligned: world.aligned.map((row) => ({
      ...row,
      ms: row.ms + byMs,
      cells: { ...row.cells, latest_ingested_at_utc: later(row.cells.latest_ingested_at_utc) },
    })),
    runs: world.runs.map((run) => ({
      ...run,
      span: isCapture ? ([run.span[0] + byMs, run.span[1] + byMs] as const) : run.span,
      fromMs: run.fromMs + byMs,
      toMs: run.toMs + byMs,
      throughMs: run.throughMs + byMs,
    })),
  };
}

// ---- what they share -----------------------------------------------------------------------------------------------

/** Aligned rows of a dataset that is one series: what they say does not matter here, only where they are. */
function bySecond(dataset: DatasetDefinition, rows: readonly WorldRow[]): WorldAligned[] {
  const columns = dataset.aligned.fields
    .filter(({ columns }) => columns.length > 0 && columns[0] !== 'aligned_at_utc')
    .map(({ columns: [name], pg, nullable }) => ({ name, pg, nullable }));
  return [...Map.groupBy(rows, ({ ms }) => Math.floor(ms / SECOND) * SECOND)].map(([ms, group], index) => ({
    ms,
    sourceId: 'bitcoin_core',
    series: [],
    cells: filled(
      columns,
      {
        records_in_bucket: group.length,
        latest_ingested_at_utc: new Date(ms).toISOString(),
        latest_snapshot_at_unix_ms: Math.max(...group.map((row) => row.ms)),
        first_block_height: Math.min(...group.map(({ cells }) => Number(cells.block_height ?? 0))),
        last_block_height: Math.max(...group.map(({ cells }) => Number(cells.block_height ?? 0))),
      },
      index,
    ),
  }));
}

/** A value for every column: the given one, else one that depends on the row and the type. */
function filled(
  columns: readonly { readonly name: string; readonly pg: string; readonly nullable?: boolean }[],
  given: Cells,
  n: number,
): Cells {
  return Object.fromEntries(
    columns.map(({ name, pg, nullable }) => {
      if (name in given) return [name, given[name]];
      if (nullable) return [name, null];
      if (pg === 'text') return [name, name.endsWith('_json') ? '{}' : text(name, n)];
      if (pg === 'bool') return [name, n % 2 === 0];
      if (pg === 'float8') return [name, n + 0.5];
      return [name, pg === 'timestamptz' ? new Date(n * SECOND).toISOString() : 1000 + n];
    }),
  );
}
