/** Attempts whose frames are passed over: a repetition, a late arrival, or one that cannot be completed. */
import { Catalog } from '../../shared/db/catalog.ts';
import type { Client } from '../../shared/db/connect.ts';
import { differingFacts, type Manifest } from '../../shared/frame/manifest.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { keyFacts } from '../../shared/registry/keys.ts';
import type { Window } from '../../shared/registry/partitions.ts';
import type { Name } from './arrival.ts';
import { moveCheckpoint, type Position, writeQuarantined, writeRefused } from './commit.ts';
import { inItsPlace } from './faults.ts';

/** Why: its partition is proved, it came to its end before, or it cannot be completed. */
export type Why = 'proved' | 'ended' | 'broken';

export interface Skipping {
  readonly name: Name;
  readonly why: Why;
  readonly reason: string;
}

/** Its manifest has come: its end is recorded. */
export async function endSkipped(
  client: Client,
  dataset: DatasetDefinition,
  { why, reason, name }: Skipping,
  manifest: Manifest,
  position: Position,
): Promise<void> {
  const named = { ...manifest, partition: name.partition, attempt: name.attempt };
  if (why === 'ended') {
    await moveCheckpoint(client, dataset, position);
    return;
  }
  if (why === 'proved') {
    const known = await new Catalog(client).partition(dataset, name.partition);
    const differing = known?.manifest ? differingFacts(known.manifest, manifest) : [];
    // Met again after the checkpoint was lost: nothing new.
    if (known?.attempt === name.attempt && differing.length === 0) return;
    const what = differing.length > 0 ? `${reason} with other content (${differing.join(', ')})` : reason;
    await writeRefused(client, dataset, named, what, differing.length > 0, position);
    return;
  }
  let times: Window;
  try {
    times = keyFacts(dataset, name.partition).times;
  } catch {
    await writeRefused(client, dataset, named, reason, true, position);
    return;
  }
  await writeQuarantined(client, dataset, inItsPlace(manifest, name, times), reason, null, position);
}
