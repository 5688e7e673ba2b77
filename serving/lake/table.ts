/**
 * One Delta table of a lake, as its writer keeps it. Files of rows are whole and have their manifest before a commit names them; the
 * commit appears at once or not at all, at the next free version; the note of the version follows. What a kill leaves between these
 * steps the next writer finds: rows without a commit are committed where they still hold, rows that were withdrawn have no manifest
 * any longer and go.
 */
import { randomBytes } from 'node:crypto';
import { link, lstat, readFile, rename, rm, rmdir, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import {
  type Action,
  type Added,
  APP_ID,
  actionsOf,
  checkpointName,
  commitName,
  dataFileOf,
  filesDigest,
  LAST_CHECKPOINT,
  LOG_FOLDER,
  logFileOf,
  logFilesOf,
  type MetaData,
  readSnapshot,
  Snapshot,
} from '../../shared/mirror/delta-log.ts';
import {
  LAKE_VERSION,
  manifestName,
  noteName,
  PARTIAL_FOLDER,
  proofsOf,
  type TableVersion,
} from '../../shared/mirror/lake-manifest.ts';
import {
  isMissing,
  makeFolder,
  namesIn,
  readIfThere,
  refuseLinks,
  syncFolder,
  writeDurably,
} from '../../shared/proof-log/folder.ts';
import type { Signer } from '../../shared/proof-log/note.ts';
import { manifestBytes, signManifest } from '../../shared/proof-log/signed-manifest.ts';
import { checkpointOf, PROTOCOL, statsOf } from './delta-write.ts';
import { valuesOf } from './format.ts';

/** What the manifest of a file of rows says of it. */
export interface FileFacts {
  /** Path below the table. */
  readonly name: string;
  readonly folder: string;
  readonly date: string;
  readonly rows: number;
  readonly bytes: number;
  readonly sha256: string;
  readonly synthetic: boolean;
  /** Digest over everything in the catalog that the rows depend on. */
  readonly state: string;
}

export interface TableDeps {
  /** The folder of the lake. */
  readonly location: string;
  readonly signer: () => Promise<Signer | undefined>;
  readonly now: () => number;
  /** What a revision replaces is kept for so long, and older versions with it. */
  readonly keepMs: number;
}

export interface Commit {
  readonly remove: readonly string[];
  readonly add: readonly FileFacts[];
  readonly metaData: MetaData;
  readonly change: number;
  /** Of the proof log. */
  readonly checkpoint: string | null;
  /** The folders whose rows were withdrawn: their bytes go at once, with those of older versions. */
  readonly withdrawn: ReadonlySet<string>;
}

/** A checkpoint follows every so many commits. */
const CHECKPOINT_COMMITS = 10;

const codeOf = (error: unknown) => String((error as NodeJS.ErrnoException | null)?.code);
/** What file systems without hard links answer, such as exFAT's. */
const NO_LINKS: ReadonlySet<string> = new Set(['EPERM', 'ENOTSUP', 'ENOSYS']);

export class LakeTable {
  /** Folder below the lake: `<dataset>/<mode>`. */
  readonly table: string;
  /** Files that the newest version has, by folder: one for each combination of partition values. */
  readonly active = new Map<string, FileFacts>();
  /** Whole files that no version has yet, by folder. */
  readonly staged = new Map<string, FileFacts>();
  /** Files that the newest version has, and that are not there or are none of a writer's: the next commit removes them. */
  readonly lost = new Set<string>();
  readonly #deps: TableDeps;
  #snapshot = new Snapshot();
  /** The Delta checkpoint that reading begins with. */
  #checkpoint: number | null = null;
  #note: TableVersion | undefined;
  /** When this writer committed last. */
  committedAt = Number.NEGATIVE_INFINITY;

  private constructor(table: string, deps: TableDeps) {
    this.table = table;
    this.#deps = deps;
  }

  static async open(table: string, deps: TableDeps): Promise<LakeTable> {
    const one = new LakeTable(table, deps);
    await one.#open();
    return one;
  }

  /** The note of the newest version that has one. */
  get note(): TableVersion | undefined {
    return this.#note;
  }

  get version(): number {
    return this.#snapshot.version;
  }

  get change(): number {
    return this.#snapshot.change;
  }

  get metaData(): MetaData | undefined {
    return this.#snapshot.metaData;
  }

  async #open(): Promise<void> {
    const log = (await namesIn(this.#path(LOG_FOLDER))).flatMap((name) => logFileOf(name) ?? []);
    const version = Math.max(-1, ...log.map((file) => file.version));
    if (version >= 0) {
      const checkpoints = log.filter(({ isCheckpoint }) => isCheckpoint).map((file) => file.version);
      this.#checkpoint = checkpoints.length > 0 ? Math.max(...checkpoints) : null;
      const read = (name: string) => readFile(this.#path(LOG_FOLDER, name));
      this.#snapshot = await readSnapshot(read, version, this.#checkpoint);
    }
    const manifests = await this.#manifests();
    const there = new Map<string, number>();
    await this.#filesBelow('', there);
    for (const [name, { size }] of this.#snapshot.files) {
      const facts = manifests.get(name);
      const isWhole = facts?.bytes === size && there.get(name) === size && !this.active.has(facts.folder);
      if (isWhole) this.active.set(facts.folder, facts);
      else this.lost.add(name);
    }
    for (const [name, bytes] of there) {
      if (this.#snapshot.files.has(name)) continue;
      const facts = manifests.get(name);
      if (facts && this.#snapshot.removed.has(name)) continue;
      if (facts?.bytes === bytes && !this.staged.has(facts.folder)) this.staged.set(facts.folder, facts);
      else await this.#delete(name);
    }
    for (const name of manifests.keys()) if (!there.has(name)) await this.#delete(name);
    if (version < 0) return;
    this.#note = await this.#readNote(version);
    await this.#publish();
    await this.#tidy();
  }

  async #manifests(): Promise<Map<string, FileFacts>> {
    const found = new Map<string, FileFacts>();
    for (const name of await namesIn(this.#proof())) {
      if (/^\d{20}\.json$/.test(name)) continue;
      const facts = factsOf(await readFile(this.#proof(name), 'utf8'));
      if (facts && manifestName(facts.name) === name) found.set(facts.name, facts);
      else await rm(this.#proof(name), { force: true });
    }
    return found;
  }

  /** Sizes of the files of rows in the folder of the table. Files of others are left alone. */
  async #filesBelow(folder: string, found: Map<string, number>): Promise<void> {
    for (const name of await namesIn(this.#path(folder))) {
      const path = folder === '' ? name : `${folder}/${name}`;
      const stats = await lstat(this.#path(path));
      if (stats.isDirectory() && name.includes('=')) await this.#filesBelow(path, found);
      else if (dataFileOf(path)) found.set(path, stats.isFile() ? stats.size : -1);
    }
  }

  /** Takes a whole file and its manifest into the table's folder. The next commit adds it. */
  async stage(facts: FileFacts, rows: string, manifest: Uint8Array): Promise<void> {
    await this.describe(facts, manifest);
    const path = this.#path(facts.name);
    await this.#refuseLinks(path);
    await makeFolder(dirname(path));
    await rename(rows, path);
    await syncFolder(dirname(path));
    this.staged.set(facts.folder, facts);
  }

  /** Replaces the manifest of a file. */
  async describe(facts: FileFacts, manifest: Uint8Array): Promise<void> {
    const path = this.#proof(manifestName(facts.name));
    await this.#refuseLinks(path);
    await writeDurably(path, manifest, 0o640);
    if (this.active.get(facts.folder)?.name === facts.name) this.active.set(facts.folder, facts);
  }

  /** Deletes a file that no version has yet. */
  async drop(folder: string): Promise<void> {
    const facts = this.staged.get(folder);
    this.staged.delete(folder);
    if (facts) await this.#delete(facts.name);
  }

  /**
   * Commits at the next free version, and deletes the bytes of what was withdrawn.
   * @returns whether it did: not where another writer changed the files of the table meanwhile
   */
  async commit(commit: Commit): Promise<boolean> {
    const { remove, add, metaData, change, checkpoint } = commit;
    const now = this.#deps.now();
    const isWithdrawn = (name: string) => commit.withdrawn.has(dirname(name));
    const withdrawn = remove.filter(isWithdrawn);
    for (const name of this.#snapshot.removed.keys()) if (isWithdrawn(name)) await this.#delete(name);
    // A writer that is killed before it deletes them leaves files without manifests, which the next one deletes.
    for (const name of withdrawn) await rm(this.#proof(manifestName(name)), { force: true });
    if (remove.length === 0 && add.length === 0 && metaData === this.metaData) return true;
    const actions: Action[] = [
      {
        commitInfo: {
          timestamp: now,
          operation: add.length > 0 || remove.length === 0 ? 'WRITE' : 'DELETE',
          operationParameters: {},
          isBlindAppend: remove.length === 0,
          engineInfo: APP_ID,
          change,
          checkpoint,
        },
      },
    ];
    if (this.version < 0) actions.push({ protocol: PROTOCOL });
    if (metaData !== this.metaData) actions.push({ metaData });
    actions.push({ txn: { appId: APP_ID, version: change, lastUpdated: now } });
    for (const name of remove) {
      const known = this.#snapshot.files.get(name)!;
      const { path, partitionValues, size } = known;
      const deleted = { deletionTimestamp: now, dataChange: true, extendedFileMetadata: true };
      actions.push({ remove: { path, ...deleted, partitionValues, size } });
    }
    for (const facts of add) actions.push({ add: await this.#added(facts) });
    while (!(await this.#put(actions))) if (await this.meet()) return false;
    this.#snapshot.apply(this.version + 1, actions);
    this.committedAt = performance.now();
    for (const name of remove) {
      this.#forget(name);
      this.lost.delete(name);
    }
    for (const facts of add) {
      this.staged.delete(facts.folder);
      this.active.set(facts.folder, facts);
    }
    for (const name of withdrawn) await this.#delete(name);
    if (this.version > 0 && this.version % CHECKPOINT_COMMITS === 0) await this.#writeCheckpoint();
    await this.#publish();
    return true;
  }

  async #added({ name, folder, bytes }: FileFacts): Promise<Added> {
    const path = this.#path(name);
    const { mtimeMs } = await stat(path);
    return {
      path: name,
      partitionValues: valuesOf(folder),
      size: bytes,
      modificationTime: Math.floor(mtimeMs),
      dataChange: true,
      stats: await statsOf(path),
    };
  }

  /** Puts a commit at the next version. @returns false where another writer has taken it */
  async #put(actions: readonly Action[]): Promise<boolean> {
    const bytes = `${actions.map((action) => JSON.stringify(action)).join('\n')}\n`;
    const target = this.#path(LOG_FOLDER, commitName(this.version + 1));
    await this.#refuseLinks(target);
    await makeFolder(dirname(target));
    // A name of its own: of two writers, neither must link what the other wrote.
    const partial = join(this.#deps.location, PARTIAL_FOLDER, `${randomBytes(8).toString('hex')}.json`);
    await writeDurably(partial, bytes, 0o640);
    try {
      // A rename would replace the commit of another writer.
      await link(partial, target).catch(async (error) => {
        if (!NO_LINKS.has(codeOf(error))) throw error;
        const isTaken = await lstat(target).then(
          () => true,
          () => false,
        );
        if (isTaken) throw Object.assign(new Error('taken'), { code: 'EEXIST' });
        await rename(partial, target);
      });
    } catch (error) {
      if (codeOf(error) === 'EEXIST') return false;
      throw error;
    } finally {
      await rm(partial, { force: true });
    }
    await syncFolder(dirname(target));
    return true;
  }

  /** Reads what others committed. @returns whether it changed the files of the table */
  async meet(): Promise<boolean> {
    let isOther = false;
    for (let version = this.version + 1; ; version++) {
      const name = commitName(version);
      const bytes = await readIfThere(this.#path(LOG_FOLDER, name));
      if (!bytes) break;
      const actions = actionsOf(name, bytes);
      this.#snapshot.apply(version, actions);
      isOther ||= actions.some(({ add, remove, txn }) => add || remove || txn?.appId === APP_ID);
    }
    if (!isOther) {
      if (this.version >= 0 && this.#note?.version !== this.version) await this.#publish();
      return false;
    }
    for (const { name } of [...this.active.values()]) if (!this.#snapshot.files.has(name)) this.#forget(name);
    for (const name of this.lost) if (!this.#snapshot.files.has(name)) this.lost.delete(name);
    const known = new Set([...this.active.values()].map(({ name }) => name));
    for (const name of this.#snapshot.files.keys()) if (!known.has(name)) this.lost.add(name);
    return true;
  }

  #forget(name: string): void {
    const folder = dirname(name);
    if (this.active.get(folder)?.name === name) this.active.delete(folder);
  }

  async #writeCheckpoint(): Promise<void> {
    const { version } = this;
    await this.#tidy();
    const { bytes, size } = checkpointOf(this.#snapshot);
    const write = async (name: string, content: Uint8Array | string) => {
      await this.#refuseLinks(this.#path(LOG_FOLDER, name));
      await writeDurably(this.#path(LOG_FOLDER, name), content, 0o640);
    };
    await write(checkpointName(version), bytes);
    await write(LAST_CHECKPOINT, JSON.stringify({ version, size }));
    this.#checkpoint = version;
    await this.#clearLog();
  }

  /** Deletes the versions before the newest checkpoint that is older than what is kept. */
  async #clearLog(): Promise<void> {
    const kept = this.#deps.now() - this.#deps.keepMs;
    const log = (await namesIn(this.#path(LOG_FOLDER))).flatMap((name) => {
      const file = logFileOf(name);
      return file ? [{ name, ...file }] : [];
    });
    const checkpoints = log.filter(({ isCheckpoint }) => isCheckpoint).sort((a, b) => b.version - a.version);
    for (const { name, version } of checkpoints) {
      if ((await stat(this.#path(LOG_FOLDER, name))).mtimeMs > kept) continue;
      for (const older of log.filter((one) => one.version < version)) {
        await rm(this.#path(LOG_FOLDER, older.name), { force: true });
        if (!older.isCheckpoint) await rm(this.#proof(noteName(older.version)), { force: true });
      }
      return;
    }
  }

  /** Deletes what revisions replaced longer ago than it is kept. */
  async #tidy(): Promise<void> {
    const kept = this.#deps.now() - this.#deps.keepMs;
    for (const [name, { deletionTimestamp }] of [...this.#snapshot.removed]) {
      if ((deletionTimestamp ?? 0) > kept) continue;
      // A file of that name may have come back since.
      if (dataFileOf(name) && this.staged.get(dirname(name))?.name !== name) await this.#delete(name);
      this.#snapshot.removed.delete(name);
    }
  }

  /** Signs the newest version, once all of its files are known. */
  async #publish(): Promise<void> {
    const { version, change, table } = this;
    if (version < 0 || this.lost.size > 0 || this.#note?.version === version) return;
    const facts = [...this.active.values()];
    const sum = (of: (one: FileFacts) => number) => facts.reduce((total, one) => total + of(one), 0);
    let logBytes = 0;
    for (const name of logFilesOf(version, this.#checkpoint)) {
      logBytes += (await stat(this.#path(LOG_FOLDER, name))).size;
    }
    const unsigned = {
      lake_version: LAKE_VERSION,
      table,
      version,
      change,
      checkpoint: await this.#proofCheckpoint(version),
      synthetic: facts.every(({ synthetic }) => synthetic),
      files: facts.length,
      rows: sum(({ rows }) => rows),
      bytes: sum(({ bytes }) => bytes),
      files_sha256: filesDigest(facts.map(({ name }) => name)),
      log_checkpoint: this.#checkpoint,
      log_bytes: logBytes,
      written_at_utc: new Date(this.#deps.now()).toISOString(),
    } as const;
    const note = signManifest(unsigned, await this.#deps.signer());
    const path = this.#proof(noteName(version));
    await this.#refuseLinks(path);
    await writeDurably(path, manifestBytes(note), 0o640);
    this.#note = note;
  }

  /** The checkpoint of the proof log that the last commit of a writer names. */
  async #proofCheckpoint(version: number): Promise<string | null> {
    for (let at = version; at >= 0; at--) {
      const name = commitName(at);
      const bytes = await readFile(this.#path(LOG_FOLDER, name)).catch(() => undefined);
      if (!bytes) return null;
      const info = actionsOf(name, bytes).find(({ commitInfo }) => commitInfo)?.commitInfo;
      if (info?.engineInfo === APP_ID) return (info.checkpoint as string | null) ?? null;
    }
    return null;
  }

  async #readNote(version: number): Promise<TableVersion | undefined> {
    const text = await readFile(this.#proof(noteName(version)), 'utf8').catch(() => undefined);
    if (text === undefined) return undefined;
    const note = JSON.parse(text) as TableVersion;
    // A checkpoint that came after the note took the commits before it along, or a writer had no key.
    return note.log_checkpoint === this.#checkpoint && note.signed !== null ? note : undefined;
  }

  /** Deletes a file of rows, its manifest, and the folders that are empty then. */
  async #delete(name: string): Promise<void> {
    await rm(this.#proof(manifestName(name)), { force: true });
    const path = this.#path(name);
    await this.#refuseLinks(path);
    await rm(path, { force: true });
    for (let folder = dirname(path); folder !== this.#path(); folder = dirname(folder)) {
      try {
        await rmdir(folder);
      } catch (error) {
        if (isMissing(error)) continue;
        return;
      }
    }
  }

  #path(...parts: readonly string[]): string {
    return join(this.#deps.location, this.table, ...parts);
  }

  #proof(...parts: readonly string[]): string {
    return join(this.#deps.location, proofsOf(this.table), ...parts);
  }

  /** Nothing is written or removed through links in the lake. @throws LinkInFolder */
  async #refuseLinks(path: string): Promise<void> {
    await refuseLinks(this.#deps.location, path.slice(this.#deps.location.length + 1));
  }
}

/** What the manifest of a file of rows says; undefined where it is none. */
function factsOf(text: string): FileFacts | undefined {
  try {
    const { files, row_count: rows, bytes, sha256, synthetic, run } = JSON.parse(text);
    const [{ name }] = files;
    const file = dataFileOf(name);
    if (!file || file.sha256 !== sha256 || typeof run.state_sha256 !== 'string') return undefined;
    return { name, folder: file.folder, date: file.date, rows, bytes, sha256, synthetic, state: run.state_sha256 };
  } catch {
    return undefined;
  }
}
