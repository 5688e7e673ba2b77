/** Compares the proved blocks and snapshots with the node's chain, and plans which heights are fetched together. */
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

/**
 * Blocks of one unit of work: one attempt, one manifest and one commit in each of the six datasets. With full blocks
 * that is 50,000 rows and 50 MB of texts, which the projector proves while the next ones are fetched.
 */
export const UNIT_BLOCKS = 20;
/**
 * This close to the tip each block is a unit of its own, so that a reorganisation quarantines only the blocks it
 * replaces. A deeper reorganisation quarantines whole units.
 */
export const SINGLE_BLOCKS = 12;

export interface UnitSizes {
  readonly blocks: number;
  readonly singles: number;
}

/** Of a sample: its blocks are small, and its chain is never reorganised. */
export const SAMPLE_UNITS: UnitSizes = { blocks: 100, singles: 0 };

/** A partition of any of the datasets, in any state. */
export interface KnownSpan {
  readonly span: Range;
}

/**
 * Plans units that cover the heights from..to, both inclusive. No unit overlaps a known partition in part: units end at
 * multiples of their size and at the ends of known partitions, and are single blocks near the tip.
 */
export function planUnits(
  from: number,
  to: number,
  tip: number,
  known: readonly KnownSpan[],
  { blocks, singles }: UnitSizes = { blocks: UNIT_BLOCKS, singles: SINGLE_BLOCKS },
): Range[] {
  const cuts = new Set<number>([to + 1]);
  for (const { span } of known) for (const end of [span.from, span.to]) cuts.add(end);
  const ends = [...cuts].filter((cut) => cut > from && cut <= to + 1).sort((a, b) => a - b);
  const units: Range[] = [];
  let start = from;
  for (const end of ends) {
    while (start < end) {
      const single = start > tip - singles;
      const round = single ? start + 1 : (Math.floor(start / blocks) + 1) * blocks;
      const beforeSingles = start <= tip - singles ? tip - singles + 1 : round;
      // A known partition stays one unit, whatever the plan would be today.
      const whole = known.some(({ span }) => span.from === start && span.to === end);
      const next = whole ? end : Math.min(end, round, beforeSingles);
      units.push({ from: start, to: next });
      start = next;
    }
  }
  return units;
}

export interface ProvedUnit {
  readonly span: Range;
  /** The sha256 of its document, the list of its blocks' hashes. */
  readonly documentSha256: string;
}

/**
 * The first unit of a run, in the order of heights, that differs from the node's chain. `digestOf` gives the digest of
 * a unit's heights in the node now. A block names the one before it, so if the chain has a block it has all before it.
 * The search therefore probes the last unit first and bisects only if it is lost.
 */
export async function firstLost(
  run: readonly ProvedUnit[],
  digestOf: (span: Range) => Promise<string>,
): Promise<ProvedUnit | undefined> {
  const isThere = async ({ span, documentSha256 }: ProvedUnit) => (await digestOf(span)) === documentSha256;
  // If a unit is lost, the first lost one lies in [low, high].
  let [low, high] = [0, run.length];
  while (low < high) {
    // Probes the last unit first: the node nearly always has it, and then no other call is needed.
    const probe = high === run.length ? high - 1 : Math.floor((low + high) / 2);
    if (await isThere(run[probe])) low = probe + 1;
    else high = probe;
  }
  return run[low];
}

const [HEADERS] = CHAIN_DATASETS;
export const [SOURCE_ID] = HEADERS.sources;
/** The last unit that the node has in full lies within this many heights. */
const LAST_UNITS = 2 * UNIT_BLOCKS;

/** Proved heights that are no longer in the node's chain. */
export interface Lost {
  /** From the first lost height to the end of what was proved above it. */
  readonly span: Range;
  /** The lowest lost unit. */
  readonly first: Range;
}

type ProvedRow = PartitionRow & { manifest: NonNullable<PartitionRow['manifest']> };

export class ProvedChain {
  readonly #catalog: Catalog;
  readonly #opened: OpenedNode;
  /** A sample's partitions are never compared with a real node, nor real ones with a sample's node. */
  readonly #isSample: boolean;

  constructor(catalog: Catalog, opened: OpenedNode, isSample: boolean) {
    this.#catalog = catalog;
    this.#opened = opened;
    this.#isSample = isSample;
  }

  /**
   * Finds lost heights in each of the six datasets, because one may lack units that others have. A node that is behind
   * says nothing about heights above its tip; `onBehind` is called then.
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
    // The last block of a run says nothing about the blocks below a break.
    const breaks = await this.#catalog.chainBreaks(HEADERS);
    let isBehind = false;
    for (const dataset of CHAIN_DATASETS) {
      for (const run of await this.#runs(dataset)) {
        isBehind ||= run.to > end;
        for (const linked of splitAt(run, breaks)) {
          const first = await this.#firstLost(dataset, linked, end, digestOf);
          if (first) found.push({ span: { from: first.from, to: linked.to }, first });
        }
      }
    }
    if (isBehind) onBehind();
    return mergeOverlapping(found);
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

  /** If the settings name another chain's node, that is a mistake, not a reorganisation of everything. */
  async checkSameChain(): Promise<void> {
    const { network, node } = this.#opened;
    for (const dataset of [...CHAIN_DATASETS, MEMPOOL_DATASET]) {
      const run = (await this.#runs(dataset)).at(-1);
      if (!run) continue;
      const rows = await this.#catalog.overlapping(dataset, SOURCE_ID, { from: run.to - 1, to: run.to });
      const name = rows.find(isProved)?.manifest.document.name;
      if (name === undefined || isOfChain(network, name)) continue;
      throw new TidemarkError(
        'NODE_UNSUITABLE',
        `The Bitcoin node at ${node.rpc.endpoint} is on chain ${network}, but the proved blocks are of another: ${name}`,
        { remedy: 'Correct SVC_BITCOIN_NETWORK, or use a state folder, or a database and log, of its own.' },
      );
    }
  }

  /** @throws TidemarkError CHAIN_REORGANISED if the block does not follow the one that is published or proved below it. */
  async checkLink(height: number, prevHash: string): Promise<void> {
    const below = await this.#unitAt(height - 1);
    // A unit that is ingested again may lie inside the one that it replaces.
    if (!below || below.span.to !== height) return;
    const hashes = await this.#opened.node.hashes(below.span.from, below.span.to - 1);
    if (hashes.at(-1) === prevHash && hashesDigest(hashes) === below.documentSha256) return;
    throw new TidemarkError(
      'CHAIN_REORGANISED',
      `Block ${height} follows ${prevHash}, but another block is ${below.state} at height ${height - 1}`,
      { details: { height, prev_hash: prevHash } },
    );
  }

  /** The unit of a height. One that awaits its proof counts before a proved one, which it replaces. */
  async #unitAt(height: number): Promise<(ProvedUnit & { readonly state: 'published' | 'proved' }) | undefined> {
    if (height < 0) return undefined;
    for (const dataset of CHAIN_DATASETS) {
      const rows = await this.#catalog.overlapping(dataset, SOURCE_ID, { from: height, to: height + 1 });
      for (const row of rows.filter(({ synthetic }) => synthetic === this.#isSample)) {
        const span = spanOf(row.partitionKey);
        const [newest] = await this.#catalog.attempts(dataset, row.partitionKey);
        if (newest?.state === 'published') return { span, documentSha256: newest.document.sha256, state: 'published' };
        if (isProved(row)) return { span, documentSha256: row.manifest.document.sha256, state: 'proved' };
      }
    }
    return undefined;
  }

  /** The proved runs; none of a sample, whose chain is not the node's and which retires with the first real block. */
  async #runs(dataset: DatasetDefinition): Promise<Range[]> {
    const coverage = await this.#catalog.coverage(dataset);
    return coverage === undefined || coverage.synthetic ? [] : parseMultirange(coverage.proved);
  }

  /** The proved units that end within the node's chain, in order. */
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

/** The parts of a run that begin at its start and at each of the heights inside it. */
function splitAt({ from, to }: Range, heights: readonly number[]): Range[] {
  const starts = [from, ...heights.filter((height) => height > from && height < to)];
  return starts.map((start, index) => ({ from: start, to: starts[index + 1] ?? to }));
}

/** Merges overlapping stretches, in order. */
function mergeOverlapping(found: readonly Lost[]): Lost[] {
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
