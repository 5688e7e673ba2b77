/** Faults of the data, told from faults of the stores; and manifests that say of themselves what is not so. */
import { DatabaseError } from 'pg';
import { TidemarkError } from '../../shared/errors.ts';
import type { Header, ManifestHeader } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { Discrepancy } from '../../shared/proof/recount.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { misplaced } from './extent.ts';
import type { PartitionLoad } from './partition-load.ts';

/** What a manifest says of itself, against where it lies and what came before it. */
export function misstatements(
  dataset: DatasetDefinition,
  manifest: Manifest,
  header: ManifestHeader,
  load: PartitionLoad,
): Discrepancy[] {
  const facts: [string, unknown, unknown][] = [
    ['manifest.partition', header.partition, manifest.partition],
    ['manifest.attempt', header.attempt, manifest.attempt],
    ['manifest.revision', header.revision, manifest.revision],
    ['manifest.frames', header.frame, manifest.frames],
    ['manifest.first_sequence', load.frames[0]?.sequence ?? 0, manifest.first_sequence],
  ];
  const found = facts
    .filter(([, expected, said]) => expected !== said)
    .map(([fact, expected, said]) => ({ fact, expected: String(expected), found: String(said) }));
  return [...found, ...misplaced(dataset, { ...manifest, partition: header.partition })];
}

/** The manifest with what it should have said of itself: a quarantined partition stands where it belongs. */
export const inItsPlace = (
  manifest: Manifest,
  { partition, attempt }: Pick<Header, 'partition' | 'attempt'>,
  { fromMs, toMs }: { readonly fromMs: number; readonly toMs: number },
): Manifest => ({ ...manifest, partition, attempt, from_ms: fromMs, to_ms: toMs });

/** Refusals that speak of the data, not of the stores: they quarantine; everything else starts the projector again. */
export function dataFault(error: unknown): string | undefined {
  if (error instanceof TidemarkError) return error.code === 'LOG_FRAME_CORRUPT' ? error.message : undefined;
  if (!(error instanceof DatabaseError)) return undefined;
  // What is said here is served as the reason of a quarantine: values of rows, no name of a table or a constraint.
  if (error.code === '23505') return `rows repeat: ${error.detail ?? 'two have the same identity'}`;
  if (error.code === '23P01') return `ids overlap another proved partition: ${error.detail ?? 'the same ids'}`;
  if (error.code?.startsWith('22')) return `the database refuses the rows: ${error.message}`;
  return error.code?.startsWith('23') ? 'the database refuses the rows: a rule of storage is broken' : undefined;
}
