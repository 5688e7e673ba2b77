/** Faults of the data, which quarantine a partition, and checks of what a manifest claims about itself. */

import { DatabaseError } from 'pg';
import { DAY_MS, SECOND_MS } from '../../shared/dates.ts';
import type { Extent } from '../../shared/db/partition-changes.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import type { Header, ManifestHeader } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { Discrepancy } from '../../shared/proof/recount.ts';
import type { Range } from '../../shared/ranges.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { PartitionLoad } from './partition-load.ts';

/** The longest time from one expected capture to the next: a weekend between holidays, with a margin. */
const MAX_CAPTURE_SPAN_MS = 15 * DAY_MS;

/** The span of a partition, with the facts of its coverage; undefined for a file day. */
export function extentOf(dataset: DatasetDefinition, manifest: Manifest): Extent | undefined {
  const { sourceId, span } = keyFacts(dataset, manifest.partition);
  if (!span) return undefined;
  const to = manifest.span_end ?? span.to;
  const throughMs = manifest.through_ms ?? defaultThrough(dataset, span);
  assert(throughMs !== undefined, 'a manifest without its end was quarantined before');
  return {
    sourceId,
    span: { from: span.from, to },
    times: { fromMs: manifest.from_ms, toMs: manifest.to_ms },
    throughMs,
    rows: manifest.rows,
  };
}

/**
 * The end of the snapshot's second, of the capture's day or of the vintage. Undefined for a range of heights, whose end only
 * the chain gives.
 */
function defaultThrough(dataset: DatasetDefinition, span: Range): number | undefined {
  if (dataset.partition.kind === 'height') return undefined;
  return dataset.partition.kind === 'snapshot' ? Math.floor(span.from / SECOND_MS) * SECOND_MS + SECOND_MS : span.to;
}

/** The numbers that no two proved partitions may share: heights, snapshots, or ids where a dataset's ids are unique. */
export function offsetsOf(dataset: DatasetDefinition, manifest: Manifest): string | null {
  const { span } = keyFacts(dataset, manifest.partition);
  if (!dataset.offset.unique) return null;
  return span ? `[${span.from},${span.to})` : `[${manifest.first_offset},${manifest.last_offset}]`;
}

/** Times and spans of a manifest that contradict its key or its rows. */
export function misplaced(dataset: DatasetDefinition, manifest: Manifest): Discrepancy[] {
  const { times, span } = keyFacts(dataset, manifest.partition);
  const found: Discrepancy[] = [];
  const check = (fact: string, holds: boolean, expected: unknown, actual: unknown) => {
    if (!holds) found.push({ fact: `manifest.${fact}`, expected: String(expected), found: String(actual) });
  };
  const { from_ms, to_ms, span_end } = manifest;
  if (!span) {
    check('from_ms', from_ms === times.fromMs, times.fromMs, from_ms);
    check('to_ms', to_ms === times.toMs, times.toMs, to_ms);
    return found;
  }
  if (manifest.rows > 0) {
    check('from_ms', from_ms === manifest.first_ms, manifest.first_ms, from_ms);
    check('to_ms', to_ms === manifest.last_ms + 1, manifest.last_ms + 1, to_ms);
  }
  check('from_ms', from_ms >= times.fromMs && from_ms < to_ms, `at least ${times.fromMs}`, from_ms);
  check('to_ms', to_ms <= times.toMs, `at most ${times.toMs}`, to_ms);
  const through = manifest.through_ms ?? defaultThrough(dataset, span);
  check('through_ms', through !== undefined, 'the end that the chain gives', through);
  if (span_end === undefined) return found;
  const furthest = dataset.partition.kind === 'capture' ? span.from + MAX_CAPTURE_SPAN_MS : span.from;
  check('span_end', span_end >= span.to && span_end <= furthest, `${span.to} to ${furthest}`, span_end);
  return found;
}

/** Facts of a manifest that contradict its own header, or the frames and sequences before it. */
export function manifestDiscrepancies(
  dataset: DatasetDefinition,
  manifest: Manifest,
  header: Pick<ManifestHeader, 'partition' | 'attempt' | 'revision' | 'frame'>,
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

/** The manifest with the attempt and times that it should have named: a quarantine is recorded where it belongs. */
export const outsidePartition = (
  manifest: Manifest,
  { partition, attempt }: Pick<Header, 'partition' | 'attempt'>,
  { fromMs, toMs }: { readonly fromMs: number; readonly toMs: number },
): Manifest => ({ ...manifest, partition, attempt, from_ms: fromMs, to_ms: toMs });

/** Codes of such faults. */
const OF_DATA: ReadonlySet<string> = new Set(['LOG_DAMAGED', 'CONFIGURATION_INVALID']);

/**
 * The fault of the data that an error reports, which quarantines the partition. Undefined for faults of stores, which
 * restart the projector.
 */
export function dataFault(error: unknown): string | undefined {
  if (error instanceof TidemarkError) return OF_DATA.has(error.code) ? error.message : undefined;
  if (!(error instanceof DatabaseError)) return undefined;
  // The service shows this as the reason of a quarantine: it may quote rows, but not name a table or a constraint.
  if (error.code === '23505') return `rows repeat: ${error.detail ?? 'two have the same identity'}`;
  if (error.code === '23P01') return `ids overlap another proved partition: ${error.detail ?? 'the same ids'}`;
  if (error.code?.startsWith('22')) return `the database refuses the rows: ${error.message}`;
  return error.code?.startsWith('23') ? 'the database refuses the rows: a rule of storage is broken' : undefined;
}
