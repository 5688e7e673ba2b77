/** What GET /v1/lineage/{dataset}/{offset} says of an event. */
import { isUtf8 } from 'node:buffer';
import { z } from 'zod';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { FoundEvent } from '../../shared/lineage/find-event.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import { isoOf } from '../contract/time.ts';
import type { Grant } from '../rights/gate.ts';
import { count, datasetKey, document, flag, grantedRights, sha256, text, utc } from './schemas.ts';

const nullableText = (doc: string) => z.string().nullable().describe(doc);

const expected = z.looseObject({
  rows: count('Events.'),
  first_offset: nullableText('Lowest offset.'),
  last_offset: nullableText('Highest offset.'),
  first_ms: z.int().nullable().describe('Earliest time, epoch ms.'),
  last_ms: z.int().nullable().describe('Latest time, epoch ms.'),
  totals: z.record(z.string(), nullableText('Exact integer total of the column.')),
  rows_hash: nullableText('Sum of the hashes of rows.'),
});

export const lineageAnswer = z.strictObject({
  dataset: datasetKey,
  offset: text('As asked.'),
  event_id: text('Derived from dataset, partition and offset; the same after every replay.'),
  partition: text('The proved partition that holds it.'),
  synthetic: flag('Of the sample: no vendor published it.'),
  ingested_at_utc: utc('When its partition was published to the log.'),
  payload_raw: z.strictObject({
    bytes: count('How many they are.'),
    base64: text('The record’s bytes as its source gave them.'),
    utf8: nullableText('The same as text, where they are text.'),
  }),
  payload_sha256_raw: sha256('Of those bytes.'),
  frame: z
    .strictObject({
      stream: text('Stream of the log.'),
      stream_sequence: count('Message in it.'),
      number: count('Frame of its attempt, from 0.'),
      position: count('Event within the frame, from 0.'),
      rows: count('Events of the frame.'),
      first_offset: text('Offset of its first event.'),
      last_offset: text('Offset of its last event.'),
      raw_bytes: count('Its size, unpacked.'),
      raw_sha256: sha256('Of all its events, unpacked.'),
    })
    .describe('Where in the log the bytes were read from.'),
  document: document.describe('The document it came in: a vendor’s file, blocks of a node, an answer that was kept.'),
  proof: z.strictObject({
    attempt: count('The try at publishing the partition that was proved.'),
    revision: count('Rises when an operator ingests it again.'),
    proved_at_utc: utc('When the two agreed.'),
    expected: expected.describe('What the publisher counted and hashed in the document, before any of it was stored.'),
    recount: expected.describe('What the database counted and hashed over the rows it had stored.'),
  }),
  ...grantedRights,
});

export function describeEvent(
  dataset: DatasetDefinition & { readonly key: DatasetKey },
  { offset, eventId, payload, payloadSha256, streamSequence, position, frame, partition }: FoundEvent,
  grant: Grant,
): z.input<typeof lineageAnswer> {
  const { manifest, recount } = partition;
  return {
    dataset: dataset.key,
    offset,
    event_id: eventId,
    partition: partition.key,
    synthetic: partition.synthetic,
    ingested_at_utc: isoOf(manifest.ingested_at_ms),
    payload_raw: {
      bytes: payload.length,
      base64: payload.toString('base64'),
      utf8: isUtf8(payload) ? payload.toString('utf8') : null,
    },
    payload_sha256_raw: payloadSha256,
    frame: {
      stream: dataset.key,
      stream_sequence: streamSequence,
      number: frame.frame,
      position,
      rows: frame.rows,
      first_offset: frame.first_offset,
      last_offset: frame.last_offset,
      raw_bytes: frame.raw_bytes,
      raw_sha256: frame.raw_sha256,
    },
    document: { ...manifest.document },
    proof: {
      attempt: partition.attempt,
      revision: partition.revision,
      proved_at_utc: isoOf(partition.provedAtMs),
      expected: factsOf(manifest),
      recount: { ...recount },
    },
    rights_state: grant.state,
    rights_provisional: grant.provisional,
  };
}

function factsOf(manifest: Manifest) {
  const { rows, first_offset, last_offset, first_ms, last_ms, gaps, totals, rows_hash, events_sha256 } = manifest;
  return { rows, first_offset, last_offset, first_ms, last_ms, gaps, totals, rows_hash, events_sha256 };
}
