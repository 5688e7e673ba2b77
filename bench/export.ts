/**
 * A day of trades as an artifact, CSV and Parquet, beside `psql \copy (select ...) to csv` of the same eight fields, and beside DuckDB that
 * converts what psql wrote to Parquet. DuckDB checks first that all files hold the same rows. Ours includes reading, digest, fsync,
 * manifest and rename. The writing process is what an export worker runs; the queue before it is not in the time.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type Order, startWriter } from './artifact-writer.ts';
import { ingestHistory, iso } from './days.ts';
import { timed } from './measure.ts';
import { checkSameRows, csvToParquet, DATASET, psqlToCsv, readCsv, sameFields } from './others.ts';
import { subject } from './subject.ts';

const DAY = { fromMs: Date.parse('2024-03-01'), toMs: Date.parse('2024-03-02') };
const TRADES = { sources: [DATASET], time_range: [iso(DAY.fromMs), iso(DAY.toMs)] };

export const exports = subject({
  name: 'export',
  compares: 'a day to CSV and Parquet, beside psql \\copy and DuckDB',
  options: { rows: 3_500_000 },
  rounds: 5,
  smallest: '--rows 500',
  async run(lab, { rows }) {
    await ingestHistory(lab, { ...DAY, rows });
    const [csv, parquet] = ['psql.csv', 'duckdb.parquet'].map((name) => join(lab.directory, name));
    const psql = () => psqlToCsv(lab.stack, sameFields(DAY), csv);
    const duckdb = async () => {
      await psql();
      await csvToParquet(csv, parquet);
    };
    await duckdb();
    for (const format of ['csv', 'parquet'] as const) {
      await using writer = await startWriter(lab.stack);
      const directory = join(lab.directory, 'artifact');
      const order: Order = { body: TRADES, format, directory };
      const { path } = await writer.write(order);
      await checkSameRows([readCsv(csv), `'${parquet}'`, format === 'csv' ? readCsv(path) : `'${path}'`]);
      await lab.compare(`${rows.toLocaleString('en-US')} trades as ${format}`, {
        tidemark: timed(
          () => writer.write(order),
          () => rm(directory, { recursive: true }),
        ),
        'psql \\copy to csv': timed(psql),
        ...(format === 'parquet' && { 'psql and DuckDB': timed(duckdb) }),
      });
      lab.fact(`peak memory of the writing process, ${format}, MiB`, writer.peakMib());
      await rm(directory, { recursive: true });
    }
  },
});
