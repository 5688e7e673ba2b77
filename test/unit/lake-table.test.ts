/** A table of a lake on the disk: two writers at once, and a reader that counts rows meanwhile. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { metaDataOf } from '../../serving/lake/delta-write.ts';
import { folderOf, sha256Of } from '../../serving/lake/format.ts';
import { LakeTable, type TableDeps } from '../../serving/lake/table.ts';
import { loadSettings } from '../../shared/config/load.ts';
import { actionsOf, logFileOf, readSnapshot } from '../../shared/mirror/delta-log.ts';
import { manifestBytes } from '../../shared/proof-log/signed-manifest.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { writeParquet } from '../support/read-parquet.ts';

const DATASET = datasetOf('bitcoin_block_headers');
const SETTINGS = loadSettings({ cwd: '/nowhere', env: {}, flags: {} });
const TABLE = `${DATASET.key}/native`;
const NOTHING = { shape: { columns: [], hiddenFirst: false }, rows: [], flushBefore: new Set<number>() };

async function stageIn(table: LakeTable, location: string, date: string, change: number): Promise<void> {
  const path = await writeParquet(join(location, `${date}-${change}`), NOTHING, {
    facts: { date, change: `${change}` },
  });
  const bytes = readFileSync(path);
  const sha256 = sha256Of(bytes);
  const folder = folderOf(SETTINGS, DATASET, date);
  const facts = { name: `${folder}/${change}-${sha256}.parquet`, folder, date, rows: 1, bytes: bytes.length, sha256 };
  const file = { ...facts, synthetic: false, state: 'x' };
  const manifest = { files: [{ name: facts.name }], row_count: 1, bytes: bytes.length, sha256, synthetic: false };
  await table.stage(file, path, manifestBytes({ ...manifest, run: { state_sha256: 'x' } }));
}

test('two writers at once lose no commit, and every version is whole', async () => {
  const location = mkdtempSync(join(tmpdir(), 'tidemark-table-'));
  const deps: TableDeps = { location, signer: async () => undefined, now: Date.now, keepMs: 86_400_000 };
  const log = join(location, TABLE, '_delta_log');
  mkdirSync(log, { recursive: true });
  const [dates, rounds] = [['2024-01-01', '2024-01-02'], 12];
  const write = async (date: string) => {
    const table = await LakeTable.open(TABLE, deps);
    for (let change = 1; change <= rounds; change++) {
      await stageIn(table, location, date, change);
      for (;;) {
        const metaData = metaDataOf(DATASET, 'native', { held: table.metaData, keepMs: 1, nowMs: 1 });
        const replaced = table.active.get(folderOf(SETTINGS, DATASET, date));
        const isDone = await table.commit({
          remove: replaced ? [replaced.name] : [],
          add: [...table.staged.values()].filter((facts) => facts.date === date),
          ...{ metaData, change, checkpoint: null, withdrawn: new Set<string>() },
        });
        if (isDone) break;
      }
    }
  };
  let isOver = false;
  let looked = 0;
  const reading = (async () => {
    for (; !isOver; looked++) {
      await new Promise((resolve) => setImmediate(resolve));
      const files = readdirSync(join(location, TABLE), { recursive: true, encoding: 'utf8' });
      const commits = files.flatMap((name) => logFileOf(name.replace('_delta_log/', '')) ?? []);
      const version = Math.max(-1, ...commits.filter((one) => !one.isCheckpoint).map((one) => one.version));
      if (version < 0) continue;
      const { files: active } = await readSnapshot(async (name) => readFileSync(join(log, name)), version, null);
      for (const name of active.keys()) readFileSync(join(location, TABLE, name));
    }
  })();
  await Promise.all(dates.map(write)).finally(() => (isOver = true));
  await reading;
  expect(looked).toBeGreaterThan(0);
  const commits = readdirSync(log).filter((name) => name.endsWith('.json') && !name.startsWith('_'));
  expect(commits).toHaveLength(dates.length * rounds);
  const adds = commits.flatMap((name) =>
    actionsOf(name, readFileSync(join(log, name))).flatMap(({ add }) => add ?? []),
  );
  expect(adds).toHaveLength(dates.length * rounds);
  const last = (await LakeTable.open(TABLE, deps)).active;
  expect([...last.values()].map(({ date, name }) => [date, name.includes(`/${rounds}-`)]).sort()).toEqual(
    dates.map((date) => [date, true]),
  );
  rmSync(location, { recursive: true });
});
