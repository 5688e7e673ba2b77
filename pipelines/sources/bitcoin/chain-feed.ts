/** The feed `bitcoin`: the six datasets of the chain, by heights or following new blocks. */

import { mkdir } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import type { Settings } from '../../../shared/config/settings.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import { joined, type Range } from '../../../shared/ranges.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { describeHeights } from '../../../shared/registry/keys.ts';
import { sampleWeek } from '../../sample/week.ts';
import { documentEvents } from '../feed-helpers.ts';
import type {
  Feed,
  FeedEvents,
  FeedNeeds,
  OpenedFeed,
  RetractionEvent,
  SampleNeeds,
  Selection,
} from '../feed-types.ts';
import { CHAIN_DATASETS, MEMPOOL_DATASET } from './datasets.ts';
import type { ChainState } from './node.ts';
import { checkNode, type OpenedNode, openNode, settledTip, syncNote } from './open-node.ts';
import { ProvedChain, planUnits, SAMPLE_UNITS, SOURCE_ID, spanOf } from './proved-chain.ts';
import { SAMPLE_BLOCKS, startSampleNode } from './sample/generate.ts';
import { chainSource, consecutive, type HeightRequest, heightRequest } from './source.ts';

/** A chain's genesis block may be years older than its next. */
const SAMPLE_FIRST = 1;
/** `follow` retries failed heights after a poll, then at growing intervals up to this one. */
const MAX_RETRY_MS = 10 * 60_000;

const ENDED = ['proved', 'quarantined'] as const;
/** A partition in one of these states is not requested. */
const HANDED_OVER = [...ENDED, 'published'] as const;

export const chainFeed: Feed = {
  name: 'bitcoin',
  datasets: CHAIN_DATASETS,
  options: { required: [], optional: ['from-height', 'to-height'] },
  followedWith: [MEMPOOL_DATASET.key],
  sample: {
    partitions: () => planUnits(SAMPLE_FIRST, SAMPLE_BLOCKS, SAMPLE_BLOCKS, [], SAMPLE_UNITS).length,
    make: makeSample,
  },
  async open(needs) {
    await using cleanup = new AsyncDisposableStack();
    const opened = cleanup.use(await openNode(needs));
    const proved = new ProvedChain(needs.catalog, opened, isSample(needs));
    const feed = new ChainFeed(needs, opened, proved);
    const kept = cleanup.move();
    const source = chainSource({
      node: opened.node,
      chain: opened.network,
      lookahead: needs.settings.limits.nodeCalls,
      checkLink: (height, prevHash) => proved.checkLink(height, prevHash),
    });
    return {
      source,
      isPlanned: true,
      select: (selection) => feed.select(selection),
      follow: () => feed.follow(),
      recheck: () => feed.recheck(),
      [Symbol.asyncDispose]: () => kept.disposeAsync(),
    } satisfies OpenedFeed;
  },
};

const isSample = ({ location }: FeedNeeds): boolean => location !== undefined;

/** Leaves the chain's mempool snapshots where the sample of the mempool looks for them. */
async function makeSample({ directory, todayMs, log, signal }: SampleNeeds) {
  const mempool = join(dirname(directory), MEMPOOL_DATASET.key);
  await mkdir(mempool, { recursive: true });
  const { fromMs } = sampleWeek(todayMs);
  await using _node = await startSampleNode({ directory, snapshotsIn: mempool, fromMs, log, signal });
  const options = { 'from-height': `${SAMPLE_FIRST}`, 'to-height': `${SAMPLE_BLOCKS}` };
  return { location: pathToFileURL(`${directory}/`), selection: { options, reingest: false } };
}

class ChainFeed {
  readonly #needs: FeedNeeds;
  readonly #opened: OpenedNode;
  readonly #proved: ProvedChain;
  readonly #isSample: boolean;
  #reingests = false;

  constructor(needs: FeedNeeds, opened: OpenedNode, proved: ProvedChain) {
    this.#needs = needs;
    this.#opened = opened;
    this.#proved = proved;
    this.#isSample = isSample(needs);
  }

  async *select({ options, reingest }: Selection): FeedEvents {
    this.#reingests = reingest;
    const { node, network, depth } = this.#opened;
    const state = await checkNode(node, network);
    const note = syncNote(state);
    if (note) this.#needs.log.warn({ node: node.rpc.endpoint }, note);
    const { first, last } = boundsOf(this.#needs.settings);
    const tip = settledTip(state, depth);
    const { 'from-height': low, 'to-height': high } = options;
    const from = low === undefined ? first : Number(low);
    // A first block above the tip is reported, too.
    const to = high === undefined ? Math.min(low === undefined ? tip : Math.max(tip, from), last) : Number(high);
    checkBounds(high === undefined ? [from] : [from, to], this.#needs.settings);
    await this.#proved.checkSameChain();
    if (!reingest) yield* this.#retractions(state);
    const requests: HeightRequest[] = [];
    if (from <= tip) requests.push(...(await this.#plan(from, Math.min(to, tip), tip)));
    // The command reports requested heights above the settled tip, beside the heights that can be read.
    if (to > tip) requests.push(heightRequest(Math.max(from, tip + 1), to, `the settled tip is ${tip}`));
    yield* documentEvents(consecutive(requests));
  }

  /** A backfill may take hours: blocks that were lost meanwhile are found at its end, not with the next command. */
  async *recheck(): FeedEvents<RetractionEvent> {
    if (this.#reingests || this.#isSample) return;
    const { node, network } = this.#opened;
    try {
      yield* this.#retractions(await checkNode(node, network));
    } catch (error) {
      if (!(error instanceof TidemarkError && error.transient)) throw error;
      this.#needs.log.warn(
        { fault: explain(error) },
        'the check for reorganised blocks failed; the next command repeats it',
      );
    }
  }

  /**
   * Yields new blocks, and all missing heights below them from the first proved one on, until it is stopped. It waits while
   * the node is unavailable, and requests a failed unit again.
   */
  async *follow(): FeedEvents {
    const { signal, settings, log } = this.#needs;
    const { node, network, depth } = this.#opened;
    const { first, last } = boundsOf(settings);
    const pollMs = settings.limits.nodePollMs;
    const retry = { atMs: Number.POSITIVE_INFINITY, afterMs: pollMs };
    let seen: string | undefined;
    let next: number | undefined;
    let states: readonly PartitionRow['state'][] = ENDED;
    // The first round fills in what came before.
    let isNew = false;
    // After a restart it is unknown whether the node was unavailable before.
    for (let failures: number | undefined; !signal.aborted; ) {
      try {
        const state = await checkNode(node, network);
        if (failures) log.info({ node: node.rpc.endpoint }, 'the node is back');
        if (failures !== 0) yield { kind: 'availability', failures: 0, fault: null };
        failures = 0;
        if (state.bestHash !== seen || performance.now() >= retry.atMs) {
          await this.#proved.checkSameChain();
          yield* this.#retractions(state);
          const tip = Math.min(settledTip(state, depth), last);
          next ??= Math.max(first, (await this.#firstEnded()) ?? first);
          const missing = await this.#planMissing(next, tip, states);
          yield* documentEvents(consecutive(missing).map((request) => ({ ...request, isNew })));
          states = HANDED_OVER;
          const [left] = await this.#missing(next, tip, states);
          // What is published may have to be published again, if the log loses its manifest.
          const [open] = await this.#missing(next, tip, ENDED);
          next = open?.from ?? Math.max(next, tip + 1);
          if (left) {
            log.warn({ from_height: left.from, wait_ms: retry.afterMs }, 'heights are missing; retrying');
            Object.assign(retry, {
              atMs: performance.now() + retry.afterMs,
              afterMs: Math.min(2 * retry.afterMs, MAX_RETRY_MS),
            });
          } else {
            Object.assign(retry, { atMs: Number.POSITIVE_INFINITY, afterMs: pollMs });
          }
          seen = state.bestHash;
          isNew = true;
        }
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof TidemarkError && error.transient)) throw error;
        const fault = explain(error);
        if (!failures) log.warn({ node: node.rpc.endpoint, fault }, 'the node cannot be followed; retrying later');
        failures = (failures ?? 0) + 1;
        seen = undefined;
        yield { kind: 'availability', failures, fault };
      }
      await sleep(pollMs, undefined, { signal }).catch(() => {});
    }
  }

  /** Units that hold the missing heights of from..tip. */
  async #planMissing(from: number, tip: number, states: readonly PartitionRow['state'][]): Promise<HeightRequest[]> {
    const planned = new Map<string, HeightRequest>();
    for (const span of await this.#missing(from, tip, states)) {
      // Two missing spans may lie in one known unit.
      for (const request of await this.#plan(span.from, span.to - 1, tip)) planned.set(request.period, request);
    }
    return [...planned.values()];
  }

  /**
   * Heights of from..tip that are in none of the states in at least one dataset. That includes units of a killed
   * process.
   */
  async #missing(from: number, tip: number, states: readonly PartitionRow['state'][]): Promise<Range[]> {
    if (from > tip) return [];
    const { catalog } = this.#needs;
    const options = { states, synthetic: this.#isSample };
    const of = (dataset: DatasetDefinition) => catalog.uncovered(dataset, SOURCE_ID, { from, to: tip + 1 }, options);
    return joined((await Promise.all(CHAIN_DATASETS.map(of))).flat());
  }

  /** Heights below the first ended one were never requested. */
  async #firstEnded(): Promise<number | undefined> {
    const { catalog } = this.#needs;
    const of = (dataset: DatasetDefinition) => catalog.firstEnded(dataset, SOURCE_ID, this.#isSample);
    const found = (await Promise.all(CHAIN_DATASETS.map(of))).filter((height) => height !== undefined);
    return found.length > 0 ? Math.min(...found) : undefined;
  }

  /** Units that hold the heights from..to; known partitions keep their units. */
  async #plan(from: number, to: number, tip: number): Promise<HeightRequest[]> {
    let range: Range = { from, to: to + 1 };
    for (;;) {
      const known = await this.#known(range);
      const whole = {
        from: Math.min(range.from, ...known.map(({ from: start }) => start)),
        to: Math.max(range.to, ...known.map(({ to: end }) => end)),
      };
      if (whole.from === range.from && whole.to === range.to) {
        const spans = known.map((span) => ({ span }));
        const sizes = this.#isSample ? SAMPLE_UNITS : undefined;
        const units = planUnits(range.from, range.to - 1, tip, spans, sizes);
        return units.map((unit) => heightRequest(unit.from, unit.to - 1));
      }
      range = whole;
    }
  }

  async #known(range: Range): Promise<Range[]> {
    const spans = new Map<string, Range>();
    for (const dataset of CHAIN_DATASETS) {
      const rows = await this.#needs.catalog.overlapping(dataset, SOURCE_ID, range);
      for (const { partitionKey, synthetic } of rows) {
        if (synthetic === this.#isSample) spans.set(partitionKey, spanOf(partitionKey));
      }
    }
    return [...spans.values()];
  }

  /** Yields retractions of proved blocks that the node's chain no longer has, in each of the datasets. */
  async *#retractions(state: ChainState): FeedEvents<RetractionEvent> {
    const { log } = this.#needs;
    const { endpoint } = this.#opened.node.rpc;
    const onBehind = () => log.warn({ node: endpoint, tip: state.blocks }, 'the node has fewer blocks than are proved');
    for (const { span, first } of await this.#proved.lost(state, onBehind)) {
      const reason = `the node's chain has other blocks from a height in ${describeHeights(first)} on`;
      for (const dataset of CHAIN_DATASETS) {
        yield { kind: 'retraction', dataset, span, code: 'CHAIN_REORGANISED', reason };
      }
    }
  }
}

const boundsOf = (settings: Settings) => ({
  first: settings.SVC_BITCOIN_HEADERS_START_HEIGHT,
  last: settings.SVC_BITCOIN_HEADERS_END_HEIGHT ?? Number.MAX_SAFE_INTEGER,
});

function checkBounds(heights: readonly number[], settings: Settings): void {
  const { first, last } = boundsOf(settings);
  for (const height of heights) {
    if (height < first) {
      throw new TidemarkError('USAGE', `Height ${height} is below SVC_BITCOIN_HEADERS_START_HEIGHT, which is ${first}`);
    }
    if (height > last) {
      throw new TidemarkError('USAGE', `Height ${height} is above SVC_BITCOIN_HEADERS_END_HEIGHT, which is ${last}`);
    }
  }
}
