/** Benchmarks measure what they say: no side pays for the other. */
import { expect, test } from 'vitest';
import { prepareBaseline, settle } from '../../bench/ingest.ts';
import { SUBJECTS } from '../../bench/ingest-subjects.ts';
import { createMigratedEnv, execute } from '../support/stack.ts';

test("ingest: the baseline's rows are not vacuumed beside a backfill of ours, nor ours beside the baseline", async () => {
  await using env = await createMigratedEnv();
  const [{ dataset, csvColumns, ...subject }] = SUBJECTS;
  await prepareBaseline(env.databaseUrl, subject);
  for (const table of ['baseline_trades', dataset]) {
    await execute(env.databaseUrl, `alter table ${table} set (autovacuum_enabled = false)`);
    await execute(
      env.databaseUrl,
      `insert into ${table} (${csvColumns}) select n, 1, 1, 1, 1717200000000 + n, true, true from generate_series(1, 20000) n`,
    );
  }
  // Autovacuum comes for tables by these counts.
  const due = async () => {
    const { rows } = await execute(
      env.databaseUrl,
      `select coalesce(sum(n_ins_since_vacuum), 0)::int as inserted, coalesce(sum(n_mod_since_analyze), 0)::int as modified
       from pg_stat_user_tables where schemaname = '_timescaledb_internal'`,
    );
    return rows[0];
  };
  await expect.poll(due).toEqual({ inserted: 40_000, modified: 40_000 });
  await settle(env.databaseUrl);
  await expect.poll(due).toEqual({ inserted: 0, modified: 0 });
  const { rows } = await execute(env.databaseUrl, `select count(*)::int as left from baseline_trades`);
  expect(rows).toEqual([{ left: 0 }]);
});
