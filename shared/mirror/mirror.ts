/** A local copy of a remote lake, or of a service's exports: only what changed is downloaded, and every byte is verified. */
import { coversInstrument } from '../instrument-names.ts';
import type { Verifier } from '../proof-log/note.ts';
import { manifestBytes } from '../proof-log/signed-manifest.ts';
import { dataFileOf, LOG_FOLDER, logFilesOf } from './delta-log.ts';
import { Downloads, inParallel } from './downloads.ts';
import { mirrorExports } from './exports.ts';
import { type MirrorCounts, MirrorFolder, type MirrorKind, type MirrorWork } from './folder.ts';
import {
  checkSigned,
  isChosen,
  type LakeFile,
  type LakeManifest,
  MANIFEST_FILE,
  MAX_MANIFEST_BYTES,
  MAX_ROOT_BYTES,
  MirrorFault,
  manifestName,
  noteName,
  parseFileManifest,
  parseLakeManifest,
  partsOf,
  proofsOf,
  readVersion,
  type TableVersion,
} from './lake-manifest.ts';
import { sourceOf } from './source.ts';

/** What was done so far. */
export interface MirrorProgress {
  /** Files that are compared or downloaded, of those that are not known to be unchanged. */
  readonly done: number;
  readonly total: number;
  readonly bytes: number;
}

export interface MirrorOptions {
  /** URL of a lake (`http://host/v1/lake`, a file server's folder, `file:///...`), or of exports (`http://host/v1/raw/export`). */
  readonly from: string;
  /** The folder of the copy: missing, empty, or a mirror of the same source. */
  readonly to: string;
  /** The API key of the service. */
  readonly key?: string | undefined;
  /** The keys of the proof log that sign manifests. None: signatures are not checked. */
  readonly signers?: readonly Verifier[];
  /** A lake: only these datasets, or `dataset:instrument`. Default all. */
  readonly datasets?: readonly string[] | undefined;
  /** Exports: only these ids. Default all that succeeded. */
  readonly exports?: readonly string[] | undefined;
  /** Hashes every local file, and downloads those that differ. */
  readonly verify?: boolean | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: MirrorProgress) => void) | undefined;
  /** Longest wait for an answer, and for its next bytes, ms; default 30,000. */
  readonly stallMs?: number | undefined;
  /** Attempts in a row that may bring nothing; default 5. */
  readonly attempts?: number | undefined;
  /** The pause after the first of them, ms; default 500. It doubles. */
  readonly pauseMs?: number | undefined;
  /** The wait for an answer's bytes beyond which their mean speed must be a kilobyte a second, ms; default 600,000. */
  readonly graceMs?: number | undefined;
}

export interface MirrorReport extends MirrorCounts {
  readonly kind: MirrorKind;
  /** Bytes that were downloaded. */
  readonly bytes: number;
  readonly requests: number;
  readonly seconds: number;
}

/** A dataset, or an instrument of one, as a key is limited to. */
const CHOICE = /^[a-z][a-z0-9_]{0,62}(?::[A-Za-z0-9][A-Za-z0-9._-]{0,31})?$/;
const EXPORTS_PATH = /\/v1\/raw\/export\/?$/;

/**
 * Brings the folder to the state of the source. A run that is interrupted or fails leaves whole, verified files; the next one
 * continues. @throws MirrorFault, the signal's reason, or the error of the file system
 */
export async function mirror(options: MirrorOptions): Promise<MirrorReport> {
  const startedAt = performance.now();
  const { from, to, signers = [], datasets, exports } = options;
  const { stallMs = 30_000, attempts = 5, pauseMs = 500 } = options;
  const wrong = datasets?.find((name) => !CHOICE.test(name));
  if (wrong !== undefined || datasets?.length === 0) throw new MirrorFault('usage', `${wrong} is no dataset`);
  const kind = EXPORTS_PATH.test(from) ? 'exports' : 'lake';
  if (kind === 'lake' && exports) throw new MirrorFault('usage', `Exports are at a URL that ends in /v1/raw/export`);
  if (kind === 'exports' && datasets) throw new MirrorFault('usage', 'Datasets select files of a lake, not exports');
  // Ends the downloads beside the one that failed.
  const stopping = new AbortController();
  const signal = options.signal ? AbortSignal.any([options.signal, stopping.signal]) : stopping.signal;
  signal.throwIfAborted();
  const source = sourceOf({
    from: kind === 'lake' ? from : from.replace(/\w+\/?$/, ''),
    key: options.key,
    ...{ signal, stallMs, attempts, pauseMs, graceMs: options.graceMs },
  });
  await using folder = await MirrorFolder.open(to, kind, from);
  let bytes = 0;
  let state = { done: 0, total: 0 };
  const report = () => options.onProgress?.({ ...state, bytes });
  const onBytes = (more: number) => {
    bytes += more;
    report();
  };
  const downloads = new Downloads({ source, partial: folder.partial, attempts, pauseMs, signal, onBytes });
  const work: MirrorWork = {
    ...{ folder, source, downloads, signers, signal },
    verify: options.verify ?? false,
    stop: (error) => stopping.abort(error),
    progress(done, total) {
      state = { done, total };
      report();
    },
  };
  const counts = kind === 'lake' ? await new LakeMirror(work, datasets).run() : await mirrorExports(work, exports);
  await folder.clear();
  return {
    kind,
    ...counts,
    bytes,
    requests: source.requests,
    seconds: Math.round(performance.now() - startedAt) / 1000,
  };
}

/** The root manifest may change while files are downloaded; so often the run begins again with the new one. */
const MAX_ROUNDS = 8;

interface Root {
  readonly manifest: LakeManifest;
  /** The bytes that the local root manifest shall have. */
  readonly bytes: Uint8Array;
  readonly etag: string | undefined;
}

/** Copies the newest version of each table: its rows first, then the log that names them, then what it no longer names goes. */
class LakeMirror {
  readonly #work: MirrorWork;
  readonly #datasets: readonly string[] | null;
  /** Those of them that the last run did not ask for. */
  readonly #new: readonly string[];
  /** Names the keys of this run, to know whether the last run checked with the same. */
  readonly #checkedWith: string | null;
  readonly #counts = { files: 0, new: 0, replaced: 0, removed: 0, unchanged: 0 };
  /** Files that this run has seen whole, with their manifests. */
  readonly #seen = new Set<string>();
  /** Files that this run downloaded or removed, which is counted once. */
  readonly #touched = new Set<string>();

  constructor(work: MirrorWork, datasets: readonly string[] | undefined) {
    this.#work = work;
    this.#datasets = datasets ? [...new Set(datasets)].sort() : null;
    const known = work.folder.state.datasets ?? [];
    this.#new = (this.#datasets ?? []).filter((name) => !known.includes(name));
    this.#checkedWith = work.signers.length === 0 ? null : work.signers[0].line;
  }

  async run(): Promise<MirrorCounts> {
    const { folder } = this.#work;
    const { state } = folder;
    const local = await this.#local();
    const isSameQuestion =
      JSON.stringify(state.datasets) === JSON.stringify(this.#datasets) &&
      (this.#checkedWith === null || this.#checkedWith === state.checked_with);
    const known = local && isSameQuestion && state.etag !== null ? state.etag : undefined;
    let root: Root = (await this.#firstRoot(known, local !== undefined)) ?? { ...local!, etag: known };
    refuseOlder(root.manifest, local?.manifest);
    for (let round = 1; ; round++) {
      const checked_with = this.#checkedWith === state.checked_with ? state.checked_with : null;
      await folder.remember({ etag: null, datasets: this.#datasets, checked_with });
      const fault = await this.#bring(root.manifest);
      if (!fault) break;
      const next = round < MAX_ROUNDS ? await this.#root(root.etag) : undefined;
      if (!next || Buffer.compare(next.bytes, root.bytes) === 0) throw fault;
      refuseOlder(next.manifest, root.manifest);
      root = next;
    }
    // Last: what it names is there by now.
    await folder.write(MANIFEST_FILE, root.bytes);
    const checked_with = this.#checkedWith ?? state.checked_with;
    await folder.remember({ etag: root.etag ?? null, datasets: this.#datasets, checked_with });
    return { ...this.#counts, change: root.manifest.change };
  }

  /** The root manifest of the last complete run. One that was damaged is as none. */
  async #local(): Promise<Omit<Root, 'etag'> | undefined> {
    const bytes = await this.#work.folder.read(MANIFEST_FILE);
    try {
      return bytes && { bytes, manifest: parseLakeManifest(bytes) };
    } catch (error) {
      if (error instanceof MirrorFault) return undefined;
      throw error;
    }
  }

  /** Where nothing was mirrored yet, a source without a root manifest is no lake: waiting would not help. */
  async #firstRoot(etag: string | undefined, isKnownLake: boolean): Promise<Root | undefined> {
    try {
      return await this.#root(etag);
    } catch (error) {
      if (isKnownLake || !(error instanceof MirrorFault) || error.kind !== 'missing') throw error;
      throw new MirrorFault('refused', error.message, error.cause);
    }
  }

  /** The source's root manifest; undefined if it is the one of the tag. Each of its tables is a signed note. */
  async #root(etag: string | undefined): Promise<Root | undefined> {
    const { downloads, signers } = this.#work;
    const answer = await downloads.document(MANIFEST_FILE, MAX_ROOT_BYTES, etag);
    if (!answer) return undefined;
    const manifest = parseLakeManifest(answer.bytes);
    for (const note of manifest.tables) checkSigned(note, `${MANIFEST_FILE}: ${note.table}`, signers);
    if (!this.#datasets) return { ...answer, manifest };
    const names = new Set(manifest.tables.map(({ table }) => partsOf(table).dataset));
    const unknown = this.#new.find((name) => !names.has(name.split(':', 1)[0]));
    if (unknown !== undefined) {
      throw new MirrorFault('usage', `The lake has no dataset ${unknown}; it has ${[...names].join(', ')}`);
    }
    const tables = manifest.tables.filter(({ table }) => coversInstrument(this.#datasets, partsOf(table).dataset));
    const own = { ...manifest, tables };
    return { manifest: own, bytes: manifestBytes(own), etag: answer.etag };
  }

  /** Brings all tables to their versions. @returns why one could not be had, when all others are there */
  async #bring({ tables }: LakeManifest): Promise<MirrorFault | undefined> {
    const { folder } = this.#work;
    Object.assign(this.#counts, { files: 0, unchanged: 0 });
    const named = new Set(tables.map(({ table }) => table));
    for (const table of await folder.tables()) if (!named.has(table)) await this.#removeTable(table);
    let fault: MirrorFault | undefined;
    for (const note of tables) {
      try {
        await this.#bringTable(note);
      } catch (error) {
        // The source may be replacing this version; its root manifest says so soon. Anything else ends the run.
        if (!(error instanceof MirrorFault) || (error.kind !== 'altered' && error.kind !== 'missing')) throw error;
        fault ??= error;
      }
    }
    return fault;
  }

  async #removeTable(table: string): Promise<void> {
    const { folder } = this.#work;
    this.#counts.removed += (await folder.dataFiles(table)).length;
    for (const path of [table, proofsOf(table)]) await folder.removeTree(path);
  }

  async #bringTable(note: TableVersion): Promise<void> {
    const { folder, stop } = this.#work;
    const { table } = note;
    const { files: all, log } = await this.#read(note);
    const files = all.filter(({ path }) => isChosen(this.#datasets, path));
    this.#requireKnown(table, all);
    const partitions = new Set(files.map(({ name }) => dataFileOf(name)!.folder));
    const active = new Set(files.map(({ name }) => name));
    const old = (await folder.dataFiles(table)).filter((name) => !active.has(name));
    const before = new Set(old.map((name) => dataFileOf(name)!.folder));
    // First: rows that the source withdrew must not be read any longer, however long the downloads take. Until the log says so,
    // whoever goes by it misses a file, which is noticed, as wrong rows would not be.
    await this.#remove(
      table,
      old.filter((name) => !partitions.has(dataFileOf(name)!.folder)),
      true,
    );
    let fault: MirrorFault | undefined;
    let done = 0;
    this.#work.progress(0, files.length);
    await inParallel(files, stop, async (file) => {
      try {
        const isNew = await this.#settle(table, file);
        if (isNew && !this.#touched.has(file.path)) {
          this.#touched.add(file.path);
          this.#counts[before.has(dataFileOf(file.name)!.folder) ? 'replaced' : 'new']++;
        }
      } catch (error) {
        if (!(error instanceof MirrorFault) || (error.kind !== 'altered' && error.kind !== 'missing')) throw error;
        fault ??= error;
      }
      this.#work.progress(++done, files.length);
    });
    if (fault) throw fault;
    this.#counts.files += files.length;
    this.#counts.unchanged += files.filter(({ path }) => !this.#touched.has(path)).length;
    for (const [name, bytes] of log) await folder.write(`${table}/${LOG_FOLDER}/${name}`, bytes);
    const names = logFilesOf(note.version, note.log_checkpoint);
    for (const name of await folder.names(`${table}/${LOG_FOLDER}`)) {
      if (!names.includes(name)) await folder.remove([`${table}/${LOG_FOLDER}/${name}`]);
    }
    await this.#remove(table, old, false);
    const own = noteName(note.version);
    if (
      Buffer.compare((await folder.read(`${proofsOf(table)}/${own}`)) ?? Buffer.alloc(0), manifestBytes(note)) !== 0
    ) {
      await folder.write(`${proofsOf(table)}/${own}`, manifestBytes(note));
    }
    const proofs = new Set([own, ...files.map(({ name }) => manifestName(name))]);
    for (const name of await folder.names(proofsOf(table))) {
      if (!proofs.has(name)) await folder.remove([`${proofsOf(table)}/${name}`]);
    }
  }

  /** Of instruments that were never mirrored, each has a file. @throws MirrorFault usage */
  #requireKnown(table: string, files: readonly LakeFile[]): void {
    const { dataset } = partsOf(table);
    const found = new Set(files.map(({ name }) => dataFileOf(name)!.instrument));
    for (const name of this.#new) {
      const [of, instrument] = name.split(':');
      if (of !== dataset || instrument === undefined || found.has(instrument)) continue;
      throw new MirrorFault(
        'usage',
        `The table ${table} has no instrument ${instrument}; it has ${[...found].sort().join(', ')}`,
      );
    }
  }

  async #remove(table: string, names: readonly string[], isWithdrawn: boolean): Promise<void> {
    const { folder } = this.#work;
    for (const name of names) {
      await folder.remove([`${table}/${name}`, `${proofsOf(table)}/${manifestName(name)}`]);
      if (isWithdrawn) this.#counts.removed++;
    }
  }

  /** The active files of a version, and what of its log is not here yet. Files of a log never change: those here are read again only if they are wrong. */
  async #read(
    note: TableVersion,
  ): Promise<{ readonly files: readonly LakeFile[]; readonly log: Map<string, Uint8Array> }> {
    const { folder, downloads } = this.#work;
    const read = async (useLocal: boolean) => {
      const log = new Map<string, Uint8Array>();
      const { files } = await readVersion(note, async (name, limit) => {
        const path = `${note.table}/${LOG_FOLDER}/${name}`;
        const local = useLocal ? await folder.read(path) : undefined;
        if (local && local.length <= limit) return local;
        const { bytes } = (await downloads.document(path, limit))!;
        log.set(name, bytes);
        return bytes;
      });
      return { files, log };
    };
    try {
      return await read(true);
    } catch (error) {
      if (!(error instanceof MirrorFault) || error.kind !== 'manifest') throw error;
      return await read(false);
    }
  }

  /** Has a file and its manifest here, whole. @returns whether rows were downloaded */
  async #settle(table: string, file: LakeFile): Promise<boolean> {
    const { folder, downloads, signers, signal, verify } = this.#work;
    if (this.#seen.has(file.path)) return false;
    const isHere = (await folder.sizeOf(file.path)) === file.bytes;
    const isWhole = isHere && (!verify || (await folder.holds(file, signal)));
    const isChecked = this.#checkedWith === null || this.#checkedWith === folder.state.checked_with;
    const isKnown = isWhole && isChecked && !verify && (await folder.sizeOf(file.manifest)) !== undefined;
    if (!isKnown) {
      const held = await folder.read(file.manifest);
      const isHeld = held !== undefined && isOf(held, table, file);
      const manifest = isHeld ? held : (await downloads.document(file.manifest, MAX_MANIFEST_BYTES))!.bytes;
      checkSigned(parseFileManifest(manifest, table, file), file.manifest, signers);
      if (!isHeld) await folder.write(file.manifest, manifest);
    }
    if (!isWhole) await folder.place(await downloads.file(file), file.path);
    this.#seen.add(file.path);
    return !isWhole;
  }
}

/** Whether a local manifest is that of the file; one that was damaged is had again. */
function isOf(bytes: Uint8Array, table: string, file: LakeFile): boolean {
  try {
    parseFileManifest(bytes, table, file);
    return true;
  } catch (error) {
    if (error instanceof MirrorFault) return false;
    throw error;
  }
}

/** A source that goes back was set back, or a cache answers. @throws MirrorFault */
function refuseOlder(next: LakeManifest, before: LakeManifest | undefined): void {
  const seen = new Map(before?.tables.map((note) => [note.table, note.version]));
  for (const { table, version } of next.tables) {
    const last = seen.get(table) ?? -1;
    if (version >= last) continue;
    throw new MirrorFault(
      'manifest',
      `The source has version ${version} of ${table}, which is older than the mirror's version ${last}: it was set back, or a cache answers. To mirror it nevertheless, begin in another folder`,
    );
  }
}
