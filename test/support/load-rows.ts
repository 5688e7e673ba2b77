/**
 * Rows of exchange A put straight into storage, for tests of the serving side: native rows, aligned rows, partitions,
 * coverage and frames index as a projector would leave them, without a log. What is loaded is returned as plain
 * objects, so that a test can say what every answer must be.
 */
import { once } from 'node:events';
import type pg from 'pg';
import { from as copyFrom } from 'pg-copy-streams';
import { seededRandom } from '../../pipelines/sources/trades/sample.ts';
import { claimInstrument } from '../../shared/db/instruments.ts';
import { ALIGNED_TABLE } from '../../shared/registry/aligned-storage.ts';
import { type DatasetDefinition, datasetOf } from '../../shared/registry/index.ts';
import { parseInstrument, seriesKeyFor } from '../../shared/registry/instruments.ts';
import { dayKeyOf } from '../../shared/registry/keys.ts';
import { loadRows } from './stack.ts';

export const DAY_MS = 86_400_000;
export const DATASET = 'exchange_a_spot_trades';
const { number: DATASET_NUMBER, native } = datasetOf(DATASET);
const TABLE = native.table;

/** A native row, in the words of the contract. */
export interface Trade {
  readonly trade_id: number;
  readonly timestamp: number;
  readonly price: number;
  readonly quantity: number;
  readonly quote_quantity: number;
  readonly is_buyer_maker: 0 | 1;
  readonly is_best_match: 0 | 1;
}

export interface DayOfTrades {
  /** `YYYY-MM-DD` */
  readonly day: string;
  readonly trades: readonly Trade[];
}

export interface LoadOptions {
  readonly synthetic?: boolean;
  /** Rows of one frame; the last of a day may have fewer. 0: no frames index. */
  readonly rowsPerFrame?: number;
  /** Whose rows they are, where it is not the default's. */
  readonly dataset?: DatasetDefinition;
}

/** Gives another instrument its number, as the first backfill of it does. */
export async function claimOther(url: string, key: string, symbol: string): Promise<DatasetDefinition> {
  let claimed: DatasetDefinition | undefined;
  await loadRows(url, async (client) => {
    claimed = await claimInstrument(client, datasetOf(key), parseInstrument(symbol)!);
  });
  return claimed!;
}

/** A third instrument of the exchange, which shares a table with the second: its rows are never asked for. */
export async function loadThird(url: string, days: readonly DayOfTrades[]): Promise<void> {
  await loadDays(url, days, { dataset: await claimOther(url, DATASET, 'SOLUSDT') });
}

/** Says whose rows those are that the connection puts into a table of several instruments. */
export const putFor = (client: pg.Client, { native: { owner } }: DatasetDefinition) =>
  client.query(`select set_config('tidemark.instrument', $1, false)`, [String(owner?.value ?? '')]);

/** A day of trades: several a second here, none for minutes there; equal times; prices of two decimals and of eight. */
export function randomDay(day: string, rows: number, firstId: number, seed: number): DayOfTrades {
  const random = seededRandom(seed);
  const start = Date.parse(`${day}T00:00:00Z`);
  const times = Array.from({ length: rows }, () => {
    // Half of the rows crowd into a hundredth of the day.
    const spread = random() < 0.5 ? DAY_MS : DAY_MS / 100;
    return start + Math.floor(random() * spread);
  }).sort((a, b) => a - b);
  const trades = times.map((timestamp, index): Trade => {
    const price = round(40_000 + 500 * Math.sin(index / 50) + random() * 10, random() < 0.9 ? 2 : 8);
    const quantity = round(random() * 0.5 + 1e-5, random() < 0.9 ? 5 : 8);
    return {
      trade_id: firstId + index,
      timestamp,
      price,
      quantity,
      quote_quantity: round(price * quantity, 8),
      is_buyer_maker: random() < 0.5 ? 0 : 1,
      is_best_match: random() < 0.99 ? 1 : 0,
    };
  });
  return { day, trades };
}

export const round = (value: number, digits: number): number => Number(value.toFixed(digits));

/** Loads the days and proves them. */
export async function loadDays(url: string, days: readonly DayOfTrades[], options: LoadOptions = {}): Promise<void> {
  const { dataset = datasetOf(DATASET) } = options;
  await loadRows(url, async (client) => {
    await client.query('begin');
    for (const day of days) {
      await insertTrades(client, day.trades, dataset);
      await insertAligned(client, alignedOf(day.trades), dataset);
      await prove(client, day, { ...options, dataset });
    }
    await client.query('commit');
  });
}

/** Rows in storage that nothing has proved: a quarantined or interrupted partition's. */
export async function insertUnproved(
  url: string,
  trades: readonly Trade[],
  dataset: DatasetDefinition = datasetOf(DATASET),
): Promise<void> {
  await loadRows(url, async (client) => {
    await insertTrades(client, trades, dataset);
    await insertAligned(client, alignedOf(trades), dataset);
  });
}

export interface AlignedRow {
  readonly aligned_at_ms: number;
  readonly open_price: number;
  readonly high_price: number;
  readonly low_price: number;
  readonly close_price: number;
  readonly quantity_sum: number;
  readonly quote_volume_sum: number;
  readonly trade_count: number;
}

/** One row a second. Sums are exact, in units of 1e-8, and rounded once. */
export function alignedOf(trades: readonly Trade[]): AlignedRow[] {
  const seconds = Map.groupBy(trades, (trade) => Math.floor(trade.timestamp / 1000) * 1000);
  return [...seconds].map(([aligned_at_ms, group]) => {
    const rows = group.toSorted((a, b) => a.trade_id - b.trade_id);
    const prices = rows.map((row) => row.price);
    const sum = (values: number[]) =>
      Number(values.reduce((total, value) => total + BigInt(Math.round(value * 1e8)), 0n)) / 1e8;
    return {
      aligned_at_ms,
      open_price: prices[0],
      high_price: Math.max(...prices),
      low_price: Math.min(...prices),
      close_price: prices[prices.length - 1],
      quantity_sum: sum(rows.map((row) => row.quantity)),
      quote_volume_sum: sum(rows.map((row) => row.quote_quantity)),
      trade_count: rows.length,
    };
  });
}

async function insertTrades(client: pg.Client, trades: readonly Trade[], dataset: DatasetDefinition): Promise<void> {
  const lines = trades.map((t) =>
    [t.timestamp, t.trade_id, t.price, t.quantity, t.quote_quantity, t.is_buyer_maker, t.is_best_match].join('\t'),
  );
  const columns = '"timestamp", trade_id, price, quantity, quote_quantity, is_buyer_maker, is_best_match';
  await putFor(client, dataset);
  await copyIn(client, `copy ${dataset.native.table} (${columns}) from stdin`, lines);
  if (!dataset.base) await indexChunks(client);
}

async function insertAligned(
  client: pg.Client,
  rows: readonly AlignedRow[],
  dataset: DatasetDefinition,
): Promise<void> {
  const series = await client.query(`select series_id from series where dataset_id = $1 and key = $2`, [
    dataset.number,
    seriesKeyFor(dataset),
  ]);
  const lines = rows.map((row) =>
    [
      new Date(row.aligned_at_ms).toISOString(),
      row.trade_count,
      row.open_price,
      row.high_price,
      row.low_price,
      row.close_price,
      row.quantity_sum,
      row.quote_volume_sum,
      series.rows[0].series_id,
      dataset.number,
    ].join('\t'),
  );
  const columns = `aligned_at_utc, trade_count, open_price, high_price, low_price, close_price, quantity_sum,
    quote_volume_sum, series_id, dataset_id`;
  await copyIn(client, `copy ${ALIGNED_TABLE} (${columns}) from stdin`, lines);
}

async function copyIn(client: pg.Client, sql: string, lines: readonly string[]): Promise<void> {
  if (lines.length === 0) return;
  const stream = client.query(copyFrom(sql));
  const finished = once(stream, 'finish');
  stream.end(`${lines.join('\n')}\n`);
  await finished;
}

/** As the loader leaves it: one unique (timestamp, trade_id) on each chunk. */
async function indexChunks(client: pg.Client): Promise<void> {
  const chunks = await client.query(
    `select format('%I.%I', chunk_schema, chunk_name) as name from timescaledb_information.chunks c
     where hypertable_name = $1 and not exists (select 1 from pg_index i
       where i.indrelid = format('%I.%I', chunk_schema, chunk_name)::regclass and i.indisunique)`,
    [TABLE],
  );
  for (const { name } of chunks.rows) await client.query(`create unique index on ${name} ("timestamp", trade_id)`);
}

async function prove(
  client: pg.Client,
  { day, trades }: DayOfTrades,
  { synthetic = false, rowsPerFrame = 100, dataset }: LoadOptions & { readonly dataset: DatasetDefinition },
): Promise<void> {
  const key = dayKeyOf(dataset, day);
  const fromMs = Date.parse(`${day}T00:00:00Z`);
  const ids = trades.map((trade) => trade.trade_id);
  await client.query(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows,
       aligned_rows, offsets, proved_at) values ($1, $2, 'proved', 1, 1, $3, $4, $5, $6, $7, int8range($8, $9, '[]'), now())`,
    [
      dataset.number,
      key,
      fromMs,
      fromMs + DAY_MS,
      synthetic,
      trades.length,
      alignedOf(trades).length,
      ids[0],
      ids[ids.length - 1],
    ],
  );
  await client.query(
    `update coverage set proved = proved + int8multirange(int8range($2, $3)), version = version + 1, synthetic = $4
     where dataset_id = $1`,
    [dataset.number, fromMs, fromMs + DAY_MS, synthetic],
  );
  if (rowsPerFrame === 0) return;
  const before = await client.query('select coalesce(max(stream_sequence), 0) as last from frames');
  let sequence = Number(before.rows[0].last);
  for (let base = 0; base < trades.length; base += rowsPerFrame) {
    const frame = trades.slice(base, base + rowsPerFrame);
    const times = frame.map((trade) => trade.timestamp);
    await client.query('insert into frames values ($1, $2, $3, $4, $5, $6, $7, $8, $9)', [
      dataset.number,
      ++sequence,
      key,
      frame[0].trade_id,
      frame[frame.length - 1].trade_id,
      Math.min(...times),
      Math.max(...times),
      frame.length,
      base,
    ]);
  }
}

export interface BulkOptions {
  readonly fromDay: string;
  readonly days: number;
  readonly rowsPerDay: number;
  readonly firstId?: number;
  readonly synthetic?: boolean;
}

const BULK_ROWS_PER_FRAME = 14_000;

/** Millions of rows, made by the database itself: trade g of a day lies at its share of the day. */
export async function loadBulk(url: string, options: BulkOptions): Promise<void> {
  const { days, rowsPerDay, firstId = 1, synthetic = false } = options;
  await loadRows(url, async (client) => {
    for (let index = 0; index < days; index++) {
      const fromMs = Date.parse(`${options.fromDay}T00:00:00Z`) + index * DAY_MS;
      const base = firstId + index * rowsPerDay;
      await client.query('begin');
      await client.query(
        `insert into ${TABLE} select $1::int8 + g * ${DAY_MS}::int8 / $2::int8, $3::int8 + g, p, q, round(p * q * 1e8) / 1e8,
           g % 3 = 0, true
         from (select g, round(4200000 + 50000 * sin(g / 30000.0::float8) + g % 97 * 10) / 100 as p,
             (1 + g * 7919 % 30000) / 100000.0::float8 as q from generate_series(0::int8, $2::int8 - 1) g) s`,
        [fromMs, rowsPerDay, base],
      );
      await indexChunks(client);
      await bulkProof(client, { fromMs, base, rowsPerDay, synthetic });
      await client.query('commit');
    }
    await client.query(`analyze ${TABLE}`);
    await client.query(`analyze ${ALIGNED_TABLE}`);
  });
}

async function bulkProof(
  client: pg.Client,
  { fromMs, base, rowsPerDay, synthetic }: { fromMs: number; base: number; rowsPerDay: number; synthetic: boolean },
): Promise<void> {
  const toMs = fromMs + DAY_MS;
  const aligned = await client.query(
    `insert into ${ALIGNED_TABLE} (aligned_at_utc, trade_count, open_price, high_price, low_price, close_price,
       quantity_sum, quote_volume_sum, series_id, dataset_id)
     select to_timestamp(timestamp / 1000), count(*), first(price, trade_id), max(price), min(price),
       last(price, trade_id), sum(quantity), sum(quote_quantity),
       (select series_id from series where dataset_id = $1 and key = ''), $1
     from ${TABLE} where timestamp >= $2 and timestamp < $3 group by 1`,
    [DATASET_NUMBER, fromMs, toMs],
  );
  const day = new Date(fromMs).toISOString().slice(0, 10);
  await client.query(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows,
       aligned_rows, offsets, proved_at) values ($1, $2, 'proved', 1, 1, $3, $4, $5, $6, $7, int8range($8, $9, '[]'), now())`,
    [DATASET_NUMBER, day, fromMs, toMs, synthetic, rowsPerDay, aligned.rowCount, base, base + rowsPerDay - 1],
  );
  await client.query(
    `update coverage set proved = proved + int8multirange(int8range($2, $3)), version = version + 1, synthetic = $4
     where dataset_id = $1`,
    [DATASET_NUMBER, fromMs, toMs, synthetic],
  );
  await client.query(
    `insert into frames select $1, (select coalesce(max(stream_sequence), 0) from frames) + f + 1, $2,
       ($3::int8 + f * ${BULK_ROWS_PER_FRAME})::text, ($3::int8 + last)::text,
       $5::int8 + f * ${BULK_ROWS_PER_FRAME} * ${DAY_MS}::int8 / $4::int8, $5::int8 + last * ${DAY_MS}::int8 / $4::int8,
       last - f * ${BULK_ROWS_PER_FRAME} + 1, f * ${BULK_ROWS_PER_FRAME}
     from (select f, least((f + 1) * ${BULK_ROWS_PER_FRAME}, $4::int8) - 1 as last
       from generate_series(0::int8, ($4::int8 - 1) / ${BULK_ROWS_PER_FRAME}) f) s`,
    [DATASET_NUMBER, day, base, rowsPerDay, fromMs],
  );
}
