/** Kept documents of funds as what they are captures of: the same partitions as when they were fetched. */
import type { Catalog } from '../../../shared/db/catalog.ts';
import { explain } from '../../../shared/errors.ts';
import { etfDailyMetrics } from '../../../shared/registry/datasets/etf_daily_metrics.ts';
import { captureFamily, captureKey } from '../../../shared/registry/keys.ts';
import type { KeptFetch } from '../documents/keep.ts';
import type { FeedNeeds, Selection } from '../types.ts';
import { type Capture, readCapture } from './capture.ts';
import { type FetchNeeds, fundDocument, isLeadingPage } from './fetch.ts';
import type { Issuer } from './issuers/types.ts';
import type { FundRequest } from './source.ts';

interface Read {
  readonly fetch: KeptFetch;
  /** None where the document cannot be read. */
  readonly capture?: Capture;
  readonly fault?: unknown;
}

/** Documents of a fund in the order of their fetches; each that cannot be read once, however often it came. */
async function* readKept(
  issuer: Issuer,
  needs: FetchNeeds,
  isWanted: (fetch: KeptFetch) => boolean = () => true,
): AsyncGenerator<Read> {
  const unreadable = new Set<string>();
  for await (const fetch of needs.keep!.fetches(issuer.sourceId)) {
    if (isLeadingPage(fetch) || !isWanted(fetch) || unreadable.has(fetch.sha256)) continue;
    try {
      const { bytes, seen } = await fundDocument(issuer, { kind: 'kept', fetch }, needs);
      yield { fetch, capture: readCapture(issuer, bytes, seen) };
    } catch (fault) {
      unreadable.add(fetch.sha256);
      yield { fetch, fault };
    }
  }
}

const requestOf = (issuer: Issuer, fetch: KeptFetch, key: string, number?: number): FundRequest => ({
  period: `${issuer.ticker} ${fetch.name}`,
  partitions: [{ key }],
  issuer,
  place: { kind: 'kept', fetch },
  number,
});

/**
 * Of each fund and day one request for each different thing that was said of it, in the order of the fetches. A document
 * that cannot be read is named and passed over, as it was when it was fetched; one that a proved partition was made of
 * is asked for all the same, so that its fault is the unit's.
 */
export async function* keptRequests(
  issuers: readonly Issuer[],
  { options: { from = '', to = '9999-12-31' } }: Selection,
  { catalog, log }: FeedNeeds,
  needs: FetchNeeds,
): AsyncGenerator<FundRequest> {
  const proved = new Map<string, string>();
  for (const { partitionKey, manifest, state } of await catalog.partitions(etfDailyMetrics)) {
    if (state === 'proved' && manifest) proved.set(manifest.document.sha256, partitionKey);
  }
  for (const issuer of issuers) {
    const said = new Map<string, (string | undefined)[]>();
    for await (const { fetch, capture, fault } of readKept(issuer, needs)) {
      if (!capture) {
        const key = proved.get(fetch.sha256);
        if (key !== undefined) yield requestOf(issuer, fetch, key);
        else
          log.warn(
            { fund: issuer.ticker, sha256: fetch.sha256, fault: explain(fault) },
            'a kept document is passed over',
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

/**
 * Documents that were kept when they were fetched and never published, because a store was away or the process was
 * killed: those of days that nothing is known of. Each document is looked at once.
 */
export class Unpublished {
  readonly #needs: FetchNeeds;
  readonly #catalog: Catalog;
  readonly #seen = new Set<string>();

  constructor(needs: FetchNeeds, catalog: Catalog) {
    this.#needs = needs;
    this.#catalog = catalog;
  }

  async *requests(issuers: readonly Issuer[], sinceMs: number): AsyncGenerator<FundRequest> {
    const known = new Set<string>();
    // What has only been begun has no times yet, and is not among these: whoever was killed over it left it.
    for (const row of await this.#catalog.partitions(etfDailyMetrics)) {
      if (!row.synthetic) known.add(captureFamily(row.partitionKey));
    }
    for (const issuer of issuers) {
      const isNew = (fetch: KeptFetch) => {
        const name = `${fetch.sha256} ${fetch.fetched_at_ms}`;
        if (fetch.fetched_at_ms < sinceMs || this.#seen.has(name)) return false;
        this.#seen.add(name);
        return true;
      };
      for await (const { fetch, capture } of readKept(issuer, this.#needs, isNew)) {
        if (!capture) continue;
        const key = captureKey(issuer.sourceId, capture.asOf);
        if (!known.has(key)) yield requestOf(issuer, fetch, key);
      }
    }
  }
}
