/** The log: one immutable JetStream stream per dataset, and the names of everything in it. */
import {
  DiscardPolicy,
  JetStreamApiError,
  type JetStreamManager,
  jetstreamManager,
  RetentionPolicy,
  StorageType,
  StoreCompression,
  type StreamConfig,
  type StreamInfo,
} from '@nats-io/jetstream';
import type { NatsConnection } from '@nats-io/transport-node';
import { TidemarkError } from '../errors.ts';

/** JetStream error codes that mean something to us. */
export const JS_ERROR = {
  WRONG_LAST_SEQUENCE: 10071,
  STREAM_NOT_FOUND: 10059,
  NO_MESSAGE_FOUND: 10037,
  CONSUMER_NOT_FOUND: 10014,
  STREAM_STORE_FAILED: 10077, // "maximum bytes exceeded", with discard: new
  INSUFFICIENT_RESOURCES: 10023,
  STORAGE_RESOURCES_EXCEEDED: 10047,
} as const;

export const jsErrorCode = (error: unknown): number | undefined =>
  error instanceof JetStreamApiError ? error.code : undefined;

/** Subject of one message. A partition key is escaped: subjects are split at dots. */
export const subjectOf = (dataset: string, partition: string, attempt: number, frame: number): string =>
  `${dataset}.${subjectToken(partition)}.${attempt}.${frame}`;

export const attemptFilter = (dataset: string, partition: string, attempt: number): string =>
  `${dataset}.${subjectToken(partition)}.${attempt}.>`;

const subjectToken = (text: string) =>
  text.replace(/[^A-Za-z0-9-]/g, (char) => `_${char.codePointAt(0)!.toString(16)}_`);

/** The settings that make a stream an immutable log; a stream that differs in one is refused, not repaired. */
const IMMUTABLE = {
  retention: RetentionPolicy.Limits,
  discard: DiscardPolicy.New,
  storage: StorageType.File,
  deny_delete: true,
  deny_purge: true,
  // S2 with a wildcard consumer read a day in 24 s instead of 0.7; bodies are zstd already.
  compression: StoreCompression.None,
  max_age: 0,
  max_msgs: -1,
} as const satisfies Partial<StreamConfig>;

/**
 * The stream of a dataset, made if it is not there; its byte limit follows the setting.
 * @throws TidemarkError LOG_STREAM_MISCONFIGURED naming what differs.
 */
export async function ensureStream(connection: NatsConnection, dataset: string, maxBytes: number): Promise<StreamInfo> {
  const manager = await jetstreamManager(connection);
  try {
    return await ensure(manager, dataset, maxBytes);
  } catch (cause) {
    const code = jsErrorCode(cause);
    if (code !== JS_ERROR.STORAGE_RESOURCES_EXCEEDED && code !== JS_ERROR.INSUFFICIENT_RESOURCES) throw cause;
    throw new TidemarkError(
      'LOG_STORAGE_SHORT',
      `nats-server has no room to reserve ${maxBytes} bytes for ${dataset}`,
      {
        cause,
        details: { dataset, max_bytes: maxBytes },
      },
    );
  }
}

async function ensure(manager: JetStreamManager, dataset: string, maxBytes: number): Promise<StreamInfo> {
  let info = await streamInfo(manager, dataset);
  if (!info) {
    info = await manager.streams.add({
      ...IMMUTABLE,
      name: dataset,
      subjects: [`${dataset}.>`],
      max_bytes: maxBytes,
      allow_direct: true,
      num_replicas: 1,
      // Publishing is idempotent by subject; the dedupe window would only cost memory.
      duplicate_window: 100_000_000,
    });
  }
  const config = info.config as unknown as Record<string, unknown>;
  const differing = Object.entries(IMMUTABLE).filter(([name, value]) => (config[name] ?? 0) !== value);
  if (differing.length > 0) {
    throw new TidemarkError(
      'LOG_STREAM_MISCONFIGURED',
      `The stream ${dataset} is not an immutable log: ${differing
        .map(([name, value]) => `${name} is ${JSON.stringify(config[name])}, must be ${JSON.stringify(value)}`)
        .join('; ')}`,
    );
  }
  if (info.config.max_bytes !== maxBytes) info = await manager.streams.update(dataset, { max_bytes: maxBytes });
  return info;
}

export async function streamInfo(manager: JetStreamManager, dataset: string): Promise<StreamInfo | undefined> {
  try {
    return await manager.streams.info(dataset);
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.STREAM_NOT_FOUND) return undefined;
    throw error;
  }
}

/** The newest stored message of a subject, or undefined when there is none. */
export async function messageOf(
  manager: JetStreamManager,
  dataset: string,
  subject: string,
): Promise<number | undefined> {
  try {
    return (await manager.streams.getMessage(dataset, { last_by_subj: subject }))?.seq;
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.NO_MESSAGE_FOUND) return undefined;
    throw error;
  }
}

/** The stored message at a sequence, or undefined when the stream holds none there. */
export async function messageAt(
  manager: JetStreamManager,
  dataset: string,
  sequence: number,
): Promise<{ subject: string; data: Uint8Array } | undefined> {
  try {
    const message = await manager.streams.getMessage(dataset, { seq: sequence });
    return message ? { subject: message.subject, data: message.data } : undefined;
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.NO_MESSAGE_FOUND) return undefined;
    throw error;
  }
}
