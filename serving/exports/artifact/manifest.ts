/** The manifest: written beside the files, read back to know an artifact again. */
import { createHash } from 'node:crypto';
import { lstat, open } from 'node:fs/promises';
import { join } from 'node:path';
import { NotRegularFile, openRegular } from '../../../shared/files/regular-file.ts';
import type { Window } from '../../read/types.ts';
import { artifactFault } from './faults.ts';
import type { Artifact, Manifest, ManifestFile, ManifestWindow, WrittenFile } from './types.ts';

export const MANIFEST_NAME = 'manifest.json';
const VERSION = 1;

/** Of one file its own; of several that of `sha256sum`'s lines, so that anybody can make it again. */
export function digestOf(files: readonly ManifestFile[]): string {
  if (files.length === 1 && files[0].day === null) return files[0].sha256;
  const digest = createHash('sha256');
  for (const { sha256, name } of files) digest.update(`${sha256}  ${name}\n`);
  return digest.digest('hex');
}

export function windowOf(window: Window): ManifestWindow {
  switch (window.kind) {
    case 'latest':
      return { kind: 'latest', n_rows: window.rows };
    case 'random':
      return { kind: 'random', n_random: window.rows, random_seed: window.seed };
    default: {
      const { fromMs, toMs } = window.kind === 'range' ? window : {};
      const iso = (ms: number | undefined) => (ms === undefined ? null : new Date(ms).toISOString());
      return { kind: 'range', start_utc: iso(fromMs), end_utc: iso(toMs) };
    }
  }
}

/** @throws ArtifactFault */
export async function writeManifest(directory: string, manifest: Manifest): Promise<void> {
  try {
    const file = await open(join(directory, MANIFEST_NAME), 'wx', 0o640);
    try {
      await file.writeFile(`${JSON.stringify(manifest, undefined, 2)}\n`);
      await file.sync();
    } finally {
      await file.close();
    }
  } catch (error) {
    throw artifactFault(error);
  }
}

/** The artifact of a directory, as far as names and sizes tell. Undefined: there is none, or not all of it. */
export async function readArtifact(directory: string): Promise<Artifact | undefined> {
  const manifestPath = join(directory, MANIFEST_NAME);
  try {
    await using opened = await openRegular(manifestPath);
    const manifest = JSON.parse(await opened.readFile('utf8')) as Manifest;
    if (manifest.manifest_version !== VERSION) return undefined;
    const files = await Promise.all(manifest.files.map((file) => writtenFile(directory, file)));
    if (files.some((file) => file === undefined)) return undefined;
    return { manifest, manifestPath, files: files as WrittenFile[] };
  } catch (error) {
    if (error instanceof SyntaxError || isGone(error)) return undefined;
    throw artifactFault(error);
  }
}

async function writtenFile(directory: string, file: ManifestFile): Promise<WrittenFile | undefined> {
  const path = join(directory, file.name);
  const found = await lstat(path);
  const { size, mtimeMs } = found;
  return found.isFile() && size === file.bytes ? { ...file, path, modifiedMs: mtimeMs } : undefined;
}

/** Whether the files hold what the manifest says, byte for byte. Reads all of them. */
export async function isIntact({ manifest, files }: Artifact): Promise<boolean> {
  for (const { path, sha256 } of files) {
    const digest = createHash('sha256');
    try {
      await using opened = await openRegular(path);
      for await (const chunk of opened.createReadStream({ autoClose: false })) digest.update(chunk as Buffer);
    } catch (error) {
      if (isGone(error)) return false;
      throw artifactFault(error);
    }
    if (digest.digest('hex') !== sha256) return false;
  }
  return digestOf(manifest.files) === manifest.sha256;
}

/** Nothing is there, or something that is none of ours. */
const isGone = (error: unknown): boolean =>
  error instanceof NotRegularFile || (error as { code?: unknown }).code === 'ENOENT';
