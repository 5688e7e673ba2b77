/**
 * A log that is ahead of the database is projected before anything is published: after a restore, or where a command was
 * killed before its proofs. What lies in the log already is then found proved, and is not fetched again.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import type { Catalog } from '../../shared/db/catalog.ts';
import type { TidemarkError } from '../../shared/errors.ts';
import { decodeHeader } from '../../shared/frame/codec.ts';
import type { NatsConnection } from '../../shared/nats/connect.ts';
import { messageAt, streamInfo } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import { verifyCheckpoint } from '../projector/checkpoint.ts';
import { ProjectorWatch } from '../publisher/await-proof.ts';

const BACKLOG_POLL_MS = 100;
/** Frames of an attempt without an end that are looked past: more than a day of trades has. */
const MAX_TAIL = 4096;

export interface DrainOptions {
  readonly connection: NatsConnection;
  readonly catalog: Catalog;
  readonly signal: AbortSignal;
  /** Sees to it that somebody projects. */
  readonly project: () => void;
  /** Why nothing of the dataset will be proved; undefined while it may be. */
  readonly faultOf?: (dataset: DatasetDefinition) => TidemarkError | undefined;
  /** Longest time without anything proved. */
  readonly patienceMs: number;
  /** Longest time without a sign of life; default STILL_MS. */
  readonly stillMs?: number;
  /** Asks again while a store is away; default: asks once. */
  readonly surely?: <T>(ask: () => Promise<T>) => Promise<T>;
  /** Told what is waited for, and that it is given up. */
  readonly note: (message: string) => void;
}

/**
 * A projector that does nothing holds up nobody for longer: publishing needs none. What is in the log already is then
 * not known to be proved, and may be fetched in vain.
 */
const STILL_MS = 30_000;

/** @throws TidemarkError LOG_REWOUND when the log is not the one that was projected, PROJECTOR_FAILED as `faultOf`. */
export async function drainBacklog(needs: DrainOptions, dataset: DatasetDefinition): Promise<void> {
  const { connection, catalog, signal, project, patienceMs, stillMs = STILL_MS, note } = needs;
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
    if ((await surely(() => watch.look())) >= end) return;
    const fault = needs.faultOf?.(dataset);
    if (fault) throw fault;
    if (watch.stillMs > stillMs || watch.sinceStepMs > patienceMs) {
      // Whoever publishes now waits for its own proofs, and is told why they do not come.
      note(`${ahead}: ${watch.describe()}; publishing goes on`);
      return;
    }
    await sleep(BACKLOG_POLL_MS, undefined, { signal }).catch(() => {});
  }
}

/** After a sequence; what follows it are frames that nothing vouches for. */
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
