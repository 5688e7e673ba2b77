/** Builds addresses of documents below a base that no segment can escape, and shows addresses without secrets. */

import type { BigIntStats } from 'node:fs';
import { constants, type FileHandle, lstat, open, realpath } from 'node:fs/promises';
import { relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { TidemarkError } from '../../../shared/errors.ts';

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
 * @throws TidemarkError SOURCE_OUTSIDE_FOLDER, and errors of the file system unchanged.
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
  return new TidemarkError('SOURCE_OUTSIDE_FOLDER', message, { details: { path, folder } });
}
