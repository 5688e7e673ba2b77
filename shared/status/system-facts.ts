/** What monitors show beside the datasets: work in progress, exports by state, the size of the database. */
import type { ClientBase } from 'pg';
import { latestRuns, openRuns, type RunRow } from '../db/runs.ts';

/** What ended longer ago is no news. */
const LATEST_RUNS = 20;

export type ExportCounts = Readonly<Record<(typeof EXPORT_STATES)[number], number>>;

export async function readDatabaseBytes(client: ClientBase): Promise<number> {
  const { rows } = await client.query('select pg_database_size(current_database()) as bytes');
  return Number(rows[0].bytes);
}

/** Those at work, and the newest; newest first. */
export async function readRuns(client: ClientBase): Promise<RunRow[]> {
  const [latest, open] = [await latestRuns(client, LATEST_RUNS), await openRuns(client)];
  const shown = new Set(latest.map(({ run_id }) => run_id));
  // One that was killed is told of until the same is begun again.
  const isOver = ({ state, kind, subject, run_id }: RunRow) =>
    state === 'lost' &&
    latest.some((later) => later.kind === kind && later.subject === subject && later.run_id > run_id);
  return [...latest.filter((run) => !isOver(run)), ...open.filter(({ run_id }) => !shown.has(run_id)).toReversed()];
}

const EXPORT_STATES = ['queued', 'running', 'succeeded', 'failed'] as const;

/** Undefined: this database has no exports yet. */
export async function readExports(client: ClientBase): Promise<ExportCounts | undefined> {
  const { rows: table } = await client.query(`select to_regclass('exports') is not null as there`);
  if (!table[0].there) return undefined;
  const { rows } = await client.query('select state, count(*)::float8 as exports from exports group by state');
  const counts = new Map(rows.map(({ state, exports }) => [state, exports]));
  return Object.fromEntries(EXPORT_STATES.map((state) => [state, counts.get(state) ?? 0])) as ExportCounts;
}
