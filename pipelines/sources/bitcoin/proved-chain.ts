/** What is proved of blocks and snapshots, held against the chain that the node has. */
import type { Catalog } from '../../../shared/db/catalog.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import { clip, parseMultirange, type Range } from '../../../shared/ranges.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { keyFacts } from '../../../shared/registry/keys.ts';
import { CHAIN_DATASETS, MEMPOOL_DATASET } from './datasets.ts';
import type { ChainState } from './node.ts';
import type { OpenedNode } from './open-node.ts';
import { hashesDigest, isOfChain } from './source.ts';

/* Which heights are fetched together. */

/**
 * Blocks of one unit of work: one attempt, one manifest, one commit in each of the six datasets. Full blocks are 50,000
 * rows and 50 MB of texts then, which are proved while the next ones are fetched.
 */
export const UNIT_BLOCKS = 20;
/**
 * This close to the tip each block is a unit of its own, so that a reorganisation quarantines what it touches and no
 * more. Deeper ones take whole units with them.
 */
export const SINGLE_BLOCKS = 12;

/** A partition there is, in whatever state, of any of the datasets. */
export interface KnownPartition {
  readonly span: Range;
}

/**
 * Units that cover the heights from..to (both included), none of which is partly inside a known partition: cut at round
 * heights, at the ends of what is known, and one by one near the tip.
 */
export function planUnits(from: number, to: number, tip: number, known: readonly KnownPartition[]): Range[] {
  const cuts = new Set<number>([to + 1]);
  for (const { span } of known) for (const end of [span.from, span.to]) cuts.add(end);
  const ends = [...cuts].filter((cut) => cut > from && cut <= to + 1).sort((a, b) => a - b);
  const units: Range[] = [];
  let start = from;
  for (const end of ends) {
    while (start < end) {
      const single = start > tip - SINGLE_BLOCKS;
      const round = single ? start + 1 : (Math.floor(start / UNIT_BLOCKS) + 1) * UNIT_BLOCKS;
      const beforeSingles = start <= tip - SINGLE_BLOCKS ? tip - SINGLE_BLOCKS + 1 : round;
      // What is known is one unit again, whatever would be planned today.
      const whole = known.some(({ span }) => span.from === start && span.to === end);
      const next = whole ? end : Math.min(end, round, beforeSingles);
      units.push({ from: start, to: next });
      start = next;
    }
  }
  return units;
}

/*
 * Whether proved blocks are still in the node's chain. A block names the one before it, so if a block is in the chain all
 * before it are: of a run of proved units the last one is asked for, and only where it is gone is the place searched
 * where the chains part.
 */

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

const [HEADERS] = CHAIN_DATASETS;
export const [SOURCE_ID] = HEADERS.sources;
/** Heights among which the last unit that the node has in full is found. */
const LAST_UNITS = 2 * UNIT_BLOCKS;

/** Proved heights that the node's chain no longer has. */
export interface Lost {
  /** To the end of what was proved on top of them. */
  readonly span: Range;
  /** The lowest unit of them. */
  readonly first: Range;
}

type ProvedRow = PartitionRow & { manifest: NonNullable<PartitionRow['manifest']> };

export class ProvedChain {
  readonly #catalog: Catalog;
  readonly #opened: OpenedNode;
  /** Partitions of a sample are no part of what a real node is held against, nor the other way round. */
  readonly #isSample: boolean;

  constructor(catalog: Catalog, opened: OpenedNode, isSample: boolean) {
    this.#catalog = catalog;
    this.#opened = opened;
    this.#isSample = isSample;
  }

  /**
   * In whichever of the six datasets they are proved: one may lack units that the others have. A node that has not come so
   * far (again) says nothing about what is above its tip; `onBehind` is told then.
   */
  async lost(state: ChainState, onBehind: () => void): Promise<Lost[]> {
    const end = state.blocks + 1;
    const digests = new Map<string, Promise<string>>();
    const digestOf = ({ from, to }: Range): Promise<string> => {
      const key = `${from}-${to}`;
      const digest = digests.get(key) ?? this.#opened.node.hashes(from, to - 1).then(hashesDigest);
      digests.set(key, digest);
      return digest;
    };
    const found: Lost[] = [];
    let isBehind = false;
    for (const dataset of CHAIN_DATASETS) {
      for (const run of await this.#runs(dataset)) {
        isBehind ||= run.to > end;
        const first = await this.#firstLost(dataset, run, end, digestOf);
        if (first) found.push({ span: { from: first.from, to: run.to }, first });
      }
    }
    if (isBehind) onBehind();
    return apart(found);
  }

  async #firstLost(
    dataset: DatasetDefinition,
    run: Range,
    end: number,
    digestOf: (span: Range) => Promise<string>,
  ): Promise<Range | undefined> {
    const known = clip([run], 0, end)[0];
    if (known === undefined) return undefined;
    const near = { from: Math.max(known.from, known.to - LAST_UNITS), to: known.to };
    const [last] = (await this.#provedUnits(dataset, near, end)).slice(-1);
    if (last === undefined || (await firstLost([last], digestOf)) === undefined) return undefined;
    return (await firstLost(await this.#provedUnits(dataset, known, end), digestOf))?.span;
  }

  /** Settings that name another chain's node are a mistake, and no reorganisation of all there is. */
  async checkSameChain(): Promise<void> {
    const { network, node } = this.#opened;
    for (const dataset of [...CHAIN_DATASETS, MEMPOOL_DATASET]) {
      const run = (await this.#runs(dataset)).at(-1);
      if (!run) continue;
      const rows = await this.#catalog.overlapping(dataset, SOURCE_ID, { from: run.to - 1, to: run.to });
      const name = rows.find(isProved)?.manifest.document.name;
      if (name === undefined || isOfChain(network, name)) continue;
      throw new TidemarkError(
        'NODE_CHAIN_MISMATCH',
        `The Bitcoin node at ${node.rpc.place} is on chain ${network}; what is proved is of another: ${name}`,
      );
    }
  }

  /** @throws TidemarkError CHAIN_REORGANISED when what is proved below a height is not what its block follows. */
  async checkLink(height: number, prevHash: string): Promise<void> {
    const below = await this.#provedAt(height - 1);
    const span = below && spanOf(below.partitionKey);
    // A unit that is ingested again may be inside of the one it replaces.
    if (!span || span.to !== height) return;
    const hashes = await this.#opened.node.hashes(span.from, span.to - 1);
    if (hashes.at(-1) === prevHash && hashesDigest(hashes) === below.manifest.document.sha256) return;
    throw new TidemarkError(
      'CHAIN_REORGANISED',
      `Block ${height} follows ${prevHash}, which is not the block that is proved at height ${height - 1}`,
      { details: { height, prev_hash: prevHash } },
    );
  }

  async #provedAt(height: number): Promise<ProvedRow | undefined> {
    if (height < 0) return undefined;
    for (const dataset of CHAIN_DATASETS) {
      const rows = await this.#catalog.overlapping(dataset, SOURCE_ID, { from: height, to: height + 1 });
      const found = rows.filter(isProved).find(({ synthetic }) => synthetic === this.#isSample);
      if (found) return found;
    }
    return undefined;
  }

  /** Proved runs; none of a sample, which is of another chain than the node's and goes with the first real block. */
  async #runs(dataset: DatasetDefinition): Promise<Range[]> {
    const coverage = await this.#catalog.coverage(dataset);
    return coverage === undefined || coverage.synthetic ? [] : parseMultirange(coverage.proved);
  }

  /** Those that end within what the node has, in order. */
  async #provedUnits(dataset: DatasetDefinition, range: Range, end: number): Promise<ProvedUnit[]> {
    return (await this.#catalog.overlapping(dataset, SOURCE_ID, range))
      .filter(isProved)
      .map(({ partitionKey, manifest }) => ({ span: spanOf(partitionKey), documentSha256: manifest.document.sha256 }))
      .filter(({ span }) => span.to <= end);
  }
}

const isProved = (row: PartitionRow): row is ProvedRow => row.state === 'proved' && row.manifest !== null;

export function spanOf(key: string): Range {
  const { span } = keyFacts(HEADERS, key);
  assert(span, 'a height has a span');
  return span;
}

/** One for each stretch, in order. */
function apart(found: readonly Lost[]): Lost[] {
  const sorted = found.toSorted((a, b) => a.span.from - b.span.from);
  const stretches: Lost[] = [];
  for (const { span, first } of sorted) {
    const before = stretches.at(-1);
    if (before && span.from < before.span.to) {
      const to = Math.max(before.span.to, span.to);
      stretches[stretches.length - 1] = { span: { from: before.span.from, to }, first: before.first };
    } else stretches.push({ span, first });
  }
  return stretches;
}
