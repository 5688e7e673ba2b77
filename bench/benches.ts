/** Every benchmark: what it compares, and with which sizes `npm run bench -- all` runs it. bench/README.md says more of each. */

export interface Bench {
  readonly name: string;
  /** What is measured beside what. */
  readonly summary: string;
  /** The arguments of each run of `all`: large enough for figures that mean something, minutes at most. */
  readonly whole: readonly string[];
  /** Those of `all --quick` and of the tests: each run shows in seconds that the benchmark works. */
  readonly quick: readonly string[];
  /** The environment variable without which it cannot run. */
  readonly needs?: string;
  load(): Promise<{ run(argv: readonly string[]): Promise<void> }>;
}

export const BENCHES: readonly Bench[] = [
  {
    name: 'bitcoin',
    summary: 'blocks from the node to proved, beside the bare RPC fetch of the same blocks',
    whole: ['--blocks 100 --rounds 3'],
    quick: ['--blocks 1 --transactions 2 --rounds 1'],
    load: () => import('./bitcoin.ts'),
  },
  {
    name: 'columns',
    summary: 'reads of compacted chunks, beside the row store',
    whole: ['--rows 500000 --days 4 --rounds 5'],
    quick: ['--rows 5000 --days 2 --rounds 1'],
    needs: 'TIDEMARK_BENCH_DATABASE_URL',
    load: () => import('./columns.ts'),
  },
  {
    name: 'export',
    summary: 'a day to CSV and Parquet, beside psql \\copy and DuckDB',
    whole: ['--rounds 3'],
    quick: ['--rows 500 --rounds 1'],
    load: () => import('./export.ts'),
  },
  {
    name: 'filters',
    summary: 'filters that few frames or none hold, beside the plain scan',
    whole: ['--days 2 --rounds 5'],
    quick: ['--rows 2000 --days 2 --rounds 1'],
    load: () => import('./filters.ts'),
  },
  {
    name: 'floor',
    summary:
      'what remains of an ingest when all that a design could leave out is left out, beside psql \\copy and a bare fetch',
    whole: [
      '--rounds 3',
      '--dataset exchange_b_spot_trades --rounds 3 --blocks 0',
      '--dataset exchange_c_spot_trades --rounds 3 --blocks 0',
    ],
    quick: ['--rows 500 --blocks 1 --transactions 2 --rounds 1'],
    load: () => import('./floor.ts'),
  },
  {
    name: 'frame',
    summary: 'a year of minutes over ten columns, beside DuckDB over Parquet',
    whole: ['--days 120 --rounds 5'],
    quick: ['--rows 2000 --days 4 --rounds 1'],
    load: () => import('./frame.ts'),
  },
  {
    name: 'ingest',
    summary: 'a day from the zip to proved, beside psql \\copy of the same rows; and seven days',
    whole: [
      '--rounds 5 --days 7',
      '--dataset exchange_b_spot_trades --rounds 3 --days 7',
      '--dataset exchange_c_spot_trades --rounds 3 --days 7',
    ],
    quick: ['--rows 500 --rounds 1 --days 1'],
    load: () => import('./ingest.ts'),
  },
  {
    name: 'klines',
    summary: 'klines of a day, a month and years, beside SQL over the rows',
    whole: ['--days 4 --thin-days 90 --rounds 3'],
    quick: ['--month-rows 500 --days 2 --thin-rows 500 --thin-days 3 --rounds 1'],
    load: () => import('./klines.ts'),
  },
  {
    name: 'lake',
    summary: "a day into a lake, beside DuckDB's COPY to Parquet",
    whole: ['--rounds 3'],
    quick: ['--rows 500 --rounds 1'],
    load: () => import('./lake.ts'),
  },
  {
    name: 'libraries',
    summary: "the read connection beside pg's own interface, the JSON cursor beside JSON.parse",
    whole: ['--rounds 7'],
    quick: ['--rows 5000 --transactions 50 --rounds 1'],
    load: () => import('./libraries.ts'),
  },
  {
    name: 'listeners',
    summary: '10,000 event streams of changes, small reads beside them and without, and a killed service',
    whole: [''],
    quick: ['--listeners 20 --changes 2 --seconds 1'],
    load: () => import('./listeners.ts'),
  },
  {
    name: 'macro',
    summary: 'every vintage of four series to proved, beside psql \\copy',
    whole: [''],
    quick: ['--monthly 2 --daily 2'],
    load: () => import('./macro.ts'),
  },
  {
    name: 'peers',
    summary: 'klines, rows and disk, beside DuckDB over a Parquet file of the same rows',
    whole: ['--days 2 --rounds 5'],
    quick: ['--rows 5000 --days 2 --rounds 1'],
    load: () => import('./peers.ts'),
  },
  {
    name: 'proof-log',
    summary: 'checks of exports and of a mirror, beside DuckDB and sha256sum; what a leaf costs an ingest',
    whole: ['--leaves 1000000 --rounds 3'],
    quick: ['--rows 5000 --leaves 600 --ingest-rows 20000 --rounds 1'],
    load: () => import('./proof-log.ts'),
  },
  {
    name: 'query',
    summary: "a million rows as JSON, beside psql's row_to_json; small reads beside the bare SQL",
    whole: ['--only rows', '--only latest', '--only representations', '--only beside', '--only beside --processes 2'],
    quick: ['--rows 500 --rounds 1 --only rows', '--rows 500 --latest 2 --only latest'],
    load: () => import('./query.ts'),
  },
  {
    name: 'soak',
    summary: 'everything at saturation beside a backfill: errors, times of each route, and memory that stays flat',
    whole: ['--minutes 3'],
    quick: ['--seconds 20 --rows 5000 --clients 6'],
    load: () => import('./soak.ts'),
  },
  {
    name: 'years',
    summary: 'what grows with partitions and with rows: reads, commands, memory, disk',
    whole: ['--days 7 --thin-days 300 --rounds 3'],
    quick: ['--rows 5000 --days 1 --thin-days 2 --rounds 1'],
    load: () => import('./years.ts'),
  },
  {
    name: 'load',
    summary: '64 clients below and past the capacity of the service, beside the bare SQL; 10 and 3,000 chunks',
    whole: [''],
    quick: ['--seconds 1 --chunks 11 --clients 2'],
    load: () => import('./load.ts'),
  },
];
