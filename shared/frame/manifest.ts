/**
 * The manifest: the last message of an attempt. It states what the source document held. The stored rows are proved
 * against it, so nothing in it may come from the projector.
 */
import { TidemarkError } from '../errors.ts';

/** Facts about a partition that do not depend on how it was framed, batched or replayed. */
export interface PartitionFacts {
  readonly rows: number;
  /** The offsets of an empty partition are '', its times the start of its window. */
  readonly first_offset: string;
  readonly last_offset: string;
  /** Earliest and latest event time. */
  readonly first_ms: number;
  readonly last_ms: number;
  /** Offsets missing between first and last. */
  readonly gaps: number;
  /** The first missing offsets, as `n` or `n..m`, where the source should have no gaps. */
  readonly missing_offsets?: readonly string[];
  /** Rows of the document that repeated another exactly and were dropped; not part of the content. */
  readonly repeats_dropped?: number;
  /** Exact integer totals by column, value x 10^scale, as text. */
  readonly totals: Readonly<Record<string, string>>;
  /** Sum of the row hashes as text (see shared/proof/row-hash.ts). */
  readonly rows_hash: string;
  /** sha256 over the events in offset order as frames hold them; for `lines` each is payload_raw followed by LF. */
  readonly events_sha256: string;
}

/** Facts about the source of a partition. No digest covers them, and a difference in them is not one of content. */
export interface SourceFacts {
  /** Exclusive end of the time for which this partition makes the source complete, epoch ms. File days use their window. */
  readonly through_ms?: number;
  /** Exclusive end of a capture's span, epoch ms: the next expected day, where that is not the next calendar day. */
  readonly span_end?: number;
  /** When the source last changed the series, by its own account. */
  readonly last_updated_ms?: number;
  /**
   * When the values were seen for the first time, where that is later than the times of the rows: the capture of a fund's document,
   * or the arrival of a followed block. Absent where history was filled in afterwards, since that says nothing about it.
   */
  readonly captured_ms?: number;
  /** When the exchange listed the instrument again, epoch ms, if it did before: its ids may begin anew then. */
  readonly listed_from_ms?: number;
  /**
   * Digest that identifies a record where a capture also holds volatile facts, such as when its page last changed. Two
   * captures that both have this digest are the same if it is equal, whatever else differs.
   */
  readonly record_sha256?: string;
}

export interface DocumentFacts {
  /** Name of the vendor's document, without its location. */
  readonly name: string;
  readonly sha256: string;
  readonly bytes: number;
  readonly granularity: string;
  /** From the headers of the vendor's response, where it has them. */
  readonly content_md5?: string;
  readonly etag?: string;
  /** As the vendor wrote it. */
  readonly last_modified?: string;
  /** When it was fetched, epoch ms. */
  readonly fetched_ms?: number;
}

export interface Manifest extends PartitionFacts, SourceFacts {
  readonly format: 1;
  readonly dataset: string;
  readonly partition: string;
  readonly revision: number;
  readonly attempt: number;
  readonly frames: number;
  readonly first_sequence: number;
  readonly from_ms: number;
  readonly to_ms: number;
  readonly synthetic: boolean;
  readonly document: DocumentFacts;
  /** The values of the settings that select what is read of the source, by setting; none for a sample. */
  readonly pinned?: Readonly<Record<string, string>>;
  /** Ingest time of the partition; every replay copies it. No digest covers it. */
  readonly ingested_at_ms: number;
}

/** The facts that two manifests of the same content share. */
const CONTENT_FACTS = [
  'rows',
  'first_offset',
  'last_offset',
  'first_ms',
  'last_ms',
  'gaps',
  'rows_hash',
  'events_sha256',
] as const satisfies readonly (keyof PartitionFacts)[];

const OPTIONAL = [
  'repeats_dropped',
  'through_ms',
  'span_end',
  'last_updated_ms',
  'captured_ms',
  'listed_from_ms',
] as const;

/** Facts that are times, epoch ms. */
const TIMES = [
  'from_ms',
  'to_ms',
  'first_ms',
  'last_ms',
  'ingested_at_ms',
  'through_ms',
  'span_end',
  'last_updated_ms',
  'captured_ms',
  'listed_from_ms',
] as const satisfies readonly (keyof Manifest)[];

/** A `Date` beyond it is invalid and becomes null in JSON. */
const MAX_DATE_MS = 8.64e15;

/** The type of every required fact. A manifest may come from another writer, so parsing checks that each is present. */
const SHAPE: Readonly<
  Record<
    Exclude<
      keyof Manifest,
      'format' | 'totals' | 'document' | 'pinned' | 'missing_offsets' | 'record_sha256' | (typeof OPTIONAL)[number]
    >,
    'string' | 'integer' | 'flag'
  >
> = {
  dataset: 'string',
  partition: 'string',
  revision: 'integer',
  attempt: 'integer',
  frames: 'integer',
  first_sequence: 'integer',
  from_ms: 'integer',
  to_ms: 'integer',
  synthetic: 'flag',
  rows: 'integer',
  first_offset: 'string',
  last_offset: 'string',
  first_ms: 'integer',
  last_ms: 'integer',
  gaps: 'integer',
  rows_hash: 'string',
  events_sha256: 'string',
  ingested_at_ms: 'integer',
};

/** @throws TidemarkError LOG_DAMAGED naming the position in the log and the fault. */
export function parseManifest(raw: Uint8Array, position: string): Manifest {
  let manifest: Manifest;
  try {
    manifest = JSON.parse(Buffer.from(raw).toString('utf8'));
  } catch (cause) {
    throw new TidemarkError('LOG_DAMAGED', `The manifest at ${position} is not JSON`, { cause });
  }
  if (manifest?.format !== 1) {
    throw new TidemarkError(
      'LOG_DAMAGED',
      `The manifest at ${position} has the format ${JSON.stringify(manifest?.format)?.slice(0, 80)}; this release knows 1`,
    );
  }
  const faulty = Object.entries(SHAPE).flatMap(([name, type]) => {
    const value: unknown = manifest[name as keyof Manifest];
    const fits =
      type === 'integer' ? Number.isSafeInteger(value) : typeof value === (type === 'flag' ? 'boolean' : 'string');
    return fits ? [] : [name];
  });
  for (const name of ['totals', 'document'] as const) {
    if (typeof manifest[name] !== 'object' || manifest[name] === null) faulty.push(name);
  }
  const { missing_offsets: missing, pinned = {} } = manifest;
  if (missing !== undefined && !(Array.isArray(missing) && missing.every((one) => typeof one === 'string'))) {
    faulty.push('missing_offsets');
  }
  const isByName = typeof pinned === 'object' && pinned !== null && !Array.isArray(pinned);
  if (!isByName || !Object.values(pinned).every((value) => typeof value === 'string')) faulty.push('pinned');
  if (!['string', 'undefined'].includes(typeof manifest.record_sha256)) faulty.push('record_sha256');
  for (const name of OPTIONAL) {
    if (manifest[name] !== undefined && !Number.isSafeInteger(manifest[name])) faulty.push(name);
  }
  for (const name of TIMES)
    if (Math.abs(manifest[name] ?? 0) > MAX_DATE_MS && !faulty.includes(name)) faulty.push(name);
  if (faulty.length > 0) {
    throw new TidemarkError(
      'LOG_DAMAGED',
      `The manifest at ${position} lacks these facts, or they are out of range: ${faulty.join(', ')}`,
    );
  }
  return manifest;
}

/** The names of the content facts that differ; empty when both describe the same events. */
export function differingFacts(a: PartitionFacts & SourceFacts, b: PartitionFacts & SourceFacts): string[] {
  if (a.record_sha256 !== undefined && a.record_sha256 === b.record_sha256) return [];
  const names: string[] = CONTENT_FACTS.filter((name) => a[name] !== b[name]);
  for (const column of new Set([...Object.keys(a.totals), ...Object.keys(b.totals)])) {
    if (a.totals[column] !== b.totals[column]) names.push(`totals.${column}`);
  }
  return names;
}
