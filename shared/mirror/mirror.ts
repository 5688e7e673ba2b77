/** A local copy of a remote lake, or of a service's exports: only what changed is downloaded, and every byte is verified. */
import type { Verifier } from '../proof-log/note.ts';
import { manifestBytes } from '../proof-log/signed-manifest.ts';
import { Downloads, inParallel } from './downloads.ts';
import { mirrorExports } from './exports.ts';
import { type MirrorCounts, MirrorFolder, type MirrorKind, type MirrorWork } from './folder.ts';
import {
  checkSigned,
  DATASET,
  type LakeFile,
  type LakeManifest,
  MANIFEST_FILE,
  MAX_ROOT_BYTES,
  MirrorFault,
  parseFileManifest,
  parseLakeManifest,
  ROWS_FILE,
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
  /** A lake: only these datasets. Default all. */
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

const EXPORTS_PATH = /\/v1\/raw\/export\/?$/;

/**
 * Brings the folder to the state of the source. A run that is interrupted or fails leaves whole, verified files; the next one
 * continues. @throws MirrorFault, the signal's reason, or the error of the file system
 */
export async function mirror(options: MirrorOptions): Promise<MirrorReport> {
  const startedAt = performance.now();
  const { from, to, signers = [], datasets, exports } = options;
  const { stallMs = 30_000, attempts = 5, pauseMs = 500 } = options;
  const wrong = datasets?.find((name) => !DATASET.test(name));
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

/** A file that is not known to be the one of the root manifest. */
interface Doubt {
  readonly file: LakeFile;
  /** The rows are known to be the right ones. */
  readonly trustRows: boolean;
}

class LakeMirror {
  readonly #work: MirrorWork;
  readonly #datasets: readonly string[] | null;
  /** Names the keys of this run, to know whether the last run checked with the same. */
  readonly #checkedWith: string | null;
  /** Path -> digests of the file and its manifest, which this run has seen. */
  readonly #seen = new Map<string, string>();
  /** Files of the last complete run that had to be downloaded again. */
  readonly #repaired = new Set<string>();

  constructor(work: MirrorWork, datasets: readonly string[] | undefined) {
    this.#work = work;
    this.#datasets = datasets ? [...new Set(datasets)].sort() : null;
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
    this.#refuseOlder(root, local);
    let strays = 0;
    for (let round = 1; ; round++) {
      const doubts = await this.#doubts(root, local);
      const extra = await this.#extra(root);
      if (doubts.length === 0 && extra.length === 0 && local && Buffer.compare(root.bytes, local.bytes) === 0) break;
      const pending = new Set([...folder.state.pending, ...doubts.map(({ file }) => file.path), ...extra.flat()]);
      // Files of this run are checked with its key, the others with the key of the last run.
      const checked_with = this.#checkedWith === state.checked_with ? state.checked_with : null;
      await folder.remember({ etag: null, datasets: this.#datasets, checked_with, pending: [...pending].sort() });
      // First: rows that the source withdrew must not be read any longer, however long the downloads take. Until the root manifest
      // is replaced, whoever goes by it misses a file, which is noticed, as wrong rows would not be.
      for (const paths of extra) await folder.remove(paths);
      strays += extra.filter(([path]) => !local?.manifest.files.some((file) => file.path === path)).length;
      const fault = await this.#settle(doubts);
      if (!fault) {
        // Last: what it names is there by now.
        await folder.write(MANIFEST_FILE, root.bytes);
        break;
      }
      const next = round < MAX_ROUNDS ? await this.#root(root.etag) : undefined;
      if (!next || Buffer.compare(next.bytes, root.bytes) === 0) throw fault;
      this.#refuseOlder(next, root);
      root = next;
    }
    await this.#finish(root);
    return this.#counts(root, local, strays);
  }

  /** Remembers the tag after all else: with an older one the next run compares, and finds nothing to do. */
  async #finish(root: Root): Promise<void> {
    const etag = root.etag ?? null;
    const { folder } = this.#work;
    const { state } = folder;
    const checked_with = this.#checkedWith ?? state.checked_with;
    const isKnown = state.etag === etag && state.pending.length === 0 && state.checked_with === checked_with;
    if (isKnown && JSON.stringify(state.datasets) === JSON.stringify(this.#datasets)) return;
    await folder.remember({ etag, datasets: this.#datasets, checked_with, pending: [] });
  }

  #counts({ manifest }: Root, local: Omit<Root, 'etag'> | undefined, strays: number): MirrorCounts {
    const before = new Map((local?.manifest.files ?? []).map((file) => [file.path, digestsOf(file)]));
    const counts = { files: manifest.files.length, new: 0, replaced: 0, removed: strays, unchanged: 0 };
    for (const file of manifest.files) {
      const known = before.get(file.path);
      before.delete(file.path);
      if (known === undefined) counts.new++;
      else if (known === digestsOf(file) && !this.#repaired.has(file.path)) counts.unchanged++;
      else counts.replaced++;
    }
    counts.removed += before.size;
    return { ...counts, change: manifest.change };
  }

  /** The root manifest of the last complete run. One that was damaged is as none: all files are hashed again. */
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

  /** The source's root manifest; undefined if it is the one of the tag. */
  async #root(etag: string | undefined): Promise<Root | undefined> {
    const { downloads, signers, folder } = this.#work;
    const answer = await downloads.document(MANIFEST_FILE, MAX_ROOT_BYTES, etag);
    if (!answer) return undefined;
    const manifest = parseLakeManifest(answer.bytes);
    checkSigned(manifest.parsed, MANIFEST_FILE, signers);
    if (!this.#datasets) return { ...answer, manifest };
    const names = new Set(manifest.files.map(({ dataset }) => dataset));
    const unknown = this.#datasets.find((name) => !names.has(name) && !folder.state.datasets?.includes(name));
    if (unknown !== undefined) {
      throw new MirrorFault('usage', `The lake has no dataset ${unknown}; it has ${[...names].join(', ')}`);
    }
    const files = manifest.files.filter(({ dataset }) => this.#datasets!.includes(dataset));
    // The signature covers all files, and does not hold for some of them.
    const bytes = manifestBytes({ ...manifest.parsed, files, signed: null });
    return { manifest: { ...manifest, files }, bytes, etag: answer.etag };
  }

  #refuseOlder({ manifest: next }: Root, before: Omit<Root, 'etag'> | undefined): void {
    if (!before || next.change >= before.manifest.change) return;
    throw new MirrorFault(
      'manifest',
      `The source is of change ${next.change} and older than the mirror, which is of change ${before.manifest.change}: it was set back, or a cache answers. To mirror it nevertheless, begin in another folder`,
    );
  }

  /** The files of the root manifest that are not known to be there: by the last run's root manifest and their sizes, and by no more. */
  async #doubts({ manifest }: Root, local: Omit<Root, 'etag'> | undefined): Promise<Doubt[]> {
    const { folder, verify, signal } = this.#work;
    const pending = new Set(folder.state.pending);
    const known = new Map((local?.manifest.files ?? []).map((file) => [file.path, digestsOf(file)]));
    const isChecked = this.#checkedWith === null || this.#checkedWith === folder.state.checked_with;
    const doubts: Doubt[] = [];
    for (const file of manifest.files) {
      signal?.throwIfAborted();
      if (this.#seen.get(file.path) === digestsOf(file)) continue;
      const isKnown = !verify && !pending.has(file.path) && known.get(file.path) === digestsOf(file);
      const trustRows = isKnown && (await folder.sizeOf(file.path)) === file.bytes;
      const trustManifest = trustRows && (await folder.sizeOf(file.manifest.path)) === file.manifest.bytes;
      if (!trustManifest || !isChecked) doubts.push({ file, trustRows });
    }
    return doubts;
  }

  /** What lies in the folder where a lake has its files, and is none of this root manifest's: rows before their manifest. */
  async #extra({ manifest }: Root): Promise<string[][]> {
    const { folder } = this.#work;
    const named = new Set(manifest.files.map(({ path }) => path));
    const extra: string[][] = [];
    const below = async (path: string, prefix: string) =>
      (await folder.names(path)).filter((name) => name.startsWith(prefix)).map((name) => `${path}${name}/`);
    for (const dataset of await below('', 'dataset=')) {
      for (const mode of await below(dataset, 'mode=')) {
        for (const date of await below(mode, 'date=')) {
          if (named.has(`${date}${ROWS_FILE}`)) continue;
          const names = await folder.names(date);
          const found = [ROWS_FILE, MANIFEST_FILE].filter((name) => names.includes(name));
          if (found.length > 0) extra.push(found.map((name) => `${date}${name}`));
        }
      }
    }
    return extra;
  }

  /** Downloads what is missing. @returns why a file could not be had, when all others are there */
  async #settle(doubts: readonly Doubt[]): Promise<MirrorFault | undefined> {
    let fault: MirrorFault | undefined;
    let done = 0;
    this.#work.progress(0, doubts.length);
    await inParallel(doubts, this.#work.stop, async (doubt) => {
      try {
        await this.#settleOne(doubt);
      } catch (error) {
        // The source may be replacing this file; its root manifest says so soon. Anything else ends the run.
        if (!(error instanceof MirrorFault) || (error.kind !== 'altered' && error.kind !== 'missing')) throw error;
        fault ??= error;
      }
      this.#work.progress(++done, doubts.length);
    });
    return fault;
  }

  async #settleOne({ file, trustRows }: Doubt): Promise<void> {
    const { folder, downloads, signers, signal } = this.#work;
    const hasManifest = await folder.holds(file.manifest, signal);
    const partial = hasManifest ? undefined : await downloads.file(file.manifest);
    const bytes = await folder.read(partial === undefined ? file.manifest.path : folder.relative(partial));
    // Before the rows, which are much larger.
    checkSigned(parseFileManifest(bytes!, file), file.manifest.path, signers);
    const hasRows = trustRows || (await folder.holds(file, signal));
    const rows = hasRows ? undefined : await downloads.file(file);
    // The manifest first, as a lake has it: the digest of the rows is in it or, until they are replaced, in the root manifest.
    if (partial !== undefined) await folder.place(partial, file.manifest.path);
    if (rows !== undefined) await folder.place(rows, file.path);
    if (!hasRows || !hasManifest) this.#repaired.add(file.path);
    this.#seen.set(file.path, digestsOf(file));
  }
}

const digestsOf = ({ sha256, manifest }: LakeFile): string => `${sha256} ${manifest.sha256}`;
