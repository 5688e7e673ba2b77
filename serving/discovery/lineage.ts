/** What GET /v1/lineage/{dataset}/{offset} says of an event. */

import { isUtf8 } from 'node:buffer';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { z } from 'zod';
import { TidemarkError } from '../../shared/errors.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { FoundEvent } from '../../shared/lineage/find-event.ts';
import type { Logger } from '../../shared/logger.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, messageAt } from '../../shared/nats/stream.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import { isoOf } from '../contract/time.ts';
import type { Grant } from '../rights/gate.ts';
import { count, datasetKey, document, flag, grantedRights, sha256, textField, utc } from './schemas.ts';

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
  offset: textField('As asked.'),
  event_id: textField('Derived from dataset, partition and offset; the same after every replay.'),
  partition: textField('The proved partition that holds it.'),
  synthetic: flag('Of the sample: no vendor published it.'),
  ingested_at_utc: utc('When its partition was published to the log.'),
  payload_raw: z.strictObject({
    bytes: count('How many they are.'),
    base64: textField('The record’s bytes as its source gave them.'),
    utf8: nullableText('The same as text, where they are text.'),
  }),
  payload_sha256_raw: sha256('Of those bytes.'),
  frame: z
    .strictObject({
      stream: textField('Stream of the log.'),
      stream_sequence: count('Message in it.'),
      number: count('Frame of its attempt, from 0.'),
      position: count('Event within the frame, from 0.'),
      rows: count('Events of the frame.'),
      first_offset: textField('Offset of its first event.'),
      last_offset: textField('Offset of its last event.'),
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

/*
 * The log, for lineage and for monitoring. No read needs it: it is connected when it is first asked for, and its absence
 * is one route's 503 and a number on the operator's page.
 */

/** A message is there in a millisecond or two; a server that takes this long is as good as away. */
const REQUEST_TIMEOUT_MS = 2000;

interface Connected {
  readonly connection: NatsConnection & AsyncDisposable;
  readonly manager: JetStreamManager;
  /** Away for now: the client library reconnects by itself. */
  isAway: boolean;
}

export class LogMessageReader implements AsyncDisposable {
  readonly #url: string | undefined;
  readonly #log: Logger;
  readonly #timeoutMs: number;
  #connected: Promise<Connected> | undefined;

  /** @param url of an account that needs no more than to read. */
  constructor(url: string | undefined, log: Logger, timeoutMs = REQUEST_TIMEOUT_MS) {
    this.#url = url;
    this.#log = log;
    this.#timeoutMs = timeoutMs;
  }

  /** Undefined: the log holds none there. @throws TidemarkError LOG_UNAVAILABLE */
  async message(dataset: string, sequence: number): Promise<Uint8Array | undefined> {
    const connected = await this.#connect();
    if (connected.isAway) throw unavailable('is away; it is connected to again by itself');
    try {
      return (await messageAt(connected.manager, dataset, sequence))?.data;
    } catch (error) {
      if (jsErrorCode(error) === JS_ERROR.STREAM_NOT_FOUND) return undefined;
      throw unavailable('does not answer', error);
    }
  }

  /** To ask how its streams stand. @throws TidemarkError LOG_UNAVAILABLE */
  async manager(): Promise<JetStreamManager> {
    const { manager, isAway } = await this.#connect();
    if (isAway) throw unavailable('is away; it is connected to again by itself');
    return manager;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const connected = await this.#connected?.catch(() => undefined);
    await connected?.connection[Symbol.asyncDispose]();
  }

  #connect(): Promise<Connected> {
    this.#connected ??= this.#open().catch((error) => {
      // The next one who asks tries again.
      this.#connected = undefined;
      throw error;
    });
    return this.#connected;
  }

  async #open(): Promise<Connected> {
    if (this.#url === undefined) throw unavailable('is not configured (SVC_NATS_READER_URL)');
    const connection = await connectNats(this.#url, 'tidemark serving');
    const manager = await jetstreamManager(connection, { checkAPI: false, timeout: this.#timeoutMs });
    const connected: Connected = { connection, manager, isAway: false };
    void this.#watch(connected);
    return connected;
  }

  async #watch(connected: Connected): Promise<void> {
    for await (const { type } of connected.connection.status()) {
      if (type !== 'disconnect' && type !== 'reconnect') continue;
      connected.isAway = type === 'disconnect';
      this.#log.info(connected.isAway ? 'the log is away' : 'the log is back');
    }
    // Closed for good: refused credentials end a connection.
    this.#connected = undefined;
  }
}

const unavailable = (what: string, cause?: unknown) =>
  new TidemarkError('LOG_UNAVAILABLE', `The log ${what}`, { cause });
