/**
 * Lake benchmark. A day of generated trades as one file of a lake (`file`: read, encoded, hashed, synced, with its manifest), as a
 * whole lake by a process of its own (`lake`: native rows and aligned rows, and its start), beside DuckDB's COPY of the same
 * rows to Parquet with zstd: from a table in memory (`duckdb_memory`, which reads no database) and by psql's CSV
 * (`duckdb_psql`, what one would run instead). Rounds alternate after a warm-up, in which DuckDB compares the rows.
 *
 * Options: --rows N (3,500,000), --rounds N (3), --json.
 */
import { spawn } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { csvToParquet, openDuckDb, psqlToCsv, readCsv } from './duckdb.ts';
import { startWriter } from './export.ts';
import { benchHarness, ROOT } from './harness.ts';
import { median, ratioMembers, rounded, timed } from './measure.ts';
import { optionsOf } from './options.ts';
import { DATASET, drained, ingest, SAME_FIELDS, WHOLE_DAY } from './query-subjects.ts';

const SIDES = ['file', 'lake', 'duckdb_memory', 'duckdb_psql'] as const;
type Side = (typeof SIDES)[number];

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, rounds, json } = optionsOf(argv, { counts: { rows: [3_500_000, 1], rounds: [3, 1] } });
  await using harness = await benchHarness('lake');
  const { directory, stack, note } = harness;
  note(`ingesting ${rows.toLocaleString('en-US')} generated trades`);
  await ingest(stack, join(directory, 'vendor'), { rows });
  const [csv, parquet, folder] = ['psql.csv', 'duckdb.parquet', 'lake'].map((name) => join(directory, name));
  await psqlToCsv(stack, SAME_FIELDS, csv);
  using duckdb = await openDuckDb();
  await duckdb.connection.run(`create table trades as select * from ${readCsv(csv)}`);
  await using writer = await startWriter(stack.databaseUrl);
  let written = { rows: 0, path: '' };
  const artifact = join(directory, 'artifact');
  const work: Readonly<Record<Side, () => Promise<unknown>>> = {
    async file() {
      written = await writer.write({
        body: { sources: [DATASET], ...WHOLE_DAY },
        format: 'parquet',
        directory: artifact,
      });
    },
    lake: () => writeLake(stack.databaseUrl, folder),
    duckdb_memory: () => duckdb.connection.run(`copy trades to '${parquet}' (format parquet, compression zstd)`),
    async duckdb_psql() {
      await psqlToCsv(stack, SAME_FIELDS, csv);
      await csvToParquet(csv, parquet);
    },
  };
  const found: Record<Side, number>[] = [];
  for (let round = 0; round <= rounds; round++) {
    const seconds = {} as Record<Side, number>;
    for (const side of SIDES) seconds[side] = await timed(work[side]);
    if (round === 0)
      await check([written.path, join(folder, `dataset=${DATASET}/mode=native/*/rows.parquet`), parquet]);
    note(SIDES.map((side) => `${side} ${seconds[side].toFixed(3)} s`).join('  ') + (round === 0 ? '  (warm-up)' : ''));
    if (round > 0) found.push(seconds);
    for (const path of [artifact, folder]) await rm(path, { recursive: true });
  }
  const s = Object.fromEntries(SIDES.map((side) => [side, rounded(median(found.map((one) => one[side])), 3)]));
  const ratiosTo = (than: Side) => found.map((one) => one.file / one[than]);
  const result = {
    bench: 'lake',
    rows,
    rounds,
    seconds: s,
    million_rows_per_second: rounded(rows / s.file / 1e6, 2),
    ...ratioMembers('ratio_duckdb_memory', ratiosTo('duckdb_memory'), 2),
    ...ratioMembers('ratio_duckdb_psql', ratiosTo('duckdb_psql'), 2),
  };
  process.stdout.write(
    json
      ? `${JSON.stringify(result)}\n`
      : [
          `${rows.toLocaleString('en-US')} trades as Parquet, medians of ${rounds} rounds`,
          ...SIDES.map((side) => `  ${side.padEnd(14)} ${s[side].toFixed(3)} s`),
          `  ${result.million_rows_per_second} M rows/s; ratio ${result.ratio_duckdb_memory} to DuckDB from memory, ${result.ratio_duckdb_psql} to psql and DuckDB`,
          '',
        ].join('\n'),
  );
}

function writeLake(databaseUrl: string, folder: string): Promise<unknown> {
  const child = spawn(process.execPath, [join(ROOT, 'serving/lake/lake-main.ts'), '--stdin'], {
    stdio: ['pipe', 'ignore', 'inherit'],
  });
  const settings = {
    SVC_DATABASE_URL: databaseUrl,
    SVC_INTERNAL_API_KEY: 'none',
    SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
    SVC_LOG_LEVEL: 'error',
    SVC_STATE_DIR: `${folder}-state`,
    SVC_LAKE_FOLDER: folder,
  };
  child.stdin.end(JSON.stringify({ cwd: ROOT, parent: process.pid, settings }));
  return drained(child);
}

/** All files must hold the same rows. */
async function check(files: readonly string[]): Promise<void> {
  using duckdb = await openDuckDb();
  const sides = files.map(
    (file) => `select count(*) as n, bit_xor(hash(trade_id, "timestamp", price, quantity, quote_quantity,
      is_buyer_maker::int, is_best_match::int, epoch_ms(datetime))) as h from read_parquet('${file}')`,
  );
  const found = await duckdb.connection.runAndReadAll(
    `select count(distinct (n, h)) as sides from (${sides.join(' union all ')})`,
  );
  if (Number(found.getRowObjects()[0].sides) !== 1) throw new Error('the files do not hold the same rows');
}
