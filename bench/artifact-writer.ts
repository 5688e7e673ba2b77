/** A process that writes an artifact for each line of its input, as an export worker does, so that its memory can be measured. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseQuery } from '../serving/contract/query.ts';
import { PgPool, poolOptions } from '../serving/db/pool.ts';
import { type ArtifactFormat, writeArtifact } from '../serving/exports/artifact/write.ts';
import { artifactDeps } from '../serving/exports/service.ts';
import { freshnessRule } from '../serving/read/execute/warnings.ts';
import { loadSettings } from '../shared/config/load.ts';
import { createLogger } from '../shared/logger.ts';
import type { Stack } from '../shared/stack/stack.ts';
import { parseJson } from '../shared/strict-json.ts';
import { residentMib } from './measure.ts';

export interface Order {
  /** Of a query. */
  readonly body: object;
  readonly format: ArtifactFormat;
  /** Of the artifact. */
  readonly directory: string;
}

export interface Writer extends AsyncDisposable {
  write(order: Order): Promise<{ readonly rows: number; readonly path: string }>;
  peakMib(): number;
}

const PROGRAM = fileURLToPath(import.meta.url);

export async function startWriter({ databaseUrl, stateDir }: Stack): Promise<Writer> {
  const child = spawn(process.execPath, [PROGRAM], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, SVC_DATABASE_URL: databaseUrl, SVC_STATE_DIR: stateDir },
  });
  return {
    async write(order) {
      child.stdin.write(`${JSON.stringify(order)}\n`);
      const [line] = await once(child.stdout, 'data');
      return JSON.parse(String(line));
    },
    peakMib: () => residentMib(child.pid!, 'VmHWM'),
    async [Symbol.asyncDispose]() {
      child.stdin.end();
      if (child.exitCode === null) await once(child, 'exit');
    },
  };
}

async function writeAll(): Promise<void> {
  const settings = loadSettings();
  await using pool = new PgPool(poolOptions(String(settings.SVC_DATABASE_URL)));
  const log = createLogger('warn', 'bench');
  const deps = { ...artifactDeps(settings, { pool, freshness: freshnessRule(settings), log }), splitRows: Infinity };
  for await (const line of createInterface({ input: process.stdin })) {
    const { body, format, directory } = JSON.parse(line) as Order;
    const parsed = parseQuery(parseJson(JSON.stringify(body)));
    if ('faults' in parsed) throw new Error(JSON.stringify(parsed.faults));
    const { manifest, files } = await writeArtifact(deps, {
      request: parsed.value.read,
      admit: undefined,
      format,
      compression: format === 'csv' ? 'none' : 'zstd',
      directory,
      signal: new AbortController().signal,
    });
    process.stdout.write(`${JSON.stringify({ rows: manifest.row_count, path: files[0].path })}\n`);
  }
}

if (process.argv[1] === PROGRAM) await writeAll();
