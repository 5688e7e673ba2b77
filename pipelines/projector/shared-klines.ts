/**
 * Klines that two file days share: a day of UTC, where the days of a dataset begin at another hour. They are added up from the
 * largest whole klines of both, and their quartiles are counted from the rows.
 */
import type { ClientBase } from 'pg';
import type { Discrepancy } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import {
  isWholeSize,
  KEPT_COLUMNS,
  KEPT_SIZES_MS,
  KLINE_TABLES,
  keptStartOf,
} from '../../shared/registry/kept-klines.ts';
import type { TimeWindow } from '../../shared/registry/keys.ts';
import { exactDecimal } from '../rows/exact-decimal.ts';
import { type KeptValue, nativeValues } from '../rows/kept-klines.ts';
import { type TradeBucket, together } from '../rows/kline-builder.ts';
import type { PriceRuns } from '../rows/price-runs.ts';

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

/** The values of a shared kline in the order of SHARED_COLUMNS; undefined if it holds no trade. */
async function sharedValues(
  client: ClientBase,
  dataset: DatasetDefinition,
  bucket: SharedBucket,
): Promise<(string | number)[] | undefined> {
  const { startMs, sizeMs, first, second } = bucket;
  const parts = await storedBuckets(client, dataset, bucket);
  if (parts.length === 0) return undefined;
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
  return [
    ...nativeValues({ ...all, ...ends, runs }, dataset.number).map(textOf),
    ...[first.key, first.revision, second.key, second.revision],
  ];
}

/** Makes the klines that a partition shares with its neighbours. The catalog already lists the partition as proved. */
export async function shareKlines(client: ClientBase, dataset: DatasetDefinition, window: TimeWindow): Promise<void> {
  for (const bucket of await sharedBuckets(client, dataset, window)) {
    const values = await sharedValues(client, dataset, bucket);
    if (!values) continue;
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
    if (!values) continue;
    const tests = SHARED_COLUMNS.map((name, index) => `${name} = $${index + 1}`).join(' and ');
    const { rows } = await client.query(`select 1 from ${KLINE_TABLES.shared} where ${tests}`, values);
    const at = new Date(bucket.startMs).toISOString();
    if (rows.length === 0) discrepancies.push({ fact: 'shared klines', expected: `that of ${at}`, found: 'another' });
  }
  return discrepancies;
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

/** The prices of the trades in a stretch of time, counted by the database. */
async function runsOf(
  client: ClientBase,
  dataset: DatasetDefinition,
  fromMs: number,
  toMs: number,
): Promise<PriceRuns> {
  const { time, table } = dataset.native;
  const price = dataset.trades!.unified.find((field) => field.name === 'price')!.sql;
  const { rows } = await client.query({
    text: `select ${price}, count(*)::int4 from ${table} t where t."${time.column}" >= ${fromMs} and t."${time.column}" < ${toMs}
      group by 1 order by 1`,
    rowMode: 'array',
  });
  return { prices: Float64Array.from(rows, ([value]) => value), counts: Uint32Array.from(rows, ([, count]) => count) };
}
