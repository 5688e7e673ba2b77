/** Exports in tests: the service in the test's own process with a worker of its own, and export workers as processes. */

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Limits } from '../../shared/config/limits.ts';
import type { SettingName } from '../../shared/config/settings.ts';
import { type Json, ROOT } from './command.ts';
import { PATIENCE_MS } from './patience.ts';
import { type Answer, eventually, OWN_MATRIX, type Serving, type ServingOptions, startServing } from './serving.ts';
import { limitsEnv } from './small-limits.ts';

export const EXPORT = '/v1/raw/export';

export interface ExportEnv {
  readonly databaseUrl: string;
  readonly dir: string;
}

export type TestSettings = Partial<Record<SettingName, string>>;

/** The records of an audit log, chain by chain. */
export async function recordsIn(directory: string): Promise<Json[]> {
  const names = (await readdir(directory, { recursive: true })).filter((name) => name.endsWith('.jsonl')).sort();
  const texts = await Promise.all(names.map((name) => readFile(join(directory, name), 'utf8')));
  const lines = texts.join('').split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line));
}

/** What a worker had that died comes again soon. */
const SHORT_LEASE = { exportLeaseMs: 1000 };

/** Artifacts and audit log of one folder. */
export const exportSettings = ({ dir }: ExportEnv, more: TestSettings = {}): TestSettings => ({
  SVC_STATE_DIR: join(dir, 'state'),
  ...more,
});

export interface Exports extends AsyncDisposable {
  readonly serving: Serving;
  readonly root: string;
  readonly audit: string;
  submit(body: unknown, headers?: Record<string, string>): Promise<Answer>;
  get(path: string, headers?: Record<string, string>): Promise<Answer>;
  status(exportId: string): Promise<Answer>;
  cancel(exportId: string): Promise<Answer>;
  /** Submits and waits for its end. @returns the answer with its last status. */
  run(body: unknown): Promise<Answer>;
  /** The status once it is over. */
  finished(exportId: string, withinMs?: number): Promise<Answer>;
  /** The bytes of its artifact. */
  bytes(exportId: string, headers?: Record<string, string>): Promise<Buffer>;
  /** Folders of an export's runs. */
  runs(exportId: string): Promise<string[]>;
}

export interface ExportsOptions extends Pick<ServingOptions, 'now' | 'rightsMatrixPath' | 'limits'> {
  readonly settings?: TestSettings;
  /** False: only what is submitted and asked, nothing runs. */
  readonly worker?: boolean;
}

export async function startExports(env: ExportEnv, options: ExportsOptions = {}): Promise<Exports> {
  const settings = exportSettings(env, options.settings);
  const serving = await startServing({
    databaseUrl: env.databaseUrl,
    ...options,
    settings,
    limits: { ...SHORT_LEASE, ...options.limits },
  });
  if (options.worker ?? true) serving.app.exports.work();
  const get = (path: string, headers?: Record<string, string>) => serving.send({ method: 'GET', path, headers });
  const status = (exportId: string) => get(`${EXPORT}/${exportId}`);
  const root = settings.SVC_EXPORT_ROOT_DIR ?? join(env.dir, 'state', 'exports');
  const submit = (body: unknown, headers?: Record<string, string>) =>
    serving.send({ path: EXPORT, body: typeof body === 'string' ? body : JSON.stringify(body), headers });
  const finished = async (exportId: string, withinMs = PATIENCE_MS) => {
    let answer = await status(exportId);
    await eventually(
      async () => {
        answer = await status(exportId);
        return answer.status !== 200 || ['succeeded', 'failed'].includes(answer.json.status);
      },
      `${exportId} is over`,
      withinMs,
    );
    return answer;
  };
  return {
    serving,
    root,
    audit: settings.SVC_EXPORT_AUDIT_LOG_PATH ?? join(env.dir, 'state', 'export-audit'),
    submit,
    get,
    status,
    finished,
    cancel: (exportId) => serving.send({ method: 'DELETE', path: `${EXPORT}/${exportId}` }),
    async run(body) {
      const answer = await submit(body);
      if (answer.status !== 202) throw new Error(`not accepted: ${answer.status} ${answer.text}`);
      return await finished(answer.json.export_id);
    },
    async bytes(exportId, headers) {
      const response = await serving.open({ method: 'GET', path: `${EXPORT}/${exportId}/artifact`, headers });
      const chunks: Buffer[] = [];
      for await (const chunk of response) chunks.push(chunk);
      if (response.statusCode !== 200) throw new Error(Buffer.concat(chunks).toString());
      return Buffer.concat(chunks);
    },
    runs: async (exportId) => (await readdir(join(root, exportId)).catch(() => [])).sort(),
    [Symbol.asyncDispose]: () => serving[Symbol.asyncDispose](),
  };
}

interface WorkerOptions {
  readonly settings?: TestSettings;
  readonly limits?: Partial<Limits>;
}

/** `serving/exports/worker-main.ts`, taking exports. */
export function spawnWorker(
  env: ExportEnv,
  { settings = {}, limits = {} }: WorkerOptions = {},
): ChildProcess & { readonly ready: Promise<void> } {
  const child = spawn(process.execPath, [join(ROOT, 'serving/exports/worker-main.ts'), '--stdin'], {
    cwd: env.dir,
    env: {
      PATH: process.env.PATH,
      NODE_COMPILE_CACHE: join(ROOT, 'node_modules/.cache/tidemark-compile'),
      ...limitsEnv({ ...SHORT_LEASE, ...limits }),
    },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const order = {
    cwd: env.dir,
    parent: process.pid,
    settings: {
      SVC_DATABASE_URL: env.databaseUrl,
      SVC_INTERNAL_API_KEY: 'none',
      SVC_SOURCE_RIGHTS_MATRIX_PATH: OWN_MATRIX,
      SVC_LOG_LEVEL: process.env.TIDEMARK_TEST_LOG ?? 'error',
      ...exportSettings(env, settings),
    },
  };
  child.stdin!.end(JSON.stringify(order));
  return Object.assign(child, { ready: once(child.stdout!, 'data').then(() => {}) });
}
