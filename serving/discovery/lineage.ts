/** Describes an event for GET /v1/lineage/{dataset}/{offset}, and reads messages of the log for lineage and monitoring. */
import { isUtf8 } from 'node:buffer';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { z } from 'zod';
import { isoOf } from '../../shared/dates.ts';
import { TidemarkError } from '../../shared/errors.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import type { FoundEvent } from '../../shared/lineage/find-event.ts';
import type { Logger } from '../../shared/logger.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { JS_ERROR, jsErrorCode, messageAt } from '../../shared/nats/stream.ts';
import type { DatasetDefinition, DatasetKey } from '../../shared/registry/index.ts';
import { instrumentMember } from '../contract/instruments.ts';
import type { Grant } from '../rights/gate.ts';
import { checkpointField, type ProofLogAnswer, proofLogAnswer, type SignedHead } from './proof-log.ts';
import { count, datasetKey, document, flag, grantedRights, instrumentName, sha256, textField, utc } from './schemas.ts';

const nullableText = (doc: string) => z.string().nullable().describe(doc);

const expected = z.looseObject({
  rows: count('Number of events.'),
  first_offset: nullableText('Lowest offset.'),
  last_offset: nullableText('Highest offset.'),
  first_ms: z.int().nullable().describe('Earliest time, epoch ms.'),
  last_ms: z.int().nullable().describe('Latest time, epoch ms.'),
  totals: z.record(z.string(), nullableText('Exact integer total of the column.')),
  rows_hash: nullableText('Sum of the row hashes.'),
});

export const lineageAnswer = z.strictObject({
  dataset: datasetKey,
  instrument: instrumentName,
  offset: textField('The requested offset.'),
  event_id: textField('Id derived from dataset, partition and offset; a replay does not change it.'),
  partition: textField('The proved partition that holds the event.'),
  synthetic: flag('Whether the event belongs to the sample: no vendor published it.'),
  ingested_at_utc: utc('Time at which its partition was published to the log.'),
  payload_raw: z.strictObject({
    bytes: count('Number of bytes.'),
    base64: textField('The record’s bytes as the source delivered them.'),
    utf8: nullableText('The same bytes as text, if they are text.'),
  }),
  payload_sha256_raw: sha256('Digest of those bytes.'),
  frame: z
    .strictObject({
      stream: textField('Name of the stream in the log.'),
      stream_sequence: count('Sequence of the message in the stream.'),
      number: count('Number of the frame in its attempt, from 0.'),
      position: count('Index of the event in the frame, from 0.'),
      rows: count('Number of events in the frame.'),
      first_offset: textField('Offset of the first event.'),
      last_offset: textField('Offset of the last event.'),
      raw_bytes: count('Uncompressed size of the frame.'),
      raw_sha256: sha256('Digest of all its events, uncompressed.'),
    })
    .describe('The position in the log that the bytes were read from.'),
  document: document.describe(
    'The document that the event came in: a vendor’s file, blocks of a node, an archived response.',
  ),
  proof: z.strictObject({
    attempt: count('Number of the publishing attempt that was proved.'),
    revision: count('Number that rises when an operator ingests the partition again.'),
    proved_at_utc: utc('Time at which the two agreed.'),
    expected: expected.describe(
      'Counts and hashes of the document, computed by the publisher before anything was stored.',
    ),
    recount: expected.describe('Counts and hashes of the stored rows, computed by the database.'),
    facts: textField('The facts of the partition, as JSON in the bytes that its leaf commits to.'),
  }),
  proof_log: proofLogAnswer,
  checkpoint: checkpointField,
  ...grantedRights,
});

export function describeEvent(
  dataset: DatasetDefinition & { readonly key: DatasetKey },
  { offset, eventId, payload, payloadSha256, streamSequence, position, frame, partition }: FoundEvent,
  grant: Grant,
  logged: { readonly proofLog: ProofLogAnswer; readonly head: SignedHead },
): z.input<typeof lineageAnswer> {
  const { manifest, recount } = partition;
  return {
    dataset: dataset.key,
    ...instrumentMember(dataset),
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
      facts: partition.facts,
    },
    proof_log: logged.proofLog,
    checkpoint: logged.head.checkpoint,
    rights_state: grant.state,
    rights_provisional: grant.provisional,
  };
}

function factsOf(manifest: Manifest) {
  const { rows, first_offset, last_offset, first_ms, last_ms, gaps, totals, rows_hash, events_sha256 } = manifest;
  return { rows, first_offset, last_offset, first_ms, last_ms, gaps, totals, rows_hash, events_sha256 };
}

/** A healthy server answers within a millisecond or two; one that takes this long counts as unavailable. */
const REQUEST_TIMEOUT_MS = 2000;

interface Connected {
  readonly connection: NatsConnection & AsyncDisposable;
  readonly manager: JetStreamManager;
  /** Whether the connection is lost for now. The client library reconnects by itself. */
  isDisconnected: boolean;
}

/**
 * Reads messages of the log. Reads of rows do not need the log: the reader connects on first use, and without the log one
 * route answers 503 and the operator's page shows it.
 */
export class LogMessageReader implements AsyncDisposable {
  readonly #url: string | undefined;
  readonly #log: Logger;
  readonly #timeoutMs: number;
  readonly #stopping = new AbortController();
  #connected: Promise<Connected> | undefined;

  /** @param url of an account that may only read. */
  constructor(url: string | undefined, log: Logger, timeoutMs = REQUEST_TIMEOUT_MS) {
    this.#url = url;
    this.#log = log;
    this.#timeoutMs = timeoutMs;
  }

  /** Undefined: the log has no message there. @throws TidemarkError LOG_UNAVAILABLE */
  async message(dataset: string, sequence: number): Promise<Uint8Array | undefined> {
    const connected = await this.#connect();
    if (connected.isDisconnected) throw unavailable('is disconnected; the service reconnects by itself');
    try {
      return (await messageAt(connected.manager, dataset, sequence))?.data;
    } catch (error) {
      if (jsErrorCode(error) === JS_ERROR.STREAM_NOT_FOUND) return undefined;
      throw unavailable('does not answer', error);
    }
  }

  /** A manager, to query the state of the streams. @throws TidemarkError LOG_UNAVAILABLE */
  async manager(): Promise<JetStreamManager> {
    const { manager, isDisconnected } = await this.#connect();
    if (isDisconnected) throw unavailable('is disconnected; the service reconnects by itself');
    return manager;
  }

  /** Ends an attempt to connect, so that a stop waits for nobody who awaits it. */
  stopConnecting(): void {
    this.#stopping.abort(unavailable('is closed: the process is stopping'));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.stopConnecting();
    const connected = await this.#connected?.catch(() => undefined);
    await connected?.connection[Symbol.asyncDispose]();
  }

  #connect(): Promise<Connected> {
    this.#connected ??= this.#open().catch((error) => {
      // The next call tries again.
      this.#connected = undefined;
      throw error;
    });
    return this.#connected;
  }

  async #open(): Promise<Connected> {
    if (this.#url === undefined) throw unavailable('is not configured; set SVC_NATS_READER_URL');
    const connection = await connectNats(this.#url, 'tidemark serving', undefined, this.#stopping.signal);
    const manager = await jetstreamManager(connection, { checkAPI: false, timeout: this.#timeoutMs });
    const connected: Connected = { connection, manager, isDisconnected: false };
    void this.#watch(connected);
    return connected;
  }

  async #watch(connected: Connected): Promise<void> {
    for await (const { type } of connected.connection.status()) {
      if (type !== 'disconnect' && type !== 'reconnect') continue;
      connected.isDisconnected = type === 'disconnect';
      this.#log.info(connected.isDisconnected ? 'the connection to the log is lost' : 'the log is connected again');
    }
    // The connection was closed for good, as after refused credentials.
    this.#connected = undefined;
  }
}

const unavailable = (what: string, cause?: unknown) =>
  new TidemarkError('LOG_UNAVAILABLE', `The log ${what}`, { cause });
