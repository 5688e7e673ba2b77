/** Addresses of documents: built below a base that nothing can escape, and shown without what must stay secret. */

import type { BigIntStats } from 'node:fs';
import { constants, type FileHandle, lstat, open, realpath } from 'node:fs/promises';
import { relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { TidemarkError } from '../../../shared/errors.ts';

/**
 * `segments` appended to the base's path, each encoded; a query of the base (a signed address) is kept.
 * @throws TidemarkError CONFIGURATION_INVALID for a segment that is empty, a dot segment or holds a separator.
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

/** The same document's companion: the suffix goes to the path, before any query. */
export function urlWithSuffix(url: URL, suffix: string): URL {
  const companion = new URL(url);
  companion.pathname += suffix;
  return companion;
}

/** Whether an address that a server names is gone to: over http(s) alone, and never from https to http. */
export function isFollowed(from: URL, to: URL): boolean {
  const downgrade = from.protocol === 'https:' && to.protocol !== 'https:';
  return !downgrade && (to.protocol === 'http:' || to.protocol === 'https:');
}

/** For messages, logs and manifests: no user, password, query or fragment, all of which may carry credentials. */
export function displayUrl(url: URL): string {
  const shown = new URL(url);
  shown.username = '';
  shown.password = '';
  shown.search = '';
  shown.hash = '';
  return shown.href;
}

/** Last path segment: the file name a person knows the document by. */
export function documentName(url: URL): string {
  const last = url.pathname.split('/').filter(Boolean).at(-1) ?? url.hostname;
  try {
    return decodeURIComponent(last);
  } catch {
    return last;
  }
}

/** @throws TidemarkError CONFIGURATION_INVALID when a file URL names no local path. */
export function localPath(url: URL): string {
  try {
    return fileURLToPath(url);
  } catch (cause) {
    throw new TidemarkError('CONFIGURATION_INVALID', `${displayUrl(url)} is not a local path`, { cause });
  }
}

/* Files below a folder. A symbolic link may lead about within the folder; one that leads out of it is refused. */

export interface FolderFile extends AsyncDisposable {
  readonly file: FileHandle;
  /** Of the open file. */
  readonly stats: BigIntStats;
  /** Its path without symbolic links. */
  readonly path: string;
}

/**
 * Opens a file for reading. The folder itself may be reached through links. What is no regular file is opened without
 * waiting for a writer; the caller looks at `stats`.
 * @throws TidemarkError SOURCE_OUTSIDE_FOLDER; faults of the file system as they are.
 */
export async function openInFolder(folder: string, path: string): Promise<FolderFile> {
  const real = await resolved(folder, path);
  const file = await open(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const stats = await file.stat({ bigint: true });
    // A folder on the way may have become a link since: then the path leads elsewhere now, or to another file.
    const named = await lstat(await resolved(folder, real), { bigint: true });
    if (named.ino !== stats.ino || named.dev !== stats.dev) throw outside(folder, path);
    return { file, stats, path: real, [Symbol.asyncDispose]: () => file.close() };
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** All bytes of a file below a folder; faults as of `openBelow`. */
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

/** Names the link, never what it leads to. */
function outside(folder: string, path: string): TidemarkError {
  const message = `${path} is a link that leads out of ${folder}, or lies behind one`;
  return new TidemarkError('SOURCE_OUTSIDE_FOLDER', message, { details: { path, folder } });
}
