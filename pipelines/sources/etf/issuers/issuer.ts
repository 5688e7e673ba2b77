import type { Facts } from '../parse/facts.ts';

/** One fund: the path of its document below the issuer's base URL, and its parser. Each issuer has a file. */
export interface Issuer {
  readonly sourceId: string;
  readonly issuer: string;
  readonly ticker: string;
  /** Path and query below the base URL. The first document may name a second one. */
  readonly document: IssuerDocument;
  /**
   * Facts beside issuer and ticker.
   * @throws TidemarkError SOURCE_LAYOUT_UNKNOWN; its message names the missing or unexpected part.
   */
  parse(document: string): Facts;
  /**
   * Whether the document says that its day has no data, for example on a holiday; only for issuers that serve past
   * days.
   */
  saysNoData?(document: string): boolean;
}

export interface IssuerDocument {
  readonly path: string;
  /** `browser`: scripts build the page, and the result is archived. */
  readonly by: 'http' | 'browser';
  readonly extension: 'csv' | 'json' | 'html';
  /** The path of a past day, if the issuer serves those. */
  pathOf?(day: string): string;
  /** The first day that it serves. */
  readonly firstDay?: string;
  /**
   * The answers that the page requests from its service; they are the document instead of the page. Their addresses
   * contain `path`, and the query's `parameter` takes each of these names once.
   */
  readonly answers?: { readonly path: string; readonly parameter: string; readonly names: readonly string[] };
  /** The path of the document, if `path` is a page that refers to it. */
  next?(page: string): string;
}
