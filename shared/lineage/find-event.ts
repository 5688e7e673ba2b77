/**
 * Lineage: finds one event in the log, with the vendor's bytes, their frame, their document and the proof of their
 * partition. The operator's command and the HTTP service both use it. A query of the catalog finds the frame, and then one
 * message is read: a few milliseconds at any length of history.
 */

import { DAY_RULE, parseDay, unlessInCalendar } from '../dates.ts';
import { type FoundLeaf, foundLeaf, joinLeaf, LEAF_COLUMNS, provingLeafSql } from '../db/partition-changes.ts';
import type { PartitionRow } from '../db/schema.ts';
import { TidemarkError } from '../errors.ts';
import { decodeBody, decodeHeader, type FrameHeader, sha256Hex } from '../frame/codec.ts';
import type { Manifest } from '../frame/manifest.ts';
import { findRecord, RecordAssembler } from '../frame/records.ts';
import type { Recount } from '../proof/recount.ts';
import type { OffsetCell, OffsetRule } from '../registry/definition.ts';
import { eventId } from '../registry/event-id.ts';
import type { DatasetDefinition } from '../registry/index.ts';
import { dayOfKey } from '../registry/keys.ts';

const LF = 10;
const COMMA = 44;
const ZERO = 48;

/**
 * Finds the line whose offset cell holds `offset`, a number without leading zeros; `position` is the number of the line,
 * from 0. The scan of one frame takes a millisecond.
 */
export function findLine(
  raw: Buffer,
  offset: string,
  cell: OffsetCell,
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

function cellIs(raw: Buffer, start: number, end: number, needle: Buffer, { column, prefix }: OffsetCell): boolean {
  let at = start;
  for (let commas = 0; commas < column; at++) {
    if (at >= end) return false;
    if (raw[at] === COMMA) commas++;
  }
  at += prefix.length;
  // Digits are compared as a number, so leading zeros in the line do not count.
  while (raw[at] === ZERO && raw[at + 1] >= ZERO && raw[at + 1] <= ZERO + 9) at++;
  const after = at + needle.length;
  if (after > end || (after < end && raw[after] !== COMMA)) return false;
  return raw.compare(needle, 0, needle.length, at, after) === 0;
}

/** A statement and its parameters, all of them text. */
interface OffsetQuery {
  readonly text: string;
  readonly values: readonly string[];
}

/** The most partitions that a message names where several hold an offset. */
export const MAX_NAMED_PARTITIONS = 100;

interface OffsetOrder {
  /** The form of an offset. All numbers of 18 digits fit an int8. */
  readonly pattern: RegExp;
  /** SQL whose values compare as offsets do. */
  readonly value: (sql: string) => string;
}

const part = (sql: string, number: number) => `split_part(${sql}, ':', ${number})`;

const ORDERS: Readonly<Record<OffsetRule['order'], OffsetOrder>> = {
  numeric: { pattern: /^(?:0|[1-9]\d{0,17})$/, value: (sql) => `(${sql})::int8` },
  composite: {
    pattern: /^\d{1,18}:\d{1,18}:[^\0]+$/,
    value: (sql) => `(${part(sql, 1)}::int8, ${part(sql, 2)}::int8)`,
  },
  // PostgreSQL's text cannot hold a NUL: it would refuse the statement instead of finding nothing.
  text: { pattern: /^[^\0]+$/, value: (sql) => `(${sql}) collate "C"` },
};

const LEADING_NUMBER = /^\d{1,18}(?::|$)/;
const OFFSET = '$1::text';

/**
 * SQL that yields the candidates: partition, frame, proof, and whether the log has any frame of it. The frame is null where several partitions hold the offset,
 * because then none is read. Undefined where the text cannot be an offset, or the key cannot be one of a partition.
 */
function candidatesSql(
  dataset: DatasetDefinition,
  offset: string,
  partition: string | undefined,
): OffsetQuery | undefined {
  const { order, unique } = dataset.offset;
  if (!ORDERS[order].pattern.test(offset) || partition?.includes('\0')) return undefined;
  if (unique && !LEADING_NUMBER.test(offset)) return undefined;
  return {
    values: partition === undefined ? [offset] : [offset, partition],
    text: `with candidates as materialized (
        select p.* from partitions p
        where p.dataset_id = ${dataset.number} and p.state = 'proved' and ${offsetCondition(dataset)}
          ${partition === undefined ? '' : 'and p.partition_key = $2::text'}
        order by p.partition_key limit ${MAX_NAMED_PARTITIONS + 1})
      select p.partition_key, f.stream_sequence::text, p.attempt::text, p.revision::text, p.synthetic::text,
        p.manifest::text, p.recount::text, floor(extract(epoch from p.proved_at) * 1000)::int8::text,
        p.facts, ${LEAF_COLUMNS},
        exists (select from frames g where g.dataset_id = p.dataset_id and g.partition_key = p.partition_key)::text
      from candidates p ${joinLeaf(provingLeafSql)}
      left join frames f on (select count(*) from candidates) = 1 and f.dataset_id = p.dataset_id
        and f.partition_key = p.partition_key and ${between(order, 'f.first_offset', 'f.last_offset')}
      order by p.partition_key, f.stream_sequence`,
  };
}

/** SQL: the partition `p` may hold the offset. */
function offsetCondition({ offset, native }: DatasetDefinition): string {
  // No two partitions share a range of ids (or of the first number of an offset), and the ranges are indexed.
  if (offset.unique) return `p.offsets @> ${part(OFFSET, 1)}::int8`;
  // The rows hold the key of their partition.
  if (native.scope.kind === 'column') {
    return `p.partition_key in (select t."${native.scope.column}"::text from "${native.table}" t where ${offset.sql} = ${OFFSET})`;
  }
  // The partitions are few, and each has its first and last offset.
  return between(offset.order, `p.manifest->>'first_offset'`, `p.manifest->>'last_offset'`);
}

function between(order: OffsetRule['order'], first: string, last: string): string {
  const { value } = ORDERS[order];
  return `${value(first)} <= ${value(OFFSET)} and ${value(last)} >= ${value(OFFSET)}`;
}

/** Runs one statement with text parameters; every value of the result is text. */
export type RunRows = (query: OffsetQuery) => Promise<readonly (readonly (string | null)[])[]>;

/** The stored message at a sequence of the dataset's stream; undefined when there is none. */
type ReadMessage = (dataset: string, sequence: number) => Promise<Uint8Array | undefined>;

interface LineageNeeds {
  readonly dataset: DatasetDefinition;
  readonly rows: RunRows;
  readonly message: ReadMessage;
}

/** The proved partition that holds an event. */
interface ProvedPartition extends Pick<PartitionRow, 'attempt' | 'revision' | 'synthetic'> {
  readonly key: string;
  readonly manifest: Manifest;
  readonly recount: Recount;
  readonly provedAtMs: number;
  /** Canonical bytes. */
  readonly facts: string;
  /** Its leaf in the proof log. */
  readonly leaf: FoundLeaf | null;
}

export interface FoundEvent {
  readonly offset: string;
  readonly eventId: string;
  readonly payload: Buffer;
  readonly payloadSha256: string;
  /** Sequence of its frame, or of the last one where the event is larger than a frame. */
  readonly streamSequence: number;
  /** Number of the event within its frame, from 0. */
  readonly position: number;
  readonly frame: FrameHeader;
  readonly partition: ProvedPartition;
}

/** A frame that may hold the offset. */
interface Candidate {
  readonly sequence: number;
  readonly partition: ProvedPartition;
}

/**
 * @throws TidemarkError EVENT_UNKNOWN, USAGE (AmbiguousEvent, naming the partitions), LOG_REWOUND when the
 *   log lost the frame, LOG_DAMAGED when `recover` found that it lost all, or when it holds another message there.
 */
export async function findEvent(needs: LineageNeeds, offset: string, partition?: string): Promise<FoundEvent> {
  const { dataset } = needs;
  const query = candidatesSql(dataset, offset, partition);
  if (!query) throw unknown(dataset, offset, partition);
  const rows = await needs.rows(query);
  const keys = [...new Set(rows.map(([key]) => key!))];
  if (keys.length > 1) throw new AmbiguousEvent(dataset, offset, keys);
  // An event that is larger than a frame spans several consecutive frames.
  const parts = new RecordAssembler();
  for (const [, sequence, ...cells] of rows) {
    if (sequence === null) continue;
    const candidate = { sequence: Number(sequence), partition: partitionOf(keys[0], cells) };
    const found = await readFrom(needs, candidate, offset, parts);
    if (found) return found;
  }
  parts.end();
  // `recover` forgets the frames of partitions that the log lost.
  if (keys.length === 1 && rows[0].at(-1) === 'false') {
    throw new TidemarkError('LOG_DAMAGED', `The log no longer holds ${dataset.key} ${keys[0]}`);
  }
  throw unknown(dataset, offset, partition);
}

/** Why a caller may not choose an event by this day; undefined: it may. The day is the key of its partition. */
export function dateFault(dataset: DatasetDefinition, date: string, partition?: string): string | undefined {
  if (dataset.partition.kind !== 'file_day')
    return `chooses a file day of trades; ${dataset.key} has none, so name the partition`;
  if (parseDay(date) === undefined) return `${DAY_RULE}${unlessInCalendar(date)}`;
  if (partition !== undefined && dayOfKey(partition) !== date)
    return 'names another day than the partition: give one of them';
  return undefined;
}

/** Several partitions hold the offset; the caller has to name one. */
export class AmbiguousEvent extends TidemarkError {
  readonly partitions: readonly string[];

  constructor(dataset: DatasetDefinition, offset: string, partitions: readonly string[]) {
    const named = partitions.slice(0, MAX_NAMED_PARTITIONS);
    const more = partitions.length > named.length ? ' and others' : '';
    super('USAGE', `${dataset.key} has the offset ${offset} in ${named.join(', ')}${more}`, {
      details: { dataset: dataset.key, partitions: named.join(',') },
      remedy: 'Name the day with --date, or the partition with --partition.',
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
  const at = `${dataset.key} sequence ${sequence}`;
  const stored = await message(dataset.key, sequence);
  if (!stored) throw new TidemarkError('LOG_REWOUND', `The log holds no message at ${at}`);
  const frame = decodeHeader(stored, at);
  const { manifest } = partition;
  // A log that lost its tail reuses the sequences for other messages: valid frames of other partitions.
  const isExpected =
    frame.kind === 'frame' &&
    frame.dataset === dataset.key &&
    frame.partition === partition.key &&
    frame.attempt === partition.attempt &&
    frame.document_sha256 === manifest.document.sha256;
  if (!isExpected) {
    throw new TidemarkError('LOG_DAMAGED', `The message at ${at} is not a frame of ${partition.key}`, {
      details: { place: at },
    });
  }
  const body = parts.take(frame, await decodeBody(stored, frame, at));
  const event = body && eventIn(dataset, body, offset, frame.layout);
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
  layout: string | undefined,
): { readonly position: number; readonly payload: Buffer } | undefined {
  const { events } = dataset;
  if (events.encoding === 'records') return findRecord(raw, offset);
  return findLine(raw, offset, (layout !== undefined && events.layouts?.[layout]) || events.cell);
}

function partitionOf(key: string, cells: readonly (string | null)[]): ProvedPartition {
  const [attempt, revision, synthetic, manifest, recount, provedAtMs, facts] = cells as readonly string[];
  return {
    key,
    attempt: Number(attempt),
    revision: Number(revision),
    synthetic: synthetic === 'true',
    manifest: JSON.parse(manifest),
    recount: JSON.parse(recount),
    provedAtMs: Number(provedAtMs),
    facts,
    leaf: foundLeaf(cells.slice(7)),
  };
}

const unknown = (dataset: DatasetDefinition, offset: string, partition: string | undefined) =>
  new TidemarkError(
    'EVENT_UNKNOWN',
    `No proved partition ${partition === undefined ? '' : `${JSON.stringify(partition)} `}of ${dataset.key} holds the offset ${JSON.stringify(offset)}; an offset is ${dataset.offset.doc}`,
  );
