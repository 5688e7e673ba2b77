/** The log: one immutable JetStream stream for each dataset, with the names of its subjects and its settings. */

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
import { BEGIN_ANEW, TidemarkError } from '../errors.ts';

/** Whether the server refused a request because the account has no permission for it. */
export function isDenied(error: unknown): boolean {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof PermissionViolationError) return true;
  }
  return false;
}

/** @throws TidemarkError LOG_MISCONFIGURED when the account may not do `what`; otherwise the error of `request`. */
export async function allowed<T>(request: Promise<T>, what: string): Promise<T> {
  try {
    return await request;
  } catch (cause) {
    if (!isDenied(cause)) throw cause;
    throw new TidemarkError('LOG_MISCONFIGURED', `This account of the log may not ${what}`, {
      remedy: 'Set SVC_NATS_OPERATOR_URL to an account that may create streams, and run `./tidemark migrate`.',
      cause,
    });
  }
}

/** The name of the projector's durable consumer of each stream, whose lag monitors watch. */
export const CONSUMER_NAME = 'projector';

/**
 * The stream of changes, for consumers inside: a message for each leaf of the proof log, whose sequence in the stream is the number
 * of the change. Subjects are `changes.<dataset>.<kind>`.
 */
export const CHANGES_STREAM = 'changes';

/** A change of the proof log itself has this in place of a dataset. */
export const changeSubject = (dataset: string | null, kind: string): string =>
  `${CHANGES_STREAM}.${dataset ?? 'proof_log'}.${kind}`;

/** The JetStream error codes that this code handles. */
export const JS_ERROR = {
  WRONG_LAST_SEQUENCE: 10071,
  STREAM_NOT_FOUND: 10059,
  NO_MESSAGE_FOUND: 10037,
  CONSUMER_NOT_FOUND: 10014,
  CONSUMER_EXISTS: 10148, // with other settings
  STREAM_STORE_FAILED: 10077, // "maximum bytes exceeded", with discard: new
  INSUFFICIENT_RESOURCES: 10023,
  STORAGE_RESOURCES_EXCEEDED: 10047,
  NO_SUITABLE_PEERS: 10005, // servers are down, or have no room
  NOT_LEADER: 10006,
  TEMPORARILY_UNAVAILABLE: 10008,
  PEER_REMAP_FAILED: 10040,
  STREAM_OFFLINE: 10118,
  CONSUMER_OFFLINE: 10119,
} as const;

export const jsErrorCode = (error: unknown): number | undefined =>
  error instanceof JetStreamApiError ? error.code : undefined;

/** The subject of one message. The partition key is escaped, since subjects are split at dots. */
export const subjectOf = (dataset: string, partition: string, attempt: number, frame: number): string =>
  `${dataset}.${subjectToken(partition)}.${attempt}.${frame}`;

/** The subject of the retraction of an attempt; there is at most one for each attempt. */
export const retractionSubject = (dataset: string, partition: string, attempt: number): string =>
  `${dataset}.${subjectToken(partition)}.${attempt}.withheld`;

/** The subjects of all retractions in the log. */
export async function retractionSubjects(manager: JetStreamManager, dataset: string): Promise<ReadonlySet<string>> {
  const info = await manager.streams.info(dataset, { subjects_filter: `${dataset}.*.*.withheld` });
  return new Set(Object.keys(info.state.subjects ?? {}));
}

export const attemptFilter = (dataset: string, partition: string, attempt: number): string =>
  `${dataset}.${subjectToken(partition)}.${attempt}.>`;

/** The attempt that a subject names; undefined where it is not the subject of a frame or manifest. */
export function attemptOfSubject(
  subject: string,
): { readonly partition: string; readonly attempt: number } | undefined {
  const found = /^([^.]+)\.((?:[A-Za-z0-9-]|_[0-9a-f]{1,4}_)+)\.(\d+)\.(\d+)$/.exec(subject);
  if (!found) return undefined;
  const partition = found[2].replace(/_([0-9a-f]+)_/g, (_, code) => String.fromCharCode(Number.parseInt(code, 16)));
  return { partition, attempt: Number(found[3]) };
}

const subjectToken = (text: string) =>
  text.replace(/[^A-Za-z0-9-]/g, (char) => `_${char.codePointAt(0)!.toString(16)}_`);

/** The settings of an immutable log. A stream that differs in one of them is refused, not repaired. */
const IMMUTABLE = {
  retention: RetentionPolicy.Limits,
  discard: DiscardPolicy.New,
  storage: StorageType.File,
  deny_delete: true,
  deny_purge: true,
  // With S2 a wildcard consumer reads a day in 24 s instead of 0.7 s, and bodies are compressed with zstd already.
  compression: StoreCompression.None,
  max_age: 0,
  max_msgs: -1,
  max_msgs_per_subject: -1,
} as const satisfies Partial<StreamConfig>;

/** Of subjects, frames and manifests: a stream states it, so that a log of another tree is not taken for one of this. */
const LOG_FORMAT = { tidemark_log_format: '2' } as const;

/** Settings that a log must not have: they copy messages to or from other streams, or let a message delete others. */
const FORBIDDEN = [
  'republish',
  'mirror',
  'sources',
  'subject_transform',
  'allow_rollup_hdrs',
  'allow_msg_ttl',
  'sealed',
];

export interface StreamOptions {
  readonly maxBytes: number;
  /** Servers of a cluster that store it. */
  readonly replicas?: number;
}

export const streamOptions = (settings: {
  readonly SVC_STREAM_MAX_BYTES: number;
  readonly SVC_STREAM_REPLICAS: number;
}): StreamOptions => ({ maxBytes: settings.SVC_STREAM_MAX_BYTES, replicas: settings.SVC_STREAM_REPLICAS });

/** The smallest limit of a new stream where the store has no room for more: twelve such streams fit a small disk. */
const MIN_STREAM_BYTES = 256 * 1024 * 1024;

/**
 * Creates the stream of a dataset if it is missing, and sets its byte limit, which the server reserves from its store. Where
 * there is no room for the limit, a new stream gets a half or a quarter of it and so on, if need be from what other streams
 * have reserved and not used; an existing stream keeps its limit. It also stays as it is where the account may not change it.
 * @throws TidemarkError LOG_MISCONFIGURED naming what differs, also of a log of another tree, when there is no room at all, and
 *   when it is missing and the account may not create it.
 */
export async function ensureStream(
  connection: NatsConnection,
  dataset: string,
  { maxBytes, replicas = 1 }: StreamOptions,
): Promise<StreamInfo> {
  const manager = await jetstreamManager(connection);
  for (let bytes = maxBytes; ; ) {
    try {
      return await ensure(manager, dataset, bytes, replicas);
    } catch (cause) {
      const code = jsErrorCode(cause);
      if (code !== JS_ERROR.STORAGE_RESOURCES_EXCEEDED && code !== JS_ERROR.INSUFFICIENT_RESOURCES) throw cause;
      const existing = await streamInfo(manager, dataset);
      if (existing) return existing;
      if (bytes / 2 >= Math.min(MIN_STREAM_BYTES, maxBytes)) {
        bytes = Math.floor(bytes / 2);
        continue;
      }
      // On a disk of 64 GB the first seven streams took everything, and the datasets of the others had none.
      if (await shrinkLargest(manager)) continue;
      throw new TidemarkError('LOG_MISCONFIGURED', `nats-server has no room to reserve ${bytes} bytes for ${dataset}`, {
        cause,
        details: { dataset, max_bytes: maxBytes },
        remedy: 'Streams reserve their byte limit: lower SVC_STREAM_MAX_BYTES, or give nats-server a larger store.',
      });
    }
  }
}

/** Halves the limit of the stream with the most room that nothing uses. @returns whether there was one */
async function shrinkLargest(manager: JetStreamManager): Promise<boolean> {
  const unused = ({ config, state }: StreamInfo) => config.max_bytes - state.bytes;
  let largest: StreamInfo | undefined;
  for await (const info of manager.streams.list()) {
    // Others may have streams in this account.
    const isLog = info.config.subjects?.join() === `${info.config.name}.>` && mutableIn(info).length === 0;
    if (isLog && unused(info) > (largest ? unused(largest) : 0)) largest = info;
  }
  if (!largest) return false;
  const { config, state } = largest;
  const smaller = Math.max(Math.floor(config.max_bytes / 2), 2 * state.bytes, MIN_STREAM_BYTES);
  if (smaller >= config.max_bytes) return false;
  try {
    await manager.streams.update(config.name, { max_bytes: smaller });
    return true;
  } catch (error) {
    if (!isDenied(error)) throw error;
    return false;
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
      metadata: LOG_FORMAT,
      name: dataset,
      subjects: [`${dataset}.>`],
      max_bytes: maxBytes,
      allow_direct: true,
      num_replicas: replicas,
      // Publishing is idempotent by subject, so a deduplication window would only cost memory.
      duplicate_window: 100_000_000,
    });
    info = await allowed(making, `create the stream ${dataset}`);
  }
  const differing = mutableIn(info);
  if (differing.length > 0) {
    throw new TidemarkError(
      'LOG_MISCONFIGURED',
      `The stream ${dataset} is not an immutable log: ${differing.join('; ')}`,
    );
  }
  const { max_bytes, num_replicas, metadata } = info.config;
  const format = metadata?.tidemark_log_format;
  if (format !== LOG_FORMAT.tidemark_log_format) {
    throw new TidemarkError(
      'LOG_MISCONFIGURED',
      `Another tree of Tidemark made the stream ${dataset}: its log has the format ${format ?? 'none'}, and this tree's has ${LOG_FORMAT.tidemark_log_format}`,
      { remedy: BEGIN_ANEW },
    );
  }
  if (max_bytes !== maxBytes || num_replicas !== replicas) {
    try {
      info = await manager.streams.update(dataset, { max_bytes: maxBytes, num_replicas: replicas });
    } catch (error) {
      // An account that only publishes or reads uses the stream as it is.
      if (!isDenied(error)) throw error;
    }
  }
  return info;
}

/** The settings of a stream that differ from those of an immutable log. */
export function mutableIn(info: StreamInfo): string[] {
  const config = info.config as unknown as Record<string, unknown>;
  const differing = Object.entries(IMMUTABLE)
    .filter(([name, value]) => (config[name] ?? 0) !== value)
    .map(([name, value]) => `${name} is ${JSON.stringify(config[name])}, must be ${JSON.stringify(value)}`);
  return [...differing, ...FORBIDDEN.filter((name) => config[name]).map((name) => `${name} is set, must not be`)];
}

export async function streamInfo(manager: JetStreamManager, dataset: string): Promise<StreamInfo | undefined> {
  try {
    return await manager.streams.info(dataset);
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.STREAM_NOT_FOUND) return undefined;
    throw error;
  }
}

/** The sequence of the newest stored message of a subject, or undefined when there is none. */
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

/** The first stored message from a sequence on, or undefined when the stream ends before it. */
export async function firstMessageFrom(
  manager: JetStreamManager,
  dataset: string,
  sequence: number,
): Promise<{ seq: number; time: Date } | undefined> {
  // nats-server skips sequences without a message; the library's type does not know this form of the request.
  const request = { seq: sequence, next_by_subj: '>' };
  try {
    return (await manager.streams.getMessage(dataset, request)) ?? undefined;
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
  // The sequence of the end of an empty stream; nats-server would answer that the request is bad.
  if (sequence === 0) return undefined;
  try {
    const message = await manager.streams.getMessage(dataset, { seq: sequence });
    return message ? { subject: message.subject, data: message.data } : undefined;
  } catch (error) {
    if (jsErrorCode(error) === JS_ERROR.NO_MESSAGE_FOUND) return undefined;
    throw error;
  }
}
