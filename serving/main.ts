/**
 * The serving process. Settings come from the environment and `.env`; with `--stdin` a JSON object on standard input
 * comes first: `{"cwd", "settings": {name: text}, "sample_rights": true}`, which keeps what a supervisor passes on out
 * of the environment and off the command line. One line goes to standard output, when requests are answered.
 */

import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { loadSettings } from '../shared/config/load.ts';
import type { SettingName, Settings } from '../shared/config/settings.ts';
import { explain, TidemarkError } from '../shared/errors.ts';
import { createLogger } from '../shared/log/logger.ts';
import { createApp } from './app.ts';
import { listen } from './server.ts';

const SAMPLE_MATRIX = fileURLToPath(new URL('./rights/sample/matrix.json', import.meta.url));
/** Running answers get this long to end. */
const GRACE_MS = 10_000;

interface WorkOrder {
  readonly cwd?: string;
  /** Process id of who gave the order: it may be gone by the time it is looked for. */
  readonly parent?: number;
  readonly settings?: Partial<Record<SettingName, string>>;
  /** Use the sample rights matrix where no other is set: for the embedded stack alone. */
  readonly sample_rights?: boolean;
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { stdin: { type: 'boolean', default: false } } });
  const order: WorkOrder = values.stdin ? JSON.parse(await text(process.stdin)) : {};
  const settings = loadSettings({ cwd: order.cwd, flags: order.settings });
  const { databaseUrl, apiKey, rightsMatrixPath } = required(settings, order.sample_rights ?? false);
  const log = createLogger(settings.SVC_LOG_LEVEL, 'serving');
  await using app = createApp({ settings, databaseUrl, apiKey, rightsMatrixPath, log });
  const server = await listen(app.koa, settings.SVC_HTTP_HOST, settings.SVC_HTTP_PORT);
  const stopping = untilStopped(values.stdin ? (order.parent ?? process.ppid) : undefined);
  // A fault here does not end the process: what can be served is served, and /readyz says what cannot.
  await app.checks.run();
  log.info({ url: server.url }, 'serving');
  process.stdout.write(`${JSON.stringify({ url: server.url, pid: process.pid })}\n`);
  await stopping;
  log.info('stopping');
  await server.close(GRACE_MS);
}

/** What has no default, all that is missing at once. */
function required(settings: Settings, sampleRights: boolean) {
  const rightsMatrixPath = settings.SVC_SOURCE_RIGHTS_MATRIX_PATH ?? (sampleRights ? SAMPLE_MATRIX : undefined);
  const values = {
    SVC_DATABASE_URL: settings.SVC_DATABASE_URL?.href,
    SVC_INTERNAL_API_KEY: settings.SVC_INTERNAL_API_KEY,
    SVC_SOURCE_RIGHTS_MATRIX_PATH: rightsMatrixPath,
  };
  const missing = Object.entries(values).flatMap(([name, value]) =>
    value === undefined ? [`${name}: is required`] : [],
  );
  if (missing.length > 0) {
    throw new TidemarkError('CONFIGURATION_INVALID', `Settings cannot be used:\n  ${missing.join('\n  ')}`);
  }
  return {
    databaseUrl: values.SVC_DATABASE_URL!,
    apiKey: values.SVC_INTERNAL_API_KEY!,
    rightsMatrixPath: rightsMatrixPath!,
  };
}

/** A signal, or the end of the process that gave the work order. */
function untilStopped(parent: number | undefined): Promise<void> {
  return new Promise((resolve) => {
    for (const name of ['SIGTERM', 'SIGINT'] as const) process.once(name, () => resolve());
    if (parent === undefined) return;
    setInterval(() => {
      if (process.ppid !== parent) resolve();
    }, 1000).unref();
  });
}

try {
  await main();
} catch (error) {
  process.stderr.write(`tidemark serving: ${explain(error)}\n`);
  process.exitCode = error instanceof TidemarkError && error.code === 'CONFIGURATION_INVALID' ? 2 : 1;
}
