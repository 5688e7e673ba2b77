/**
 * Whether proved blocks are still in the node's chain. A block names the one before it, so if a block is in the chain all
 * before it are: of a run of proved units the last one is asked for, and only where it is gone is the place searched
 * where the chains part.
 */
import type { Range } from '../../../shared/db/ranges.ts';

export interface ProvedUnit {
  readonly span: Range;
  /** Of the document it came from: the hashes of its blocks. */
  readonly documentSha256: string;
}

/**
 * The first unit of a run, in the order of heights, that the node's chain no longer has as it was proved.
 * `digestOf`: of the same heights now.
 */
export async function firstLost(
  run: readonly ProvedUnit[],
  digestOf: (span: Range) => Promise<string>,
): Promise<ProvedUnit | undefined> {
  const isThere = async ({ span, documentSha256 }: ProvedUnit) => (await digestOf(span)) === documentSha256;
  // The first one that is lost lies in [low, high], or there is none.
  let [low, high] = [0, run.length];
  while (low < high) {
    // The last one first: it is there nearly always, and then nothing more is asked.
    const probe = high === run.length ? high - 1 : Math.floor((low + high) / 2);
    if (await isThere(run[probe])) low = probe + 1;
    else high = probe;
  }
  return run[low];
}
