/** Deletes whole segments that are older than the floor, and records that it did and where what is left begins. */
import { rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { openRegular } from '../files/regular-file.ts';
import { type AuditRecord, SEGMENTS_PRUNED } from './records.ts';
import { chainsIn, segmentsOf } from './witness.ts';
import { AuditWriter } from './writer.ts';

const DAY_MS = 86_400_000;

export interface Pruned {
  readonly chain: string;
  readonly segments: number;
  /** Last record that is gone. */
  readonly sequence: number;
}

/** Age is that of a segment's newest record and of its last change, whichever is later: clocks may have been wrong. */
export async function pruneAudit(
  directory: string,
  retentionDays: number,
  { now = Date.now, dryRun = false }: { readonly now?: () => number; readonly dryRun?: boolean } = {},
): Promise<Pruned[]> {
  const floor = now() - retentionDays * DAY_MS;
  const pruned: Pruned[] = [];
  await using writer = new AuditWriter({ directory, role: 'prune', now });
  for (const chain of await chainsIn(directory)) {
    const old: { readonly path: string; readonly last: AuditRecord }[] = [];
    for (const segment of await segmentsOf(directory, chain)) {
      const path = join(directory, chain, segment);
      const last = await lastRecord(path);
      const changed = (await stat(path)).mtimeMs;
      if (!last || Math.max(Date.parse(last.occurred_at), changed) >= floor) break;
      old.push({ path, last });
    }
    const end = old.at(-1)?.last;
    if (!end) continue;
    const { sequence, hash } = end;
    if (!dryRun) {
      const segments = old.length;
      await writer.append({ event: SEGMENTS_PRUNED, export_id: null, payload: { chain, sequence, hash, segments } });
      for (const { path } of old) await rm(path);
    }
    pruned.push({ chain, segments: old.length, sequence });
  }
  return pruned;
}

/** Undefined where the segment is not as it was written: that is for `verify` to tell, and nothing is deleted. */
async function lastRecord(path: string): Promise<AuditRecord | undefined> {
  try {
    await using file = await openRegular(path);
    const lines = (await file.readFile('utf8')).split('\n');
    const last = lines.at(-1) === '' ? lines.at(-2) : undefined;
    return last === undefined ? undefined : (JSON.parse(last) as AuditRecord);
  } catch {
    return undefined;
  }
}
