/**
 * Brings a lake to what the catalog proves now: removes files, writes new and changed ones, and lists all in the root manifest.
 * A pass may be killed at any instant; the next one compares and goes on.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { explain } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { manifestBytes, signManifest } from '../../shared/proof-log/signed-manifest.ts';
import type { Range } from '../../shared/ranges.ts';
import { DATASETS, type DatasetDefinition, shapeOf } from '../../shared/registry/index.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { Problem } from '../contract/problems.ts';
import type { PgPool } from '../db/pool.ts';
import { type ArtifactDeps, ArtifactFault, writeFiles } from '../exports/artifact/write.ts';
import { type ExportRights, exportRights, requireGrants } from '../exports/states.ts';
import { ReadFault } from '../read/read-model.ts';
import { Session } from '../read/snapshot/session.ts';
import {
  FILE_MANIFEST,
  folderOf,
  LAKE_VERSION,
  type LakeEntry,
  type LakeFile,
  pathOf,
  ROWS_FILE,
  ROWS_STEM,
  type RootManifest,
  SPANS,
  sha256Of,
} from './format.ts';
import { factsOf, type PlannedFile, planDataset, reachOf } from './plan.ts';
import { type LakeTarget, notWritten } from './target.ts';

export interface LakeDeps {
  readonly target: LakeTarget;
  readonly artifacts: ArtifactDeps;
  readonly pool: PgPool;
  readonly rights: RightsStore;
  /** Whether synthetic rows belong into the lake. */
  readonly synthetic: boolean;
  readonly log: Logger;
  readonly signal: AbortSignal;
  readonly onProgress?: (progress: LakeProgress) => void;
}

export interface LakeProgress {
  readonly files: number;
  /** Files of this pass. */
  readonly planned: number;
  readonly written: number;
  readonly rows: number;
}

export interface Skipped {
  readonly dataset: string;
  readonly why: string;
}

/** What to compare: all of a dataset, or some dates of it. */
export type Scope = ReadonlyMap<DatasetDefinition, readonly Range[] | 'all'>;

export const EVERYTHING: Scope = new Map(
  [...DATASETS.values()].map((dataset) => [dataset as DatasetDefinition, 'all']),
);

export interface LakeCounts {
  written: number;
  replaced: number;
  removed: number;
}

/** A pass stops writing after this time and compares again, so that what is taken back meanwhile leaves a long first writing too. */
const PASS_MS = 20_000;
/** The root manifest is written at most this often, and in a large lake less: then a tenth of the time goes to it. */
const ROOT_INTERVAL_MS = 2000;
const ROOT_SHARE = 10;
/** Files written at once: while one waits for the disk or the database, the other is encoded. */
const CONCURRENCY = 2;

export class LakeWriter {
  readonly counts: LakeCounts = { written: 0, replaced: 0, removed: 0 };
  /** Datasets without files of theirs, and why. */
  skipped: readonly Skipped[] = [];
  /** Files that could not be written; each is tried again when the catalog changes. */
  readonly failed = new Map<string, LakeFile & { readonly state: string; readonly why: string }>();
  readonly #deps: LakeDeps;
  readonly #entries = new Map<string, LakeEntry>();
  /** Files by path that were put since the root manifest was written, or may have been by a writer that was killed. */
  readonly #unlisted = new Map<string, LakeFile>();
  /** Files by path that no root manifest lists. */
  readonly #strays = new Map<string, LakeFile>();
  /** By path the state of which the service read no row. A second look tells a change of the catalog from a fault. */
  readonly #absent = new Map<string, string>();
  #change = 0;
  #rowsWritten = 0;
  #isRootOld = false;
  #rootWriting: Promise<void> = Promise.resolve();
  #rootAt = 0;
  #rootMs = 0;

  private constructor(deps: LakeDeps) {
    this.#deps = deps;
  }

  /** Reads what the lake holds, and removes what no root manifest lists. The caller holds the lock of the lake. */
  static async open(deps: LakeDeps): Promise<LakeWriter> {
    const writer = new LakeWriter(deps);
    try {
      await writer.#open();
    } catch (error) {
      throw notWritten(deps.target.location, error);
    }
    return writer;
  }

  async #open(): Promise<void> {
    const { target, synthetic } = this.#deps;
    const root = await target.readRoot();
    // First of all, so that a folder which a killed writer left is still known as a lake.
    if (!root) await this.#writeRoot();
    for (const file of await target.takeOver()) this.#unlisted.set(pathOf(file), file);
    for (const entry of root?.files ?? []) {
      const sizes = this.#unlisted.has(entry.path) ? undefined : await target.sizesOf(entry);
      if (sizes?.rows === entry.bytes && sizes.manifest === entry.manifest.bytes) this.#entries.set(entry.path, entry);
    }
    for await (const file of target.files()) {
      if (!this.#entries.has(pathOf(file))) this.#strays.set(pathOf(file), file);
    }
    this.#change = root?.change ?? 0;
    if (root && (this.#entries.size !== root.files.length || root.synthetic !== synthetic)) await this.#writeRoot();
  }

  get entries(): Iterable<LakeEntry> {
    return this.#entries.values();
  }

  get change(): number {
    return this.#change;
  }

  totals(): { readonly files: number; readonly rows: number; readonly bytes: number } {
    let [rows, bytes] = [0, 0];
    for (const entry of this.#entries.values()) {
      rows += entry.rows;
      bytes += entry.bytes;
    }
    return { files: this.#entries.size, rows, bytes };
  }

  /**
   * Compares the lake with the catalog, removes, writes. @returns whether the lake is now as the catalog was within the scope.
   * @param change every change up to this one is in the catalog that the pass reads
   */
  async pass(scope: Scope, change: number): Promise<boolean> {
    try {
      const isDone = await this.#writeAll(await this.#plan(scope));
      if (isDone && this.failed.size === 0 && change !== this.#change) {
        this.#change = change;
        this.#isRootOld = true;
      }
      if (this.#isRootOld) await this.#writeRoot();
      return isDone;
    } catch (error) {
      if (error instanceof ReadFault || this.#deps.signal.aborted) throw error;
      if (error instanceof ArtifactFault) throw notWritten(this.#deps.target.location, error.cause ?? error);
      throw isOfFiles(error) ? notWritten(this.#deps.target.location, error) : error;
    }
  }

  /** Removes what should not be there. @returns what is to be written, replacements first: they may hold rows that were taken back */
  async #plan(scope: Scope): Promise<PlannedFile[]> {
    const { pool } = this.#deps;
    const skipped: Skipped[] = [];
    const missing: PlannedFile[] = [];
    const changed: PlannedFile[] = [];
    const surplus: LakeFile[] = [];
    const ofDataset = Map.groupBy([...this.#entries.values(), ...this.#strays.values()], ({ dataset }) => dataset);
    const failedOf = Map.groupBy(this.failed.values(), ({ dataset }) => dataset);
    const { connection } = await pool.acquire();
    try {
      const session = new Session(connection);
      await session.begin({ steps: [] });
      for (const dataset of DATASETS.values()) {
        const own = ofDataset.get(dataset.key) ?? [];
        const failed = failedOf.get(dataset.key) ?? [];
        const why = await this.#refusal(session, dataset);
        if (why !== undefined) {
          if (why !== '') skipped.push({ dataset: dataset.key, why });
          surplus.push(...own, ...failed);
          continue;
        }
        const found = await compare(session, dataset, own, failed, scope.get(dataset) ?? []);
        surplus.push(...found.surplus);
        for (const file of found.planned) {
          const path = pathOfPlanned(file);
          if (this.failed.get(path)?.state === file.state) continue;
          (this.#holds(path) ? changed : missing).push(file);
        }
      }
      await session.commit();
      pool.release(connection);
    } catch (error) {
      pool.discard(connection);
      throw error;
    }
    this.skipped = skipped;
    // Nothing is tried again that should not be there.
    for (const file of surplus) this.failed.delete(pathOf(file));
    await this.#removeAll(surplus.filter((file) => this.#holds(pathOf(file))));
    return [...changed, ...missing];
  }

  /** Why the lake may hold nothing of the dataset; empty where nothing is proved. Undefined: it may. */
  async #refusal(session: Session, dataset: DatasetDefinition): Promise<string | undefined> {
    const { proved, synthetic } = await factsOf(session, dataset);
    if (!proved) return '';
    if (synthetic && !this.#deps.synthetic) return 'its rows are synthetic; --synthetic writes them';
    try {
      await exportRights(this.#deps.rights, [dataset]).admit?.(session);
      return undefined;
    } catch (error) {
      if (error instanceof Problem) return error.message;
      throw error;
    }
  }

  #holds(path: string): boolean {
    return this.#entries.has(path) || this.#strays.has(path);
  }

  async #removeAll(files: readonly LakeFile[]): Promise<void> {
    if (files.length === 0) return;
    for (const file of files) {
      const path = pathOf(file);
      await this.#deps.target.remove(file);
      this.#entries.delete(path);
      this.#strays.delete(path);
      this.counts.removed++;
    }
    await this.#writeRoot();
  }

  /** @returns whether all were written */
  async #writeAll(planned: readonly PlannedFile[]): Promise<boolean> {
    const until = performance.now() + PASS_MS;
    const left = planned.values();
    const stop = new AbortController();
    let isCurrent = true;
    const work = async () => {
      for (const file of left) {
        if (performance.now() > until || stop.signal.aborted) return false;
        this.#deps.signal.throwIfAborted();
        // The other files are written all the same: what does not hold for one of them may hold for all others.
        if (!(await this.#write(file, AbortSignal.any([this.#deps.signal, stop.signal])))) isCurrent = false;
        this.#deps.onProgress?.({
          files: this.#entries.size,
          planned: planned.length,
          written: this.counts.written + this.counts.replaced,
          rows: this.#rowsWritten,
        });
        if (performance.now() > this.#rootAt + Math.max(ROOT_INTERVAL_MS, ROOT_SHARE * this.#rootMs))
          await this.#writeRoot();
      }
      return true;
    };
    const workers = Array.from({ length: CONCURRENCY }, () =>
      work().catch((error) => {
        stop.abort(error);
        throw error;
      }),
    );
    const ended = await Promise.allSettled(workers);
    const fault = ended.find((one) => one.status === 'rejected');
    if (fault) throw stop.signal.reason ?? fault.reason;
    return isCurrent && ended.every((one) => one.status === 'fulfilled' && one.value);
  }

  /** Writes one file as an export of its window. @returns whether the plan still held for it */
  async #write(file: PlannedFile, signal: AbortSignal): Promise<boolean> {
    const { artifacts, rights, target, synthetic } = this.#deps;
    const { dataset, mode, date, window, state, partitions, revision } = file;
    const place = { dataset: dataset.key, mode, date };
    const path = pathOf(place);
    try {
      const granted = exportRights(rights, [dataset]);
      // Otherwise neither the root manifest nor the one beside it would be of the rows for a moment.
      if (this.#unlisted.has(path)) await this.#writeRoot();
      const directory = await target.stage(place);
      const manifest = await writeFiles(
        { ...artifacts, splitRows: Number.POSITIVE_INFINITY },
        {
          request: {
            dataset,
            mode,
            fields: shapeOf(dataset, mode).fields,
            filters: [],
            window: { kind: 'range', fromMs: window.from, toMs: window.to },
            strict: false,
          },
          admit: granted.admit,
          format: 'parquet',
          compression: 'zstd',
          signal,
          run: { lake: true },
        },
        // A pattern for Parquet must not find a file in progress.
        { directory, stem: ROWS_STEM, inProgress: '.partial' },
      );
      requireAllowed(granted, manifest, synthetic);
      const bytes = manifestBytes(manifest);
      const staged = { rows: join(directory, `${ROWS_FILE}.partial`), manifest: join(directory, FILE_MANIFEST) };
      await writeFile(staged.manifest, bytes, { mode: 0o640, flush: true });
      await target.put(place, staged);
      this.#strays.delete(path);
      const isNew = !this.#entries.has(path);
      this.#entries.set(path, {
        path,
        ...place,
        rows: manifest.row_count,
        bytes: manifest.bytes,
        sha256: manifest.sha256,
        revision,
        partitions,
        proof_sha256: manifest.proof!.sha256,
        state_sha256: state,
        manifest: { path: `${folderOf(place)}/${FILE_MANIFEST}`, bytes: bytes.length, sha256: sha256Of(bytes) },
      });
      this.#unlisted.set(path, place);
      this.#isRootOld = true;
      this.failed.delete(path);
      this.counts[isNew ? 'written' : 'replaced']++;
      this.#rowsWritten += manifest.row_count;
      return true;
    } catch (error) {
      signal.throwIfAborted();
      return await this.#notWritten(file, error);
    }
  }

  /** @returns as #write. @throws what ends the pass */
  async #notWritten({ dataset, mode, date, state }: PlannedFile, error: unknown): Promise<boolean> {
    const place = { dataset: dataset.key, mode, date };
    const path = pathOf(place);
    // The next plan finds what has changed since this one: rights, or that nothing is proved any longer.
    if (error instanceof Problem) return false;
    if (error instanceof ReadFault && error.kind === 'no_rows' && this.#absent.get(path) !== state) {
      this.#absent.set(path, state);
      return false;
    }
    if (!(error instanceof ReadFault) || error.kind === 'backend' || error.kind === 'timeout') throw error;
    this.#deps.log.error({ err: error, path }, 'a file of the lake cannot be written');
    this.failed.set(path, { ...place, state, why: explain(error) });
    // What it held is of another state, which may have been taken back.
    if (this.#holds(path)) await this.#removeAll([place]);
    return true;
  }

  /** One at a time: several files may be written at once. */
  #writeRoot(): Promise<void> {
    const writing = this.#rootWriting.then(() => this.#writeRootNow());
    this.#rootWriting = writing.catch(() => {});
    return writing;
  }

  async #writeRootNow(): Promise<void> {
    const startedAt = performance.now();
    const { target, artifacts, synthetic } = this.#deps;
    const settled = [...this.#unlisted];
    const unsigned: Omit<RootManifest, 'signed'> = {
      lake_version: LAKE_VERSION,
      written_at_utc: new Date(artifacts.now()).toISOString(),
      synthetic,
      change: this.#change,
      files: [...this.#entries.values()].sort((a, b) => (a.path < b.path ? -1 : 1)),
    };
    this.#isRootOld = false;
    const signed = signManifest(unsigned, await artifacts.signer());
    await target.writeRoot(
      manifestBytes(signed),
      settled.map(([, file]) => file),
    );
    for (const [path, file] of settled) if (this.#unlisted.get(path) === file) this.#unlisted.delete(path);
    this.#rootAt = performance.now();
    this.#rootMs = this.#rootAt - startedAt;
  }
}

const pathOfPlanned = ({ dataset, mode, date }: PlannedFile) => pathOf({ dataset: dataset.key, mode, date });

/** Rows may have become others since the plan. @throws Problem */
function requireAllowed(granted: ExportRights, manifest: { readonly synthetic: boolean }, synthetic: boolean): void {
  requireGrants(granted, manifest);
  if (manifest.synthetic && !synthetic)
    throw new Problem('EXPORT_WINDOW_NOT_PROVED', 'The rows have become synthetic.');
}

/** Faults of writing to an open file, which name no path. */
const DISK_CODES: ReadonlySet<unknown> = new Set(['ENOSPC', 'EDQUOT', 'EFBIG', 'EIO', 'EROFS']);

function isOfFiles(error: unknown): boolean {
  const { path, code } = (error ?? {}) as { readonly path?: unknown; readonly code?: unknown };
  return typeof path === 'string' || DISK_CODES.has(code);
}

/** Compares what the lake holds of a dataset, and what could not be written of it, with what it should hold. */
async function compare(
  session: Session,
  dataset: DatasetDefinition,
  own: readonly (LakeFile & Partial<LakeEntry>)[],
  failed: readonly LakeFile[],
  scope: readonly Range[] | 'all',
): Promise<{ readonly planned: readonly PlannedFile[]; readonly surplus: readonly LakeFile[] }> {
  const span = SPANS[dataset.partition.kind];
  const startOf = ({ date }: LakeFile) => span.windowOf(date).from;
  const held = new Map(own.map((file) => [pathOf(file), file.state_sha256]));
  const starts = [...new Set(own.map(startOf))].sort((a, b) => a - b);
  // Two reaches may share a date.
  const planned = new Map<string, PlannedFile>();
  const surplus = new Map<string, LakeFile>();
  for (const reach of scope === 'all' ? [undefined] : reachOf(dataset, scope, starts)) {
    const isCompared = (from: number) => !reach || (from >= reach.compared.from && from < reach.compared.to);
    const wanted = new Map(
      (await planDataset(session, dataset, reach?.planned)).map((file) => [pathOfPlanned(file), file]),
    );
    for (const [path, file] of wanted) {
      if (isCompared(file.window.from) && held.get(path) !== file.state) planned.set(path, file);
    }
    for (const file of [...own, ...failed]) {
      const path = pathOf(file);
      if (isCompared(startOf(file)) && !wanted.has(path)) surplus.set(path, file);
    }
  }
  return { planned: [...planned.values()], surplus: [...surplus.values()] };
}
