/**
 * Creates the streams of the log and applies the settings to them, through the operator's account. Has the backlog of a stream projected before anything is published to it.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import type { Catalog } from '../../shared/db/catalog.ts';
import { codeOf, type ErrorCode, explain, outageCode, type TidemarkError } from '../../shared/errors.ts';
import { decodeHeader } from '../../shared/frame/codec.ts';
import { connectNats, type NatsConnection } from '../../shared/nats/connect.ts';
import { CHANGES_STREAM, ensureStream, messageAt, streamInfo, streamOptions } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { verifyCheckpoint } from '../projector/log-reader.ts';
import { ProjectorWatch } from '../publisher/await-proof.ts';
import { fedDatasets } from '../sources/index.ts';
import type { Context } from './context.ts';

/** @throws TidemarkError what `ensureStream` throws for the first dataset whose stream cannot be used. */
export async function makeStreams(context: Context, datasets: readonly string[]): Promise<void> {
  const operator = await context.nats('operator');
  for (const dataset of datasets) await ensureStream(operator, dataset, streamOptions(context.settings));
  // Nothing is proved or served from it: where it cannot be made, the process that writes it says why.
  await ensureStream(operator, CHANGES_STREAM, streamOptions(context.settings)).catch((error) =>
    context.log.debug({ fault: explain(error) }, 'the stream of changes cannot be created'),
  );
}

export interface StreamFault {
  readonly stream: string;
  readonly code: ErrorCode | undefined;
  readonly fault: string;
}

/** Creates all of them independently: one that fails does not stop the others. */
export async function makeEverything(
  context: Pick<Context, 'settings' | 'natsUrls'>,
  operator: NatsConnection,
): Promise<StreamFault[]> {
  const { settings } = context;
  const faults: StreamFault[] = [];
  const attempt = (stream: string, making: Promise<unknown>) =>
    making.catch((error) => {
      faults.push({ stream, code: codeOf(error) ?? outageCode(error), fault: explain(error) });
    });
  for (const { key } of fedDatasets()) await attempt(key, ensureStream(operator, key, streamOptions(settings)));
  await attempt(CHANGES_STREAM, ensureStream(operator, CHANGES_STREAM, streamOptions(settings)));
  return faults;
}

/** A removed stream is created again within about this time. */
const KEEP_MS = 5000;

/**
 * Creates everything, and until disposal creates missing streams again, because the processes that use the streams lack
 * the right. Each fault is logged once and retried in the background.
 */
export async function keepStreams(context: Context): Promise<AsyncDisposable> {
  const { natsUrls, log, output } = context;
  const ending = new AbortController();
  const stopped = AbortSignal.any([context.signal, ending.signal]);
  const said = new Map<string, string>();
  let connection: (NatsConnection & AsyncDisposable) | undefined;
  const look = async () => {
    try {
      // A connection without retries: this loop retries anyway.
      connection ??= await connectNats(natsUrls.operator, 'tidemark streams', undefined, stopped);
      const faults = await makeEverything(context, connection);
      for (const { stream, code, fault } of faults) {
        // Processes that need the log report its outage themselves.
        if (code === 'LOG_UNAVAILABLE' || said.get(stream) === fault) continue;
        said.set(stream, fault);
        log.error({ stream, code, fault }, 'a stream of the log cannot be created or used');
        output.note(`${stream}: ${fault}`);
      }
    } catch (error) {
      log.debug({ fault: explain(error) }, 'the streams of the log could not be checked');
    }
  };
  await look();
  const keeping = (async () => {
    for (;;) {
      await delay(KEEP_MS, undefined, { signal: ending.signal }).catch(() => {});
      if (ending.signal.aborted) return;
      await look();
    }
  })();
  return {
    async [Symbol.asyncDispose]() {
      ending.abort();
      await connection?.[Symbol.asyncDispose]();
      await keeping;
    },
  };
}

/* The backlog of a stream. */

const BACKLOG_POLL_MS = 100;
/** Frames after the last manifest that are passed over: more than a day of trades has. */
const MAX_TAIL = 4096;

export interface DrainOptions {
  readonly connection: NatsConnection;
  readonly catalog: Catalog;
  readonly signal: AbortSignal;
  /** Starts a projector, unless one is at work. */
  readonly project: () => void;
  /** Why nothing of the dataset will be proved; undefined while it may be. */
  readonly faultOf?: (dataset: DatasetDefinition) => TidemarkError | undefined;
  /** As of `ProofWaiter`: how long a projector at work may prove nothing depends on it. */
  readonly timeoutMs: number;
  /** Longest time without a sign of life; default STILL_MS. */
  readonly stillMs?: number;
  /** Retries while a store is unavailable; default: asks once. */
  readonly surely?: <T>(ask: () => Promise<T>) => Promise<T>;
  /** Receives a message when the wait begins, and one when it is given up. */
  readonly note: (message: string) => void;
}

/**
 * Publishing needs no projector, so it continues when a projector does nothing for this long. Partitions that the log
 * already holds may then be fetched in vain.
 */
const STILL_MS = 30_000;

/**
 * Waits until the log's backlog is projected: after a restore, or when a command was killed before its proofs. The command
 * then finds those partitions proved and does not fetch them again.
 * @throws TidemarkError LOG_REWOUND when the log is not the one that was projected, PROJECTOR_FAILED as `faultOf`.
 */
export async function drainBacklog(needs: DrainOptions, dataset: DatasetDefinition): Promise<void> {
  const { connection, catalog, signal, project, timeoutMs, stillMs = STILL_MS, note } = needs;
  const surely = needs.surely ?? ((ask) => ask());
  const { sequence } = await surely(async () =>
    verifyCheckpoint(connection, dataset, await catalog.checkpoint(dataset)),
  );
  const manager = await jetstreamManager(connection, { checkAPI: false });
  const end = await surely(() => lastManifest(manager, dataset.key, sequence));
  if (end === undefined) return;
  project();
  const ahead = `${dataset.key}: the log is ${end - sequence} messages ahead of the database`;
  note(`${ahead}; they are projected before more is published`);
  const watch = new ProjectorWatch(catalog, dataset);
  while (!signal.aborted) {
    if ((await surely(() => watch.poll())) >= end) return;
    const fault = needs.faultOf?.(dataset);
    if (fault) throw fault;
    if (watch.stillMs > stillMs || watch.limitOver(timeoutMs) !== undefined) {
      // The publisher waits for its own proofs, and reports why they do not come.
      note(`${ahead}: ${watch.describe()}; publishing goes on`);
      return;
    }
    await delay(BACKLOG_POLL_MS, undefined, { signal }).catch(() => {});
  }
}

/** The last manifest after a sequence; frames without a manifest are never projected. */
async function lastManifest(manager: JetStreamManager, stream: string, after: number): Promise<number | undefined> {
  const last = (await streamInfo(manager, stream))?.state.last_seq ?? 0;
  for (let sequence = last; sequence > Math.max(after, last - MAX_TAIL); sequence--) {
    const message = await messageAt(manager, stream, sequence);
    if (message && isManifest(message.data)) return sequence;
  }
  return undefined;
}

function isManifest(data: Uint8Array): boolean {
  try {
    return decodeHeader(data, 'the end of the log').kind === 'manifest';
  } catch {
    return false;
  }
}
