/**
 * One of several serving processes on a port (SVC_HTTP_PROCESSES): its share of the limits, and what it exchanges through the
 * supervisor with the others, its siblings.
 */
import type { Socket } from 'node:net';
import type { Settings } from '../shared/config/settings.ts';
import type { ProcessMetrics } from './monitoring/metrics.ts';
import type { ProcessOptions } from './monitoring/startup.ts';

/** Which process of how many. */
interface Place {
  readonly number: number;
  readonly of: number;
}

/** From the supervisor to a process. */
export type ToProcess =
  | (Place & { readonly kind: 'start'; readonly options: ProcessOptions })
  | { readonly kind: 'port'; readonly port: number }
  /** The open connections of a sibling. */
  | { readonly kind: 'connections'; readonly of: number; readonly open: number }
  /** A sibling asks for the metrics of this process. */
  | { readonly kind: 'metrics_wanted'; readonly id: number; readonly by: number }
  /** The metrics of a sibling; none where it does not run. */
  | { readonly kind: 'metrics'; readonly id: number; readonly metrics: ProcessMetrics | undefined };

/** From a process to the supervisor. */
export type FromProcess =
  | { readonly kind: 'port_wanted' }
  | { readonly kind: 'serving'; readonly url: string }
  | { readonly kind: 'connections'; readonly open: number }
  | { readonly kind: 'metrics_wanted'; readonly id: number }
  | { readonly kind: 'metrics'; readonly id: number; readonly to: number; readonly metrics: ProcessMetrics | undefined }
  | { readonly kind: 'stopping' };

/** Messages that another process has not taken yet; beyond them a process that stands still would fill the memory of this one. */
const MAX_UNSENT = 64;

/** Sends messages to a process that may stand still. */
export class Outbox<M> {
  readonly #send: (message: M, sent: () => void) => void;
  #unsent = 0;

  constructor(send: (message: M, sent: () => void) => void) {
    this.#send = send;
  }

  /** @returns false where the message is dropped, because the process takes none. */
  send(message: M): boolean {
    if (this.#unsent >= MAX_UNSENT) return false;
    this.#unsent++;
    this.#send(message, () => {
      this.#unsent--;
    });
    return true;
  }
}

/** Limits of the whole service, of which each process takes a share. */
const DIVIDED = [
  'SVC_CHANGES_MAX_LISTENERS',
  'SVC_QUERY_MAX_CONCURRENCY',
  'SVC_QUERY_MAX_QUEUE',
  'SVC_ALIGNED_QUERY_MAX_CONCURRENCY',
  'SVC_ALIGNED_QUERY_MAX_QUEUE',
] as const;
const DIVIDED_LIMITS = ['connections', 'discoveryRunning', 'discoveryWaiting'] as const;

/** The settings of one process. The shares add up to the limit, except where it is smaller than the number of processes. */
export function shareOf(settings: Settings, { number, of }: Place): Settings {
  const share = (limit: number) =>
    limit === 0 ? 0 : Math.max(1, Math.floor(limit / of) + (number <= limit % of ? 1 : 0));
  const limits = DIVIDED_LIMITS.map((name) => [name, share(settings.limits[name])]);
  return {
    ...settings,
    ...Object.fromEntries(DIVIDED.map((name) => [name, share(settings[name])])),
    limits: { ...settings.limits, ...Object.fromEntries(limits) },
  };
}

/** The siblings learn of this many connections so often, and of changes at once, but for those within this time. */
const REPORT_MS = 1000;
const GATHER_MS = 10;
/** A sibling that reports nothing for this long stands still: it takes no connections. */
const SILENT_MS = 2 * REPORT_MS;
/**
 * The kernel gives a connection to any process that waits for one, and the one that is awake takes the next one too: of eight
 * that a client opened at once, two processes had 8 and 0 in two of eight tries. So a process that is two ahead of a sibling
 * stands back for a moment, and the sibling wakes and takes the next: then each had four in eight of eight. Of 64 they had 32
 * and 32 in five of eight, without it 60 and 4 at the worst and in none the same.
 */
const STAND_BACK_MS = 1;
const AHEAD = 2;
/** A scrape waits this long for the metrics of siblings. */
const METRICS_MS = 1000;

const CELL = new Int32Array(new SharedArrayBuffer(4));

export class Siblings implements Place {
  readonly number: number;
  readonly of: number;
  readonly options: ProcessOptions;
  readonly #outbox: Outbox<FromProcess>;
  readonly #port = Promise.withResolvers<number>();
  /** What each sibling reported last. */
  readonly #connections = new Map<number, { readonly open: number; readonly at: number }>();
  #open = 0;
  #report: NodeJS.Timeout | undefined;
  /** Questions for metrics that are not answered by all siblings yet. */
  readonly #questions = new Map<number, (metrics: ProcessMetrics | undefined) => void>();
  #asked = 0;
  #metrics: (() => Promise<ProcessMetrics>) | undefined;

  /** Waits for the supervisor's first message. */
  static join(): Promise<Siblings> {
    return new Promise((resolve) => {
      process.once('message', (message: ToProcess) => {
        if (message.kind !== 'start') throw new Error(`the first message is ${message.kind}`);
        resolve(new Siblings(message));
      });
    });
  }

  private constructor({ number, of, options }: Extract<ToProcess, { kind: 'start' }>) {
    this.number = number;
    this.of = of;
    this.options = options;
    // A supervisor that is gone ends this process: nobody asks for what could not be sent.
    this.#outbox = new Outbox((message, sent) => process.send!(message, sent));
    process.on('message', (message: ToProcess) => this.#hear(message));
    setInterval(() => this.#reportNow(), REPORT_MS).unref();
  }

  /** The port that the processes share. */
  port(): Promise<number> {
    this.#outbox.send({ kind: 'port_wanted' });
    return this.#port.promise;
  }

  serving(url: string): void {
    this.#outbox.send({ kind: 'serving', url });
  }

  /** Answers siblings that ask for metrics. */
  show(metrics: () => Promise<ProcessMetrics>): void {
    this.#metrics = metrics;
  }

  stopping(): void {
    this.#outbox.send({ kind: 'stopping' });
  }

  /** Call it for each new connection. */
  connected(socket: Socket): void {
    this.#open++;
    this.#reportSoon();
    socket.once('close', () => {
      this.#open--;
      this.#reportSoon();
    });
    const now = performance.now();
    const isBehind = ({ open, at }: { open: number; at: number }) => this.#open >= open + AHEAD && now - at < SILENT_MS;
    // Node has no way to accept later; nothing else of this process runs meanwhile.
    if ([...this.#connections.values()].some(isBehind)) Atomics.wait(CELL, 0, 0, STAND_BACK_MS);
  }

  /** The metrics of those siblings that answer in time. */
  others(): Promise<readonly ProcessMetrics[]> {
    const id = ++this.#asked;
    return new Promise((resolve) => {
      const found: ProcessMetrics[] = [];
      let missing = this.of - 1;
      const finish = () => {
        clearTimeout(timer);
        this.#questions.delete(id);
        resolve(found);
      };
      const timer = setTimeout(finish, METRICS_MS);
      this.#questions.set(id, (metrics) => {
        if (metrics) found.push(metrics);
        if (--missing === 0) finish();
      });
      this.#outbox.send({ kind: 'metrics_wanted', id });
    });
  }

  #hear(message: ToProcess): void {
    if (message.kind === 'port') this.#port.resolve(message.port);
    else if (message.kind === 'connections') {
      this.#connections.set(message.of, { open: message.open, at: performance.now() });
    } else if (message.kind === 'metrics') this.#questions.get(message.id)?.(message.metrics);
    else if (message.kind === 'metrics_wanted') void this.#answer(message.id, message.by);
  }

  async #answer(id: number, to: number): Promise<void> {
    // A process that has just started has none yet.
    const metrics = await this.#metrics?.().catch(() => undefined);
    this.#outbox.send({ kind: 'metrics', id, to, metrics });
  }

  #reportSoon(): void {
    this.#report ??= setTimeout(() => this.#reportNow(), GATHER_MS).unref();
  }

  #reportNow(): void {
    clearTimeout(this.#report);
    this.#report = undefined;
    this.#outbox.send({ kind: 'connections', open: this.#open });
  }
}
