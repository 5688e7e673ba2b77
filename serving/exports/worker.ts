/**
 * Takes exports from the queue and runs them. A message only says which; whether it may be run, and whether what was run
 * counts, is the database's word. A worker may be killed at any instant: its export is taken by another when it has shown
 * no sign of life for the lease.
 */

import { createHash, randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { basename } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import type { JsMsg } from '@nats-io/jetstream';
import { outageCode } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { openRegular } from '../../shared/regular-file.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import type { Json } from '../../shared/strict-json.ts';
import { parseExport } from '../contract/export.ts';
import { Problem, type ProblemCode, type Warning } from '../contract/problems.ts';
import { contractProblem } from '../http/request.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read/types.ts';
import { type Artifact, type ArtifactDeps, ArtifactFault, writeArtifact } from './artifact/write.ts';
import { type ExportDirectories, isExportId } from './files.ts';
import type { QueueConnection } from './queue-connection.ts';
import type { ExportRow, Progress, StoredArtifact, StoredFile } from './rows.ts';
import { exportAdmission, exportGrant, isFinished, requireGrantOf } from './states.ts';
import type { ExportStore, Outcome } from './store.ts';

/* What a fault of a run means for its export: try again, or failed, with a code and words for the caller. */

/** Codes of exports that failed while they ran; those of problems are among them. */
const RUN_CODES = ['EXPORT_RUN_FAILED', 'EXPORT_RUN_CANCELED'] as const;
export type RunCode = (typeof RUN_CODES)[number] | ProblemCode;

export type Verdict =
  | { readonly kind: 'retry'; readonly message: string }
  | { readonly kind: 'failed'; readonly code: RunCode; readonly message: string };

const failed = (code: RunCode, message: string): Verdict => ({ kind: 'failed', code, message });

const READ_VERDICTS: Readonly<Record<ReadFaultKind, (fault: ReadFault) => Verdict>> = {
  backend: () => ({ kind: 'retry', message: 'the database is away' }),
  runtime: () => failed('EXPORT_RUN_FAILED', 'What is stored is not as declared; the operator has to look at it.'),
  aligned_contract: (fault) => failed('ALIGNED_STORAGE_CONTRACT_VIOLATION', sentence(fault.message)),
  timeout: () => failed('EXPORT_RUN_FAILED', 'The database found no further row within its time; narrow the window.'),
  no_rows: (fault) => failed('EXPORT_WINDOW_NOT_PROVED', sentence(fault.message)),
  // An export never runs with credentials of a caller.
  credentials_refused: () => failed('EXPORT_RUN_FAILED', 'The run was refused by the database.'),
  credentials_unfit: () => failed('EXPORT_RUN_FAILED', 'The run was refused by the database.'),
};

export function verdictOf(error: unknown): Verdict {
  if (error instanceof ReadFault) return READ_VERDICTS[error.kind](error);
  if (error instanceof StrictRefusal) {
    return failed('STRICT_MODE_WARNING_FAILURE', error.warnings.map(({ message }) => message).join(' '));
  }
  if (error instanceof ArtifactFault) return failed('EXPORT_RUN_FAILED', sentence(error.message));
  if (error instanceof Problem) return failed(error.code, error.message);
  if (outageCode(error) !== undefined) return { kind: 'retry', message: 'a store is away' };
  return failed('EXPORT_RUN_FAILED', 'The run failed; the fault is logged under the export’s id.');
}

const sentence = (text: string) => `${text[0].toUpperCase()}${text.slice(1)}.`;

export interface WorkerOptions {
  readonly store: ExportStore;
  readonly queue: QueueConnection;
  readonly places: ExportDirectories;
  readonly concurrency: number;
  readonly leaseMs: number;
  readonly maxCrashes: number;
  readonly ttlSeconds: number;
  readonly log: Logger;
  /** @throws Problem, ReadFault, StrictRefusal, ArtifactFault, or the signal's reason. */
  readonly run: (row: ExportRow, run: RunCall) => Promise<Ran>;
}

/** What a run made. */
export interface Ran {
  readonly artifact: StoredArtifact;
  readonly warnings: readonly Warning[];
  readonly asOfUtc: string | null;
}

export interface RunCall {
  readonly directory: string;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
}

/** An empty queue is asked again this often; a job that comes is handed over at once. */
const PULL_MS = 5000;
/** Signs of life within one lease. */
const BEATS_A_LEASE = 3;
/** Faults that pass by themselves are given this many tries, with growing pauses. */
const MAX_RETRIES = 20;
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 30_000;
/** Pause before a store that is away is asked again. */
const AWAY_MS = 300;
/** A finished artifact waits this long for a database that is away before its export is given back. */
const STORE_PATIENCE_MS = 300_000;

class Stopping extends Error {}
/** Another worker has it, or nobody wants it any more. */
class Superseded extends Error {}

export class ExportWorker implements AsyncDisposable {
  /** Shown in the row it runs. */
  readonly name = `${hostname()}:${process.pid}:${randomBytes(3).toString('hex')}`;
  readonly #options: WorkerOptions;
  readonly #stopping = new AbortController();
  readonly #loops: Promise<void>[];
  readonly #running = new Set<string>();

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#loops = Array.from({ length: options.concurrency }, () => this.#loop());
  }

  async #loop(): Promise<void> {
    const { queue, log } = this.#options;
    const { signal } = this.#stopping;
    let isAway = false;
    while (!signal.aborted) {
      try {
        const connected = await queue.get();
        // The stream may have gone with its server's disk.
        if (isAway) await connected.ensure();
        const consumer = await connected.consumer();
        isAway = false;
        // Stopped while the queue was opened: the event is over, and the pull would wait for its whole time.
        signal.throwIfAborted();
        const message = await abortable(consumer.next({ expires: PULL_MS }), signal);
        if (message) await this.#handle(message);
      } catch (error) {
        if (signal.aborted) return;
        if (!isAway) log.warn({ err: error }, 'exports cannot be taken from their queue; trying further');
        isAway = true;
        await delay(AWAY_MS, undefined, { signal }).catch(() => {});
      }
    }
  }

  async #handle(message: JsMsg): Promise<void> {
    const { store, log, leaseMs } = this.#options;
    const exportId = message.string();
    let claimed: Outcome;
    try {
      if (!isExportId(exportId)) return message.ack();
      // A broker that was restarted hands out again what it has not heard of since.
      if (this.#running.has(exportId)) return message.nak(leaseMs);
      claimed = await store.claim(exportId, this.name);
    } catch (error) {
      log.warn({ err: error, exportId }, 'an export cannot be claimed; later');
      return message.nak(AWAY_MS);
    }
    // Its worker shows signs of life: should they end, the message comes again.
    if (claimed.kind === 'taken') return message.nak(leaseMs);
    // Finished already, or withdrawn.
    if (claimed.kind !== 'done') return message.ack();
    this.#running.add(exportId);
    try {
      await new Run(message, claimed.row, this.#options, this.#stopping.signal).go();
    } finally {
      this.#running.delete(exportId);
    }
  }

  /** Gives back what is running. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort(new Stopping());
    await Promise.all(this.#loops);
  }
}

/** One claim of one export. */
class Run {
  readonly #message: JsMsg;
  readonly #row: ExportRow;
  readonly #options: WorkerOptions;
  readonly #stopping: AbortSignal;
  readonly #superseded = new AbortController();
  #progress: Progress = { rows: 0, bytes: 0 };

  constructor(message: JsMsg, row: ExportRow, options: WorkerOptions, stopping: AbortSignal) {
    this.#message = message;
    this.#row = row;
    this.#options = options;
    this.#stopping = stopping;
  }

  async go(): Promise<void> {
    const { exportId, fence } = this.#row;
    const { log, leaseMs } = this.#options;
    const beats = setInterval(() => void this.#beat(), leaseMs / BEATS_A_LEASE);
    try {
      await this.#run();
    } catch (error) {
      // The database is away for good, or nearly: the message comes again.
      log.error({ err: error, exportId, fence }, 'what became of an export cannot be stored; it is given back');
      this.#message.nak(AWAY_MS);
    } finally {
      clearInterval(beats);
    }
  }

  async #run(): Promise<void> {
    const { exportId, fence, crashes } = this.#row;
    const { store, places, maxCrashes, ttlSeconds, log } = this.#options;
    if (crashes >= maxCrashes) {
      await this.#store(() =>
        store.fail(exportId, fence, 'EXPORT_RUN_FAILED', `The run was cut off ${crashes} times.`),
      );
      return this.#message.ack();
    }
    let ran: Ran;
    try {
      ran = await this.#options.run(this.#row, {
        directory: places.artifact(exportId, fence),
        signal: AbortSignal.any([this.#stopping, this.#superseded.signal]),
        onProgress: (progress) => {
          this.#progress = progress;
        },
      });
    } catch (error) {
      return await this.#end(error);
    }
    const { artifact, warnings, asOfUtc } = ran;
    const outcome = await this.#store(() =>
      store.succeed(exportId, fence, {
        artifact,
        warnings,
        asOfUtc,
        ttlSeconds,
      }),
    );
    if (!this.#counts(outcome)) return await this.#giveUp(outcome);
    log.info({ exportId, rows: artifact.row_count, bytes: artifact.bytes }, 'exported');
    this.#message.ack();
    // What earlier runs left behind; the sweep would find it too.
    await places.removeUnneeded(exportId, { state: 'succeeded', fence, kept: fence }).catch(() => {});
  }

  /** The answer to an update may have been lost: then it is refused when it is repeated. */
  #counts(outcome: Outcome): boolean {
    if (outcome.kind === 'done') return true;
    return outcome.kind === 'refused' && outcome.row.artifactFence === this.#row.fence;
  }

  async #end(error: unknown): Promise<void> {
    const { exportId, fence, retries } = this.#row;
    const { store, places, log } = this.#options;
    await places.removeRun(exportId, fence).catch(() => {});
    if (this.#superseded.signal.aborted) return await this.#giveUp();
    if (this.#stopping.aborted) {
      log.info({ exportId }, 'an export is given back: the worker stops');
      await store.release(exportId, fence, false);
      return this.#message.nak();
    }
    const verdict = verdictOf(error);
    if (verdict.kind === 'retry' && retries < MAX_RETRIES) {
      const waitMs = Math.min(FIRST_RETRY_MS * 2 ** retries, MAX_RETRY_MS);
      log.warn({ err: error, exportId, waitMs }, `an export is tried again: ${verdict.message}`);
      await this.#store(() => store.release(exportId, fence, true));
      return this.#message.nak(waitMs);
    }
    const { code, message } =
      verdict.kind === 'failed'
        ? verdict
        : { code: 'EXPORT_RUN_FAILED', message: `The run failed: ${verdict.message}.` };
    log.warn({ err: error, exportId, code }, 'an export failed');
    await this.#store(() => store.fail(exportId, fence, code, message));
    this.#message.ack();
  }

  /** It is another's now, whose delivery of the message is not ours to end; or it is over. */
  async #giveUp(outcome?: Outcome): Promise<void> {
    const { exportId, fence } = this.#row;
    await this.#options.places.removeRun(exportId, fence).catch(() => {});
    const row = outcome && 'row' in outcome ? outcome.row : await this.#options.store.find(exportId);
    if (!row || isFinished(row.state)) this.#message.ack();
  }

  /** Through an outage of the database: what was run is not thrown away for it. */
  async #store(work: () => Promise<Outcome>): Promise<Outcome> {
    const deadline = performance.now() + STORE_PATIENCE_MS;
    for (;;) {
      try {
        return await work();
      } catch (error) {
        if (performance.now() > deadline || this.#stopping.aborted) throw error;
        await delay(AWAY_MS, undefined, { signal: this.#stopping }).catch(() => {});
      }
    }
  }

  async #beat(): Promise<void> {
    const { exportId, fence } = this.#row;
    // Without it the message would be given to another worker.
    this.#message.working();
    try {
      if (await this.#options.store.beat(exportId, fence, this.#progress)) return;
      this.#superseded.abort(new Superseded());
    } catch {
      // The database is away: whether the run still counts is said when it ends.
    }
  }
}

/** A pull that is not over when the worker stops is left to itself: the connection is closed after it. */
async function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  work.catch(() => {});
  const { promise, reject } = Promise.withResolvers<never>();
  const onAbort = () => reject(signal.reason);
  signal.addEventListener('abort', onAbort);
  try {
    return await Promise.race([work, promise]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}

/* Runs one export: its request is read again, its rights are asked again, its rows are what is proved now. */

export interface RunDeps extends ArtifactDeps {
  readonly rights: RightsStore;
}

export function exportRunner(deps: RunDeps): WorkerOptions['run'] {
  return async (row, { directory, signal, onProgress }) => {
    // What was a right request when it was accepted may name a field that an upgrade took away.
    const parsed = parseExport(row.request as unknown as Json);
    if ('faults' in parsed) throw contractProblem(parsed.faults, 'EXPORT_CONTRACT_ERROR');
    const { read, format, datasetKey } = parsed.value;
    const grant = exportGrant(deps.rights, datasetKey);
    const admit = exportAdmission(grant, read.dataset);
    const run = { export_id: row.exportId };
    const artifact = await writeArtifact(deps, { request: read, admit, format, directory, run, signal, onProgress });
    // What an attempt that was killed had written is taken as it is, without a read.
    requireGrantOf(grant, datasetKey, artifact.manifest);
    const { warnings, as_of_utc: asOfUtc } = artifact.manifest;
    return { artifact: await storedOf(artifact), warnings, asOfUtc };
  };
}

async function storedOf({ manifest, manifestPath, files }: Artifact): Promise<StoredArtifact> {
  const { row_count, bytes, sha256, media_type, split, synthetic } = manifest;
  return {
    row_count,
    bytes,
    sha256,
    media_type,
    split,
    synthetic,
    files: files.map(({ path: _, modifiedMs, ...file }) => ({ ...file, modified_ms: modifiedMs })),
    manifest: await manifestFile(manifestPath, row_count),
  };
}

async function manifestFile(path: string, rows: number): Promise<StoredFile> {
  await using file = await openRegular(path);
  const bytes = await file.readFile();
  return {
    name: basename(path),
    day: null,
    row_count: rows,
    bytes: bytes.length,
    sha256: createHash('sha256').update(bytes).digest('hex'),
    modified_ms: (await file.stat()).mtimeMs,
  };
}
