/** Documents of funds as captures: one document is one partition, of the fund and the day it is as of. */
import { sha256Hex } from '../../../shared/frame/codec.ts';
import { etfDailyMetrics } from '../../../shared/registry/datasets/etf_daily_metrics.ts';
import { captureKey } from '../../../shared/registry/keys.ts';
import { parseDay } from '../../../shared/time/days.ts';
import { nextMarketDay } from '../../../shared/time/market-days.ts';
import { RecordFrames } from '../records/record-frames.ts';
import type { DocumentRequest, OpenedDocument, Source, SourceCheck } from '../types.ts';
import { type Capture, readCapture } from './capture.ts';
import { type FetchNeeds, fundDocument, type Place } from './fetch.ts';
import type { Issuer } from './issuers/types.ts';

export interface FundRequest extends DocumentRequest {
  readonly issuer: Issuer;
  readonly place: Place;
  /** Which capture of its day it is, where that is known; else the first. */
  readonly number?: number;
}

export function etfSource(needs: FetchNeeds): Source<FundRequest> {
  return {
    datasets: [etfDailyMetrics],
    publishedSha256: async () => undefined,
    async open({ issuer, place, number }): Promise<OpenedDocument> {
      const { bytes, seen } = await fundDocument(issuer, place, needs);
      const capture = readCapture(issuer, bytes, seen);
      return {
        facts: { name: seen.name, sha256: sha256Hex(bytes), bytes: bytes.length, granularity: 'capture' },
        checks: isLatest(place) ? [{ sourceId: issuer.sourceId, throughMs: seen.atMs }] : NO_CHECKS,
        async *decode({ frameRawBytes }) {
          const key = captureKey(issuer.sourceId, capture.asOf, number);
          const frames = new RecordFrames(etfDailyMetrics, key, frameRawBytes);
          for (const event of capture.events) yield* frames.add(event);
          yield* frames.end({ span_end: expectedAfter(capture), record_sha256: capture.recordSha256 });
        },
        async [Symbol.asyncDispose]() {},
      };
    },
  };
}

const NO_CHECKS: readonly SourceCheck[] = [];

/** The issuer was asked for what it has now, so it had nothing newer then. */
function isLatest(place: Place): boolean {
  if (place.kind === 'issuer') return place.day === undefined;
  return place.kind === 'kept' && place.fetch.asked.day === undefined && place.fetch.asked.filed_day === undefined;
}

const expectedAfter = ({ asOf }: Capture) => parseDay(nextMarketDay(asOf))!;
