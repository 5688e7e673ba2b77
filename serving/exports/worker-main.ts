/**
 * The process of an export worker: `./tidemark up --only exports`. It takes its settings like the HTTP service. It prints one line
 * when it takes exports.
 */
import { explain, TidemarkError } from '../../shared/errors.ts';
import { createLogger } from '../../shared/logger.ts';
import { RightsStore } from '../../shared/rights/store.ts';
import { readProcessOptions, untilStopped, usableSettings } from '../monitoring/startup.ts';
import { freshnessRule } from '../read/execute/warnings.ts';
import { shadowedBy } from '../rights/gate.ts';
import { ExportService } from './service.ts';

async function main(): Promise<void> {
  const { options, parent } = await readProcessOptions();
  const { settings, databaseUrl, rightsMatrixPath } = await usableSettings(options);
  const log = createLogger(settings.SVC_LOG_LEVEL, 'export-worker');
  // The same settings as the HTTP service: without the role, a matrix with BYOK Required would be invalid here.
  const byokRole = settings.SVC_BYOK_DATABASE_ROLE;
  const rights = new RightsStore(rightsMatrixPath, { byokRole, log, shadowed: shadowedBy(settings) });
  const freshness = freshnessRule(settings);
  await using exports = new ExportService({ settings, databaseUrl, rights, freshness, log, role: 'worker' });
  const stopping = untilStopped(parent);
  exports.work();
  log.info('taking exports');
  process.stdout.write(`${JSON.stringify({ pid: process.pid })}\n`);
  await stopping;
  log.info('stopping');
}

try {
  await main();
} catch (error) {
  process.stderr.write(`tidemark export-worker: ${explain(error)}\n`);
  process.exitCode = error instanceof TidemarkError && error.code === 'CONFIGURATION_INVALID' ? 2 : 1;
}
// Not left to the end of the event loop: an attempt to connect that is given up keeps it alive for seconds.
process.exit();
