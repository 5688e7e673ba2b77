/**
 * The floors of `ingest` and `bitcoin`: what remains of an ingest when everything that a design could leave out is left out.
 * Each part is a process or a transaction of its own and is measured beside the same baseline, in rounds.
 *
 * Trades, one generated day of an exchange beside `psql \copy` of the same rows into a keyed hypertable:
 * - read: the document inflated, its bytes and the document hashed, its cells separated; nothing is parsed or kept
 * - decode: the same with the product's decoder, whose facts a proof compares; nothing is written to a log
 * - copy: ready binary rows into a plain table without a key, which no event and no projector had to make
 * - recount, index: the same transaction with the product's recount, and then with the unique index
 * - read_beside_load, decode_beside_load: both at once, for two processes that never wait for one another
 *
 * Blocks, beside the bare serial fetch: the fetch of several at once, the same with every answer read by the product's parser,
 * ready rows of all six datasets into keyed tables with their recount, and the last two at once.
 *
 * Options: --dataset KEY (exchange_a_spot_trades), --rows N (3,500,000), --blocks N (50; 0 leaves blocks out), --transactions N
 * a block (2,000), --rounds N (3), --json.
 */
import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CHAIN_DATASETS } from '../pipelines/sources/bitcoin/datasets.ts';
import { assert } from '../shared/errors.ts';
import { nativeRecountSql } from '../shared/proof/recount.ts';
import { type DatasetDefinition, datasetOf } from '../shared/registry/index.ts';
import { startBitcoind } from '../shared/stack/bitcoind.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { backfillBlocks, CALLS, fetchBlocks, makeBlocks } from './bitcoin.ts';
import { benchHarness, type Harness, ROOT } from './harness.ts';
import { backfillDays, copyWithPsql, dayAfter, prepareBaseline, psqlOf, settle } from './ingest.ts';
import { type IngestSubject, SUBJECTS } from './ingest-subjects.ts';
import { median, rounded, timed } from './measure.ts';
import { optionsOf } from './options.ts';

type Rounds = Map<string, number[]>;

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, rounds, blocks, transactions, json, ...options } = optionsOf(argv, {
    counts: { rows: [3_500_000, 1], rounds: [3, 1], blocks: [50, 0], transactions: [2000, 1] },
    choices: { dataset: SUBJECTS.map(({ dataset }) => dataset) },
  });
  const subject = SUBJECTS.find(({ dataset }) => dataset === options.dataset) ?? SUBJECTS[0];
  await using harness = await benchHarness('floor');
  const trades = ratiosOf(await tradeRounds(harness, subject, rows, rounds), 'psql');
  const chain = blocks > 0 ? await blockRounds(harness, blocks, transactions, rounds) : undefined;
  const result = {
    bench: 'floor',
    dataset: subject.dataset,
    rows,
    rounds,
    ...trades.read_beside_load,
    trades,
    ...(chain && { blocks, transactions, serial: ratiosOf(chain, 'serial'), parallel: ratiosOf(chain, 'parallel') }),
  };
  if (json) process.stdout.write(`${JSON.stringify(result)}\n`);
  else for (const part of ['trades', 'serial', 'parallel'] as const) if (result[part]) print(part, result[part]);
}

/** Each part relative to the baseline of the same round. */
const ratiosOf = (found: Rounds, baseline: string) =>
  Object.fromEntries(
    [...found].map(([part, seconds]) => {
      const ratios = seconds.map((one, round) => one / found.get(baseline)![round]);
      const [ratio, ratio_min, ratio_max] = [median(ratios), Math.min(...ratios), Math.max(...ratios)];
      return [part, { seconds: median(seconds), ratio, ratio_min, ratio_max }];
    }),
  );

function print(name: string, parts: ReturnType<typeof ratiosOf>): void {
  for (const [part, { seconds, ratio, ratio_min, ratio_max }] of Object.entries(parts)) {
    const spread = `(${ratio_min.toFixed(2)}..${ratio_max.toFixed(2)})`;
    process.stdout.write(
      `${name.padEnd(9)} ${part.padEnd(20)} ${seconds.toFixed(2).padStart(6)} s  ratio ${ratio.toFixed(2)} ${spread}\n`,
    );
  }
}

/** Measures the parts of every round in turn; the first round is the warm-up and does not count. */
class Parts {
  readonly found: Rounds = new Map();
  readonly #note: Harness['note'];
  readonly #before: () => Promise<void>;
  #round = -1;

  constructor(note: Harness['note'], before: () => Promise<void>) {
    this.#note = note;
    this.#before = before;
  }

  nextRound(): void {
    this.#round++;
  }

  async measure(part: string, work: () => Promise<unknown>): Promise<void> {
    await this.#before();
    const seconds = rounded(await timed(work), 3);
    this.#note(`${part.padEnd(20)} ${seconds.toFixed(2)} s${this.#round === 0 ? '  (warm-up)' : ''}`);
    if (this.#round > 0) this.found.set(part, [...(this.found.get(part) ?? []), seconds]);
  }
}

async function tradeRounds(
  { directory, stack, note }: Harness,
  subject: IngestSubject,
  rows: number,
  rounds: number,
): Promise<Rounds> {
  const vendor = join(directory, 'vendor');
  note(`generating ${rounds + 1} days of ${rows.toLocaleString('en-US')} trades`);
  const days = await subject.generate(vendor, '2024-03-01', dayAfter('2024-03-01', rounds), rows);
  await prepareBaseline(stack.databaseUrl, subject);
  const dataset = datasetOf(subject.dataset);
  const columns = dataset.native.columns.map(({ name }) => `"${name}"`).join(', ');
  await psql(stack, [`create table floor_trades as select ${columns} from baseline_trades with no data`]);
  const [csv, ready] = ['csv', 'rows'].map((name) => join(directory, `day.${name}`));
  const parts = new Parts(note, async () => {
    await settle(stack.databaseUrl);
    await psql(stack, ['drop index if exists floor_key', 'truncate floor_trades', 'checkpoint']);
  });
  for (const day of days) {
    parts.nextRound();
    await subject.unpack(vendor, day, csv);
    await parts.measure('psql', () => ended(copyWithPsql(stack, subject, csv)));
    await psql(stack, [`\\copy (select ${columns} from baseline_trades) to '${ready}' with (format binary)`]);
    const { path, member } = await subject.document(vendor, day);
    const cells = (rows + (subject.header ? 1 : 0)) * subject.csvColumns.split(',').length;
    const location = `${subject.setting}=${pathToFileURL(join(vendor, '/')).href}`;
    const reader = (...words: readonly (string | number)[]) => {
      const options = { ...STDIO, cwd: directory };
      return () => ended(spawn(process.execPath, [READER, ...words.map(String)], options));
    };
    const statements = loadSteps(dataset, ready);
    const load = (steps: number) => () => psql(stack, ['begin', ...statements.slice(0, steps), 'commit']);
    const [read, decode, whole] = [
      reader('read', path, member.name, cells),
      reader('decode', subject.dataset, location, day, rows),
      load(LOAD_STEPS.index),
    ];
    await parts.measure('read', read);
    await parts.measure('decode', decode);
    for (const [part, steps] of Object.entries(LOAD_STEPS)) await parts.measure(part, load(steps));
    await parts.measure('read_beside_load', () => Promise.all([read(), whole()]));
    await parts.measure('decode_beside_load', () => Promise.all([decode(), whole()]));
    await parts.measure('tidemark', () => ended(backfillDays(stack, subject, vendor, day, day)));
    await Promise.all([rm(csv), rm(ready)]);
  }
  return parts.found;
}

const READER = join(ROOT, 'bench/floor-reader.ts');
const STDIO: SpawnOptions = { stdio: ['ignore', 'ignore', 'inherit'] };

/** How many statements of `loadSteps` each part takes. */
const LOAD_STEPS = { copy: 2, recount: 4, index: 5 } as const;

/** One transaction, as a projector's: without the truncation no row could be frozen. */
const loadSteps = (dataset: DatasetDefinition, ready: string): readonly string[] => [
  'truncate floor_trades',
  `\\copy floor_trades from '${ready}' with (format binary, freeze)`,
  'set local enable_indexscan = off',
  nativeRecountSql(dataset, 'true', 'floor_trades'),
  'create unique index floor_key on floor_trades ("timestamp", trade_id)',
];

async function blockRounds(harness: Harness, blocks: number, transactions: number, rounds: number): Promise<Rounds> {
  const { directory, stack, log, note } = harness;
  await using node = await startBitcoind({ dir: join(directory, 'node'), chain: 'regtest', log, progress: note });
  note(`making ${(rounds + 1) * blocks} blocks of ${transactions} transactions`);
  const first = await makeBlocks(node, (rounds + 1) * blocks, transactions);
  await backfillBlocks(stack, node, 0, first - 1);
  const tables = CHAIN_DATASETS.map(({ native }) => native.table);
  await psql(
    stack,
    tables.map((table) => `create table floor_${table} (like ${table} including all)`),
  );
  const fileOf = (table: string) => join(directory, `${table}.rows`);
  const parts = new Parts(note, () => psql(stack, [...tables.map((table) => `truncate floor_${table}`), 'checkpoint']));
  for (let round = 0; round <= rounds; round++) {
    parts.nextRound();
    const from = first + round * blocks;
    const heights = { from, to: from + blocks - 1 };
    const fetched = (calls: number, read: 'drop' | 'parse') => () => fetchBlocks(node, heights, calls, read);
    await parts.measure('serial', fetched(1, 'drop'));
    await parts.measure('parallel', fetched(CALLS, 'drop'));
    await parts.measure('parse', fetched(CALLS, 'parse'));
    await parts.measure('tidemark', () => backfillBlocks(stack, node, heights.from, heights.to));
    await psql(
      stack,
      CHAIN_DATASETS.map(({ native: { table, scope } }) => {
        assert(scope.kind === 'column', 'rows of blocks name their height');
        const test = `${scope.column} between ${heights.from} and ${heights.to}`;
        return `\\copy (select * from ${table} where ${test}) to '${fileOf(table)}' with (format binary)`;
      }),
    );
    const copy = () =>
      psql(
        stack,
        CHAIN_DATASETS.flatMap((dataset) => {
          const { table } = dataset.native;
          const into = `floor_${table}`;
          return [
            `\\copy ${into} from '${fileOf(table)}' with (format binary)`,
            nativeRecountSql(dataset, 'true', into),
          ];
        }),
      );
    await parts.measure('load', copy);
    await parts.measure('parse_beside_load', () => Promise.all([fetched(CALLS, 'parse')(), copy()]));
  }
  return parts.found;
}

/** Runs statements, and commands of psql, one after the other on one connection. */
const psql = (stack: Stack, statements: readonly string[]): Promise<void> =>
  ended(
    spawn(
      psqlOf(stack),
      [stack.databaseUrl, '-v', 'ON_ERROR_STOP=1', '-qX', ...statements.flatMap((one) => ['-c', one])],
      { ...STDIO, env: { ...process.env, PGOPTIONS: '-c client_min_messages=warning' } },
    ),
  );

async function ended(child: ChildProcess): Promise<void> {
  const [code] = await once(child, 'exit');
  if (code !== 0) throw new Error(`a part ended with ${code}`);
}
