/**
 * The serving process. It reads its settings from the environment and `.env`; with `--stdin` a JSON object on standard input
 * takes precedence: `{"cwd", "settings": {name: text}, "sample_rights": true}`. A supervisor passes secrets that way, which
 * keeps them out of the environment and off the command line. The process prints one line when it answers requests.
 */
import { explain, TidemarkError } from '../shared/errors.ts';
import { createLogger } from '../shared/logger.ts';
import { createApp } from './app.ts';
import { PortHolders } from './http/port.ts';
import { readProcessOptions, untilStopped, usableSettings } from './monitoring/startup.ts';
import { listen } from './server.ts';

/** Time that running answers get to finish. */
const GRACE_MS = 10_000;

async function main(): Promise<void> {
  const { options, parent } = await readProcessOptions();
  const { settings, ...means } = await usableSettings(options);
  const log = createLogger(settings.SVC_LOG_LEVEL, 'serving');
  await using app = createApp({ settings, ...means, log });
  const server = await listen(app.koa, settings.SVC_HTTP_HOST, settings.SVC_HTTP_PORT, {
    maxConnections: settings.SVC_HTTP_MAX_CONNECTIONS,
    maxEventStreams: settings.SVC_CHANGES_MAX_LISTENERS,
    refusals: app.refusals,
    holders:
      parent === undefined ? undefined : new PortHolders({ stateDir: settings.SVC_STATE_DIR, supervisor: parent, log }),
  });
  const stopping = untilStopped(parent);
  // A fault here does not end the process: it serves what it can, and /readyz reports the rest.
  await app.checks.run();
  app.metrics.addProcessMetrics();
  app.monitor.start();
  if (settings.SVC_EXPORT_IN_PROCESS) app.exports.work();
  log.info({ url: server.url }, 'serving');
  process.stdout.write(`${JSON.stringify({ url: server.url, pid: process.pid })}\n`);
  await stopping;
  log.info('stopping');
  // Exports go back to the queue at once, so that a stop takes no longer than the running answers.
  await Promise.all([server.close(GRACE_MS), app.exports.stopWork()]);
}

try {
  await main();
} catch (error) {
  process.stderr.write(`tidemark serving: ${explain(error)}\n`);
  process.exitCode = error instanceof TidemarkError && error.code === 'CONFIGURATION_INVALID' ? 2 : 1;
}
