/** Finding an event in frames of records: one among many, and one so large that it travels in parts. */
import { describe, expect, test } from 'vitest';
import { encodeMessage, type FrameHeader } from '../../shared/frame/codec.ts';
import { encodeRecord, MAX_RECORD_FRAME_BYTES, RecordAssembler } from '../../shared/frame/records.ts';
import { findEvent } from '../../shared/lineage/find-event.ts';
import { datasetOf } from '../../shared/registry/index.ts';
import { faultOf } from '../support/faults.ts';

const dataset = { ...datasetOf('exchange_a_spot_trades'), events: { encoding: 'records' as const } };
const KEY = '2024-01-01';
const DOCUMENT = 'd'.repeat(64);
const large = Buffer.alloc(2 * MAX_RECORD_FRAME_BYTES, 'x');
const events = [1, 2, 3].map((id) => ({ offset: String(id), payload: Buffer.from(`event ${id}\n\0`) }));

type Part = { readonly part: number; readonly parts: number };

async function frame(number: number, raw: Buffer, first: string, last: string, part?: Part): Promise<Buffer> {
  return await encodeMessage<FrameHeader>(
    {
      kind: 'frame',
      encoding: 'records',
      dataset: dataset.key,
      partition: KEY,
      revision: 1,
      attempt: 1,
      frame: number,
      document_sha256: DOCUMENT,
      rows: 1,
      first_offset: first,
      last_offset: last,
      first_ms: 0,
      last_ms: 0,
      ...part,
    },
    raw,
  );
}

/** Frame 0 holds three events, frames 1 to 3 the fourth. */
async function log(): Promise<Map<number, Buffer>> {
  const record = encodeRecord('4', large);
  const cuts = [0, 1, 2].map((part) =>
    record.subarray(part * MAX_RECORD_FRAME_BYTES, (part + 1) * MAX_RECORD_FRAME_BYTES),
  );
  const few = Buffer.concat(events.map(({ offset, payload }) => encodeRecord(offset, payload)));
  const parts = cuts.map((cut, index) => frame(1 + index, cut, '4', '4', { part: index + 1, parts: 3 }));
  const messages = await Promise.all([frame(0, few, '1', '3'), ...parts]);
  return new Map(messages.map((message, index) => [10 + index, message]));
}

async function find(offset: string, sequences: readonly number[], messages: ReadonlyMap<number, Buffer>) {
  const proof = JSON.stringify({ document: { sha256: DOCUMENT } });
  return await findEvent(
    {
      dataset,
      rows: async () => sequences.map((sequence) => [KEY, String(sequence), '1', '1', 'false', proof, '{}', '0']),
      message: async (_, sequence) => messages.get(sequence),
    },
    offset,
  );
}

describe('in frames of records', () => {
  test('an event is found with its bytes as they are, and its place', async () => {
    const messages = await log();
    for (const [position, { offset, payload }] of events.entries()) {
      expect(await find(offset, [10], messages)).toMatchObject({ payload, position, streamSequence: 10 });
    }
    await faultOf(find('9', [10], messages), 'EVENT_UNKNOWN');
  });

  test('one larger than a frame is put together from its parts, or not at all', async () => {
    const messages = await log();
    const found = await find('4', [11, 12, 13], messages);
    expect(found.payload.equals(large)).toBe(true);
    for (const sequences of [
      [11, 12],
      [12, 13],
      [11, 13],
      [11, 13, 12],
    ]) {
      await faultOf(find('4', sequences, messages), 'LOG_DAMAGED');
    }
    messages.delete(12);
    await faultOf(find('4', [11, 12, 13], messages), 'LOG_REWOUND');
  });
});

describe('the parts of an event', () => {
  type Given = readonly [text: string, part?: number, parts?: number];
  /** The bodies to read events from, as text. */
  const joined = (...frames: Given[]): string[] => {
    const assembler = new RecordAssembler();
    const bodies = frames.flatMap(([text, part, parts], index) => {
      const header = { frame: index, ...(part === undefined ? {} : { part, parts }) };
      return assembler.take(header, Buffer.from(text)) ?? [];
    });
    assembler.end();
    return bodies.map(String);
  };

  test('are joined in the order of their frames, between whole ones', () => {
    expect(joined(['whole'], ['a', 1, 3], ['b', 2, 3], ['c', 3, 3], ['x', 1, 1], ['also whole'])).toEqual([
      'whole',
      'abc',
      'x',
      'also whole',
    ]);
  });

  test.each<[string, ...Given[]]>([
    ['of which the first is missing', ['b', 2, 3]],
    ['of which one is missing', ['a', 1, 3], ['c', 3, 3]],
    ['of which one comes twice', ['a', 1, 3], ['a', 1, 3]],
    ['of which the last is missing', ['a', 1, 2]],
    ['that are more than were announced', ['a', 2, 1]],
    ['that become fewer on the way', ['a', 1, 3], ['b', 2, 2]],
    ['that become more on the way', ['a', 1, 2], ['b', 2, 3], ['c', 3, 3]],
    ['among which a whole frame lies', ['a', 1, 2], ['whole'], ['b', 2, 2]],
  ])('%s do not make an event', (_, ...frames) => {
    expect(() => joined(...frames)).toThrow('The parts of an event do not fit together');
  });
});
