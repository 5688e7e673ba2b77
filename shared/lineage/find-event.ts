/**
 * One event back from the log: the vendor's bytes, the frame they lie in, the document they came in and the proof of
 * their partition. The operator's command and the HTTP service both answer with it. A look-up in the catalog says which
 * frame, then that one message is read: a few milliseconds at any history length.
 */
import type { PartitionRow } from '../db/schema.ts';
import { TidemarkError } from '../errors.ts';
import { eventId } from '../events/event-id.ts';
import { decodeBody, decodeHeader, type FrameHeader, sha256Hex } from '../frame/codec.ts';
import { findLine } from '../frame/lines.ts';
import type { Manifest } from '../frame/manifest.ts';
import { findRecord, RecordAssembler } from '../frame/records.ts';
import type { Recount } from '../proof/recount.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { candidatesSql, MAX_NAMED_PARTITIONS, type OffsetQuery } from './candidates.ts';

/** Runs one statement with text parameters; every value of the result as text. */
export type RunRows = (query: OffsetQuery) => Promise<readonly (readonly (string | null)[])[]>;

/** The stored message at a sequence of the dataset's stream; undefined when there is none. */
export type ReadMessage = (dataset: string, sequence: number) => Promise<Uint8Array | undefined>;

export interface LineageNeeds {
  readonly dataset: DatasetDefinition;
  readonly rows: RunRows;
  readonly message: ReadMessage;
}

/** What is known of the proved partition that holds an event. */
export interface ProvedPartition extends Pick<PartitionRow, 'attempt' | 'revision' | 'synthetic'> {
  readonly key: string;
  readonly manifest: Manifest;
  readonly recount: Recount;
  readonly provedAtMs: number;
}

export interface FoundEvent {
  readonly offset: string;
  readonly eventId: string;
  readonly payload: Buffer;
  readonly payloadSha256: string;
  /** Of the last frame it lies in: one, unless the event is larger. */
  readonly streamSequence: number;
  /** Number of the event within its frame, from 0. */
  readonly position: number;
  readonly frame: FrameHeader;
  readonly partition: ProvedPartition;
}

/** A frame in which the offset may lie. */
interface Candidate {
  readonly sequence: number;
  readonly partition: ProvedPartition;
}

/**
 * @throws TidemarkError EVENT_UNKNOWN, EVENT_AMBIGUOUS (AmbiguousEvent, naming the partitions), LOG_REWOUND when the
 *   log lost the frame, LOG_FRAME_CORRUPT when what it holds there is not that frame.
 */
export async function findEvent(needs: LineageNeeds, offset: string, partition?: string): Promise<FoundEvent> {
  const { dataset } = needs;
  const query = candidatesSql(dataset, offset, partition);
  if (!query) throw unknown(dataset, offset);
  const rows = await needs.rows(query);
  const keys = [...new Set(rows.map(([key]) => key!))];
  if (keys.length > 1) throw new AmbiguousEvent(dataset, offset, keys);
  // An event larger than a frame lies in several of them, one after the other.
  const parts = new RecordAssembler();
  for (const [, sequence, ...cells] of rows) {
    if (sequence === null) continue;
    const candidate = { sequence: Number(sequence), partition: partitionOf(keys[0], cells) };
    const found = await readFrom(needs, candidate, offset, parts);
    if (found) return found;
  }
  parts.end();
  throw unknown(dataset, offset);
}

/** The offset lies in several partitions; one has to be named. */
export class AmbiguousEvent extends TidemarkError {
  readonly partitions: readonly string[];

  constructor(dataset: DatasetDefinition, offset: string, partitions: readonly string[]) {
    const named = partitions.slice(0, MAX_NAMED_PARTITIONS);
    const more = partitions.length > named.length ? ' and others' : '';
    super('EVENT_AMBIGUOUS', `${dataset.key} has ${offset} in ${named.join(', ')}${more}`, {
      details: { dataset: dataset.key, partitions: named.join(',') },
    });
    this.partitions = named;
  }
}

async function readFrom(
  { dataset, message }: LineageNeeds,
  { sequence, partition }: Candidate,
  offset: string,
  parts: RecordAssembler,
): Promise<FoundEvent | undefined> {
  const place = `${dataset.key} sequence ${sequence}`;
  const stored = await message(dataset.key, sequence);
  if (!stored) throw new TidemarkError('LOG_REWOUND', `The log holds no message at ${place}`);
  const frame = decodeHeader(stored, place);
  const { manifest } = partition;
  // A log that lost its tail gives the same sequences to other messages: sound frames, of something else.
  const isThat =
    frame.kind === 'frame' &&
    frame.dataset === dataset.key &&
    frame.partition === partition.key &&
    frame.attempt === partition.attempt &&
    frame.document_sha256 === manifest.document.sha256;
  if (!isThat) {
    throw new TidemarkError('LOG_FRAME_CORRUPT', `The message at ${place} is no frame of ${partition.key}`, {
      details: { place },
    });
  }
  const body = parts.take(frame, await decodeBody(stored, frame, place));
  const event = body && eventIn(dataset, body, offset);
  if (!event) return undefined;
  return {
    offset,
    eventId: eventId(dataset, partition.key, offset),
    payload: event.payload,
    payloadSha256: sha256Hex(event.payload),
    streamSequence: sequence,
    position: event.position,
    frame,
    partition,
  };
}

function eventIn(
  dataset: DatasetDefinition,
  raw: Buffer,
  offset: string,
): { readonly position: number; readonly payload: Buffer } | undefined {
  const { events } = dataset;
  return events.encoding === 'lines' ? findLine(raw, offset, events.cell) : findRecord(raw, offset);
}

function partitionOf(key: string, cells: readonly (string | null)[]): ProvedPartition {
  const [attempt, revision, synthetic, manifest, recount, provedAtMs] = cells as readonly string[];
  return {
    key,
    attempt: Number(attempt),
    revision: Number(revision),
    synthetic: synthetic === 'true',
    manifest: JSON.parse(manifest),
    recount: JSON.parse(recount),
    provedAtMs: Number(provedAtMs),
  };
}

const unknown = (dataset: DatasetDefinition, offset: string) =>
  new TidemarkError(
    'EVENT_UNKNOWN',
    `No proved partition of ${dataset.key} holds the offset ${JSON.stringify(offset)}; an offset is ${dataset.offset.doc}`,
  );
