/** What the operator does about partitions that the log has lost, and about those that are quarantined. */
import type { Json } from '../support/command.ts';
import { CHAIN_KEYS } from './chain.ts';
import { type ProcessDeps, untilDone } from './processes.ts';

/** Longest repair, on a machine that does much else. */
const REPAIR_MS = 900_000;
const SNAPSHOTS = 'bitcoin_mempool_state';

interface Named {
  readonly dataset: string;
  readonly partition: string;
}

/** Publishes these partitions anew. @returns those of snapshots, which no source has any more */
export async function reingest(deps: ProcessDeps, partitions: readonly Named[], reason: string): Promise<Named[]> {
  const run = (of: readonly string[]) => untilDone(deps, ['reingest', ...of, '--reason', reason], REPAIR_MS);
  for (const { dataset, partition } of partitions) {
    if (dataset.startsWith('exchange_')) await run([dataset, '--from', partition, '--to', partition]);
  }
  if (partitions.some(({ dataset }) => dataset === 'etf_daily_metrics')) await run(['etf']);
  // The key of a unit of blocks has both ends of its heights.
  const heights = partitions
    .filter(({ dataset }) => CHAIN_KEYS.has(dataset))
    .flatMap(({ partition }) => partition.match(/\d+/g)!.map(Number));
  if (heights.length > 0) {
    await run(['bitcoin', '--from-height', `${Math.min(...heights)}`, '--to-height', `${Math.max(...heights)}`]);
  }
  return partitions.filter(({ dataset }) => dataset === SNAPSHOTS);
}

/** Puts database and log in step after the log lost its tail, and publishes anew what it names. @returns as `reingest` */
export async function recover(deps: ProcessDeps): Promise<Named[]> {
  const answer = await untilDone(deps, ['recover', 'all', '--reason', 'the log lost its tail'], REPAIR_MS);
  const plans: Json[] = answer?.json.plans ?? [];
  const lost = plans.flatMap(({ dataset, lost: of }) => of.map((partition: string) => ({ dataset, partition })));
  return await reingest(deps, lost, 'the log lost it');
}

/**
 * Publishes quarantined partitions anew: blocks that left the chain, and attempts whose first frames a log has lost, which
 * their publisher does not know. Nothing else may be quarantined.
 */
export async function mendQuarantined(deps: ProcessDeps): Promise<void> {
  const listed = await untilDone(deps, ['quarantine'], REPAIR_MS);
  const partitions: (Named & { readonly by: string; readonly reason: string })[] = listed?.json.partitions ?? [];
  const wasLost = deps.excuses.has('PARTITION_PROOF_FAILED');
  for (const { dataset, partition, by, reason } of partitions) {
    const isExplained = by === 'source' ? CHAIN_KEYS.has(dataset) : by === 'proof' && wasLost;
    if (!isExplained) deps.tally.fail(`${dataset} ${partition} is quarantined by ${by}: ${reason}`);
    deps.tally.operation(`mended a partition that was quarantined by its ${by}`);
  }
  for (const { dataset, partition } of await reingest(deps, partitions, 'what was lost is published anew')) {
    await untilDone(
      deps,
      ['quarantine', 'release', dataset, partition, '--reason', 'the log lost its beginning'],
      REPAIR_MS,
    );
  }
}
