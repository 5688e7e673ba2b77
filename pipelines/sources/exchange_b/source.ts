/** Exchange B as a source: one zip of trades a file day. */

import type { Logger } from '../../../shared/log/logger.ts';
import { exchangeBSpotTrades } from '../../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { openZipMember } from '../documents/archive.ts';
import type { Backoff } from '../documents/retry.ts';
import { planDaily } from '../trades/plan.ts';
import type { DecodedItem, FileDayRequest, FileDaySource, OpenedDocument } from '../types.ts';
import { ExchangeBDecoder } from './decode.ts';
import { fetchTrades } from './fetch.ts';

export interface ExchangeBOptions {
  /** Base of the archive, or the endpoint that tells where a document is. */
  readonly location: URL;
  readonly resolve: 'base' | 'link';
  readonly instrument: string;
  readonly spoolDir: string;
  readonly timeoutMs: number;
  readonly maxAttempts: number;
  readonly backoff?: Backoff;
  readonly linkSpacingMs?: number;
  readonly maxDocumentBytes: number;
  readonly maxUnpackedBytes: number;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

export function exchangeBSource(options: ExchangeBOptions): FileDaySource {
  return {
    datasets: [exchangeBSpotTrades],
    granularities: ['daily'],
    plan: planDaily(exchangeBSpotTrades),
    // Only the answer that brings the document states its digest.
    publishedSha256: async () => undefined,
    open: (request) => open(request, options),
  };
}

async function open(request: FileDayRequest, options: ExchangeBOptions): Promise<OpenedDocument> {
  const { instrument, signal } = options;
  const [window] = request.partitions;
  const file = await fetchTrades({
    ...options,
    maxBytes: options.maxDocumentBytes,
    day: request.period,
    fromMs: window.fromMs,
  });
  try {
    const member = await openZipMember({
      path: file.path,
      expectedName: file.name.replace(/zip$/, 'csv'),
      maxUnpackedBytes: options.maxUnpackedBytes,
      document: file.name,
    });
    return {
      facts: {
        name: file.name,
        sha256: file.sha256,
        bytes: file.bytes,
        granularity: request.granularity,
        ...(file.contentMd5 === undefined ? {} : { content_md5: file.contentMd5 }),
      },
      async *decode({ frameRawBytes }): AsyncGenerator<DecodedItem> {
        const decoder = new ExchangeBDecoder({ document: file.name, instrument, window, frameRawBytes });
        for await (const chunk of member.stream(signal)) yield* decoder.push(chunk);
        // The end of a partition is vouched for only by a file that is still the one whose digest was taken.
        await file.assertUnchanged();
        yield* decoder.finish();
      },
      [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
    };
  } catch (error) {
    await file[Symbol.asyncDispose]();
    throw error;
  }
}
