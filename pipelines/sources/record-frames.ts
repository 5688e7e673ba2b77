/**
 * Fills frames with records and keeps the facts of their partition. The publisher uses it for every dataset whose
 * events are not lines. It holds one frame and the largest record in memory.
 */

import { createHash } from 'node:crypto';
import { FIRST_MS, LAST_MS } from '../../shared/dates.ts';
import { assert, TidemarkError } from '../../shared/errors.ts';
import type { SourceFacts } from '../../shared/frame/manifest.ts';
import { encodeRecord, MAX_RECORD_FRAME_BYTES, recordBytes, writeRecord } from '../../shared/frame/records.ts';
import { RowFacts, type StoredValue } from '../../shared/proof/row-facts.ts';
import { compareOffsets } from '../../shared/registry/event-id.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { ALL_TIME, keyFacts } from '../../shared/registry/keys.ts';
import type { DecodedItem, EventRun, PartitionEnd, PartitionWindow } from './feed-types.ts';

/** One event: its offset, its bytes and its row. */
export interface RecordedEvent {
  readonly offset: string;
  readonly payload: Uint8Array;
  /** Auxiliary data: facts that the row needs and the payload lacks (shared/frame/records.ts). */
  readonly auxiliary?: Uint8Array;
  /**
   * Values in the order of the native table's columns. A column that holds the partition's key may have any value here.
   */
  readonly row: readonly StoredValue[];
}

/** Whether a vendor's time can be stored: beyond these years the catalog and the answers cannot express it. */
const isTime = (ms: number): boolean => ms >= FIRST_MS && ms <= LAST_MS;

/** The first size of a frame's buffer; most partitions fill only a small part of a frame. */
const LEAST_FRAME_BYTES = 4 * 1024;
const NO_FRAME = Buffer.alloc(0);

export class RecordFrames {
  readonly #dataset: DatasetDefinition;
  readonly #partition: PartitionWindow;
  readonly #frameBytes: number;
  readonly #facts: RowFacts;
  readonly #digest = createHash('sha256');
  #firstOffset = '';
  #lastOffset = '';

  /** Buffers of full size that the receiver returned. */
  readonly #spare: Buffer[] = [];

  // The frame being filled.
  #frame: Buffer = NO_FRAME;
  #records = 0;
  #bytes = 0;
  #frameFirst = '';
  #frameFirstMs = Number.POSITIVE_INFINITY;
  #frameLastMs = Number.NEGATIVE_INFINITY;

  /** Takes the events of one partition in the order of their offsets. @throws TidemarkError USAGE */
  constructor(dataset: DatasetDefinition, key: string, frameRawBytes: number) {
    this.#dataset = dataset;
    this.#partition = { key, ...keyFacts(dataset, key).times };
    this.#frameBytes = Math.min(frameRawBytes, MAX_RECORD_FRAME_BYTES);
    this.#facts = new RowFacts(dataset.native);
  }

  /** @returns the frames that are full. @throws TidemarkError SOURCE_DOCUMENT_INVALID */
  *add(event: RecordedEvent): Generator<EventRun> {
    const { offset, payload, auxiliary } = event;
    if (this.#facts.rows > 0 && compareOffsets(this.#dataset.offset, this.#lastOffset, offset) >= 0) {
      assert(false, `${this.#dataset.key}: ${offset} follows ${this.#lastOffset}`);
    }
    const bytes = recordBytes(offset, payload, auxiliary);
    const isPart = bytes > this.#frameBytes;
    if (this.#bytes > 0 && (isPart || this.#bytes + bytes > this.#frameBytes)) yield this.#endFrame();
    const ms = this.#facts.add(event.row);
    if (!isTime(ms)) throw this.#badTime(`its event ${offset}`, ms);
    if (this.#facts.rows === 1) this.#firstOffset = offset;
    this.#lastOffset = offset;
    if (isPart) {
      yield* this.#inParts(encodeRecord(offset, payload, auxiliary), offset, ms);
      return;
    }
    if (this.#records === 0) this.#frameFirst = offset;
    this.#reserve(bytes);
    writeRecord(this.#frame, this.#bytes, offset, payload, auxiliary);
    this.#records++;
    this.#bytes += bytes;
    if (ms < this.#frameFirstMs) this.#frameFirstMs = ms;
    if (ms > this.#frameLastMs) this.#frameLastMs = ms;
  }

  /**
   * Ends the partition after its last event. An empty partition whose key does not give its times needs `times`.
   * @throws TidemarkError SOURCE_DOCUMENT_INVALID
   */
  *end(source: SourceFacts = {}, times?: Omit<PartitionWindow, 'key'>): Generator<DecodedItem> {
    if (this.#bytes > 0) yield this.#endFrame();
    yield this.#end(source, times);
  }

  #end(source: SourceFacts, times: Omit<PartitionWindow, 'key'> | undefined): PartitionEnd {
    const facts = this.#facts;
    const { key, fromMs, toMs } = this.#partition;
    for (const name of ['through_ms', 'span_end', 'last_updated_ms', 'captured_ms'] as const) {
      const ms = source[name];
      if (ms !== undefined && !isTime(ms)) throw this.#badTime(`its ${name}`, ms);
    }
    const empty = times ?? { fromMs, toMs };
    assert(facts.rows > 0 || empty.fromMs > ALL_TIME.fromMs, `the empty partition ${key} needs times`);
    const held = facts.rows > 0 ? { fromMs: facts.firstMs, toMs: facts.lastMs + 1 } : empty;
    return {
      kind: 'end',
      dataset: this.#dataset,
      partition: { key, fromMs: held.fromMs, toMs: held.toMs },
      facts: {
        rows: facts.rows,
        first_offset: this.#firstOffset,
        last_offset: this.#lastOffset,
        first_ms: held.fromMs,
        last_ms: facts.rows > 0 ? facts.lastMs : held.fromMs,
        gaps: this.#gaps(),
        totals: facts.totals,
        rows_hash: facts.hash,
        events_sha256: this.#digest.digest('hex'),
        ...source,
      },
    };
  }

  #badTime(what: string, ms: number): TidemarkError {
    const { key } = this.#partition;
    const message = `${this.#dataset.key} ${key}: ${what} has the time ${ms} ms, which is not in the years 0001 to 9999`;
    return new TidemarkError('SOURCE_DOCUMENT_INVALID', message, { details: { partition: key, time_ms: ms } });
  }

  #gaps(): number {
    if (this.#dataset.offset.order !== 'numeric' || this.#facts.rows === 0) return 0;
    return Number(BigInt(this.#lastOffset) - BigInt(this.#firstOffset)) + 1 - this.#facts.rows;
  }

  #endFrame(): EventRun {
    // The receiver keeps the buffer until it returns it, so the next frame gets another.
    const frame = this.#frame;
    const raw = frame.subarray(0, this.#bytes);
    this.#digest.update(raw);
    const run = this.#run(raw, {
      rows: this.#records,
      first_offset: this.#frameFirst,
      last_offset: this.#lastOffset,
      first_ms: this.#frameFirstMs,
      last_ms: this.#frameLastMs,
      ...(frame.length === this.#frameBytes ? { release: () => void this.#spare.push(frame) } : {}),
    });
    this.#frame = NO_FRAME;
    this.#records = 0;
    this.#bytes = 0;
    this.#frameFirstMs = Number.POSITIVE_INFINITY;
    this.#frameLastMs = Number.NEGATIVE_INFINITY;
    return run;
  }

  #reserve(bytes: number): void {
    const needed = this.#bytes + bytes;
    if (needed <= this.#frame.length) return;
    const size = Math.min(this.#frameBytes, Math.max(needed, 4 * this.#frame.length, LEAST_FRAME_BYTES));
    const larger = this.#spare.pop() ?? Buffer.allocUnsafeSlow(size);
    this.#frame.copy(larger, 0, 0, this.#bytes);
    this.#frame = larger;
  }

  *#inParts(record: Buffer, offset: string, ms: number): Generator<EventRun> {
    this.#digest.update(record);
    const parts = Math.ceil(record.length / this.#frameBytes);
    for (let part = 1; part <= parts; part++) {
      const piece = record.subarray((part - 1) * this.#frameBytes, part * this.#frameBytes);
      yield this.#run(piece, {
        rows: part === parts ? 1 : 0,
        first_offset: offset,
        last_offset: offset,
        first_ms: ms,
        last_ms: ms,
        part,
        parts,
      });
    }
  }

  #run(raw: Buffer, facts: Omit<EventRun, 'kind' | 'dataset' | 'partition' | 'raw'>): EventRun {
    return { kind: 'events', dataset: this.#dataset, partition: this.#partition, raw, ...facts };
  }
}
