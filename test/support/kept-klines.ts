/** Kept klines as the projector leaves them, made by the oracle of klines: for tests of the serving side. */
import { once } from 'node:events';
import type pg from 'pg';
import { from as copyFrom } from 'pg-copy-streams';
import { DAY_MS } from '../../shared/dates.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { isWholeSize, KEPT_COLUMNS, KEPT_SIZES_MS, KLINE_TABLES } from '../../shared/registry/kept-klines.ts';
import { type AnyTrade, alignedKlines, exact, type Kline, nativeKlines, SCALE, sum } from './kline-oracle.ts';
import type { AlignedRow } from './load-rows.ts';
import { alignedOfTrades, type FileDay } from './load-trades.ts';
import { loadRows } from './stack.ts';

type Cells = Readonly<Record<string, number | string>>;

/** Two file days that share klines, and the revisions that these are said to be made of. */
export interface SharedDays {
  readonly days: readonly [FileDay, FileDay];
  readonly revisions?: readonly [number, number];
}

const decimalOf = (units: bigint, scale = SCALE) => `${units}e-${scale}`;

/** A number for each trade that orders the trades of several days: the day first, then the id. */
export function ranksOf(days: readonly FileDay[]): (trade: AnyTrade) => number {
  const ranks = new Map<AnyTrade, number>();
  for (const { trades } of days) {
    for (const trade of trades.toSorted((a, b) => a.trade_id - b.trade_id)) ranks.set(trade, ranks.size);
  }
  return (trade) => ranks.get(trade)!;
}

/** The kept native klines of the trades: the columns of the table. */
export function keptNative(days: readonly FileDay[], sizeMs: number): Cells[] {
  const trades = days.flatMap((day) => day.trades);
  const rank = ranksOf(days);
  const groups = groupsOf(trades, sizeMs, (trade) => trade.timestamp);
  return nativeKlines(trades, sizeMs, rank).map((kline) => {
    const startMs = startOf(kline);
    const rows = groups.get(startMs)!.toSorted((a, b) => rank(a) - rank(b));
    const makers = rows.filter((row) => row.is_buyer_maker === 1);
    const quantities = (of: readonly AnyTrade[]) => decimalOf(sum(of.map((row) => exact(row.quantity))));
    const products = (of: readonly AnyTrade[]) =>
      decimalOf(sum(of.map((row) => exact(row.price) * exact(row.quantity))), 2 * SCALE);
    return {
      ...kline,
      start_ms: startMs,
      makers: makers.length,
      first_id: rows[0].trade_id,
      last_id: rows[rows.length - 1].trade_id,
      size_s: sizeMs / 1000,
      price_total: decimalOf(sum(rows.map((row) => exact(row.price)))),
      price_square_total: decimalOf(sum(rows.map((row) => exact(row.price) ** 2n)), 2 * SCALE),
      quantity_total: quantities(rows),
      liquidity_total: products(rows),
      maker_quantity_total: quantities(makers),
      maker_liquidity_total: products(makers),
    };
  });
}

/** The kept aligned klines of aligned rows. */
export function keptAligned(rows: readonly AlignedRow[], sizeMs: number): Cells[] {
  const groups = groupsOf(rows, sizeMs, (row) => row.aligned_at_ms);
  return alignedKlines(rows, sizeMs).map((kline) => {
    const startMs = startOf(kline);
    const group = groups.get(startMs)!;
    return {
      ...kline,
      start_ms: startMs,
      rows: group.length,
      size_s: sizeMs / 1000,
      quantity_total: decimalOf(sum(group.map((row) => exact(row.quantity_sum)))),
      liquidity_total: decimalOf(sum(group.map((row) => exact(row.quote_volume_sum)))),
    };
  });
}

const startOf = (kline: Kline) => Date.parse(kline.datetime as string);

const groupsOf = <T>(rows: readonly T[], sizeMs: number, timeOf: (row: T) => number) =>
  Map.groupBy(rows, (row) => Math.floor(timeOf(row) / sizeMs) * sizeMs);

/** Stores the whole klines of the file days, which are proved, and says so in their partitions. */
export async function keepKlines(url: string, dataset: DatasetDefinition, days: readonly FileDay[]): Promise<void> {
  await loadRows(url, async (client) => {
    for (const day of days) {
      for (const sizeMs of KEPT_SIZES_MS.filter((size) => isWholeSize(dataset, size))) {
        await insertKept(client, dataset, 'native', keptNative([day], sizeMs));
        await insertKept(client, dataset, 'aligned', keptAligned(alignedOfTrades(day.trades), sizeMs));
      }
      await client.query(`update partitions set klines_sha256 = 'kept' where dataset_id = $1 and partition_key = $2`, [
        dataset.number,
        day.key,
      ]);
    }
  });
}

/** Stores the native klines of a day that pairs of file days share, where two days overlap. */
export async function keepSharedKlines(
  url: string,
  dataset: DatasetDefinition,
  pairs: readonly SharedDays[],
): Promise<void> {
  await loadRows(url, async (client) => {
    for (const { days, revisions = [1, 1] } of pairs) {
      const start = Date.parse(`${days[0].key}T00:00:00Z`);
      const isWithin = ({ timestamp }: AnyTrade) => timestamp >= start && timestamp < start + DAY_MS;
      const klines = keptNative(
        days.map((day) => ({ ...day, trades: day.trades.filter(isWithin) })),
        DAY_MS,
      );
      await insertKept(client, dataset, 'shared', klines, {
        first_partition: days[0].key,
        first_revision: revisions[0],
        second_partition: days[1].key,
        second_revision: revisions[1],
      });
    }
  });
}

async function insertKept(
  client: pg.Client,
  { number }: DatasetDefinition,
  kind: keyof typeof KLINE_TABLES,
  klines: readonly Cells[],
  more: Cells = {},
): Promise<void> {
  const columns = KEPT_COLUMNS[kind === 'aligned' ? 'aligned' : 'native'].map(({ name }) => name);
  const names = [...columns, ...Object.keys(more)];
  const stream = client.query(copyFrom(`copy ${KLINE_TABLES[kind]} (${names.join(', ')}) from stdin`));
  const finished = once(stream, 'finish');
  const lines = klines.map((kline) => {
    const cells: Cells = { ...kline, dataset_id: number, ...more };
    return `${names.map((name) => cells[name]).join('\t')}\n`;
  });
  stream.end(lines.join(''));
  await finished;
}
