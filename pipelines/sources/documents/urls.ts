/** Addresses of documents: built below a base that nothing can escape, and shown without what must stay secret. */
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
