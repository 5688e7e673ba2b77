/**
 * Checks by the proof log. `./tidemark check` of an export of a day, CSV and Parquet, beside DuckDB with one thread, which parses the same
 * file and hashes each row; and a mirror of a log, which is made again from its tiles, beside `sha256sum` over the same files. Checks
 * use one core.
 */
import { execFileSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { text } from 'node:stream/consumers';
import { checkMirror } from '../shared/proof-log/check.ts';
import { folderSource, KEY_FILE, writeTile } from '../shared/proof-log/folder.ts';
import { GrowingTree, type Hash, leafHash } from '../shared/proof-log/merkle.ts';
import { encodeEntries, TILE_HEIGHT, TILE_WIDTH } from '../shared/proof-log/tiles.ts';
import { startWriter } from './artifact-writer.ts';
import { ingestHistory, iso } from './days.ts';
import type { Lab } from './lab.ts';
import { timed } from './measure.ts';
import { DATASET, openDuckDb, readCsv } from './others.ts';
import { ended, startCommand } from './service.ts';
import { subject } from './subject.ts';

const DAY = { fromMs: Date.parse('2024-03-01'), toMs: Date.parse('2024-03-02') };
/** About as long as a leaf of trades. */
const LEAF_BYTES = 500;

export const proofLog = subject({
  name: 'proof-log',
  compares: 'checks of an export and of a mirror, beside DuckDB and sha256sum',
  options: { rows: 2_000_000, leaves: 4_000_000 },
  rounds: 3,
  smallest: '--rows 5000 --leaves 600',
  async run(lab, { rows, leaves }) {
    await ingestHistory(lab, { ...DAY, rows });
    for (const format of ['csv', 'parquet'] as const) await compareExport(lab, rows, format);
    await compareMirror(lab, leaves);
  },
});

async function compareExport(lab: Lab, rows: number, format: 'csv' | 'parquet'): Promise<void> {
  const { directory, stack } = lab;
  await using writer = await startWriter(stack);
  const { path } = await writer.write({
    body: { sources: [DATASET], time_range: [iso(DAY.fromMs), iso(DAY.toMs)] },
    format,
    directory: join(directory, format),
  });
  const key = join(stack.stateDir, 'proof-log', KEY_FILE);
  using duckdb = await openDuckDb();
  await duckdb.connection.run('set threads = 1');
  const source = format === 'csv' ? readCsv(path) : `'${path}'`;
  const sql = `select sum(hash(trade_id, "timestamp", price, quantity, quote_quantity, is_buyer_maker, is_best_match, datetime))
    from ${source}`;
  const check = ['check', '--json', dirname(path), '--key', key];
  const said = await text(startCommand(stack.stateDir, check, {}, 'pipe').stdout!);
  if (!said.includes(`equal to its leaf: ${rows.toLocaleString('en-US')} rows`)) throw new Error(said);
  await lab.compare(`check of ${rows.toLocaleString('en-US')} trades as ${format}`, {
    tidemark: timed(() => ended(startCommand(stack.stateDir, check))),
    'DuckDB, one thread': timed(() => duckdb.connection.run(sql)),
  });
}

/** A log of as many leaves, written without syncing, and made again. */
async function compareMirror(lab: Lab, leaves: number): Promise<void> {
  const folder = join(lab.directory, 'log');
  lab.note(`writing a log of ${leaves.toLocaleString('en-US')} leaves`);
  const head = await writeLog(folder, leaves);
  const hashFiles = `find ${folder} -type f -print0 | sort -z | xargs -0 cat | sha256sum`;
  await lab.compare(`check of a mirror of ${leaves.toLocaleString('en-US')} leaves`, {
    tidemark: timed(async () => {
      const { faults } = await checkMirror({ origin: 'bench', ...head }, folderSource(folder));
      if (faults.length > 0) throw new Error(faults[0]);
    }),
    sha256sum: timed(async () => execFileSync('sh', ['-c', hashFiles])),
  });
}

async function writeLog(folder: string, leaves: number): Promise<{ readonly size: number; readonly root: Hash }> {
  const tree = new GrowingTree();
  const levels: Hash[][] = [];
  let entries: Buffer[] = [];
  const onSubtree = (level: number, _index: number, hash: Hash) => {
    if (level % TILE_HEIGHT !== 0) return;
    const hashes = levels[level / TILE_HEIGHT] ?? [];
    levels[level / TILE_HEIGHT] = hashes;
    hashes.push(hash);
  };
  for (let index = 0; index < leaves; index++) {
    const leaf = Buffer.from(String(index).padStart(LEAF_BYTES, ' '));
    entries.push(leaf);
    tree.add(leafHash(leaf), onSubtree);
    if (entries.length < TILE_WIDTH && index < leaves - 1) continue;
    const tile = { level: 'entries', index: Math.floor(index / TILE_WIDTH), width: entries.length } as const;
    await writeTile(folder, tile, encodeEntries(entries));
    entries = [];
  }
  for (const [level, hashes] of levels.entries()) {
    for (let index = 0; index * TILE_WIDTH < hashes.length; index++) {
      const part = hashes.slice(index * TILE_WIDTH, (index + 1) * TILE_WIDTH);
      await writeTile(folder, { level, index, width: part.length }, Buffer.concat(part));
    }
  }
  return { size: tree.size, root: tree.root };
}
