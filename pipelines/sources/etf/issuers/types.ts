import type { Facts } from '../parse/facts.ts';

/** One fund: where its document is below the issuer's base URL, and how it is read. One file an issuer. */
export interface Issuer {
  readonly sourceId: string;
  readonly issuer: string;
  readonly ticker: string;
  /** Path and query below the base URL. A second document may be named by the first. */
  readonly document: IssuerDocument;
  /** Facts beside issuer and ticker. @throws TidemarkError SOURCE_LAYOUT_UNKNOWN naming what is missing or odd. */
  parse(document: string): Facts;
  /** The document says that its day has no data, a holiday for one; only where the issuer serves past days. */
  saysNoData?(document: string): boolean;
}

export interface IssuerDocument {
  readonly path: string;
  /** `browser`: the page builds itself; what is archived is what it built. */
  readonly by: 'http' | 'browser';
  readonly extension: 'csv' | 'json' | 'html';
  /** The path of a past day, where the issuer serves those. */
  pathOf?(day: string): string;
  /** The first it has. */
  readonly firstDay?: string;
  /**
   * Answers that the page asks its own service for, which are the document in the page's stead: those of addresses that
   * hold `path`, told apart by the query's `parameter`, which takes each of these names once.
   */
  readonly answers?: { readonly path: string; readonly parameter: string; readonly names: readonly string[] };
  /** The path of the document itself, where `path` is a page that names it. */
  next?(page: string): string;
}
