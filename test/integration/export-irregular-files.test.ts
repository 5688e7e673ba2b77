/** What lies in the export root and is no regular file is refused at once: a pipe would be waited on for ever. */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { Problem } from '../../serving/contract/problems.ts';
import { StagingDirectory } from '../../serving/exports/artifact/staging.ts';
import { type ArtifactManifest, isIntact, readArtifact } from '../../serving/exports/artifact/write.ts';
import { checkFiles, ExportDirectories, ProvedFiles } from '../../serving/exports/files.ts';
import type { StoredArtifact, StoredFile } from '../../serving/exports/rows.ts';

const BYTES = 'a,b\n1,2\n';
const NAME = 'rows.csv';
const EXPORT_ID = '00000000-0000-4000-8000-000000000001';

let dir: string;
let path: string;
let file: StoredFile;
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'tidemark-irregular-'));
  path = join(dir, NAME);
  await writeFile(path, BYTES);
  const { mtimeMs } = await stat(path);
  const sha256 = createHash('sha256').update(BYTES).digest('hex');
  file = { name: NAME, day: null, row_count: 1, bytes: BYTES.length, sha256, modified_ms: mtimeMs };
});
afterEach(() => rm(dir, { recursive: true }));

const codeOf = (work: Promise<unknown>) =>
  work.then(
    () => undefined,
    (error) => (error instanceof Problem ? error.code : error),
  );
const pipe = (at: string) => void execFileSync('mkfifo', [at]);

/** Puts something else in the file's place. */
const REPLACEMENTS: readonly [string, (at: string) => Promise<void>][] = [
  ['a pipe', async (at) => pipe(at)],
  ['a link to the file itself', (at) => symlink(`${at}.away`, at)],
  [
    'a link to a pipe',
    async (at) => {
      pipe(`${at}.pipe`);
      await symlink(`${at}.pipe`, at);
    },
  ],
  ['a link to a device', (at) => symlink('/dev/zero', at)],
  ['a link to nothing', (at) => symlink('/no/such/file', at)],
  ['a folder', async (at) => void (await mkdir(at))],
];

describe.each(REPLACEMENTS)('%s', (_, replace) => {
  const swap = async (at: string) => {
    await rename(at, `${at}.away`);
    await replace(at);
  };

  test('is not downloaded, and the status says that the file is missing', async () => {
    const files = new ProvedFiles();
    await (await files.open(dir, file)).close();
    await checkFiles(dir, { files: [file] } as unknown as StoredArtifact);
    await swap(path);
    // More than the thread pool has threads: none of them may be held.
    const opened = await Promise.all(Array.from({ length: 8 }, () => codeOf(files.open(dir, file))));
    expect(new Set(opened)).toEqual(new Set(['EXPORT_ARTIFACT_METADATA_ERROR']));
    expect(await codeOf(checkFiles(dir, { files: [file] } as unknown as StoredArtifact))).toBe(
      'EXPORT_ARTIFACT_METADATA_ERROR',
    );
  });

  test('is no file of an artifact that a killed attempt left behind', async () => {
    const manifest = { manifest_version: 1, files: [file], sha256: file.sha256 } as unknown as ArtifactManifest;
    const manifestPath = join(dir, 'manifest.json');
    await writeFile(manifestPath, JSON.stringify(manifest));
    const artifact = await readArtifact(dir);
    expect(await isIntact(artifact!)).toBe(true);
    await swap(path);
    expect(await isIntact(artifact!)).toBe(false);
    expect(await readArtifact(dir)).toBeUndefined();
    await rm(path, { recursive: true });
    await rename(`${path}.away`, path);
    await swap(manifestPath);
    expect(await readArtifact(dir)).toBeUndefined();
  });
});

describe('the folder of an export', () => {
  const elsewhere = async () => {
    const other = join(dir, 'elsewhere');
    await mkdir(join(other, '1'), { recursive: true });
    await writeFile(join(other, '1', 'mine'), 'mine');
    return other;
  };

  test('that is a link is not cleared: what it leads to is not ours', async () => {
    const other = await elsewhere();
    await symlink(other, join(dir, EXPORT_ID));
    const places = new ExportDirectories(dir);
    await places.removeRun(EXPORT_ID, 1);
    await places.removeUnneeded(EXPORT_ID, { state: 'succeeded', fence: 5, artifactFence: null });
    expect(await readFile(join(other, '1', 'mine'), 'utf8')).toBe('mine');
  });

  test('that is a link, or no folder, is not written to', async () => {
    const other = await elsewhere();
    await symlink(other, join(dir, EXPORT_ID));
    await expect(StagingDirectory.create(join(dir, EXPORT_ID, '1'))).rejects.toMatchObject({ kind: 'not_writable' });
    await rm(join(dir, EXPORT_ID));
    pipe(join(dir, EXPORT_ID));
    await expect(StagingDirectory.create(join(dir, EXPORT_ID, '1'))).rejects.toMatchObject({ kind: 'not_writable' });
    expect(await readdir(other)).toEqual(['1']);
  });

  test('that is a pipe does not stop the sweeper', async () => {
    pipe(join(dir, EXPORT_ID));
    const places = new ExportDirectories(dir);
    expect(await places.present()).toEqual([EXPORT_ID]);
    await places.removeUnneeded(EXPORT_ID, { state: 'succeeded', fence: 5, artifactFence: null });
  });

  test('holds a pipe among its runs: it is removed like a run', async () => {
    await mkdir(join(dir, EXPORT_ID));
    pipe(join(dir, EXPORT_ID, '1'));
    await new ExportDirectories(dir).removeUnneeded(EXPORT_ID, { state: 'succeeded', fence: 5, artifactFence: null });
    expect(await readdir(dir)).not.toContain(EXPORT_ID);
  });
});
