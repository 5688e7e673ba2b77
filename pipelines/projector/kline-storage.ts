/**
 * Stores, compares and removes the kept klines of file days. They change only in the transaction that changes the state of their
 * partition, so they are there exactly while `partitions.klines_sha256` says so. Where the days of a dataset begin at another hour
 * than midnight UTC, two of them share the kline of a day: it is added up from the largest whole klines of both, and its
 * quartiles are counted from the rows that can hold them.
 */
import { createHash } from 'node:crypto';
import type { ClientBase } from 'pg';
import { to as copyTo } from 'pg-copy-streams';
import { DAY_MS } from '../../shared/dates.ts';
import type { PartitionRow } from '../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import {
  type Discrepancy,
  describeDiscrepancies,
  type PartitionRef,
  scopeSql,
  seriesCondition,
} from '../../shared/proof/recount.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { baseOf, nativeRows } from '../../shared/registry/instruments.ts';
import {
  isWholeSize,
  KEPT_COLUMNS,
  KEPT_SIZES_MS,
  KLINE_TABLES,
  keptStartOf,
} from '../../shared/registry/kept-klines.ts';
import type { TimeWindow } from '../../shared/registry/keys.ts';
import type { KeptKlines } from '../rows/binary-copy.ts';
import { CopyIn } from '../rows/copy-in.ts';
import { exactDecimal } from '../rows/exact-decimal.ts';
import {
  DayKlines,
  type KeptValue,
  nativeValues,
  type PriceSpan,
  quartileRanges,
  type SecondIds,
} from '../rows/kept-klines.ts';
import { type PriceRuns, type TradeBucket, together } from '../rows/kline-builder.ts';

/** The shortest klines that are kept. */
const [MINUTE_MS] = KEPT_SIZES_MS;

const columnsOf = (mode: keyof typeof KEPT_COLUMNS): string[] => KEPT_COLUMNS[mode].map(({ name }) => name);

/** SQL: the kept kline lies inside the window. The sizes let the primary key find it. */
const insideSql = (dataset: DatasetDefinition, { fromMs, toMs }: TimeWindow): string =>
  `dataset_id = ${dataset.number} and size_s in (${KEPT_SIZES_MS.map((sizeMs) => sizeMs / 1000).join(', ')})
   and start_ms >= ${fromMs} and start_ms < ${toMs} and start_ms + size_s * 1000::int8 <= ${toMs}`;

/** Stores the klines of a partition whose window holds none. */
export async function storeKlines(client: ClientBase, klines: KeptKlines): Promise<void> {
  for (const mode of ['native', 'aligned'] as const) {
    const copy = new CopyIn(client, KLINE_TABLES[mode], columnsOf(mode));
    await copy.write(klines[mode]);
    await copy.end();
  }
}

/**
 * The digest of the stored klines that lie inside the window, whatever number the database gave their instrument, and of the seconds
 * that are listed as inexact.
 */
export async function storedKlinesSha256(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: TimeWindow,
  inexactSeconds: string | null,
): Promise<string> {
  const digest = createHash('sha256');
  const base = baseOf(dataset);
  for (const mode of ['native', 'aligned'] as const) {
    const columns = columnsOf(mode).map((name) =>
      name === 'dataset_id' && base !== dataset ? `${base.number}::int2 as dataset_id` : name,
    );
    const stream = client.query(
      copyTo(
        `copy (select ${columns.join(', ')} from ${KLINE_TABLES[mode]} where ${insideSql(dataset, window)}
         order by size_s, start_ms) to stdout with (format binary)`,
      ),
    );
    for await (const chunk of stream) digest.update(chunk);
  }
  return digest.update(inexactSeconds ?? '').digest('hex');
}

/** Removes the klines inside the window, and those that it shares with its neighbours. */
export async function deleteKlines(client: ClientBase, dataset: DatasetDefinition, window: TimeWindow): Promise<void> {
  if (keptStartOf(dataset) === undefined) return;
  const { fromMs, toMs } = window;
  await client.query(
    `delete from ${KLINE_TABLES.native} where ${insideSql(dataset, window)};
     delete from ${KLINE_TABLES.aligned} where ${insideSql(dataset, window)};
     delete from ${KLINE_TABLES.shared} where dataset_id = ${dataset.number} and start_ms > ${fromMs - DAY_MS}
       and start_ms < ${toMs} and start_ms + size_s * 1000::int8 > ${fromMs}`,
  );
}

/**
 * Compares klines with facts that the publisher's decoder computed: rows, and the totals of price and quantity. Totals round
 * values of more than eight decimals, so they are compared where there are none.
 */
export function compareKlines(
  dataset: DatasetDefinition,
  klines: KeptKlines,
  manifest: Manifest,
  alignedRows: number | null,
): Discrepancy[] {
  const found: Discrepancy[] = [];
  const check = (fact: string, expected: unknown, actual: unknown) => {
    if (String(expected) !== String(actual)) {
      found.push({ fact, expected: String(expected), found: String(actual) });
    }
  };
  check('trades of klines', manifest.rows, klines.trades);
  check('seconds of klines', alignedRows, klines.seconds);
  for (const name of ['price', 'quantity'] as const) {
    const column = dataset.trades?.unified.find((field) => field.name === name)?.column;
    const total = dataset.native.totals.find((one) => one.column === column);
    const { mantissa, scale } = klines[name];
    if (!total || scale > total.scale) continue;
    check(`${name} of klines`, manifest.totals[total.column], mantissa * 10n ** BigInt(total.scale - scale));
  }
  return found;
}

/** Rows that are read from the database at a time. */
const FETCHED_ROWS = 20_000;

/** Of a second without rows: it follows no other, so it is not exact. */
const NO_IDS: SecondIds = { firstId: Number.NEGATIVE_INFINITY, lastId: Number.NEGATIVE_INFINITY };

/** Makes the klines of a partition from its stored rows. */
export async function klinesOfStored(
  client: ClientBase,
  dataset: DatasetDefinition,
  partition: PartitionRef,
): Promise<KeptKlines> {
  const klines = new DayKlines(partition);
  const [price, quantity, isMaker] = ['price', 'quantity', 'is_buyer_maker'].map(
    (name) => dataset.trades!.unified.find((field) => field.name === name)!.sql,
  );
  const { time, identity, table } = dataset.native;
  const trades = `select t."${time.column}", t."${identity[0]}", ${price}, ${quantity}, ${isMaker}
    from ${table} t where ${scopeSql(dataset, partition)} order by t."${time.column}"`;
  const ids = new Map<number, SecondIds>();
  for await (const [ms, id, p, q, maker] of rowsOfCursor(client, trades)) {
    klines.add(Number(ms), Number(id), Number(p), Number(q), maker === true ? 1 : 0);
    const second = Math.floor(Number(ms) / 1000);
    const { firstId, lastId } = ids.get(second) ?? { firstId: Number(id), lastId: Number(id) };
    ids.set(second, { firstId: Math.min(firstId, Number(id)), lastId: Math.max(lastId, Number(id)) });
  }
  const seconds = `select extract(epoch from t.aligned_at_utc)::int8, t.open_price, t.high_price, t.low_price, t.close_price,
      t.quantity_sum, t.quote_volume_sum, t.trade_count
    from ${ALIGNED_TABLE} t where t.dataset_id = ${dataset.number}${seriesCondition(dataset)}
      and t.aligned_at_utc >= '${new Date(partition.fromMs).toISOString()}'
      and t.aligned_at_utc < '${new Date(partition.toMs).toISOString()}' order by t.aligned_at_utc`;
  for await (const row of rowsOfCursor(client, seconds)) {
    const [second, open, high, low, close, quantityOf, quote, count] = row.map(Number);
    const folded = { open, high, low, close, quantity: quantityOf, quote, trades: count };
    klines.addSecond(second * 1000, folded, ids.get(second) ?? NO_IDS);
  }
  return klines.build(dataset.number);
}

/** The rows of a query as lists of values, without all of them in memory. */
async function* rowsOfCursor(client: ClientBase, select: string): AsyncGenerator<unknown[]> {
  await client.query(`declare kept_klines no scroll cursor for ${select}`);
  for (;;) {
    const { rows } = await client.query({ text: `fetch ${FETCHED_ROWS} from kept_klines`, rowMode: 'array' });
    yield* rows as unknown[][];
    if (rows.length < FETCHED_ROWS) break;
  }
  await client.query('close kept_klines');
}

/**
 * Makes the klines of a partition from its stored rows and compares them with its manifest.
 * @throws TidemarkError PARTITION_PROOF_FAILED if they differ.
 */
export async function remadeKlines(
  client: ClientBase,
  dataset: DatasetDefinition,
  row: PartitionRow,
): Promise<KeptKlines | undefined> {
  if (keptStartOf(dataset) === undefined) return undefined;
  assert(row.manifest, 'a partition with rows has a manifest');
  const klines = await klinesOfStored(client, dataset, partitionOf(row));
  const discrepancies = compareKlines(dataset, klines, row.manifest, row.alignedRows);
  if (discrepancies.length === 0) return klines;
  throw new TidemarkError(
    'PARTITION_PROOF_FAILED',
    `The rows of ${dataset.key} ${row.partitionKey} do not make the klines of its manifest: ${describeDiscrepancies(discrepancies)}`,
  );
}

/** Stores klines that were made from the rows of a proved partition, in the caller's transaction: after a replay or a release. */
export async function keepKlines(
  client: ClientBase,
  dataset: DatasetDefinition,
  row: PartitionRow,
  klines: KeptKlines | undefined,
): Promise<void> {
  if (!klines) return;
  const partition = partitionOf(row);
  await deleteKlines(client, dataset, partition);
  await storeKlines(client, klines);
  await client.query(
    'update partitions set klines_sha256 = $3, inexact_seconds = $4 where dataset_id = $1 and partition_key = $2',
    [dataset.number, partition.key, klines.sha256, klines.inexactSeconds],
  );
  await shareKlines(client, dataset, partition);
}

function partitionOf({ partitionKey, fromMs, toMs }: PartitionRow): PartitionRef {
  assert(fromMs !== null && toMs !== null, `the times of ${partitionKey} are known`);
  return { key: partitionKey, fromMs, toMs };
}

/** A partition as the keys of shared klines name it. */
interface Neighbour {
  readonly key: string;
  readonly revision: number;
  readonly from: number;
  readonly to: number;
}

interface SharedBucket {
  readonly startMs: number;
  readonly sizeMs: number;
  readonly first: Neighbour;
  readonly second: Neighbour;
}

/** The klines that a partition shares with neighbours that are proved and have klines, according to the catalog. */
async function sharedBuckets(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: TimeWindow,
): Promise<SharedBucket[]> {
  const sizes = KEPT_SIZES_MS.filter((sizeMs) => keptStartOf(dataset) !== undefined && !isWholeSize(dataset, sizeMs));
  if (sizes.length === 0) return [];
  const { rows } = await client.query(
    `select partition_key as key, revision, from_ms::float8 as from, to_ms::float8 as to from partitions
     where dataset_id = $1 and state = 'proved' and klines_sha256 is not null and from_ms <= $3 and to_ms >= $2
     order by from_ms`,
    [dataset.number, window.fromMs, window.toMs],
  );
  const proved = rows as Neighbour[];
  return proved.flatMap((second, index) => {
    const first = proved[index - 1];
    if (first?.to !== second.from) return [];
    const buckets = sizes.map((sizeMs) => ({
      startMs: Math.floor(second.from / sizeMs) * sizeMs,
      sizeMs,
      first,
      second,
    }));
    return buckets.filter(({ startMs, sizeMs }) => startMs >= first.from && startMs + sizeMs <= second.to);
  });
}

const SHARED_COLUMNS = [
  ...KEPT_COLUMNS.native.map(({ name }) => name),
  ...['first_partition', 'first_revision', 'second_partition', 'second_revision'],
];

/** `empty`: it holds no trade; `rows_differ`: the rows are not as many as the klines of its parts count. */
type SharedValues = (string | number)[] | 'empty' | 'rows_differ';

/** The values of a shared kline in the order of SHARED_COLUMNS. */
async function sharedValues(
  client: ClientBase,
  dataset: DatasetDefinition,
  bucket: SharedBucket,
): Promise<SharedValues> {
  const { startMs, sizeMs, first, second } = bucket;
  const parts = await storedBuckets(client, dataset, bucket);
  if (parts.length === 0) return 'empty';
  const earlier = parts.filter((part) => part.startMs < second.from);
  const later = parts.filter((part) => part.startMs >= second.from);
  const all = together(parts, startMs, sizeMs);
  // Where ids restart with each partition, the earlier partition holds the first trade and the later one the last.
  const isOrdered = dataset.offset.unique || earlier.length === 0 || later.length === 0;
  const [opening, closing] = isOrdered ? [all, all] : [together(earlier, 0, 0), together(later, 0, 0)];
  const { firstId, open, openLiquidity } = opening;
  const { lastId, close, closeLiquidity } = closing;
  const ends = { firstId, open, openLiquidity, lastId, close, closeLiquidity };
  const runs = await runsOf(client, dataset, startMs, startMs + sizeMs);
  if (runs.counts.reduce((sum, count) => sum + count, 0) !== all.trades) return 'rows_differ';
  return [
    ...nativeValues({ ...all, ...ends, runs }, dataset.number).map(textOf),
    ...[first.key, first.revision, second.key, second.revision],
  ];
}

/** Makes the klines that a partition shares with its neighbours. The catalog already lists the partition as proved. */
export async function shareKlines(client: ClientBase, dataset: DatasetDefinition, window: TimeWindow): Promise<void> {
  for (const bucket of await sharedBuckets(client, dataset, window)) {
    const values = await sharedValues(client, dataset, bucket);
    // Rows that differ are for a verification to find, which quarantines their partition.
    if (typeof values === 'string') continue;
    await client.query(`delete from ${KLINE_TABLES.shared} where dataset_id = $1 and size_s = $2 and start_ms = $3`, [
      dataset.number,
      bucket.sizeMs / 1000,
      bucket.startMs,
    ]);
    const places = values.map((_, index) => `$${index + 1}`).join(', ');
    await client.query(`insert into ${KLINE_TABLES.shared} (${SHARED_COLUMNS.join(', ')}) values (${places})`, values);
  }
}

/** Compares the stored klines that begin in a partition and that it shares with the next one. */
export async function compareShared(
  client: ClientBase,
  dataset: DatasetDefinition,
  window: TimeWindow,
): Promise<Discrepancy[]> {
  const discrepancies: Discrepancy[] = [];
  for (const bucket of await sharedBuckets(client, dataset, window)) {
    if (bucket.startMs < window.fromMs || bucket.startMs >= window.toMs) continue;
    const values = await sharedValues(client, dataset, bucket);
    if (values === 'empty' || (values !== 'rows_differ' && (await isStored(client, values)))) continue;
    const expected = `that of ${new Date(bucket.startMs).toISOString()}`;
    discrepancies.push({ fact: 'shared klines', expected, found: values === 'rows_differ' ? 'other rows' : 'another' });
  }
  return discrepancies;
}

async function isStored(client: ClientBase, values: readonly (string | number)[]): Promise<boolean> {
  const tests = SHARED_COLUMNS.map((name, index) => `${name} = $${index + 1}`).join(' and ');
  const { rowCount } = await client.query(`select 1 from ${KLINE_TABLES.shared} where ${tests}`, [...values]);
  return rowCount !== 0;
}

/** The text of a value as PostgreSQL reads it without loss. */
function textOf(value: KeptValue): string {
  if (typeof value === 'number') return String(value);
  const digits = value.mantissa.toString().padStart(value.scale + 1, '0');
  const point = digits.length - value.scale;
  return value.scale === 0 ? digits : `${digits.slice(0, point)}.${digits.slice(point)}`;
}

const NO_RUNS: PriceRuns = { prices: new Float64Array(0), counts: new Uint32Array(0) };

/** The largest stored klines that make up a shared one, without prices. */
async function storedBuckets(
  client: ClientBase,
  dataset: DatasetDefinition,
  { startMs, sizeMs }: SharedBucket,
): Promise<TradeBucket[]> {
  const partMs = KEPT_SIZES_MS.findLast((one) => one < sizeMs && isWholeSize(dataset, one))!;
  const { rows } = await client.query(
    `select * from ${KLINE_TABLES.native} where dataset_id = $1 and size_s = $2 and start_ms >= $3 and start_ms < $4
     order by start_ms`,
    [dataset.number, partMs / 1000, startMs, startMs + sizeMs],
  );
  return rows.map((row) => ({
    startMs: Number(row.start_ms),
    sizeMs: partMs,
    trades: Number(row.no_of_trades),
    makers: Number(row.makers),
    firstId: Number(row.first_id),
    lastId: Number(row.last_id),
    open: row.open,
    high: row.high,
    low: row.low,
    close: row.close,
    openLiquidity: row.open_liquidity,
    highLiquidity: row.high_liquidity,
    lowLiquidity: row.low_liquidity,
    closeLiquidity: row.close_liquidity,
    totals: {
      price: exactDecimal(row.price_total),
      priceSquare: exactDecimal(row.price_square_total),
      quantity: exactDecimal(row.quantity_total),
      liquidity: exactDecimal(row.liquidity_total),
      makerQuantity: exactDecimal(row.maker_quantity_total),
      makerLiquidity: exactDecimal(row.maker_liquidity_total),
    },
    runs: NO_RUNS,
  }));
}

/** Minutes between two stretches that are read as one. So a day has at most 360 stretches, which PostgreSQL plans in a moment. */
const JOINED_MINUTES = 3;

/**
 * Prices with the quartiles of the trades in a stretch of time. The klines of its minutes leave a narrow range to each
 * quartile. The database counts the rows of the minutes that reach into one: a third of a day of 3.5 M trades, 0.1 s on
 * one core instead of 0.3 s on two. All trades of another minute lie on one side of each quartile, so its highest price
 * stands for them.
 */
async function runsOf(
  client: ClientBase,
  dataset: DatasetDefinition,
  fromMs: number,
  toMs: number,
): Promise<PriceRuns> {
  const { rows: minutes } = await client.query<PriceSpan & { startMs: number }>(
    `select start_ms::float8 as "startMs", no_of_trades::float8 as trades, low, high from ${KLINE_TABLES.native}
     where dataset_id = $1 and size_s = $2 and start_ms >= $3 and start_ms < $4 order by start_ms`,
    [dataset.number, MINUTE_MS / 1000, fromMs, toMs],
  );
  const ranges = quartileRanges(minutes);
  const stretches: { fromMs: number; toMs: number }[] = [];
  for (const { startMs, low, high } of minutes) {
    if (!ranges.some((range) => low <= range.high && high >= range.low)) continue;
    const last = stretches.at(-1);
    if (last && startMs - last.toMs < JOINED_MINUTES * MINUTE_MS) last.toMs = startMs + MINUTE_MS;
    else stretches.push({ fromMs: startMs, toMs: startMs + MINUTE_MS });
  }
  // No minute is left of those that were stored.
  if (stretches.length === 0) return NO_RUNS;
  const { time } = dataset.native;
  const price = dataset.trades!.unified.find((field) => field.name === 'price')!.sql;
  const reads = stretches.map(
    (one) =>
      `select ${price} as price from ${nativeRows(dataset)} t
       where t."${time.column}" >= ${one.fromMs} and t."${time.column}" < ${one.toMs}`,
  );
  const { rows } = await client.query<[number, number]>({
    text: `select price, count(*)::int4 from (${reads.join(' union all ')}) t group by 1`,
    rowMode: 'array',
  });
  const prices = new Map(rows);
  for (const { startMs, high, trades } of minutes) {
    const isRead = stretches.some((one) => startMs >= one.fromMs && startMs < one.toMs);
    if (!isRead) prices.set(high, (prices.get(high) ?? 0) + trades);
  }
  const ascending = [...prices].sort(([x], [y]) => x - y);
  return {
    prices: Float64Array.from(ascending, ([value]) => value),
    counts: Uint32Array.from(ascending, ([, trades]) => trades),
  };
}
