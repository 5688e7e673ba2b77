/**
 * The folder of a mirror. `_mirror.json` marks it and remembers the last run; what is not complete lies in `_partial` and gets its
 * final name by rename, so that a reader sees whole files only. Nothing is written or removed through a link in the folder.
 */
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { link, lstat, open, readdir, readFile, rename, rm, rmdir, writeFile } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import {
  isMissing,
  LinkInFolder,
  makeFolder,
  namesIn,
  readIfThere,
  refuseLinks,
  syncFolder,
} from '../proof-log/folder.ts';
import type { Verifier } from '../proof-log/note.ts';
import { dataFileOf } from './delta-log.ts';
import type { Downloads } from './downloads.ts';
import {
  isObject,
  MANIFEST_FILE,
  MirrorFault,
  type NamedBytes,
  PARTIAL_FOLDER,
  parseObject,
  partsOf,
} from './lake-manifest.ts';
import type { Source } from './source.ts';

export const MIRROR_FILE = '_mirror.json';
const LOCK_FILE = 'lock';
/** What file systems without hard links answer, such as exFAT's. */
const NO_LINKS: ReadonlySet<string> = new Set(['EPERM', 'ENOTSUP', 'ENOSYS']);
const VERSION = 2;

export type MirrorKind = 'lake' | 'exports';

/** What a mirror remembers of its last run. */
export interface MirrorState {
  readonly kind: MirrorKind;
  readonly from: string;
  /** The tag of the source's root manifest that the folder equals; null: unknown, as while a run is under way. */
  readonly etag: string | null;
  /** The datasets that are mirrored; null: all. */
  readonly datasets: readonly string[] | null;
  /** The key that all manifests were checked with; null: none was given. */
  readonly checked_with: string | null;
}

/** What both kinds of mirrors work with. */
export interface MirrorWork {
  readonly folder: MirrorFolder;
  readonly source: Source;
  readonly downloads: Downloads;
  /** The keys that sign manifests; none: signatures are not checked. */
  readonly signers: readonly Verifier[];
  readonly verify: boolean;
  readonly signal: AbortSignal;
  /** Ends all downloads, because of an error. */
  stop(error: unknown): void;
  progress(done: number, total: number): void;
}

export interface MirrorCounts {
  /** Files of rows, without their manifests. */
  readonly files: number;
  readonly new: number;
  readonly replaced: number;
  readonly removed: number;
  readonly unchanged: number;
  /** The change up to which the copy holds everything; null for exports. */
  readonly change: number | null;
}

/** Folders that this process mirrors to. */
const held = new Set<string>();

export class MirrorFolder implements AsyncDisposable {
  readonly path: string;
  readonly partial: string;
  #state: MirrorState;

  private constructor(path: string, state: MirrorState) {
    this.path = path;
    this.partial = join(path, PARTIAL_FOLDER);
    this.#state = state;
  }

  get state(): MirrorState {
    return this.#state;
  }

  /**
   * Opens a mirror of a source, or begins one in a folder that is missing or empty. Anything else is refused and stays as it is.
   * @throws MirrorFault folder, held
   */
  static async open(to: string, kind: MirrorKind, from: string): Promise<MirrorFolder> {
    const path = resolve(to);
    const state = await knownState(path, kind, from);
    const folder = new MirrorFolder(path, state ?? { ...NOTHING, kind, from });
    await folder.#refuseLinks(join(PARTIAL_FOLDER, LOCK_FILE));
    await makeFolder(folder.partial);
    await folder.#lock();
    // Marked before anything else is in it, so that an interrupted first run continues.
    if (!state) await folder.remember({});
    return folder;
  }

  /** Changes what the next run will know. */
  async remember(changes: Partial<MirrorState>): Promise<void> {
    this.#state = { ...this.#state, ...changes };
    await this.write(MIRROR_FILE, `${JSON.stringify({ mirror_version: VERSION, ...this.#state }, undefined, 2)}\n`);
  }

  /** Gives a whole file of `_partial`, which is on the disk, its final name. */
  async place(partial: string, path: string): Promise<void> {
    const target = join(this.path, path);
    await this.#refuseLinks(path);
    await makeFolder(dirname(target));
    await rename(partial, target);
    await syncFolder(dirname(target));
  }

  /** Replaces a small file. */
  async write(path: string, bytes: Uint8Array | string): Promise<void> {
    const partial = join(this.partial, path.replaceAll('/', '+'));
    await rm(partial, { recursive: true, force: true });
    const file = await open(partial, 'wx');
    try {
      await file.writeFile(bytes);
      await file.sync();
    } finally {
      await file.close();
    }
    await this.place(partial, path);
  }

  /** Removes files, and the folders that are empty then. */
  async remove(paths: readonly string[]): Promise<void> {
    for (const path of paths) {
      await this.#refuseLinks(path);
      await rm(join(this.path, path), { force: true });
      for (let folder = dirname(path); folder !== '.'; folder = dirname(folder)) {
        const isLeft = await rmdir(join(this.path, folder)).then(
          () => true,
          (error: NodeJS.ErrnoException) => error.code === 'ENOENT',
        );
        if (!isLeft) break;
      }
    }
  }

  /** Removes a folder with all that is in it, and those above it that are empty then. */
  async removeTree(path: string): Promise<void> {
    await this.#refuseLinks(path);
    await rm(join(this.path, path), { recursive: true, force: true });
    await this.remove([path]);
  }

  /** The tables that are here, whole or not. */
  async tables(): Promise<string[]> {
    const found: string[] = [];
    for (const dataset of await this.names('.')) {
      for (const mode of await this.names(dataset)) found.push(`${dataset}/${mode}`);
    }
    return found.filter((table) => partsOf(table).dataset !== undefined);
  }

  /** The files of rows of a table, below its folder, whichever version has them. */
  async dataFiles(table: string): Promise<string[]> {
    const found: string[] = [];
    const below = async (folder: string): Promise<void> => {
      for (const name of await this.names(`${table}/${folder}`)) {
        const path = folder === '' ? name : `${folder}/${name}`;
        if (dataFileOf(path)) found.push(path);
        else if (name.includes('=')) await below(path);
      }
    };
    await below('');
    return found;
  }

  /** @throws MirrorFault folder */
  async #refuseLinks(path: string): Promise<void> {
    await refuseLinks(this.path, path).catch((error) => {
      throw error instanceof LinkInFolder ? new MirrorFault('folder', error.message, error) : error;
    });
  }

  /** The bytes of a file; undefined where it is missing. */
  read(path: string): Promise<Buffer | undefined> {
    return readIfThere(join(this.path, path));
  }

  /** Size of a file; undefined where there is none, or a link, which is replaced. */
  async sizeOf(path: string): Promise<number | undefined> {
    try {
      const found = await lstat(join(this.path, path));
      return found.isFile() ? found.size : undefined;
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  }

  /** Whether a file has these bytes. It reads all of them. @throws the signal's reason */
  async holds({ path, bytes, sha256 }: NamedBytes, signal?: AbortSignal): Promise<boolean> {
    if ((await this.sizeOf(path)) !== bytes) return false;
    const file = await open(join(this.path, path), constants.O_RDONLY | constants.O_NOFOLLOW);
    const hash = createHash('sha256');
    for await (const chunk of file.createReadStream({ highWaterMark: 1 << 20 })) {
      signal?.throwIfAborted();
      hash.update(chunk as Buffer);
    }
    return hash.digest('hex') === sha256;
  }

  /** Names in a folder, sorted; none where it is missing. */
  names(path: string): Promise<string[]> {
    return namesIn(join(this.path, path));
  }

  /** Removes what an earlier run left unfinished and this one does not need. */
  async clear(): Promise<void> {
    for (const name of await this.names(PARTIAL_FOLDER))
      if (name !== LOCK_FILE) await rm(join(this.partial, name), { recursive: true, force: true });
  }

  /** Two runs at once would write to the same partial files. The lock of a process that was killed is taken over. */
  async #lock(): Promise<void> {
    if (held.has(this.path)) throw heldBy(this.path, process.pid);
    held.add(this.path);
    const own = join(this.partial, `${LOCK_FILE}.${process.pid}`);
    try {
      await this.#take(own);
    } catch (error) {
      held.delete(this.path);
      throw error;
    } finally {
      await rm(own, { force: true });
    }
  }

  /** @param own a file that gets the pid first: another run that saw a lock without one would take it over */
  async #take(own: string): Promise<void> {
    const path = join(this.partial, LOCK_FILE);
    for (let attempt = 1; ; attempt++) {
      try {
        await putLock(own, path);
        return;
      } catch (error) {
        // The run that holds the folder cleared the file between the two steps.
        if (isMissing(error) && attempt <= 2) continue;
        if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
        const pid = await holderOf(path);
        if (pid !== undefined && (attempt > 2 || !isStale(pid))) throw heldBy(this.path, pid);
        await this.#removeStale(own, path);
      }
    }
  }

  /** One run at a time: another that had seen the same lock of a killed process would remove the one that this run takes next. */
  async #removeStale(own: string, path: string): Promise<void> {
    const removing = `${path}.removing`;
    try {
      await putLock(own, removing);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
      const pid = await holderOf(removing);
      if (pid !== undefined && !isStale(pid)) throw heldBy(this.path, pid);
      await rm(removing, { force: true });
      return;
    }
    try {
      const pid = await holderOf(path);
      if (pid !== undefined && isStale(pid)) await rm(path, { force: true });
    } finally {
      await rm(removing, { force: true });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    held.delete(this.path);
    await rm(join(this.partial, LOCK_FILE), { force: true });
    // It stays while it holds something to continue with.
    await rmdir(this.partial).catch(() => {});
  }
}

const NOTHING = { etag: null, datasets: null, checked_with: null } as const;

const heldBy = (path: string, pid: number): MirrorFault =>
  new MirrorFault(
    'held',
    `Process ${pid} mirrors to ${path}. If there is none, remove ${join(path, PARTIAL_FOLDER, LOCK_FILE)}`,
  );

/** Makes a lock of this process; a file system without hard links has it for a moment without its pid. @throws EEXIST */
async function putLock(own: string, path: string): Promise<void> {
  // Not opened where it is there: it may be a link.
  await rm(own, { force: true });
  await writeFile(own, String(process.pid), { flag: 'wx' });
  await link(own, path).catch((error: NodeJS.ErrnoException) => {
    if (!NO_LINKS.has(String(error.code))) throw error;
    return writeFile(path, String(process.pid), { flag: 'wx' });
  });
}

/** The pid in a lock; undefined where it is gone. */
async function holderOf(path: string): Promise<number | undefined> {
  const pid = await readIfThere(path);
  return pid && Number(pid);
}

/** Of a killed process, be it that its pid is this one's. */
const isStale = (pid: number): boolean => pid === process.pid || !isAlive(pid);

function isAlive(pid: number): boolean {
  // Zero and negative numbers mean groups of processes.
  if (!Number.isSafeInteger(pid) || pid <= 0) return false;
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** The state of a mirror of this source; undefined where one can begin. @throws MirrorFault folder */
async function knownState(path: string, kind: MirrorKind, from: string): Promise<MirrorState | undefined> {
  const refused = (why: string, cause?: unknown) => new MirrorFault('folder', `${path} ${why}`, cause);
  let names: string[];
  try {
    names = await readdir(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw refused('is not a folder that can be read', error);
  }
  if (!names.includes(MIRROR_FILE)) {
    // A run that was killed before it marked the folder leaves this.
    if (names.every((name) => name === PARTIAL_FOLDER)) return undefined;
    throw refused(
      names.includes(MANIFEST_FILE)
        ? `is a lake that another program keeps: it has no ${MIRROR_FILE}`
        : 'is neither empty nor a mirror',
    );
  }
  const state = stateOf(await readFile(join(path, MIRROR_FILE)));
  if (!state) throw refused(`has a ${MIRROR_FILE} that cannot be read`);
  if (state.kind !== kind || state.from !== from) {
    // A first run that got nothing, because the address or the key was wrong, leaves a mark and no more.
    if (names.every((name) => name === MIRROR_FILE || name === PARTIAL_FOLDER)) return undefined;
    throw refused(
      `mirrors the ${state.kind} of ${state.from}. If its source only has another address now, change \`from\` in its ${MIRROR_FILE}`,
    );
  }
  return state;
}

const isTextOrNull = (value: unknown): value is string | null => value === null || typeof value === 'string';
const isTexts = (value: unknown): value is string[] =>
  Array.isArray(value) && value.every((each) => typeof each === 'string');

export function stateOf(bytes: Uint8Array): MirrorState | undefined {
  let state: Record<string, unknown>;
  try {
    state = parseObject(bytes, MIRROR_FILE);
  } catch {
    return undefined;
  }
  const { mirror_version: version, kind, from, etag, datasets, checked_with } = state;
  if (!isObject(state) || version !== VERSION || (kind !== 'lake' && kind !== 'exports')) return undefined;
  if (typeof from !== 'string' || !isTextOrNull(etag) || !isTextOrNull(checked_with)) return undefined;
  if (!(datasets === null || isTexts(datasets))) return undefined;
  return { kind, from, etag, datasets, checked_with };
}
