/**
 * Export benchmark. It compares a day of generated trades as an artifact, CSV and Parquet, with `psql \copy (select ...) to
 * csv` of the same eight fields, and with DuckDB that converts what psql wrote to Parquet. Rounds alternate, after a warm-up
 * in which DuckDB checks that all files hold the same rows. The time of Tidemark includes reading, digest, fsync, manifest
 * and rename; that of psql includes its start, some 15 ms. `bare` is psql writing the seven stored columns without
 * conversion, which is less than the contract requires. Peak memory is that of the writing process, a new one for each size.
 *
 * Options: --rows N (3,500,000), --rounds N (5), --json.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { DAY_MS } from '../shared/dates.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { csvToParquet, inDuckDb, psqlToCsv, readCsv } from './duckdb.ts';
import type { Order } from './export-writer.ts';
import { benchHarness, type Note, ROOT } from './harness.ts';
import { median, ratioMembers, rounded, timed, watch } from './measure.ts';
import { optionsOf } from './options.ts';
import { DATASET, FROM_MS, ingest, SAME_FIELDS, TO_MS } from './query-subjects.ts';

const BARE = `select t.* from ${DATASET} t where t.timestamp >= ${FROM_MS} and t.timestamp < ${TO_MS}
  order by t.timestamp, t.trade_id`;
const FORMATS = ['csv', 'parquet'] as const;
type Format = (typeof FORMATS)[number];

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, rounds, json } = optionsOf(argv, { counts: { rows: [3_500_000, 1], rounds: [5, 1] } });
  await using harness = await benchHarness('export');
  const { directory, stack, note } = harness;
  note(`ingesting ${rows.toLocaleString('en-US')} generated trades`);
  await ingest(stack, join(directory, 'vendor'), { rows });
  const bench = new Bench(stack, directory, rows, note);
  const found = await bench.measure(rounds);
  const peaks = await bench.peaks();
  report(rows, found, peaks, json);
}

export interface Writer extends AsyncDisposable {
  write(order: Order): Promise<{ readonly rows: number; readonly bytes: number; readonly path: string }>;
  peakMib(): number;
}

export async function startWriter(databaseUrl: string): Promise<Writer> {
  const child = spawn(process.execPath, [join(ROOT, 'bench/export-writer.ts'), databaseUrl], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const watched = watch(child.pid!);
  return {
    async write(order) {
      child.stdin.write(`${JSON.stringify(order)}\n`);
      const [line] = await once(child.stdout, 'data');
      return JSON.parse(String(line));
    },
    peakMib: () => Math.max(...Object.values(watched.stop().peakMib)),
    async [Symbol.asyncDispose]() {
      watched.stop();
      child.stdin.end();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}

interface Round {
  readonly psql: number;
  readonly bare: number;
  readonly duckdb: number;
  readonly csv: number;
  readonly parquet: number;
}

interface Found {
  readonly rounds: readonly Round[];
  readonly mib: Readonly<Record<'psql' | 'duckdb' | Format, number>>;
}

interface Peak {
  readonly format: Format;
  readonly rows: number;
  readonly mib: number;
}

class Bench {
  readonly #stack: Stack;
  readonly #directory: string;
  readonly #rows: number;
  readonly #note: Note;
  #artifacts = 0;

  constructor(stack: Stack, directory: string, rows: number, note: Note) {
    this.#stack = stack;
    this.#directory = directory;
    this.#rows = rows;
    this.#note = note;
  }

  async measure(count: number): Promise<Found> {
    const csv = join(this.#directory, 'psql.csv');
    const parquet = join(this.#directory, 'duckdb.parquet');
    await using writer = await startWriter(this.#stack.databaseUrl);
    const rounds: Round[] = [];
    const mib = { psql: 0, duckdb: 0, csv: 0, parquet: 0 };
    for (let round = 0; round <= count; round++) {
      const bare = await timed(() => psqlToCsv(this.#stack, BARE, csv));
      const psql = await timed(() => psqlToCsv(this.#stack, SAME_FIELDS, csv));
      const duckdb = await timed(() => csvToParquet(csv, parquet));
      const ours = { csv: 0, parquet: 0 };
      for (const format of FORMATS) {
        const order = this.#order(format, 1);
        let written: Awaited<ReturnType<Writer['write']>> | undefined;
        ours[format] = await timed(async () => {
          written = await writer.write(order);
        });
        if (round === 0) await this.#check(written!, csv, format);
        mib[format] = rounded(written!.bytes / 2 ** 20, 1);
        await rm(order.directory, { recursive: true });
      }
      mib.psql = rounded((await stat(csv)).size / 2 ** 20, 1);
      mib.duckdb = rounded((await stat(parquet)).size / 2 ** 20, 1);
      const all = { psql, bare, duckdb, ...ours };
      const texts = Object.entries(all).map(([name, seconds]) => `${name} ${seconds.toFixed(3)} s`);
      this.#note(`${texts.join('  ')}${round === 0 ? '  (warm-up)' : ''}`);
      if (round > 0) rounds.push(all);
    }
    return { rounds, mib };
  }

  /** The peak memory for a quarter of the day and for all of it, each in a new process. */
  async peaks(): Promise<Peak[]> {
    const peaks: Peak[] = [];
    for (const format of FORMATS) {
      for (const share of [0.25, 1]) {
        await using writer = await startWriter(this.#stack.databaseUrl);
        const order = this.#order(format, share);
        const { rows } = await writer.write(order);
        peaks.push({ format, rows, mib: writer.peakMib() });
        await rm(order.directory, { recursive: true });
      }
    }
    return peaks;
  }

  #order(format: Format, share: number): Order {
    const window = [FROM_MS, FROM_MS + DAY_MS * share].map((ms) => new Date(ms).toISOString());
    const directory = join(this.#directory, `artifact-${this.#artifacts++}`);
    return { body: { sources: [DATASET], time_range: window }, format, directory };
  }

  async #check(written: { readonly rows: number; readonly path: string }, psql: string, format: Format): Promise<void> {
    if (written.rows !== this.#rows) throw new Error(`${written.rows} rows were written, ${this.#rows} ingested`);
    const sides = [psql, written.path].map((file, side) => {
      const source = side === 1 && format === 'parquet' ? `'${file}'` : readCsv(file);
      return `select count(*) as n, bit_xor(hash(trade_id, "timestamp", price, quantity, quote_quantity,
        is_buyer_maker::int, is_best_match::int, epoch_ms(datetime))) as h from ${source}`;
    });
    const [row] = await inDuckDb(`select count(distinct (n, h)) as sides from (${sides.join(' union all ')})`);
    if (Number(row.sides) !== 1) throw new Error(`${format}: the rows differ from those of psql`);
  }
}

function report(rows: number, { rounds, mib }: Found, peaks: readonly Peak[], json: boolean): void {
  const of = (seconds: (round: Round) => number) => rounded(median(rounds.map(seconds)), 3);
  const ratiosOf = (ours: Format, theirs: (round: Round) => number) =>
    rounds.map((round) => round[ours] / theirs(round));
  const psql = (round: Round) => round.psql;
  const result = {
    bench: 'export',
    rows,
    rounds: rounds.length,
    psql_csv: { s: of(psql), mib: mib.psql },
    psql_csv_bare: { s: of((round) => round.bare) },
    duckdb_parquet_from_csv: { s: of((round) => round.duckdb), mib: mib.duckdb },
    csv: {
      s: of((round) => round.csv),
      mib: mib.csv,
      ...ratioMembers('ratio', ratiosOf('csv', psql)),
      ...ratioMembers(
        'ratio_bare',
        ratiosOf('csv', ({ bare }) => bare),
      ),
    },
    parquet: {
      s: of((round) => round.parquet),
      mib: mib.parquet,
      ...ratioMembers('ratio', ratiosOf('parquet', psql)),
      ...ratioMembers(
        'ratio_bare',
        ratiosOf('parquet', ({ bare }) => bare),
      ),
      ...ratioMembers(
        'ratio_psql_and_duckdb',
        ratiosOf('parquet', (round) => round.psql + round.duckdb),
      ),
    },
    peaks,
  };
  if (json) {
    process.stdout.write(`${JSON.stringify(result)}\n`);
    return;
  }
  const { csv, parquet } = result;
  const line = (name: string, s: number, size: number | undefined, more = '') =>
    `  ${name.padEnd(38)} ${s.toFixed(3)} s${size === undefined ? '' : `  ${String(size).padStart(6)} MiB`}${more}`;
  const lines = [
    `${rows.toLocaleString('en-US')} trades as a file, medians of ${rounds.length} rounds`,
    line('psql \\copy to csv, same fields', result.psql_csv.s, mib.psql),
    line('psql \\copy to csv, stored columns', result.psql_csv_bare.s, undefined),
    line('DuckDB: that CSV to Parquet', result.duckdb_parquet_from_csv.s, mib.duckdb),
    line(
      'tidemark CSV',
      csv.s,
      csv.mib,
      `  ratio ${csv.ratio} (${csv.ratio_min}..${csv.ratio_max}; stored columns ${csv.ratio_bare})`,
    ),
    line(
      'tidemark Parquet',
      parquet.s,
      parquet.mib,
      `  ratio ${parquet.ratio} (${parquet.ratio_min}..${parquet.ratio_max}; stored columns ${parquet.ratio_bare}; psql and DuckDB together ${parquet.ratio_psql_and_duckdb})`,
    ),
    ...peaks.map(
      ({ format, rows: count, mib: peak }) =>
        `peak memory, ${format} of ${count.toLocaleString('en-US')} rows: ${peak} MiB`,
    ),
  ];
  process.stdout.write(`${lines.join('\n')}\n`);
}
