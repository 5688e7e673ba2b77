/**
 * Starts several serving processes on one port (SVC_HTTP_PROCESSES), restarts those that end, and passes on what they say to
 * each other.
 *
 * They share the listening socket, and each accepts from it by itself (SCHED_NONE). Node's round robin, in which the primary
 * process accepts and hands connections out, spreads them evenly, but one of 40 connections hung behind a stopped process,
 * and one that was handed to a busy process hung for ever when that process was killed: Node forgets it. With the shared
 * socket none did: the kernel keeps a connection until a process that runs takes it, 94 of 100 beside a busy one took the
 * other (round robin: 50), and a stopped supervisor keeps nobody waiting. `Siblings` evens the connections out.
 */
import cluster, { type Worker } from 'node:cluster';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Settings } from '../shared/config/settings.ts';
import { explain } from '../shared/errors.ts';
import type { Logger } from '../shared/logger.ts';
import { RestartPauses } from '../shared/stack/processes.ts';
import { listenOnFree, type PortHolders } from './http/port.ts';
import type { ProcessOptions } from './monitoring/startup.ts';
import { type FromProcess, Outbox, type ToProcess } from './siblings.ts';

interface Needs {
  readonly settings: Settings;
  /** As this process received them: they may hold secrets, so they go neither through the environment nor a command line. */
  readonly options: ProcessOptions;
  /** The process that restarts this one. */
  readonly parent: number | undefined;
  readonly holders: PortHolders;
  readonly log: Logger;
}

interface Process {
  readonly number: number;
  readonly worker: Worker;
  readonly outbox: Outbox<ToProcess>;
  readonly ended: Promise<[code: number | null, signal: string | null]>;
  /** Whether it was given the port, and so may hold the socket. */
  hasPort: boolean;
  isStopping: boolean;
}

/** The port stays closed for at most this long after the first process could serve, until all others can. */
const GATHER_MS = 10_000;
/** A process that does not begin to stop within this time stands still, and is killed. */
const STANDSTILL_MS = 5000;
/** Longest time that a process takes to stop: it gives running answers ten seconds. */
const STOP_MS = 11_000;

export class Supervisor implements AsyncDisposable {
  readonly #needs: Needs;
  readonly #running = new Map<number, Process>();
  readonly #keeping: Promise<void>[] = [];
  readonly #stop = new AbortController();
  readonly #url = Promise.withResolvers<string>();
  /** The processes that have started well enough to ask for the port. */
  readonly #ready = new Set<number>();
  readonly #gathered = Promise.withResolvers<void>();
  /** The port that all processes are given. */
  #port: Promise<number> | undefined;
  /** The same, once it was found. */
  #found: number | undefined;
  #recording = Promise.resolve();

  constructor(needs: Needs) {
    this.#needs = needs;
    this.#url.promise.catch(() => {}); // awaited in `start`
  }

  /**
   * Resolves when the first process serves.
   * @throws TidemarkError CONFIGURATION_INVALID where another program has the port
   */
  async start(): Promise<string> {
    cluster.schedulingPolicy = cluster.SCHED_NONE;
    cluster.setupPrimary({
      exec: fileURLToPath(new URL('main.ts', import.meta.url)),
      args: [],
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      // JSON has no NaN, which is a value of some metrics.
      serialization: 'advanced',
    });
    for (let number = 1; number <= this.#needs.settings.SVC_HTTP_PROCESSES; number++) {
      this.#keeping.push(this.#keep(number));
    }
    return await this.#url.promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await Promise.all([...this.#running.values()].map((started) => this.#end(started)));
    await Promise.all(this.#keeping);
    await this.#recording;
  }

  async #keep(number: number): Promise<void> {
    const pauses = new RestartPauses();
    while (!this.#stop.signal.aborted) {
      const startedAt = performance.now();
      const started = this.#fork(number);
      this.#running.set(number, started);
      void this.#record();
      const [code, signal] = await started.ended;
      this.#running.delete(number);
      if (this.#stop.signal.aborted) return;
      const waitMs = pauses.next(performance.now() - startedAt);
      this.#needs.log.warn({ child: `serving-${number}`, code, signal, waitMs }, 'process ended, restarting it');
      await delay(waitMs, undefined, { signal: this.#stop.signal }).catch(() => {});
    }
  }

  #fork(number: number): Process {
    const worker = cluster.fork();
    const started: Process = {
      number,
      worker,
      outbox: new Outbox((message, sent) => worker.process.send(message, sent)),
      ended: once(worker, 'exit').catch((error) => [error.code, null]) as Process['ended'],
      hasPort: false,
      isStopping: false,
    };
    worker.on('message', (message: FromProcess) => this.#hear(started, message));
    const { settings, options } = this.#needs;
    started.outbox.send({ kind: 'start', number, of: settings.SVC_HTTP_PROCESSES, options });
    return started;
  }

  #hear(from: Process, message: FromProcess): void {
    const { number } = from;
    switch (message.kind) {
      case 'port_wanted':
        void this.#givePort(from);
        break;
      case 'serving':
        this.#url.resolve(message.url);
        break;
      case 'connections':
        for (const other of this.#others(from)) {
          other.outbox.send({ kind: 'connections', of: number, open: message.open });
        }
        break;
      case 'metrics_wanted':
        this.#askForMetrics(from, message.id);
        break;
      case 'metrics':
        this.#running.get(message.to)?.outbox.send({ kind: 'metrics', id: message.id, metrics: message.metrics });
        break;
      case 'stopping':
        from.isStopping = true;
        break;
    }
  }

  #others = (than: Process): Process[] => [...this.#running.values()].filter((other) => other !== than);

  /** A process that does not run, or takes no messages, has no metrics. */
  #askForMetrics(by: Process, id: number): void {
    for (let number = 1; number <= this.#needs.settings.SVC_HTTP_PROCESSES; number++) {
      if (number === by.number) continue;
      const isAsked = this.#running.get(number)?.outbox.send({ kind: 'metrics_wanted', id, by: by.number });
      if (!isAsked) by.outbox.send({ kind: 'metrics', id, metrics: undefined });
    }
  }

  /**
   * All processes are given the port together: clients that wait for the service connect as soon as it opens, and would stay
   * with the first.
   */
  async #givePort(to: Process): Promise<void> {
    this.#ready.add(to.number);
    if (this.#ready.size === this.#needs.settings.SVC_HTTP_PROCESSES) this.#gathered.resolve();
    await Promise.race([this.#gathered.promise, delay(GATHER_MS, undefined, { ref: false })]);
    if (this.#running.get(to.number) !== to) return;
    const isHeld = [...this.#running.values()].some(({ hasPort }) => hasPort);
    to.hasPort = true;
    if (!isHeld || !this.#port) this.#port = this.#freePort();
    try {
      this.#found = await this.#port;
      // On record before it listens, so that a later start finds it even if it hangs right afterwards.
      await this.#record();
      if (this.#running.get(to.number) !== to) return;
      to.outbox.send({ kind: 'port', port: this.#found });
    } catch (error) {
      this.#url.reject(error);
      this.#needs.log.error({ fault: explain(error) }, 'no process serves');
      to.worker.process.kill('SIGKILL');
    }
  }

  /**
   * A port that is free in this moment: the same as before, when all processes had ended. A process that could not bind it
   * cannot try another, because Node keeps the socket of the failure and would give it to the next process too.
   */
  async #freePort(): Promise<number> {
    const { settings, holders } = this.#needs;
    const server = createServer();
    const port = this.#found ?? settings.SVC_HTTP_PORT;
    await listenOnFree(server, settings.SVC_HTTP_HOST, port, settings.SVC_HTTP_PORT === 0 ? undefined : holders);
    const { port: free } = server.address() as AddressInfo;
    server.close();
    await once(server, 'close');
    return free;
  }

  /** Records every process that may hold the port, this one included. */
  async #record(): Promise<void> {
    const { settings, parent, holders } = this.#needs;
    const port = this.#found;
    // After 0, any free port, nobody wants that one again.
    if (port === undefined || settings.SVC_HTTP_PORT === 0) return;
    const pids = [...this.#running.values()].flatMap(({ worker }) => worker.process.pid ?? []);
    const supervised = pids.map((pid) => ({ pid, supervisor: process.pid }));
    this.#recording = holders.record(port, [{ pid: process.pid, supervisor: parent }, ...supervised]);
    await this.#recording;
  }

  async #end(started: Process): Promise<void> {
    const { process: child } = started.worker;
    child.kill('SIGTERM');
    const standstill = setTimeout(() => !started.isStopping && child.kill('SIGKILL'), STANDSTILL_MS);
    const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
    await started.ended;
    clearTimeout(standstill);
    clearTimeout(late);
  }
}
