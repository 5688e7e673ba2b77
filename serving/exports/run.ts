/** Runs one export: its request is read again, its rights are asked again, its rows are what is proved now. */
import { createHash } from 'node:crypto';
import { basename } from 'node:path';
import { openRegular } from '../../shared/files/regular-file.ts';
import type { RightsStore } from '../../shared/rights/store.ts';
import type { Json } from '../../shared/strict-json.ts';
import { parseExport } from '../contract/export.ts';
import { contractProblem } from '../http/params.ts';
import { type Artifact, type ArtifactDeps, writeArtifact } from './artifact/index.ts';
import { exportAdmission, exportGrant, requireGrantOf } from './problems.ts';
import type { StoredArtifact, StoredFile } from './rows.ts';
import type { WorkerOptions } from './worker.ts';

export interface RunDeps extends ArtifactDeps {
  readonly rights: RightsStore;
}

export function exportRunner(deps: RunDeps): WorkerOptions['run'] {
  return async (row, { directory, signal, onProgress }) => {
    // What was a right request when it was accepted may name a field that an upgrade took away.
    const parsed = parseExport(row.request as unknown as Json);
    if ('faults' in parsed) throw contractProblem(parsed.faults, 'EXPORT_CONTRACT_ERROR');
    const { read, format, datasetKey } = parsed.value;
    const grant = exportGrant(deps.rights, datasetKey);
    const admit = exportAdmission(grant, read.dataset);
    const run = { export_id: row.exportId };
    const artifact = await writeArtifact(deps, { request: read, admit, format, directory, run, signal, onProgress });
    // What an attempt that was killed had written is taken as it is, without a read.
    requireGrantOf(grant, datasetKey, artifact.manifest);
    const { warnings, as_of_utc: asOfUtc } = artifact.manifest;
    return { artifact: await storedOf(artifact), warnings, asOfUtc };
  };
}

async function storedOf({ manifest, manifestPath, files }: Artifact): Promise<StoredArtifact> {
  const { row_count, bytes, sha256, media_type, split, synthetic } = manifest;
  return {
    row_count,
    bytes,
    sha256,
    media_type,
    split,
    synthetic,
    files: files.map(({ path: _, modifiedMs, ...file }) => ({ ...file, modified_ms: modifiedMs })),
    manifest: await manifestFile(manifestPath, row_count),
  };
}

async function manifestFile(path: string, rows: number): Promise<StoredFile> {
  await using file = await openRegular(path);
  const bytes = await file.readFile();
  return {
    name: basename(path),
    day: null,
    row_count: rows,
    bytes: bytes.length,
    sha256: createHash('sha256').update(bytes).digest('hex'),
    modified_ms: (await file.stat()).mtimeMs,
  };
}
