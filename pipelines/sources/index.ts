/** The table of sources: which adapter feeds a dataset, and how its events become rows. */
import { join } from 'node:path';
import type { Settings } from '../../shared/config/settings.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/log/logger.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { consecutiveDays, writeDay } from './exchange_a/generate.ts';
import { TradeRowProjector } from './exchange_a/project.ts';
import { exchangeASource } from './exchange_a/source.ts';
import type { PartitionWindow, RowProjector, Source } from './types.ts';

export interface SourceNeeds {
  readonly settings: Settings;
  /** Where the vendor's documents are; the dataset's location setting. */
  readonly location: URL;
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

const ADAPTERS: Readonly<Record<string, Adapter>> = {
  exchange_a_spot_trades: {
    createSource: ({ settings, location, log, signal }) =>
      exchangeASource({
        baseUrl: location,
        symbol: settings.SVC_EXCHANGE_A_SYMBOL,
        spoolDir: join(settings.SVC_STATE_DIR, 'spool'),
        timeoutMs: settings.SVC_SOURCE_TIMEOUT_SECONDS * 1000,
        maxAttempts: settings.SVC_SOURCE_MAX_ATTEMPTS,
        maxDocumentBytes: settings.SVC_SOURCE_MAX_DOCUMENT_BYTES,
        maxUnpackedBytes: settings.SVC_SOURCE_MAX_UNPACKED_BYTES,
        log,
        signal,
      }),
    createRows: (window) => new TradeRowProjector(window),
    generateSample: async ({ directory, from, to, settings }) => {
      for (const day of consecutiveDays({ from, to, rowsPerDay: 60_000, seed: 1, timeUnit: 'us' })) {
        await writeDay({ directory, symbol: settings.SVC_EXCHANGE_A_SYMBOL, ...day });
      }
    },
  },
};

export function adapterOf(dataset: DatasetDefinition): Adapter {
  const adapter = ADAPTERS[dataset.key];
  if (!adapter) throw new TidemarkError('USAGE', `No source is written for ${dataset.key} yet`);
  return adapter;
}
