/** Mirrors the exports of a service: each is a folder with its manifest and files, and never changes. */

import { inParallel } from './downloads.ts';
import type { MirrorCounts, MirrorWork } from './folder.ts';
import {
  checkSigned,
  isCount,
  isDigest,
  isObject,
  MAX_MANIFEST_BYTES,
  MirrorFault,
  type NamedBytes,
  parseObject,
} from './lake-manifest.ts';

/** The path of the exports below the source, which is the folder above. */
const EXPORTS = 'export';
const MANIFEST = 'manifest.json';
const MAX_STATUS_BYTES = 16 * 1024 * 1024;
const PAGE = 100;
/** A list that goes on and on is no list of a service. */
const MAX_PAGES = 10_000;
const ID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const NAME = /^[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}$/;
const CURSOR = /^\w{1,100}$/;

/** An export that can be downloaded. */
interface Export {
  readonly id: string;
  /** Paths are names below its folder. */
  readonly files: readonly NamedBytes[];
}

/** Exports that the service no longer has stay in the mirror. */
export async function mirrorExports(work: MirrorWork, ids: readonly string[] | undefined): Promise<MirrorCounts> {
  const exports = ids ? await namedExports(work, ids) : await allExports(work);
  const counts = { files: 0, new: 0, replaced: 0, removed: 0, unchanged: 0, change: null };
  let fault: MirrorFault | undefined;
  let done = 0;
  for (const { files } of exports) counts.files += files.length;
  work.progress(0, exports.length);
  // One export after the other, the files of each at once.
  for (const each of exports) {
    work.signal?.throwIfAborted();
    try {
      const isNew = (await work.folder.read(`exports/${each.id}/${MANIFEST}`)) === undefined;
      const downloaded = await mirrorOne(work, each);
      counts[isNew ? 'new' : 'replaced'] += downloaded;
      counts.unchanged += each.files.length - downloaded;
    } catch (error) {
      if (!isOfOne(error)) throw error;
      fault ??= error;
    }
    work.progress(++done, exports.length);
  }
  if (fault) throw fault;
  return counts;
}

/** Whether a fault is of one export: it expired, its rights were withdrawn, it is lost or altered. The others can still be had. */
const isOfOne = (error: unknown): error is MirrorFault =>
  error instanceof MirrorFault && ['missing', 'refused', 'altered', 'manifest'].includes(error.kind);

/** @returns how many files were downloaded */
async function mirrorOne({ folder, downloads, signers, verify, signal, stop }: MirrorWork, { id, files }: Export) {
  const below = `exports/${id}`;
  const local = await folder.read(`${below}/${MANIFEST}`);
  const isKept = local !== undefined && isWhole(local, id, files);
  const bytes = isKept ? local : (await downloads.document(`${EXPORTS}/${id}/manifest`, MAX_MANIFEST_BYTES))!.bytes;
  const name = `${below}/${MANIFEST}`;
  if (!isOf(bytes, id, files)) {
    throw new MirrorFault('manifest', `The manifest of export ${id} lists other files than its status`);
  }
  checkSigned(parseObject(bytes, name), name, signers);
  const missing: NamedBytes[] = [];
  for (const file of files) {
    const path = `${below}/${file.path}`;
    const isThere =
      isKept && !verify ? (await folder.sizeOf(path)) === file.bytes : await folder.holds({ ...file, path }, signal);
    if (!isThere) missing.push(file);
  }
  let fault: MirrorFault | undefined;
  await inParallel(missing, stop, async (file) => {
    const path = `${EXPORTS}/${id}/artifact/${file.path}`;
    try {
      await folder.place(await downloads.file({ ...file, path }), `${below}/${file.path}`);
    } catch (error) {
      // Thrown here it would end the downloads of all exports.
      if (!isOfOne(error)) throw error;
      fault ??= error;
    }
  });
  if (fault) throw fault;
  // Last: a folder with a manifest is complete.
  if (!isKept) await folder.write(name, bytes);
  return missing.length;
}

/** Whether a local manifest is of these files; one that was damaged is had again. */
function isWhole(bytes: Uint8Array, id: string, files: readonly NamedBytes[]): boolean {
  try {
    return isOf(bytes, id, files);
  } catch (error) {
    if (error instanceof MirrorFault) return false;
    throw error;
  }
}

/** Whether a manifest is of these files. @throws MirrorFault */
function isOf(bytes: Uint8Array, id: string, files: readonly NamedBytes[]): boolean {
  const { files: listed } = parseObject(bytes, `The manifest of export ${id}`);
  if (!Array.isArray(listed) || listed.length !== files.length) return false;
  return files.every(({ path, bytes: size, sha256 }, at) => {
    const { name, bytes: found, sha256: digest } = isObject(listed[at]) ? listed[at] : {};
    return name === path && found === size && digest === sha256;
  });
}

async function allExports({ downloads }: MirrorWork): Promise<Export[]> {
  const found = new Map<string, Export>();
  let cursor = '';
  for (let page = 1; ; page++) {
    const path = `${EXPORTS}?status=succeeded&limit=${PAGE}${cursor}`;
    const answer = parseObject((await downloads.document(path, MAX_STATUS_BYTES))!.bytes, 'The list of exports');
    const { exports, next_cursor: next } = answer;
    if (!Array.isArray(exports)) throw new MirrorFault('manifest', 'The list of exports has no exports');
    for (const status of exports) {
      const one = exportOf(status);
      if (one) found.set(one.id, one);
    }
    if (next === null) return [...found.values()];
    if (typeof next !== 'string' || !CURSOR.test(next) || page >= MAX_PAGES) {
      throw new MirrorFault('manifest', 'The list of exports has a cursor that cannot be followed');
    }
    cursor = `&cursor=${next}`;
  }
}

async function namedExports({ downloads }: MirrorWork, ids: readonly string[]): Promise<Export[]> {
  const found: Export[] = [];
  for (const id of new Set(ids)) {
    if (!ID.test(id)) throw new MirrorFault('usage', `${id} is no id of an export`);
    const { bytes } = (await downloads.document(`${EXPORTS}/${id}`, MAX_STATUS_BYTES))!;
    const one = exportOf(parseObject(bytes, `The status of export ${id}`));
    if (one?.id !== id) throw new MirrorFault('missing', `Export ${id} has no artifact: it is not over, or it expired`);
    found.push(one);
  }
  return found;
}

/** The export of a status; undefined where it has no artifact (any more). @throws MirrorFault */
function exportOf(status: unknown): Export | undefined {
  const { export_id: id, artifact } = isObject(status) ? status : {};
  const wrong = (what: string) =>
    new MirrorFault('manifest', `The status of export ${String(id).slice(0, 100)} ${what}`);
  if (typeof id !== 'string' || !ID.test(id)) throw wrong('has no id');
  if (!isObject(artifact) || artifact.expired === true) return undefined;
  if (!Array.isArray(artifact.files)) throw wrong('has no list of files');
  const names = new Set<string>([MANIFEST]);
  const files = artifact.files.map((file: unknown) => {
    const { name, bytes, checksum_sha256: sha256 } = isObject(file) ? file : {};
    if (typeof name !== 'string' || !NAME.test(name) || names.has(name)) throw wrong('has a file with an invalid name');
    if (!isCount(bytes) || !isDigest(sha256)) throw wrong(`has no size or digest of ${name}`);
    names.add(name);
    return { path: name, bytes, sha256 };
  });
  return { id, files };
}
