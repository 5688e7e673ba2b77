/**
 * A day of trades into a lake by a process of its own (native rows, aligned rows, and its start), beside DuckDB's COPY of the native rows
 * to Parquet with zstd: by psql's CSV, which one would run instead, and from a table in memory, which reads no database. DuckDB compares
 * the rows first.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { OWN_MATRIX } from '../test/support/rights.ts';
import { ingestHistory } from './days.ts';
import { timed } from './measure.ts';
import { checkSameRows, csvToParquet, DATASET, openDuckDb, psqlToCsv, readCsv, sameFields } from './others.ts';
import { ended, startMain } from './service.ts';
import { subject } from './subject.ts';

const DAY = { fromMs: Date.parse('2024-03-01'), toMs: Date.parse('2024-03-02') };

export const lake = subject({
  name: 'lake',
  compares: "a day into a lake, beside psql and DuckDB's COPY to Parquet",
  options: { rows: 3_500_000 },
  rounds: 3,
  smallest: '--rows 500',
  async run(lab, { rows }) {
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
  },
});
