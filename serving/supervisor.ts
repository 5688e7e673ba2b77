/**
 * Several serving processes on one port (SVC_HTTP_PROCESSES): the primary process of `node:cluster` starts them, starts again
 * those that end, and gathers their metrics.
 *
 * It accepts the connections and hands them out in turn (Node's SCHED_RR), so that each process has as many and the port is
 * free as soon as the primary has ended. A process that stands still, or is killed while it is busy, takes the one connection
 * with it that it was being handed.
 */
import cluster, { type Worker } from 'node:cluster';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { AggregatorRegistry } from 'prom-client';
import type { Settings } from '../shared/config/settings.ts';
import type { Logger } from '../shared/logger.ts';
import { RestartPauses } from '../shared/stack/processes.ts';
import { listenOnFree, urlOf } from './http/port.ts';
import type { ProcessOptions } from './monitoring/startup.ts';

/** Limits of the whole service, of which each process takes a share. */
const DIVIDED = [
  'SVC_CHANGES_MAX_LISTENERS',
  'SVC_QUERY_MAX_CONCURRENCY',
  'SVC_QUERY_MAX_QUEUE',
  'SVC_ALIGNED_QUERY_MAX_CONCURRENCY',
  'SVC_ALIGNED_QUERY_MAX_QUEUE',
] as const;
const DIVIDED_LIMITS = ['connections', 'discoveryRunning', 'discoveryWaiting'] as const;

/** Longest time that a process takes to stop: it gives running answers ten seconds. */
const STOP_MS = 11_000;
/** A scrape waits this long for the metrics of all processes. */
const METRICS_MS = 1000;

/** A process asks the primary for the metrics of all. */
const METRICS_WANTED = 'metrics wanted';
interface MetricsFound {
  /** Undefined where a process does not answer. */
  readonly found: string | undefined;
}

interface Needs {
  readonly settings: Settings;
  /** As this process received them. They may hold secrets, so they go to the others on standard input as well. */
  readonly options: ProcessOptions;
  readonly log: Logger;
  /** Called when the first process listens. */
  readonly onListening: (url: string) => void;
}

/**
 * Runs the processes until `stopping` resolves and they have ended.
 * @throws TidemarkError CONFIGURATION_INVALID where another program has the port
 */
export async function supervise(needs: Needs, stopping: Promise<void>): Promise<void> {
  const { settings, onListening } = needs;
  const url = await freeAddress(settings);
  cluster.setupPrimary({
    exec: fileURLToPath(new URL('main.ts', import.meta.url)),
    args: ['--stdin'],
    stdio: ['pipe', 'inherit', 'inherit', 'ipc'],
    // JSON has no NaN, which is a value of some metrics.
    serialization: 'advanced',
  });
  const metrics = new AggregatorRegistry();
  cluster.on('message', async (worker: Worker, message: unknown) => {
    if (message !== METRICS_WANTED) return;
    const found = await metrics.clusterMetrics().catch(() => undefined);
    worker.process.send({ found } satisfies MetricsFound, () => {});
  });
  cluster.once('listening', () => onListening(url));
  const stop = new AbortController();
  const keeping = Array.from({ length: settings.SVC_HTTP_PROCESSES }, (_, index) =>
    keep({ ...needs, number: index + 1, port: Number(new URL(url).port), signal: stop.signal }),
  );
  await stopping;
  needs.log.info('stopping');
  stop.abort();
  await Promise.all(keeping);
}

interface Place extends Needs {
  readonly number: number;
  readonly port: number;
  /** Aborted when the processes are to end. */
  readonly signal: AbortSignal;
}

/** Keeps one process running. */
async function keep({ number, port, options, log, signal }: Place): Promise<void> {
  const order = JSON.stringify({
    ...{ ...options, parent: process.pid, number },
    settings: { ...options.settings, SVC_HTTP_PORT: String(port) },
  });
  const pauses = new RestartPauses();
  while (!signal.aborted) {
    const startedAt = performance.now();
    const worker = cluster.fork();
    const stop = () => end(worker);
    signal.addEventListener('abort', stop, { once: true });
    worker.process.stdin!.on('error', () => {}).end(order);
    // Rejects where the machine has no free process or memory for it.
    const [code, killedBy] = await once(worker, 'exit').catch((error) => [error.code, null]);
    signal.removeEventListener('abort', stop);
    const waitMs = pauses.next(performance.now() - startedAt);
    if (signal.aborted) return;
    log.warn({ child: `serving-${number}`, code, signal: killedBy, waitMs }, 'process ended, restarting it');
    await delay(waitMs, undefined, { signal }).catch(() => {});
  }
}

function end({ process: child }: Worker): void {
  child.kill('SIGTERM');
  setTimeout(() => child.kill('SIGKILL'), STOP_MS).unref();
}

/** The settings of one process: its share of each limit, rounded up. */
export function shareOf(settings: Settings): Settings {
  const share = (limit: number) => Math.ceil(limit / settings.SVC_HTTP_PROCESSES);
  return {
    ...settings,
    ...Object.fromEntries(DIVIDED.map((name) => [name, share(settings[name])])),
    limits: {
      ...settings.limits,
      ...Object.fromEntries(DIVIDED_LIMITS.map((name) => [name, share(settings.limits[name])])),
    },
  };
}

/** An address that is free in this moment. The port stays the same whatever happens to the processes. */
async function freeAddress({ SVC_HTTP_HOST: host, SVC_HTTP_PORT: port }: Settings): Promise<string> {
  const server = createServer();
  await listenOnFree(server, host, port);
  const url = urlOf(server);
  server.close();
  await once(server, 'close');
  return url;
}

let asking: Promise<string | undefined> | undefined;

/** In one of the processes: the metrics that all count for themselves, unless one does not answer in time. */
export function metricsOfAll(): Promise<string | undefined> {
  asking ??= new Promise((resolve) => {
    const finish = (found?: string) => {
      clearTimeout(timer);
      process.off('message', hear);
      asking = undefined;
      resolve(found);
    };
    const hear = (message: Partial<MetricsFound>) => {
      if ('found' in message) finish(message.found);
    };
    const timer = setTimeout(finish, METRICS_MS);
    process.on('message', hear);
    process.send!(METRICS_WANTED);
  });
  return asking;
}
