/** What the figures of a run depend on besides the code: the machine, without its name, and the versions of what takes part. */
import { spawnSync } from 'node:child_process';
import { readdir, readFile } from 'node:fs/promises';
import { availableParallelism, cpus, homedir, release, totalmem, type } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ensureRuntime } from '../shared/stack/packages.ts';
import { serverUser } from '../shared/stack/processes.ts';
import type { Machine } from './history.ts';

const ROOT = fileURLToPath(new URL('../', import.meta.url));

export const machineOf = (): Machine => ({
  cpu: cpus()[0]?.model ?? 'unknown',
  cores: availableParallelism(),
  memory_gib: Math.round(totalmem() / 1024 ** 3),
  system: `${type()} ${release().split('-')[0]} ${process.arch}`,
});

/** The commit, with `+` where files differ from it. */
export function commitOf(): string {
  const git = (...args: string[]) => spawnSync('git', args, { cwd: ROOT, encoding: 'utf8' });
  const head = git('rev-parse', 'HEAD');
  if (head.status !== 0) return 'unknown';
  const changed = git('status', '--porcelain', '--untracked-files=no', '--', '.', ':!bench/history.jsonl').stdout;
  return `${head.stdout.trim()}${changed.trim() === '' ? '' : '+'}`;
}

/** The packages of the servers whose versions count, as their files are named. */
const PACKAGES: Readonly<Record<string, string>> = {
  'postgresql-17': 'postgres',
  'postgresql-17-timescaledb': 'timescaledb',
  'nats-server': 'nats-server',
  'bitcoin-knots': 'bitcoind',
};

/** Those of the embedded servers, from what was installed of them; servers of one's own are not asked. */
export async function versionsOf(): Promise<Record<string, string>> {
  const { devDependencies } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'));
  const found: Record<string, string> = { node: process.versions.node, duckdb: devDependencies['@duckdb/node-api'] };
  const installed = await ensureRuntime({ user: serverUser(ROOT) }).catch(() => undefined);
  if (!installed) return found;
  // A node runs as this account, the servers of root as another: their folders may differ.
  const own = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'tidemark');
  for (const folder of new Set([own, dirname(installed.prefix)])) {
    for (const name of await readdir(folder).catch(() => [])) {
      const files = await readFile(join(folder, name, 'READY'), 'utf8').catch(() => '');
      for (const [, file, version] of files.matchAll(/^([a-z0-9-]+)_([^_\n]+)_/gm)) {
        if (PACKAGES[file]) found[PACKAGES[file]] = decodeURIComponent(version);
      }
    }
  }
  return found;
}
