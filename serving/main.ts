/**
 * The serving process. It reads its settings from the environment and `.env`; with `--stdin` a JSON object on standard input
 * takes precedence: `{"cwd", "settings": {name: text}, "sample_rights": true}`. A supervisor passes secrets that way, which
 * keeps them out of the environment and off the command line. The process prints one line when it answers requests. With
 * `SVC_HTTP_PROCESSES` above 1 it is the supervisor of as many processes of this module.
 */
import cluster from 'node:cluster';
import type { Settings } from '../shared/config/settings.ts';
import { explain, TidemarkError } from '../shared/errors.ts';
import { createLogger, type Logger } from '../shared/logger.ts';
import { PortHolders } from './http/port.ts';
import { readProcessOptions, untilStopped, usableSettings } from './monitoring/startup.ts';
import type { ConnectionLimits } from './server.ts';
import { Siblings, shareOf } from './siblings.ts';
import { Supervisor } from './supervisor.ts';

/** Time that running answers get to finish. */
const GRACE_MS = 10_000;

async function main(): Promise<void> {
  const { options, parent } = await readProcessOptions();
  const { settings, ...means } = await usableSettings(options);
  const log = createLogger(settings.SVC_LOG_LEVEL, 'serving');
  const holders = new PortHolders({ stateDir: settings.SVC_STATE_DIR, supervisor: parent, log });
  if (settings.SVC_HTTP_PROCESSES > 1) {
    const stopping = untilStopped(parent);
    await using supervisor = new Supervisor({ settings, options, parent, holders, log });
    const url = await Promise.race([supervisor.start(), stopping]);
    if (url) announce(url);
    await stopping;
    log.info('stopping');
    return;
  }
  await serve({
    ...{ settings, means, log },
    port: settings.SVC_HTTP_PORT,
    until: () => untilStopped(parent),
    limits: { holders: parent === undefined ? undefined : holders },
    async onListening(url) {
      const port = Number(new URL(url).port);
      if (parent !== undefined && settings.SVC_HTTP_PORT !== 0) {
        await holders.record(port, [{ pid: process.pid, supervisor: parent }]);
      }
    },
    onServing: announce,
  });
}

/** One of several processes, which the supervisor started. */
async function serveWithSiblings(): Promise<void> {
  const siblings = await Siblings.join();
  const { settings: whole, ...means } = await usableSettings(siblings.options);
  const settings = shareOf(whole, siblings);
  const log = createLogger(settings.SVC_LOG_LEVEL, `serving-${siblings.number}`);
  await serve({
    ...{ settings, means, log, siblings },
    port: await siblings.port(),
    until: () => untilStopped(undefined).then(() => siblings.stopping()),
    limits: { onConnection: (socket) => siblings.connected(socket) },
    onServing: (url) => siblings.serving(url),
  });
}

const announce = (url: string): void => {
  process.stdout.write(`${JSON.stringify({ url, pid: process.pid })}\n`);
};

interface Serving {
  readonly settings: Settings;
  readonly means: Omit<Awaited<ReturnType<typeof usableSettings>>, 'settings'>;
  readonly log: Logger;
  readonly port: number | undefined;
  readonly limits: ConnectionLimits;
  readonly siblings?: Siblings;
  readonly until: () => Promise<void>;
  readonly onListening?: (url: string) => Promise<void>;
  readonly onServing: (url: string) => void;
}

async function serve({ settings, means, log, port, siblings, limits, ...on }: Serving): Promise<void> {
  // Not before: a supervisor needs neither, and would load them before the processes do.
  const [{ createApp }, { listen }] = await Promise.all([import('./app.ts'), import('./server.ts')]);
  await using app = createApp({ settings, ...means, log, siblings });
  const server = await listen(app.koa, settings.SVC_HTTP_HOST, port, {
    maxConnections: settings.limits.connections,
    maxEventStreams: settings.SVC_CHANGES_MAX_LISTENERS,
    refusals: app.refusals,
    ...limits,
  });
  await on.onListening?.(server.url);
  const stopping = on.until();
  // A fault here does not end the process: it serves what it can, and /readyz reports the rest.
  await app.checks.run();
  app.metrics.addProcessMetrics();
  siblings?.show(() => app.metrics.ofProcess());
  app.monitor.start();
  // One process alone, so that as many exports run as the setting says.
  if (settings.SVC_EXPORT_IN_PROCESS && (!siblings || siblings.number === 1)) app.exports.work();
  log.info({ url: server.url }, 'serving');
  on.onServing(server.url);
  await stopping;
  log.info('stopping');
  // Exports go back to the queue at once, so that a stop takes no longer than the running answers.
  await Promise.all([server.close(GRACE_MS), app.exports.stopWork()]);
}

try {
  await (cluster.isWorker ? serveWithSiblings() : main());
} catch (error) {
  process.stderr.write(`tidemark serving: ${explain(error)}\n`);
  process.exitCode = error instanceof TidemarkError && error.code === 'CONFIGURATION_INVALID' ? 2 : 1;
}
// Not left to the end of the event loop: the connection with a supervisor keeps it alive, and after thousands of broken connections
// Node 24 waits forever for a socket that is closed, and keeps a core busy.
process.exit();
