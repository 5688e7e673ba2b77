/**
 * The archive of documents that cannot be fetched again: today's page of an issuer, an answer of a service. It stores the
 * exact bytes under their sha256, and a record of each fetch. Both are synced to disk before `put` returns, and a document
 * is parsed only afterwards, so that a parsed document is never lost. Beside them are the documents that a vendor replaced, and
 * what each changed.
 *
 *     objects/<first two digits>/<sha256>          the bytes, stored once for all fetches
 *     fetches/<source id>/<ms>-<n>-<sha256>.json   what was requested from whom, and when
 *     partial/                                     files being written; a complete file is renamed
 */

import { createHash, randomUUID } from 'node:crypto';
import { mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { keepFolderOf, keptObject, type Settings } from '../../../shared/config/settings.ts';
import { DAY_MS } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { readInFolder } from './locations.ts';

/** Writes the file to `partial` and renames it after a sync. On return, the name is synced too. */
export async function writeDurably(
  path: string,
  bytes: Uint8Array,
  partial = `${path}.part-${randomUUID()}`,
): Promise<void> {
  await makeDirectory(dirname(path));
  try {
    await using file = await open(partial, 'wx', 0o600);
    await file.writeFile(bytes);
    await file.sync();
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
  await rename(partial, path);
  await syncDirectory(dirname(path));
}

/** Creates folders and syncs their parents: a new folder is durable when its parent's entry is. */
export async function makeDirectory(path: string): Promise<void> {
  const first = await mkdir(path, { recursive: true, mode: 0o700 });
  if (first === undefined) return;
  for (let at = path; at.length >= first.length; at = dirname(at)) await syncDirectory(dirname(at));
}

export async function syncDirectory(path: string): Promise<void> {
  await using folder = await open(path, 'r');
  await folder.sync();
}

export interface Fetch {
  readonly source_id: string;
  /** Name of the document in messages. */
  readonly name: string;
  /** The request, without credentials: it is stored as plain text. */
  readonly asked: Readonly<Record<string, string>>;
}

export interface ArchivedFetch extends Fetch {
  readonly fetched_at_ms: number;
  readonly sha256: string;
  readonly bytes: number;
}

interface Kept {
  readonly sha256: string;
  readonly bytes: number;
}

export interface DocumentArchive {
  /**
   * Stores a document. Nothing may be parsed if it fails.
   * @throws TidemarkError DISK_UNUSABLE if it cannot be stored.
   */
  put(bytes: Uint8Array, fetch: Fetch): Promise<ArchivedFetch>;
  /** Stores bytes of any size, and a record of their fetch where they come from a vendor. */
  keep(pieces: Iterable<Uint8Array> | AsyncIterable<Uint8Array>, fetch?: Fetch): Promise<Kept>;
  /**
   * @throws TidemarkError SOURCE_NOT_FOUND; SOURCE_REFUSED if a link leads out of the folder;
   * SOURCE_CHECKSUM_MISMATCH if the stored bytes have changed.
   */
  read(sha256: string): Promise<Buffer>;
  /** The fetches of a source, oldest first. */
  fetches(sourceId: string): AsyncIterable<ArchivedFetch>;
}

const SOURCE_ID = /^[a-z0-9_]+$/;
const SHA256 = /^[0-9a-f]{64}$/;

/** @param nowMs a clock for tests. */
export async function openDocumentArchive(directory: string, nowMs: () => number = Date.now): Promise<DocumentArchive> {
  let count = 0;
  const partial = join(directory, 'partial');
  const objectPath = (sha256: string) => keptObject(directory, sha256);
  await usable(directory, async () => {
    await makeDirectory(partial);
    await forgetPartial(partial);
  });

  const store = (path: string, bytes: Uint8Array) => writeDurably(path, bytes, join(partial, randomUUID()));

  const note = async (fetch: Fetch, { sha256, bytes }: Kept): Promise<ArchivedFetch> => {
    if (!SOURCE_ID.test(fetch.source_id)) throw new TypeError(`${fetch.source_id} is not a source id`);
    const kept: ArchivedFetch = { ...fetch, fetched_at_ms: nowMs(), sha256, bytes };
    const order = `${String(kept.fetched_at_ms).padStart(15, '0')}-${String(count++).padStart(6, '0')}`;
    const record = join(directory, 'fetches', fetch.source_id, `${order}-${sha256}.json`);
    await store(record, Buffer.from(`${JSON.stringify(kept)}\n`));
    return kept;
  };

  return {
    async put(bytes, fetch) {
      const sha256 = sha256Of(bytes);
      return await usable(directory, async () => {
        // Replaces a damaged copy: these are the right bytes.
        if (!(await isStored(directory, objectPath(sha256), sha256))) await store(objectPath(sha256), bytes);
        return await note(fetch, { sha256, bytes: bytes.length });
      });
    },
    async keep(pieces, fetch) {
      const path = join(partial, randomUUID());
      try {
        const kept = await writePieces(directory, path, pieces);
        return await usable(directory, async () => {
          const object = objectPath(kept.sha256);
          await makeDirectory(dirname(object));
          await rename(path, object);
          await syncDirectory(dirname(object));
          if (fetch) await note(fetch, kept);
          return kept;
        });
      } catch (error) {
        await rm(path, { force: true });
        throw error;
      }
    },
    async read(sha256) {
      if (!SHA256.test(sha256)) throw new TypeError(`${sha256} is not a sha256`);
      const path = objectPath(sha256);
      const bytes = await readInFolder(directory, path).catch((cause: NodeJS.ErrnoException) => {
        if (cause instanceof TidemarkError) throw cause;
        const code = cause.code === 'ENOENT' ? 'SOURCE_NOT_FOUND' : 'DISK_UNUSABLE';
        throw new TidemarkError(code, `The archived document ${path} cannot be read`, { cause });
      });
      if (sha256Of(bytes) !== sha256) {
        throw new TidemarkError('SOURCE_CHECKSUM_MISMATCH', `The archived document ${path} is damaged`, {
          details: { bytes: bytes.length },
        });
      }
      return bytes;
    },
    async *fetches(sourceId) {
      if (!SOURCE_ID.test(sourceId)) throw new TypeError(`${sourceId} is not a source id`);
      const folder = join(directory, 'fetches', sourceId);
      const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') return [];
        throw error;
      });
      for (const name of names.sort()) yield recordOf(await readInFolder(directory, join(folder, name)), name);
    },
  };
}

/** Has no cause: the parser's message would repeat the content. */
function recordOf(bytes: Buffer, name: string): ArchivedFetch {
  try {
    return JSON.parse(bytes.toString('utf8'));
  } catch {
    throw new TidemarkError('DISK_UNUSABLE', `The record ${name} of an archived document is damaged`);
  }
}

const sha256Of = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

async function isStored(directory: string, path: string, sha256: string): Promise<boolean> {
  const bytes = await readInFolder(directory, path).catch((error: NodeJS.ErrnoException) => {
    // A link out of the folder is replaced, like anything else that is not the document.
    if (error.code === 'ENOENT' || error instanceof TidemarkError) return undefined;
    throw error;
  });
  if (bytes === undefined || sha256Of(bytes) !== sha256) return false;
  // Another process may have renamed the file without having synced the name yet.
  await syncDirectory(dirname(path));
  return true;
}

/** Writes the pieces and syncs them. What their source throws is its own fault, and not the folder's. */
async function writePieces(
  directory: string,
  path: string,
  pieces: Iterable<Uint8Array> | AsyncIterable<Uint8Array>,
): Promise<Kept> {
  const hash = createHash('sha256');
  let bytes = 0;
  await using file = await usable(directory, () => open(path, 'wx', 0o600));
  for await (const piece of pieces) {
    hash.update(piece);
    bytes += piece.length;
    await usable(directory, () => file.writeFile(piece));
  }
  await usable(directory, () => file.sync());
  return { sha256: hash.digest('hex'), bytes };
}

async function usable<T>(directory: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (cause) {
    if (cause instanceof TypeError) throw cause;
    throw new TidemarkError('DISK_UNUSABLE', `Documents cannot be archived in ${directory}`, { cause });
  }
}

/** Removes partial files of killed processes. No document takes a day to write. */
async function forgetPartial(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const path = join(folder, name);
    const found = await stat(path).catch(() => undefined);
    if (found && Date.now() - found.mtimeMs > DAY_MS) await rm(path, { force: true });
  }
}

export const documentArchiveOf = (settings: Settings): Promise<DocumentArchive> =>
  openDocumentArchive(keepFolderOf(settings));
