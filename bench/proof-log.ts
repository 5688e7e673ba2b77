/**
 * The checks of the proof log on one core. An export of whole days is checked from CSV and from Parquet, beside DuckDB with one thread,
 * which parses the same file and hashes each row; and a mirror of a log is made again from its tiles, beside `sha256sum` over the
 * same files. And what the log costs an ingest, beside the whole day. CSV is bound by reading its bytes (the sha256 takes a tenth),
 * Parquet by the decoding of nullable columns into arrays and their garbage.
 *
 * Options: --rows N (2,000,000) trades, --leaves N (4,000,000; 0: without), --ingest-rows N (3,500,000 trades of a day; 0: without),
 * --rounds N (5), --json.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pipeline } from 'node:stream/promises';
import type { DuckDBConnection } from '@duckdb/node-api';
import { run as command } from '../pipelines/cli/run.ts';
import { DAY_MS } from '../shared/dates.ts';
import { checkMirror } from '../shared/proof-log/check.ts';
import { CsvFeed } from '../shared/proof-log/csv-feed.ts';
import { folderSource, writeTile } from '../shared/proof-log/folder.ts';
import { encodeLeaf, type Leaf } from '../shared/proof-log/leaf.ts';
import { GrowingTree, type Hash, inclusionProof, leafHash } from '../shared/proof-log/merkle.ts';
import { checkpointText, generateSigner, type Signer } from '../shared/proof-log/note.ts';
import { RowDigests } from '../shared/proof-log/rows.ts';
import { signManifest } from '../shared/proof-log/signed-manifest.ts';
import { encodeEntries, TILE_HEIGHT, TILE_WIDTH } from '../shared/proof-log/tiles.ts';
import { datasetOf } from '../shared/registry/index.ts';
import { rowLayoutOf } from '../shared/registry/proof-rows.ts';
import { openDuckDb } from './duckdb.ts';
import { alternating } from './measure.ts';
import { optionsOf } from './options.ts';
import { linesOf, measureIngest } from './proof-log-ingest.ts';

const DATASET = datasetOf('exchange_a_spot_trades');
const LAYOUT = rowLayoutOf(DATASET);
const DAY = '2024-01-01';
const FIELDS = DATASET.native.fields.map(({ name }) => name);

const comparedBy = ({ first_ms, second_ms, ratio, ratio_min, ratio_max }: Awaited<ReturnType<typeof alternating>>) => ({
  ours_ms: Math.round(first_ms),
  theirs_ms: Math.round(second_ms),
  ratio,
  spread: `${ratio_min}..${ratio_max}`,
});

interface Compared {
  readonly name: string;
  readonly ours_ms: number;
  readonly theirs_ms: number;
  readonly ratio: number;
  readonly spread: string;
  readonly note: string;
}

export async function run(argv: readonly string[]): Promise<void> {
  const { rows, leaves, rounds, json, ...options } = optionsOf(argv, {
    counts: { rows: [2_000_000, 1], leaves: [4_000_000, 0], 'ingest-rows': [3_500_000, 0], rounds: [5, 1] },
  });
  const directory = await mkdtemp(join(tmpdir(), 'tidemark-bench-'));
  try {
    using duckdb = await openDuckDb();
    await duckdb.connection.run('set threads = 1');
    const signer = generateSigner('bench');
    const found: Compared[] = [];
    for (const format of ['csv', 'parquet'] as const) {
      found.push(await checkedExport(format, { rows, rounds, directory, signer, duckdb: duckdb.connection }));
    }
    if (leaves > 0) found.push(await checkedMirror(leaves, directory, rounds));
    const ingestRows = options['ingest-rows'];
    const ingest = ingestRows > 0 ? await measureIngest(ingestRows, rounds) : undefined;
    const result = { bench: 'proof-log', rows, leaves, rounds, cases: found, ingest };
    const lines = [...found.map(lineOf), ...(ingest ? linesOf(ingest) : [])];
    process.stdout.write(json ? `${JSON.stringify(result)}\n` : `${lines.join('\n')}\n`);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

const lineOf = ({ name, ours_ms, theirs_ms, ratio, spread, note }: Compared) =>
  `${name}: ours ${ours_ms} ms, theirs ${theirs_ms} ms, ratio ${ratio} (${spread}); ${note}`;

interface ExportBench {
  readonly rows: number;
  readonly rounds: number;
  readonly directory: string;
  readonly signer: Signer;
  readonly duckdb: DuckDBConnection;
}

async function checkedExport(
  format: 'csv' | 'parquet',
  { rows, rounds, directory, signer, duckdb }: ExportBench,
): Promise<Compared> {
  const folder = join(directory, format);
  await mkdir(folder);
  const [csv, path] = [join(directory, 'rows.csv'), join(folder, `rows.${format}`)];
  const made = `select i + 1 as trade_id, ${Date.parse(DAY)} + i * ${DAY_MS} // ${rows} as "timestamp",
      round(40000 + 500 * sin(i / 9e4) + (i * 7919 % 1000) / 100, 2) as price, round((i * 104729 % 100000) / 1e5 + 1e-5, 5) as quantity,
      round(price * quantity, 8) as quote_quantity, (i % 2)::tinyint as is_buyer_maker,
      1::tinyint as is_best_match,
      strftime(make_timestamp_ms(${Date.parse(DAY)} + i * ${DAY_MS} // ${rows}), '%Y-%m-%dT%H:%M:%S.%gZ') as datetime
      from range(${rows}) t (i)`;
  await duckdb.run(`copy (${made}) to '${csv}' (format csv, header)`);
  if (format === 'csv') await writeFile(path, await readFile(csv));
  else
    await duckdb.run(
      `copy (select * replace (datetime::timestamp_ms as datetime) from read_csv('${csv}', types = ${TYPES})) to '${path}' (format parquet, compression zstd)`,
    );
  await writeManifest(folder, { format, path, csv, rows, signer });
  const read = format === 'csv' ? `read_csv('${path}', types = ${TYPES})` : `'${path}'`;
  const sql = `select sum(hash(${LAYOUT.columns.map(({ name }) => `"${name}"`).join(', ')})) from ${read}`;
  const timed = await alternating(
    () => checked(folder, signer.verifier.line, rows),
    async () => void (await duckdb.run(sql)),
    rounds,
  );
  return {
    name: `check of ${rows.toLocaleString('en-US')} trades from ${format}`,
    ...comparedBy(timed),
    note: `${(rows / timed.first_ms / 1000).toFixed(2)} M rows/s; DuckDB with one thread parses and hashes rows`,
  };
}

const TYPES = `{'timestamp': 'BIGINT', 'trade_id': 'BIGINT', 'price': 'DOUBLE', 'quantity': 'DOUBLE', 'quote_quantity': 'DOUBLE',
  'is_buyer_maker': 'TINYINT', 'is_best_match': 'TINYINT', 'datetime': 'VARCHAR'}`;

/** `./tidemark check`, in this process. */
async function checked(folder: string, key: string, rows: number): Promise<void> {
  const answers: string[] = [];
  const stdout = { write: (text: string) => answers.push(text) };
  const exit = await command(['check', '--json', folder, '--key', key], {
    env: {},
    stdout,
    stderr: stdout,
    onStop: () => () => {},
  });
  const answer = answers.join('');
  if (exit !== 0 || !answer.includes(`equal to its leaf: ${rows.toLocaleString('en-US')} rows`))
    throw new Error(answer);
}

interface Manifested {
  readonly format: string;
  readonly path: string;
  readonly csv: string;
  readonly rows: number;
  readonly signer: Signer;
}

async function writeManifest(folder: string, { format, path, csv, rows, signer }: Manifested): Promise<void> {
  const digests = new RowDigests(LAYOUT, [{ partition: DAY, document_sha256: null }]);
  const feed = new CsvFeed(LAYOUT, digests, FIELDS);
  for await (const chunk of createReadStream(csv)) feed.push(chunk as Buffer);
  feed.end();
  const leaf = encodeLeaf(leafOf(rows, digests.digests()[0].sha256));
  const tree = new GrowingTree();
  tree.add(leafHash(leaf));
  const digest = createHash('sha256');
  await pipeline(createReadStream(path), digest);
  const manifest = {
    manifest_version: 1,
    dataset: DATASET.key,
    mode: 'native',
    format,
    window: { kind: 'range', start_utc: null, end_utc: null },
    filters: [],
    as_of: null,
    schema: FIELDS.map((name) => ({ name })),
    row_count: rows,
    files: [{ name: `rows.${format}`, bytes: (await stat(path)).size, sha256: digest.digest('hex') }],
    proof: { partitions: 1, listed: [{ partition: DAY, rows }] },
    proof_log: {
      checkpoint: signer.sign(checkpointText({ origin: 'bench', size: 1, root: tree.root })),
      leaves: [
        {
          dataset: DATASET.key,
          partition: DAY,
          leaf_index: 0,
          leaf: String(leaf),
          inclusion: await inclusionProof(0, 1, async () => leaf),
        },
      ],
    },
  };
  await writeFile(join(folder, 'manifest.json'), JSON.stringify(signManifest(manifest, signer)));
}

const leafOf = (rows: number, rowsSha256: string | null): Leaf => ({
  v: 1,
  kind: 'proved',
  dataset: DATASET.key,
  partition: DAY,
  revision: 1,
  attempt: 1,
  synthetic: true,
  document: { name: 'BTCUSDT-trades-2024-01-01.zip', sha256: 'ab'.repeat(32) },
  rows,
  first_offset: '1',
  last_offset: String(rows),
  rows_hash: '-1234567890123456789012345',
  events_sha256: 'cd'.repeat(32),
  rows_sha256: rowsSha256,
  at: '2024-01-02T00:00:00.000Z',
  reason: null,
});

/** A log of as many leaves, written without syncing, and made again. */
async function checkedMirror(leaves: number, directory: string, rounds: number): Promise<Compared> {
  const folder = join(directory, 'log');
  const head = await writeLog(folder, leaves);
  const files = `find ${folder} -type f -print0 | sort -z | xargs -0 cat`;
  const timed = await alternating(
    async () => {
      const { faults } = await checkMirror({ origin: 'bench', ...head }, folderSource(folder));
      if (faults.length > 0) throw new Error(faults[0]);
    },
    async () => void execFileSync('sh', ['-c', `${files} | sha256sum`]),
    Math.min(rounds, 3),
  );
  const bytes = Number(execFileSync('sh', ['-c', `${files} | wc -c`], { encoding: 'utf8' }));
  return {
    name: `check of a mirror of ${leaves.toLocaleString('en-US')} leaves`,
    ...comparedBy(timed),
    note: `${(bytes / 1e9).toFixed(2)} GB of tiles, ${Math.round(bytes / leaves)} bytes a leaf; sha256sum reads the same files`,
  };
}

async function writeLog(folder: string, leaves: number): Promise<{ readonly size: number; readonly root: Hash }> {
  const tree = new GrowingTree();
  const levels: Hash[][] = [];
  let entries: Buffer[] = [];
  const writes: Promise<void>[] = [];
  const onSubtree = (level: number, _index: number, hash: Hash) => {
    if (level % TILE_HEIGHT !== 0) return;
    const hashes = levels[level / TILE_HEIGHT] ?? [];
    levels[level / TILE_HEIGHT] = hashes;
    hashes.push(hash);
  };
  for (let index = 0; index < leaves; index++) {
    const leaf = encodeLeaf({ ...leafOf(index, 'ef'.repeat(32)), partition: String(index) });
    entries.push(leaf);
    tree.add(leafHash(leaf), onSubtree);
    if (entries.length < TILE_WIDTH && index < leaves - 1) continue;
    const tile = { level: 'entries', index: Math.floor(index / TILE_WIDTH), width: entries.length } as const;
    writes.push(writeTile(folder, tile, encodeEntries(entries)));
    entries = [];
    if (writes.length === 64) await Promise.all(writes.splice(0));
  }
  for (const [level, hashes] of levels.entries()) {
    for (let index = 0; index * TILE_WIDTH < hashes.length; index++) {
      const part = hashes.slice(index * TILE_WIDTH, (index + 1) * TILE_WIDTH);
      await writeTile(folder, { level, index, width: part.length }, Buffer.concat(part));
    }
  }
  await Promise.all(writes);
  return { size: tree.size, root: tree.root };
}
