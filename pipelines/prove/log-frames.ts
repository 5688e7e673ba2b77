/** Reads one attempt's frames back out of the log, in order, verified. */
import { jetstream } from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { TidemarkError } from '../../shared/errors.ts';
import { decodeBody, decodeHeader, type FrameHeader, MAX_MESSAGE_BYTES } from '../../shared/frame/codec.ts';
import type { Manifest } from '../../shared/frame/manifest.ts';
import { outageCode } from '../../shared/outage.ts';

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
  const consumer = await consumerAt(connection, dataset, manifest.first_sequence);
  const ahead: { sequence: number; header: FrameHeader; body: Promise<Buffer> }[] = [];
  let next = 0;
  try {
    for (let reached = false; !reached; ) {
      const batch = await consumer.fetch({
        max_messages: Math.max(1, Math.floor(batchBytes / MAX_MESSAGE_BYTES)),
        expires: 5000,
      });
      let received = 0;
      for await (const message of batch) {
        received++;
        if (message.seq >= manifestSequence) {
          reached = true;
          break;
        }
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
      if (received === 0) break;
    }
    while (ahead.length > 0) yield await taken(ahead.shift()!);
  } finally {
    await consumer.delete().catch(() => {});
  }
  if (next !== manifest.frames) {
    throw new TidemarkError(
      'LOG_FRAME_CORRUPT',
      `The log holds ${next} of ${manifest.frames} frames of ${dataset} ${partition} attempt ${attempt}`,
    );
  }
}

const CONSUMER_TRIES = 6;

/** A cluster may place the reader on a server that has just gone: asked again, it is placed on another. */
async function consumerAt(connection: NatsConnection, dataset: string, sequence: number) {
  for (let tries = 1; ; tries++) {
    try {
      return await jetstream(connection).consumers.get(dataset, { opt_start_seq: sequence });
    } catch (error) {
      if (tries === CONSUMER_TRIES || outageCode(error) === undefined) throw error;
    }
  }
}

async function taken(frame: { sequence: number; header: FrameHeader; body: Promise<Buffer> }): Promise<StoredFrame> {
  return { sequence: frame.sequence, header: frame.header, raw: await frame.body };
}
