/**
 * Keeps the projector of one dataset running: takes the lock, projects, and starts again at the checkpoint after a
 * failure.
 */

import { setTimeout as delay } from 'node:timers/promises';
import { proofLogFolderOf, type Settings } from '../../shared/config/settings.ts';
import {
  type Client,
  connect,
  PROJECTOR_CHANNEL,
  PROJECTOR_LOCK,
  type ProjectorFailure,
  requireTimescale,
} from '../../shared/db/connect.ts';
import { holdSecret } from '../../shared/db/proof-secret.ts';
import { codeOf, type ErrorCode, explain, isRefusal, outageCode, TidemarkError } from '../../shared/errors.ts';
import type { Logger } from '../../shared/logger.ts';
import { connectNats } from '../../shared/nats/connect.ts';
import { ensureStream, streamOptions } from '../../shared/nats/stream.ts';
import type { DatasetDefinition } from '../../shared/registry/index.ts';
import type { Projection } from '../rows/binary-copy.ts';
import { Projector } from './projector.ts';

export interface ProjectionNeeds {
  readonly projection: Projection;
  readonly databaseUrl: string;
  readonly natsUrl: string;
  readonly settings: Settings;
  readonly log: Logger;
  readonly signal: AbortSignal;
  /** Pauses between a failure and the next start; default PAUSES. */
  readonly pauses?: RestartPauses;
}

export interface RestartPauses {
  /** After the first failure; doubled for each further one. */
  readonly firstMs: number;
  readonly longestMs: number;
}

const PAUSES: RestartPauses = { firstMs: 200, longestMs: 5000 };

/** A projector that ran for longer than this worked: its failure is the first in a row again. */
const WORKING_MS = 60_000;

/** The failures in a row after one more of a projector that ran for `ranMs`, and the pause that follows. */
export function restartPause(
  failuresBefore: number,
  ranMs: number,
  { firstMs, longestMs }: RestartPauses,
): { readonly failures: number; readonly waitMs: number } {
  const failures = ranMs > WORKING_MS ? 1 : failuresBefore + 1;
  return { failures, waitMs: Math.min(firstMs * 2 ** (failures - 1), longestMs) };
}

/** How often a waiting projector asks for the lock; it takes over within this time after the holder is gone. */
const LOCK_POLL_MS = 500;

export async function keepProjected(dataset: DatasetDefinition, needs: ProjectionNeeds): Promise<void> {
  const { signal, log, pauses = PAUSES } = needs;
  for (let failures = 0; !signal.aborted; ) {
    const startedAt = performance.now();
    try {
      await projectOnce(dataset, needs);
    } catch (error) {
      if (signal.aborted) return;
      const pause = restartPause(failures, performance.now() - startedAt, pauses);
      failures = pause.failures;
      const { waitMs } = pause;
      log.warn({ dataset: dataset.key, code: codeOf(error), waitMs, err: explain(error) }, 'projector starts again');
      await announceFailure(dataset, needs, error);
      await delay(waitMs, undefined, { signal }).catch(() => {});
    }
  }
}

/** PostgreSQL limits a NOTIFY to 8000 bytes, and a character takes up to four. */
const MAX_MESSAGE = 1500;

const OUTAGES: ReadonlySet<unknown> = new Set<ErrorCode>(['LOG_UNAVAILABLE', 'DATABASE_UNAVAILABLE']);

/** Whether a store was unavailable. Publishers that wait for a proof wait until it is back, and are not notified. */
export const isOutage = (error: unknown): boolean =>
  OUTAGES.has(codeOf(error) ?? outageCode(error)) && !isRefusal(error);

/** Notifies publishers that wait for a proof of the reason for a failure. */
async function announceFailure(dataset: DatasetDefinition, { databaseUrl }: ProjectionNeeds, error: unknown) {
  if (isOutage(error)) return;
  const failure: ProjectorFailure = { dataset: dataset.key, message: explain(error).slice(0, MAX_MESSAGE) };
  try {
    await using client = await connect({ url: databaseUrl, name: `tidemark projector ${dataset.key}` });
    await client.query('select pg_notify($1, $2)', [PROJECTOR_CHANNEL, JSON.stringify(failure)]);
  } catch {
    // The next failure is announced as well.
  }
}

async function projectOnce(dataset: DatasetDefinition, needs: ProjectionNeeds): Promise<void> {
  const { databaseUrl, natsUrl, settings, log, signal } = needs;
  await using client = await connect({ url: databaseUrl, name: `tidemark projector ${dataset.key}` });
  await using side = await connect({ url: databaseUrl, name: `tidemark projector ${dataset.key} side` });
  await requireTimescale(side);
  if (!(await waitForLock(client, dataset, signal))) return;
  await holdSecret(side, proofLogFolderOf(settings));
  await using connection = await connectNats(natsUrl, `tidemark projector ${dataset.key}`);
  await ensureStream(connection, dataset.key, streamOptions(settings));
  // Rows arrive in the order of the index, where one sort is faster than several: 0.8 s for a day, 1.1 s with two
  // workers.
  await client.query('set max_parallel_maintenance_workers = 0');
  log.debug({ dataset: dataset.key }, 'projector started');
  const projector = new Projector({
    dataset,
    connection,
    client,
    side,
    projection: needs.projection,
    pullMaxBytes: settings.limits.pullBytes,
    silenceMs: settings.limits.attemptSilenceMs,
    log,
    signal,
  });
  await Promise.race([projector.run(), lossOf(client)]);
}

/** Rejects as soon as the connection ends. The next statement might come much later. */
function lossOf(client: Client): Promise<never> {
  const lost = new Promise<never>((_, reject) => {
    client.once('end', () =>
      reject(new TidemarkError('DATABASE_UNAVAILABLE', 'PostgreSQL ended the connection of the projector')),
    );
  });
  // The connection also ends when the work is done, and then no caller awaits the promise.
  lost.catch(() => {});
  return lost;
}

/** Allows one projector per dataset: PostgreSQL releases the session lock when the connection ends. */
async function waitForLock(client: Client, dataset: DatasetDefinition, signal: AbortSignal): Promise<boolean> {
  while (!signal.aborted) {
    const asked = await client.query('select pg_try_advisory_lock($1, $2) as held', [PROJECTOR_LOCK, dataset.number]);
    if (asked.rows[0].held) return true;
    await delay(LOCK_POLL_MS, undefined, { signal }).catch(() => {});
  }
  return false;
}
