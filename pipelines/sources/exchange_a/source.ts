/** Exchange A as a source: daily and monthly zips of trades, each with its CHECKSUM. */
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/log/logger.ts';
import { exchangeASpotTrades } from '../../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { fileDays, windowOf } from '../../../shared/registry/partitions.ts';
import { openZipMember } from '../documents/archive.ts';
import type { DecodedItem, FileDayRequest, FileDaySource, OpenedDocument, PartitionWindow } from '../types.ts';
import { TradeFileDecoder } from './decode.ts';
import { fetchTrades, publishedChecksum } from './fetch.ts';

export interface ExchangeAOptions {
  readonly baseUrl: URL;
  readonly symbol: string;
  readonly spoolDir: string;
  readonly timeoutMs: number;
  readonly maxAttempts: number;
  readonly maxDocumentBytes: number;
  readonly maxUnpackedBytes: number;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

export function exchangeASource(options: ExchangeAOptions): FileDaySource {
  const fetching = (request: FileDayRequest) => ({
    baseUrl: options.baseUrl,
    symbol: options.symbol,
    period: request.period,
    spoolDir: options.spoolDir,
    timeoutMs: options.timeoutMs,
    maxBytes: options.maxDocumentBytes,
    maxAttempts: options.maxAttempts,
    signal: options.signal,
    log: options.log,
  });
  return {
    datasets: [exchangeASpotTrades],
    granularities: ['daily', 'monthly'],
    plan: (fromDay, toDay, granularity) => {
      const days = fileDays(fromDay, toDay);
      if (granularity === 'daily') {
        return days.map((day) => ({ period: day, granularity, partitions: [partition(day)] }));
      }
      const months = [...new Set(days.map((day) => day.slice(0, 7)))];
      return months.map((month) => ({ period: month, granularity, partitions: daysOfMonth(month).map(partition) }));
    },
    publishedSha256: (request) => publishedChecksum(fetching(request)),
    open: (request) => open(request, options, fetching(request)),
  };
}

async function open(
  request: FileDayRequest,
  options: ExchangeAOptions,
  fetching: Parameters<typeof fetchTrades>[0],
): Promise<OpenedDocument> {
  const file = await fetchTrades(fetching);
  try {
    const member = await openZipMember({
      path: file.path,
      expectedName: file.document.memberName,
      maxUnpackedBytes: options.maxUnpackedBytes,
      document: file.name,
    });
    return {
      facts: { name: file.name, sha256: file.sha256, bytes: file.bytes, granularity: request.granularity },
      async *decode({ frameRawBytes }): AsyncGenerator<DecodedItem> {
        const decoder = new TradeFileDecoder({
          document: file.name,
          fromMs: file.document.startMs,
          toMs: file.document.endMs,
          frameRawBytes,
        });
        // The end of a partition is vouched for only by a file that is still the one whose digest was checked.
        const vouched = async (item: DecodedItem) => {
          if (item.kind === 'end') await file.assertUnchanged();
          return item;
        };
        for await (const chunk of member.stream(options.signal)) {
          for (const item of decoder.push(chunk)) yield await vouched(item);
        }
        for (const item of decoder.finish()) yield await vouched(item);
      },
      [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
    };
  } catch (error) {
    await file[Symbol.asyncDispose]();
    throw error;
  }
}

function partition(day: string): PartitionWindow {
  return { key: day, ...windowOf(exchangeASpotTrades, day) };
}

function daysOfMonth(month: string): string[] {
  const [year, number] = month.split('-').map(Number);
  if (!(number >= 1 && number <= 12)) throw new TidemarkError('USAGE', `${JSON.stringify(month)} is no month`);
  const last = new Date(Date.UTC(year, number, 0)).getUTCDate();
  return fileDays(`${month}-01`, `${month}-${String(last).padStart(2, '0')}`);
}
