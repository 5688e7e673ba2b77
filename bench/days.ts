/** Generated days: documents of the three exchanges, histories that the product ingests, and days made in the database itself. */
import { createReadStream, createWriteStream } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { pathToFileURL } from 'node:url';
import { createGunzip } from 'node:zlib';
import { localPath } from '../pipelines/sources/documents/locations.ts';
import { openZipMember } from '../pipelines/sources/documents/zip-reader.ts';
import * as exchangeA from '../pipelines/sources/exchange_a/sample.ts';
import * as exchangeB from '../pipelines/sources/exchange_b/sample.ts';
import * as exchangeBSource from '../pipelines/sources/exchange_b/source.ts';
import * as exchangeC from '../pipelines/sources/exchange_c/sample.ts';
import * as exchangeCSource from '../pipelines/sources/exchange_c/source.ts';
import { DAY_MS } from '../shared/dates.ts';
import { migrate } from '../shared/db/migrate.ts';
import { ALIGNED_TABLE } from '../shared/registry/aligned-storage.ts';
import { KLINE_TABLES } from '../shared/registry/kept-klines.ts';
import type { Lab } from './lab.ts';
import { connected, DATASET } from './others.ts';
import { ended, type Settings, startCommand } from './service.ts';

const SYMBOL = 'BTCUSDT';
const INSTRUMENT = 'BTC-USDT';
const SEED = 7;

export const iso = (ms: number) => new Date(ms).toISOString();
export const dayOf = (ms: number) => iso(ms).slice(0, 10);

/** Trades of one exchange as its archive has them, and what psql needs to load the same rows. */
export interface Vendor {
  readonly dataset: string;
  /** The setting that names the vendor's folder. */
  readonly setting: keyof Settings;
  /** Writes the documents of consecutive days. @returns the days */
  generate(folder: string, from: string, to: string, rows: number): Promise<string[]>;
  /** Writes one day's CSV for psql. */
  unpack(folder: string, day: string, to: string): Promise<void>;
  /** The columns of a hypertable equal to ours; the key is (timestamp, trade_id). */
  readonly table: string;
  /** The columns of the CSV, in order. */
  readonly csvColumns: string;
  readonly header: boolean;
}

export const VENDORS: readonly Vendor[] = [
  {
    dataset: DATASET,
    setting: 'SVC_EXCHANGE_A_BASE_URL',
    async generate(directory, from, to, rowsPerDay) {
      const days = exchangeA.consecutiveDays({ from, to, rowsPerDay, seed: SEED, timeUnit: 'ms' });
      for (const day of days) await exchangeA.writeDay({ directory, symbol: SYMBOL, ...day });
      return days.map(({ day }) => day);
    },
    unpack: (folder, day, to) =>
      unzip(
        join(folder, 'spot/daily/trades', SYMBOL, `${SYMBOL}-trades-${day}.zip`),
        `${SYMBOL}-trades-${day}.csv`,
        to,
      ),
    table: `"timestamp" int8 not null, trade_id int8 not null, price float8 not null, quantity float8 not null,
      quote_quantity float8 not null, is_buyer_maker boolean not null, is_best_match boolean not null`,
    csvColumns: 'trade_id, price, quantity, quote_quantity, "timestamp", is_buyer_maker, is_best_match',
    header: false,
  },
  {
    dataset: 'exchange_b_spot_trades',
    setting: 'SVC_EXCHANGE_B_BASE_URL',
    async generate(directory, from, to, rowsPerDay) {
      const days = exchangeB.consecutiveDays({ from, to, rowsPerDay, seed: SEED });
      // Without repeated rows: psql cannot drop them, and its unique key would refuse them.
      for (const day of days) await exchangeB.writeDay({ directory, ...day, repeats: 0 });
      return days.map(({ day }) => day);
    },
    unpack: (folder, day, to) =>
      unzip(
        localPath(exchangeBSource.archiveUrl(pathToFileURL(join(folder, '/')), INSTRUMENT, day)),
        exchangeBSource.documentName(INSTRUMENT, day).replace(/zip$/, 'csv'),
        to,
      ),
    // The table computes the column that the file lacks.
    table: `"timestamp" int8 not null, trade_id int8 not null, price float8 not null, size float8 not null,
      quote_quantity float8 generated always as (price * size) stored, side text not null, instrument_name text not null`,
    csvColumns: 'instrument_name, trade_id, side, price, size, "timestamp"',
    header: true,
  },
  {
    dataset: 'exchange_c_spot_trades',
    setting: 'SVC_EXCHANGE_C_BASE_URL',
    async generate(directory, from, to, rowsPerDay) {
      const days = exchangeC.consecutiveDays({ from, to, rowsPerDay, seed: SEED });
      for (const day of days)
        await exchangeC.writeDay({ directory, ...day, archive: 'trading', rpi: false, repeats: 0 });
      return days.map(({ day }) => day);
    },
    async unpack(folder, day, to) {
      const url = exchangeCSource.archiveUrl(pathToFileURL(join(folder, '/')), 'trading', SYMBOL, day);
      const lines = createInterface({ input: createReadStream(localPath(url)).pipe(createGunzip()) });
      await pipeline(Readable.from(inMilliseconds(lines)), createWriteStream(to));
    },
    table: `"timestamp" int8 not null, price float8 not null, size float8 not null, gross_value float8 not null,
      home_notional float8 not null, foreign_notional float8 not null, side text not null, tick_direction text not null,
      symbol text not null, trd_match_id text not null,
      trade_id int8 generated always as (substr(trd_match_id, 3)::int8) stored`,
    csvColumns: `"timestamp", symbol, side, size, price, tick_direction, trd_match_id, gross_value, home_notional,
      foreign_notional`,
    header: true,
  },
];

async function unzip(path: string, expectedName: string, to: string): Promise<void> {
  const member = await openZipMember({ path, expectedName, maxUnpackedBytes: 2 ** 40 });
  await pipeline(member.stream(), createWriteStream(to));
}

/** Converts decimal seconds to milliseconds before the measurement, because psql cannot convert them. */
async function* inMilliseconds(lines: AsyncIterable<string>): AsyncGenerator<string> {
  let isHeader = true;
  for await (const line of lines) {
    const comma = line.indexOf(',');
    const time = isHeader ? 'timestamp' : String(Math.round(Number(line.slice(0, comma)) * 1000));
    isHeader = false;
    yield `${time}${line.slice(comma)}\n`;
  }
}

/** Starts the ingest of consecutive days of documents, until they are proved. */
export const startBackfill = (
  { stack }: Lab,
  { dataset, setting }: Vendor,
  folder: string,
  days: readonly string[],
  settings: Settings = {},
) =>
  startCommand(stack.stateDir, ['backfill', dataset, '--from', days[0], '--to', days.at(-1)!, '--json'], {
    [setting]: pathToFileURL(join(folder, '/')).href,
    ...settings,
  });

export interface History {
  readonly fromMs: number;
  readonly toMs: number;
  /** Trades of each day in it. */
  readonly rows: number;
  readonly firstId?: number;
}

/** Days of documents on the disk at a time. */
const DAYS_AT_ONCE = 30;

/** Generates a history of trades of exchange A and ingests it; settings may name another database and state folder. */
export async function ingestHistory(
  lab: Lab,
  { fromMs, toMs, rows, firstId = 1 }: History,
  settings: Settings = {},
): Promise<void> {
  const folder = join(lab.directory, 'vendor');
  for (let at = fromMs; at < toMs; at += DAYS_AT_ONCE * DAY_MS) {
    const days = exchangeA.consecutiveDays({
      from: dayOf(at),
      to: dayOf(Math.min(toMs, at + DAYS_AT_ONCE * DAY_MS) - 1),
      rowsPerDay: rows,
      seed: SEED,
      firstId: firstId + ((at - fromMs) / DAY_MS) * rows,
      timeUnit: 'ms',
    });
    lab.note(`ingesting ${days.length} days of ${rows.toLocaleString('en-US')} trades from ${days[0].day}`);
    for (const day of days) await exchangeA.writeDay({ directory: folder, symbol: SYMBOL, ...day });
    await ended(
      startBackfill(
        lab,
        VENDORS[0],
        folder,
        days.map(({ day }) => day),
        settings,
      ),
    );
    await rm(folder, { recursive: true });
  }
  // Autovacuum would do this within a minute.
  await using client = await connected(settings.SVC_DATABASE_URL ?? lab.stack.databaseUrl);
  for (const table of [DATASET, ...Object.values(KLINE_TABLES)]) await client.pg.query(`vacuum analyze ${table}`);
}

const NUMBER = 1;
/** Days of one transaction, which locks each of their chunks until it ends. */
const BATCH_DAYS = 100;

/** Creates a database on a server, with the schema and without rows. @returns its URL */
export async function createDatabase(serverUrl: string, name: string): Promise<string> {
  await using server = await connected(serverUrl);
  await server.pg.query(`create database ${name}`);
  const url = new URL(serverUrl);
  url.pathname = `/${name}`;
  await using fresh = await connected(url.href);
  await migrate(fresh.pg as never);
  return url.href;
}

/** Rows of a day that `makeDays` makes: twenty an hour. */
export const MADE_ROWS = 480;

/** Makes proved days of exchange A that end before `endMs`, in the database itself, where their number matters and not their rows. */
export async function makeDays(url: string, endMs: number, days: number): Promise<void> {
  await using client = await connected(url);
  for (let done = 0; done < days; done += BATCH_DAYS) {
    const toMs = endMs - done * DAY_MS;
    const fromMs = toMs - Math.min(BATCH_DAYS, days - done) * DAY_MS;
    await client.pg.query('begin');
    for (const [sql, values] of statementsOf(fromMs, toMs)) await client.pg.query(sql, [...values]);
    const { rows: chunks } = await client.pg.query(
      `select format('%I.%I', chunk_schema, chunk_name) as name from timescaledb_information.chunks
       where hypertable_name = '${DATASET}' and range_start_integer >= $1 and range_end_integer <= $2`,
      [fromMs, toMs],
    );
    for (const { name } of chunks) await client.pg.query(`create unique index on ${name} ("timestamp", trade_id)`);
    await client.pg.query('commit');
  }
  for (const table of [DATASET, ALIGNED_TABLE, 'partitions']) await client.pg.query(`vacuum analyze ${table}`);
}

function statementsOf(fromMs: number, toMs: number): readonly (readonly [sql: string, values: readonly number[]])[] {
  const stepMs = DAY_MS / MADE_ROWS;
  const window = [fromMs, toMs];
  return [
    [
      `insert into ${DATASET} select at, at / ${stepMs}, p, q, p * q, at / ${stepMs} % 3 = 0, true
       from (select at, round((42000 + 500 * sin(at / 1e8))::numeric, 2)::float8 as p,
         (1 + at / ${stepMs} * 7919 % 30000) / 1e5::float8 as q
         from generate_series($1::int8, $2::int8 - 1, ${stepMs}) at) s`,
      window,
    ],
    [
      `insert into ${ALIGNED_TABLE} (aligned_at_utc, trade_count, open_price, high_price, low_price, close_price, quantity_sum,
         quote_volume_sum, series_id, dataset_id)
       select to_timestamp(timestamp / 1000), count(*), first(price, trade_id), max(price), min(price), last(price, trade_id),
         sum(quantity), sum(quote_quantity), (select series_id from series where dataset_id = ${NUMBER} and key = ''), ${NUMBER}
       from ${DATASET} where timestamp >= $1 and timestamp < $2 group by timestamp / 1000`,
      window,
    ],
    [
      `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows, aligned_rows,
         offsets, proved_at)
       select ${NUMBER}, to_char(to_timestamp(at / 1000) at time zone 'UTC', 'YYYY-MM-DD'), 'proved', 1, 1, at, at + ${DAY_MS},
         true, ${MADE_ROWS}, ${MADE_ROWS}, int8range(at / ${stepMs}, at / ${stepMs} + ${MADE_ROWS}), now()
       from generate_series($1::int8, $2::int8 - 1, ${DAY_MS}) at`,
      window,
    ],
    [
      `update coverage set proved = proved + int8multirange(int8range($1, $2)), version = version + 1, synthetic = true
       where dataset_id = ${NUMBER}`,
      window,
    ],
  ];
}
