/**
 * Brings a lake to what the catalog proves now: writes new and changed files, and commits what changed to each table. A pass may be
 * killed at any instant; the next one compares and goes on.
 */
import { dirname, join } from 'node:path';
import type { Settings } from '../../shared/config/settings.ts';
import { explain, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { dataFileOf } from '../../shared/mirror/delta-log.ts';
import { LAKE_VERSION, type LakeManifest } from '../../shared/mirror/lake-manifest.ts';
import { manifestBytes } from '../../shared/proof-log/signed-manifest.ts';
import type { Range } from '../../shared/ranges.ts';
import type { Mode } from '../../shared/registry/definition.ts';
import { DATASETS, type DatasetDefinition, shapeOf } from '../../shared/registry/index.ts';
import { baseOf } from '../../shared/registry/instruments.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import { Problem } from '../contract/problems.ts';
import type { PgPool } from '../db/pool.ts';
import { HEAD_SQL, signedHead } from '../discovery/proof-log.ts';
import { type ArtifactDeps, ArtifactFault, writeFiles } from '../exports/artifact/write.ts';
import { type ExportRights, exportRights, requireGrants } from '../exports/states.ts';
import { ReadFault } from '../read/read-model.ts';
import { Session } from '../read/snapshot/session.ts';
import { metaDataOf } from './delta-write.ts';
import { type LakeFolder, notWritten } from './folder.ts';
import { folderOf, type LakeFile, MODES, SPANS, tableOf, valuesOf } from './format.ts';
import { factsOf, isWithdrawn, type PlannedFile, planDataset, reachOf } from './plan.ts';
import { type FileFacts, LakeTable } from './table.ts';

export interface LakeDeps {
  readonly folder: LakeFolder;
  readonly settings: Settings;
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
  /** Files that are written or known to be missing. */
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

export interface LakeCounts {
  written: number;
  replaced: number;
  removed: number;
}

/** A pass stops writing after this time and compares again, so that what is taken back meanwhile leaves a long first writing too. */
const PASS_MS = 20_000;
/** Files written at once: while one waits for the disk or the database, the other is encoded. */
const CONCURRENCY = 2;
/** The name of a file in progress, without its extension. */
const STEM = 'rows';

export interface Pass {
  /** The datasets and their other instruments. */
  readonly datasets: readonly DatasetDefinition[];
  readonly scope: Scope;
  /** Every change up to this one is in the catalog that the pass reads. */
  readonly change: number;
  /** Between two commits of a table, unless rows were withdrawn. */
  readonly pauseMs: number;
}

type WantedFile = PlannedFile & LakeFile;

/** What a pass found out about a dataset or an instrument. */
interface Plan {
  readonly dataset: DatasetDefinition;
  /** Files that are to be written. */
  readonly missing: readonly WantedFile[];
  /** Files that the lake holds and should not. */
  readonly surplus: readonly LakeFile[];
  /** Files whose rows were withdrawn in part: they go, and are written anew. */
  readonly withdrawn: readonly LakeFile[];
  /** Not for a dataset outside of the scope. */
  readonly isCompared: boolean;
}

export interface PassResult {
  /** The datasets of the scope whose tables now are as the catalog was. */
  readonly done: ReadonlySet<DatasetDefinition>;
  /** Those whose tables were committed to a moment ago. */
  readonly waiting: ReadonlySet<DatasetDefinition>;
}

export class LakeWriter {
  readonly counts: LakeCounts = { written: 0, replaced: 0, removed: 0 };
  /** Datasets without files of theirs, and why. */
  skipped: readonly Skipped[] = [];
  /** Files that could not be written; each is tried again when the catalog changes. */
  readonly failed = new Map<string, LakeFile & { readonly state: string; readonly why: string }>();
  readonly tables = new Map<string, LakeTable>();
  /** Files that were written in all passes, committed or not. */
  written = 0;
  readonly #deps: LakeDeps;
  /** By file the state of which the service read no row. A second look tells a change of the catalog from a fault. */
  readonly #absent = new Map<string, string>();
  #datasets: readonly DatasetDefinition[] = [];
  #change = 0;
  #rowsWritten = 0;
  #checkpoint: string | null = null;
  #root = '';

  private constructor(deps: LakeDeps) {
    this.#deps = deps;
  }

  /** Reads what the lake holds. The caller holds the lock of the lake. */
  static async open(deps: LakeDeps): Promise<LakeWriter> {
    const writer = new LakeWriter(deps);
    try {
      await writer.#open();
    } catch (error) {
      throw notWritten(deps.folder.location, error);
    }
    return writer;
  }

  async #open(): Promise<void> {
    const { folder } = this.#deps;
    const root = await folder.readRoot();
    await folder.clear();
    this.#change = root?.change ?? 0;
    for (const dataset of DATASETS.values()) {
      for (const mode of MODES) await this.#openTable(tableOf(dataset, mode));
    }
    // First of all, so that a folder which a killed writer left is still known as a lake.
    await this.#writeRoot();
  }

  async #openTable(table: string): Promise<void> {
    const { folder, artifacts, settings } = this.#deps;
    const { signer, now } = artifacts;
    const deps = { location: folder.location, signer, now, keepMs: settings.limits.lakeKeepMs };
    this.tables.set(table, await LakeTable.open(table, deps));
  }

  get change(): number {
    return this.#change;
  }

  totals(): { readonly files: number; readonly rows: number; readonly bytes: number } {
    let [files, rows, bytes] = [0, 0, 0];
    for (const { active } of this.tables.values()) {
      files += active.size;
      for (const facts of active.values()) {
        rows += facts.rows;
        bytes += facts.bytes;
      }
    }
    return { files, rows, bytes };
  }

  /** Compares the lake with the catalog, writes, commits. */
  async pass({ datasets, scope, change, pauseMs }: Pass): Promise<PassResult> {
    try {
      this.#datasets = datasets;
      for (const table of this.tables.values()) await table.meet();
      const plans = await this.#plan(scope);
      // The instruments of a dataset share its tables.
      const ofTables = [...Map.groupBy(plans, ({ dataset }) => baseOf(dataset)).values()];
      for (const own of ofTables) await this.#withdraw(own, change);
      const waits = ofTables.filter((own) => this.#waits(own, pauseMs));
      const unfinished = await this.#writeAll(
        plans.filter((plan) => !waits.some((own) => own.includes(plan))),
        change,
      );
      const done = new Set<DatasetDefinition>();
      for (const own of ofTables) {
        const compared = own.flatMap(({ dataset, isCompared }) => (isCompared ? dataset : []));
        if (compared.length === 0 || waits.includes(own) || own.some(({ dataset }) => unfinished.has(dataset)))
          continue;
        if (await this.#commit(own[0].dataset, change)) for (const dataset of compared) done.add(dataset);
      }
      const isDone = [...scope.keys()].every((dataset) => done.has(dataset));
      if (isDone && this.failed.size === 0) this.#change = change;
      await this.#writeRoot();
      return { done, waiting: new Set(waits.flat().map(({ dataset }) => dataset)) };
    } catch (error) {
      if (error instanceof ReadFault || this.#deps.signal.aborted) throw error;
      const { location } = this.#deps.folder;
      if (error instanceof ArtifactFault) throw notWritten(location, error.cause ?? error);
      throw isOfFiles(error) ? notWritten(location, error) : error;
    }
  }

  /** @throws TidemarkError CONFIGURATION_INVALID where the rights matrix cannot be read: then nothing is known of any right */
  async #plan(scope: Scope): Promise<Plan[]> {
    const { pool, rights } = this.#deps;
    const matrix = rights.current();
    if ('faults' in matrix) {
      throw new TidemarkError('CONFIGURATION_INVALID', `The rights matrix is invalid: ${matrix.faults.join('; ')}`, {
        remedy: 'Correct the matrix. The lake stays as it is until then.',
      });
    }
    const skipped: Skipped[] = [];
    const plans: Plan[] = [];
    const { connection } = await pool.acquire();
    try {
      const session = new Session(connection);
      await session.begin({ steps: [] });
      this.#checkpoint = signedHead(await session.rows(HEAD_SQL)).checkpoint;
      for (const dataset of this.#datasets) {
        const why = await this.#refusal(session, dataset);
        const isKnown = skipped.some((one) => one.dataset === dataset.key);
        if (why !== undefined && why !== '' && !isKnown) skipped.push({ dataset: dataset.key, why });
        const found =
          why === undefined
            ? await this.#compare(session, dataset, scope.get(dataset))
            : { missing: [], surplus: this.#held(dataset), withdrawn: [] };
        plans.push({ dataset, ...found, isCompared: scope.has(dataset) });
      }
      await session.commit();
      pool.release(connection);
    } catch (error) {
      pool.discard(connection);
      throw error;
    }
    this.skipped = skipped;
    return plans;
  }

  /** Whether the tables of these were committed to a moment ago, and nothing of them was withdrawn. */
  #waits(plans: readonly Plan[], pauseMs: number): boolean {
    if (plans.some(({ surplus, withdrawn }) => surplus.length + withdrawn.length > 0)) return false;
    if (plans.every(({ missing }) => missing.length === 0)) return false;
    const [{ dataset }] = plans;
    return MODES.some((mode) => performance.now() - this.#tableOf(dataset, mode).committedAt < pauseMs);
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

  #tableOf(dataset: DatasetDefinition, mode: Mode): LakeTable {
    return this.tables.get(tableOf(dataset, mode))!;
  }

  /** What the tables hold of a dataset or an instrument, or could not get. */
  #held(dataset: DatasetDefinition): LakeFile[] {
    const found = new Map<string, LakeFile>();
    // What nobody else owns is the default's: the symbol of a lake may be one that the database does not know.
    const others = new Map(
      this.#datasets.filter(({ base }) => base === baseOf(dataset)).map((one) => [String(one.instrument), one]),
    );
    for (const mode of MODES) {
      const { active, staged, lost } = this.#tableOf(dataset, mode);
      const files = [...active.values(), ...staged.values(), ...[...lost].flatMap((name) => dataFileOf(name) ?? [])];
      for (const { date, folder } of files) {
        const { instrument } = valuesOf(folder);
        if ((others.get(instrument) ?? baseOf(dataset)) !== dataset) continue;
        const file: LakeFile = { dataset, mode, date, folder };
        found.set(idOf(file), file);
      }
    }
    for (const [id, file] of this.failed) if (file.dataset === dataset) found.set(id, file);
    return [...found.values()];
  }

  /** Compares what the lake holds of a dataset, and what could not be written of it, with what it should hold. */
  async #compare(
    session: Session,
    dataset: DatasetDefinition,
    scope: readonly Range[] | 'all' | undefined,
  ): Promise<Pick<Plan, 'missing' | 'surplus' | 'withdrawn'>> {
    if (scope === undefined) return { missing: [], surplus: [], withdrawn: [] };
    const span = SPANS[dataset.partition.kind];
    const held = this.#held(dataset);
    const startOf = ({ date }: LakeFile) => span.windowOf(date).from;
    const starts = [...new Set(held.map(startOf))].sort((a, b) => a - b);
    const missing = new Map<string, WantedFile>();
    const surplus = new Map<string, LakeFile>();
    const withdrawn: LakeFile[] = [];
    for (const reach of scope === 'all' ? [undefined] : reachOf(dataset, scope, starts)) {
      const isCompared = (from: number) => !reach || (from >= reach.compared.from && from < reach.compared.to);
      const planned = await planDataset(session, dataset, reach?.planned);
      const files = planned.map((file): WantedFile => ({ ...file, folder: this.#folderOf(dataset, file.date) }));
      const wanted = new Map(files.map((file) => [idOf(file), file]));
      for (const [id, file] of wanted) {
        if (!isCompared(file.window.from) || this.#has(file) || this.failed.get(id)?.state === file.state) continue;
        if (this.#absent.get(id) === file.state && !this.#activeOf(file)) continue;
        missing.set(id, file);
      }
      for (const file of held) if (isCompared(startOf(file)) && !wanted.has(idOf(file))) surplus.set(idOf(file), file);
    }
    for (const file of missing.values()) {
      if (this.#activeOf(file) && (await isWithdrawn(session, dataset, file.date, this.#change))) withdrawn.push(file);
    }
    return { missing: [...missing.values()], surplus: [...surplus.values()], withdrawn };
  }

  /** Whether a whole file of that state is there, committed or not. */
  #has({ dataset, mode, folder, state }: WantedFile): boolean {
    const table = this.#tableOf(dataset, mode);
    return [table.active, table.staged].some((files) => files.get(folder)?.state === state);
  }

  #activeOf({ dataset, mode, folder }: LakeFile): FileFacts | undefined {
    return this.#tableOf(dataset, mode).active.get(folder);
  }

  /** Removes what should not be in the tables of a dataset, before anything is written. */
  async #withdraw(plans: readonly Plan[], change: number): Promise<void> {
    const [{ dataset }] = plans;
    const of = (list: 'surplus' | 'withdrawn' | 'missing') => plans.flatMap((plan): readonly LakeFile[] => plan[list]);
    // Nothing is tried again that should not be there.
    for (const file of of('surplus')) this.failed.delete(idOf(file));
    for (const mode of MODES) {
      const isOfMode = (file: LakeFile) => file.mode === mode;
      const folders = new Set([...of('surplus'), ...of('withdrawn')].filter(isOfMode).map(({ folder }) => folder));
      if (folders.size === 0) continue;
      // A table that lacks files yet is not of the change.
      const isWhole = !of('missing').some(isOfMode) && this.failed.size === 0;
      await this.#remove(dataset, mode, folders, isWhole ? change : undefined);
    }
  }

  async #remove(
    dataset: DatasetDefinition,
    mode: Mode,
    folders: ReadonlySet<string>,
    change: number | undefined,
  ): Promise<void> {
    const table = this.#tableOf(dataset, mode);
    const isOf = (name: string) => folders.has(dirname(name));
    for (const folder of folders) await table.drop(folder);
    for (;;) {
      const active = [...table.active.values()].map(({ name }) => name);
      const remove = [...active, ...table.lost].filter(isOf);
      if (table.version < 0) return;
      const isDone = await table.commit({
        ...this.#commitOf(dataset, mode),
        ...{ remove, add: [], withdrawn: folders, change: change ?? table.change },
      });
      if (!isDone) continue;
      this.counts.removed += remove.length;
      return;
    }
  }

  #commitOf(dataset: DatasetDefinition, mode: Mode) {
    const { settings, artifacts } = this.#deps;
    const held = this.#tableOf(dataset, mode).metaData;
    return {
      metaData: metaDataOf(dataset, mode, { held, keepMs: settings.limits.lakeKeepMs, nowMs: artifacts.now() }),
      checkpoint: this.#checkpoint,
    };
  }

  #folderOf(dataset: DatasetDefinition, date: string): string {
    return folderOf(this.#deps.settings, dataset, date);
  }

  /** Commits the staged files of a dataset, whose tables then are of the change. @returns whether both are */
  async #commit(dataset: DatasetDefinition, change: number): Promise<boolean> {
    const isFailed = [...this.failed.values()].some((file) => file.dataset.key === dataset.key);
    for (const mode of MODES) {
      const table = this.#tableOf(dataset, mode);
      const add = [...table.staged.values()];
      if (table.version < 0 && add.length === 0) continue;
      const replaced = add.flatMap(({ folder }) => table.active.get(folder)?.name ?? []);
      const remove = [...replaced, ...table.lost];
      const own = { remove, add, withdrawn: new Set<string>(), change: isFailed ? table.change : change };
      if (!(await table.commit({ ...this.#commitOf(dataset, mode), ...own }))) return false;
      this.counts.replaced += replaced.length;
      this.counts.written += add.length - replaced.length;
      this.counts.removed += remove.length - replaced.length;
    }
    return true;
  }

  /** @returns the datasets of which a file is missing still */
  async #writeAll(plans: readonly Plan[], change: number): Promise<ReadonlySet<DatasetDefinition>> {
    const planned = plans.flatMap(({ missing }) => missing);
    // What a table holds already and is replaced comes first.
    planned.sort((a, b) => Number(!this.#activeOf(a)) - Number(!this.#activeOf(b)));
    const until = performance.now() + PASS_MS;
    const left = planned.values();
    const stop = new AbortController();
    const unfinished = new Set<DatasetDefinition>();
    let looked = 0;
    const work = async () => {
      for (const file of left) {
        if (performance.now() > until || stop.signal.aborted) {
          unfinished.add(file.dataset);
          continue;
        }
        this.#deps.signal.throwIfAborted();
        // The other files are written all the same: what does not hold for one of them may hold for all others.
        const isWritten = await this.#write(file, change, AbortSignal.any([this.#deps.signal, stop.signal]));
        if (!isWritten) unfinished.add(file.dataset);
        this.written += Number(isWritten);
        this.#deps.onProgress?.({
          planned: this.written + planned.length - ++looked,
          written: this.written,
          rows: this.#rowsWritten,
        });
      }
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
    return unfinished;
  }

  /** Writes one file as an export of its window. @returns whether the plan still held for it */
  async #write(file: WantedFile, change: number, signal: AbortSignal): Promise<boolean> {
    const { artifacts, rights, folder, synthetic } = this.#deps;
    const { dataset, mode, date, folder: below, window, state } = file;
    const table = this.#tableOf(dataset, mode);
    const id = idOf(file);
    try {
      const granted = exportRights(rights, [dataset]);
      const directory = await folder.stage(id.replaceAll('/', '~'));
      const active = this.#activeOf(file);
      const manifest = await writeFiles(
        { ...artifacts, splitRows: Number.POSITIVE_INFINITY },
        {
          request: {
            dataset,
            mode,
            fields: shapeOf(dataset, mode).fields,
            filters: [],
            window: { kind: 'range', fromMs: window.from, toMs: window.to, whole: true },
            strict: false,
          },
          admit: granted.admit,
          format: 'parquet',
          compression: 'zstd',
          signal,
          run: { lake: true, state_sha256: state },
        },
        {
          directory,
          stem: STEM,
          // The same bytes are the same file, whatever the change: a proof elsewhere did not concern its rows.
          nameOf: (sha256) => (active?.sha256 === sha256 ? active.name : `${below}/${change}-${sha256}.parquet`),
        },
      );
      requireAllowed(granted, manifest, synthetic);
      const [{ name }] = manifest.files;
      const { row_count: rows, bytes, sha256, synthetic: isSynthetic } = manifest;
      const facts: FileFacts = { name, folder: below, date, rows, bytes, sha256, synthetic: isSynthetic, state };
      await table.drop(below);
      if (rows === 0) {
        this.#absent.set(id, state);
        if (active) await this.#remove(dataset, mode, new Set([below]), undefined);
      } else if (name === active?.name) await table.describe(facts, manifestBytes(manifest));
      else await table.stage(facts, join(directory, `${STEM}.parquet`), manifestBytes(manifest));
      await folder.unstage(id.replaceAll('/', '~'));
      this.failed.delete(id);
      this.#rowsWritten += rows;
      return true;
    } catch (error) {
      signal.throwIfAborted();
      return await this.#notWritten(file, error);
    }
  }

  /** @returns as #write. @throws what ends the pass */
  async #notWritten(file: WantedFile, error: unknown): Promise<boolean> {
    const { dataset, mode, folder, state } = file;
    const id = idOf(file);
    // The next plan finds what has changed since this one: rights, or that nothing is proved any longer.
    if (error instanceof Problem) return false;
    if (error instanceof ReadFault && error.kind === 'no_rows' && this.#absent.get(id) !== state) {
      this.#absent.set(id, state);
      return false;
    }
    if (!(error instanceof ReadFault) || error.kind === 'backend' || error.kind === 'timeout') throw error;
    this.#deps.log.error({ err: error, file: id }, 'a file of the lake cannot be written');
    this.failed.set(id, { ...file, why: explain(error) });
    // What it held is of another state, which may have been taken back.
    await this.#remove(dataset, mode, new Set([folder]), undefined);
    return true;
  }

  /** Publishes the newest versions of all tables, where that changed. */
  async #writeRoot(): Promise<void> {
    const { folder, artifacts, synthetic } = this.#deps;
    const tables = [...this.tables.values()].flatMap(({ note }) => note ?? []);
    const facts = {
      lake_version: LAKE_VERSION,
      synthetic,
      change: this.#change,
      tables: tables.sort((a, b) => (a.table < b.table ? -1 : 1)),
    } as const;
    const text = JSON.stringify(facts);
    if (text === this.#root) return;
    const manifest: LakeManifest = { ...facts, written_at_utc: new Date(artifacts.now()).toISOString() };
    await folder.writeRoot(manifestBytes(manifest));
    this.#root = text;
  }
}

const idOf = ({ dataset, mode, folder }: LakeFile): string => `${tableOf(dataset, mode)}/${folder}`;

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
