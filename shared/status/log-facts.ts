/** The facts of the log about each dataset's stream and about the consumer of its projector. */
import type { ConsumerInfo, JetStreamManager } from '@nats-io/jetstream';
import { decodeHeader, type FrameHeader } from '../frame/codec.ts';
import { CONSUMER_NAME, firstMessageFrom, JS_ERROR, jsErrorCode, streamInfo } from '../nats/stream.ts';

export interface LogFacts {
  readonly messages: number;
  readonly bytes: number;
  readonly maxBytes: number;
  readonly lastSequence: number;
  readonly consumer: ConsumerFacts | undefined;
  /** The header of the newest message, where messages wait and it is a frame, so that its attempt has no manifest yet. */
  readonly newest: FrameHeader | undefined;
  /** When the oldest waiting message was stored. */
  readonly waitingSince: Date | undefined;
}

interface ConsumerFacts {
  /** Messages that are not projected: not delivered yet, or delivered and not acknowledged. */
  readonly waiting: number;
  /** Sequence of the last projected message. */
  readonly ackFloor: number;
}

export class LogFactsReader {
  /** The oldest waiting message by dataset, from a sequence on. Messages do not change, so each is read once while it is the oldest. */
  readonly #oldest = new Map<string, { readonly sequence: number; readonly at: Date }>();

  /** Undefined where there is no stream. */
  async read(manager: JetStreamManager, dataset: string): Promise<LogFacts | undefined> {
    const [info, consumer] = await Promise.all([streamInfo(manager, dataset), consumerFacts(manager, dataset)]);
    if (!info) return undefined;
    const { messages, bytes, last_seq: lastSequence } = info.state;
    const waits = consumer !== undefined && consumer.waiting > 0;
    return {
      messages,
      bytes,
      maxBytes: info.config.max_bytes ?? -1,
      lastSequence,
      consumer,
      newest: waits ? await frameAt(manager, dataset, lastSequence) : undefined,
      waitingSince: waits ? await this.#timeOf(manager, dataset, consumer.ackFloor + 1) : undefined,
    };
  }

  async #timeOf(manager: JetStreamManager, dataset: string, sequence: number): Promise<Date | undefined> {
    const cached = this.#oldest.get(dataset);
    if (cached?.sequence === sequence) return cached.at;
    const at = (await firstMessageFrom(manager, dataset, sequence))?.time;
    if (at) this.#oldest.set(dataset, { sequence, at });
    return at;
  }
}

async function consumerFacts(manager: JetStreamManager, dataset: string): Promise<ConsumerFacts | undefined> {
  try {
    const info: ConsumerInfo = await manager.consumers.info(dataset, CONSUMER_NAME);
    return { waiting: info.num_pending + info.num_ack_pending, ackFloor: info.ack_floor.stream_seq };
  } catch (error) {
    const code = jsErrorCode(error);
    if (code === JS_ERROR.CONSUMER_NOT_FOUND || code === JS_ERROR.STREAM_NOT_FOUND) return undefined;
    throw error;
  }
}

async function frameAt(manager: JetStreamManager, dataset: string, sequence: number): Promise<FrameHeader | undefined> {
  const message = await stored(manager, dataset, sequence);
  if (!message) return undefined;
  try {
    const header = decodeHeader(message.data, `${dataset} ${sequence}`);
    return header.kind === 'frame' ? header : undefined;
  } catch {
    // The message is damaged; the projector reports it.
    return undefined;
  }
}

async function stored(manager: JetStreamManager, dataset: string, sequence: number) {
  try {
    return (await manager.streams.getMessage(dataset, { seq: sequence })) ?? undefined;
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.NO_MESSAGE_FOUND) return undefined;
    throw error;
  }
}
