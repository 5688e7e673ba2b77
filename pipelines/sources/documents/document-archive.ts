/**
 * Documents that cannot be fetched again: today's page of an issuer, an answer of a service. Each is stored as it came,
 * under the sha256 of its bytes, and each fetch of it as a record of its own. Both are on the disk, not in its cache,
 * before `put` returns, so that a document is parsed only when it can no longer be lost.
 *
 *     objects/<first two digits>/<sha256>          bytes, once however often they are fetched
 *     fetches/<source id>/<ms>-<n>-<sha256>.json   what was asked of whom, and when
 *     partial/                                     files being written; a file gets its name when it is whole
 */

import { createHash, randomUUID } from 'node:crypto';
import { mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { Settings } from '../../../shared/config/settings.ts';
import { DAY_MS } from '../../../shared/dates.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import { readInFolder } from './locations.ts';

/* Files that are on the disk under their name, or not there at all: what cannot be fetched again is written so. */

/** The name appears only when all bytes are on the disk, and is itself on the disk on return. `partial`: until then. */
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

/** A new folder is on the disk when its parent's entry of it is. */
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
  /** Name of the document to people. */
  readonly name: string;
  /** Without credentials: this is kept in clear. */
  readonly asked: Readonly<Record<string, string>>;
}

export interface ArchivedFetch extends Fetch {
  readonly fetched_at_ms: number;
  readonly sha256: string;
  readonly bytes: number;
}

export interface DocumentArchive {
  /** @throws TidemarkError SPOOL_UNUSABLE when it cannot be stored; nothing may be parsed then. */
  put(bytes: Uint8Array, fetch: Fetch): Promise<ArchivedFetch>;
  /**
   * @throws TidemarkError SOURCE_NOT_FOUND; SOURCE_OUTSIDE_FOLDER behind a link out of the folder; SOURCE_CHECKSUM_MISMATCH
   *   when the stored bytes are no longer those.
   */
  read(sha256: string): Promise<Buffer>;
  /** Fetches of a source, oldest first. */
  fetches(sourceId: string): AsyncIterable<ArchivedFetch>;
}

const SOURCE_ID = /^[a-z0-9_]+$/;
const SHA256 = /^[0-9a-f]{64}$/;

/** @param nowMs for tests. */
export async function openDocumentArchive(directory: string, nowMs: () => number = Date.now): Promise<DocumentArchive> {
  let count = 0;
  const partial = join(directory, 'partial');
  const objectPath = (sha256: string) => join(directory, 'objects', sha256.slice(0, 2), sha256);
  await usable(directory, async () => {
    await makeDirectory(partial);
    await forgetPartial(partial);
  });

  const store = (path: string, bytes: Uint8Array) => writeDurably(path, bytes, join(partial, randomUUID()));

  return {
    async put(bytes, fetch) {
      if (!SOURCE_ID.test(fetch.source_id)) throw new TypeError(`${fetch.source_id} is no source id`);
      const sha256 = sha256Of(bytes);
      const kept: ArchivedFetch = { ...fetch, fetched_at_ms: nowMs(), sha256, bytes: bytes.length };
      const order = `${String(kept.fetched_at_ms).padStart(15, '0')}-${String(count++).padStart(6, '0')}`;
      const record = join(directory, 'fetches', fetch.source_id, `${order}-${sha256}.json`);
      await usable(directory, async () => {
        // What is there but damaged is put right: these are the bytes.
        if (!(await isStored(directory, objectPath(sha256), sha256))) await store(objectPath(sha256), bytes);
        await store(record, Buffer.from(`${JSON.stringify(kept)}\n`));
      });
      return kept;
    },
    async read(sha256) {
      if (!SHA256.test(sha256)) throw new TypeError(`${sha256} is no sha256`);
      const path = objectPath(sha256);
      const bytes = await readInFolder(directory, path).catch((cause: NodeJS.ErrnoException) => {
        if (cause instanceof TidemarkError) throw cause;
        const code = cause.code === 'ENOENT' ? 'SOURCE_NOT_FOUND' : 'SPOOL_UNUSABLE';
        throw new TidemarkError(code, `The kept document ${path} cannot be read`, { cause });
      });
      if (sha256Of(bytes) !== sha256) {
        throw new TidemarkError('SOURCE_CHECKSUM_MISMATCH', `The kept document ${path} is damaged`, {
          details: { bytes: bytes.length },
        });
      }
      return bytes;
    },
    async *fetches(sourceId) {
      if (!SOURCE_ID.test(sourceId)) throw new TypeError(`${sourceId} is no source id`);
      const folder = join(directory, 'fetches', sourceId);
      const names = await readdir(folder).catch((error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') return [];
        throw error;
      });
      for (const name of names.sort()) yield recordOf(await readInFolder(directory, join(folder, name)), name);
    },
  };
}

/** The parser's own message would repeat what stands there. */
function recordOf(bytes: Buffer, name: string): ArchivedFetch {
  try {
    return JSON.parse(bytes.toString('utf8'));
  } catch {
    throw new TidemarkError('SPOOL_UNUSABLE', `The record ${name} of a kept document is damaged`);
  }
}

const sha256Of = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

async function isStored(directory: string, path: string, sha256: string): Promise<boolean> {
  const bytes = await readInFolder(directory, path).catch((error: NodeJS.ErrnoException) => {
    // A link that leads elsewhere is replaced like anything else that is not the document.
    if (error.code === 'ENOENT' || error instanceof TidemarkError) return undefined;
    throw error;
  });
  if (bytes === undefined || sha256Of(bytes) !== sha256) return false;
  // Another process may have named it and not yet synced the name.
  await syncDirectory(dirname(path));
  return true;
}

async function usable(directory: string, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (cause) {
    throw new TidemarkError('SPOOL_UNUSABLE', `Documents cannot be kept in ${directory}`, { cause });
  }
}

/** Left by processes that were killed; no document takes a day to write. */
async function forgetPartial(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const path = join(folder, name);
    const found = await stat(path).catch(() => undefined);
    if (found && Date.now() - found.mtimeMs > DAY_MS) await rm(path, { force: true });
  }
}

/* The one store of documents that cannot be fetched again, where the settings put it. */

export const documentArchiveOf = ({ SVC_KEEP_DIR, SVC_STATE_DIR }: Settings): Promise<DocumentArchive> =>
  openDocumentArchive(SVC_KEEP_DIR ?? join(SVC_STATE_DIR, 'kept'));
