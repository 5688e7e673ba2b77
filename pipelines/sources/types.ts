/**
 * What a source is to the rest of the pipeline. One folder a source; sources know of each other nothing.
 *
 * A document is decoded into items: frames of event bytes, each followed sooner or later by the facts of the partition
 * they belong to. The facts are computed while parsing, by code that the projector does not share.
 */
import type { DocumentFacts, PartitionFacts } from '../../shared/frame/manifest.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';

/** A contiguous run of events of one partition, ready to be framed. */
export interface EventRun {
  readonly kind: 'events';
  readonly partition: PartitionWindow;
  /** Every event's payload_raw followed by LF. */
  readonly raw: Buffer;
  readonly rows: number;
  readonly first_offset: string;
  readonly last_offset: string;
  readonly first_ms: number;
  readonly last_ms: number;
  /** Gives `raw` back to its maker, once nobody reads it any more. Need not be called. */
  readonly release?: () => void;
}

/** All events of the partition have been seen. */
export interface PartitionEnd {
  readonly kind: 'end';
  readonly partition: PartitionWindow;
  readonly facts: PartitionFacts;
}

export type DecodedItem = EventRun | PartitionEnd;

export interface PartitionWindow {
  readonly key: string;
  readonly fromMs: number;
  /** Exclusive. */
  readonly toMs: number;
}

/** One document of the vendor that is needed, and the partitions it holds. */
export interface DocumentRequest {
  /** Period in the vendor's naming: `2024-01-01` or `2024-01`. */
  readonly period: string;
  readonly granularity: 'daily' | 'monthly';
  readonly partitions: readonly PartitionWindow[];
}

export interface OpenedDocument extends AsyncDisposable {
  readonly facts: DocumentFacts;
  /** Items in document order. Early return closes the document. */
  decode(options: { readonly frameRawBytes: number }): AsyncGenerator<DecodedItem>;
}

export interface Source {
  readonly dataset: DatasetDefinition;
  readonly granularities: readonly DocumentRequest['granularity'][];
  /** Documents that cover the file days from..to, both included. */
  plan(fromDay: string, toDay: string, granularity: DocumentRequest['granularity']): DocumentRequest[];
  /**
   * The digest the vendor publishes for a document, without fetching the document; undefined where there is none.
   */
  publishedSha256(request: DocumentRequest): Promise<string | undefined>;
  /** Fetches, verifies and opens a document. */
  open(request: DocumentRequest): Promise<OpenedDocument>;
}

/** Folds the event bytes of one partition into storage rows. One instance per partition attempt. */
export interface RowProjector {
  /**
   * Binary COPY rows (no header or trailer) of a frame's events, in the native table's column order. `rows` is how many
   * there must be; `copy` is good until the third call after. @throws TidemarkError LOG_FRAME_CORRUPT when there are not.
   */
  rows(raw: Buffer, rows: number): { readonly copy: Buffer; readonly rows: number };
  /** Binary COPY rows of the aligned storage for everything seen; columns as in `alignedColumns`. */
  aligned(key: { datasetId: number; seriesId: number }): { readonly copy: Buffer; readonly rows: number };
  readonly alignedColumns: readonly string[];
}
