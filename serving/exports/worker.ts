/**
 * Takes exports from the queue and runs them. A message only names an export; the database decides whether the export may run
 * and whether a run counts. A worker may be killed at any instant: after a lease without a heartbeat another worker takes its
 * export.
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
import { parseExport } from '../contract/export.ts';
import { Problem, type ProblemCode, type Warning } from '../contract/problems.ts';
import { contractProblem } from '../http/request.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read/read-model.ts';
import { type Artifact, type ArtifactDeps, ArtifactFault, writeArtifact } from './artifact/write.ts';
import { type ExportDirectories, isExportId } from './files.ts';
import type { QueueConnection } from './queue-connection.ts';
import type { ExportRow, Progress, StoredArtifact, StoredFile } from './rows.ts';
import { exportRights, isFinished, requireGrants } from './states.ts';
import type { ExportOutcome, ExportStore } from './store.ts';

/** Codes of exports that failed while they ran, besides the codes of problems. */
const RUN_CODES = ['EXPORT_RUN_FAILED', 'EXPORT_RUN_CANCELED'] as const;
type RunCode = (typeof RUN_CODES)[number] | ProblemCode;

/** The consequence of a run's fault: another try, or a failure with a code and a message for the caller. */
export type Verdict =
  | { readonly kind: 'retry'; readonly message: string }
  | { readonly kind: 'failed'; readonly code: RunCode; readonly message: string };

const failed = (code: RunCode, message: string): Verdict => ({ kind: 'failed', code, message });

const READ_VERDICTS: Readonly<Record<ReadFaultKind, (fault: ReadFault) => Verdict>> = {
  backend: () => ({ kind: 'retry', message: 'the database is unavailable' }),
  runtime: () =>
    failed('EXPORT_RUN_FAILED', 'Stored data differs from its declaration. The operator has to repair it.'),
  aligned_contract: (fault) => failed('ALIGNED_STORAGE_CONTRACT_VIOLATION', sentence(fault.message)),
  timeout: () => failed('EXPORT_RUN_FAILED', 'The database found no further row in time. Narrow the window.'),
  no_rows: (fault) => failed('EXPORT_WINDOW_NOT_PROVED', sentence(fault.message)),
  // An export never runs with a caller's credentials.
  credentials_refused: () =>
    failed('EXPORT_RUN_FAILED', 'The database refused the run. The operator has to check its credentials.'),
  credentials_unfit: () =>
    failed('EXPORT_RUN_FAILED', 'The database refused the run. The operator has to check its credentials.'),
};

export function verdictOf(error: unknown): Verdict {
  if (error instanceof ReadFault) return READ_VERDICTS[error.kind](error);
  if (error instanceof StrictRefusal) {
    return failed('STRICT_MODE_WARNING_FAILURE', error.warnings.map(({ message }) => message).join(' '));
  }
  if (error instanceof ArtifactFault) return failed('EXPORT_RUN_FAILED', sentence(error.message));
  if (error instanceof Problem) return failed(error.code, error.message);
  if (outageCode(error) !== undefined) return { kind: 'retry', message: 'a store is unavailable' };
  return failed(
    'EXPORT_RUN_FAILED',
    'The run failed. The service logged the fault under the export’s id; give that id to the operator.',
  );
}

const sentence = (text: string) => `${text[0].toUpperCase()}${text.slice(1)}.`;

interface WorkerOptions {
  readonly store: ExportStore;
  readonly queue: QueueConnection;
  readonly directories: ExportDirectories;
  readonly concurrency: number;
  readonly leaseMs: number;
  readonly maxCrashes: number;
  readonly ttlSeconds: number;
  readonly log: Logger;
  /** @throws Problem, ReadFault, StrictRefusal, ArtifactFault, or the signal's reason. */
  readonly run: (row: ExportRow, run: RunCall) => Promise<RunResult>;
}

/** The result of a run. */
interface RunResult {
  readonly artifact: StoredArtifact;
  readonly warnings: readonly Warning[];
  readonly asOfUtc: string | null;
}

interface RunCall {
  readonly directory: string;
  readonly signal: AbortSignal;
  readonly onProgress: (progress: Progress) => void;
}

/** Duration of one pull from an empty queue; a job that arrives is delivered at once. */
const PULL_MS = 5000;
/** Heartbeats per lease. */
const BEATS_A_LEASE = 3;
/** Transient faults get this many tries, with growing pauses. */
const MAX_RETRIES = 20;
const FIRST_RETRY_MS = 500;
const MAX_RETRY_MS = 30_000;
/** Pause before the next try when a store is unavailable. */
const STORE_RETRY_MS = 300;
/** A finished artifact waits this long for an unavailable database before its export is given back. */
const STORE_TIMEOUT_MS = 300_000;

class Stopping extends Error {}
/** Another worker runs the export, or it was canceled. */
class Superseded extends Error {}

export class ExportWorker implements AsyncDisposable {
  /** Name of the worker in the row of the export that it runs. */
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
    let isUnavailable = false;
    while (!signal.aborted) {
      try {
        const connected = await queue.get();
        // The stream may have been lost with its server's disk.
        if (isUnavailable) await connected.ensure();
        const consumer = await connected.consumer();
        isUnavailable = false;
        // The worker may have been stopped while the queue was opened; the pull would not notice and wait its full time.
        signal.throwIfAborted();
        const message = await abortable(consumer.next({ expires: PULL_MS }), signal);
        if (message) await this.#handle(message);
      } catch (error) {
        if (signal.aborted) return;
        if (!isUnavailable) log.warn({ err: error }, 'the worker cannot take exports from the queue; it keeps trying');
        isUnavailable = true;
        await delay(STORE_RETRY_MS, undefined, { signal }).catch(() => {});
      }
    }
  }

  async #handle(message: JsMsg): Promise<void> {
    const { store, log, leaseMs } = this.#options;
    const exportId = message.string();
    let claimed: ExportOutcome;
    try {
      if (!isExportId(exportId)) return message.ack();
      // A restarted broker delivers messages again whose acknowledgement it has not seen.
      if (this.#running.has(exportId)) return message.nak(leaseMs);
      claimed = await store.claim(exportId, this.name);
    } catch (error) {
      log.warn({ err: error, exportId }, 'the worker cannot claim an export; it tries again later');
      return message.nak(STORE_RETRY_MS);
    }
    // Its worker is alive. If its heartbeats end, the message is delivered again.
    if (claimed.kind === 'taken') return message.nak(leaseMs);
    // The export has finished, or was withdrawn.
    if (claimed.kind !== 'done') return message.ack();
    this.#running.add(exportId);
    try {
      await new ExportRun(message, claimed.row, this.#options, this.#stopping.signal).execute();
    } finally {
      this.#running.delete(exportId);
    }
  }

  /** Gives the running exports back. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort(new Stopping());
    await Promise.all(this.#loops);
  }
}

/** One claim of one export. */
class ExportRun {
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

  async execute(): Promise<void> {
    const { exportId, fence } = this.#row;
    const { log, leaseMs } = this.#options;
    const beats = setInterval(() => void this.#beat(), leaseMs / BEATS_A_LEASE);
    try {
      await this.#run();
    } catch (error) {
      // The database was unavailable for too long; the message is delivered again.
      log.error(
        { err: error, exportId, fence },
        'the worker cannot store the outcome of an export; it gives the export back',
      );
      this.#message.nak(STORE_RETRY_MS);
    } finally {
      clearInterval(beats);
    }
  }

  async #run(): Promise<void> {
    const { exportId, fence, crashes } = this.#row;
    const { store, directories, maxCrashes, ttlSeconds, log } = this.#options;
    if (crashes >= maxCrashes) {
      await this.#store(() =>
        store.fail(
          exportId,
          fence,
          'EXPORT_RUN_FAILED',
          `The run was cut off ${crashes} times. Submit the export again, or ask the operator.`,
        ),
      );
      return this.#message.ack();
    }
    let result: RunResult;
    try {
      result = await this.#options.run(this.#row, {
        directory: directories.artifact(exportId, fence),
        signal: AbortSignal.any([this.#stopping, this.#superseded.signal]),
        onProgress: (progress) => {
          this.#progress = progress;
        },
      });
    } catch (error) {
      return await this.#end(error);
    }
    const { artifact, warnings, asOfUtc } = result;
    const outcome = await this.#store(() =>
      store.succeed(exportId, fence, {
        artifact,
        warnings,
        asOfUtc,
        ttlSeconds,
      }),
    );
    if (!this.#counts(outcome)) return await this.#giveUp(outcome);
    log.info({ exportId, rows: artifact.row_count, bytes: artifact.bytes }, 'the worker finished an export');
    this.#message.ack();
    // Removes what earlier runs left behind. The sweeper would find it too.
    await directories.removeUnneeded(exportId, { state: 'succeeded', fence, artifactFence: fence }).catch(() => {});
  }

  /** The response to an update may have been lost; its repetition is then refused. */
  #counts(outcome: ExportOutcome): boolean {
    if (outcome.kind === 'done') return true;
    return outcome.kind === 'refused' && outcome.row.artifactFence === this.#row.fence;
  }

  async #end(error: unknown): Promise<void> {
    const { exportId, fence, retries } = this.#row;
    const { store, directories, log } = this.#options;
    await directories.removeRun(exportId, fence).catch(() => {});
    if (this.#superseded.signal.aborted) return await this.#giveUp();
    if (this.#stopping.aborted) {
      log.info({ exportId }, 'the worker stops and gives an export back');
      await store.release(exportId, fence, false);
      return this.#message.nak();
    }
    const verdict = verdictOf(error);
    if (verdict.kind === 'retry' && retries < MAX_RETRIES) {
      const waitMs = Math.min(FIRST_RETRY_MS * 2 ** retries, MAX_RETRY_MS);
      log.warn({ err: error, exportId, waitMs }, `the worker will try an export again: ${verdict.message}`);
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

  /** The export has another owner, who acknowledges its own delivery of the message; or it has finished. */
  async #giveUp(outcome?: ExportOutcome): Promise<void> {
    const { exportId, fence } = this.#row;
    await this.#options.directories.removeRun(exportId, fence).catch(() => {});
    const row = outcome && 'row' in outcome ? outcome.row : await this.#options.store.find(exportId);
    if (!row || isFinished(row.state)) this.#message.ack();
  }

  /** Retries through an outage of the database, so that a finished run is not lost. */
  async #store(work: () => Promise<ExportOutcome>): Promise<ExportOutcome> {
    const deadline = performance.now() + STORE_TIMEOUT_MS;
    for (;;) {
      try {
        return await work();
      } catch (error) {
        if (performance.now() > deadline || this.#stopping.aborted) throw error;
        await delay(STORE_RETRY_MS, undefined, { signal: this.#stopping }).catch(() => {});
      }
    }
  }

  async #beat(): Promise<void> {
    const { exportId, fence } = this.#row;
    // Otherwise the queue would deliver the message to another worker.
    this.#message.working();
    try {
      if (await this.#options.store.beat(exportId, fence, this.#progress)) return;
      this.#superseded.abort(new Superseded());
    } catch {
      // The database is unavailable. Whether the run still counts is decided when it ends.
    }
  }
}

/** Abandons a pull that outlasts the worker; the connection closes afterwards. */
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

interface RunDeps extends ArtifactDeps {
  readonly rights: RightsStore;
}

/** Runs one export: parses its request again, checks its rights again, and reads what is proved now. */
export function exportRunner(deps: RunDeps): WorkerOptions['run'] {
  return async (row, { directory, signal, onProgress }) => {
    // A request that was valid when it was accepted may name a field that another release lacks.
    const parsed = parseExport(row.request);
    if ('faults' in parsed) throw contractProblem(parsed.faults, 'EXPORT_CONTRACT_ERROR');
    const { subject: request, format, compression, csvFormulas, datasets } = parsed.value;
    const rights = exportRights(deps.rights, datasets);
    const run = { export_id: row.exportId, api_key: row.apiKey };
    const job = { request, admit: rights.admit, format, compression, csvFormulas, directory, run, signal, onProgress };
    const artifact = await writeArtifact(deps, job);
    // The artifact may come from a killed attempt, reused without a read.
    requireGrants(rights, artifact.manifest);
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
