/** Trades of any exchange put straight into storage and proved, as load-rows.ts does for exchange A. */
import { once } from 'node:events';
import type pg from 'pg';
import { from as copyFrom } from 'pg-copy-streams';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { seriesKeyFor } from '../../shared/registry/instruments.ts';
import { dayKeyOf, windowOf } from '../../shared/registry/keys.ts';
import type { AnyTrade } from './kline-oracle.ts';
import { alignedOf, putFor } from './load-rows.ts';
import { loadRows } from './stack.ts';

export interface FileDay {
  /** Its day. */
  readonly key: string;
  readonly trades: readonly AnyTrade[];
}

const side = (trade: AnyTrade) => (trade.is_buyer_maker === 1 ? 'sell' : 'buy');
const quote = (trade: AnyTrade) => trade.price * trade.quantity;

type Cell = (trade: AnyTrade) => unknown;

/** What each stored column holds of a trade. */
const CELLS: Readonly<Record<string, Cell>> = {
  timestamp: (trade) => trade.timestamp,
  trade_id: (trade) => trade.trade_id,
  price: (trade) => trade.price,
  quantity: (trade) => trade.quantity,
  size: (trade) => trade.quantity,
  quote_quantity: quote,
  is_buyer_maker: (trade) => trade.is_buyer_maker,
  is_best_match: () => 1,
  side,
  trd_match_id: (trade) => `m-${trade.trade_id}`,
  tick_direction: () => 'PlusTick',
  gross_value: (trade) => Math.round(quote(trade) * 1e8),
  home_notional: (trade) => trade.quantity,
  foreign_notional: quote,
};

/** A column that no dataset of the contract has holds the quantity where it is that of the unified fields. */
function cellOf({ native, trades, instrument }: DatasetDefinition, name: string): Cell {
  if (name === 'instrument_name') return () => instrument ?? 'BTC-USDT';
  if (name === 'symbol') return () => instrument ?? 'BTCUSDT';
  const known = CELLS[name];
  if (known) return known;
  const quantity = trades?.unified.find((field) => field.name === 'quantity')?.columns;
  if (quantity?.includes(name)) return (trade) => trade.quantity;
  const type = native.columns.find((column) => column.name === name)?.pg;
  return type === 'float8' ? quote : type === 'bool' ? () => true : type === 'text' ? () => 'x' : () => 1;
}

export const alignedOfTrades = (trades: readonly AnyTrade[]) =>
  alignedOf(trades.map((trade) => ({ ...trade, quote_quantity: quote(trade), is_best_match: 1 as const })));

export async function loadFileDays(url: string, dataset: DatasetDefinition, days: readonly FileDay[]): Promise<void> {
  await loadRows(url, async (client) => {
    for (const { key, trades } of days) {
      const { table, columns } = dataset.native;
      await putFor(client, dataset);
      await copyIn(
        client,
        table,
        columns.map(({ name }) => name),
        trades.map((trade) => columns.map(({ name }) => cellOf(dataset, name)(trade))),
      );
      const aligned = alignedOfTrades(trades);
      await copyAligned(client, dataset, aligned);
      const partition = dayKeyOf(dataset, key);
      const { fromMs, toMs } = windowOf(dataset, partition);
      const ids = trades.map((trade) => trade.trade_id);
      const [first, last] = dataset.offset.unique ? [Math.min(...ids), Math.max(...ids)] : [null, null];
      await client.query(
        `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows,
           aligned_rows, offsets, ingested_at, proved_at)
         values ($1, $2, 'proved', 1, 1, $3, $4, false, $5, $6,
           case when $7::int8 is null then null else int8range($7, $8, '[]') end,
           date_trunc('milliseconds', now()), now())`,
        [dataset.number, partition, fromMs, toMs, trades.length, aligned.length, first, last],
      );
      await client.query(
        `update coverage set proved = proved + int8multirange(int8range($2, $3)), version = version + 1
         where dataset_id = $1`,
        [dataset.number, fromMs, toMs],
      );
    }
  });
}

async function copyAligned(
  client: pg.Client,
  dataset: DatasetDefinition,
  rows: ReturnType<typeof alignedOf>,
): Promise<void> {
  const { number } = dataset;
  const { rows: series } = await client.query(`select series_id from series where dataset_id = $1 and key = $2`, [
    number,
    seriesKeyFor(dataset),
  ]);
  await copyIn(
    client,
    ALIGNED_TABLE,
    ['aligned_at_utc', 'dataset_id', 'series_id', ...Object.keys(rows[0]).slice(1)],
    rows.map(({ aligned_at_ms, ...cells }) => [
      new Date(aligned_at_ms).toISOString(),
      number,
      series[0].series_id,
      ...Object.values(cells),
    ]),
  );
}

async function copyIn(client: pg.Client, table: string, columns: readonly string[], rows: readonly unknown[][]) {
  const names = columns.map((name) => `"${name}"`).join(', ');
  const stream = client.query(copyFrom(`copy ${table} (${names}) from stdin`));
  const finished = once(stream, 'finish');
  stream.end(rows.map((row) => `${row.join('\t')}\n`).join(''));
  await finished;
}
