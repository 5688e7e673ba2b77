/** The table of sources: which adapter feeds a dataset, and how its events become rows. */
import { join } from 'node:path';
import type { SettingName, Settings } from '../../shared/config/settings.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log/logger.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { consecutiveDays, writeDay } from './exchange_a/generate.ts';
import { TradeRowProjector } from './exchange_a/project.ts';
import { exchangeASource } from './exchange_a/source.ts';
import * as exchangeBSample from './exchange_b/generate.ts';
import { ExchangeBRowProjector } from './exchange_b/project.ts';
import { exchangeBSource } from './exchange_b/source.ts';
import * as exchangeCSample from './exchange_c/generate.ts';
import { ExchangeCRowProjector } from './exchange_c/project.ts';
import { exchangeCSource } from './exchange_c/source.ts';
import type { PartitionWindow, RowProjector, Source } from './types.ts';

export interface SourceNeeds {
  readonly settings: Settings;
  /** Where the vendor's documents are; the dataset's location setting. */
  readonly location: URL;
  /** The setting it came from; a sample's comes from none. */
  readonly setting?: SettingName;
  readonly log: Logger;
  readonly signal?: AbortSignal;
}

interface Adapter {
  readonly createSource: (needs: SourceNeeds) => Source;
  readonly createRows: (window: PartitionWindow) => RowProjector;
  /** Writes synthetic documents of the days from..to in the vendor's layout below `directory`. */
  readonly generateSample: (request: SampleRequest) => Promise<void>;
}

export interface SampleRequest {
  readonly directory: string;
  readonly from: string;
  readonly to: string;
  readonly settings: Settings;
}

/** Of one day of a sample. */
const SAMPLE_ROWS = 60_000;

const ADAPTERS: Readonly<Record<string, Adapter>> = {
  exchange_a_spot_trades: {
    createSource: ({ settings, location, log, signal }) =>
      exchangeASource({
        ...limitsOf(settings),
        baseUrl: location,
        symbol: settings.SVC_EXCHANGE_A_SYMBOL,
        log,
        signal,
      }),
    createRows: (window) => new TradeRowProjector(window),
    generateSample: async ({ directory, from, to, settings }) => {
      for (const day of consecutiveDays({ from, to, rowsPerDay: SAMPLE_ROWS, seed: 1, timeUnit: 'us' })) {
        await writeDay({ directory, symbol: settings.SVC_EXCHANGE_A_SYMBOL, ...day });
      }
    },
  },
  exchange_b_spot_trades: {
    createSource: ({ settings, location, setting, log, signal }) =>
      exchangeBSource({
        ...limitsOf(settings),
        location,
        resolve: setting === 'SVC_EXCHANGE_B_LINK_URL' ? 'link' : 'base',
        instrument: settings.SVC_EXCHANGE_B_INSTRUMENT,
        log,
        signal,
      }),
    createRows: (window) => new ExchangeBRowProjector(window),
    generateSample: async ({ directory, from, to, settings }) => {
      const instrument = settings.SVC_EXCHANGE_B_INSTRUMENT;
      for (const day of exchangeBSample.consecutiveDays({ from, to, rowsPerDay: SAMPLE_ROWS, seed: 2 })) {
        await exchangeBSample.writeDay({ directory, instrument, ...day });
      }
    },
  },
  exchange_c_spot_trades: {
    createSource: ({ settings, location, log, signal }) =>
      exchangeCSource({
        ...limitsOf(settings),
        baseUrl: location,
        symbol: settings.SVC_EXCHANGE_C_SYMBOL,
        maxSortBytes: settings.SVC_EXCHANGE_C_MAX_SORT_BYTES,
        log,
        signal,
      }),
    createRows: (window) => new ExchangeCRowProjector(window),
    generateSample: async ({ directory, from, to, settings }) => {
      const symbol = settings.SVC_EXCHANGE_C_SYMBOL;
      for (const day of exchangeCSample.consecutiveDays({ from, to, rowsPerDay: SAMPLE_ROWS, seed: 3 })) {
        await exchangeCSample.writeDay({ directory, symbol, ...day });
      }
    },
  },
};

const limitsOf = (settings: Settings) => ({
  spoolDir: join(settings.SVC_STATE_DIR, 'spool'),
  timeoutMs: settings.SVC_SOURCE_TIMEOUT_SECONDS * 1000,
  maxAttempts: settings.SVC_SOURCE_MAX_ATTEMPTS,
  maxDocumentBytes: settings.SVC_SOURCE_MAX_DOCUMENT_BYTES,
  maxUnpackedBytes: settings.SVC_SOURCE_MAX_UNPACKED_BYTES,
});

export function adapterOf(dataset: DatasetDefinition): Adapter {
  const adapter = ADAPTERS[dataset.key];
  if (!adapter) throw new TidemarkError('USAGE', `No source is written for ${dataset.key} yet`);
  return adapter;
}
