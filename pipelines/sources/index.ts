/** The table of sources: what an operator can name, and which adapter feeds a dataset. */
import { join } from 'node:path';
import type { Settings } from '../../shared/config/settings.ts';
import { TidemarkError } from '../../shared/errors.ts';
import { exchangeASpotTrades } from '../../shared/registry/datasets/exchange_a_spot_trades.ts';
import { exchangeBSpotTrades } from '../../shared/registry/datasets/exchange_b_spot_trades.ts';
import { exchangeCSpotTrades } from '../../shared/registry/datasets/exchange_c_spot_trades.ts';
import { chainFeed } from './bitcoin/feed.ts';
import { mempoolFeed } from './bitcoin/mempool-feed.ts';
import { exchangeASource } from './exchange_a/feed.ts';
import { consecutiveDays, writeDay } from './exchange_a/sample.ts';
import { exchangeBSource } from './exchange_b/feed.ts';
import * as exchangeBSample from './exchange_b/sample.ts';
import { exchangeCSource } from './exchange_c/feed.ts';
import * as exchangeCSample from './exchange_c/sample.ts';
import { ETF, lazyFeed, MACRO } from './lazy-feed.ts';
import { fileDayFeed } from './trades/feed.ts';
import type { Feed } from './types.ts';

/** Of one day of a sample. */
const SAMPLE_ROWS = 60_000;
/** From this day on exchange A's files state times in microseconds; before it, in milliseconds. */
const FIRST_DAY_IN_MICROSECONDS = '2025-01-01';

const FEEDS: readonly Feed[] = [
  fileDayFeed(
    exchangeASpotTrades,
    ({ settings, location, log, signal }) =>
      exchangeASource({
        ...limitsOf(settings),
        baseUrl: location,
        symbol: settings.SVC_EXCHANGE_A_SYMBOL,
        log,
        signal,
      }),
    async ({ directory, from, to, rows = SAMPLE_ROWS, settings, signal }) => {
      for (const day of consecutiveDays({ from, to, rowsPerDay: rows, seed: 1, timeUnit: 'us' })) {
        signal.throwIfAborted();
        const timeUnit = day.day < FIRST_DAY_IN_MICROSECONDS ? 'ms' : 'us';
        await writeDay({ directory, symbol: settings.SVC_EXCHANGE_A_SYMBOL, ...day, timeUnit });
      }
    },
  ),
  fileDayFeed(
    exchangeBSpotTrades,
    ({ settings, location, setting, log, signal }) =>
      exchangeBSource({
        ...limitsOf(settings),
        location,
        resolve: setting === 'SVC_EXCHANGE_B_LINK_URL' ? 'link' : 'base',
        instrument: settings.SVC_EXCHANGE_B_INSTRUMENT,
        log,
        signal,
      }),
    async ({ directory, from, to, rows = SAMPLE_ROWS, settings, signal }) => {
      const instrument = settings.SVC_EXCHANGE_B_INSTRUMENT;
      for (const day of exchangeBSample.consecutiveDays({ from, to, rowsPerDay: rows, seed: 2 })) {
        signal.throwIfAborted();
        await exchangeBSample.writeDay({ directory, instrument, ...day });
      }
    },
  ),
  fileDayFeed(
    exchangeCSpotTrades,
    ({ settings, location, log, signal }) =>
      exchangeCSource({
        ...limitsOf(settings),
        baseUrl: location,
        symbol: settings.SVC_EXCHANGE_C_SYMBOL,
        maxSortBytes: settings.SVC_EXCHANGE_C_MAX_SORT_BYTES,
        log,
        signal,
      }),
    async ({ directory, from, to, rows = SAMPLE_ROWS, settings, signal }) => {
      const symbol = settings.SVC_EXCHANGE_C_SYMBOL;
      for (const day of exchangeCSample.consecutiveDays({ from, to, rowsPerDay: rows, seed: 3 })) {
        signal.throwIfAborted();
        await exchangeCSample.writeDay({ directory, symbol, ...day });
      }
    },
  ),
  chainFeed,
  mempoolFeed,
  lazyFeed(ETF, async () => (await import('./etf/feed.ts')).etfFeed),
  lazyFeed(MACRO, async () => (await import('./macro/feed.ts')).macroFeed),
];

const limitsOf = (settings: Settings) => ({
  spoolDir: join(settings.SVC_STATE_DIR, 'spool'),
  timeoutMs: settings.SVC_SOURCE_TIMEOUT_SECONDS * 1000,
  maxAttempts: settings.SVC_SOURCE_MAX_ATTEMPTS,
  maxDocumentBytes: settings.SVC_SOURCE_MAX_DOCUMENT_BYTES,
  maxUnpackedBytes: settings.SVC_SOURCE_MAX_UNPACKED_BYTES,
});

export const feeds = (): readonly Feed[] => FEEDS;

/** @throws TidemarkError USAGE naming the known feeds. */
export function feedOf(name: string): Feed {
  const feed = FEEDS.find((one) => one.name === name);
  if (feed) return feed;
  const feeding = FEEDS.find(({ datasets }) => datasets.some(({ key }) => key === name));
  const hint = feeding ? `it is fed by ${feeding.name}` : `known: ${FEEDS.map((one) => one.name).join(', ')}`;
  throw new TidemarkError('USAGE', `There is no feed ${JSON.stringify(name)}; ${hint}`);
}
