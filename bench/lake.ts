/**
 * A day of trades into a lake by a process of its own (native rows, aligned rows, and its start), beside DuckDB's COPY of the native rows
 * to Parquet with zstd: by psql's CSV, which one would run instead, and from a table in memory, which reads no database; and beside
 * delta-rs, which writes a table from that CSV. DuckDB compares the rows first. Then engines open a table of many such days, each a link
 * to the same file: they list its files and count its rows.
 */
import { execFile } from 'node:child_process';
import { link, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { DAY_MS, dayKey } from '../shared/dates.ts';
import { type Action, actionsOf, commitName, LOG_FOLDER } from '../shared/mirror/delta-log.ts';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { clickhousePython, type Tool, tablesPython } from '../test/support/tools.ts';
import { ingestHistory } from './days.ts';
import { timed } from './measure.ts';
import { checkSameRows, csvToParquet, DATASET, openDuckDb, psqlToCsv, readCsv, sameFields } from './others.ts';
import { ended, startMain } from './service.ts';
import { subject } from './subject.ts';

const ENGINES = join(import.meta.dirname, 'lake-engines.py');
const DAY = { fromMs: Date.parse('2024-03-01'), toMs: Date.parse('2024-03-02') };

export const lake = subject({
  name: 'lake',
  compares: "a day into a lake, beside psql and DuckDB's COPY to Parquet",
  options: { rows: 3_500_000, days: 365 },
  rounds: 3,
  smallest: '--rows 500 --days 3',
  async run(lab, { rows, days }) {
    const { directory, stack } = lab;
    await ingestHistory(lab, { ...DAY, rows });
    const [csv, parquet, folder] = ['psql.csv', 'duckdb.parquet', 'lake'].map((name) => join(directory, name));
    await psqlToCsv(stack, sameFields(DAY), csv);
    using duckdb = await openDuckDb();
    await duckdb.connection.run(`create table trades as select * from ${readCsv(csv)}`);
    const fromMemory = () => duckdb.connection.run(`copy trades to '${parquet}' (format parquet, compression zstd)`);
    const settings = {
      SVC_DATABASE_URL: stack.databaseUrl,
      SVC_INTERNAL_API_KEY: 'none',
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
      SVC_LOG_LEVEL: 'error',
      SVC_STATE_DIR: `${folder}-state`,
      SVC_LAKE_FOLDER: folder,
    } as const;
    const write = () => ended(startMain('serving/lake/lake-main.ts', settings));
    await write();
    await fromMemory();
    await checkSameRows([
      `'${parquet}'`,
      `(select * exclude (date, instrument) from '${folder}/${DATASET}/native/*/*/*.parquet')`,
    ]);
    await lab.compare(`${rows.toLocaleString('en-US')} trades as Parquet`, {
      tidemark: timed(write, () => rm(folder, { recursive: true, force: true })),
      'psql and DuckDB': timed(async () => {
        await psqlToCsv(stack, sameFields(DAY), csv);
        await csvToParquet(csv, parquet);
      }),
      'DuckDB from memory': timed(fromMemory),
    });
    const python = await tablesPython();
    if (python.missing !== undefined) return lab.note(`no engines: ${python.missing}`);
    const byDeltaRs = `${folder}-delta-rs`;
    await lab.compare(`${rows.toLocaleString('en-US')} trades as a Delta table`, {
      tidemark: timed(write, () => rm(folder, { recursive: true, force: true })),
      'psql and delta-rs': async () => {
        await rm(byDeltaRs, { recursive: true, force: true });
        const copied = await timed(() => psqlToCsv(stack, sameFields(DAY), csv))(0);
        return copied + (await measured(python, 'write', csv, byDeltaRs)).ms;
      },
    });
    const table = await tableOfDays(join(folder, DATASET, 'native'), days);
    const clickhouse = await clickhousePython();
    const opened = (tool: Tool, engine: string) => async () => {
      const { ms, rows: found } = await measured(tool, 'open', engine, table);
      if (found !== rows * days) throw new Error(`${engine} counts ${found} rows, not ${rows * days}`);
      return ms;
    };
    await lab.compare(`${days} days listed and counted`, {
      'delta-rs': opened(python, 'delta-rs'),
      polars: opened(python, 'polars'),
      DuckDB: opened(python, 'DuckDB'),
      ...(clickhouse.missing === undefined ? { ClickHouse: opened(clickhouse, 'ClickHouse') } : {}),
    });
  },
});

async function measured(
  tool: Tool,
  ...args: readonly string[]
): Promise<{ readonly ms: number; readonly rows: number }> {
  const { stdout } = await promisify(execFile)(tool.path, [ENGINES, ...args], { env: { ...process.env, ...tool.env } });
  return JSON.parse(stdout);
}

/** A table beside `day`, with the file of its one day under many dates. @returns its folder */
async function tableOfDays(day: string, days: number): Promise<string> {
  const table = `${day}-days`;
  const log = join(day, LOG_FOLDER);
  const [first] = (await readdir(log)).filter((name) => name.endsWith('.json')).sort();
  const actions = actionsOf(first, await readFile(join(log, first)));
  const [added] = actions.flatMap(({ add }) => add ?? []);
  const dates = Array.from({ length: days }, (_, at) => dayKey(DAY.fromMs - at * DAY_MS));
  const ofDay = (date: string) => ({
    ...added,
    path: added.path.replace(/date=[^/]+/, `date=${date}`),
    partitionValues: { ...added.partitionValues, date },
  });
  const all: Action[] = [...actions.filter(({ add }) => !add), ...dates.map((date) => ({ add: ofDay(date) }))];
  for (const { add } of all) {
    if (!add) continue;
    await mkdir(dirname(join(table, add.path)), { recursive: true });
    await link(join(day, added.path), join(table, add.path));
  }
  await mkdir(join(table, LOG_FOLDER));
  await writeFile(join(table, LOG_FOLDER, commitName(0)), all.map((action) => `${JSON.stringify(action)}\n`).join(''));
  return table;
}
