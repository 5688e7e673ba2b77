/** What adapters of exchanges share: a feed of file days, its sample, and how a fetched trade file is opened. */

import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { defaultInstrument } from '../../../shared/config/instruments.ts';
import { type Settings, settingValue } from '../../../shared/config/settings.ts';
import { DAY_MS, dayKey } from '../../../shared/dates.ts';
import type { Catalog } from '../../../shared/db/catalog.ts';
import { assert, TidemarkError } from '../../../shared/errors.ts';
import type { DocumentFacts } from '../../../shared/frame/manifest.ts';
import type { Logger } from '../../../shared/logger.ts';
import type { DatasetDefinition } from '../../../shared/registry/index.ts';
import { parseInstrument } from '../../../shared/registry/instruments.ts';
import { dayOfKey, fileDays, windowOf } from '../../../shared/registry/keys.ts';
import { ALIGNED_TRADE_COLUMNS } from '../../rows/aligned-trades.ts';
import type { FoldingProjection } from '../../rows/binary-copy.ts';
import { SAMPLE_DAYS, sampleWeek } from '../../sample/week.ts';
import type { FetchedDocument, Validators } from '../documents/fetch.ts';
import type { Backoff } from '../documents/http.ts';
import { openGzip, openZipMember } from '../documents/zip-reader.ts';
import { documentEvents, mixedTurns } from '../feed-helpers.ts';
import type {
  Adapter,
  DecodedItem,
  DecodeOptions,
  Feed,
  FeedNeeds,
  FileDayRequest,
  FileDaySource,
  OpenedDocument,
  Sample,
  SampleNeeds,
  SampleOrder,
  Selection,
} from '../feed-types.ts';
import { type InstrumentGroup, instrumentsSource, readInstruments, requestsOf } from './instruments.ts';
import { OldDays } from './old-days.ts';
import { Rechecks } from './rechecks.ts';

/** How an exchange's documents are fetched: limits from the settings, and where faults are logged. */
export interface TradeFetching {
  readonly spoolDir: string;
  readonly timeoutMs: number;
  readonly maxAttempts: number;
  readonly backoff?: Backoff;
  readonly maxDocumentBytes: number;
  readonly maxUnpackedBytes: number;
  readonly signal?: AbortSignal;
  readonly log?: Logger;
}

/** What the source of an exchange is made with. */
export interface TradeSourceNeeds {
  readonly settings: Settings;
  /** Where the vendor's documents are: the value of a setting, or a sample's folder. */
  readonly location: URL;
  /** The setting that holds the location; undefined for a sample. */
  readonly setting?: string;
  readonly symbol: string;
  readonly fetching: TradeFetching;
}

/** Trades of a day in the sample of a start: few enough for a start in seconds, enough for candles of a minute. */
const SAMPLE_ROWS = 24_000;
/** Trades of a day where an operator asks for documents and not for a number. */
const ORDERED_ROWS = 60_000;

/** What differs between exchanges. `Day` holds the options of one generated day. */
interface ExchangeParts<Day> {
  readonly createSource: (needs: TradeSourceNeeds) => FileDaySource;
  /** The source of documents that hold several instruments; undefined where the settings do not ask for such. */
  readonly createJointSource?: (needs: TradeSourceNeeds) => FileDaySource | undefined;
  readonly createRows: FoldingProjection['createRows'];
  /** The generated days from..to, both included. */
  readonly sampleDays: (range: Pick<SampleOrder, 'from' | 'to'> & { readonly rowsPerDay: number }) => readonly Day[];
  /** Other instruments of the sample of a start, and the trades of a day of each. */
  readonly sampleOthers?: Readonly<Record<string, number>>;
  /** Trades of a day of the default in it. */
  readonly sampleRows?: number;
  /** Writes a generated day in the vendor's layout below the directory. */
  readonly writeDay: (
    day: Day,
    order: Pick<SampleOrder, 'directory' | 'settings'> & { readonly symbol: string },
  ) => Promise<unknown>;
}

/** The adapter of an exchange that publishes its trades in files. */
export function tradesAdapter<Day>(
  dataset: DatasetDefinition,
  { createSource, createJointSource, createRows, sampleDays, writeDay, ...parts }: ExchangeParts<Day>,
): Adapter {
  const { sampleOthers = {}, sampleRows = SAMPLE_ROWS } = parts;
  const writeSample = async ({ from, to, rows = ORDERED_ROWS, instrument, signal, ...order }: SampleOrder) => {
    const symbol = instrument ?? defaultInstrument(order.settings, dataset)!;
    for (const day of sampleDays({ from, to, rowsPerDay: rows })) {
      signal.throwIfAborted();
      await writeDay(day, { ...order, symbol });
    }
  };
  return {
    feeds: [
      fileDayFeed(
        dataset,
        { createSource, createJointSource },
        { write: writeSample, sampleRows, others: sampleOthers },
      ),
    ],
    projections: { [dataset.key]: { createRows, alignedColumns: ALIGNED_TRADE_COLUMNS } },
  };
}

const fetchingOf = ({ settings, log, signal }: FeedNeeds): TradeFetching => ({
  spoolDir: join(settings.SVC_STATE_DIR, 'spool'),
  timeoutMs: settings.limits.sourceTimeoutMs,
  maxAttempts: settings.limits.sourceAttempts,
  maxDocumentBytes: settings.limits.documentBytes,
  maxUnpackedBytes: settings.limits.unpackedBytes,
  signal,
  log,
});

function fileDayFeed(
  dataset: DatasetDefinition,
  create: Pick<ExchangeParts<never>, 'createSource' | 'createJointSource'>,
  sample: ExchangeSample,
): Feed {
  return {
    sample: {
      partitions: () => SAMPLE_DAYS,
      firstPartition: (todayMs) => sampleWeek(todayMs).from,
      make: (needs) => makeSample(dataset, needs, sample),
      write: sample.write,
    },
    name: dataset.key,
    datasets: [dataset],
    options: { required: [], optional: ['from', 'to', 'granularity', 'instrument'] },
    async open(needs) {
      const { location, catalog, signal } = needs;
      const settings = location ? withOthers(needs.settings, dataset, Object.keys(sample.others)) : needs.settings;
      const located = location ? { location } : locationOf(settings, dataset);
      const sourceNeeds = { settings, ...located, fetching: fetchingOf(needs) };
      const ofSymbol = (symbol: string) => create.createSource({ ...sourceNeeds, symbol });
      const symbol = defaultInstrument(settings, dataset)!;
      // A sample has a document of each instrument.
      const joint = location ? undefined : create.createJointSource?.({ ...sourceNeeds, symbol });
      const { recheckDays } = settings.limits;
      /** The groups of the instruments that `--instrument` names. */
      const groups = async (named: string | undefined): Promise<InstrumentGroup[]> => {
        const [first, ...rest] = await readInstruments(named, { settings, base: dataset, catalog });
        if (joint) {
          const rechecks = new Rechecks(recheckDays);
          return [{ instruments: [first, ...rest], source: joint, rechecks, isJoint: true }];
        }
        return [first, ...rest].map((one) => ({
          instruments: [one],
          source: ofSymbol(one.symbol),
          rechecks: new Rechecks(recheckDays),
          isJoint: false,
        }));
      };
      return {
        source: instrumentsSource(dataset, joint ?? ofSymbol(symbol)),
        isPlanned: true,
        select: (selection) =>
          documentEvents(async () => {
            const requests: FileDayRequest[] = [];
            for (const group of await groups(selection.options.instrument)) {
              requests.push(...(await planned(group, catalog, selection)));
            }
            return requests;
          }),
        follow: () =>
          documentEvents(async () => newDays(await groups(needs.instruments), { dataset, catalog, settings, signal })),
        [Symbol.asyncDispose]: async () => {},
      };
    },
  };
}

interface ExchangeSample {
  readonly write: NonNullable<Sample['write']>;
  readonly sampleRows: number;
  readonly others: Readonly<Record<string, number>>;
}

/** The default comes last: where it is there, the sample is complete. */
async function makeSample(
  dataset: DatasetDefinition,
  { directory, settings, todayMs, signal }: SampleNeeds,
  { write, sampleRows, others }: ExchangeSample,
) {
  const { from, to } = sampleWeek(todayMs);
  const byDefault = defaultInstrument(settings, dataset)!;
  const rowsOf = new Map([
    ...Object.entries(others).filter(([symbol]) => symbol !== byDefault),
    [byDefault, sampleRows],
  ] as const);
  for (const [instrument, rows] of rowsOf) await write({ directory, from, to, rows, instrument, settings, signal });
  const options = { from, to, instrument: [...rowsOf.keys()].join() };
  return { location: pathToFileURL(`${directory}/`), selection: { options, reingest: false } };
}

/** The settings with which a sample is read: its own other instruments, whatever is configured. */
function withOthers(settings: Settings, dataset: DatasetDefinition, symbols: readonly string[]): Settings {
  const byDefault = defaultInstrument(settings, dataset);
  const others = symbols.flatMap((symbol) => (symbol === byDefault ? [] : (parseInstrument(symbol) ?? [])));
  return { ...settings, [dataset.trades!.instruments.also]: others.map((symbol) => ({ symbol, intervals: [] })) };
}

/** Without a first day: from the first that is known on; without a last: to the last that has ended. */
async function planned(
  group: InstrumentGroup,
  catalog: Catalog,
  { options, reingest }: Selection,
): Promise<FileDayRequest[]> {
  const { granularity = 'daily' } = options;
  const [{ dataset }] = group.instruments;
  const { to = granularity === 'monthly' ? endOfLastMonth(lastEnded(dataset)) : lastEnded(dataset) } = options;
  const from = options.from ?? (await firstDay(group, catalog));
  if (from === undefined) {
    const name = dataset.instrument === undefined ? dataset.key : `${dataset.key} ${dataset.instrument}`;
    throw new TidemarkError('USAGE', `--from is missing: ${name} has no partition to continue from. Give a first day`);
  }
  if (from > to) throw new TidemarkError('USAGE', `--from ${from} is after the last day, ${to}`);
  const days = group.source
    .plan(from, to, granularity as FileDayRequest['granularity'])
    .flatMap(({ partitions }) => partitions.map(({ key }) => key));
  // A backfill publishes what the rest of a month lacks; a reingest would replace days that nobody named.
  if (reingest && (days[0] !== from || days.at(-1) !== to)) {
    throw new TidemarkError(
      'USAGE',
      `A ${granularity} reingest of ${from} to ${to} would replace ${days[0]} to ${days.at(-1)}: name whole months, or days with --granularity daily`,
    );
  }
  return requestsOf(group, { from, to }, granularity as FileDayRequest['granularity']);
}

/** The first day that is known of any of them, or that the operator says an instrument began on. */
async function firstDay({ instruments }: InstrumentGroup, catalog: Catalog): Promise<string | undefined> {
  const days: string[] = [];
  for (const { dataset, intervals } of instruments) {
    const known = await catalog.firstKey(dataset);
    const day = known === undefined ? intervals[0]?.from : dayOfKey(known);
    if (day !== undefined) days.push(day);
  }
  return days.sort()[0];
}

/** The last day of the last month that is over on the evening of `day`. */
function endOfLastMonth(day: string): string {
  const next = dayKey(Date.parse(`${day}T00:00:00Z`) + DAY_MS);
  return dayKey(Date.parse(`${next.slice(0, 7)}-01T00:00:00Z`) - DAY_MS);
}

/** The last file day that is over. */
export function lastEnded(dataset: DatasetDefinition): string {
  const { fromMs } = windowOf(dataset, dayKey(Date.now()));
  const today = Math.floor(Date.now() / DAY_MS) * DAY_MS;
  const started = Math.floor((Date.now() - (fromMs - today)) / DAY_MS) * DAY_MS;
  return dayKey(started - DAY_MS);
}

/** `follow` checks this many latest days; `backfill` fetches older ones. */
const FOLLOWED_DAYS = 30;
/** Largest random share that is added to each wait. */
const JITTER = 0.1;

/**
 * The latest days of the instruments, one instrument after another, each asked for until it is proved: vendors publish a day when
 * it is over, some time later. Then those that are asked for again, and between the looks old ones, a few an hour.
 */
async function* newDays(
  groups: readonly InstrumentGroup[],
  needs: Pick<FeedNeeds, 'settings' | 'catalog' | 'signal'> & { dataset: DatasetDefinition },
): AsyncGenerator<FileDayRequest> {
  const { settings, catalog, signal } = needs;
  const everyMs = settings.SVC_FOLLOW_FILES_SECONDS * 1000;
  const old = new OldDays(groups, catalog, settings);
  for await (const turn of mixedTurns({ everyMs, jitterMs: everyMs * JITTER, signal }, () => old.dueMs())) {
    if (turn === 'other') yield* old.next();
    else {
      for (const group of groups) {
        for (const request of await dueDays(group, needs)) {
          if (signal.aborted) return;
          yield request;
        }
      }
    }
  }
}

async function dueDays(
  group: InstrumentGroup,
  { dataset, catalog }: Pick<FeedNeeds, 'catalog'> & { dataset: DatasetDefinition },
): Promise<FileDayRequest[]> {
  const to = lastEnded(dataset);
  const earliest = dayKey(Date.parse(`${to}T00:00:00Z`) - (FOLLOWED_DAYS - 1) * DAY_MS);
  const known = await firstDay(group, catalog);
  const [, latest] = [earliest, known ?? to].sort();
  const [from] = [latest, to].sort();
  const again = group.rechecks.due(to);
  const [first] = [from, ...again].sort();
  const requests = requestsOf(group, { from: first, to }, 'daily');
  const ended = new Map<string, string>();
  for (const [of, keys] of Map.groupBy(
    requests.flatMap(({ partitions }) => partitions),
    (one) => one.dataset ?? dataset,
  )) {
    const found = await catalog.endedKeys(
      of,
      keys.map(({ key }) => key),
    );
    for (const [key, state] of found) ended.set(key, state);
  }
  const isMissing = ({ period, partitions }: FileDayRequest) =>
    period >= from && partitions.some(({ key }) => !ended.has(key));
  const isProved = ({ period, partitions }: FileDayRequest) =>
    again.includes(period) && partitions.some(({ key }) => ended.get(key) === 'proved');
  const missing = requests.filter(isMissing);
  return [...missing, ...requests.filter((one) => !isMissing(one) && isProved(one))];
}

/** @throws TidemarkError CONFIGURATION_INVALID naming the setting. */
function locationOf(settings: Settings, dataset: DatasetDefinition): { location: URL; setting: string } {
  const [names] = Object.values(dataset.locations);
  const set = names.flatMap((setting) => {
    const location = settingValue(settings, setting);
    return location instanceof URL ? [{ location, setting }] : [];
  });
  // No two of them are set: that is refused with the settings.
  if (set.length > 0) return set[0];
  throw new TidemarkError(
    'CONFIGURATION_INVALID',
    `${names.join(' or ')} is not set: it says where the documents of ${dataset.key} are (an http(s) URL or a file:// folder)`,
  );
}

interface DailyDocuments<F extends FetchedDocument> {
  /** @returns undefined for a document that is still the one with these validators. */
  fetch(request: FileDayRequest, validators: Validators): Promise<F | undefined>;
  /** Opens the fetched file, which the document then owns. */
  open(file: F, request: FileDayRequest): Promise<OpenedDocument>;
}

/** A source that publishes one document a file day and no digest of it beforehand. */
export function dailySource<F extends FetchedDocument>(
  dataset: DatasetDefinition,
  documents: DailyDocuments<F>,
): FileDaySource {
  /** What was fetched last, by day. After a restart, the headers that the catalog has of a document stand for it. */
  const seen = new Map<string, { readonly sha256: string; readonly validators: Validators }>();
  const fetch = async (request: FileDayRequest, validators: Validators) => {
    const file = await documents.fetch(request, validators);
    if (file) seen.set(request.period, { sha256: file.sha256, validators: file.validators });
    return file;
  };
  return {
    datasets: [dataset],
    granularities: ['daily'],
    plan: (fromDay, toDay, granularity) => {
      if (granularity !== 'daily') throw new TidemarkError('USAGE', `${dataset.key} has daily documents only`);
      return fileDays(fromDay, toDay).map((day) => ({
        period: day,
        granularity,
        partitions: [{ key: day, ...windowOf(dataset, day) }],
      }));
    },
    publishedSha256: async () => undefined,
    async openUnlessKnown(request, known) {
      const isKnown = (sha256: string) => known.some((document) => document.sha256 === sha256);
      const [latest] = known.slice(-1).map((facts) => ({ sha256: facts.sha256, validators: keptValidators(facts) }));
      const last = seen.get(request.period) ?? latest;
      // A document that was fetched and could not be read is fetched again, whatever its validators say.
      const asked = last && isKnown(last.sha256) ? last : { sha256: '', validators: {} };
      const file = await fetch(request, asked.validators);
      if (!file) return { kind: 'known', sha256: asked.sha256 };
      if (!isKnown(file.sha256)) return { kind: 'other', document: await documents.open(file, request) };
      await file[Symbol.asyncDispose]();
      return { kind: 'known', sha256: file.sha256 };
    },
    async open(request) {
      const file = await fetch(request, {});
      assert(file, 'a document without validators is fetched');
      return await documents.open(file, request);
    },
  };
}

/** A time this long before the fetch tells documents apart, whatever the difference of the two clocks: no other followed within the second. */
const SETTLED_MS = 3_600_000;

function keptValidators({ etag, last_modified: lastModified, fetched_ms: fetchedMs = 0 }: DocumentFacts): Validators {
  if (etag !== undefined || lastModified === undefined) return { etag };
  return fetchedMs - Date.parse(lastModified) >= SETTLED_MS ? { lastModified } : {};
}

/** Decodes a trade file that arrives in chunks. Disposed of when its document is read or given up. */
interface TradeDecoder extends Partial<Disposable> {
  /** @returns the items that the chunk completes. */
  push(chunk: Buffer): Iterable<DecodedItem>;
  /** @returns the items that are left when the file has ended. */
  finish(): Iterable<DecodedItem>;
}

interface TradeFile {
  readonly file: FetchedDocument;
  readonly request: FileDayRequest;
  readonly archive: 'zip' | 'gzip';
  /** What the vendor states of the document, for the manifest. */
  readonly facts?: Partial<DocumentFacts>;
  readonly decoder: (options: DecodeOptions) => TradeDecoder;
}

/** Opens a fetched trade file, an archive of one CSV. The document owns the file, which is deleted when opening fails. */
export async function openTradeFile(
  { file, request, archive, facts, decoder }: TradeFile,
  { maxUnpackedBytes, signal }: TradeFetching,
): Promise<OpenedDocument> {
  try {
    const openMember = archive === 'zip' ? openZipMember : openGzip;
    const member = await openMember({
      path: file.path,
      expectedName: archive === 'zip' ? file.name.replace(/zip$/, 'csv') : file.name.replace(/\.gz$/, ''),
      maxUnpackedBytes,
      document: file.name,
    });
    return {
      facts: {
        ...{ name: file.name, sha256: file.sha256, bytes: file.bytes, granularity: request.granularity },
        ...{ etag: file.headers.etag, last_modified: file.headers['last-modified'], fetched_ms: Date.now() },
        ...facts,
      },
      path: file.path,
      async *decode(options): AsyncGenerator<DecodedItem> {
        const decoding = decoder(options);
        using cleanup = new DisposableStack();
        cleanup.defer(() => decoding[Symbol.dispose]?.());
        try {
          for await (const chunk of member.stream(signal)) {
            for (const item of decoding.push(chunk)) {
              // A partition ends only while the file is the one whose digest was taken.
              if (item.kind === 'end') await file.assertUnchanged();
              yield item;
            }
          }
        } catch (error) {
          // An archive's CRC is known at its end: a damaged one shows in a row first, which is then not the vendor's fault.
          if (error instanceof TidemarkError) {
            await file.assertUnchanged();
            for await (const _ of member.stream(signal));
          }
          throw error;
        }
        await file.assertUnchanged();
        yield* decoding.finish();
      },
      [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
    };
  } catch (error) {
    await file[Symbol.asyncDispose]();
    throw error;
  }
}
