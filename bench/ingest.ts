/**
 * A generated day of trades from the zip on disk to proved and visible, beside `psql \copy` of the same CSV into an equal hypertable with
 * the same unique key. Each round has a day of its own, and includes process starts. Several days in one command of each side
 * follow, in which checkpoints and vacuums of the days before count. Each measurement starts with settled tables, so that no vacuum
 * of one side's rows runs during the other.
 */
import type { ChildProcess } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { DAY_MS } from '../shared/dates.ts';
import { dayOf, startBackfill, VENDORS, type Vendor } from './days.ts';
import type { Lab } from './lab.ts';
import { cpuSeconds, rounded, timed, watch } from './measure.ts';
import { connected, startPsql } from './others.ts';
import { ended } from './service.ts';
import { subject } from './subject.ts';

const FIRST_MS = Date.parse('2024-03-01');
const [STANDARD, ...OTHERS] = VENDORS.map(({ dataset }) => dataset);

export const ingest = subject({
  name: 'ingest',
  compares: 'a day of trades from the zip to proved, beside psql \\copy of the same rows; and several days',
  options: { dataset: [STANDARD, ...OTHERS], rows: 3_500_000, days: 7 },
  rounds: 5,
  smallest: '--rows 500 --days 2',
  async run(lab, { dataset, rows, days }) {
    const { directory, stack, note, rounds } = lab;
    const vendor = VENDORS.find((one) => one.dataset === dataset)!;
    const folder = join(directory, 'vendor');
    const isBackfill = days > 1;
    const last = FIRST_MS + (rounds + (isBackfill ? days : 0)) * DAY_MS;
    note(`generating documents of ${rows.toLocaleString('en-US')} trades`);
    const plan = await vendor.generate(folder, dayOf(FIRST_MS), dayOf(last), rows);
    await prepareBaseline(stack.databaseUrl, vendor);
    const count = rows.toLocaleString('en-US');
    const csv = join(directory, 'day.csv');
    const used = new Used(lab);
    await lab.compare(`a day of ${count} trades of ${dataset}`, {
      tidemark: timed(
        (round) => used.by('tidemark', startBackfill(lab, vendor, folder, [plan[round]])),
        () => settle(stack.databaseUrl),
      ),
      'psql \\copy': async (round) => {
        await vendor.unpack(folder, plan[round], csv);
        await settle(stack.databaseUrl);
        const ms = await timed(() => used.by('psql', copyWithPsql(lab, vendor, [csv])))(round);
        await rm(csv);
        return ms;
      },
    });
    used.report();
    if (isBackfill) await compareDays(lab, vendor, folder, plan.slice(rounds + 1), count);
  },
});

/** Consecutive days in one command of each side, once. */
async function compareDays(lab: Lab, vendor: Vendor, folder: string, days: readonly string[], count: string) {
  const { directory, stack } = lab;
  lab.note(`${days.length} days in one command`);
  const csvs = days.map((day) => join(directory, `${day}.csv`));
  for (const [index, day] of days.entries()) await vendor.unpack(folder, day, csvs[index]);
  const ready = () => settle(stack.databaseUrl);
  const psql = await timed(() => ended(copyWithPsql(lab, vendor, csvs)), ready)(1);
  for (const csv of csvs) await rm(csv);
  const tidemark = await timed(() => ended(startBackfill(lab, vendor, folder, days)), ready)(1);
  lab.report(`${days.length} days of ${count} trades in one command`, { tidemark: [tidemark], 'psql \\copy': [psql] });
}

/** Creates an equal hypertable: the same columns, chunks and unique key, which exists during the load. */
async function prepareBaseline(databaseUrl: string, { table }: Vendor): Promise<void> {
  await using client = await connected(databaseUrl);
  await client.pg.query('create extension if not exists timescaledb');
  await client.pg.query(`create table baseline_trades (${table})`);
  await client.pg.query(
    `select create_hypertable('baseline_trades', by_range('timestamp', 86400000), create_default_indexes => false)`,
  );
  await client.pg.query('create unique index on baseline_trades ("timestamp", trade_id)');
}

/**
 * Removes the work that one side would leave to the other: rows for autovacuum, and dirty pages. The baseline's rows are truncated,
 * since each round is a day of its own; ours are vacuumed here, outside the measured time. So autovacuum during a backfill of
 * several days works for that backfill alone.
 */
async function settle(databaseUrl: string): Promise<void> {
  await using client = await connected(databaseUrl);
  await client.pg.query('truncate baseline_trades');
  await client.pg.query('vacuum (analyze)');
  await client.pg.query('checkpoint');
}

const copyWithPsql = ({ stack }: Lab, { csvColumns, header }: Vendor, csvs: readonly string[]): ChildProcess =>
  startPsql(
    stack,
    csvs.map(
      (csv) => `\\copy baseline_trades (${csvColumns}) from '${csv}' with (format csv${header ? ', header' : ''})`,
    ),
  );

/** CPU seconds and peak memory of each side in its last round. */
class Used {
  readonly #lab: Lab;
  readonly #texts = new Map<string, string>();

  constructor(lab: Lab) {
    this.#lab = lab;
  }

  async by(side: string, child: ChildProcess): Promise<void> {
    const { processes } = this.#lab.stack;
    const serversBefore = processes.map(({ pid }) => cpuSeconds(pid));
    const watched = watch(child.pid!);
    await ended(child);
    const { cpu, peakMib } = watched.stop();
    const servers = processes.map(({ name, pid }, at) => `${name} ${rounded(cpuSeconds(pid) - serversBefore[at])}`);
    const peaks = Object.entries(peakMib).map(([name, mib]) => `${name} ${mib}`);
    this.#texts.set(side, `CPU s: own ${rounded(cpu)}, ${servers.join(', ')}; peak MiB: ${peaks.join(', ')}`);
  }

  report(): void {
    for (const [side, text] of this.#texts) this.#lab.fact(`${side}, last round`, text);
  }
}
