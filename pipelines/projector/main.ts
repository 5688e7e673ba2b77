/**
 * The projector process. It reads its options as one JSON object from standard input, which keeps credentials out of
 * the environment and off the command line. With `--env` it runs without the command, in a container or under another
 * supervisor, and takes its settings from the environment.
 */

import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { loadSettings } from '../../shared/config/load.ts';
import type { SettingName, Settings } from '../../shared/config/settings.ts';
import { explain } from '../../shared/errors.ts';
import { createLogger } from '../../shared/logger.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { keepChangesPublished, leavesAheadAt } from '../proof-log/change-publisher.ts';
import { keepSequenced } from '../proof-log/sequencer.ts';
import { fedDatasets, projectionOf } from '../sources/index.ts';
import { keepCompacted } from './compaction.ts';
import { keepProjected } from './run.ts';
import { keepRecounted } from './verify.ts';

/** The longest that a process that stops waits for the signature of what is proved. */
const LAST_ROUND_MS = 2000;

interface ProcessOptions {
  readonly databaseUrl: string;
  readonly natsUrl: string;
  readonly datasets: readonly string[];
  readonly cwd: string;
  /** Process id of the command that started the projector. */
  readonly parent?: number;
  /** Whether it also puts old chunks into the columnstore. */
  readonly compacts: boolean;
  /** Settings given as flags to that command. */
  readonly settings: Partial<Record<SettingName, string>>;
}

/** @throws TidemarkError CONFIGURATION_INVALID */
function optionsFromEnvironment(): ProcessOptions {
  const cwd = process.cwd();
  const required = ({ SVC_NATS_PROJECTOR_URL: own }: Partial<Settings>): readonly SettingName[] =>
    own === undefined ? ['SVC_DATABASE_URL', 'SVC_NATS_URL'] : ['SVC_DATABASE_URL'];
  const { SVC_DATABASE_URL, SVC_NATS_URL, SVC_NATS_PROJECTOR_URL } = loadSettings({ cwd, required });
  const natsUrl = (SVC_NATS_PROJECTOR_URL ?? SVC_NATS_URL)!.href;
  const datasets = fedDatasets().map(({ key }) => key);
  return { databaseUrl: SVC_DATABASE_URL!.href, natsUrl, datasets, cwd, compacts: true, settings: {} };
}

async function readOptions(): Promise<ProcessOptions> {
  const { values } = parseArgs({ options: { env: { type: 'boolean', default: false } } });
  if (!values.env) {
    const options = await text(process.stdin);
    // The command that started this process ended before it needed a projector.
    if (options === '') process.exit(0);
    return JSON.parse(options) as ProcessOptions;
  }
  try {
    return optionsFromEnvironment();
  } catch (error) {
    process.stderr.write(`tidemark projector: ${explain(error)}\n`);
    process.exit(2);
  }
}

const options = await readOptions();
const settings = loadSettings({ cwd: options.cwd, flags: options.settings });
const log = createLogger(settings.SVC_LOG_LEVEL, 'projector');
const stopping = new AbortController();
// Loads end at once: PostgreSQL rolls them back when the connection ends, and a projector may be killed at any point. What was
// proved is given its index and signed.
for (const name of ['SIGTERM', 'SIGINT'] as const) {
  process.on(name, () => {
    stopping.abort();
    void Promise.race([sequenced, delay(LAST_ROUND_MS)]).finally(() => process.exit(0));
  });
}
// Only its parent stops the projector, so it ends with it. The options name the parent, which may have ended before this
// line.
if (options.parent !== undefined) {
  setInterval(() => {
    if (process.ppid !== options.parent) process.exit(0);
  }, 1000).unref();
}

const { databaseUrl, natsUrl } = options;
const datasets = options.datasets.map(datasetOf);
const { signal } = new AbortController();
const { columnsAfterDays: afterDays, columnsQuietMs: quietMs, compactEveryMs } = settings.limits;
const sequenced = keepSequenced({
  ...{ databaseUrl, settings, log, signal: stopping.signal },
  leavesAhead: leavesAheadAt(natsUrl),
});
await Promise.all([
  ...datasets.map((dataset) =>
    keepProjected(dataset, { projection: projectionOf(dataset), databaseUrl, natsUrl, settings, log, signal }),
  ),
  keepRecounted({ datasets, projectionOf, databaseUrl, log, signal }),
  sequenced,
  options.compacts && keepCompacted({ databaseUrl, datasets, afterDays, quietMs, log, signal }, compactEveryMs),
  keepChangesPublished({ databaseUrl, natsUrl, log, signal: stopping.signal }),
]);
