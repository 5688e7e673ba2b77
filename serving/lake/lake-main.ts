/**
 * The process that writes a lake: `./tidemark lake`, and with `SVC_LAKE_FOLDER` a process of `./tidemark up`. It takes its settings
 * like the HTTP service. It prints one line of JSON for each report: `progress`, `round` (with `follow`), at last `report` or `error`.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { explain, TidemarkError } from '../../shared/errors.ts';
import { createLogger } from '../../shared/logger.ts';
import { RightsStore } from '../../shared/rights/store.ts';
import { readProcessOptions, untilStopped, usableSettings } from '../monitoring/startup.ts';
import { freshnessRule } from '../read/execute/warnings.ts';
import { shadowedBy } from '../rights/gate.ts';
import { LakeFolder } from './folder.ts';
import { Lake, lakeFaultCode } from './lake.ts';

const PROGRESS_MS = 200;
/** A stop waits this long for the files in progress to be given up. */
const STOP_MS = 5000;

const print = (line: object) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function main(): Promise<void> {
  const { options, parent } = await readProcessOptions();
  const { settings, databaseUrl, rightsMatrixPath } = await usableSettings(options);
  const log = createLogger(settings.SVC_LOG_LEVEL, 'lake');
  const folder = settings.SVC_LAKE_FOLDER;
  if (folder === undefined) throw new TidemarkError('CONFIGURATION_INVALID', 'SVC_LAKE_FOLDER is not set');
  const stopping = new AbortController();
  void untilStopped(parent).then(async () => {
    stopping.abort(new Error('stopped'));
    await delay(STOP_MS, undefined, { ref: false });
    process.exit(0);
  });
  let printedAt = 0;
  await using lake = await Lake.open({
    settings,
    databaseUrl,
    // The same settings as the HTTP service: without the role, a matrix with BYOK Required would be invalid here.
    rights: new RightsStore(rightsMatrixPath, {
      byokRole: settings.SVC_BYOK_DATABASE_ROLE,
      log,
      shadowed: shadowedBy(settings),
    }),
    freshness: freshnessRule(settings),
    log,
    folder: await LakeFolder.open(folder),
    synthetic: options.synthetic ?? false,
    signal: stopping.signal,
    onProgress: (progress) => {
      const now = performance.now();
      if (now - printedAt < PROGRESS_MS) return;
      printedAt = now;
      print({ progress });
    },
  });
  try {
    if (options.follow) await lake.follow((round) => print({ round }));
    else await lake.write();
  } catch (error) {
    if (!stopping.signal.aborted) throw error;
  }
  print({ report: lake.report(), stopped: stopping.signal.aborted });
}

try {
  await main();
  process.exitCode = 0;
} catch (error) {
  const code = lakeFaultCode(error) ?? 'UNEXPECTED';
  const remedy = error instanceof TidemarkError ? error.remedy : undefined;
  print({ error: { code, message: explain(error), remedy } });
  process.exitCode = code === 'CONFIGURATION_INVALID' || code === 'USAGE' ? 2 : 1;
}
// A watch of the parent process keeps no other alive.
process.stdin.destroy();
