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
import { type NatsConnection, PermissionViolationError } from '@nats-io/transport-node';
import { TidemarkError } from '../errors.ts';

/* Telling that the server refuses an account what it asks for: its rights, not its state. */

/** Whether the server refused a request because the account may not make it. */
export function isDenied(error: unknown): boolean {
  for (let at = error; at instanceof Error; at = at.cause) if (at instanceof PermissionViolationError) return true;
  return false;
}

/** @throws TidemarkError LOG_ACCOUNT_REFUSED when the account may not do `what`; what `asked` throws otherwise. */
export async function allowed<T>(asked: Promise<T>, what: string): Promise<T> {
  try {
    return await asked;
  } catch (cause) {
    if (!isDenied(cause)) throw cause;
    throw new TidemarkError('LOG_ACCOUNT_REFUSED', `The account of the log may not ${what}`, { cause });
  }
}

/** The projector's durable consumer of each stream: its lag is what monitors watch. */
export const CONSUMER_NAME = 'projector';

/** JetStream error codes that mean something to us. */
export const JS_ERROR = {
  WRONG_LAST_SEQUENCE: 10071,
  STREAM_NOT_FOUND: 10059,
  NO_MESSAGE_FOUND: 10037,
  CONSUMER_NOT_FOUND: 10014,
  CONSUMER_EXISTS: 10148, // with other settings
  STREAM_STORE_FAILED: 10077, // "maximum bytes exceeded", with discard: new
  INSUFFICIENT_RESOURCES: 10023,
  STORAGE_RESOURCES_EXCEEDED: 10047,
  NO_SUITABLE_PEERS: 10005, // servers that are away, or without room
  NOT_LEADER: 10006,
  TEMPORARILY_UNAVAILABLE: 10008,
  PEER_REMAP_FAILED: 10040,
  STREAM_OFFLINE: 10118,
  CONSUMER_OFFLINE: 10119,
} as const;

export const jsErrorCode = (error: unknown): number | undefined =>
  error instanceof JetStreamApiError ? error.code : undefined;

/** Subject of one message. A partition key is escaped: subjects are split at dots. */
export const subjectOf = (dataset: string, partition: string, attempt: number, frame: number): string =>
  `${dataset}.${subjectToken(partition)}.${attempt}.${frame}`;

/** Subject of the mark that an attempt is withheld: one an attempt. */
export const withheldSubject = (dataset: string, partition: string, attempt: number): string =>
  `${dataset}.${subjectToken(partition)}.${attempt}.withheld`;

/** Subjects of all such marks that are in the log. */
export async function withheldSubjects(manager: JetStreamManager, dataset: string): Promise<ReadonlySet<string>> {
  const info = await manager.streams.info(dataset, { subjects_filter: `${dataset}.*.*.withheld` });
  return new Set(Object.keys(info.state.subjects ?? {}));
}

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
  max_msgs_per_subject: -1,
} as const satisfies Partial<StreamConfig>;

/** Settings that no log has: they write its messages elsewhere or other streams' here, or let a message remove others. */
const NEVER = ['republish', 'mirror', 'sources', 'subject_transform', 'allow_rollup_hdrs', 'allow_msg_ttl', 'sealed'];

export interface StreamOptions {
  readonly maxBytes: number;
  /** Servers of a cluster that keep it. */
  readonly replicas?: number;
}

export const streamOptions = (settings: {
  readonly SVC_STREAM_MAX_BYTES: number;
  readonly SVC_STREAM_REPLICAS: number;
}): StreamOptions => ({ maxBytes: settings.SVC_STREAM_MAX_BYTES, replicas: settings.SVC_STREAM_REPLICAS });

/** Least that a stream is made with where the store has no room for more: twelve of them fit a small disk. */
const MIN_STREAM_BYTES = 256 * 1024 * 1024;

/**
 * The stream of a dataset, made if it is not there; its byte limit follows the setting, which is reserved from the store:
 * where there is no room for all of it, half is asked for, and half again; a stream that is there stays as it is then, and
 * where the account may not change it.
 * @throws TidemarkError LOG_STREAM_MISCONFIGURED naming what differs, LOG_STORAGE_SHORT when there is no room at all,
 * LOG_ACCOUNT_REFUSED when it is not there and the account may not make it.
 */
export async function ensureStream(
  connection: NatsConnection,
  dataset: string,
  { maxBytes, replicas = 1 }: StreamOptions,
): Promise<StreamInfo> {
  const manager = await jetstreamManager(connection);
  for (let bytes = maxBytes; ; bytes = Math.floor(bytes / 2)) {
    try {
      return await ensure(manager, dataset, bytes, replicas);
    } catch (cause) {
      const code = jsErrorCode(cause);
      if (code !== JS_ERROR.STORAGE_RESOURCES_EXCEEDED && code !== JS_ERROR.INSUFFICIENT_RESOURCES) throw cause;
      const existing = await streamInfo(manager, dataset);
      if (existing) return existing;
      if (bytes / 2 >= Math.min(MIN_STREAM_BYTES, maxBytes)) continue;
      throw new TidemarkError('LOG_STORAGE_SHORT', `nats-server has no room to reserve ${bytes} bytes for ${dataset}`, {
        cause,
        details: { dataset, max_bytes: maxBytes },
      });
    }
  }
}

async function ensure(
  manager: JetStreamManager,
  dataset: string,
  maxBytes: number,
  replicas: number,
): Promise<StreamInfo> {
  let info = await streamInfo(manager, dataset);
  if (!info) {
    const making = manager.streams.add({
      ...IMMUTABLE,
      name: dataset,
      subjects: [`${dataset}.>`],
      max_bytes: maxBytes,
      allow_direct: true,
      num_replicas: replicas,
      // Publishing is idempotent by subject; the dedupe window would only cost memory.
      duplicate_window: 100_000_000,
    });
    info = await allowed(making, `make the stream ${dataset}`);
  }
  const differing = mutableIn(info);
  if (differing.length > 0) {
    throw new TidemarkError(
      'LOG_STREAM_MISCONFIGURED',
      `The stream ${dataset} is not an immutable log: ${differing.join('; ')}`,
    );
  }
  const { max_bytes, num_replicas } = info.config;
  if (max_bytes !== maxBytes || num_replicas !== replicas) {
    try {
      info = await manager.streams.update(dataset, { max_bytes: maxBytes, num_replicas: replicas });
    } catch (error) {
      // Whoever only publishes or reads uses the stream as it is.
      if (!isDenied(error)) throw error;
    }
  }
  return info;
}

/** What of a stream's settings makes it no immutable log. */
export function mutableIn(info: StreamInfo): string[] {
  const config = info.config as unknown as Record<string, unknown>;
  const differing = Object.entries(IMMUTABLE)
    .filter(([name, value]) => (config[name] ?? 0) !== value)
    .map(([name, value]) => `${name} is ${JSON.stringify(config[name])}, must be ${JSON.stringify(value)}`);
  return [...differing, ...NEVER.filter((name) => config[name]).map((name) => `${name} is set, must not be`)];
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
  // The end of a stream that is still empty; nats-server calls it a bad request.
  if (sequence === 0) return undefined;
  try {
    const message = await manager.streams.getMessage(dataset, { seq: sequence });
    return message ? { subject: message.subject, data: message.data } : undefined;
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.NO_MESSAGE_FOUND) return undefined;
    throw error;
  }
}
