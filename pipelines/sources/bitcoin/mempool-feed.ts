/** The feed of the mempool: one snapshot now, or one per interval. */
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { codeOf, explain } from '../../../shared/errors.ts';
import { sampleWeek } from '../../sample/week.ts';
import { documentEvents } from '../feed-helpers.ts';
import type {
  AvailabilityEvent,
  DocumentEvent,
  Feed,
  FeedEvents,
  FeedNeeds,
  OpenedFeed,
  SampleNeeds,
} from '../feed-types.ts';
import { MEMPOOL_DATASET } from './datasets.ts';
import { snapshotDir, snapshotFiles, takeSnapshot } from './mempool.ts';
import { checkNode, type OpenedNode, openNode } from './open-node.ts';
import { ProvedChain } from './proved-chain.ts';
import { SAMPLE_CHAIN, SAMPLE_SNAPSHOTS, startSampleNode } from './sample/generate.ts';
import { mempoolSource, type SnapshotRequest, snapshotRequest } from './source.ts';

/** Most snapshots whose state is read in one query. */
const ASKED_AT_ONCE = 1_000;
/** `follow` requests a stored snapshot that failed after a poll again, then at growing intervals up to this one. */
const MAX_RETRY_MS = 10 * 60_000;

const ENDED: readonly PartitionRow['state'][] = ['proved', 'quarantined'];
/** A snapshot in one of these states is not requested. */
const HANDED_OVER: readonly PartitionRow['state'][] = [...ENDED, 'published'];
export const mempoolFeed: Feed = {
  name: MEMPOOL_DATASET.key,
  datasets: [MEMPOOL_DATASET],
  options: { required: [] },
  sample: { partitions: () => SAMPLE_SNAPSHOTS, make: makeSample },
  async open(needs) {
    if (needs.location) return sampleFeed(needs);
    await using cleanup = new AsyncDisposableStack();
    const opened = cleanup.use(await openNode(needs));
    const feed = new MempoolFeed(needs, opened);
    const kept = cleanup.move();
    return {
      source: mempoolSource(opened.network),
      isPlanned: false,
      select: () => documentEvents(feed.now()),
      follow: () => feed.follow(),
      [Symbol.asyncDispose]: () => kept.disposeAsync(),
    } satisfies OpenedFeed;
  },
};

/**
 * The chain's sample takes the snapshots along with its own. If that sample exists already, its node is generated once
 * more for them.
 */
async function makeSample({ directory, todayMs, log, signal }: SampleNeeds) {
  if ((await snapshotFiles(snapshotDir(directory, SAMPLE_CHAIN))).length < SAMPLE_SNAPSHOTS) {
    const { fromMs } = sampleWeek(todayMs);
    await using _node = await startSampleNode({ directory, snapshotsIn: directory, fromMs, log, signal });
  }
  return { location: pathToFileURL(`${directory}/`), selection: { options: {}, reingest: false } };
}

/** The snapshots in the sample's folder. */
async function sampleFeed({ location }: FeedNeeds): Promise<OpenedFeed> {
  const dir = snapshotDir(fileURLToPath(location as URL), SAMPLE_CHAIN);
  return {
    source: mempoolSource(SAMPLE_CHAIN),
    isPlanned: true,
    select: () => documentEvents(async () => (await snapshotFiles(dir)).map(snapshotRequest)),
    async [Symbol.asyncDispose]() {},
  };
}

/** When stored snapshots are requested again that failed, because a store was unavailable or they cannot be read. */
class Retries {
  readonly #firstMs: number;
  readonly #next = new Map<number, { readonly atMs: number; readonly afterMs: number }>();

  constructor(firstMs: number) {
    this.#firstMs = firstMs;
  }

  isDue({ file }: SnapshotRequest): boolean {
    return performance.now() >= (this.#next.get(file.takenAtMs)?.atMs ?? 0);
  }

  /** Records that the publisher is done with a request. */
  requested({ file }: SnapshotRequest): void {
    const { afterMs = this.#firstMs } = this.#next.get(file.takenAtMs) ?? {};
    const atMs = performance.now() + afterMs;
    this.#next.set(file.takenAtMs, { atMs, afterMs: Math.min(2 * afterMs, MAX_RETRY_MS) });
  }
}

export class MempoolFeed {
  readonly #needs: FeedNeeds;
  readonly #opened: OpenedNode;

  constructor(needs: FeedNeeds, opened: OpenedNode) {
    this.#needs = needs;
    this.#opened = opened;
  }

  /** Stored snapshots that are not proved yet, and one taken now. */
  async *now(): AsyncGenerator<SnapshotRequest> {
    yield* await this.#left(ENDED);
    yield await this.#take();
  }

  /** Takes snapshots at the interval, and requests each stored one until it is proved. */
  async *follow(): FeedEvents<DocumentEvent | AvailabilityEvent> {
    const { signal, settings, log } = this.#needs;
    const seconds = settings.SVC_BITCOIN_MEMPOOL_INTERVAL_SECONDS;
    const pollMs = settings.limits.nodePollMs;
    const retries = new Retries(pollMs);
    // The first round awaits the proofs of what an earlier process published.
    let states = ENDED;
    let due = performance.now();
    let fault: string | undefined;
    let failures = 0;
    while (!signal.aborted) {
      // This includes snapshots that another process took meanwhile.
      for (const request of await this.#left(states)) {
        if (!retries.isDue(request)) continue;
        yield { kind: 'document', request };
        retries.requested(request);
      }
      states = HANDED_OVER;
      if (seconds > 0 && performance.now() >= due) {
        due = Math.max(due + seconds * 1000, performance.now());
        try {
          const request = await this.#take();
          yield { kind: 'document', request };
          retries.requested(request);
          fault = undefined;
          failures = 0;
        } catch (error) {
          if (signal.aborted) return;
          // Only the operator can mend the node. Any other fault concerns one snapshot: blocks continue, and the next one may
          // succeed.
          if (codeOf(error) === 'NODE_UNSUITABLE') throw error;
          // Logged once until the fault changes.
          const code = codeOf(error) ?? 'UNEXPECTED';
          if (code !== fault) log.warn({ code, fault: explain(error) }, 'no snapshot of the mempool; retrying later');
          fault = code;
          yield { kind: 'availability', failures: ++failures, fault: explain(error) };
        }
      }
      await sleep(pollMs, undefined, { signal }).catch(() => {});
    }
  }

  get #dir(): string {
    return snapshotDir(this.#opened.keepIn, this.#opened.network);
  }

  async #take(): Promise<SnapshotRequest> {
    const { node, network } = this.#opened;
    await checkNode(node, network);
    await new ProvedChain(this.#needs.catalog, this.#opened, false).checkSameChain();
    return snapshotRequest(await takeSnapshot(node, { dir: this.#dir, chain: network, now: Date.now }));
  }

  /** Stored snapshots that are in none of the states. */
  async #left(states: readonly PartitionRow['state'][]): Promise<SnapshotRequest[]> {
    const { catalog } = this.#needs;
    const files = await snapshotFiles(this.#dir);
    const wanted: SnapshotRequest[] = [];
    for (let at = 0; at < files.length; at += ASKED_AT_ONCE) {
      const some = files.slice(at, at + ASKED_AT_ONCE);
      const keys = some.map(({ takenAtMs }) => `${takenAtMs}`);
      const known = await catalog.partitionsOf(MEMPOOL_DATASET, keys);
      const over = new Set(known.filter(({ state }) => states.includes(state)).map((row) => row.partitionKey));
      for (const file of some) if (!over.has(`${file.takenAtMs}`)) wanted.push(snapshotRequest(file));
    }
    return wanted;
  }
}
