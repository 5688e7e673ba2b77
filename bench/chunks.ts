/** Generates days of exchange A in the database itself: one chunk of native rows a day. */
import pg from 'pg';
import { migrate } from '../shared/db/migrate.ts';
import { ALIGNED_TABLE } from '../shared/registry/aligned-storage.ts';

const DATASET = 'exchange_a_spot_trades';
const NUMBER = 1;
const DAY_MS = 86_400_000;
/** Twenty an hour, for benchmarks in which the number of days matters. */
export const ROWS_PER_DAY = 480;
/** Days of one transaction, which locks each of their chunks until it ends. */
const BATCH_DAYS = 100;

/** Creates another database on the stack's server, with the schema and without rows. @returns its URL. */
export async function createDatabase(serverUrl: string, name: string): Promise<string> {
  const client = new pg.Client({ connectionString: serverUrl });
  await client.connect();
  await client.query(`drop database if exists ${name} with (force)`);
  await client.query(`create database ${name}`);
  await client.end();
  const url = new URL(serverUrl);
  url.pathname = `/${name}`;
  const fresh = new pg.Client({ connectionString: url.href });
  await fresh.connect();
  await migrate(fresh as never);
  await fresh.end();
  return url.href;
}

/** Loads `days` proved days that end before `endDay`. Ids grow with time, so earlier days may be loaded later. */
export async function loadDays(url: string, endDay: string, days: number, rowsPerDay = ROWS_PER_DAY): Promise<void> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  const endMs = Date.parse(`${endDay}T00:00:00Z`);
  for (let done = 0; done < days; done += BATCH_DAYS) {
    const toMs = endMs - done * DAY_MS;
    await loadBatch(client, toMs - Math.min(BATCH_DAYS, days - done) * DAY_MS, toMs, rowsPerDay);
  }
  await client.query(`vacuum analyze ${DATASET}`);
  await client.query(`vacuum analyze ${ALIGNED_TABLE}`);
  await client.query('vacuum analyze partitions');
  await client.end();
}

async function loadBatch(client: pg.Client, fromMs: number, toMs: number, rowsPerDay: number): Promise<void> {
  const stepMs = DAY_MS / rowsPerDay;
  await client.query('begin');
  await client.query(
    `insert into ${DATASET} select at, at / ${stepMs}, p, q, p * q, at / ${stepMs} % 3 = 0, true
     from (select at, round((42000 + 500 * sin(at / 1e8))::numeric, 2)::float8 as p, (1 + at / ${stepMs} * 7919 % 30000) / 1e5::float8 as q
       from generate_series($1::int8, $2::int8 - 1, ${stepMs}) at) s`,
    [fromMs, toMs],
  );
  const chunks = await client.query(
    `select format('%I.%I', chunk_schema, chunk_name) as name from timescaledb_information.chunks
     where hypertable_name = '${DATASET}' and range_start_integer >= $1 and range_end_integer <= $2`,
    [fromMs, toMs],
  );
  for (const { name } of chunks.rows) await client.query(`create unique index on ${name} ("timestamp", trade_id)`);
  await client.query(
    `insert into ${ALIGNED_TABLE} (aligned_at_utc, trade_count, open_price, high_price, low_price, close_price, quantity_sum,
       quote_volume_sum, series_id, dataset_id)
     select to_timestamp(timestamp / 1000), count(*), first(price, trade_id), max(price), min(price), last(price, trade_id),
       sum(quantity), sum(quote_quantity), (select series_id from series where dataset_id = ${NUMBER} and key = ''), ${NUMBER}
     from ${DATASET} where timestamp >= $1 and timestamp < $2 group by timestamp / 1000`,
    [fromMs, toMs],
  );
  await client.query(
    `insert into partitions (dataset_id, partition_key, state, attempt, revision, from_ms, to_ms, synthetic, rows, aligned_rows,
       offsets, proved_at)
     select ${NUMBER}, to_char(to_timestamp(at / 1000) at time zone 'UTC', 'YYYY-MM-DD'), 'proved', 1, 1, at, at + ${DAY_MS}, true,
       ${rowsPerDay}, ${Math.min(rowsPerDay, 86_400)}, int8range(at / ${stepMs}, at / ${stepMs} + ${rowsPerDay}), now()
     from generate_series($1::int8, $2::int8 - 1, ${DAY_MS}) at`,
    [fromMs, toMs],
  );
  await client.query(
    `update coverage set proved = proved + int8multirange(int8range($1, $2)), version = version + 1, synthetic = true
     where dataset_id = ${NUMBER}`,
    [fromMs, toMs],
  );
  await client.query('commit');
}
