/**
 * A node as a source. A document of blocks is a range of heights, identified by its hashes; one pass over it feeds six
 * datasets. A document of the mempool is a stored snapshot.
 */
import { TidemarkError } from '../../../shared/errors.ts';
import { sha256Hex } from '../../../shared/frame/codec.ts';
import type { DocumentFacts } from '../../../shared/frame/manifest.ts';
import { heightKey } from '../../../shared/registry/keys.ts';
import type { DecodedItem, DocumentRequest, OpenedDocument, Source } from '../feed-types.ts';
import { RecordFrames } from '../record-frames.ts';
import { BlocksAhead, type Heights, readBlocks } from './blocks.ts';
import { CHAIN_DATASETS, MEMPOOL_DATASET } from './datasets.ts';
import { mempoolEvents, readSnapshot, type SnapshotFile } from './mempool.ts';
import type { BitcoinNode } from './node.ts';
import { expectedEvents } from './rows/expected-events.ts';

export interface HeightRequest extends DocumentRequest, Heights {
  /** Why none of these blocks is settled yet. */
  readonly unsettled?: string;
  /** Whether the blocks are new: they were followed, and not filled in. */
  readonly isNew?: boolean;
  /** The heights of the next request, if they follow these. */
  readonly following?: Heights;
}

export function heightRequest(from: number, to: number, unsettled?: string): HeightRequest {
  const key = heightKey(from, to);
  return {
    period: from === to ? `height ${key}` : `heights ${key}`,
    partitions: CHAIN_DATASETS.map((dataset) => ({ dataset, key })),
    from,
    to,
    unsettled,
  };
}

/** Tells each request which heights the next one continues with. */
export const consecutive = (requests: readonly HeightRequest[]): HeightRequest[] =>
  requests.map((request, index) => {
    const next = requests[index + 1];
    if (next === undefined || next.unsettled !== undefined || next.from !== request.to + 1) return request;
    return { ...request, following: { from: next.from, to: next.to } };
  });

/**
 * A hash identifies its block. The list of hashes therefore identifies the range, whatever form the node's answers
 * have.
 */
const listed = (hashes: readonly string[]): string => hashes.map((hash) => `${hash}\n`).join('');

export const hashesDigest = (hashes: readonly string[]): string => sha256Hex(Buffer.from(listed(hashes)));

const documentName = (chain: string, key: string): string => `${chain}-blocks-${key}`;

/** Whether a document's name, of blocks or a snapshot, belongs to that chain. */
export const isOfChain = (chain: string, name: string): boolean =>
  name.startsWith(`${chain}-blocks-`) || name.startsWith(`${chain}-mempool-`);

export interface ChainSourceOptions {
  readonly node: BitcoinNode;
  readonly chain: string;
  /** Blocks to prefetch beyond the one that is being published. */
  readonly lookahead: number;
  /** Checks that the first block follows the one proved below it. @throws TidemarkError CHAIN_REORGANISED */
  readonly checkLink?: (height: number, prevHash: string) => Promise<void>;
}

export function chainSource({ node, chain, lookahead, checkLink }: ChainSourceOptions): Source<HeightRequest> {
  const documentOf = async (request: HeightRequest): Promise<{ hashes: string[]; facts: DocumentFacts }> => {
    const { from, to, unsettled } = request;
    if (unsettled !== undefined) {
      throw new TidemarkError('NODE_HEIGHT_BEYOND_TIP', `${request.period}: not settled yet, ${unsettled}`);
    }
    const hashes = await node.hashes(from, to);
    const name = documentName(chain, heightKey(from, to));
    const bytes = listed(hashes).length;
    return { hashes, facts: { name, sha256: hashesDigest(hashes), bytes, granularity: 'heights' } };
  };
  const ahead = new BlocksAhead(node, lookahead - 1);
  return {
    datasets: CHAIN_DATASETS,
    publishedSha256: async (request) => (await documentOf(request)).facts.sha256,
    async open(request): Promise<OpenedDocument> {
      const { hashes, facts } = await documentOf(request);
      const { from, to, isNew, following } = request;
      const captured = isNew ? { captured_ms: Date.now() } : {};
      return {
        facts,
        async *decode({ frameRawBytes }): AsyncGenerator<DecodedItem> {
          const key = heightKey(from, to);
          const frames = new Map(
            CHAIN_DATASETS.map((dataset) => [dataset.key as string, new RecordFrames(dataset, key, frameRawBytes)]),
          );
          let medianTime = 0;
          ahead.begin(hashes, following);
          for await (const checked of readBlocks(node, { chain, from, to, hashes, lookahead, ahead })) {
            if (checked.block.height === from) await checkLink?.(from, checked.block.prevHash);
            // Not `yield*`: that would await each of thousands of events.
            for (const event of expectedEvents(checked, chain)) {
              for (const run of frames.get(event.dataset)!.add(event)) yield run;
            }
            medianTime = checked.block.medianTime;
            // The frames hold copies of what they need.
            node.release(checked.block);
          }
          // No later block may have an earlier time.
          for (const one of frames.values()) yield* one.end({ through_ms: (medianTime + 1) * 1000, ...captured });
        },
        async [Symbol.asyncDispose]() {},
      };
    },
  };
}

export interface SnapshotRequest extends DocumentRequest {
  readonly file: SnapshotFile;
}

export function snapshotRequest(file: SnapshotFile): SnapshotRequest {
  const key = `${file.takenAtMs}`;
  const at = new Date(file.takenAtMs).toISOString();
  return { period: `mempool at ${at}`, partitions: [{ dataset: MEMPOOL_DATASET, key }], file };
}

export function mempoolSource(chain: string): Source<SnapshotRequest> {
  return {
    datasets: [MEMPOOL_DATASET],
    publishedSha256: async ({ file }) => (await readSnapshot(file, chain)).document.sha256,
    async open({ file }): Promise<OpenedDocument> {
      const snapshot = await readSnapshot(file, chain);
      return {
        facts: { ...snapshot.document, granularity: 'snapshot' },
        async *decode({ frameRawBytes }): AsyncGenerator<DecodedItem> {
          const frames = new RecordFrames(MEMPOOL_DATASET, `${file.takenAtMs}`, frameRawBytes);
          for (const event of mempoolEvents(snapshot)) yield* frames.add(event);
          yield* frames.end();
        },
        async [Symbol.asyncDispose]() {},
      };
    },
  };
}
