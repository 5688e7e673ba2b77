/** Reads one attempt's frames back out of the log, in order, verified. */
import { setTimeout as delay } from 'node:timers/promises';
import { type Consumer, type JetStreamClient, type JsMsg, jetstream, jetstreamManager } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { TidemarkError } from '../../shared/errors.ts';
import { decodeBody, decodeHeader, type FrameHeader, MAX_MESSAGE_BYTES } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { isLostReader, OUTAGE_LIMIT_MS, patiently } from '../../shared/nats/patience.ts';
import { messageAt } from '../../shared/nats/stream.ts';

export interface StoredFrame {
  readonly sequence: number;
  readonly header: FrameHeader;
  readonly raw: Buffer;
}

/** Frames being unpacked ahead: as in the projector. */
const LOOKAHEAD = 4;

/**
 * Frames 0..n-1 of the attempt a manifest ends. `manifestSequence` is where that manifest lies.
 * @throws TidemarkError LOG_FRAME_CORRUPT when one is missing, altered or out of order.
 */
export async function* framesOf(
  connection: NatsConnection,
  manifest: Manifest,
  manifestSequence: number,
  batchBytes: number,
): AsyncGenerator<StoredFrame> {
  const { dataset, partition, attempt } = manifest;
  const ahead: { sequence: number; header: FrameHeader; body: Promise<Buffer> }[] = [];
  let next = 0;
  const stretch = { dataset, first: manifest.first_sequence, last: manifestSequence - 1 };
  const batch = Math.max(1, Math.floor(batchBytes / MAX_MESSAGE_BYTES));
  for await (const message of messagesOf(connection, stretch, batch)) {
    const place = `${dataset} sequence ${message.seq}`;
    const header = decodeHeader(message.data, place);
    if (header.kind !== 'frame' || header.partition !== partition || header.attempt !== attempt) continue;
    if (header.frame !== next) {
      throw new TidemarkError('LOG_FRAME_CORRUPT', `${place} holds frame ${header.frame}, expected frame ${next}`);
    }
    next++;
    const body = decodeBody(message.data, header, place);
    body.catch(() => {}); // surfaces when its turn comes
    ahead.push({ sequence: message.seq, header, body });
    if (ahead.length >= LOOKAHEAD) yield await taken(ahead.shift()!);
  }
  while (ahead.length > 0) yield await taken(ahead.shift()!);
  if (next !== manifest.frames) {
    throw new TidemarkError(
      'LOG_FRAME_CORRUPT',
      `The log holds ${next} of ${manifest.frames} frames of ${dataset} ${partition} attempt ${attempt}`,
    );
  }
}

interface Stretch {
  readonly dataset: string;
  /** Sequences, both included. */
  readonly first: number;
  readonly last: number;
}

/** How long a reader may bring nothing. */
const FETCH_MS = 5000;
/** Before another reader is made. */
const PAUSE_MS = 200;

/**
 * Every message of a stretch, in order, or those there are where the log ends before. A reader lives on one server of a
 * cluster and may go with it; the next one goes on where it stopped.
 * @throws TidemarkError LOG_UNAVAILABLE when nothing came for `OUTAGE_LIMIT_MS`.
 */
async function* messagesOf(
  connection: NatsConnection,
  { dataset, first, last }: Stretch,
  max_messages: number,
): AsyncGenerator<JsMsg> {
  const client = jetstream(connection);
  const manager = await jetstreamManager(connection, { checkAPI: false });
  let cameAt = performance.now();
  for (let next = first; next <= last; ) {
    const consumer = await readerAt(client, dataset, next);
    try {
      for (let came = true; came && next <= last; ) {
        came = false;
        const fetched = await consumer.fetch({ max_messages, expires: FETCH_MS });
        // Without a connection the client library would wait for one for ever.
        const late = setTimeout(() => void fetched.close(), 2 * FETCH_MS);
        try {
          for await (const message of fetched) {
            came = true;
            next = message.seq + 1;
            if (message.seq <= last) yield message;
            cameAt = performance.now();
            if (next > last) break;
          }
        } finally {
          clearTimeout(late);
        }
      }
    } catch (error) {
      if (!isLostReader(error)) throw error;
    } finally {
      const removed = consumer.delete().catch(() => {});
      // One that was lost is not waited for.
      if (next > last) await removed;
    }
    if (next > last || !(await messageAt(manager, dataset, last))) return;
    if (performance.now() - cameAt > OUTAGE_LIMIT_MS) {
      const message = `The log of ${dataset} brought nothing for ${OUTAGE_LIMIT_MS / 1000} s at sequence ${next}`;
      throw new TidemarkError('LOG_UNAVAILABLE', message);
    }
    await delay(PAUSE_MS);
  }
}

const readerAt = (client: JetStreamClient, dataset: string, sequence: number): Promise<Consumer> =>
  patiently(() => client.consumers.get(dataset, { opt_start_seq: sequence }), {}, undefined, isLostReader);

async function taken(frame: { sequence: number; header: FrameHeader; body: Promise<Buffer> }): Promise<StoredFrame> {
  return { sequence: frame.sequence, header: frame.header, raw: await frame.body };
}
