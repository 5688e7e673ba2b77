/**
 * What a source is to the rest of the pipeline. One folder a source; sources know of each other nothing.
 *
 * A document is decoded into items: frames of event bytes, each followed sooner or later by the facts of the partition
 * they belong to. The facts are computed while parsing, by code that the projector does not share. A document may feed
 * several datasets: their items come in any order among each other, each dataset's one partition after the other.
 */
import type { Settings } from '../../shared/config/settings.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { ErrorCode } from '../../shared/errors.ts';
import type { DocumentFacts, PartitionFacts, SourceFacts } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import type { Range } from '../../shared/ranges.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { PartitionWindow, Projection } from '../rows/binary-copy.ts';

export type { PartitionWindow } from '../rows/binary-copy.ts';

/** A contiguous run of events of one partition, ready to be framed. */
export interface EventRun {
  readonly kind: 'events';
  /** Absent where the source feeds one. */
  readonly dataset?: DatasetDefinition;
  readonly partition: PartitionWindow;
  /** The events as the dataset's frames hold them: lines, or records (shared/frame/records.ts). */
  readonly raw: Buffer;
  readonly rows: number;
  readonly first_offset: string;
  readonly last_offset: string;
  readonly first_ms: number;
  readonly last_ms: number;
  /** `raw` is a piece, counted from 1, of one record that takes so many frames; the last counts its row. */
  readonly part?: number;
  readonly parts?: number;
  /** Gives `raw` back to its maker, once nobody reads it any more. Need not be called. */
  readonly release?: () => void;
}

/** All events of the partition have been seen. */
export interface PartitionEnd {
  readonly kind: 'end';
  readonly dataset?: DatasetDefinition;
  /** Of a partition that is no file day: the times of its rows, first to last + 1 ms. */
  readonly partition: PartitionWindow;
  readonly facts: PartitionFacts & SourceFacts;
}

export type DecodedItem = EventRun | PartitionEnd;

/** A partition that a document is known to hold. */
export interface RequestedPartition {
  /** Absent where the source feeds one. */
  readonly dataset?: DatasetDefinition;
  readonly key: string;
}

/** One document that is needed. `partitions` are those it is known to hold before it is fetched; it may be empty. */
export interface DocumentRequest {
  /** Its name to people: `2024-01-01`, `2024-01`, `heights 100-199`, a fund. */
  readonly period: string;
  readonly partitions: readonly RequestedPartition[];
}

export interface OpenedDocument extends AsyncDisposable {
  readonly facts: DocumentFacts;
  /** Items in document order. Early return closes the document. */
  decode(options: { readonly frameRawBytes: number }): AsyncGenerator<DecodedItem>;
  /**
   * Sources that this document shows to be complete until then, whether it brings a partition or not: taken down when all
   * of it has been published.
   */
  readonly checks?: readonly SourceCheck[];
}

export interface SourceCheck {
  readonly sourceId: string;
  /** Exclusive, epoch ms. */
  readonly throughMs: number;
}

export interface Source<R extends DocumentRequest = DocumentRequest> {
  /** The first is the one meant where an item names none. */
  readonly datasets: readonly [DatasetDefinition, ...DatasetDefinition[]];
  /**
   * The digest the vendor publishes for a document, without fetching the document; undefined where there is none.
   */
  publishedSha256(request: R): Promise<string | undefined>;
  /** Fetches, verifies and opens a document. */
  open(request: R): Promise<OpenedDocument>;
}

/** A document of trade files. */
export interface FileDayRequest extends DocumentRequest {
  readonly granularity: 'daily' | 'monthly';
  readonly partitions: readonly PartitionWindow[];
}

/** A source whose documents are known by their day. */
export interface FileDaySource extends Source<FileDayRequest> {
  readonly granularities: readonly FileDayRequest['granularity'][];
  /** Documents that cover the file days from..to, both included. */
  plan(fromDay: string, toDay: string, granularity: FileDayRequest['granularity']): FileDayRequest[];
}

/** What a feed is opened with. */
export interface FeedNeeds {
  readonly settings: Settings;
  /** Where documents are, instead of where the settings say: a sample's. */
  readonly location?: URL;
  readonly catalog: Catalog;
  readonly log: Logger;
  readonly signal: AbortSignal;
  /**
   * Records for monitors that the followed source is unavailable, although the feed waits for it itself: how many times in a
   * row it failed, and why; 0 when it answers again.
   */
  readonly onAway?: (times: number, fault: string | null) => void;
}

/** Options of `backfill` and `reingest` as given; what a feed does not know it refuses. */
export interface Selection {
  readonly options: Readonly<Record<string, string | undefined>>;
  /** What is proved is to be replaced. */
  readonly reingest: boolean;
}

/** All that a source brings to the pipeline: `feed.ts` of its folder exports one, and `index.ts` lists them. */
export interface Adapter {
  readonly feeds: readonly Feed[];
  /** By dataset: how its events become rows. The projector needs nothing else of a source. */
  readonly projections: Readonly<Record<string, Projection>>;
}

/** What an operator names: one dataset, or several that one source feeds. */
export interface Feed {
  readonly name: string;
  readonly datasets: readonly [DatasetDefinition, ...DatasetDefinition[]];
  /** Names of the options that say what is wanted; those that must be given first. */
  readonly options: { readonly required: readonly string[]; readonly optional?: readonly string[] };
  /** Feeds of the same source that `follow` takes along. */
  readonly followedWith?: readonly string[];
  /** A small synthetic example for an empty system. */
  readonly sample?: Sample;
  /** @throws TidemarkError CONFIGURATION_INVALID naming the setting that is missing. */
  open(needs: FeedNeeds): Promise<OpenedFeed>;
  /** Of sources whose documents are kept: the same partitions from what was fetched before. It asks nobody. */
  readonly kept?: ArchiveFeed;
}

export interface ArchiveFeed {
  readonly options: Feed['options'];
  open(needs: FeedNeeds): Promise<OpenedFeed>;
}

export interface Sample {
  /** How many partitions each dataset has of it when it is all there. */
  partitions(): number | Promise<number>;
  /** Makes its documents, the same on every machine. @returns where they are, and what of them to ingest. */
  make(needs: SampleNeeds): Promise<{ readonly location: URL; readonly selection: Selection }>;
  /** Writes documents of the days asked for, where a setting of the source can name their folder. */
  readonly write?: (order: SampleOrder) => Promise<void>;
}

/** Synthetic documents of the days from..to, both included, in the vendor's layout below `directory`. */
export interface SampleOrder {
  readonly directory: string;
  readonly from: string;
  readonly to: string;
  /** Trades of a day; a source whose documents have rows of their own ignores it. */
  readonly rows?: number;
  readonly settings: Settings;
  readonly signal: AbortSignal;
}

export interface SampleNeeds {
  /** An empty folder, which the caller removes afterwards. */
  readonly directory: string;
  readonly settings: Settings;
  /** Start of the day, UTC. */
  readonly todayMs: number;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** A document to fetch and publish. */
export interface DocumentEvent {
  readonly kind: 'document';
  readonly request: DocumentRequest;
}

/**
 * The source no longer stands by the proved partitions that cover some of the span: they leave service until an operator
 * ingests them again.
 */
export interface RetractionEvent {
  readonly kind: 'retraction';
  readonly dataset: DatasetDefinition;
  readonly span: Range;
  /** The code and reason of each partition in the command's answer. */
  readonly code: ErrorCode;
  readonly reason: string;
}

export type FeedEvent = DocumentEvent | RetractionEvent;

/**
 * What a feed yields. Its consumer carries out each event before it asks for the next, so a retraction is durable before
 * the feed goes on. A retraction that fails is thrown into the feed, where it was yielded.
 */
export type FeedEvents<E extends FeedEvent = FeedEvent> = AsyncGenerator<E, void, void>;

export interface OpenedFeed extends AsyncDisposable {
  readonly source: Source;
  /** Whether `select` knows every document before the first is fetched; the consumer then plans them as a whole. */
  readonly isPlanned: boolean;
  /** The documents that hold what is wanted. @throws TidemarkError USAGE */
  select(selection: Selection): FeedEvents;
  /** Documents as they come, until the signal. */
  follow?(): FeedEvents;
  /** Called when all documents have ended: what the source retracted meanwhile. */
  recheck?(): FeedEvents<RetractionEvent>;
}
