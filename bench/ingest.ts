/**
 * Ingest benchmark. It compares the ingest of a generated day of trades, from the zip on disk to proved and visible, with
 * `psql \copy` of the same CSV into an equal hypertable with the same unique key. Rounds alternate, each on a day of its
 * own, and include process starts. Seven days in one command of each side follow, in which checkpoints and vacuums of the days
 * before count. Each measurement starts with settled tables, so that no vacuum of one side's rows runs during the other.
 *
 * Options: --dataset KEY (exchange_a_spot_trades), --rows N (3,500,000), --rounds N (5), --days N (7; 0 leaves the
 * backfill out), --memory used|free (free), --json. `used` fills free memory before each measurement: see `useMemory`.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { open, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { DAY_MS } from '../shared/dates.ts';
import { connect } from '../shared/db/connect.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { benchHarness, type Harness, ROOT } from './harness.ts';
import { type IngestSubject, SUBJECTS } from './ingest-subjects.ts';
import { cpuSeconds, median, ratioMembers, rounded, watch } from './measure.ts';
import { optionsOf } from './options.ts';

interface Figures {
  readonly seconds: number;
  readonly rowsPerSecond: number;
  readonly clientCpu: number;
  readonly postgresCpu: number;
  readonly natsCpu: number;
  readonly peakMib: Record<string, number>;
}

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, rounds, days, ...options } = optionsOf(argv, {
    counts: { rows: [3_500_000, 1], rounds: [5, 1], days: [7, 0] },
    choices: { dataset: SUBJECTS.map(({ dataset }) => dataset), memory: ['used', 'free'] },
  });
  const subject = SUBJECTS.find(({ dataset }) => dataset === options.dataset) ?? SUBJECTS[0];
  await using harness = await benchHarness('ingest');
  const { directory, stack, note } = harness;
  const vendor = join(directory, 'vendor');
  note(`generating ${rounds + days + 1} days of ${rows.toLocaleString('en-US')} trades`);
  const plan = await subject.generate(vendor, '2024-03-01', dayAfter('2024-03-01', rounds + days), rows);
  await prepareBaseline(stack.databaseUrl, subject);
  const ready = async () => {
    await settle(stack.databaseUrl);
    if (options.memory === 'used') await useMemory(directory);
  };

  const ours: Figures[] = [];
  const theirs: Figures[] = [];
  // Round 0 is the warm-up of both sides and does not count.
  for (let round = 0; round <= rounds; round++) {
    const day = plan[round];
    const csv = join(directory, 'day.csv');
    await subject.unpack(vendor, day, csv);
    await ready();
    const baseline = await measured(stack, rows, () => copyWithPsql(stack, subject, csv));
    await ready();
    const tidemark = await measured(stack, rows, () => backfillDays(stack, subject, vendor, day, day));
    if (round > 0) {
      theirs.push(baseline);
      ours.push(tidemark);
    }
    note(
      `${day}  psql ${baseline.seconds} s  tidemark ${tidemark.seconds} s  ratio ${rounded(tidemark.seconds / baseline.seconds, 3)}${round === 0 ? '  (warm-up)' : ''}`,
    );
    await rm(csv);
  }
  const ratios = ours.map((figures, round) => figures.seconds / theirs[round].seconds);
  const week = days > 0 ? await measureDays(harness, subject, vendor, plan.slice(rounds + 1), rows, ready) : undefined;
  report({ dataset: subject.dataset, rows, rounds, ratios, ours, theirs, week, days }, options.json);
}

interface Days {
  readonly ours: Figures;
  readonly theirs: Figures;
}

/** Consecutive days in one command of each side. */
async function measureDays(
  { directory, stack, note }: Harness,
  subject: IngestSubject,
  vendor: string,
  days: readonly string[],
  rowsPerDay: number,
  ready: () => Promise<void>,
): Promise<Days> {
  note(`${days.length} days in one command`);
  const rows = rowsPerDay * days.length;
  const csvs = days.map((day) => join(directory, `${day}.csv`));
  for (const [index, day] of days.entries()) await subject.unpack(vendor, day, csvs[index]);
  await ready();
  const theirs = await measured(stack, rows, () => copyWithPsql(stack, subject, ...csvs));
  for (const csv of csvs) await rm(csv);
  await ready();
  const ours = await measured(stack, rows, () => backfillDays(stack, subject, vendor, days[0], days.at(-1)!));
  return { ours, theirs };
}

function report(
  found: {
    dataset: string;
    rows: number;
    rounds: number;
    ratios: number[];
    ours: Figures[];
    theirs: Figures[];
    week?: Days;
    days: number;
  },
  json: boolean,
): void {
  const middle = (all: readonly Figures[]): Figures => ({
    seconds: rounded(median(all.map((figures) => figures.seconds))),
    rowsPerSecond: Math.round(median(all.map((figures) => figures.rowsPerSecond))),
    clientCpu: rounded(median(all.map((figures) => figures.clientCpu))),
    postgresCpu: rounded(median(all.map((figures) => figures.postgresCpu))),
    natsCpu: rounded(median(all.map((figures) => figures.natsCpu))),
    peakMib: all[all.length - 1].peakMib,
  });
  const result = {
    bench: 'ingest',
    dataset: found.dataset,
    rows: found.rows,
    rounds: found.rounds,
    ...ratioMembers('ratio', found.ratios),
    tidemark: middle(found.ours),
    psql: middle(found.theirs),
  };
  const { week, days } = found;
  const several = week && {
    days,
    ratio: rounded(week.ours.seconds / week.theirs.seconds, 3),
    ratio_to_single_days: rounded(week.ours.seconds / (days * result.psql.seconds), 3),
    ...week.ours,
    psql: week.theirs,
  };
  if (json) {
    process.stdout.write(`${JSON.stringify({ ...result, ...(several && { backfill: several }) })}\n`);
    return;
  }
  const line = (name: string, figures: Figures) =>
    `${name.padEnd(22)} ${figures.seconds.toFixed(2).padStart(7)} s ${figures.rowsPerSecond.toLocaleString('en-US').padStart(10)} rows/s  cpu s: client ${figures.clientCpu.toFixed(1)}, postgres ${figures.postgresCpu.toFixed(1)}, nats ${figures.natsCpu.toFixed(1)}  peak MiB: ${JSON.stringify(figures.peakMib)}`;
  process.stdout.write(
    `${[
      `${found.rows.toLocaleString('en-US')} trades, ${found.rounds} rounds, medians`,
      line('tidemark, zip to proved', result.tidemark),
      line('psql \\copy, keyed', result.psql),
      `ratio ${result.ratio} (${result.ratio_min}..${result.ratio_max})`,
      ...(week && several
        ? [
            line(`tidemark, ${days} days`, week.ours),
            line(`psql \\copy, ${days} days`, week.theirs),
            `ratio ${several.ratio}, and to ${days} times psql's single day ${several.ratio_to_single_days}`,
          ]
        : []),
    ].join('\n')}\n`,
  );
}

export const dayAfter = (day: string, count: number) =>
  new Date(Date.parse(`${day}T00:00:00Z`) + count * DAY_MS).toISOString().slice(0, 10);

/** Creates an equal hypertable: the same columns, chunks and unique key, which exists during the load. */
export async function prepareBaseline(databaseUrl: string, { table }: Pick<IngestSubject, 'table'>): Promise<void> {
  await using client = await connect({ url: databaseUrl, name: 'bench' });
  await client.query('create extension if not exists timescaledb');
  await client.query(`create table baseline_trades (${table})`);
  await client.query(
    `select create_hypertable('baseline_trades', by_range('timestamp', 86400000), create_default_indexes => false)`,
  );
  await client.query('create unique index on baseline_trades ("timestamp", trade_id)');
}

/**
 * Removes the work that one side would leave to the other: rows for autovacuum, and dirty pages. The baseline's rows are
 * truncated, since each round is a day of its own; ours are vacuumed here, outside the measured time. So autovacuum during
 * a backfill of several days works for that backfill alone.
 */
export async function settle(databaseUrl: string): Promise<void> {
  await using client = await connect({ url: databaseUrl, name: 'bench' });
  await client.query('truncate baseline_trades');
  await client.query('vacuum (analyze)');
  await client.query('checkpoint');
}

/** What is left free, so that filling takes nothing away from the files of the benchmark. */
const LEFT_FREE_KIB = 1024 * 1024;
const PIECE_BYTES = 4 * 1024 * 1024;
let filled = 0;

/**
 * Fills free memory with the pages of a file without content, as the page cache of a machine fills in use. Where a hypervisor takes
 * free memory back, the first use of each page takes 10 µs, and in a cache that is full 2.
 */
export async function useMemory(directory: string): Promise<void> {
  const free = Number(/^MemFree:\s+(\d+)/m.exec(await readFile('/proc/meminfo', 'utf8'))?.[1] ?? 0);
  const pieces = Math.floor(((free - LEFT_FREE_KIB) * 1024) / PIECE_BYTES);
  if (pieces <= 0) return;
  // Each time another file: pages that are read twice would stay, and the benchmark's own would go.
  await using file = await open(join(directory, `hole-${filled++}`), 'w+');
  await file.truncate(pieces * PIECE_BYTES);
  const piece = Buffer.allocUnsafe(PIECE_BYTES);
  for (let at = 0; at < pieces; at++) await file.read(piece, 0, PIECE_BYTES, at * PIECE_BYTES);
}

export const psqlOf = ({ runtime }: Stack): string => join(runtime?.postgresBin ?? '/usr/bin', 'psql');

export function copyWithPsql(stack: Stack, { csvColumns, header }: IngestSubject, ...csvs: readonly string[]) {
  const columns = csvColumns.replaceAll(/\s+/g, ' ');
  const copies = csvs.flatMap((csv) => [
    '-c',
    `\\copy baseline_trades (${columns}) from '${csv}' with (format csv${header ? ', header' : ''})`,
  ]);
  return spawn(psqlOf(stack), [stack.databaseUrl, '-v', 'ON_ERROR_STOP=1', '-q', ...copies], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
}

export function backfillDays(stack: Stack, subject: IngestSubject, vendor: string, from: string, to: string) {
  return spawn(join(ROOT, 'tidemark'), ['backfill', subject.dataset, '--from', from, '--to', to, '--json'], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env: {
      ...process.env,
      SVC_STATE_DIR: stack.stateDir,
      [subject.setting]: pathToFileURL(join(vendor, '/')).href,
      SVC_LOG_LEVEL: 'warn',
    },
  });
}

async function measured(stack: Stack, rows: number, start: () => ReturnType<typeof spawn>): Promise<Figures> {
  const servers = Object.fromEntries(stack.processes.map(({ name, pid }) => [name, pid]));
  const before = { postgres: cpuSeconds(servers.postgres), nats: cpuSeconds(servers.nats) };
  const startedAt = performance.now();
  const child = start();
  const watched = watch(child.pid!);
  const [code] = await once(child, 'exit');
  const seconds = (performance.now() - startedAt) / 1000;
  const { peakMib, cpu } = watched.stop();
  if (code !== 0) throw new Error(`the measured process ended with ${code}`);
  return {
    seconds: rounded(seconds),
    rowsPerSecond: Math.round(rows / seconds),
    clientCpu: rounded(cpu),
    postgresCpu: rounded(cpuSeconds(servers.postgres) - before.postgres),
    natsCpu: rounded(cpuSeconds(servers.nats) - before.nats),
    peakMib,
  };
}
