/**
 * One event back from the log: the vendor's bytes, the frame they lie in, the document they came in and the proof of
 * their partition. The operator's command and the HTTP service both answer with it. A look-up in the catalog says which
 * frame, then that one message is read: a few milliseconds at any history length.
 */
import type { PartitionRow } from '../db/schema.ts';
import { TidemarkError } from '../errors.ts';
import { decodeBody, decodeHeader, type FrameHeader, sha256Hex } from '../frame/codec.ts';
import type { Manifest } from '../frame/manifest.ts';
import { findRecord, RecordAssembler } from '../frame/records.ts';
import type { Recount } from '../proof/recount.ts';
import { eventId } from '../registry/event-id.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import type { EventShape, OffsetRule } from '../registry/types.ts';

/* Bodies of encoding `lines`: each event's payload_raw, then one LF; one of the line's cells is the offset. */

type Cell = Extract<EventShape, { encoding: 'lines' }>['cell'];

const LF = 10;
const COMMA = 44;
const ZERO = 48;

/**
 * The payload whose cell says `offset`, a number without leading zeros, and the number of its line, from 0; a scan of
 * one frame, a millisecond.
 */
export function findLine(
  raw: Buffer,
  offset: string,
  cell: Cell,
): { readonly position: number; readonly payload: Buffer } | undefined {
  const needle = Buffer.from(offset, 'latin1');
  let position = 0;
  for (let start = 0; start < raw.length; position++) {
    const end = raw.indexOf(LF, start);
    if (end < 0) return undefined;
    if (cellIs(raw, start, end, needle, cell)) return { position, payload: raw.subarray(start, end) };
    start = end + 1;
  }
  return undefined;
}

function cellIs(raw: Buffer, start: number, end: number, needle: Buffer, { column, prefix }: Cell): boolean {
  let at = start;
  for (let commas = 0; commas < column; at++) {
    if (at >= end) return false;
    if (raw[at] === COMMA) commas++;
  }
  at += prefix.length;
  // Digits are compared as a number: what the line writes before them does not count.
  while (raw[at] === ZERO && raw[at + 1] >= ZERO && raw[at + 1] <= ZERO + 9) at++;
  const after = at + needle.length;
  if (after > end || (after < end && raw[after] !== COMMA)) return false;
  return raw.compare(needle, 0, needle.length, at, after) === 0;
}

/* Which proved frames an offset may lie in, as SQL over the catalog. */

/** A statement and its parameters, all of them text. */
export interface OffsetQuery {
  readonly text: string;
  readonly values: readonly string[];
}

/** Partitions named where several hold an offset. */
export const MAX_NAMED_PARTITIONS = 100;

interface Order {
  /** What an offset looks like. Numbers of 18 digits fit int8 whatever they are. */
  readonly pattern: RegExp;
  /** SQL that compares as offsets do. */
  readonly value: (sql: string) => string;
}

const part = (sql: string, number: number) => `split_part(${sql}, ':', ${number})`;

const ORDERS: Readonly<Record<OffsetRule['order'], Order>> = {
  numeric: { pattern: /^(?:0|[1-9]\d{0,17})$/, value: (sql) => `(${sql})::int8` },
  place: {
    pattern: /^\d{1,18}:\d{1,18}:[^\0]+$/,
    value: (sql) => `(${part(sql, 1)}::int8, ${part(sql, 2)}::int8)`,
  },
  // PostgreSQL's text holds no NUL, and would refuse the statement rather than find nothing.
  text: { pattern: /^[^\0]+$/, value: (sql) => `(${sql}) collate "C"` },
};

const LEADING_NUMBER = /^\d{1,18}(?::|$)/;
const OFFSET = '$1::text';

/**
 * Rows of (partition, frame, proof); a frame is null where several partitions hold the offset, for then none is read.
 * Undefined: the text cannot be an offset of the dataset, or no partition can have that key.
 */
export function candidatesSql(
  dataset: DatasetDefinition,
  offset: string,
  partition: string | undefined,
): OffsetQuery | undefined {
  const { order, unique } = dataset.offset;
  if (!ORDERS[order].pattern.test(offset) || partition?.includes('\0')) return undefined;
  if (unique && !LEADING_NUMBER.test(offset)) return undefined;
  return {
    values: partition === undefined ? [offset] : [offset, partition],
    text: `with held as materialized (
        select p.* from partitions p
        where p.dataset_id = ${dataset.number} and p.state = 'proved' and ${offsetCondition(dataset)}
          ${partition === undefined ? '' : 'and p.partition_key = $2::text'}
        order by p.partition_key limit ${MAX_NAMED_PARTITIONS + 1})
      select p.partition_key, f.stream_sequence::text, p.attempt::text, p.revision::text, p.synthetic::text,
        p.manifest::text, p.recount::text, floor(extract(epoch from p.proved_at) * 1000)::int8::text
      from held p
      left join frames f on (select count(*) from held) = 1 and f.dataset_id = p.dataset_id
        and f.partition_key = p.partition_key and ${between(order, 'f.first_offset', 'f.last_offset')}
      order by p.partition_key, f.stream_sequence`,
  };
}

/** The partition `p` may hold the offset. */
function offsetCondition({ offset, native }: DatasetDefinition): string {
  // Ranges of ids (or of the number an offset begins with) that no two partitions share: they have an index.
  if (offset.unique) return `p.offsets @> ${part(OFFSET, 1)}::int8`;
  // Rows that say which partition they are of.
  if (native.scope.kind === 'column') {
    return `p.partition_key in (select t."${native.scope.column}"::text from "${native.table}" t where ${offset.sql} = ${OFFSET})`;
  }
  // Few partitions, each of which knows its first and last.
  return between(offset.order, `p.manifest->>'first_offset'`, `p.manifest->>'last_offset'`);
}

function between(order: OffsetRule['order'], first: string, last: string): string {
  const { value } = ORDERS[order];
  return `${value(first)} <= ${value(OFFSET)} and ${value(last)} >= ${value(OFFSET)}`;
}

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
