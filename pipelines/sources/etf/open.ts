/** The feed `etf`: the documents of ten funds, from their issuers or from an operator's folders. */

import { readdir } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import type { SettingName, Settings } from '../../../shared/config/settings.ts';
import { DAY_MS, dayKey, daysBetween, isMarketDay } from '../../../shared/dates.ts';
import type { Catalog } from '../../../shared/db/catalog.ts';
import type { PartitionRow } from '../../../shared/db/schema.ts';
import { explain, TidemarkError } from '../../../shared/errors.ts';
import { etfDailyMetrics } from '../../../shared/registry/datasets/etf_daily_metrics.ts';
import { captureGroup, captureKey } from '../../../shared/registry/keys.ts';
import { type ArchivedFetch, documentArchiveOf } from '../documents/document-archive.ts';
import type { LoadedFeed } from '../feed-helpers.ts';
import { documentEvents, turns } from '../feed-helpers.ts';
import type { FeedNeeds, OpenedFeed, Selection } from '../feed-types.ts';
import { pageBrowser } from './browser.ts';
import { archivedDocuments, type Capture, type FolderDocument, readCapture } from './captures.ts';
import { etfSource, type FetchNeeds, FiledBefore, type FundRequest, isLeadingPage, loadDocument } from './fetch.ts';
import { ISSUERS } from './issuers/index.ts';
import type { Issuer } from './issuers/issuer.ts';
import { makeSample, SAMPLE_PARTITIONS, writeSample } from './sample.ts';

/**
 * Tickers or source ids, separated by commas; all funds without.
 * @throws TidemarkError USAGE; its message names the funds.
 */
export function fundsNamed(names: string | undefined): readonly Issuer[] {
  if (names === undefined) return ISSUERS;
  const wanted = names.split(',').map((name) => name.trim());
  const found = wanted.map((name) => ({ name, issuer: ISSUERS.find((issuer) => isNamed(issuer, name)) }));
  const unknown = found.filter(({ issuer }) => issuer === undefined).map(({ name }) => JSON.stringify(name));
  if (unknown.length > 0) {
    const known = ISSUERS.map(({ ticker }) => ticker).join(', ');
    throw new TidemarkError('USAGE', `There is no fund ${unknown.join(', ')}; known: ${known}`);
  }
  return ISSUERS.filter((issuer) => found.some((one) => one.issuer === issuer));
}

const isNamed = ({ ticker, sourceId }: Issuer, name: string) =>
  ticker === name.toUpperCase() || sourceId === name.toLowerCase();

interface Read {
  readonly fetch: ArchivedFetch;
  /** Undefined if the document cannot be parsed. */
  readonly capture?: Capture;
  readonly fault?: unknown;
}

/**
 * Parses a fund's archived documents in the order of their fetches. One that cannot be parsed is reported once, however
 * often it was fetched.
 */
async function* readArchived(
  issuer: Issuer,
  needs: FetchNeeds,
  isWanted: (fetch: ArchivedFetch) => boolean = () => true,
): AsyncGenerator<Read> {
  const unreadable = new Set<string>();
  for await (const fetch of needs.archive!.fetches(issuer.sourceId)) {
    // Documents without data have the same bytes for several days.
    const document = [fetch.sha256, fetch.asked.day, fetch.asked.filed_day].join(' ');
    if (isLeadingPage(fetch) || !isWanted(fetch) || unreadable.has(document)) continue;
    try {
      const { bytes, seen } = await loadDocument(issuer, { kind: 'archived', fetch }, needs);
      yield { fetch, capture: readCapture(issuer, bytes, seen) };
    } catch (fault) {
      unreadable.add(document);
      yield { fetch, fault };
    }
  }
}

const requestOf = (issuer: Issuer, fetch: ArchivedFetch, key: string, number?: number): FundRequest => ({
  period: `${issuer.ticker} ${fetch.name}`,
  partitions: [{ key }],
  issuer,
  location: { kind: 'archived', fetch },
  number,
});

/**
 * For each fund and day, requests one document per different record, in the order of the fetches, so that the captures
 * are those of the original fetches. A document that cannot be parsed is logged and skipped. One that a proved
 * partition came from is requested all the same, so that its unit reports the fault.
 */
export async function* archivedRequests(
  issuers: readonly Issuer[],
  { options: { from = '', to = '9999-12-31' } }: Selection,
  { catalog, log }: FeedNeeds,
  needs: FetchNeeds,
): AsyncGenerator<FundRequest> {
  const proved = Map.groupBy(
    (await catalog.partitions(etfDailyMetrics)).filter(({ state }) => state === 'proved'),
    ({ manifest }) => manifest?.document.sha256,
  );
  for (const issuer of issuers) {
    const said = new Map<string, (string | undefined)[]>();
    for await (const { fetch, capture, fault } of readArchived(issuer, needs)) {
      if (!capture) {
        const key = proved.get(fetch.sha256)?.find((row) => isMadeOf(row, fetch))?.partitionKey;
        if (key !== undefined) yield requestOf(issuer, fetch, key);
        else
          log.warn(
            { fund: issuer.ticker, sha256: fetch.sha256, fault: explain(fault) },
            'an archived document is skipped',
          );
        continue;
      }
      const { asOf, recordSha256 } = capture;
      const records = said.get(asOf) ?? [];
      if (records.includes(recordSha256)) continue;
      said.set(asOf, [...records, recordSha256]);
      if (asOf < from || asOf > to) continue;
      const number = records.length + 1;
      yield requestOf(issuer, fetch, captureKey(issuer.sourceId, asOf, number), number);
    }
  }
}

/** Whether a proved partition may come from this fetch of its document. One without data has the same bytes for several days. */
function isMadeOf({ partitionKey, manifest }: PartitionRow, { source_id: sourceId, asked }: ArchivedFetch): boolean {
  const day = asked.day ?? (manifest?.rows === 0 ? asked.filed_day : undefined);
  const group = captureGroup(partitionKey);
  return day === undefined ? group.startsWith(`${sourceId}:`) : group === captureKey(sourceId, day);
}

/**
 * Finds documents that were archived but never published, because a store was unavailable or the process was killed:
 * those whose day has no partition. It examines each document once, and requests it until its day has one.
 */
export class Unpublished {
  readonly #needs: FetchNeeds;
  readonly #catalog: Pick<Catalog, 'partitions'>;
  readonly #seen = new Set<string>();
  /** By digest and capture, because an unchanged document is archived by every fetch, and one without data for several days. */
  readonly #left = new Map<string, { readonly issuer: Issuer; readonly fetch: ArchivedFetch; readonly key: string }>();

  constructor(needs: FetchNeeds, catalog: Pick<Catalog, 'partitions'>) {
    this.#needs = needs;
    this.#catalog = catalog;
  }

  async *requests(issuers: readonly Issuer[], sinceMs: number): AsyncGenerator<FundRequest> {
    const known = new Set<string>();
    // An unfinished attempt has no times yet and is not listed, so its document counts as unpublished.
    for (const row of await this.#catalog.partitions(etfDailyMetrics)) {
      if (!row.synthetic) known.add(captureGroup(row.partitionKey));
    }
    for (const issuer of issuers) {
      const isNew = (fetch: ArchivedFetch) => {
        const name = `${fetch.sha256} ${fetch.fetched_at_ms} ${JSON.stringify(fetch.asked)}`;
        if (fetch.fetched_at_ms < sinceMs || this.#seen.has(name)) return false;
        this.#seen.add(name);
        return true;
      };
      for await (const { fetch, capture } of readArchived(issuer, this.#needs, isNew)) {
        if (!capture) continue;
        const key = captureKey(issuer.sourceId, capture.asOf);
        const document = `${fetch.sha256} ${key}`;
        if (!this.#left.has(document)) this.#left.set(document, { issuer, fetch, key });
      }
    }
    for (const [document, { issuer, fetch, key }] of this.#left) {
      if (known.has(key) || fetch.fetched_at_ms < sinceMs) this.#left.delete(document);
      else yield requestOf(issuer, fetch, key);
    }
  }
}

/**
 * Finds the documents of operators' folders that are to be published: new and changed ones, and requested ones that failed in an
 * outage, so that no capture of their day states what they do. One that cannot be parsed is requested once, as its fault stays.
 */
export class FolderDocuments {
  readonly #needs: FetchNeeds;
  readonly #catalog: Pick<Catalog, 'captures'>;
  /** Versions. */
  readonly #requested = new Set<string>();
  readonly #proved = new Set<string>();

  constructor(needs: FetchNeeds, catalog: Pick<Catalog, 'captures'>) {
    this.#needs = needs;
    this.#catalog = catalog;
  }

  /** @throws TidemarkError if the folder cannot be read. */
  async requests(fund: Located): Promise<FundRequest[]> {
    const documents = await archivedDocuments(fund.base, fund.issuer.document.extension);
    const asked = documents.filter(({ version }) => this.#requested.has(version) && !this.#proved.has(version));
    const failed = await this.#failed(fund.issuer, asked);
    const wanted = documents.filter((document) => !this.#requested.has(document.version) || failed.has(document));
    for (const { version } of wanted) this.#requested.add(version);
    return wanted.map((document) => archivedOf(fund, document));
  }

  /** Those of the requested documents that are not proved, and that wait neither for a proof nor for an operator. */
  async #failed(issuer: Issuer, documents: readonly FolderDocument[]): Promise<ReadonlySet<FolderDocument>> {
    const read: { document: FolderDocument; capture: Capture }[] = [];
    for (const document of documents) {
      const capture = await this.#read(issuer, document);
      if (capture) read.push({ document, capture });
    }
    const groupOf = ({ asOf }: Capture) => captureKey(issuer.sourceId, asOf);
    const groups = [...new Set(read.map(({ capture }) => groupOf(capture)))];
    const rows = groups.length === 0 ? [] : await this.#catalog.captures(etfDailyMetrics, groups);
    const known = Map.groupBy(
      rows.filter(({ synthetic }) => !synthetic),
      ({ partitionKey }) => captureGroup(partitionKey),
    );
    const failed = new Set<FolderDocument>();
    for (const { document, capture } of read) {
      const captures = known.get(groupOf(capture)) ?? [];
      const latest = captures.at(-1)?.state;
      const isProved = captures.some(
        ({ state, manifest }) => state === 'proved' && manifest?.record_sha256 === capture.recordSha256,
      );
      if (isProved) this.#proved.add(document.version);
      else if (latest !== 'published' && latest !== 'quarantined') failed.add(document);
    }
    return failed;
  }

  async #read(issuer: Issuer, document: FolderDocument): Promise<Capture | undefined> {
    try {
      const { bytes, seen } = await loadDocument(issuer, { kind: 'folder', document }, this.#needs);
      return readCapture(issuer, bytes, seen);
    } catch (error) {
      if (!(error instanceof TidemarkError)) throw error;
      return undefined;
    }
  }
}

export const etfFeed: LoadedFeed = {
  sample: { partitions: () => SAMPLE_PARTITIONS, make: makeSample, write: writeSample },
  async open(needs) {
    const fetching = await fetchingOf(needs);
    const feed = new EtfFeed(needs, fetching);
    return {
      source: etfSource(fetching),
      isPlanned: true,
      select: (selection) => documentEvents(() => feed.requests(selection)),
      follow: () => documentEvents(feed.follow()),
      [Symbol.asyncDispose]: () => fetching.browser[Symbol.asyncDispose](),
    } satisfies OpenedFeed;
  },
  archived: {
    async open(needs) {
      const fetching = await fetchingOf(needs);
      return {
        source: etfSource(fetching),
        isPlanned: false,
        select: (selection) =>
          documentEvents(archivedRequests(fundsNamed(selection.options.fund), selection, needs, fetching)),
        async [Symbol.asyncDispose]() {},
      } satisfies OpenedFeed;
    },
  },
};

/** From the start of the browser to the document that its page shows. */
const PAGE_TIMEOUT_MS = 90_000;

async function fetchingOf({ settings, location, log, signal }: FeedNeeds): Promise<FetchNeeds> {
  const browser = pageBrowser({
    path: settings.SVC_BROWSER_PATH,
    timeoutMs: PAGE_TIMEOUT_MS,
    signal,
  });
  const archive = location ? undefined : await documentArchiveOf(settings);
  return {
    archive,
    filed: archive && new FiledBefore(archive),
    browser,
    timeoutMs: settings.limits.sourceTimeoutMs,
    maxAttempts: settings.limits.sourceAttempts,
    log,
    signal,
  };
}

/** Older archived documents need `reingest --kept`. */
const LOOK_BACK_MS = 7 * DAY_MS;

/** A fund and the address of its documents. */
interface Located {
  readonly issuer: Issuer;
  readonly base: URL;
}

class EtfFeed {
  readonly #needs: FeedNeeds;
  readonly #fetching: FetchNeeds;

  constructor(needs: FeedNeeds, fetching: FetchNeeds) {
    this.#needs = needs;
    this.#fetching = fetching;
  }

  async requests({ options }: Selection): Promise<FundRequest[]> {
    const { from, to } = options;
    const requests: FundRequest[] = [];
    for (const fund of await this.#located(options.fund)) {
      if (fund.base.protocol === 'file:') requests.push(...(await archivedDays(fund, from, to)));
      else if (from === undefined && to === undefined) requests.push(latestOf(fund));
      else requests.push(...pastDays(fund, from, to, dayKey(Date.now())));
    }
    return requests;
  }

  /**
   * Requests every fund's document, again and again; from folders, what is new or failed. A fund that fails is requested
   * again next time.
   */
  async *follow(): AsyncGenerator<FundRequest> {
    const { settings, signal, log, catalog } = this.#needs;
    const unpublished = new Unpublished(this.#fetching, catalog);
    const funds = await this.#located(undefined);
    const folders = new FolderDocuments(this.#fetching, catalog);
    const times = {
      everyMs: settings.limits.metricsEveryMs,
      jitterMs: settings.SVC_FOLLOW_JITTER_SECONDS * 1000,
    };
    for await (const _turn of turns({ ...times, signal })) {
      yield* unpublished.requests(
        funds.map(({ issuer }) => issuer),
        Date.now() - LOOK_BACK_MS,
      );
      for (const fund of funds) {
        if (signal.aborted) return;
        if (fund.base.protocol !== 'file:') {
          yield latestOf(fund);
          continue;
        }
        yield* await folders.requests(fund).catch((error) => {
          if (!(error instanceof TidemarkError)) throw error;
          log.warn(
            { fund: fund.issuer.ticker, fault: explain(error) },
            'the folder of archived documents cannot be read; retrying later',
          );
          return [];
        });
      }
    }
  }

  /**
   * The named funds, or all whose setting is set.
   * @throws TidemarkError CONFIGURATION_INVALID; its message names the setting.
   */
  async #located(named: string | undefined): Promise<Located[]> {
    const { settings, location } = this.#needs;
    const issuers = fundsNamed(named);
    if (location) return await sampled(issuers, location);
    const located = issuers.flatMap((issuer) => {
      const base = baseOf(settings, issuer);
      return base ? [{ issuer, base }] : [];
    });
    const missing = issuers.filter((issuer) => !located.some((fund) => fund.issuer === issuer));
    if (located.length > 0 && (named === undefined || missing.length === 0)) return located;
    const names = missing.map((issuer) => settingOf(issuer)).join(', ');
    throw new TidemarkError(
      'CONFIGURATION_INVALID',
      `${names} ${missing.length === 1 ? 'is' : 'are'} not set: where the documents of ${missing.map(({ ticker }) => ticker).join(', ')} are (an http(s) URL or a file:// folder)`,
    );
  }
}

/** The setting with the base URL of a fund's documents. */
const settingOf = ({ sourceId }: Issuer): SettingName =>
  (etfDailyMetrics.locations as Readonly<Record<string, readonly SettingName[]>>)[sourceId][0];

const baseOf = (settings: Settings, issuer: Issuer) => settings[settingOf(issuer)] as URL | undefined;

/** The funds that have a folder in the sample. */
async function sampled(issuers: readonly Issuer[], location: URL): Promise<Located[]> {
  const folders = new Set(await readdir(fileURLToPath(location)));
  return issuers
    .filter(({ sourceId }) => folders.has(sourceId))
    .map((issuer) => ({ issuer, base: new URL(`${issuer.sourceId}/`, location) }));
}

const latestOf = ({ issuer, base }: Located): FundRequest => ({
  period: `${issuer.ticker} today`,
  partitions: [],
  issuer,
  location: { kind: 'issuer', base },
});

/**
 * The market days up to yesterday, if the issuer serves past days. Otherwise only today's document is available, and
 * requests for other days fail.
 */
function pastDays(fund: Located, from: string | undefined, to: string | undefined, today: string): FundRequest[] {
  const { issuer, base } = fund;
  const { pathOf, firstDay } = issuer.document;
  const last = to ?? today;
  if (pathOf !== undefined) {
    const yesterday = dayKey(Date.parse(today) - DAY_MS);
    const days = daysBetween(from ?? firstDay ?? today, last < today ? last : yesterday).filter(isMarketDay);
    const requests = days.map(
      (day): FundRequest => ({
        period: `${issuer.ticker} ${day}`,
        partitions: [{ key: captureKey(issuer.sourceId, day) }],
        issuer,
        location: { kind: 'issuer', base, day },
      }),
    );
    return last >= today ? [...requests, latestOf(fund)] : requests;
  }
  const requests = last >= today ? [latestOf(fund)] : [];
  if (from !== undefined && from >= today) return requests;
  return [
    ...requests,
    absent(
      fund,
      `before ${today}`,
      new TidemarkError(
        'SOURCE_NOT_FOUND',
        `the issuer serves only today's document; for earlier ones use a folder of archived documents (a file:// base URL) or reingest --kept`,
      ),
    ),
  ];
}

/** Documents filed under the days. A fund without any fails by itself; the others continue. */
async function archivedDays(fund: Located, from = '', to = '9999-12-31'): Promise<FundRequest[]> {
  const { issuer, base } = fund;
  try {
    const documents = await archivedDocuments(base, issuer.document.extension);
    const wanted = documents.filter(({ day }) => day >= from && day <= to);
    if (wanted.length > 0) return wanted.map((document) => archivedOf(fund, document));
    const what = `${fileURLToPath(base)} has no .${issuer.document.extension} filed under the requested days`;
    return [absent(fund, 'archive', new TidemarkError('SOURCE_NOT_FOUND', what))];
  } catch (error) {
    if (!(error instanceof TidemarkError)) throw error;
    return [absent(fund, 'archive', error)];
  }
}

const archivedOf = ({ issuer }: Located, document: FolderDocument): FundRequest => ({
  period: `${issuer.ticker} ${document.name}`,
  partitions: [],
  issuer,
  location: { kind: 'folder', document },
});

const absent = ({ issuer }: Located, what: string, fault: TidemarkError): FundRequest => ({
  period: `${issuer.ticker} ${what}`,
  partitions: [],
  issuer,
  location: { kind: 'absent', fault },
});
