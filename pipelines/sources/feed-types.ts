/**
 * The interface between a source and the rest of the pipeline. Each source has a folder and imports no other source.
 *
 * A document is decoded into items: frames of event bytes, and the facts of each partition after its last frame. The
 * decoder computes the facts while it parses, by code that the projector does not share. A document may feed several
 * datasets: their items come in any order among each other, but those of one dataset partition by partition.
 */
import type { Settings } from '../../shared/config/settings.ts';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { ErrorCode } from '../../shared/errors.ts';
import type { WrittenAs } from '../../shared/frame/codec.ts';
import type { DocumentFacts, PartitionFacts, SourceFacts } from '../../shared/frame/manifest.ts';
import type { Logger } from '../../shared/logger.ts';
import type { Range } from '../../shared/ranges.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { PartitionWindow, Projection } from '../rows/binary-copy.ts';

export type { PartitionWindow } from '../rows/binary-copy.ts';

/** A contiguous run of events of one partition, ready to be framed. */
export interface EventRun {
  readonly kind: 'events';
  /** Absent where the source feeds one dataset. */
  readonly dataset?: DatasetDefinition;
  readonly partition: PartitionWindow;
  /** The events as the dataset's frames hold them: lines, or records (shared/frame/records.ts). */
  readonly raw: Buffer;
  readonly rows: number;
  readonly first_offset: string;
  readonly last_offset: string;
  readonly first_ms: number;
  readonly last_ms: number;
  readonly written?: WrittenAs;
  /** `raw` is piece `part`, from 1, of a record that takes `parts` frames; the last piece counts the row. */
  readonly part?: number;
  readonly parts?: number;
  /** Returns `raw` to the decoder for reuse. The receiver may call it after it has read `raw`. */
  readonly release?: () => void;
}

/** The decoder has read all events of the partition. */
export interface PartitionEnd {
  readonly kind: 'end';
  readonly dataset?: DatasetDefinition;
  /** For a partition other than a file day, the times are those of its rows: the first to the last + 1 ms. */
  readonly partition: PartitionWindow;
  readonly facts: PartitionFacts & SourceFacts;
}

export type DecodedItem = EventRun | PartitionEnd;

/** A partition that a document is known to hold. */
export interface RequestedPartition {
  /** Absent where the source feeds one dataset. */
  readonly dataset?: DatasetDefinition;
  readonly key: string;
}

/** A document to fetch. `partitions` are those that it is known to hold before the fetch; the list may be empty. */
export interface DocumentRequest {
  /** Its name in messages: `2024-01-01`, `2024-01`, `heights 100-199`, a fund. */
  readonly period: string;
  readonly partitions: readonly RequestedPartition[];
}

/**
 * Thrown by `decode` when a later part of the document shows that items it has yielded are wrong. The publisher abandons their
 * attempts and reads the document again; the source has taken note, and decodes it in another way.
 */
export class ReadAgain extends Error {
  override readonly name = 'ReadAgain';
}

export interface DecodeOptions {
  readonly frameRawBytes: number;
  /** Accepts ids in any order, with any missing, to compare rows with those that are served. The facts are then of no use. */
  readonly anyIds?: boolean;
}

export interface OpenedDocument extends AsyncDisposable {
  readonly facts: DocumentFacts;
  /** Where its bytes are, until it is disposed of, if they are a file. */
  readonly path?: string;
  /** Items in document order. Early return closes the document. */
  decode(options: DecodeOptions): AsyncGenerator<DecodedItem>;
  /**
   * Sources that this document shows to be complete until a time, whether or not it holds a partition of them. They are
   * recorded when all of the document is proved.
   */
  readonly checks?: readonly SourceCheck[];
}

export interface SourceCheck {
  readonly sourceId: string;
  /** Exclusive, epoch ms. */
  readonly throughMs: number;
}

/** What a vendor publishes when it is asked about documents that are known. */
export type PublishedDocument =
  /** One of them still. */
  { readonly kind: 'known'; readonly sha256: string } | { readonly kind: 'other'; readonly document: OpenedDocument };

export interface Source<R extends DocumentRequest = DocumentRequest> {
  /** An item that names no dataset belongs to the first. */
  readonly datasets: readonly [DatasetDefinition, ...DatasetDefinition[]];
  /**
   * The digest the vendor publishes for a document, without fetching the document; undefined where there is none.
   */
  publishedSha256(request: R): Promise<string | undefined>;
  /**
   * Opens the document unless the vendor still publishes one of those that are known, the one seen last at the end. Of a
   * source without such digests, which can ask for less than the whole document all the same.
   */
  openUnlessKnown?(request: R, known: readonly DocumentFacts[]): Promise<PublishedDocument>;
  /** Fetches, verifies and opens a document. */
  open(request: R): Promise<OpenedDocument>;
}

/** A document of trade files. */
export interface FileDayRequest extends DocumentRequest {
  readonly granularity: 'daily' | 'monthly';
  readonly partitions: readonly (PartitionWindow & Pick<RequestedPartition, 'dataset'>)[];
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
  /** The location of a sample's documents, which replaces that of the settings. */
  readonly location?: URL;
  readonly catalog: Catalog;
  /** The instruments to follow, as `--instrument` names them; undefined: the default. */
  readonly instruments?: string;
  readonly log: Logger;
  readonly signal: AbortSignal;
}

/** Options of `backfill` and `reingest` as given; a feed refuses those that it does not know. */
export interface Selection {
  readonly options: Readonly<Record<string, string | undefined>>;
  /** Whether the documents replace what is proved. */
  readonly reingest: boolean;
}

/** All that a source gives to the pipeline: `feed.ts` of its folder exports one, and `index.ts` lists them. */
export interface Adapter {
  readonly feeds: readonly Feed[];
  /** By dataset: how its events become rows. The projector needs nothing else of a source. */
  readonly projections: Readonly<Record<string, Projection>>;
}

/** What an operator names: one dataset, or several that one source feeds. */
export interface Feed {
  readonly name: string;
  readonly datasets: readonly [DatasetDefinition, ...DatasetDefinition[]];
  /** Names of the options that select documents. */
  readonly options: { readonly required: readonly string[]; readonly optional?: readonly string[] };
  /** Feeds of the same source that `follow` follows as well. */
  readonly followedWith?: readonly string[];
  /** A small synthetic example for an empty system. */
  readonly sample?: Sample;
  /** @throws TidemarkError CONFIGURATION_INVALID naming the setting that is missing. */
  open(needs: FeedNeeds): Promise<OpenedFeed>;
  /** For sources whose documents are archived: reads the same partitions from the archive, without a request. */
  readonly archived?: ArchiveFeed;
}

export interface ArchiveFeed {
  readonly options: Feed['options'];
  open(needs: FeedNeeds): Promise<OpenedFeed>;
}

export interface Sample {
  /** How many partitions of the complete sample each dataset has. */
  partitions(): number | Promise<number>;
  /**
   * The first of its partitions on that day, where its events are numbered: partitions that begin on another are of an earlier day
   * or release, and their numbers would overlap with those of this one.
   */
  readonly firstPartition?: (todayMs: number) => string;
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
  /** The symbol of another instrument than the default. */
  readonly instrument?: string;
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
 * The source withdraws the proved partitions that cover some of the span. They leave service until an operator ingests
 * them again.
 */
export interface RetractionEvent {
  readonly kind: 'retraction';
  readonly dataset: DatasetDefinition;
  readonly span: Range;
  /** The code and reason of each partition in the command's answer. */
  readonly code: ErrorCode;
  readonly reason: string;
}

/**
 * The followed source failed, or answers again. The feed waits for the source by itself; the consumer records the event for
 * monitors.
 */
export interface AvailabilityEvent {
  readonly kind: 'availability';
  /** Consecutive failures; 0 when the source answers. */
  readonly failures: number;
  /** Why it failed. */
  readonly fault: string | null;
}

export type FeedEvent = DocumentEvent | RetractionEvent | AvailabilityEvent;

/**
 * What a feed yields. Its consumer carries out each event before it asks for the next, so a retraction is durable before
 * the feed goes on. A retraction that fails is thrown into the feed, where it was yielded.
 */
export type FeedEvents<E extends FeedEvent = FeedEvent> = AsyncGenerator<E, void, void>;

export interface OpenedFeed extends AsyncDisposable {
  readonly source: Source;
  /** Whether `select` knows every document before the first is fetched; the consumer then plans them as a whole. */
  readonly isPlanned: boolean;
  /** The documents that hold the selection. @throws TidemarkError USAGE */
  select(selection: Selection): FeedEvents;
  /** Documents as they come, until the signal. */
  follow?(): FeedEvents;
  /** What the source retracted while its documents were published. The consumer calls it after the last of them. */
  recheck?(): FeedEvents<RetractionEvent>;
}
