/** A feed of one dataset whose documents are file days in a place that a setting names. */

import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { SettingName, Settings } from '../../../shared/config/settings.ts';
import { DAY_MS, dayKey } from '../../../shared/dates.ts';
import type { Catalog } from '../../../shared/db/catalog.ts';
import { TidemarkError } from '../../../shared/errors.ts';
import type { Logger } from '../../../shared/logger.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { fileDays, windowOf } from '../../../shared/registry/keys.ts';
import { ALIGNED_TRADE_COLUMNS } from '../../rows/aligned-trades.ts';
import type { FoldingProjection } from '../../rows/binary-copy.ts';
import { turns } from '../feed-helpers.ts';
import type {
  Adapter,
  Feed,
  FeedNeeds,
  FileDayRequest,
  FileDaySource,
  Sample,
  SampleNeeds,
  SampleOrder,
  Selection,
} from '../types.ts';

export interface FileDayNeeds {
  readonly settings: Settings;
  /** Where the vendor's documents are; the dataset's location setting. */
  readonly location: URL;
  /** The setting it came from; a sample's comes from none. */
  readonly setting?: SettingName;
  readonly log: Logger;
  readonly signal?: AbortSignal;
}

/** Small enough for a first start in seconds, large enough for candles worth looking at. */
const SAMPLE_DAYS = 3;
/** Of one day. */
const SAMPLE_ROWS = 60_000;

/** The adapter of an exchange that publishes its trades in files. */
export const tradesAdapter = (
  dataset: DatasetDefinition,
  {
    createSource,
    createRows,
    writeSample,
  }: {
    readonly createSource: (needs: FileDayNeeds) => FileDaySource;
    readonly createRows: FoldingProjection['createRows'];
    readonly writeSample: (order: Required<SampleOrder>) => Promise<void>;
  },
): Adapter => ({
  feeds: [fileDayFeed(dataset, createSource, (order) => writeSample({ rows: SAMPLE_ROWS, ...order }))],
  projections: { [dataset.key]: { createRows, alignedColumns: ALIGNED_TRADE_COLUMNS } },
});

/** Limits of downloads that the settings give. */
export const documentLimits = (settings: Settings) => ({
  spoolDir: join(settings.SVC_STATE_DIR, 'spool'),
  timeoutMs: settings.SVC_SOURCE_TIMEOUT_SECONDS * 1000,
  maxAttempts: settings.SVC_SOURCE_MAX_ATTEMPTS,
  maxDocumentBytes: settings.SVC_SOURCE_MAX_DOCUMENT_BYTES,
  maxUnpackedBytes: settings.SVC_SOURCE_MAX_UNPACKED_BYTES,
});

function fileDayFeed(
  dataset: DatasetDefinition,
  createSource: (needs: FileDayNeeds) => FileDaySource,
  writeSample: NonNullable<Sample['write']>,
): Feed {
  return {
    sample: { partitions: () => SAMPLE_DAYS, make: (needs) => makeSample(needs, writeSample), write: writeSample },
    name: dataset.key,
    datasets: [dataset],
    options: { required: [], optional: ['from', 'to', 'granularity'] },
    async open({ settings, location, catalog, log, signal }) {
      const place = location ? { location } : locationOf(settings, dataset);
      const source = createSource({ settings, ...place, log, signal });
      return {
        source,
        requests: async (selection) => planned(source, dataset, catalog, selection),
        follow: () => newDays(source, { dataset, catalog, settings, signal }),
        [Symbol.asyncDispose]: async () => {},
      };
    },
  };
}

/** The days before today. */
async function makeSample({ directory, settings, todayMs, signal }: SampleNeeds, write: NonNullable<Sample['write']>) {
  const from = dayKey(todayMs - SAMPLE_DAYS * DAY_MS);
  const to = dayKey(todayMs - DAY_MS);
  await write({ directory, from, to, settings, signal });
  return { location: pathToFileURL(`${directory}/`), selection: { options: { from, to }, reingest: false } };
}

/** Without a first day: from the first that is known on; without a last: to the last that has ended. */
async function planned(
  source: FileDaySource,
  dataset: DatasetDefinition,
  catalog: Catalog,
  { options }: Selection,
): Promise<FileDayRequest[]> {
  const { granularity = 'daily' } = options;
  const { to = lastEnded(dataset) } = options;
  const from = options.from ?? (await catalog.firstKey(dataset));
  if (from === undefined) {
    throw new TidemarkError(
      'USAGE',
      `--from is missing: nothing is known of ${dataset.key} that could be gone on with`,
    );
  }
  if (from > to) throw new TidemarkError('USAGE', `--from ${from} is after the last day, ${to}`);
  return source.plan(from, to, granularity as FileDayRequest['granularity']);
}

/** The last file day that is over. */
function lastEnded(dataset: DatasetDefinition): string {
  const { fromMs } = windowOf(dataset, dayKey(Date.now()));
  const today = Math.floor(Date.now() / DAY_MS) * DAY_MS;
  const started = Math.floor((Date.now() - (fromMs - today)) / DAY_MS) * DAY_MS;
  return dayKey(started - DAY_MS);
}

/** Days that are looked back for: what was missed for longer is for `backfill`. */
const FOLLOWED_DAYS = 30;
/** Most that is added to each wait, of it. */
const JITTER = 0.1;

/** The latest days, each asked for until it is proved: vendors publish a day when it is over, some time later. */
async function* newDays(
  source: FileDaySource,
  needs: Pick<FeedNeeds, 'settings' | 'catalog'> & { dataset: DatasetDefinition; signal: AbortSignal },
): AsyncGenerator<FileDayRequest> {
  const { dataset, catalog, settings, signal } = needs;
  const everyMs = settings.SVC_FOLLOW_FILES_SECONDS * 1000;
  for await (const _ of turns({ everyMs, jitterMs: everyMs * JITTER, signal })) {
    const to = lastEnded(dataset);
    const earliest = dayKey(Date.parse(`${to}T00:00:00Z`) - (FOLLOWED_DAYS - 1) * DAY_MS);
    const known = await catalog.firstKey(dataset);
    const [, latest] = [earliest, known ?? to].sort();
    const [from] = [latest, to].sort();
    const requests = source.plan(from, to, 'daily');
    const ended = await catalog.endedKeys(
      dataset,
      requests.flatMap(({ partitions }) => partitions.map(({ key }) => key)),
    );
    for (const request of requests) {
      if (signal.aborted) return;
      if (!request.partitions.every(({ key }) => ended.has(key))) yield request;
    }
  }
}

/** @throws TidemarkError CONFIGURATION_INVALID naming the setting. */
function locationOf(settings: Settings, dataset: DatasetDefinition): { location: URL; setting: SettingName } {
  const [names] = Object.values(dataset.locations);
  const set = names.flatMap((setting) => {
    const location = settings[setting];
    return location instanceof URL ? [{ location, setting }] : [];
  });
  if (set.length === 1) return set[0];
  const where = `where the documents of ${dataset.key} are`;
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    set.length > 1
      ? `${names.join(' and ')} are set: only one of them may say ${where}`
      : `${names.join(' or ')} is not set: it says ${where} (an http(s) URL or a file:// folder)`,
  );
}

/* The plan of a source that publishes one document a file day. */

/** @throws TidemarkError USAGE from the plan, for any other granularity. */
export const planDaily =
  (dataset: DatasetDefinition): FileDaySource['plan'] =>
  (fromDay, toDay, granularity) => {
    if (granularity !== 'daily') throw new TidemarkError('USAGE', `${dataset.key} has daily documents only`);
    return fileDays(fromDay, toDay).map((day) => ({
      period: day,
      granularity,
      partitions: [{ key: day, ...windowOf(dataset, day) }],
    }));
  };
