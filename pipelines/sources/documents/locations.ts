/**
 * Builds addresses of documents below a base that no segment can escape, and shows addresses without secrets. Documents below a
 * `file://` base are read in place, never copied and never removed.
 */

import { createHash } from 'node:crypto';
import type { BigIntStats } from 'node:fs';
import { constants, type FileHandle, lstat, open, realpath, stat } from 'node:fs/promises';
import { dirname, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type ErrorDetails, TidemarkError } from '../../../shared/errors.ts';

/**
 * Appends `segments` to the base's path, each encoded, and keeps a query of the base (a signed address).
 * @throws TidemarkError CONFIGURATION_INVALID if a segment is empty, a dot segment, or holds a separator.
 */
export function urlBelow(base: URL, ...segments: readonly string[]): URL {
  for (const segment of segments) {
    if (segment === '' || segment === '.' || segment === '..' || /[/\\\0]/.test(segment))
      throw new TidemarkError(
        'CONFIGURATION_INVALID',
        `${JSON.stringify(segment)} cannot be part of a document's path`,
      );
  }
  const url = new URL(base);
  url.hash = '';
  url.pathname = `${base.pathname.replace(/\/+$/, '')}/${segments.map(encodeURIComponent).join('/')}`;
  return url;
}

/** The address of a document's companion: appends the suffix to the path, before any query. */
export function urlWithSuffix(url: URL, suffix: string): URL {
  const companion = new URL(url);
  companion.pathname += suffix;
  return companion;
}

/** Whether to follow an address that a server sent: only over http(s), and never from https to http. */
export function isFollowed(from: URL, to: URL): boolean {
  const downgrade = from.protocol === 'https:' && to.protocol !== 'https:';
  return !downgrade && (to.protocol === 'http:' || to.protocol === 'https:');
}

/**
 * An address for messages, logs and manifests: without user, password, query and fragment, which may hold credentials.
 */
export function displayUrl(url: URL): string {
  const shown = new URL(url);
  shown.username = '';
  shown.password = '';
  shown.search = '';
  shown.hash = '';
  return shown.href;
}

/** The last path segment: the file name that a person knows. */
export function documentName(url: URL): string {
  const last = url.pathname.split('/').filter(Boolean).at(-1) ?? url.hostname;
  try {
    return decodeURIComponent(last);
  } catch {
    return last;
  }
}

/** @throws TidemarkError CONFIGURATION_INVALID if the URL is not a local path. */
export function localPath(url: URL): string {
  try {
    return fileURLToPath(url);
  } catch (cause) {
    throw new TidemarkError('CONFIGURATION_INVALID', `${displayUrl(url)} is not a local path`, { cause });
  }
}

export interface FolderFile extends AsyncDisposable {
  readonly file: FileHandle;
  /** Of the open file. */
  readonly stats: BigIntStats;
  /** Its path without symbolic links. */
  readonly path: string;
}

/**
 * Opens a file below a folder for reading. A symbolic link may lead to another place within the folder; one that leads
 * out is refused. The folder itself may be reached through links. Opening something that is not a regular file does not
 * wait for a writer; the caller checks `stats`.
 * @throws TidemarkError SOURCE_REFUSED, and errors of the file system unchanged.
 */
export async function openInFolder(folder: string, path: string): Promise<FolderFile> {
  const real = await resolved(folder, path);
  const file = await open(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const stats = await file.stat({ bigint: true });
    // A folder of the path may have become a link meanwhile, so resolve the path again and compare.
    const named = await lstat(await resolved(folder, real), { bigint: true });
    if (named.ino !== stats.ino || named.dev !== stats.dev) throw outside(folder, path);
    return { file, stats, path: real, [Symbol.asyncDispose]: () => file.close() };
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** Reads all bytes of a file below a folder. Throws what `openInFolder` throws. */
export async function readInFolder(folder: string, path: string, signal?: AbortSignal): Promise<Buffer> {
  await using opened = await openInFolder(folder, path);
  return await opened.file.readFile({ signal });
}

async function resolved(folder: string, path: string): Promise<string> {
  const real = await realpath(path);
  const way = relative(await realpath(folder), real);
  if (way === '..' || way.startsWith(`..${sep}`)) throw outside(folder, path);
  return real;
}

/** Names the link, never its target. */
function outside(folder: string, path: string): TidemarkError {
  const message = `${path} leads out of ${folder} through a symbolic link`;
  return new TidemarkError('SOURCE_REFUSED', message, {
    details: { path, folder },
    remedy: 'Put the file itself into the folder, or point the setting at the folder that holds it.',
  });
}

// ---- documents below a `file://` base --------------------------------------------------------------------------------

/** Larger buffers no longer fit the CPU's cache, smaller ones cost more turns of the event loop. */
const READ_BYTES = 512 * 1024;

export interface DigestOptions {
  readonly signal?: AbortSignal;
  readonly onProgress?: (bytes: number) => void;
}

/** Digests the file at a path, or an open one, which is read from its start and stays open. */
export async function sha256OfFile(
  source: string | FileHandle,
  options: DigestOptions = {},
): Promise<{ sha256: string; bytes: number }> {
  if (typeof source === 'string') {
    await using file = await open(source);
    return await sha256OfFile(file, options);
  }
  const hash = createHash('sha256');
  // One buffer for the whole file: a stream takes a new one for each read, and 60 ms of CPU for 40 MiB where this takes 40.
  const buffer = Buffer.allocUnsafeSlow(READ_BYTES);
  let bytes = 0;
  for (;;) {
    options.signal?.throwIfAborted();
    const { bytesRead } = await source.read(buffer, 0, buffer.length, bytes);
    if (bytesRead === 0) break;
    hash.update(buffer.subarray(0, bytesRead));
    bytes += bytesRead;
    options.onProgress?.(bytes);
  }
  return { sha256: hash.digest('hex'), bytes };
}

export interface LocalDocument {
  readonly path: string;
  readonly bytes: number;
  readonly sha256: string;
  /** Changes with the file's inode, size or times. */
  readonly stamp: string;
  /** @throws TidemarkError SOURCE_CHECKSUM_MISMATCH if the file changed after its digest was taken. */
  assertUnchanged(): Promise<void>;
}

export interface LocalOptions {
  readonly url: URL;
  /** The folder that the document must stay below after all links are resolved. Default: the folder that holds it. */
  readonly root?: URL;
  readonly maxBytes: number;
  readonly limitName: string;
  readonly signal?: AbortSignal;
  readonly onProgress?: (bytes: number, total: number | undefined) => void;
}

const stampOf = ({ dev, ino, size, mtimeNs, ctimeNs }: BigIntStats): string =>
  [dev, ino, size, mtimeNs, ctimeNs].join('-');

/** @returns undefined for a file that still has the stamp. */
export async function localDocument(options: LocalOptions, stamp?: string): Promise<LocalDocument | undefined> {
  const { url, signal, onProgress } = options;
  await using opened = await openLocal(options);
  const { path, stats: before } = opened;
  if (stamp !== undefined && stamp === stampOf(before)) return undefined;
  const total = Number(before.size);
  const { sha256, bytes } = await sha256OfFile(opened.file, {
    signal,
    onProgress: onProgress && ((read) => onProgress(read, total)),
  }).catch((cause) => {
    signal?.throwIfAborted();
    throw unreadable(url, path, cause);
  });
  const assertUnchanged = async () => {
    await using again = await openLocal(options);
    const { stats: now } = again;
    if (now.ino !== before.ino || now.size !== before.size || now.mtimeNs !== before.mtimeNs || bytes !== total)
      throw new TidemarkError('SOURCE_CHECKSUM_MISMATCH', `${path} changed while it was read`, {
        details: { document: documentName(url), path },
      });
  };
  return { path, bytes, sha256, stamp: stampOf(before), assertUnchanged };
}

/** Reads a small local document as text. */
export async function localText(options: LocalOptions): Promise<string> {
  return (await localBytes(options)).toString('utf8');
}

/** Reads a small local document as bytes. */
export async function localBytes(options: LocalOptions): Promise<Buffer> {
  await using opened = await openLocal(options);
  try {
    return await opened.file.readFile({ signal: options.signal });
  } catch (cause) {
    options.signal?.throwIfAborted();
    throw unreadable(options.url, opened.path, cause);
  }
}

/** Opens the document, which must be a regular file below its root within the size limit. */
async function openLocal({ url, root, maxBytes, limitName }: LocalOptions): Promise<FolderFile> {
  const document = documentName(url);
  const path = localPath(url);
  const folder = root === undefined ? dirname(path) : localPath(root);
  const opened = await openInFolder(folder, path).catch(async (cause) => {
    if (cause instanceof TidemarkError) {
      throw new TidemarkError(cause.code, cause.message, {
        details: { document, ...cause.details },
        remedy: cause.remedy,
      });
    }
    if (!isMissing(cause)) throw unreadable(url, path, cause);
    throw await missing(url, path);
  });
  const refuse = async (fault: TidemarkError) => {
    await opened[Symbol.asyncDispose]();
    throw fault;
  };
  if (!opened.stats.isFile()) {
    await refuse(new TidemarkError('SOURCE_NOT_FOUND', `${path} is not a file`, { details: { document, path } }));
  }
  const bytes = Number(opened.stats.size);
  if (bytes > maxBytes) {
    const message = `${path} is larger than ${limitName} allows (${maxBytes} bytes)`;
    const details = { document, path, limit: limitName, maxBytes, bytes };
    await refuse(new TidemarkError('SOURCE_DOCUMENT_INVALID', message, { details }));
  }
  return opened;
}

/** The error for a missing file, or for a missing folder: it names the first folder of the path that does not exist. */
async function missing(url: URL, path: string): Promise<TidemarkError> {
  let absent = path;
  for (let above = dirname(path); above !== dirname(above) && !(await isDirectory(above)); above = dirname(above))
    absent = above;
  const what = absent === path ? 'file' : 'directory';
  const message =
    what === 'file' ? `${path} does not exist` : `${path} does not exist: the folder ${absent} is missing`;
  const details: ErrorDetails = { document: documentName(url), path, missing: what, missingPath: absent };
  return new TidemarkError('SOURCE_NOT_FOUND', message, { details });
}

const isMissing = (error: unknown) => ['ENOENT', 'ENOTDIR'].includes((error as NodeJS.ErrnoException).code ?? '');

const isDirectory = (path: string) =>
  stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );

function unreadable(url: URL, path: string, cause: unknown): TidemarkError {
  const details = { document: documentName(url), path };
  return new TidemarkError('SOURCE_UNREACHABLE', `${path} cannot be read`, { details, cause });
}
