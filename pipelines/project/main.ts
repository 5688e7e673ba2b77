/**
 * The projector process. Its work order is one JSON object on standard input: credentials belong neither on a command
 * line nor in an environment that others can read.
 */
import { text } from 'node:stream/consumers';
import { loadSettings } from '../../shared/config/load.ts';
import type { SettingName } from '../../shared/config/settings.ts';
import { createLogger } from '../../shared/log/logger.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { keepProjected } from './run.ts';

interface WorkOrder {
  readonly databaseUrl: string;
  readonly natsUrl: string;
  readonly datasets: readonly string[];
  readonly cwd: string;
  /** Process id of the command that started this. */
  readonly parent: number;
  /** Settings given as flags to the command that started this. */
  readonly settings: Partial<Record<SettingName, string>>;
}

const order = JSON.parse(await text(process.stdin)) as WorkOrder;
const settings = loadSettings({ cwd: order.cwd, flags: order.settings });
const log = createLogger(settings.SVC_LOG_LEVEL, 'projector');
// Nothing is worth waiting for: an open load is rolled back by the database when its connection ends, and what is
// committed is committed. A projector may be killed anywhere; told to stop, it does the same without the fuss.
for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, () => process.exit(0));
// A projector without its parent has nobody to stop it. The parent may be gone already, so it names itself.
setInterval(() => {
  if (process.ppid !== order.parent) process.exit(0);
}, 1000).unref();

await Promise.all(
  order.datasets.map((key) =>
    keepProjected(datasetOf(key), {
      databaseUrl: order.databaseUrl,
      natsUrl: order.natsUrl,
      settings,
      log,
      signal: new AbortController().signal,
    }),
  ),
);
