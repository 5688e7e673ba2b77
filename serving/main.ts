/**
 * The serving process. It reads its settings from the environment and `.env`; with `--stdin` a JSON object on standard input
 * takes precedence: `{"cwd", "settings": {name: text}, "sample_rights": true}`. A supervisor passes secrets that way, which
 * keeps them out of the environment and off the command line. The process prints one line when it answers requests. With
 * `SVC_HTTP_PROCESSES` above 1 it is the supervisor of as many processes of this module.
 */
import cluster from 'node:cluster';
import { explain, TidemarkError } from '../shared/errors.ts';
import { createLogger } from '../shared/logger.ts';
import { readProcessOptions, untilStopped, usableSettings } from './monitoring/startup.ts';

/** Time that running answers get to finish. */
const GRACE_MS = 10_000;

async function main(): Promise<void> {
  const { options, parent } = await readProcessOptions();
  const { settings: whole, ...means } = await usableSettings(options);
  const { number } = options;
  const log = createLogger(whole.SVC_LOG_LEVEL, number === undefined ? 'serving' : `serving-${number}`);
  const supervisor = whole.SVC_HTTP_PROCESSES > 1 ? await import('./supervisor.ts') : undefined;
  if (supervisor && cluster.isPrimary) {
    return await supervisor.supervise({ settings: whole, options, log, onListening: announce }, untilStopped(parent));
  }
  const settings = supervisor ? supervisor.shareOf(whole) : whole;
  // Not before: a supervisor needs neither, and would load them before the processes do.
  const [{ createApp }, { listen }, { SignIn }] = await Promise.all([
    import('./app.ts'),
    import('./server.ts'),
    import('./routes/sign-in.ts'),
  ]);
  const place = supervisor && { number: number!, metricsOfAll: supervisor.metricsOfAll };
  // Several processes would each know one of their own.
  const signIn = options.sign_in && !supervisor ? new SignIn(means.apiKey) : undefined;
  await using app = createApp({ settings, ...means, log, place, signIn });
  const server = await listen(app.koa, settings.SVC_HTTP_HOST, settings.SVC_HTTP_PORT, {
    maxConnections: settings.limits.connections,
    maxEventStreams: settings.SVC_CHANGES_MAX_LISTENERS,
    refusals: app.refusals,
  });
  const stopping = untilStopped(parent);
  app.metrics.addProcessMetrics();
  // A fault here does not end the process: it serves what it can, and /readyz reports the rest.
  await app.checks.run();
  app.monitor.start();
  // One process alone, so that as many exports run as the setting says.
  if (settings.SVC_EXPORT_IN_PROCESS && (number ?? 1) === 1) app.exports.work();
  log.info({ url: server.url }, 'serving');
  if (!supervisor) announce(server.url, signIn?.token);
  await stopping;
  log.info('stopping');
  // Exports go back to the queue at once, so that a stop takes no longer than the running answers.
  await Promise.all([server.close(GRACE_MS), app.exports.stopWork()]);
}

/** Of the token only the parent process hears, which shows it on a terminal. */
const announce = (url: string, token?: string): void => {
  process.stdout.write(`${JSON.stringify({ url, pid: process.pid, sign_in: token })}\n`);
};

try {
  await main();
} catch (error) {
  process.stderr.write(`tidemark serving: ${explain(error)}\n`);
  process.exitCode = error instanceof TidemarkError && error.code === 'CONFIGURATION_INVALID' ? 2 : 1;
}
// Not left to the end of the event loop: the connection with a supervisor keeps it alive, and after thousands of broken connections
// Node 24 waits forever for a socket that is closed, and keeps a core busy.
process.exit();
