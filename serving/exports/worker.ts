/**
 * Takes exports from the table and runs them. A worker may be killed at any instant: after a lease without a heartbeat another
 * worker takes its export. The database decides which run counts.
 */

import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { hostname } from 'node:os';
import { basename } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { connect, EXPORT_CHANNEL } from '../../shared/db/connect.ts';
import { outageCode } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { openRegular } from '../../shared/regular-file.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { parseExport } from '../contract/export.ts';
import { Problem, type ProblemCode, type Warning } from '../contract/problems.ts';
import type { Instruments } from '../discovery/instruments.ts';
import { contractProblem } from '../http/request.ts';
import { ReadFault, type ReadFaultKind, StrictRefusal } from '../read/read-model.ts';
import { type Artifact, type ArtifactDeps, ArtifactFault, writeArtifact } from './artifact/write.ts';
import type { ExportDirectories } from './files.ts';
import type { ExportRow, Progress, StoredArtifact, StoredFile } from './rows.ts';
import { exportRights, requireGrants } from './states.ts';
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
  readonly databaseUrl: string;
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

/** A worker looks this often for exports that nobody announces: those of dead workers, and those whose pause is over. */
const LOOK_MS = 1000;
/** Heartbeats per lease. */
const BEATS_A_LEASE = 3;
/** Transient faults get this many tries. */
const MAX_RETRIES = 20;
/** Pause before the next try when the database is unavailable. */
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
  /** Resolved at the next announcement of an export. */
  #announced = Promise.withResolvers<void>();
  /** Since when the database answers; undefined while it does not. */
  #reached: number | undefined = Number.NEGATIVE_INFINITY;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#loops = [this.#listen(), ...Array.from({ length: options.concurrency }, () => this.#loop())];
  }

  /** Without this connection an export is found at the next look. */
  async #listen(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      try {
        await using client = await connect({ url: this.#options.databaseUrl, name: 'tidemark export worker', signal });
        client.on('notification', () => {
          this.#announced.resolve();
          this.#announced = Promise.withResolvers();
        });
        await client.query(`listen ${EXPORT_CHANNEL}`);
        await once(client, 'end', { signal });
      } catch {
        // The loops report an outage.
      }
      await delay(LOOK_MS, undefined, { signal }).catch(() => {});
    }
  }

  async #loop(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const { promise: announced } = this.#announced;
      const row = await this.#take();
      if (row) await this.#run(row);
      else await Promise.race([announced, delay(LOOK_MS, undefined, { signal }).catch(() => {})]);
    }
  }

  async #take(): Promise<ExportRow | undefined> {
    const { store, log } = this.#options;
    try {
      const row = await store.take(this.name, { mine: [...this.#running], takesOver: this.#takesOver() });
      this.#reached ??= performance.now();
      return row;
    } catch (error) {
      if (this.#reached !== undefined) log.warn({ err: error }, 'the worker cannot take exports; it keeps trying');
      this.#reached = undefined;
      return undefined;
    }
  }

  /**
   * An outage of the database ends the leases of the living, too. They have the time of two heartbeats to renew them, so that
   * nobody takes their exports, which would count as a crash.
   */
  #takesOver(): boolean {
    return (
      this.#reached !== undefined && performance.now() - this.#reached > (2 * this.#options.leaseMs) / BEATS_A_LEASE
    );
  }

  async #run(row: ExportRow): Promise<void> {
    this.#running.add(row.exportId);
    try {
      await new ExportRun(row, this.#options, this.#stopping.signal).execute();
    } finally {
      this.#running.delete(row.exportId);
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
  readonly #row: ExportRow;
  readonly #options: WorkerOptions;
  readonly #stopping: AbortSignal;
  readonly #superseded = new AbortController();
  #progress: Progress = { rows: 0, bytes: 0 };

  constructor(row: ExportRow, options: WorkerOptions, stopping: AbortSignal) {
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
      // The database was unavailable for too long. When the lease is over, the export is taken again.
      log.error({ err: error, exportId, fence }, 'the worker cannot store the outcome of an export; it is run again');
    } finally {
      clearInterval(beats);
    }
  }

  async #run(): Promise<void> {
    const { exportId, fence, crashes } = this.#row;
    const { store, directories, maxCrashes, ttlSeconds, log } = this.#options;
    if (crashes >= maxCrashes) {
      const message = `The run was cut off ${crashes} times. Submit the export again, or ask the operator.`;
      await this.#store(() => store.fail(exportId, fence, 'EXPORT_RUN_FAILED', message));
      return;
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
    if (!this.#counts(outcome)) return await directories.removeRun(exportId, fence).catch(() => {});
    log.info({ exportId, rows: artifact.row_count, bytes: artifact.bytes }, 'the worker finished an export');
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
    // It was canceled, or has another worker.
    if (this.#superseded.signal.aborted) return;
    if (this.#stopping.aborted) {
      log.info({ exportId }, 'the worker stops and gives an export back');
      await store.release(exportId, fence);
      return;
    }
    const verdict = verdictOf(error);
    if (verdict.kind === 'retry' && retries < MAX_RETRIES) {
      log.warn({ err: error, exportId }, `an export will be tried again: ${verdict.message}`);
      await this.#store(() => store.retry(exportId, fence));
      return;
    }
    const { code, message } =
      verdict.kind === 'failed'
        ? verdict
        : { code: 'EXPORT_RUN_FAILED', message: `The run failed: ${verdict.message}.` };
    log.warn({ err: error, exportId, code }, 'an export failed');
    await this.#store(() => store.fail(exportId, fence, code, message));
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
    try {
      if (await this.#options.store.beat(exportId, fence, this.#progress)) return;
      this.#superseded.abort(new Superseded());
    } catch {
      // The database is unavailable. Whether the run still counts is decided when it ends.
    }
  }
}

/** The key was checked when the export was submitted. */
const ANYBODY = { covers: () => true };

interface RunDeps extends ArtifactDeps {
  readonly instruments: Pick<Instruments, 'parse'>;
  readonly rights: RightsStore;
}

/** Runs one export: parses its request again, checks its rights again, and reads what is proved now. */
export function exportRunner(deps: RunDeps): WorkerOptions['run'] {
  return async (row, { directory, signal, onProgress }) => {
    // A request that was valid when it was accepted may name a field that another release lacks.
    const parsed = await deps.instruments.parse(ANYBODY, (find) => parseExport(row.request, find));
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
