/**
 * The serving process. Settings come from the environment and `.env`; with `--stdin` a JSON object on standard input
 * comes first: `{"cwd", "settings": {name: text}, "sample_rights": true}`, which keeps what a supervisor passes on out
 * of the environment and off the command line. One line goes to standard output, when requests are answered.
 */
import { explain, TidemarkError } from '../shared/errors.ts';
import { createLogger } from '../shared/logger.ts';
import { createApp } from './app.ts';
import { readProcessOptions, untilStopped, usable } from './monitoring/startup.ts';
import { listen } from './server.ts';

/** Running answers get this long to end. */
const GRACE_MS = 10_000;

async function main(): Promise<void> {
  const { order, parent } = await readProcessOptions();
  const { settings, ...means } = await usable(order);
  const log = createLogger(settings.SVC_LOG_LEVEL, 'serving');
  await using app = createApp({ settings, ...means, log });
  const server = await listen(app.koa, settings.SVC_HTTP_HOST, settings.SVC_HTTP_PORT, {
    maxConnections: settings.SVC_HTTP_MAX_CONNECTIONS,
    refusals: app.refusals,
  });
  const stopping = untilStopped(parent);
  // A fault here does not end the process: what can be served is served, and /readyz says what cannot.
  await app.checks.run();
  app.metrics.addProcessMetrics();
  app.monitor.start();
  if (settings.SVC_EXPORT_IN_PROCESS) app.exports.work();
  log.info({ url: server.url }, 'serving');
  process.stdout.write(`${JSON.stringify({ url: server.url, pid: process.pid })}\n`);
  await stopping;
  log.info('stopping');
  // Exports are given back at once: whoever stops us does not wait for longer than answers take.
  await Promise.all([server.close(GRACE_MS), app.exports.rest()]);
}

try {
  await main();
} catch (error) {
  process.stderr.write(`tidemark serving: ${explain(error)}\n`);
  process.exitCode = error instanceof TidemarkError && error.code === 'CONFIGURATION_INVALID' ? 2 : 1;
}
